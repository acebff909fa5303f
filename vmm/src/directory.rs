//! The directory of a served machine: user sockets in it, control and admin sockets in `admin/`.

use std::{
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;

use crate::failure::{Doing, Failure};

/// The longest path that fits into a socket address.
const MAX_SOCKET_PATH: usize = 107;

/// A served machine's directory.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Where a machine called `name` is served unless the user says otherwise: in the user's runtime directory if there is
    /// one, else below the directory for temporary files.
    pub fn default_for(name: &str) -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) if !runtime.is_empty() => PathBuf::from(runtime).join("nicforge").join(name),
            _ => Self::parent_in_temporary().join(name),
        }
    }

    /// Make the directory, and `admin/` in it, for this user alone. What is there already must be this user's, and writable by
    /// nobody else: who can write a directory can put sockets of their own in the place of ours.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let directory = Self { path: std::path::absolute(path).doing(|| path.display().to_string())? };
        let own_parent = directory.path.parent().filter(|parent| *parent == Self::parent_in_temporary());
        for part in own_parent.into_iter().chain([directory.path.as_path(), &directory.path.join("admin")]) {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(part)
                .doing(|| format!("can't make the directory {}", part.display()))?;
            if let Err(failure) = check_private(part) {
                directory.remove_if_empty();
                return Err(failure);
            }
        }
        Ok(directory)
    }

    fn parent_in_temporary() -> PathBuf {
        std::env::temp_dir().join(format!("nicforge-{}", geteuid()))
    }

    /// A directory that is there already.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path).doing(|| path.display().to_string())?;
        let metadata = std::fs::metadata(&path).doing(|| {
            format!("no machine is served in {}; start one with `nicforge serve`", path.display())
        })?;
        if metadata.uid() != geteuid().as_raw() && !geteuid().is_root() {
            return Err(Failure::environment(format!(
                "{} belongs to another user; choose another directory, or be that user",
                path.display()
            )));
        }
        Ok(Self { path })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of an attachment. The admin attachments are in a folder of their own.
    pub fn socket(&self, node: &str, attachment: &str, admin: bool) -> Result<PathBuf, Failure> {
        let name = format!("{node}.{attachment}");
        let path = if admin { self.path.join("admin").join(name) } else { self.path.join(name) };
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(Failure::environment(format!(
                "the socket path {} is longer than {MAX_SOCKET_PATH} bytes; choose a shorter --dir",
                path.display()
            )));
        }
        Ok(path)
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.path.join("admin").join("control")
    }

    /// Remove the directory and `admin/` if they are empty. Sockets are removed by who bound them.
    pub fn remove_if_empty(&self) {
        // Somebody's own files in there are no error: the directory then stays.
        let _ = std::fs::remove_dir(self.path.join("admin"));
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Whether nobody but this user can change what is in a directory.
fn check_private(path: &Path) -> Result<(), Failure> {
    let metadata = std::fs::symlink_metadata(path).doing(|| path.display().to_string())?;
    let problem = if !metadata.is_dir() {
        "is not a directory"
    } else if metadata.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if metadata.permissions().mode() & 0o022 != 0 {
        "can be written by other users"
    } else {
        return Ok(());
    };
    Err(Failure::environment(format!("{} {problem}; choose another directory with --dir", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let failure = Directory::create(&path).unwrap_err();
        assert!(failure.message.contains("can be written by other users"), "{failure}");
        assert!(!path.join("admin").exists());
    }

    #[test]
    fn an_admin_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let admin = folder.path().join("m/admin");
        std::fs::create_dir_all(&admin).unwrap();
        std::fs::set_permissions(&admin, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(Directory::create(&folder.path().join("m")).is_err());
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(Directory::create(&folder.path().join("link")).is_err());
    }
}
