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
            _ => std::env::temp_dir().join(format!("nicforge-{}", geteuid())).join(name),
        }
    }

    /// Make the directory, and `admin/` in it, for this user alone.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        for part in [path.to_owned(), path.join("admin")] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&part)
                .doing(|| format!("can't make the directory {}", part.display()))?;
        }
        let directory = Self::open(path)?;
        let metadata = std::fs::metadata(path).doing(|| path.display().to_string())?;
        if metadata.permissions().mode() & 0o022 != 0 {
            return Err(Failure::environment(format!(
                "{} can be written by other users; choose another directory with --dir, or chmod 700 it",
                path.display()
            )));
        }
        Ok(directory)
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
