//! Memory of transports whose device can't reach the buffers of applications: staged sources, and
//! destinations, to which the data of gets is copied.
//!
//! A source is copied to memory that the device reaches, when it is registered. Sources of up to
//! half of a [`Staging`] share one area that stays reachable. A longer source has its own area for
//! the duration of the transfer. While the shared area is full and its sources stay, further areas
//! of its size are shared: the receivers may be waiting for a source that has no room yet.

#![allow(unsafe_code, reason = "copies from and to memory that the matching layer lends by its address")]

use std::ptr::NonNull;

use nicforge_driver::{
    DmaBuffer, Error as DriverError,
    runtime::{Cost, charge},
};

use crate::{
    Access, Memory, Rank, Region, RemoteRegion,
    arena::{Arena, Part},
};

/// Memory of a transport that its device reaches.
pub trait Area {
    /// Returns the memory.
    fn memory(&self) -> &DmaBuffer;

    /// Returns the address of the first byte, by which other ranks fetch from it.
    fn address(&self) -> u64;
}

/// Smallest area to try when there is no piece of memory of the requested size.
const LEAST_STAGING: usize = 64 << 10;

/// Number of times that a short source finds no room, while none is freed, until a further area is
/// shared.
const PATIENT_TRIES: u32 = 1000;

/// An area that sources share.
struct SharedArea<A> {
    arena: Arena,
    area: A,
    /// Number of parts in use.
    used: usize,
}

/// The copy of a source.
enum StagedCopy<A> {
    /// In a part of the shared area with this number.
    Part(usize, Part),
    /// In its own area.
    Own { bytes: usize, _area: A },
}

/// The entry of a handle.
enum Entry<A> {
    /// A free entry; the value is the next free one.
    Free(Option<u32>),
    Source(StagedCopy<A>),
    Destination(Destination),
}

/// Memory to which the data of gets is copied.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the matching layer lends memory for use by the thread that has its endpoint, and with it
// this transport.
unsafe impl Send for Destination {}

impl Destination {
    /// Returns whether `length` bytes at `offset` are within the memory.
    pub fn has(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Copies `length` bytes at `from` of `memory` to `offset`. Copies nothing when they exceed the
    /// destination.
    ///
    /// # Errors
    /// Only an access to memory that is gone fails.
    ///
    /// # Safety
    /// The memory is still lent as a destination, and nothing else accesses this range of it.
    pub unsafe fn fill(
        self,
        offset: usize,
        memory: &DmaBuffer,
        from: u64,
        length: usize,
    ) -> Result<(), DriverError> {
        if !self.has(offset, length) {
            return Ok(());
        }

        let start = self.start.as_ptr().wrapping_add(offset);
        // SAFETY: the range is within memory lent for writing, and is initialised. By the caller's
        // contract nothing else accesses it.
        let target = unsafe { std::slice::from_raw_parts_mut(start, length) };
        charge(Cost::CopyByte, length);
        memory.read(from, target)
    }
}

/// All registered memory of a transport.
pub struct Staging<A> {
    entries: Vec<Entry<A>>,
    free: Option<u32>,
    /// The shared areas by number; the first one stays. `None` for a number that is free.
    shared: Vec<Option<SharedArea<A>>>,
    /// Length of the longest source that is staged in a shared area.
    longest_shared: usize,
    /// Number of times that a short source has found no room since a part was freed.
    failed_tries: u32,
    /// Bytes of sources with their own areas, and of further shared areas.
    own_bytes: usize,
    /// Limit of `own_bytes`.
    max_own_bytes: usize,
    abandoned: Vec<AbandonedSource>,
}

/// A source that a rank may still fetch, although its request has failed.
struct AbandonedSource {
    rank: Rank,
    handle: u64,
}

/// A registered source.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// The source's region.
    pub region: Region,
    /// Whether the copy has an area of its own, and no part of the shared one.
    pub has_own_area: bool,
}

impl<A: Area> Staging<A> {
    /// Creates the staging memory. The area that sources share has `bytes` bytes, a power of two of
    /// at least 8,192. `allocate` returns an area of a number of bytes, or `None` where there is no
    /// such piece of memory; the size is halved then. Its second argument is true in the last
    /// attempt, at 64 KiB, which must return an area or an error. All further areas have at most
    /// `max_own_bytes` bytes together. A single source that has one of its own may be longer.
    ///
    /// # Errors
    /// Errors of `allocate`.
    pub fn new<E>(
        mut bytes: usize,
        max_own_bytes: usize,
        mut allocate: impl FnMut(usize, bool) -> Result<Option<A>, E>,
    ) -> Result<Self, E> {
        let shared = loop {
            match allocate(bytes, bytes <= LEAST_STAGING)? {
                Some(area) => break area,
                // The size does not fall below 64 KiB, unless it is less from the beginning.
                None => bytes = (bytes / 2).max(LEAST_STAGING.min(bytes)),
            }
        };

        Ok(Self {
            entries: Vec::new(),
            free: None,
            shared: vec![Some(SharedArea { arena: Arena::new(bytes), area: shared, used: 0 })],
            longest_shared: bytes / 2,
            failed_tries: 0,
            own_bytes: 0,
            max_own_bytes,
            abandoned: Vec::new(),
        })
    }

    /// Adds an entry, and returns its handle.
    fn insert(&mut self, entry: Entry<A>) -> u64 {
        match self.free {
            Some(index) => {
                let slot = &mut self.entries[index as usize];
                if let Entry::Free(next) = slot {
                    self.free = *next;
                }
                *slot = entry;
                index.into()
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u64 - 1
            }
        }
    }

    /// Copies a source to memory that peers can get from. Returns `None` when there is no room now.
    ///
    /// `allocate` returns an area of a number of bytes, or `None` to try again later. Its second
    /// argument says whether other sources have areas, which they will free.
    ///
    /// # Errors
    /// Errors of `allocate`, and of the driver.
    ///
    /// # Safety
    /// The memory is valid for reads, and is not written meanwhile.
    pub unsafe fn stage<E: From<DriverError>>(
        &mut self,
        memory: Memory,
        allocate: impl FnOnce(usize, bool) -> Result<Option<A>, E>,
    ) -> Result<Option<Staged>, E> {
        let length = memory.length;
        // SAFETY: by the caller's contract.
        let bytes = unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), length) };

        let is_short = length <= self.longest_shared;
        let mut part = if is_short { self.take_part(length) } else { None };
        let mut allocate = Some(allocate);

        // A short source waits for a part of the shared area, unless abandoned sources have parts:
        // these may never return, so it gets an area of its own then.
        if is_short && part.is_none() && self.abandoned.is_empty() {
            self.failed_tries = self.failed_tries.saturating_add(1);
            if self.failed_tries < PATIENT_TRIES {
                return Ok(None);
            }
            if let Some(allocate) = allocate.take()
                && self.share_further_area(allocate)?
            {
                part = self.take_part(length);
            }
        }

        let (copied, address) = if let Some((number, part)) = part {
            let Some(shared) = &self.shared[number] else { return Ok(None) };
            shared.area.memory().write(part.offset(), bytes)?;
            (StagedCopy::Part(number, part), shared.area.address() + part.offset())
        } else {
            let Some(allocate) = allocate else { return Ok(None) };
            if self.own_bytes > 0 && self.own_bytes.saturating_add(length) > self.max_own_bytes {
                return Ok(None);
            }

            let Some(area) = allocate(length, self.own_bytes > 0)? else { return Ok(None) };
            area.memory().write(0, bytes)?;
            self.own_bytes += length;
            let address = area.address();
            (StagedCopy::Own { bytes: length, _area: area }, address)
        };

        charge(Cost::CopyByte, length);
        let has_own_area = matches!(copied, StagedCopy::Own { .. });
        let handle = self.insert(Entry::Source(copied));
        let region = Region { handle, remote: RemoteRegion { key: 0, offset: address } };
        Ok(Some(Staged { region, has_own_area }))
    }

    /// Takes a part of `length` bytes of a shared area. Returns the area's number and the part.
    fn take_part(&mut self, length: usize) -> Option<(usize, Part)> {
        self.shared.iter_mut().enumerate().find_map(|(number, shared)| {
            let shared = shared.as_mut()?;
            let part = shared.arena.take(length)?;
            shared.used += 1;
            Some((number, part))
        })
    }

    /// Frees a part of a shared area, and a further area without parts in use.
    fn release_part(&mut self, number: usize, part: Part) {
        self.failed_tries = 0;
        let Some(shared) = &mut self.shared[number] else { return };
        shared.arena.release(part);
        shared.used -= 1;
        if shared.used == 0 && number > 0 {
            self.own_bytes -= 2 * self.longest_shared;
            self.shared[number] = None;
        }
    }

    /// Allocates a further shared area. Returns false when there is no room now.
    #[cold]
    fn share_further_area<E>(
        &mut self,
        allocate: impl FnOnce(usize, bool) -> Result<Option<A>, E>,
    ) -> Result<bool, E> {
        let bytes = 2 * self.longest_shared;
        if self.own_bytes.saturating_add(bytes) > self.max_own_bytes {
            return Ok(false);
        }

        let Some(area) = allocate(bytes, true)? else { return Ok(false) };
        let shared = Some(SharedArea { arena: Arena::new(bytes), area, used: 0 });
        self.own_bytes += bytes;
        match self.shared.iter_mut().find(|shared| shared.is_none()) {
            Some(free) => *free = shared,
            None => self.shared.push(shared),
        }
        Ok(true)
    }

    /// Records a destination. The device does not reach it: gets write to memory of the transport.
    pub fn add_destination(&mut self, memory: Memory) -> Region {
        let entry = Entry::Destination(Destination { start: memory.start, length: memory.length });
        Region { handle: self.insert(entry), remote: RemoteRegion::default() }
    }

    /// Returns the destination of a handle.
    pub fn destination(&self, handle: u64) -> Option<Destination> {
        match self.entries.get(usize::try_from(handle).ok()?)? {
            Entry::Destination(destination) => Some(*destination),
            _ => None,
        }
    }

    /// Ends the use of a source that `rank` may still fetch. Its memory stays until
    /// [`Staging::free_abandoned`].
    pub fn abandon(&mut self, handle: u64, rank: Rank) {
        let slot = usize::try_from(handle).ok().and_then(|index| self.entries.get_mut(index));

        match slot {
            Some(Entry::Source(StagedCopy::Own { bytes, .. })) => self.own_bytes -= std::mem::take(bytes),
            Some(Entry::Source(StagedCopy::Part(..))) => {}
            _ => return,
        }
        self.abandoned.push(AbandonedSource { rank, handle });
    }

    /// Returns whether any source is abandoned.
    #[inline]
    pub fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Frees the sources that were abandoned for ranks that are gone now.
    pub fn free_abandoned(&mut self, is_gone: impl Fn(Rank) -> bool) {
        let gone: Vec<_> = self.abandoned.extract_if(.., |source| is_gone(source.rank)).collect();
        for source in gone {
            self.remove(source.handle);
        }
    }

    /// Removes the entry of a handle, and returns its kind.
    pub fn remove(&mut self, handle: u64) -> Option<Access> {
        let slot = self.entries.get_mut(usize::try_from(handle).ok()?)?;
        if matches!(slot, Entry::Free(_)) {
            return None;
        }
        let entry = std::mem::replace(slot, Entry::Free(self.free));

        self.free = Some(handle as u32);
        match entry {
            Entry::Source(StagedCopy::Part(number, part)) => self.release_part(number, part),
            Entry::Source(StagedCopy::Own { bytes, .. }) => self.own_bytes -= bytes,
            Entry::Destination(_) => return Some(Access::Destination),
            Entry::Free(_) => return None,
        }
        Some(Access::Source)
    }
}
