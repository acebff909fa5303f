//! Client memory that a device holds on to between calls.
//!
//! Looking an address up for every packet costs more than the packet. A device that goes on using
//! one place (a receive ring, the source of a transfer under way) takes a lease of it and asks each
//! time whether it still has it. The core ends leases when any of their memory is unmapped, when
//! the function loses *bus master*, and when the client ends; from then on nothing of them is
//! touched.
//!
//! A lease may lie in several mappings side by side: a guest's memory does, behind an IOMMU that
//! maps pages. They are found when the lease is taken. From then on a place is found by its page
//! where the mappings are of one length, as pages are, and by a binary search where they are not.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use nicforge_shm::{MemoryError, Window};
use thiserror::Error;

/// The most mappings that one lease lies in: 16 MiB of pages of 4 KiB. Taking a lease takes a time
/// that is bounded.
pub const MAX_LEASE: usize = 4096;

/// How long a lease is good, or several that end together. Clones are the same term.
#[derive(Clone, Debug, Default)]
pub struct Term(Arc<AtomicBool>);

impl Term {
    /// Ends it: nothing of its leases is touched any more.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was ended.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The terms that end with a mapping. Most mappings are of one lease or of none, and take no memory
/// for it.
#[derive(Default)]
pub(super) enum Lessor {
    #[default]
    Nobody,
    One(Weak<AtomicBool>),
    Many(Box<Terms>),
}

pub(super) struct Terms {
    pub(super) terms: Vec<Weak<AtomicBool>>,
    /// How many there are when those that nobody has any more are taken out: twice as many as were
    /// left the last time, so that a look costs no more than what was added in between.
    full: usize,
}

/// Terms of a mapping before those that nobody has are looked for.
const FEW: usize = 4;

impl Lessor {
    /// Ends this term too.
    pub(super) fn add(&mut self, term: &Term) {
        let added = Arc::downgrade(&term.0);
        match self {
            Self::Nobody => *self = Self::One(added),
            Self::One(there) if there.strong_count() == 0 => *there = added,
            Self::One(there) => {
                let terms = vec![std::mem::take(there), added];
                *self = Self::Many(Box::new(Terms { terms, full: FEW }));
            }
            Self::Many(there) => {
                if there.terms.len() >= there.full {
                    there.terms.retain(|term| term.strong_count() > 0);
                    there.full = FEW.max(2 * there.terms.len());
                }
                there.terms.push(added);
            }
        }
    }

    /// Ends all terms there are. Later ones are new.
    pub(super) fn end(&mut self) {
        let end = |term: Weak<AtomicBool>| {
            if let Some(term) = term.upgrade() {
                Term(term).end();
            }
        };

        match std::mem::take(self) {
            Self::Nobody => {}
            Self::One(term) => end(term),
            Self::Many(there) => there.terms.into_iter().for_each(end),
        }
    }
}

/// Why leased memory was not read or written. Of a copy the pieces before may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// Its term is over, or a client cut the file behind it short.
    #[error("the lease is over: its memory was unmapped or deregistered, or its file cut short")]
    Over,
    /// The access leaves the lease, or is a word that lies in two mappings, or is not aligned.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Client memory, or a device's own, for a term.
///
/// Clones are of the same lease. Whoever drives the machine also unmaps, so that a lease that is
/// good stays good for the length of one call of a device.
#[derive(Clone, Debug)]
pub struct DmaLease {
    memory: Memory,
    term: Term,
}

#[derive(Clone, Debug)]
enum Memory {
    One(Window),
    Many(Arc<Mosaic>),
}

/// A part of a lease that lies in one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    memory: &'a Window,
    /// Where it begins in the lease.
    start: u64,
}

impl DmaLease {
    /// A lease of `memory` until the end of `term`.
    pub fn new(memory: Window, term: Term) -> Self {
        Self { memory: Memory::One(memory), term }
    }

    /// A lease of windows side by side, none of them empty. `None` when one of them is not there.
    pub(super) fn of_many(
        windows: impl ExactSizeIterator<Item = Option<Window>>,
        term: Term,
    ) -> Option<Self> {
        Some(Self { memory: Memory::Many(Arc::new(Mosaic::new(windows)?)), term })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        match &self.memory {
            Memory::One(window) => window.len(),
            Memory::Many(mosaic) => mosaic.length,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, when it is in one mapping. `None` also when the lease is over, or the file behind
    /// it was cut short.
    #[inline]
    pub fn whole(&self) -> Option<&Window> {
        match &self.memory {
            Memory::One(memory) if !self.term.is_over() && !memory.faulted() => Some(memory),
            _ => None,
        }
    }

    /// Whether none of its aligned units of `unit` bytes (a power of two) lies in two mappings.
    pub fn keeps_whole(&self, unit: u64) -> bool {
        match &self.memory {
            Memory::One(_) => true,
            Memory::Many(mosaic) => mosaic.pieces.iter().all(|piece| piece.start.is_multiple_of(unit)),
        }
    }

    /// The part that `offset` lies in, unless the lease is over or the part's file was cut short.
    /// Where there is one only, it is that one whatever the offset; accesses to it are checked.
    #[inline]
    pub(super) fn part(&self, offset: u64) -> Option<Part<'_>> {
        if self.term.is_over() {
            return None;
        }

        let part = match &self.memory {
            Memory::One(memory) => Part { memory, start: 0 },
            Memory::Many(mosaic) => mosaic.find(offset)?,
        };

        (!part.memory.faulted()).then_some(part)
    }

    /// Copies from it. Not atomic.
    ///
    /// # Errors
    /// [`LeaseError`]. What was read before its file was found to be cut short is zeros, in part.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), LeaseError> {
        let mut rest = out;
        self.pieces(offset, rest.len() as u64, |memory, within, count| {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(count as usize);
            rest = behind;
            memory.read(within, piece)
        })
    }

    /// Copies into it. Not atomic.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), LeaseError> {
        let mut rest = data;
        self.pieces(offset, rest.len() as u64, |memory, within, count| {
            let (piece, behind) = rest.split_at(count as usize);
            rest = behind;
            memory.write(within, piece)
        })
    }

    /// Copies `length` bytes at `offset` to `target` at `target_offset`, once and without a buffer.
    /// What an overlap contains afterwards is not specified.
    ///
    /// # Errors
    /// [`LeaseError`], of either.
    #[inline]
    pub fn copy_to(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        length: u64,
    ) -> Result<(), LeaseError> {
        // Nothing is copied when a part would go elsewhere.
        target.check(target_offset, length)?;
        let mut to = target_offset;

        self.pieces(offset, length, |source, within, count| {
            let mut from = within;
            let copied = target.pieces(to, count, |memory, at, part| {
                let copied = source.copy_to(from, memory, at, part);
                from += part;
                copied
            });
            to += count;
            copied
        })
    }

    /// Stores a word at a multiple of 8 with *release* order.
    ///
    /// # Errors
    /// [`LeaseError`]: also for a word that lies in two mappings, of which there are none when
    /// [`DmaLease::keeps_whole`] says so.
    #[inline]
    pub fn store_u64_release(&self, offset: u64, value: u64) -> Result<(), LeaseError> {
        let part = self.part(offset).ok_or(LeaseError::Over)?;
        Ok(part.memory.store_u64_release(offset - part.start, value)?)
    }

    /// As [`DmaLease::store_u64_release`], in no order.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn store_u64_relaxed(&self, offset: u64, value: u64) -> Result<(), LeaseError> {
        let part = self.part(offset).ok_or(LeaseError::Over)?;
        Ok(part.memory.store_u64_relaxed(offset - part.start, value)?)
    }

    #[inline]
    fn check(&self, offset: u64, length: u64) -> Result<(), MemoryError> {
        let size = self.len();
        let inside = offset <= size && length <= size - offset;
        if inside { Ok(()) } else { Err(MemoryError::OutOfBounds { offset, len: length, size }) }
    }

    /// Calls `access` with each piece of a range: its memory, where in it, and how many bytes.
    #[inline]
    fn pieces<E>(
        &self,
        offset: u64,
        length: u64,
        mut access: impl FnMut(&Window, u64, u64) -> Result<(), E>,
    ) -> Result<(), LeaseError>
    where
        LeaseError: From<E>,
    {
        self.check(offset, length)?;
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let Part { memory, start } = self.part(at).ok_or(LeaseError::Over)?;
            let within = at - start;
            let count = (length - done).min(memory.len() - within);
            access(memory, within, count)?;
            // Zeros may have been read, and what was written is lost.
            if memory.faulted() {
                return Err(LeaseError::Over);
            }
            done += count;
        }

        Ok(())
    }
}

#[derive(Debug)]
struct Piece {
    start: u64,
    memory: Window,
}

/// Pieces side by side.
#[derive(Debug)]
struct Mosaic {
    pieces: Box<[Piece]>,
    length: u64,
    /// Where all pieces but the first and the last are pages of one size, and those no longer.
    pages: Option<Pages>,
}

#[derive(Clone, Copy, Debug)]
struct Pages {
    /// Log2 of a page's bytes.
    shift: u32,
    /// What the first one lacks.
    missing: u64,
}

impl Mosaic {
    fn new(windows: impl ExactSizeIterator<Item = Option<Window>>) -> Option<Self> {
        let mut pieces = Vec::with_capacity(windows.len());
        let mut length = 0;
        for memory in windows {
            let memory = memory?;
            let start = length;
            length += memory.len();
            pieces.push(Piece { start, memory });
        }

        let pages = pages(&pieces);

        Some(Self { pieces: pieces.into_boxed_slice(), length, pages })
    }

    #[inline]
    fn find(&self, offset: u64) -> Option<Part<'_>> {
        if offset >= self.length {
            return None;
        }

        let index = match self.pages {
            Some(Pages { shift, missing }) => ((offset + missing) >> shift) as usize,
            None => self.pieces.partition_point(|piece| piece.start <= offset).checked_sub(1)?,
        };

        let Piece { start, memory } = self.pieces.get(index)?;

        Some(Part { memory, start: *start })
    }
}

fn pages(pieces: &[Piece]) -> Option<Pages> {
    let [first, inner @ .., last] = pieces else { return None };
    let length = |piece: &Piece| piece.memory.len();
    let page = inner.first().map(length)?;
    let alike = page.is_power_of_two()
        && inner.iter().all(|piece| length(piece) == page)
        && length(first).max(length(last)) <= page;
    alike.then(|| Pages { shift: page.trailing_zeros(), missing: page - length(first) })
}
