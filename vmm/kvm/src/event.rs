//! An eventfd that KVM and a function share.

#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::Arc,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// An eventfd. Reads and writes do not block. Clones share it.
#[derive(Clone, Debug)]
pub struct Event(Arc<EventFd>);

impl Event {
    /// Makes an eventfd whose counter is 0.
    ///
    /// # Errors
    /// That of the system, for example when the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map(Arc::new).map(Self)
    }

    /// Adds 1 to the counter. A counter at its limit stays as it is.
    pub fn signal(&self) {
        // The only error of an open eventfd is that the counter is at its limit.
        let _ = self.0.write(1);
    }

    /// Returns the counter, and sets it to 0.
    pub fn take(&self) -> u64 {
        // A counter of 0 reads as an error.
        self.0.read().unwrap_or(0)
    }

    /// Returns whether the counter is not 0, and leaves it as it is.
    pub(crate) fn is_signalled(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Returns the eventfd as the calls of KVM take it.
    pub(crate) fn for_kvm(&self) -> &EventFd {
        &self.0
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The eventfd is open for as long as `self` exists.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

impl vm_superio::Trigger for Event {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}
