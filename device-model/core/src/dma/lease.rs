//! Leases: client memory that a device holds between calls.
//!
//! A lookup of an address for every packet costs more than the packet. A device that keeps using
//! one range, such as a receive ring or the source of a transfer, takes a lease of it. Each access
//! then checks that the lease is still valid.
//!
//! The core ends a lease when any of its memory is unmapped, when the function loses *bus master*,
//! and when the client leaves. After that, no access touches the memory.
//!
//! A lease may lie in several adjacent mappings; a guest's memory does, behind an IOMMU that maps
//! pages. The mappings are found when the lease is taken. An access finds its mapping by page
//! number if the mappings have one length, as pages do, and by binary search otherwise.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering, fence},
};

use nicforge_shm::{MemoryError, Window};
use thiserror::Error;

use super::word;
use crate::ids::FunctionId;

/// Largest number of mappings of one lease: 16 MiB in pages of 4 KiB. It bounds the time of taking
/// a lease.
pub const MAX_LEASE: usize = 4096;

/// Validity of one lease, or of several that end together. Clones are the same term.
#[derive(Clone, Debug, Default)]
pub struct Term(Arc<TermState>);

/// The state of a term.
#[derive(Debug, Default)]
pub(super) struct TermState {
    is_over: AtomicBool,
    /// The function that waits until no packet refers to a lease.
    waiting: Option<FunctionId>,
}

impl Term {
    /// Returns a term whose leases packets may refer to. `function` is woken when the last of the
    /// packets that refer to a lease is recycled by [`crate::fabric::Ports::recycle`].
    ///
    /// The function keeps one handle of each lease, because a recycled packet is the last one if
    /// two handles are left. Packets that are lost, dropped with a device, or taken by
    /// [`crate::fabric::Ports::take_while`] do not wake the function, so it also looks by a timer.
    #[must_use]
    pub fn waking(function: FunctionId) -> Self {
        Self(Arc::new(TermState { waiting: Some(function), ..TermState::default() }))
    }

    /// Ends the term. No access touches the memory of its leases afterwards.
    pub fn end(&self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns whether the term has ended.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Relaxed)
    }
}

/// The terms that end with a mapping. Most mappings have one lease or none, which need no memory on
/// the heap.
#[derive(Default)]
pub(super) enum LeaseTerms {
    /// There is no lease.
    #[default]
    Empty,
    /// One term, which a lease may no longer use.
    One(Weak<TermState>),
    /// Several terms.
    Many(Box<TermList>),
}

/// The terms of a mapping with several leases.
pub(super) struct TermList {
    pub(super) terms: Vec<Weak<TermState>>,
    /// Number of terms at which those that no lease uses any more are removed. It is twice the
    /// number left by the last removal, so that a removal costs no more than the additions before.
    prune_at: usize,
}

/// Number of terms up to which a mapping does not search for terms that no lease uses.
const MIN_PRUNE: usize = 4;

impl LeaseTerms {
    /// Adds a term that ends with the mapping.
    pub(super) fn add(&mut self, term: &Term) {
        let added = Arc::downgrade(&term.0);
        match self {
            Self::Empty => *self = Self::One(added),
            Self::One(only) if only.strong_count() == 0 => *only = added,
            Self::One(only) => {
                let terms = vec![std::mem::take(only), added];
                *self = Self::Many(Box::new(TermList { terms, prune_at: MIN_PRUNE }));
            }
            Self::Many(list) => {
                if list.terms.len() >= list.prune_at {
                    list.terms.retain(|term| term.strong_count() > 0);
                    list.prune_at = MIN_PRUNE.max(2 * list.terms.len());
                }
                list.terms.push(added);
            }
        }
    }

    /// Returns whether a lease still uses one of the terms.
    pub(super) fn in_use(&self) -> bool {
        let in_use = |term: &Weak<TermState>| term.strong_count() > 0;
        match self {
            Self::Empty => false,
            Self::One(term) => in_use(term),
            Self::Many(list) => list.terms.iter().any(in_use),
        }
    }

    /// Ends all current terms. Terms added later are not affected.
    pub(super) fn end(&mut self) {
        let end = |term: Weak<TermState>| {
            if let Some(term) = term.upgrade() {
                Term(term).end();
            }
        };

        match std::mem::take(self) {
            Self::Empty => {}
            Self::One(term) => end(term),
            Self::Many(list) => list.terms.into_iter().for_each(end),
        }
    }
}

/// Reason why leased memory was not read or written. A copy may have moved earlier parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// The term is over, or a client truncated the file behind the memory.
    #[error("the lease is over: its memory was unmapped or deregistered, or its file cut short")]
    Over,
    /// The access leaves the lease, or is a word that is not aligned or lies in two mappings.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Client memory, or a device's own, for a term. Clones are the same lease.
///
/// The thread that calls a device also carries out unmapping. A valid lease therefore stays valid
/// during one call of the device.
#[derive(Clone, Debug)]
pub struct DmaLease {
    memory: LeaseMemory,
    term: Term,
}

/// The memory of a lease: one window, or the windows of several adjacent mappings.
#[derive(Clone, Debug)]
enum LeaseMemory {
    One(Window),
    Many(Arc<LeaseParts>),
}

/// The part of a lease that lies in one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// The memory of the part alone.
    memory: &'a Window,
    /// Offset of the part in the lease.
    start: u64,
}

impl DmaLease {
    /// Returns a lease of `memory` until the end of `term`.
    pub fn new(memory: Window, term: Term) -> Self {
        Self { memory: LeaseMemory::One(memory), term }
    }

    /// Returns a lease of adjacent windows, none of them empty, or `None` if one of them is `None`.
    pub(super) fn of_many(
        windows: impl ExactSizeIterator<Item = Option<Window>>,
        term: Term,
    ) -> Option<Self> {
        Some(Self { memory: LeaseMemory::Many(Arc::new(LeaseParts::new(windows)?)), term })
    }

    /// Returns the function of [`Term::waking`].
    #[inline]
    pub(crate) fn waiting_function(&self) -> Option<FunctionId> {
        self.term.0.waiting
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match &self.memory {
            LeaseMemory::One(window) => window.len(),
            LeaseMemory::Many(many) => many.length,
        }
    }

    /// Returns whether the lease has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all the memory if it lies in one mapping. Returns `None` if it lies in several, or
    /// the lease is over, or the file behind it was truncated.
    #[inline]
    pub fn whole(&self) -> Option<&Window> {
        match &self.memory {
            LeaseMemory::One(memory) if !self.term.is_over() && !memory.faulted() => Some(memory),
            _ => None,
        }
    }

    /// Returns whether no aligned unit of `unit` bytes (a power of two) of the lease is divided
    /// between two mappings.
    pub fn keeps_whole(&self, unit: u64) -> bool {
        match &self.memory {
            LeaseMemory::One(_) => true,
            LeaseMemory::Many(many) => many.parts.iter().all(|part| part.start.is_multiple_of(unit)),
        }
    }

    /// Returns the part that contains `offset`, or `None` if the lease is over or the part's file
    /// was truncated. A lease with a single part returns that part for any offset, because the
    /// window checks each access.
    #[inline]
    pub(super) fn part(&self, offset: u64) -> Option<Part<'_>> {
        if self.term.is_over() {
            return None;
        }

        let part = match &self.memory {
            LeaseMemory::One(memory) => Part { memory, start: 0 },
            LeaseMemory::Many(many) => many.find(offset)?,
        };

        (!part.memory.faulted()).then_some(part)
    }

    /// Copies from the lease. The copy is not atomic.
    ///
    /// # Errors
    /// [`LeaseError`]. If the file was truncated meanwhile, part of `out` may hold zeros.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), LeaseError> {
        let mut rest = out;
        self.for_each_part(offset, rest.len() as u64, |memory, within, count| {
            let (piece, remaining) = std::mem::take(&mut rest).split_at_mut(count as usize);
            rest = remaining;
            memory.read(within, piece)
        })
    }

    /// Copies into the lease, after all earlier writes to client memory. A reader that sees a byte
    /// of the copy (with an acquire load) sees them.
    ///
    /// The copy is not atomic, except for an aligned word of 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// [`LeaseError`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), LeaseError> {
        fence(Ordering::Release);
        let mut rest = data;
        self.for_each_part(offset, rest.len() as u64, |memory, within, count| {
            let (piece, remaining) = rest.split_at(count as usize);
            rest = remaining;
            word::store(memory, within, piece)
        })
    }

    /// Copies `length` bytes at `offset` to `target` at `target_offset`, without a buffer. If the
    /// ranges overlap, the result there is unspecified.
    ///
    /// The copy is not ordered after earlier writes. A later [`DmaLease::write`],
    /// [`DmaLease::store_u64_release`] or DMA write publishes it.
    ///
    /// # Errors
    /// [`LeaseError`] of either lease.
    #[inline]
    pub fn copy_to(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        length: u64,
    ) -> Result<(), LeaseError> {
        // Nothing is copied if a part would miss the target.
        target.check_range(target_offset, length)?;

        // A part of this lease may lie in several parts of the target.
        let mut next_target_offset = target_offset;
        self.for_each_part(offset, length, |source, source_start, count| {
            let mut source_offset = source_start;
            let copied = target.for_each_part(next_target_offset, count, |memory, within, piece| {
                let copied = source.copy_to(source_offset, memory, within, piece);
                source_offset += piece;
                copied
            });
            next_target_offset += count;
            copied
        })
    }

    /// Stores a word at a multiple of 8 with *release* order.
    ///
    /// # Errors
    /// [`LeaseError`], also for a word that lies in two mappings. [`DmaLease::keeps_whole`] says
    /// whether there are such words.
    #[inline]
    pub fn store_u64_release(&self, offset: u64, value: u64) -> Result<(), LeaseError> {
        let part = self.part(offset).ok_or(LeaseError::Over)?;
        Ok(part.memory.store_u64_release(offset - part.start, value)?)
    }

    /// Stores a word as [`DmaLease::store_u64_release`] does, with *relaxed* order.
    ///
    /// # Errors
    /// Those of [`DmaLease::store_u64_release`].
    #[inline]
    pub fn store_u64_relaxed(&self, offset: u64, value: u64) -> Result<(), LeaseError> {
        let part = self.part(offset).ok_or(LeaseError::Over)?;
        Ok(part.memory.store_u64_relaxed(offset - part.start, value)?)
    }

    /// Checks that a range lies in the lease.
    #[inline]
    fn check_range(&self, offset: u64, length: u64) -> Result<(), MemoryError> {
        let size = self.len();
        let inside = offset <= size && length <= size - offset;
        if inside { Ok(()) } else { Err(MemoryError::OutOfBounds { offset, len: length, size }) }
    }

    /// Calls `access` for each part of a range, with the part's memory, the offset in that memory,
    /// and the number of bytes to access there.
    #[inline(always)]
    fn for_each_part<E>(
        &self,
        offset: u64,
        length: u64,
        mut access: impl FnMut(&Window, u64, u64) -> Result<(), E>,
    ) -> Result<(), LeaseError>
    where
        LeaseError: From<E>,
    {
        self.check_range(offset, length)?;
        // Most leases have one mapping, which needs no loop.
        if let LeaseMemory::One(memory) = &self.memory
            && length > 0
        {
            if self.term.is_over() || memory.faulted() {
                return Err(LeaseError::Over);
            }
            access(memory, offset, length)?;
            return if memory.faulted() { Err(LeaseError::Over) } else { Ok(()) };
        }
        self.for_each_part_of_many(offset, length, access)
    }

    /// Does the work of [`DmaLease::for_each_part`] for a lease of several mappings, or an
    /// empty range. The range has been checked.
    #[inline(never)]
    fn for_each_part_of_many<E>(
        &self,
        offset: u64,
        length: u64,
        mut access: impl FnMut(&Window, u64, u64) -> Result<(), E>,
    ) -> Result<(), LeaseError>
    where
        LeaseError: From<E>,
    {
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let Part { memory, start } = self.part(at).ok_or(LeaseError::Over)?;
            let within = at - start;
            let count = (length - done).min(memory.len() - within);
            access(memory, within, count)?;

            // The access may have read zeros, or its write may be lost.
            if memory.faulted() {
                return Err(LeaseError::Over);
            }

            done += count;
        }

        Ok(())
    }
}

/// One mapping of a lease, and its offset in the lease.
#[derive(Debug)]
struct MappedPart {
    start: u64,
    memory: Window,
}

/// The adjacent mappings of a lease that lies in several.
#[derive(Debug)]
struct LeaseParts {
    parts: Box<[MappedPart]>,
    /// Length of the lease in bytes.
    length: u64,
    /// Set if all mappings have one length that is a power of two, as pages have. The first and the
    /// last may be shorter.
    pages: Option<PageLayout>,
}

/// Sizes from which an offset in the lease gives the index of its mapping.
#[derive(Clone, Copy, Debug)]
struct PageLayout {
    /// Log2 of the page size in bytes.
    shift: u32,
    /// Bytes that the first mapping lacks to a whole page.
    missing: u64,
}

impl LeaseParts {
    /// Returns the parts with these windows, or `None` if one of them is `None`.
    fn new(windows: impl ExactSizeIterator<Item = Option<Window>>) -> Option<Self> {
        let mut parts = Vec::with_capacity(windows.len());
        let mut length = 0;
        for memory in windows {
            let memory = memory?;
            let start = length;
            length += memory.len();
            parts.push(MappedPart { start, memory });
        }

        let pages = page_layout(&parts);

        Some(Self { parts: parts.into_boxed_slice(), length, pages })
    }

    /// Returns the mapping that contains `offset`.
    #[inline]
    fn find(&self, offset: u64) -> Option<Part<'_>> {
        if offset >= self.length {
            return None;
        }

        let index = match self.pages {
            Some(PageLayout { shift, missing }) => ((offset + missing) >> shift) as usize,
            None => self.parts.partition_point(|part| part.start <= offset).checked_sub(1)?,
        };

        let MappedPart { start, memory } = self.parts.get(index)?;

        Some(Part { memory, start: *start })
    }
}

/// Returns the page size of the mappings, if they have one.
fn page_layout(parts: &[MappedPart]) -> Option<PageLayout> {
    let [first, inner @ .., last] = parts else { return None };
    let length = |part: &MappedPart| part.memory.len();
    let page = inner.first().map(length)?;

    let is_uniform = page.is_power_of_two()
        && inner.iter().all(|part| length(part) == page)
        && length(first).max(length(last)) <= page;

    is_uniform.then(|| PageLayout { shift: page.trailing_zeros(), missing: page - length(first) })
}
