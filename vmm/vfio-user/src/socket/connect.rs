//! Connecting within a time limit.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno as SystemErrno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::Errno;

/// Interval between two attempts while the server's backlog is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Connects to the UNIX stream socket at `path`, within `timeout`. The socket that it returns
/// blocks.
///
/// # Errors
/// `ETIMEDOUT` when the server's backlog stays full, and the errors of the system calls.
pub fn connect_within(path: &Path, timeout: Duration) -> Result<OwnedFd, Errno> {
    let start = Instant::now();
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;

    loop {
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => break,
            // The server's backlog is full; there is nothing to poll for.
            Err(SystemErrno::EAGAIN) if start.elapsed() < timeout => std::thread::sleep(RETRY_INTERVAL),
            Err(SystemErrno::EAGAIN) => return Err(Errno::ETIMEDOUT),
            Err(SystemErrno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }

    // Only `connect` needed a non-blocking socket.
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(fd)
}
