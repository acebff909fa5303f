//! An eventfd that KVM and a function share.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::error::VmError;

/// An eventfd. Reads and writes do not block.
#[derive(Debug)]
pub(crate) struct Event(EventFd);

impl Event {
    pub(crate) fn new() -> Result<Self, VmError> {
        EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map(Self).map_err(VmError::system("an eventfd"))
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
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        self.0.write(1)
    }
}
