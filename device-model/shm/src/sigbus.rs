//! Survival of accesses to files that their owner truncates.
//!
//! An access to a mapped page after the end of its file raises SIGBUS. The signal kills a process
//! that does not catch it. A guarded mapping has its range in a table. The handler finds the
//! address of the fault there, replaces the whole range by private zero pages, and marks it. The
//! processor then repeats the access, which finds zeros.
//!
//! UNSAFETY: installs a signal handler and maps memory from it. The handler is async-signal-safe:
//! it uses atomic loads and stores and system calls, and takes no lock and allocates nothing. The
//! table only grows, and its slots are never freed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;

use crate::error::GuardError;
use crate::memory::Access;

/// Largest number of guarded mappings of a process.
pub const MAX_GUARDED_RANGES: usize = CHUNKS * CHUNK;

/// Largest number of chunks of the table.
const CHUNKS: usize = 64;
/// Number of slots of a chunk.
const CHUNK: usize = 1024;

/// One guarded range, protected by a sequence lock: `version` is odd during a write.
struct GuardSlot {
    version: AtomicU64,
    /// Address of the first byte.
    start: AtomicUsize,
    /// Length in bytes, or 0 if the slot is free.
    len: AtomicUsize,
    writable: AtomicBool,
    /// The range was replaced, because the file behind it ended or by its owner.
    faulted: AtomicBool,
}

/// A guarded range, as the handler reads it from its slot.
struct GuardedRange {
    /// Address of the first byte.
    start: usize,
    /// Length in bytes.
    len: usize,
    writable: bool,
}

impl GuardSlot {
    const fn new() -> Self {
        GuardSlot {
            version: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
        }
    }

    /// Writes the range. Only the owner of the slot may call it.
    fn set(&self, start: usize, len: usize, writable: bool) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.writable.store(writable, Ordering::Relaxed);
        self.faulted.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the range if it contains `address`. A slot that is being written does not match: the
    /// range of an accessed address was written earlier, and stays.
    fn find(&self, address: usize) -> Option<GuardedRange> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        let writable = self.writable.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if version & 1 != 0 || self.version.load(Ordering::Relaxed) != version {
            return None;
        }

        (address.wrapping_sub(start) < len).then_some(GuardedRange { start, len, writable })
    }
}

type Chunk = [GuardSlot; CHUNK];

/// Chunks of slots, allocated when they are first needed and kept for good.
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Free slots. Only registration takes the lock, never the handler.
static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { chunks: 0, slots: Vec::new() });
/// Number of ranges replaced since the process started.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Action for SIGBUS before the handler was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the handler is installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The slots of the table that no mapping has.
struct FreeSlots {
    /// Number of chunks allocated.
    chunks: usize,
    slots: Vec<&'static GuardSlot>,
}

/// Locks a mutex, also after a panic of a holder: the data are consistent at all times.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slot of all mappings whose owners have replaced them. It is in no table.
static REPLACED: GuardSlot = GuardSlot { faulted: AtomicBool::new(true), ..GuardSlot::new() };

/// A mapping's slot in the table. It is dropped before the mapping is unmapped.
pub(crate) struct Guard {
    /// A slot of the table, or [`REPLACED`].
    slot: AtomicPtr<GuardSlot>,
}

impl Guard {
    /// Guards the `len` bytes mapped at `address`. The caller must be their only owner.
    pub(crate) fn new(address: NonNull<u8>, len: usize, access: Access) -> Result<Self, GuardError> {
        let slot = take_slot()?;
        slot.set(address.as_ptr() as usize, len, access == Access::ReadWrite);
        Ok(Guard { slot: AtomicPtr::new(ptr::from_ref(slot).cast_mut()) })
    }

    /// Marks the range as replaced, because its owner has replaced it, and frees its slot. That is
    /// no fault, and does not count as one.
    pub(crate) fn mark_replaced(&self) {
        let slot = self.slot.swap(ptr::from_ref(&REPLACED).cast_mut(), Ordering::AcqRel);
        // SAFETY: all slots are static. A thread that has read the pointer before may still look at
        // the slot's mark, which then tells it nothing, as an access just before this call.
        free_slot(unsafe { &*slot });
    }

    /// Returns whether the range was replaced: the file behind it ended, or its owner did so.
    #[inline]
    pub(crate) fn faulted(&self) -> bool {
        // SAFETY: all slots are static.
        let slot = unsafe { &*self.slot.load(Ordering::Relaxed) };
        slot.faulted.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: all slots are static.
        free_slot(unsafe { &**self.slot.get_mut() });
    }
}

/// Returns a slot to the table, unless it is [`REPLACED`].
fn free_slot(slot: &'static GuardSlot) {
    if ptr::eq(slot, &REPLACED) {
        return;
    }
    slot.set(0, 0, false);
    lock(&FREE).slots.push(slot);
}

/// Takes a free slot of the table of guarded ranges. The table grows by a chunk, which is never
/// freed, because the signal handler reads it without a lock.
fn take_slot() -> Result<&'static GuardSlot, GuardError> {
    let mut free = lock(&FREE);
    if let Some(slot) = free.slots.pop() {
        return Ok(slot);
    }

    let Some(entry) = TABLE.get(free.chunks) else {
        return Err(GuardError::TableFull { limit: MAX_GUARDED_RANGES });
    };

    let chunk: &'static mut Chunk = Box::leak(Box::new([const { GuardSlot::new() }; CHUNK]));
    let chunk: &'static Chunk = chunk;
    entry.store(ptr::from_ref(chunk).cast_mut(), Ordering::Release);
    free.chunks += 1;
    free.slots.extend(chunk.iter().rev());

    free.slots.pop().ok_or(GuardError::TableFull { limit: MAX_GUARDED_RANGES })
}

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
    let mut installed = lock(&INSTALLED);
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
    for chunk in &TABLE {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return false;
        }
        // SAFETY: a chunk is stored after its initialisation, and never freed.
        let chunk = unsafe { &*chunk };
        for slot in chunk {
            let Some(GuardedRange { start, len, writable }) = slot.find(address) else { continue };
            let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the range belongs to a guarded mapping. The faulting thread accesses it, and
            // thus keeps it alive. The new memory has the same size and protection.
            let mapped = unsafe { libc::mmap(start as *mut c_void, len, protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            // Two threads may fault at once. Each replaces the range, and one counts the fault.
            if !slot.faulted.swap(true, Ordering::AcqRel) {
                FAULTS.fetch_add(1, Ordering::AcqRel);
            }
            return true;
        }
    }

    false
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
