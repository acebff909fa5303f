//! Interrupt sources that are eventfds, which a server or the kernel signals.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Backing, InterruptSource};
use crate::{Cancel, Deadline, Error, interrupt::wait_source};

/// Creates an eventfd that counts interrupts, starting at 0.
pub(super) fn eventfd() -> Result<EventFd, Error> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| Error::system("creating an eventfd", errno))
}

/// The source of one vector of `backing`.
pub(super) struct EventSource<B> {
    pub(super) event: Arc<EventFd>,
    pub(super) backing: B,
}

impl<B: Backing> InterruptSource for EventSource<B> {
    fn take(&self) -> u64 {
        // The read does not block. An error means that there is no interrupt to take.
        self.event.read().unwrap_or(0)
    }

    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error> {
        wait_source(&self.backing, self, deadline, cancel)
    }

    fn raw_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
}
