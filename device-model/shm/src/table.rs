//! The process's table of ranges and descriptors that handlers must find without a lock: the
//! handler of SIGBUS, and that of `fork` in the child.
//!
//! The table only grows, and its slots are never freed. A slot is protected by a sequence lock, so
//! that a handler skips one that another thread is changing.
//!
//! UNSAFETY: handlers read the table through raw pointers to chunks that live for good.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::GuardError;
use crate::fork::OwnerProcess;
use crate::memory::Access;

/// Largest number of guarded mappings of a process. What is kept from children of `fork` counts,
/// too.
pub const MAX_GUARDED_RANGES: usize = CHUNKS * CHUNK;

/// Largest number of chunks of the table.
const CHUNKS: usize = 64;
/// Number of slots of a chunk.
const CHUNK: usize = 1024;

/// What a slot is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A range that the handler of SIGBUS replaces.
    Guarded = 1,
    /// A range that a child of `fork` does not inherit.
    UninheritedRange,
    /// A descriptor that a child of `fork` does not inherit. It is in the place of the address.
    UninheritedFile,
}

/// One entry of the table, as a handler reads it from its slot.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Address of the first byte, or a descriptor.
    pub(crate) start: usize,
    /// Length in bytes.
    pub(crate) len: usize,
    pub(crate) access: Access,
}

impl Entry {
    /// Returns the entry of `len` bytes mapped at `address`.
    pub(crate) fn of_range(kind: Kind, address: NonNull<u8>, len: usize, access: Access) -> Self {
        Entry { kind, start: address.as_ptr() as usize, len, access }
    }

    /// Returns the entry of a descriptor that children do not inherit.
    pub(crate) fn of_file(fd: BorrowedFd<'_>) -> Self {
        let start = fd.as_raw_fd() as usize;
        Entry { kind: Kind::UninheritedFile, start, len: 0, access: Access::ReadOnly }
    }
}

/// One slot, protected by a sequence lock: `version` is odd during a write.
#[derive(Debug)]
pub(crate) struct Slot {
    version: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
    /// The kind of the entry, or 0 if the slot is free.
    kind: AtomicU8,
    writable: AtomicBool,
    /// The range was replaced, because the file behind it ended.
    faulted: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            version: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            kind: AtomicU8::new(0),
            writable: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
        }
    }

    /// Writes the entry, or frees the slot. Only the owner of the slot may call it.
    fn set(&self, entry: Option<Entry>) {
        let (kind, start, len, access) = entry.map_or((0, 0, 0, Access::ReadOnly), |entry| {
            (entry.kind as u8, entry.start, entry.len, entry.access)
        });

        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.writable.store(access == Access::ReadWrite, Ordering::Relaxed);
        self.faulted.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the entry, unless the slot is free or being written.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        let kind = self.kind.load(Ordering::Relaxed);
        let writable = self.writable.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if version & 1 != 0 || self.version.load(Ordering::Relaxed) != version {
            return None;
        }

        let kinds = [Kind::Guarded, Kind::UninheritedRange, Kind::UninheritedFile];
        let kind = kinds.into_iter().find(|&known| known as u8 == kind)?;
        let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
        Some(Entry { kind, start, len, access })
    }

    /// Marks a guarded range as replaced. Returns whether it was marked before.
    pub(crate) fn mark_faulted(&self) -> bool {
        self.faulted.swap(true, Ordering::AcqRel)
    }
}

type Chunk = [Slot; CHUNK];

/// Chunks of slots, allocated when they are first needed and kept for good.
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Free slots. Only registration takes the lock, never a handler.
static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { chunks: 0, slots: Vec::new() });

/// The slots of the table that no entry has.
struct FreeSlots {
    /// Number of chunks allocated.
    chunks: usize,
    slots: Vec<&'static Slot>,
}

/// Locks the free slots, also after a panic of a holder: the data are consistent at all times.
fn lock_free() -> MutexGuard<'static, FreeSlots> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot in the table. Its entry ends when this is dropped, which is before the range is unmapped
/// or the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Registration {
    slot: &'static Slot,
    owner: OwnerProcess,
}

impl Registration {
    /// Puts an entry into the table.
    pub(crate) fn new(entry: Entry) -> Result<Self, GuardError> {
        let owner = OwnerProcess::current();
        let slot = take_slot()?;
        slot.set(Some(entry));
        Ok(Registration { slot, owner })
    }

    /// Marks the range as replaced, because its owner has replaced it. That is no fault, and does
    /// not count as one.
    pub(crate) fn mark_replaced(&self) {
        self.slot.mark_faulted();
    }

    /// Returns whether the range was replaced: the file behind it ended, or its owner did so.
    #[inline]
    pub(crate) fn faulted(&self) -> bool {
        self.slot.faulted.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.slot.set(None);
        // In a child of `fork`, the lock may be held for good by a thread that only the parent has.
        if self.owner.is_current() {
            lock_free().slots.push(self.slot);
        }
    }
}

/// Takes a free slot of the table. The table grows by a chunk, which is never freed, because
/// handlers read it without a lock.
fn take_slot() -> Result<&'static Slot, GuardError> {
    let mut free = lock_free();
    if let Some(slot) = free.slots.pop() {
        return Ok(slot);
    }

    let Some(entry) = TABLE.get(free.chunks) else {
        return Err(GuardError::TableFull { limit: MAX_GUARDED_RANGES });
    };

    let chunk: &'static mut Chunk = Box::leak(Box::new([const { Slot::new() }; CHUNK]));
    let chunk: &'static Chunk = chunk;
    entry.store(ptr::from_ref(chunk).cast_mut(), Ordering::Release);
    free.chunks += 1;
    free.slots.extend(chunk.iter().rev());

    free.slots.pop().ok_or(GuardError::TableFull { limit: MAX_GUARDED_RANGES })
}

/// Returns all slots. It is async-signal-safe.
pub(crate) fn slots() -> impl Iterator<Item = &'static Slot> {
    let chunks = TABLE.iter().map(|chunk| chunk.load(Ordering::Acquire));
    // SAFETY: a chunk is stored after its initialisation, and never freed.
    chunks.take_while(|chunk| !chunk.is_null()).flat_map(|chunk| unsafe { &*chunk })
}
