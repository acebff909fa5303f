//! The memory of a rank: segments that the card can reach, and buffers in them.
//!
//! On Catamount the data, the heap and the stack of a process are each contiguous, so that one
//! memory descriptor covers each of them (section *Preregistration of memory*). A host process has
//! no such memory. The library therefore allocates a region for each segment; a send and a receive
//! name a part of one.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use nicforge_driver::runtime;
use nicforge_portals::{Interface, Region};

use crate::{Error, SpaceBytes};

/// A part of a process's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Data that live as long as the program.
    Data,
    /// Memory that is allocated.
    Heap,
    /// Memory of function calls.
    Stack,
}

impl Segment {
    pub(crate) const ALL: [Self; 3] = [Self::Data, Self::Heap, Self::Stack];

    /// Returns the index of the segment in arrays of all segments.
    fn index(self) -> usize {
        self as usize
    }
}

/// Alignment of blocks of the heap, and the unit of their lengths.
const ALIGN: u64 = 64;

/// The free blocks of the heap: the length of each, by its start. Two blocks never touch, because
/// they would be joined.
struct Heap(BTreeMap<u64, u64>);

impl Heap {
    /// Makes a heap of one free block.
    fn new(bytes: u64) -> Self {
        Self(BTreeMap::from([(0, bytes)]))
    }

    /// Takes a block from the first free one that is long enough, and returns its start.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }

        let (start, length) =
            self.0.iter().find(|(_, length)| **length >= bytes).map(|(&start, &length)| (start, length))?;
        self.0.remove(&start);
        if length > bytes {
            self.0.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Returns a block, and joins it with its free neighbours.
    fn give_back(&mut self, mut start: u64, mut bytes: u64) {
        if bytes == 0 {
            return;
        }

        if let Some(length_after) = self.0.remove(&(start + bytes)) {
            bytes += length_after;
        }
        if let Some((&start_before, &length_before)) = self.0.range(..start).next_back()
            && start_before + length_before == start
        {
            (start, bytes) = (start_before, length_before + bytes);
        }
        self.0.insert(start, bytes);
    }
}

/// The segments of a rank.
pub(crate) struct Space {
    /// The region of each segment.
    regions: [Region; 3],
    heap: Mutex<Heap>,
}

impl Space {
    /// Allocates the segments.
    pub(crate) fn allocate(interface: &Interface, bytes: SpaceBytes) -> Result<Arc<Self>, Error> {
        let [data, heap, stack] =
            [bytes.data, bytes.heap, bytes.stack].map(|bytes| interface.allocate(bytes));
        let regions = [data?, heap?, stack?];
        let heap = Heap::new(regions[Segment::Heap.index()].len() / ALIGN * ALIGN);
        Ok(Arc::new(Self { regions, heap: Mutex::new(heap) }))
    }

    /// Returns the memory of a segment.
    pub(crate) fn region(&self, segment: Segment) -> &Region {
        &self.regions[segment.index()]
    }

    /// Allocates a buffer of `bytes` bytes in the heap.
    pub(crate) fn buffer(self: &Arc<Self>, bytes: u64) -> Result<Buffer, Error> {
        let no_memory = || Error::NoMemory { bytes };
        let capacity = bytes.checked_next_multiple_of(ALIGN).ok_or_else(no_memory)?;
        let start = runtime::lock(&self.heap).take(capacity).ok_or_else(no_memory)?;
        Ok(Buffer {
            space: self.clone(),
            segment: Segment::Heap,
            start,
            capacity,
            length: bytes,
            is_allocated: true,
        })
    }

    /// Makes a buffer of a range of a segment, which the caller divides.
    pub(crate) fn lend(
        self: &Arc<Self>,
        segment: Segment,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, Error> {
        let size = self.region(segment).len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, length, size });
        }

        let (space, start, capacity) = (self.clone(), offset, length);
        Ok(Buffer { space, segment, start, capacity, length, is_allocated: false })
    }
}

/// The memory of one message, in a segment of an endpoint.
///
/// The card reads and writes it while a request has it. The request's completion returns it.
pub struct Buffer {
    space: Arc<Space>,
    segment: Segment,
    /// Offset of its first byte in the segment.
    start: u64,
    /// The greatest length that it can have.
    capacity: u64,
    length: u64,
    /// It is a block of the heap, which is returned when the buffer is dropped.
    is_allocated: bool,
}

impl Buffer {
    /// Returns the length in bytes: of a send, the message's.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the greatest length that [`Buffer::set_len`] allows.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Returns the segment that it lies in.
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// Sets the length. Bytes beyond the former length have any value.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the capacity.
    pub fn set_len(&mut self, length: usize) -> Result<(), Error> {
        if length as u64 > self.capacity {
            return Err(Error::OutOfRange { offset: 0, length: length as u64, size: self.capacity });
        }
        self.length = length as u64;
        Ok(())
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the length.
    #[inline]
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let at = self.segment_offset(offset, data.len())?;
        Ok(self.region().write(at, data)?)
    }

    /// Copies bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the length.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let at = self.segment_offset(offset, out.len())?;
        Ok(self.region().read(at, out)?)
    }

    /// Returns the bytes as a vector.
    ///
    /// # Errors
    /// Those of an access to shared memory.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the offset in the segment of a range of the buffer, or an error if the range leaves
    /// the buffer.
    #[inline]
    fn segment_offset(&self, offset: usize, length: usize) -> Result<u64, Error> {
        let (offset, length) = (offset as u64, length as u64);
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Error::OutOfRange { offset, length, size: self.length });
        }
        Ok(self.start + offset)
    }

    /// Returns the memory of the buffer's segment.
    pub(crate) fn region(&self) -> &Region {
        self.space.region(self.segment)
    }

    /// Returns the offset of the first byte in its segment.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns whether the buffer lies in these segments.
    pub(crate) fn belongs_to(&self, space: &Arc<Space>) -> bool {
        Arc::ptr_eq(&self.space, space)
    }

    /// Takes the buffer, and leaves one without memory in its place.
    pub(crate) fn take(&mut self) -> Self {
        let (space, segment) = (self.space.clone(), self.segment);
        let empty = Self { space, segment, start: 0, capacity: 0, length: 0, is_allocated: false };
        std::mem::replace(self, empty)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_allocated {
            runtime::lock(&self.space.heap).give_back(self.start, self.capacity);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("segment", &self.segment)
            .field("start", &self.start)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_coalesce_to_the_whole_heap() {
        let mut heap = Heap::new(1024);
        let blocks: Vec<_> = [64, 256, 128, 576].map(|bytes| (heap.take(bytes).unwrap(), bytes)).into();
        assert_eq!(heap.take(64), None);

        for at in [1, 3, 0, 2] {
            heap.give_back(blocks[at].0, blocks[at].1);
        }

        assert_eq!(heap.0, BTreeMap::from([(0, 1024)]));
        assert_eq!((heap.take(1025), heap.take(0), heap.take(1024)), (None, Some(0), Some(0)));
    }
}
