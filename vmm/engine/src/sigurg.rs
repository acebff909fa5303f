//! Ends a system call of another thread, by a signal whose handler does nothing: the call returns
//! `EINTR`.
//!
//! The signal is SIGURG. Its default action is to be ignored, and no other code of this process
//! uses it: it belongs to urgent data of TCP.
//!
//! UNSAFETY: setting a handler is unsafe, because the handler may run between any two instructions;
//! this one is empty. Signalling is unsafe in `libc`; it takes the id of a thread, which may have
//! ended.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    unistd::{Pid, getpid, gettid},
};

/// Sets the empty handler of SIGURG, once in a process.
pub(crate) fn set_handler() -> Result<(), Errno> {
    static PREPARED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *PREPARED.get_or_init(|| {
        // Without SA_RESTART, so that the call ends.
        let action = SigAction::new(SigHandler::Handler(ignore_signal), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler touches nothing, so it may run at any time on any thread.
        unsafe { sigaction(Signal::SIGURG, &action) }.map(drop)
    })
}

extern "C" fn ignore_signal(_: libc::c_int) {}

/// Unblocks SIGURG for this thread.
pub(crate) fn unblock() -> Result<(), Errno> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGURG);
    set.thread_unblock()
}

/// Returns the kernel's id of this thread.
pub(crate) fn this_thread_id() -> i32 {
    thread_local!(static NUMBER: Pid = gettid());
    NUMBER.with(|number| number.as_raw())
}

/// Sends SIGURG to a thread of this process, which ends the system call in which it waits.
pub(crate) fn interrupt_thread(thread: i32) -> Result<(), Errno> {
    // SAFETY: the call takes three numbers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw(), thread, libc::SIGURG) };
    Errno::result(result).map(drop)
}
