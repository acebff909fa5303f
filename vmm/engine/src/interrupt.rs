//! Ending a system call of another thread, by a signal whose handler does nothing: what the thread
//! waits in ends with `EINTR`.
//!
//! The signal is SIGURG, which does nothing either where it is not handled, and which nobody here
//! gets otherwise: it is about urgent data of TCP.
//!
//! UNSAFETY: setting a handler is, because it may run between any two instructions; this one is
//! empty. A thread is named by its number, so that one that has ended can be asked for.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    unistd::{Pid, getpid, gettid},
};

/// Set the handler, once in a process.
pub(crate) fn prepare() -> Result<(), Errno> {
    static PREPARED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *PREPARED.get_or_init(|| {
        // Without SA_RESTART: the call is to end.
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler touches nothing, so it may run at any time on any thread.
        unsafe { sigaction(Signal::SIGURG, &action) }.map(drop)
    })
}

extern "C" fn nothing(_: libc::c_int) {}

/// Let this thread be interrupted.
pub(crate) fn allow() -> Result<(), Errno> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGURG);
    set.thread_unblock()
}

/// The number of this thread.
pub(crate) fn this_thread() -> i32 {
    thread_local!(static NUMBER: Pid = gettid());
    NUMBER.with(|number| number.as_raw())
}

/// End the system call in which a thread of this process waits.
pub(crate) fn interrupt(thread: i32) -> Result<(), Errno> {
    // SAFETY: the call takes three numbers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw(), thread, libc::SIGURG) };
    Errno::result(result).map(drop)
}
