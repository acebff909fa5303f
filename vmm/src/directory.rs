//! The directory of a served machine. It contains the user sockets, and the control and admin
//! sockets in `admin/`.

use std::{
    fs::{DirBuilder, File, Permissions},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    unistd::{Uid, geteuid},
};

use crate::failure::{ErrorContext, Failure, program};

/// The longest path that fits into a socket address.
const MAX_SOCKET_PATH: usize = 107;
/// The greatest number of attempts to create a directory. Each may fail because a server that ends
/// removes the directory.
const MAX_ATTEMPTS: usize = 16;

/// A served machine's directory. Dropping it removes the directories that [`Directory::create`] has
/// made, unless there are other files in them. The sockets are removed by the code that bound them.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The directories that were created, in this order.
    created: Vec<PathBuf>,
    /// The lock, which the serving process holds.
    _lock: Option<Flock<File>>,
}

impl Directory {
    /// Returns the default directory of a machine called `name`. It is in the user's runtime
    /// directory if there is one, and otherwise below the directory for temporary files.
    pub fn default_for(name: &str) -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) if !runtime.is_empty() => PathBuf::from(runtime).join("nicforge").join(name),
            _ => Self::temporary_parent().join(name),
        }
    }

    /// Creates the directory and `admin/` in it, for this user alone, and locks it for serving. An
    /// existing directory must belong to this user, and must not be writable by others. A user who
    /// can write to a directory could replace our sockets.
    ///
    /// Only one server can use a directory. A server that does not listen yet looks like a dead
    /// one, and its socket would be replaced.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path).context(|| path.display().to_string())?;
        let mut directory = Self { path: path.clone(), created: Vec::new(), _lock: None };
        if let Some(parent) = path.parent().filter(|parent| *parent == Self::temporary_parent()) {
            directory.create_private(parent)?;
        }

        for _ in 0..MAX_ATTEMPTS {
            directory.create_private(&path)?;
            // There is no lock if a server that ended has removed the directory meanwhile.
            directory._lock = lock(&path)?;
            if directory._lock.is_some() {
                directory.create_private(&path.join("admin"))?;
                return Ok(directory);
            }
        }

        Err(Failure::environment(format!("{} is taken away again and again", path.display())))
    }

    /// Creates a directory and its missing parents, and checks that only this user can write to it.
    fn create_private(&mut self, path: &Path) -> Result<(), Failure> {
        let mut attempts = 0..MAX_ATTEMPTS;
        while let Err(error) = self.create_missing(path) {
            // Another server has removed a parent directory, which it had created itself.
            if error.kind() != ErrorKind::NotFound || attempts.next().is_none() {
                return Err(error).context(|| format!("can't make the directory {}", path.display()));
            }
        }

        check_private(path)
    }

    /// Creates a directory and its missing parents, and notes each for [`Self::remove_created`].
    fn create_missing(&mut self, path: &Path) -> std::io::Result<()> {
        let missing: Vec<_> = path.ancestors().take_while(|part| part.symlink_metadata().is_err()).collect();
        for part in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(part) {
                Ok(()) => self.created.push(part.to_owned()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }

        Ok(())
    }

    /// Returns the parent of default directories for a user without a runtime directory.
    fn temporary_parent() -> PathBuf {
        std::env::temp_dir().join(format!("nicforge-{}", geteuid()))
    }

    /// Opens an existing directory.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path).context(|| path.display().to_string())?;
        let metadata = std::fs::metadata(&path).context(|| {
            format!("no machine is served in {}; start one with `{} serve`", path.display(), program())
        })?;
        if metadata.uid() != geteuid().as_raw() && !geteuid().is_root() {
            return Err(Failure::environment(format!(
                "{} belongs to another user; choose another directory, or be that user",
                path.display()
            )));
        }

        Ok(Self { path, created: Vec::new(), _lock: None })
    }

    /// Returns whether a machine is, or was, served in a directory.
    pub fn is_served(path: &Path) -> bool {
        path.join("admin/control").symlink_metadata().is_ok()
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket of an attachment. The admin attachments' sockets are in `admin/`.
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

    /// Returns the path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("admin").join("control")
    }
}

impl Directory {
    /// Allows every user of the host to pass through the created directories, except `admin/`.
    /// Other users can then open the sockets that they own, but cannot list the directory. `owners`
    /// are the users that own sockets.
    ///
    /// # Errors
    /// Returns a [`Failure`] that names a parent directory which only its own user can enter.
    pub fn allow_traversal(&self, owners: &[Uid]) -> Result<(), Failure> {
        let admin = self.path.join("admin");
        for created in self.created.iter().filter(|created| **created != admin) {
            std::fs::set_permissions(created, Permissions::from_mode(0o711))
                .context(|| format!("can't set the mode of {}", created.display()))?;
        }

        // A parent is passable if its group or others may enter it, or if it belongs to an owner of
        // sockets. This finds common mistakes. It is no proof for every owner.
        for part in self.path.ancestors() {
            let metadata = std::fs::metadata(part).context(|| part.display().to_string())?;
            let is_closed = metadata.mode() & 0o011 == 0 && !owners.contains(&Uid::from_raw(metadata.uid()));
            if is_closed {
                return Err(Failure::environment(format!(
                    "{} can be entered by its own user only, so that no other reaches the sockets; choose another --dir",
                    part.display()
                )));
            }
        }

        Ok(())
    }

    /// Removes the created directories, unless there are other files in them. Further calls have no
    /// effect.
    pub fn remove_created(&mut self) {
        // Each is removed only once, because another server may create one of the same name at any
        // time.
        for created in self.created.drain(..).rev() {
            // The removal of a directory with files fails, and the directory stays.
            let _ = std::fs::remove_dir(created);
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.remove_created();
    }
}

/// The file of a socket that this process listens on. It can be removed while another thread still
/// uses the socket.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Returns the file that is at `path` now.
    ///
    /// # Errors
    /// Returns a [`Failure`] of the environment when there is none.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        let metadata = path.symlink_metadata().context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), file: (metadata.dev(), metadata.ino()) })
    }

    /// Removes the file, unless another file has replaced it.
    pub fn remove(&self) {
        let is_own =
            self.path.symlink_metadata().is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if is_own && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket could not be removed");
        }
    }
}

/// Locks a directory. Returns `None` when `path` no longer leads to the locked directory.
fn lock(path: &Path) -> Result<Option<Flock<File>>, Failure> {
    let description = || format!("can't lock the directory {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.context(description)?,
    };

    let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, Errno::EWOULDBLOCK)) => {
            return Err(Failure::environment(format!(
                "a machine is served already in {}; stop it or choose another --dir",
                path.display()
            )));
        }
        Err((_, errno)) => return Err(errno).context(description),
    };

    let locked = lock.metadata().context(description)?;
    let is_same =
        path.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino()));

    Ok(is_same.then_some(lock))
}

/// Checks that only this user can change the contents of a directory.
fn check_private(path: &Path) -> Result<(), Failure> {
    let metadata = std::fs::symlink_metadata(path).context(|| path.display().to_string())?;
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
        assert!(path.exists());
        assert!(!path.join("admin").exists());
    }

    #[test]
    fn only_created_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (own, path) = (folder.path().join("own"), folder.path().join("own/a/b"));
        std::fs::create_dir(&own).unwrap();
        drop(Directory::create(&path).unwrap());

        assert!(own.exists() && !own.join("a").exists());
        drop(Directory::create(&own).unwrap());

        assert!(own.exists() && !own.join("admin").exists());
        let directory = Directory::create(&path).unwrap();
        std::fs::write(own.join("a/file"), "").unwrap();
        drop(directory);

        assert!(own.join("a/file").exists() && !path.exists());
    }

    #[test]
    fn a_searchable_directory_opens_neither_admin_nor_its_existing_parent() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/m");
        let directory = Directory::create(&path).unwrap();

        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        let failure = directory.allow_traversal(&[]).unwrap_err();

        assert!(
            failure.message.contains(&format!("{} can be entered", folder.path().display())),
            "{failure}"
        );
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        directory.allow_traversal(&[]).unwrap();

        assert_eq!([mode(&path), mode(&folder.path().join("a"))], [0o711; 2]);
        assert_eq!(mode(&path.join("admin")), 0o700);
    }

    #[test]
    fn a_socket_file_is_removed_and_a_file_that_replaced_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let file = SocketFile::of(&path).unwrap();
        file.remove();

        assert!(!path.exists());
        std::fs::write(&path, "another's").unwrap();
        file.remove();

        assert!(path.exists());
        drop(listener);
    }

    #[test]
    fn a_directory_in_use_by_a_server_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let first = Directory::create(&path).unwrap();
        let failure = Directory::create(&path).unwrap_err();

        assert!(failure.message.contains("served already"), "{failure}");
        assert!(path.join("admin").exists());
        drop(first);

        assert!(!path.exists());
        assert!(Directory::create(&path).is_ok());
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
    fn a_symbolic_link_at_the_path_of_the_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(Directory::create(&folder.path().join("link")).is_err());
    }
}
