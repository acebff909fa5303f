//! Ctrl-C and SIGTERM, as something a thread can wait for.
//!
//! The signals are blocked in the whole process (so this must be called before other threads start) and read from a file
//! descriptor; nothing runs in a signal handler. A program that is started does not inherit the mask: the standard library's
//! `Command` empties it.

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

/// The blocked signals.
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Block SIGINT, SIGTERM and SIGHUP for this thread and those it starts. SIGHUP stays ignored when it is at the start, as `nohup`
    /// has it; SIGINT does not: scripts ignore it for what they start in the background, and it still has to clean up when it is told.
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

fn is_ignored(signal: Signal) -> bool {
    let mut action = libc::sigaction {
        sa_sigaction: libc::SIG_DFL,
        sa_mask: *SigSet::empty().as_ref(),
        sa_flags: 0,
        sa_restorer: None,
    };
    // SAFETY: nothing is set, and `action` is a structure of the call's that it may write.
    let asked = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}
