//! Registered memory: staged sources, and destinations, to which the data of gets is copied.

#![allow(unsafe_code, reason = "copies from and to memory that the matching layer lends by its address")]

use std::ptr::NonNull;

use nicforge_driver::{
    Device, DmaBuffer, Error as DriverError, HugePages,
    runtime::{Cost, cost},
};
use nicforge_matching::{Access, Memory, Rank, Region, RemoteRegion};
use nicforge_rma::{Access as Allow, Error as RmaError, Port, Region as Registration};

use crate::{
    Config, Error,
    arena::{Arena, Part},
};

/// Memory of the transport that a card may reach.
pub(crate) struct RegisteredMemory {
    /// Declared before the memory, so that the registration is dropped first.
    pub(crate) registration: Registration,
    pub(crate) memory: DmaBuffer,
}

impl RegisteredMemory {
    pub(crate) fn new(device: &Device, rma: &Port, bytes: usize, allow: Allow) -> Result<Self, Error> {
        let memory = device.dma_buffer(bytes, HugePages::Try)?;
        let registration = rma.register(&memory, allow)?;
        Ok(Self { registration, memory })
    }
}

/// Smallest staging memory to try when the kernel has no piece of the requested size.
const LEAST_STAGING: usize = 64 << 10;

/// The copy of a source.
enum StagedCopy {
    /// In a part of the memory that stays registered.
    Part(Part),
    /// In its own memory.
    Own { bytes: usize, _memory: RegisteredMemory },
}

/// The entry of a handle.
enum Entry {
    /// A free entry; the value is the next free one.
    Free(Option<u32>),
    Source(StagedCopy),
    Destination(Destination),
}

/// Memory to which the data of gets is copied.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    start: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: the matching layer lends memory for use by the thread that has its endpoint, and with it
// this transport.
unsafe impl Send for Destination {}

impl Destination {
    /// Copies `length` bytes at `from` of `memory` to `offset`. Copies nothing when they exceed the
    /// destination.
    ///
    /// # Safety
    /// The memory is still lent as a destination, and nothing else accesses this range of it.
    pub(crate) unsafe fn fill(
        self,
        offset: usize,
        memory: &DmaBuffer,
        from: u64,
        length: usize,
    ) -> Result<(), Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Ok(());
        }

        let start = self.start.as_ptr().wrapping_add(offset);
        // SAFETY: the range is within memory lent for writing, and is initialised. By the caller's
        // contract nothing else accesses it.
        let target = unsafe { std::slice::from_raw_parts_mut(start, length) };
        cost(Cost::CopyByte, length);
        Ok(memory.read(from, target)?)
    }
}

/// Allocates and registers the staging memory. Returns it with its size, which is below `asked`
/// where the kernel has no such piece of memory, as without an IOMMU.
fn staging(device: &Device, rma: &Port, asked: usize) -> Result<(RegisteredMemory, usize), Error> {
    let mut bytes = asked;
    loop {
        match RegisteredMemory::new(device, rma, bytes, Allow::READ) {
            Err(Error::Driver(DriverError::Refused { errno, .. }))
                if errno == nix::errno::Errno::ENOMEM as i32 && bytes > LEAST_STAGING =>
            {
                bytes /= 2;
            }
            found => return Ok((found?, bytes)),
        }
    }
}

/// All registered memory of a transport.
pub(crate) struct Registered {
    device: Device,
    entries: Vec<Entry>,
    free: Option<u32>,
    arena: Arena,
    staging: RegisteredMemory,
    /// Length of the longest source that is staged in `staging`.
    longest: usize,
    /// Bytes of sources with their own memory.
    own_bytes: usize,
    /// Limit of `own_bytes`.
    max_own_bytes: usize,
    /// Sources that a rank may still fetch after their request has failed: the rank, and the
    /// handle.
    abandoned: Vec<(Rank, u64)>,
}

/// A registered source, and whether it has its own memory.
pub(crate) struct Staged {
    pub(crate) region: Region,
    pub(crate) own: bool,
}

impl Registered {
    pub(crate) fn new(device: &Device, rma: &Port, config: &Config) -> Result<Self, Error> {
        let (staging, bytes) = staging(device, rma, config.staging)?;
        Ok(Self {
            device: device.clone(),
            entries: Vec::new(),
            free: None,
            arena: Arena::new(bytes),
            staging,
            longest: bytes / 2,
            own_bytes: 0,
            max_own_bytes: config.longest_staging,
            abandoned: Vec::new(),
        })
    }

    /// Adds an entry, and returns its handle.
    fn insert(&mut self, entry: Entry) -> u64 {
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
    /// # Safety
    /// The memory is valid for reads, and is not written meanwhile.
    pub(crate) unsafe fn stage(&mut self, rma: &Port, memory: Memory) -> Result<Option<Staged>, Error> {
        let length = memory.length;
        // SAFETY: by the caller's contract.
        let bytes = unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), length) };

        let part = if length <= self.longest { self.arena.take(length) } else { None };

        // Abandoned memory may never return, so the source does not wait for it.
        if length <= self.longest && part.is_none() && self.abandoned.is_empty() {
            return Ok(None);
        }

        let (copied, address) = if let Some(part) = part {
            self.staging.memory.write(part.offset(), bytes)?;
            (StagedCopy::Part(part), self.staging.registration.address() + part.offset())
        } else {
            if self.own_bytes > 0 && self.own_bytes.saturating_add(length) > self.max_own_bytes {
                return Ok(None);
            }

            let registered = match RegisteredMemory::new(&self.device, rma, length, Allow::READ) {
                Ok(registered) => registered,
                // Other sources use the card's entries, and free them when they are done.
                Err(Error::Rma(RmaError::Translation { .. })) if self.own_bytes > 0 => return Ok(None),
                Err(error) => return Err(error),
            };

            registered.memory.write(0, bytes)?;
            self.own_bytes += length;
            let address = registered.registration.address();
            (StagedCopy::Own { bytes: length, _memory: registered }, address)
        };

        cost(Cost::CopyByte, length);
        let own = matches!(copied, StagedCopy::Own { .. });
        let handle = self.insert(Entry::Source(copied));
        Ok(Some(Staged { region: Region { handle, remote: RemoteRegion { key: 0, offset: address } }, own }))
    }

    /// Records a destination. The card does not reach it, since gets write to chunks.
    pub(crate) fn add_destination(&mut self, memory: Memory) -> Region {
        let entry = Entry::Destination(Destination { start: memory.start, length: memory.length });
        Region { handle: self.insert(entry), remote: RemoteRegion::default() }
    }

    /// Returns the destination of a handle.
    pub(crate) fn destination(&self, handle: u64) -> Option<Destination> {
        match self.entries.get(usize::try_from(handle).ok()?)? {
            Entry::Destination(destination) => Some(*destination),
            _ => None,
        }
    }

    /// Ends the use of a source that `rank` may still fetch. Its memory stays until
    /// [`Registered::free_abandoned`].
    pub(crate) fn abandon(&mut self, handle: u64, rank: Rank) {
        let slot = usize::try_from(handle).ok().and_then(|index| self.entries.get_mut(index));

        match slot {
            Some(Entry::Source(StagedCopy::Own { bytes, .. })) => self.own_bytes -= std::mem::take(bytes),
            Some(Entry::Source(StagedCopy::Part(_))) => {}
            _ => return,
        }
        self.abandoned.push((rank, handle));
    }

    /// Returns whether any source is abandoned.
    #[inline]
    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Frees the sources that were abandoned for ranks that are gone now.
    pub(crate) fn free_abandoned(&mut self, is_gone: impl Fn(Rank) -> bool) {
        let gone: Vec<_> = self.abandoned.extract_if(.., |(rank, _)| is_gone(*rank)).collect();
        for (_, handle) in gone {
            self.remove(handle);
        }
    }

    /// Removes the entry of a handle, and returns its kind.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<Access> {
        let slot = self.entries.get_mut(usize::try_from(handle).ok()?)?;
        if matches!(slot, Entry::Free(_)) {
            return None;
        }
        let entry = std::mem::replace(slot, Entry::Free(self.free));

        self.free = Some(handle as u32);
        match entry {
            Entry::Source(StagedCopy::Part(part)) => self.arena.release(part),
            Entry::Source(StagedCopy::Own { bytes, .. }) => self.own_bytes -= bytes,
            Entry::Destination(_) => return Some(Access::Destination),
            Entry::Free(_) => return None,
        }
        Some(Access::Source)
    }
}
