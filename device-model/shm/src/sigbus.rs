//! Survival of accesses to files that their owner truncates.
//!
//! An access to a mapped page after the end of its file raises SIGBUS. The signal kills a process
//! that does not catch it. A guarded mapping has its range in a table. The handler finds the
//! address of the fault there, replaces the whole range by private zero pages, and marks it. The
//! processor then repeats the access, which finds zeros.
//!
//! UNSAFETY: installs a signal handler and maps memory from it. The handler is async-signal-safe:
//! it uses atomic loads and stores and system calls, and takes no lock and allocates nothing.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;

use crate::error::GuardError;
use crate::table::{self, Entry, Kind};

/// Number of ranges replaced since the process started.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Action for SIGBUS before the handler was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the handler is installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// Returns the number of guarded ranges replaced because their file ended, since the process
/// started.
///
/// A loop that serves many mappings can compare this one number, and check each mapping's own mark
/// only when it has changed.
#[inline]
pub fn guard_faults() -> u64 {
    FAULTS.load(Ordering::Acquire)
}

/// Installs the process-wide SIGBUS handler that guards mappings.
/// [`crate::SharedMemory::map_guarded`] calls it too.
///
/// A fault elsewhere goes to the previous handler. Further calls do nothing. A thread that accesses
/// guarded mappings must not block SIGBUS.
///
/// # Errors
/// [`GuardError::Install`].
pub fn install_sigbus_guard() -> Result<(), GuardError> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }

    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();

    // SAFETY: only reads the current action, into a local variable.
    let queried = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) };
    Errno::result(queried).map_err(|errno| GuardError::Install { errno })?;

    // SAFETY: filled in by the call, and zeroed before.
    let previous = unsafe { previous.assume_init() };

    // The handler reads `PREVIOUS`, so it must be set before the handler is installed.
    let _ = PREVIOUS.set(previous);

    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction =
        on_sigbus as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;

    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO requires, and is async-signal-safe.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    Errno::result(set).map_err(|errno| GuardError::Install { errno })?;
    *installed = true;

    Ok(())
}

/// Handles SIGBUS: replaces the guarded range of the faulting address by zeroed memory. Any other
/// signal goes to the handler that was installed before.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The interrupted code must find its `errno` unchanged.
    let errno = Errno::last_raw();

    // SAFETY: the kernel passes a siginfo that is valid while the handler runs.
    let details = unsafe { &*info };
    let code = details.si_code;

    // A positive code means a fault, which has an address. Other codes mean signals that a process
    // sent.
    if code > 0 {
        // SAFETY: a fault carries an address.
        let address = unsafe { details.si_addr() } as usize;
        if replace_range(address) {
            Errno::set_raw(errno);
            return;
        }
    }

    call_previous(signal, code, info, context);
    Errno::set_raw(errno);
}

/// Replaces the guarded range that contains `address` by zero pages. Returns false if there is
/// none.
///
/// It replaces the whole range. The file's owner could otherwise truncate one page at a time, and
/// cause a signal and a map area for each.
fn replace_range(address: usize) -> bool {
    // A slot that is being written does not match: the range of an accessed address was written
    // earlier, and stays.
    let found = table::slots().find_map(|slot| {
        let entry = slot.entry().filter(|entry| entry.kind == Kind::Guarded)?;
        (address.wrapping_sub(entry.start) < entry.len).then_some((slot, entry))
    });
    let Some((slot, entry)) = found else { return false };

    // SAFETY: the range belongs to a guarded mapping. The faulting thread accesses it, and thus
    // keeps it alive.
    if !unsafe { replace_by_zeros(&entry) } {
        return false;
    }

    // Two threads may fault at once. Each replaces the range, and one counts the fault.
    if !slot.mark_faulted() {
        FAULTS.fetch_add(1, Ordering::AcqRel);
    }
    true
}

/// Replaces a range by private zero pages of the same size and protection. Returns whether the
/// kernel has done so. It is async-signal-safe.
///
/// # Safety
/// The range belongs to a mapping of this crate, or is reserved for one.
pub(crate) unsafe fn replace_by_zeros(range: &Entry) -> bool {
    let protection = range.access.protection().bits();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is this crate's by this function's contract. Only volatile and atomic
    // accesses reach it.
    unsafe { libc::mmap(range.start as *mut c_void, range.len, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Passes the signal to the previous handler.
fn call_previous(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if handler == libc::SIG_IGN && code <= 0 {
        return;
    }

    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: both are async-signal-safe. A fault repeats when this handler returns, and meets
        // the default action. A signal that a process sent is raised again, and delivered then.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        if code <= 0 {
            // SAFETY: as above.
            unsafe { libc::raise(signal) };
        }
        return;
    }

    let with_info = previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0);
    if with_info {
        // SAFETY: an action with SA_SIGINFO holds a function of this signature.
        let handler = unsafe {
            std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
                handler,
            )
        };
        handler(signal, info, context);
    } else {
        // SAFETY: an action without SA_SIGINFO, neither default nor ignore, holds a function of
        // this signature.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
}
