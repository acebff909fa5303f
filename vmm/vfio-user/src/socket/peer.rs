//! The process at the other end of a socket, as a descriptor that outlives it.
//!
//! UNSAFETY: `getsockopt(SO_PEERPIDFD)` and `pidfd_open`, for which `nix` has no calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

/// `SO_PEERPIDFD` (Linux 6.5, `include/uapi/asm-generic/socket.h`; the number of x86-64, aarch64
/// and RISC-V).
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns a descriptor of the socket's peer, as `SO_PEERCRED` defines it: the process that called
/// `listen`, or that made the pair. The result is `None` when the kernel does not report it, or
/// when the process is in a namespace that this process does not see. It is also `None` when that
/// process has already exited: then another process, which inherited the socket, serves it.
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let process = peer_pidfd(socket).or_else(|_| {
        // A kernel older than 6.5 returns only the process id, which may belong to an unrelated
        // process by now. The caller does not conclude from the exit of that process alone that the
        // peer is gone.
        let pid = getsockopt(&socket, sockopt::PeerCredentials)?.pid();
        if pid > 0 { pidfd_open(pid) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    process.ok().filter(|process| !has_exited(process.as_fd()))
}

/// Returns whether the process has exited. It does not wait.
pub(crate) fn has_exited(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0)
}

/// Returns a descriptor of the process at the other end.
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `fd`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    owned_descriptor(if result == 0 { libc::c_long::from(fd) } else { -1 })
}

/// Returns a descriptor of the process with this id.
fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and touches no memory.
    owned_descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Returns the descriptor that a system call has just made, or the call's error.
fn owned_descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the kernel has just installed this descriptor for us, close-on-exec, and nothing
        // else refers to it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn peer_of_a_local_pair_is_this_process_and_is_alive() {
        let (local_end, _far) = UnixStream::pair().unwrap();
        let process = peer_process(local_end.as_fd()).unwrap();
        assert!(!has_exited(process.as_fd()));
    }

    #[test]
    fn killed_process_counts_as_exited_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = pidfd_open(child.id() as libc::pid_t).unwrap();
        let before = has_exited(process.as_fd());
        child.kill().unwrap();
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(20_000_u16)).unwrap();
        let after = has_exited(process.as_fd());
        child.wait().unwrap();
        assert_eq!((before, after), (false, true));
    }

    #[test]
    fn missing_process_has_no_descriptor() {
        assert_eq!(pidfd_open(libc::pid_t::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
