//! The directory of a served machine. It contains the user sockets, and the control and admin
//! sockets in `admin/`.
//!
//! A server reaches all of it by descriptors that it opens once: it makes, changes and removes
//! nothing by a path that another user could have changed meanwhile, such as the owner of a parent
//! directory.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nicforge_engine::SocketPlace;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat},
    sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat},
    unistd::{Uid, UnlinkatFlags, geteuid, unlinkat},
};

use crate::failure::{ErrorContext, Failure, program};

/// The longest path that fits into a socket address.
const MAX_SOCKET_PATH: usize = 107;
/// The greatest number of attempts to create a directory. Each may fail because a server that ends
/// removes the directory.
const MAX_ATTEMPTS: usize = 16;
/// The name of the directory for admin attachments and the control socket.
const ADMIN: &str = "admin";

/// The names of the files of a served machine.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Returns the default directory of a machine called `name`. It is in the user's runtime
    /// directory if there is one, and otherwise below the directory for temporary files.
    pub fn default_for(name: &str) -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) if !runtime.is_empty() => PathBuf::from(runtime).join("nicforge").join(name),
            _ => temporary_parent().join(name),
        }
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

        Ok(Self { path })
    }

    /// Returns whether a machine is, or was, served in a directory.
    pub fn is_served(path: &Path) -> bool {
        path.join(ADMIN).join("control").symlink_metadata().is_ok()
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket of an attachment. The admin attachments' sockets are in `admin/`.
    pub fn socket(&self, node: &str, attachment: &str, admin: bool) -> Result<PathBuf, Failure> {
        let name = format!("{node}.{attachment}");
        let path = if admin { self.path.join(ADMIN).join(name) } else { self.path.join(name) };
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
        self.path.join(ADMIN).join("control")
    }
}

/// Returns the parent of default directories for a user without a runtime directory.
fn temporary_parent() -> PathBuf {
    std::env::temp_dir().join(format!("nicforge-{}", geteuid()))
}

/// A directory that this process serves a machine in. Dropping it removes the directories that
/// [`ServedDirectory::create`] has made, unless there are other files in them. The sockets are
/// removed by the code that bound them.
#[derive(Debug)]
pub struct ServedDirectory {
    names: Directory,
    /// The directory itself.
    root: Arc<OwnedFd>,
    /// `admin/` in it.
    admin: Arc<OwnedFd>,
    /// The directories that were created, in this order.
    created: CreatedFolders,
    /// Held while the machine is served.
    _lock: Flock<File>,
}

impl ServedDirectory {
    /// Creates the directory and `admin/` in it, for this user alone, and locks it for serving. An
    /// existing directory must belong to this user, and must not be writable by others. A user who
    /// can write to a directory could replace our sockets.
    ///
    /// Only one server can use a directory. A server that does not listen yet looks like a dead
    /// one, and its socket would be replaced.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path).context(|| path.display().to_string())?;
        let mut created = CreatedFolders::default();
        if let Some(parent) = path.parent().filter(|parent| *parent == temporary_parent()) {
            created.open_private(parent)?;
        }

        for _ in 0..MAX_ATTEMPTS {
            let root = created.open_private(&path)?;
            // There is no lock if a server that ended has removed the directory meanwhile.
            let Some(lock) = lock(&root, &path)? else { continue };
            let admin = created.open_in(&root.fd, OsStr::new(ADMIN));
            let admin_path = path.join(ADMIN);
            let admin = admin.map_err(|errno| cannot_make(&admin_path, errno))?;
            check_private(&admin.fd, &admin_path)?;

            let names = Directory { path };
            return Ok(Self { names, root: root.fd, admin: admin.fd, created, _lock: lock });
        }

        Err(Failure::environment(format!("{} is taken away again and again", path.display())))
    }

    /// Returns the names of its files.
    pub fn names(&self) -> &Directory {
        &self.names
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        self.names.path()
    }

    /// Returns the place of an attachment's socket.
    pub fn place(&self, node: &str, attachment: &str, admin: bool) -> Result<SocketPlace, Failure> {
        let folder = if admin { &self.admin } else { &self.root };
        Ok(SocketPlace::new(folder, self.names.socket(node, attachment, admin)?))
    }

    /// Returns the place of the control socket.
    pub fn control_place(&self) -> SocketPlace {
        SocketPlace::new(&self.admin, self.names.control_socket())
    }

    /// Allows every user of the host to pass through the created directories, except `admin/`.
    /// Other users can then open the sockets that they own, but cannot list the directory. `owners`
    /// are the users that own sockets.
    ///
    /// # Errors
    /// Returns a [`Failure`] that names a parent directory which only its own user can enter.
    pub fn allow_traversal(&self, owners: &[Uid]) -> Result<(), Failure> {
        for created in self.created.0.iter().filter(|created| !Arc::ptr_eq(&created.fd, &self.admin)) {
            let mode = Mode::from_bits_retain(0o711);
            fchmod(&created.fd, mode)
                .context(|| format!("can't set the mode of {}", created.name.display()))?;
        }

        // A parent is passable if its group or others may enter it, or if it belongs to an owner of
        // sockets. This finds common mistakes. It is no proof for every owner.
        for part in self.path().ancestors() {
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
        self.created.remove();
    }
}

/// A directory, and its name in its parent.
#[derive(Clone, Debug)]
struct Folder {
    parent: Arc<OwnedFd>,
    name: OsString,
    fd: Arc<OwnedFd>,
}

impl Folder {
    /// Returns whether the directory still has its name.
    fn is_there(&self) -> bool {
        let there = fstatat(&self.parent, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let identity = |stat: FileStat| (stat.st_dev, stat.st_ino);
        there.is_ok() && there.map(identity) == fstat(&self.fd).map(identity)
    }

    /// Returns whether the directory is as a new one is: this user's own, and empty.
    fn is_new(&self) -> io::Result<bool> {
        let is_own = fstat(&self.fd)?.st_uid == geteuid().as_raw();
        let mut entries = std::fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))?;
        Ok(is_own && entries.next().is_none())
    }
}

/// The directories that were created, in this order. Dropping it removes those that are empty.
#[derive(Debug, Default)]
struct CreatedFolders(Vec<Folder>);

impl CreatedFolders {
    /// Opens a directory, which is created with its missing parents, and checks that only this user
    /// can write to it.
    fn open_private(&mut self, path: &Path) -> Result<Folder, Failure> {
        let mut attempts = 0..MAX_ATTEMPTS;
        let folder = loop {
            match self.open(path) {
                Ok(folder) => break folder,
                // Another server has removed a parent directory, which it had created itself.
                Err(Errno::ENOENT) if attempts.next().is_some() => {}
                Err(errno) => return Err(cannot_make(path, errno)),
            }
        };

        check_private(&folder.fd, path)?;
        Ok(folder)
    }

    /// Opens a directory, which is created with its missing parents. Parents may be links.
    fn open(&mut self, path: &Path) -> Result<Folder, Errno> {
        let parent = path.parent().unwrap_or(path);
        let name = path.components().next_back().map_or(OsStr::new("."), Component::as_os_str);

        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let parent = match open(parent, flags, Mode::empty()) {
            Ok(fd) => Arc::new(fd),
            Err(Errno::ENOENT) if parent != path => self.open(parent)?.fd,
            Err(errno) => return Err(errno),
        };
        self.open_in(&parent, name)
    }

    /// Opens a directory in another one, and creates it if it is missing.
    fn open_in(&mut self, parent: &Arc<OwnedFd>, name: &OsStr) -> Result<Folder, Errno> {
        let is_made = match mkdirat(parent, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(errno),
        };

        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = Arc::new(openat(parent, name, flags, Mode::empty())?);
        let folder = Folder { parent: Arc::clone(parent), name: name.to_owned(), fd };
        // A user who can rename in the parent may have put another directory there meanwhile, one
        // of this user even, whose mode must stay as it is.
        if is_made && folder.is_new().unwrap_or(false) {
            self.0.push(folder.clone());
        }
        Ok(folder)
    }

    /// Removes the directories, unless there are other files in them.
    fn remove(&mut self) {
        // Each is removed only once, because another server may create one of the same name at any
        // time.
        for created in self.0.drain(..).rev().filter(Folder::is_there) {
            // The removal of a directory with files fails, and the directory stays.
            let _ = unlinkat(&created.parent, created.name.as_os_str(), UnlinkatFlags::RemoveDir);
        }
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the failure to create or open a directory of a server.
fn cannot_make(path: &Path, errno: Errno) -> Failure {
    match errno {
        Errno::ENOTDIR | Errno::ELOOP => refused(path, "is not a directory"),
        errno => Failure::environment(format!("can't make the directory {}: {errno}", path.display())),
    }
}

/// Returns the failure of a directory that cannot be used.
fn refused(path: &Path, problem: &str) -> Failure {
    Failure::environment(format!("{} {problem}; choose another directory with --dir", path.display()))
}

/// Locks a directory. Returns `None` when the path no longer leads to it.
fn lock(root: &Folder, path: &Path) -> Result<Option<Flock<File>>, Failure> {
    let description = || format!("can't lock the directory {}", path.display());
    let file = File::from(root.fd.try_clone().context(description)?);

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

    Ok(root.is_there().then_some(lock))
}

/// Checks that only this user can change the contents of a directory.
fn check_private(fd: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let stat = fstat(fd).context(|| path.display().to_string())?;
    if stat.st_uid != geteuid().as_raw() {
        Err(refused(path, "belongs to another user"))
    } else if stat.st_mode & 0o022 != 0 {
        Err(refused(path, "can be written by other users"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let failure = ServedDirectory::create(&path).unwrap_err();

        assert!(failure.message.contains("can be written by other users"), "{failure}");
        assert!(path.exists());
        assert!(!path.join("admin").exists());
    }

    #[test]
    fn only_created_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (own, path) = (folder.path().join("own"), folder.path().join("own/a/b"));
        std::fs::create_dir(&own).unwrap();
        drop(ServedDirectory::create(&path).unwrap());

        assert!(own.exists() && !own.join("a").exists());
        drop(ServedDirectory::create(&own).unwrap());

        assert!(own.exists() && !own.join("admin").exists());
        let directory = ServedDirectory::create(&path).unwrap();
        std::fs::write(own.join("a/file"), "").unwrap();
        drop(directory);

        assert!(own.join("a/file").exists() && !path.exists());
    }

    #[test]
    fn a_searchable_directory_opens_neither_admin_nor_its_existing_parent() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/m");
        let directory = ServedDirectory::create(&path).unwrap();

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

    /// Puts a link to another directory at the path of a served one, as the owner of the parent
    /// can.
    fn lead_elsewhere(path: &Path, target: &Path) {
        std::fs::rename(path, path.with_extension("moved")).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    #[test]
    fn what_is_put_at_the_path_of_a_served_directory_stays_as_it_is() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        let (path, precious) = (folder.path().join("m"), folder.path().join("precious"));
        for directory in [precious.clone(), precious.join("admin")] {
            std::fs::create_dir(&directory).unwrap();
            std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        }

        let directory = ServedDirectory::create(&path).unwrap();
        lead_elsewhere(&path, &precious);
        // The path is not passable any more, and a warning of that is right.
        let _ = directory.allow_traversal(&[]);
        let listener = nicforge_engine::Listener::bind_at(
            directory.control_place(),
            nicforge_engine::SocketAccess::default(),
        )
        .unwrap();

        let moved = path.with_extension("moved");
        assert_eq!((mode(&precious), mode(&moved)), (0o700, 0o711));
        assert!(moved.join("admin/control").exists() && !precious.join("admin/control").exists());
        drop((listener, directory));
        assert!(precious.join("admin").exists() && path.is_symlink());
    }

    #[test]
    fn a_directory_that_was_there_is_not_a_created_one() {
        let folder = tempfile::tempdir().unwrap();
        let parent = Arc::new(open(folder.path(), OFlag::O_PATH, Mode::empty()).unwrap());
        let mut created = CreatedFolders::default();
        let new = created.open_in(&parent, OsStr::new("new")).unwrap();
        assert!(new.is_new().unwrap() && created.0.len() == 1);

        std::fs::write(folder.path().join("new/file"), "").unwrap();
        assert!(!created.open_in(&parent, OsStr::new("new")).unwrap().is_new().unwrap());
        assert_eq!(created.0.len(), 1);
    }

    #[test]
    fn a_directory_in_use_by_a_server_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let first = ServedDirectory::create(&path).unwrap();
        let failure = ServedDirectory::create(&path).unwrap_err();

        assert!(failure.message.contains("served already"), "{failure}");
        assert!(path.join("admin").exists());
        drop(first);

        assert!(!path.exists());
        assert!(ServedDirectory::create(&path).is_ok());
    }

    #[test]
    fn an_admin_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let admin = folder.path().join("m/admin");
        std::fs::create_dir_all(&admin).unwrap();
        std::fs::set_permissions(&admin, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(ServedDirectory::create(&folder.path().join("m")).is_err());
    }

    #[test]
    fn a_symbolic_link_at_the_path_of_the_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(ServedDirectory::create(&folder.path().join("link")).is_err());
    }
}
