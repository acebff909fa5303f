//! Listening sockets.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno as SystemErrno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::kill,
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, listen,
            socket, sockopt,
        },
    },
    unistd::{Pid, geteuid},
};

use crate::error::EngineError;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

/// A socket of mode 0600 that is listened on; its file is removed at the end.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// The file that was made: device and inode.
    file: (u64, u64),
}

impl Listener {
    /// Listen at `path`. What a server that is dead left there is replaced.
    ///
    /// # Errors
    /// [`EngineError::SocketInUse`], [`EngineError::NotASocket`], [`EngineError::Socket`].
    pub fn bind(path: &Path) -> Result<Self, EngineError> {
        let failed = |what, reason: io::Error| EngineError::Socket { what, path: path.to_owned(), reason };
        let address = UnixAddr::new(path).map_err(|errno| failed("naming the socket", errno.into()))?;
        remove_stale(path, &address)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .map_err(|errno| failed("making the socket", errno.into()))?;
        bind(fd.as_raw_fd(), &address).map_err(|errno| match errno {
            SystemErrno::EADDRINUSE => EngineError::SocketInUse { path: path.to_owned() },
            errno => failed("binding the socket", errno.into()),
        })?;
        // Nobody can connect before `listen`, so that the mode is right before the first client.
        let file = fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::symlink_metadata(path))
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .map_err(|reason| failed("setting the mode of", reason))?;
        let listener = Self { fd, path: path.to_owned(), file };
        let backlog = Backlog::new(BACKLOG).map_err(|errno| failed("listening at", errno.into()))?;
        listen(&listener.fd, backlog).map_err(|errno| failed("listening at", errno.into()))?;
        Ok(listener)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when a client waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next client that waits; `None` when there is none. It is non-blocking.
    ///
    /// # Errors
    /// As `accept(2)`, for example when the process has no descriptor left.
    pub fn accept(&self) -> Result<Option<OwnedFd>, SystemErrno> {
        loop {
            match accept4(self.fd.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                Ok(fd) => return Ok(Some(own(fd))),
                // The client that waited gave up.
                Err(SystemErrno::ECONNABORTED | SystemErrno::EINTR) => {}
                Err(SystemErrno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket could not be removed");
        }
    }
}

/// UNSAFETY: takes over a descriptor that `accept4` gives as a number.
#[allow(unsafe_code)]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: `accept4` has just made this descriptor, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn remove_stale(path: &Path, address: &UnixAddr) -> Result<(), EngineError> {
    let failed = |what, reason: io::Error| EngineError::Socket { what, path: path.to_owned(), reason };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("looking at", error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(EngineError::NotASocket { path: path.to_owned() });
    }
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|errno| failed("making a socket for", errno.into()))?;
    match connect(probe.as_raw_fd(), address) {
        Err(SystemErrno::ECONNREFUSED) => {}
        Err(SystemErrno::ENOENT) => return Ok(()),
        // The kernel may hold on to the socket of a killed server for a moment, while it takes its io_uring apart.
        Ok(()) if listener_is_dead(&probe) => {}
        // It answers, or would if it were not so busy.
        Ok(()) | Err(SystemErrno::EAGAIN | SystemErrno::EPROTOTYPE) => {
            return Err(EngineError::SocketInUse { path: path.to_owned() });
        }
        Err(errno) => return Err(failed("trying", errno.into())),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing the stale", error)),
        _ => Ok(()),
    }
}

/// Whether the process that listens at the other end does not exist any more.
fn listener_is_dead(connected: &OwnedFd) -> bool {
    getsockopt(connected, sockopt::PeerCredentials)
        .is_ok_and(|peer| kill(Pid::from_raw(peer.pid()), None) == Err(SystemErrno::ESRCH))
}

/// The process of a client that may use the socket: the server's user, or root. `None` for anybody else.
pub fn welcome(fd: &OwnedFd) -> Option<i32> {
    let peer = getsockopt(fd, sockopt::PeerCredentials).ok()?;
    (peer.uid() == 0 || peer.uid() == geteuid().as_raw()).then(|| peer.pid())
}

/// Whether the peer of a socket has closed it.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    // A hang-up is reported without being asked for.
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
