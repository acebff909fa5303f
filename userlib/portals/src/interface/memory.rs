//! The memory of a process: regions, and what event queues take of them.

use std::sync::Arc;

use nicforge_driver::{HugePages, runtime};
use nicforge_hwi::seastar::{MAX_PIECES, MAX_RANGES};

use super::Interface;
use crate::{Error, Region, queue::QueueMemory, region::Pieces};

/// Minimum length of a region that event queues share.
const QUEUE_CHUNK: u64 = 64 << 10;
/// Address of the first scattered region. Those of contiguous regions are device addresses, which
/// lie below.
const SCATTERED_BASE: u64 = 1 << 60;
/// Minimum length of a piece of a scattered region: a page.
const MIN_PIECE: u64 = 4096;

/// The memory of an interface.
#[derive(Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
    /// The latest region for event queues, and the number of bytes of it that queues have taken.
    queues: Option<(Region, u64)>,
    /// Bytes of the address space from [`SCATTERED_BASE`] on that scattered regions take.
    scattered: u64,
}

impl Interface {
    /// Allocates a region of `length` bytes, rounded up to whole pages. Its memory is zero.
    ///
    /// # Errors
    /// [`Error::TooManyRegions`] in NIC-based mode; [`Error::Driver`].
    pub fn allocate(&self, length: u64) -> Result<Region, Error> {
        self.allocate_in(&mut runtime::lock(&self.memory), length)
    }

    /// Allocates a contiguous region, and records it in `memory`.
    fn allocate_in(&self, memory: &mut Memory, length: u64) -> Result<Region, Error> {
        if !self.link.is_host_based() && memory.regions.len() >= MAX_RANGES {
            return Err(Error::TooManyRegions);
        }

        let length = usize::try_from(length.max(1)).unwrap_or(usize::MAX);
        let buffer = self.link.device().dma_buffer(length, HugePages::Try)?;
        let (base, length) = (buffer.iova(), buffer.len());
        let pieces = Pieces { base, length, piece: length, buffers: vec![buffer] };
        self.register(memory, pieces)
    }

    /// Allocates a region of pieces of `piece` bytes each, in host-based mode: as the memory of a
    /// Linux process, which is not physically contiguous. A message may have at most [`MAX_PIECES`]
    /// of them.
    ///
    /// # Errors
    /// [`Error::BadPieces`]; [`Error::Driver`].
    pub fn allocate_scattered(&self, length: u64, piece: u64) -> Result<Region, Error> {
        let has_valid_pieces = piece.is_power_of_two()
            && piece >= MIN_PIECE
            && length > 0
            && length.div_ceil(piece) <= MAX_PIECES as u64;
        if !has_valid_pieces || !self.link.is_host_based() {
            return Err(Error::BadPieces { length, piece });
        }

        let count = length.div_ceil(piece);
        let buffers = (0..count).map(|_| self.link.device().dma_buffer(piece as usize, HugePages::Never));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let mut memory = runtime::lock(&self.memory);
        let base = SCATTERED_BASE + memory.scattered;
        // A piece of unused addresses separates the region from the next one.
        memory.scattered += (count + 1) * piece;
        self.register(&mut memory, Pieces { base, length: count * piece, piece, buffers })
    }

    /// Adds memory to the process's address map, and keeps it until the interface ends.
    fn register(&self, memory: &mut Memory, pieces: Pieces) -> Result<Region, Error> {
        let pieces = Arc::new(pieces);
        runtime::charge(runtime::Cost::Registration, 1);
        self.link.add_memory(&pieces)?;

        let region = Region(pieces);
        memory.regions.push(region.clone());
        Ok(region)
    }

    /// Returns zeroed memory for an event queue: that of a freed queue of the same length, or the
    /// next part of a region that queues share.
    pub(super) fn queue_memory(&self, bytes: u64) -> Result<QueueMemory, Error> {
        if let Some(memory) = self.link.reuse_queue(bytes) {
            memory.window.zero(0, bytes)?;
            return Ok(memory);
        }

        let mut memory = runtime::lock(&self.memory);
        // A refused allocation leaves the present region to later queues.
        let (region, at) = match &memory.queues {
            Some((region, used)) if region.len() - used >= bytes => (region.clone(), *used),
            _ => (self.allocate_in(&mut memory, bytes.max(QUEUE_CHUNK))?, 0),
        };
        memory.queues = Some((region.clone(), at + bytes));

        let size = region.len();
        let buffer = region.buffer().ok_or(Error::OutOfRange { offset: at, length: bytes, size })?;
        Ok(QueueMemory { window: buffer.window().window(at, bytes)?, address: region.address() + at })
    }
}
