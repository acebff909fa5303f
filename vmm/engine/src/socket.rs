//! Listening sockets.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nicforge_vfio_user::{Closer, PeerFd};
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{AtFlags, OFlag, open, openat},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::kill,
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, listen,
            socket, sockopt,
        },
        stat::{FileStat, Mode, fstat, fstatat},
    },
    unistd::{Gid, Pid, Uid, UnlinkatFlags, fchownat, geteuid, unlinkat},
};

use crate::error::EngineError;

/// Maximum number of connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

/// Maximum number of groups of a client, as in Linux.
const MAX_GROUPS: usize = 65_536;
/// Number of a client's groups that are read without a second system call.
const USUAL_GROUPS: usize = 32;

/// Users that may use a socket beside the server's own user and root; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// The user that owns the socket.
    pub owner: Option<Uid>,
    /// The group of the socket; its members may use it.
    pub group: Option<Gid>,
}

impl SocketAccess {
    fn mode(self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }

    /// Sets owner, group and mode of a socket's file, by its descriptor.
    fn apply_to(self, file: &OwnedFd) -> io::Result<()> {
        if self != Self::default() {
            fchownat(file, c"", self.owner, self.group, AtFlags::AT_EMPTY_PATH)?;
        }
        // The descriptor was opened without access, for which there is no `fchmod`.
        fs::set_permissions(path_of_descriptor(file), fs::Permissions::from_mode(self.mode()))
    }
}

/// A client that may use a socket, as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub pid: i32,
    /// Whether it belongs to another user than the server's own and root. The socket's owner or
    /// group lets such a client in.
    pub is_foreign: bool,
}

/// The place of a socket's file: a name in a directory that is held open.
///
/// The directory is not looked up again. A user who can rename a directory on the way to the socket
/// therefore leads the server to no other file.
#[derive(Clone, Debug)]
pub struct SocketPlace {
    directory: Arc<OwnedFd>,
    /// The path of the socket, for messages. Its last component is the file's name.
    path: PathBuf,
}

impl SocketPlace {
    /// Returns the place of the last component of `path` in an open directory. The rest of the path
    /// is only shown in messages.
    pub fn new(directory: &Arc<OwnedFd>, path: impl Into<PathBuf>) -> Self {
        Self { directory: Arc::clone(directory), path: path.into() }
    }

    /// Opens the directory of `path`.
    ///
    /// # Errors
    /// [`EngineError::Socket`] when there is no such directory.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty()).map_err(|errno| {
            EngineError::Socket {
                what: "opening the directory of",
                path: path.to_owned(),
                reason: errno.into(),
            }
        })?;

        Ok(Self::new(&Arc::new(directory), path))
    }

    /// Returns the path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the socket's file. A path without one has the name of the directory
    /// itself, which is no socket.
    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or(OsStr::new("."))
    }

    /// Returns a path that leads to the file by the open directory.
    fn path_by_directory(&self) -> PathBuf {
        path_of_descriptor(&self.directory).join(self.name())
    }

    /// Returns the attributes of the file that is at the place, and not those of a link's target.
    fn examine(&self) -> Result<FileStat, SystemErrno> {
        fstatat(&self.directory, self.name(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// Opens the file of a socket that was bound here, to change its attributes.
    fn open_socket(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, self.name(), flags, Mode::empty())?;
        // In a directory that others can write to, one of them may have replaced the file.
        if !is_socket(&fstat(&file)?) {
            return Err(io::Error::other("another file has replaced it"));
        }
        Ok(file)
    }

    /// Removes the file.
    fn unlink(&self) -> Result<(), SystemErrno> {
        unlinkat(&self.directory, self.name(), UnlinkatFlags::NoRemoveDir)
    }
}

/// Returns a path that leads to the file of a descriptor of this process.
fn path_of_descriptor(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Returns whether a file is a socket.
fn is_socket(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
}

/// The file of a listening socket. It can be removed while another thread still uses the socket.
#[derive(Clone, Debug)]
pub struct SocketFile {
    place: SocketPlace,
    /// The file that `bind` made. Another server may have replaced it.
    file: FileIdentity,
}

impl SocketFile {
    /// Removes the file, unless another one has replaced it.
    pub fn remove(&self) {
        let is_own = self.place.examine().is_ok_and(|stat| FileIdentity::of(&stat) == self.file);
        if is_own && let Err(errno) = self.place.unlink() {
            let path = self.place.path().display();
            tracing::warn!(%path, %errno, "the socket could not be removed");
        }
    }
}

/// A listening socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    fd: PeerFd,
    access: SocketAccess,
    file: SocketFile,
}

/// The device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(stat: &FileStat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl Listener {
    /// Listens at `path`, for the server's own user alone. A socket that a dead server left there
    /// is replaced.
    ///
    /// # Errors
    /// [`EngineError::SocketInUse`], [`EngineError::NotASocket`], [`EngineError::Socket`].
    pub fn bind(path: &Path) -> Result<Self, EngineError> {
        Self::bind_at(SocketPlace::open(path)?, SocketAccess::default())
    }

    /// Listens at a place, for another user or a group too. The socket has mode 0600, and 0660 with
    /// a group.
    ///
    /// # Errors
    /// As [`Listener::bind`]; [`EngineError::Socket`] also when the server may not change the
    /// owner. It needs CAP_CHOWN for another user, and for a group that it is not a member of.
    pub fn bind_at(place: SocketPlace, access: SocketAccess) -> Result<Self, EngineError> {
        let path = place.path().to_owned();
        let failed = |what, reason: io::Error| EngineError::Socket { what, path: path.clone(), reason };
        // Clients connect by the path, so it must fit into an address.
        UnixAddr::new(&path).map_err(|errno| failed("naming the socket", errno.into()))?;
        let address = UnixAddr::new(&place.path_by_directory())
            .map_err(|errno| failed("naming the socket", errno.into()))?;
        remove_stale(&place, &address)?;

        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .map_err(|errno| failed("making the socket", errno.into()))?;
        let fd = PeerFd::from(fd);

        bind(fd.as_fd().as_raw_fd(), &address).map_err(|errno| match errno {
            SystemErrno::EADDRINUSE => EngineError::SocketInUse { path: path.clone() },
            errno => failed("binding the socket", errno.into()),
        })?;

        let file = place.open_socket().map_err(|reason| failed("examining", reason))?;
        let stat = fstat(&file).map_err(|errno| failed("examining", errno.into()))?;

        // From here on an error removes the file, because it drops the listener.
        let identity = FileIdentity::of(&stat);
        let listener = Self { fd, access, file: SocketFile { place, file: identity } };
        // No client can connect before `listen`, so owner and mode are set before the first one.
        access
            .apply_to(&file)
            .map_err(|reason| failed("setting owner, group (which may need root) and mode of", reason))?;
        let backlog = Backlog::new(BACKLOG).map_err(|errno| failed("listening at", errno.into()))?;

        listen(&listener.fd, backlog).map_err(|errno| failed("listening at", errno.into()))?;
        Ok(listener)
    }

    /// Returns the path at which it listens.
    pub fn path(&self) -> &Path {
        self.file.place.path()
    }

    /// Returns the socket's file.
    pub fn file(&self) -> &SocketFile {
        &self.file
    }

    /// Sets the closer of the socket. Connections that were never accepted are closed
    /// with it, and so are the descriptors that wait in them.
    pub(crate) fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.fd.set_closer(closer);
    }

    /// Returns the descriptor, which is readable when a client waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Accepts the next client that waits; returns `None` when there is none. The connection is
    /// non-blocking.
    ///
    /// # Errors
    /// As `accept(2)`, for example when the process has no descriptor left.
    pub fn accept(&self) -> Result<Option<OwnedFd>, SystemErrno> {
        loop {
            match accept4(self.fd.as_fd().as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                Ok(fd) => return Ok(Some(into_owned_fd(fd))),
                // The client that waited has gone, or a signal interrupted the call.
                Err(SystemErrno::ECONNABORTED | SystemErrno::EINTR) => {}
                Err(SystemErrno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns a client that may use the socket: a client of the server's user, of root, or of the
    /// configured owner or group. The result is `None` for any other client. The credentials are
    /// those that the client had when it connected.
    pub fn authorize(&self, client: &OwnedFd) -> Option<Peer> {
        let peer = getsockopt(client, sockopt::PeerCredentials).ok()?;
        let user = Uid::from_raw(peer.uid());
        let is_foreign = !user.is_root() && user != geteuid();
        let is_member = |group: Gid| {
            peer.gid() == group.as_raw()
                || peer_groups(client.as_fd()).is_ok_and(|groups| groups.contains(&group.as_raw()))
        };
        let is_allowed =
            !is_foreign || self.access.owner == Some(user) || self.access.group.is_some_and(is_member);
        is_allowed.then(|| Peer { pid: peer.pid(), is_foreign })
    }
}

/// Returns the supplementary groups of the peer of a connected socket.
///
/// UNSAFETY: `nix` has no call for an option whose value is a list.
#[allow(unsafe_code)]
fn peer_groups(fd: BorrowedFd<'_>) -> Result<Vec<libc::gid_t>, SystemErrno> {
    let mut groups: Vec<libc::gid_t> = vec![0; USUAL_GROUPS];
    loop {
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes no more than `bytes` bytes to `groups`, which has that size,
        // and any bytes are groups.
        let result = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };

        let count = bytes as usize / size_of::<libc::gid_t>();
        match SystemErrno::result(result) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // There are more groups than there was room for.
            Err(SystemErrno::ERANGE) if groups.len() < count && count <= MAX_GROUPS => {
                groups.resize(count, 0);
            }
            Err(errno) => return Err(errno),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// UNSAFETY: takes over a descriptor that `accept4` returned as a number.
#[allow(unsafe_code)]
fn into_owned_fd(fd: i32) -> OwnedFd {
    // SAFETY: `accept4` has just made this descriptor, and nothing else refers to it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Removes the socket of a server that has ended, if there is one at a place. `address` leads
/// there.
fn remove_stale(place: &SocketPlace, address: &UnixAddr) -> Result<(), EngineError> {
    let path = place.path();
    let failed = |what, reason: io::Error| EngineError::Socket { what, path: path.to_owned(), reason };

    match place.examine() {
        Ok(stat) if is_socket(&stat) => {}
        Ok(_) => return Err(EngineError::NotASocket { path: path.to_owned() }),
        Err(SystemErrno::ENOENT) => return Ok(()),
        Err(errno) => return Err(failed("examining", errno.into())),
    }

    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let trial = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|errno| failed("making a socket for", errno.into()))?;

    match connect(trial.as_raw_fd(), address) {
        Err(SystemErrno::ECONNREFUSED) => {}
        // Another process has removed the socket meanwhile.
        Err(SystemErrno::ENOENT) => return Ok(()),
        // The kernel may hold the socket of a killed server for a moment, while it tears its
        // io_uring down.
        Ok(()) if has_dead_listener(&trial) => {}
        // A server listens: it answers, its queue is full, or its socket is of another type.
        Ok(()) | Err(SystemErrno::EAGAIN | SystemErrno::EPROTOTYPE) => {
            return Err(EngineError::SocketInUse { path: path.to_owned() });
        }
        Err(errno) => return Err(failed("trying", errno.into())),
    }

    match place.unlink() {
        Ok(()) | Err(SystemErrno::ENOENT) => Ok(()),
        Err(errno) => Err(failed("removing the stale", errno.into())),
    }
}

/// Returns whether the process that listens at the other end of a connected socket has ended.
fn has_dead_listener(connected: &OwnedFd) -> bool {
    getsockopt(connected, sockopt::PeerCredentials)
        .is_ok_and(|peer| kill(Pid::from_raw(peer.pid()), None) == Err(SystemErrno::ESRCH))
}

/// Returns whether the peer of a socket has closed it.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    // A hang-up is always reported.
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
