//! Ctrl-C and SIGTERM, as something a thread can wait for.
//!
//! The signals are blocked in the whole process (so this must be called before other threads start) and read from a file
//! descriptor; nothing runs in a signal handler. A program that is started does not inherit the mask: the standard library's
//! `Command` empties it.

use std::os::fd::{AsFd, BorrowedFd};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

/// The blocked signals.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Block SIGINT, SIGTERM and SIGHUP for this thread and those it starts.
    pub fn block() -> Result<Self, Errno> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self { fd: SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)? })
    }

    /// A signal that has come, if any.
    pub fn take(&self) -> Option<Signal> {
        let info = self.fd.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }

    /// Readable when a signal has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
