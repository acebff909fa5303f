//! Eventfds that clients bind to interrupts.

use std::os::fd::{AsFd, OwnedFd};

use nicforge_core::interrupt::InterruptSink;
use nicforge_vfio_user::Errno;
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{FcntlArg, OFlag, fcntl, readlink},
    unistd::write,
};

/// What `/proc` calls an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// A client's eventfd. A write to it must never wait, so it is made non-blocking, for the client's own descriptor too (the two
/// are one open file): a client waits for it with `poll`.
#[derive(Debug)]
pub(crate) struct EventFdSink(OwnedFd);

impl EventFdSink {
    /// Anything but an eventfd is refused: a write to another kind of file may take as long as its owner likes.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        check(&fd)?;
        let flags = fcntl(&fd, FcntlArg::F_GETFL)?;
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK))?;
        Ok(Self(fd))
    }
}

impl InterruptSink for EventFdSink {
    fn signal(&self) {
        // A counter at its end means that the client has been told often enough.
        while write(self.0.as_fd(), &1_u64.to_ne_bytes()) == Err(SystemErrno::EINTR) {}
    }
}

/// Refuses what is no eventfd, without asking the file itself.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let target = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())?;
    if target.to_str() == Some(EVENTFD) { Ok(()) } else { Err(Errno::EINVAL) }
}
