//! Ctrl-C and SIGTERM as events that a thread can wait for.
//!
//! The signals are blocked in the whole process and read from a file descriptor, so no code runs in
//! a signal handler. They must be blocked before other threads start. A started program does not
//! inherit the mask, because the standard library's `Command` empties it.

#![allow(unsafe_code, reason = "the disposition of a signal can only be asked for by its raw call")]

use std::os::fd::{AsFd, BorrowedFd};

use nix::{
    errno::Errno,
    libc,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

/// The blocked signals, as a file descriptor from which they are read.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks SIGINT, SIGTERM and SIGHUP for this thread and the threads that it starts.
    ///
    /// SIGHUP stays ignored when it is ignored at the start, as with `nohup`. SIGINT does not:
    /// scripts ignore it for background programs, which must still clean up on the signal.
    pub fn block() -> Result<Self, Errno> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            if signal != Signal::SIGHUP || !is_ignored(signal) {
                set.add(signal);
            }
        }

        set.thread_block()?;
        Ok(Self { fd: SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)? })
    }

    /// Takes a signal that has come, if there is one.
    pub fn take(&self) -> Option<Signal> {
        let info = self.fd.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }

    /// Returns a descriptor that is readable when a signal has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether this process ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let mut action = libc::sigaction {
        sa_sigaction: libc::SIG_DFL,
        sa_mask: *SigSet::empty().as_ref(),
        sa_flags: 0,
        sa_restorer: None,
    };

    // SAFETY: the call sets nothing, and `action` is a valid structure that the call may write.
    let result = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
