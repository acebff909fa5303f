//! Packets, and the pool of their buffers.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use crate::{dma::DmaLease, time::Nanos};

/// A packet on its way through the fabric. Each hop moves a pointer; the content is not copied.
///
/// The buffer belongs to the fabric's pool. A NIC must return it with [`super::Ports::recycle`]. A
/// dropped packet still counts against the pool's bound.
#[derive(Debug)]
pub struct Packet(Box<Contents>);

impl Deref for Packet {
    type Target = Contents;

    #[inline]
    fn deref(&self) -> &Contents {
        &self.0
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut Contents {
        &mut self.0
    }
}

impl Packet {
    /// Returns the buffer as a packet of `length` bytes without headers.
    #[inline(always)]
    fn with_length(mut self, length: usize) -> Self {
        self.length = length as u32;
        self.framing = 0;
        self.header = 0;
        self.number = 0;
        self
    }
}

/// Content and headers of a [`Packet`], which are on one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Contents {
    buffer: Box<[u8]>,
    length: u32,
    /// Bytes that the link carries in addition to [`Contents::bytes`], such as header and checksum.
    /// They only use bandwidth.
    pub framing: u32,
    /// Word for the NIC's use, such as a header, a route or a tag. The fabric ignores it.
    pub header: u64,
    /// Memory that the packet refers to instead of carrying it, for NICs that copy bulk data once,
    /// on arrival. The NIC defines which part of it the packet means, and counts that part in
    /// [`Contents::framing`]. Recycling the packet drops it.
    pub memory: Option<Arc<DmaLease>>,
    /// Number of the packet in the trace, or 0 before it has crossed a tapped link.
    pub(super) number: u64,
    /// The times of the packet on its lane. On a lane that takes no time, they are in the past.
    pub(super) flight: Flight,
}

/// The times at which a packet arrives over its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// Time at which the head arrives. It is not before the tail of the packet in front.
    pub(super) head: Nanos,
    /// Time at which the tail arrives.
    pub(super) tail: Nanos,
}

impl Flight {
    /// A packet that has arrived: one on a lane that takes no time.
    const PAST: Self = Self { head: Nanos::ZERO, tail: Nanos::ZERO };
    /// No packet. It never arrives.
    pub(super) const NONE: Self = Self { head: Nanos::NEVER, tail: Nanos::NEVER };
}

// The headers of a packet have one cache line.
const _: () = assert!(size_of::<Contents>() == 64);

impl Contents {
    /// Returns the content.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length as usize]
    }

    /// Returns the content for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length as usize]
    }

    /// Copies `bytes` into the content. Their length must be the content's.
    #[inline]
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let content = self.bytes_mut();
        match (content.first_chunk_mut::<8>(), <[u8; 8]>::try_from(bytes)) {
            // Many packets hold one word. This case needs no call of `memcpy`.
            (Some(content), Ok(word)) => *content = word,
            _ => content.copy_from_slice(bytes),
        }
    }

    /// Returns the length of the content in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns whether the content has more than `bytes` bytes.
    #[inline]
    pub(super) fn is_longer_than(&self, bytes: u32) -> bool {
        self.length > bytes
    }

    /// Takes over content and headers of a packet of the same length.
    pub(super) fn copy_from(&mut self, original: &Self) {
        self.bytes_mut().copy_from_slice(original.bytes());
        self.framing = original.framing;
        self.header = original.header;
        self.number = original.number;
        self.memory.clone_from(&original.memory);
    }

    /// Returns whether the content is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of bytes on the wire.
    #[inline]
    pub(super) fn wire_bytes(&self) -> u64 {
        u64::from(self.length) + u64::from(self.framing)
    }
}

/// Largest size of a small packet in bytes. Small packets of all sizes share buffers, which have
/// the largest of these sizes. Fabrics with several kinds of small packets thus need no search for
/// a size.
const MAX_SMALL: usize = 256;

/// Buffers of one size.
#[derive(Debug)]
struct SizeClass {
    /// Size of a buffer in bytes.
    size: usize,
    free: Vec<Packet>,
}

impl SizeClass {
    fn new(size: usize) -> Self {
        Self { size, free: Vec::new() }
    }
}

/// A pool of buffers of a few sizes, up to a bound that the sizes share. A packet gets the smallest
/// buffer that it fits into.
#[derive(Debug)]
pub(super) struct Pool {
    /// The smallest size. The links of most fabrics have only one, which gets the short path.
    smallest: SizeClass,
    /// The other sizes in ascending order.
    larger: Vec<SizeClass>,
    /// No size has been added yet: `smallest` is for functions without links.
    is_initial: bool,
    /// Number of buffers in existence, free or not.
    allocated: usize,
    /// Largest number of buffers that may exist.
    bound: usize,
    /// The bound was set explicitly, and new links do not raise it.
    is_bound_fixed: bool,
}

impl Pool {
    /// Returns a pool with buffers of one size. The first [`Pool::add_size`] replaces it.
    pub(super) fn new(size: usize, bound: usize) -> Self {
        Self {
            smallest: SizeClass::new(size),
            larger: Vec::new(),
            is_initial: true,
            allocated: 0,
            bound,
            is_bound_fixed: false,
        }
    }

    /// Adds buffers for packets of a size, unless there are some. Buffers of a former size that are
    /// in use are freed when they come back.
    pub(super) fn add_size(&mut self, size: usize) {
        let both_small = size.max(self.smallest.size) <= MAX_SMALL;
        if std::mem::take(&mut self.is_initial) || both_small && size > self.smallest.size {
            // The new size takes the place of the smallest one, whose free buffers are dropped.
            self.allocated -= self.smallest.free.len();
            self.smallest = SizeClass::new(size);
        } else if both_small {
            // The smallest buffers are large enough.
        } else if size < self.smallest.size {
            let former = std::mem::replace(&mut self.smallest, SizeClass::new(size));
            self.larger.insert(0, former);
        } else if size > self.smallest.size {
            let index = self.larger.partition_point(|class| class.size < size);
            if self.larger.get(index).is_none_or(|class| class.size != size) {
                self.larger.insert(index, SizeClass::new(size));
            }
        }
    }

    /// Sets the bound, which new links no longer raise.
    pub(super) fn set_bound(&mut self, bound: usize) {
        self.bound = bound;
        self.is_bound_fixed = true;
    }

    /// Raises the bound for the packets of a new link, so that no link can use up what others need.
    pub(super) fn raise_bound(&mut self, packets: usize) {
        if !self.is_bound_fixed {
            self.bound += packets;
        }
    }

    /// Returns the smallest size of buffers in bytes.
    pub(super) fn smallest_size(&self) -> usize {
        self.smallest.size
    }

    /// Returns the largest size of buffers in bytes.
    pub(super) fn largest_size(&self) -> usize {
        self.larger.last().unwrap_or(&self.smallest).size
    }

    /// Returns the number of buffers that packets use.
    pub(super) fn in_use(&self) -> usize {
        let free_larger: usize = self.larger.iter().map(|class| class.free.len()).sum();
        self.allocated - self.smallest.free.len() - free_larger
    }

    /// Takes a buffer for a packet of `length` bytes, whose content is arbitrary.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Option<Packet> {
        if length > self.smallest.size { self.take_larger(length) } else { self.take_smallest(length) }
    }

    /// Takes a buffer as [`Pool::take`] does, for at most [`Pool::smallest_size`] bytes. The caller
    /// has checked that.
    #[inline]
    pub(super) fn take_smallest(&mut self, length: usize) -> Option<Packet> {
        debug_assert!(length <= self.smallest.size, "the packet does not fit into the buffer");

        let packet = match self.smallest.free.pop() {
            Some(packet) => packet,
            None => self.allocate(self.smallest.size)?,
        };

        Some(packet.with_length(length))
    }

    /// Takes a buffer that is not of the smallest size.
    #[inline(never)]
    fn take_larger(&mut self, length: usize) -> Option<Packet> {
        let index = self.larger.partition_point(|class| class.size < length);
        let class = self.larger.get_mut(index)?;
        let packet = match class.free.pop() {
            Some(packet) => packet,
            None => {
                let size = class.size;
                self.allocate(size)?
            }
        };

        Some(packet.with_length(length))
    }

    /// Allocates a buffer of one of the pool's sizes, after the caller has found none that is free.
    /// If the bound is reached, it first frees a buffer of another size. Returns `None` if none of
    /// these is free either.
    #[cold]
    fn allocate(&mut self, size: usize) -> Option<Packet> {
        while self.allocated >= self.bound {
            if !self.free_one() {
                return None;
            }
        }

        self.allocated += 1;

        // The free list has room for every buffer, so that returning one never allocates.
        let allocated = self.allocated;
        if let Some(class) = self.class_of(size)
            && class.free.capacity() < allocated
        {
            // The capacity grows in few steps.
            class.free.reserve(allocated.next_power_of_two().max(64));
        }

        Some(Packet(Box::new(Contents {
            buffer: vec![0; size].into_boxed_slice(),
            length: 0,
            framing: 0,
            header: 0,
            number: 0,
            memory: None,
            flight: Flight::PAST,
        })))
    }

    /// Frees a buffer that no packet uses. Returns false if there is none.
    fn free_one(&mut self) -> bool {
        let mut classes = std::iter::once(&mut self.smallest).chain(&mut self.larger);
        let freed = classes.find_map(|class| class.free.pop());
        self.allocated -= usize::from(freed.is_some());
        freed.is_some()
    }

    /// Returns the class of buffers of exactly this size.
    fn class_of(&mut self, size: usize) -> Option<&mut SizeClass> {
        if size == self.smallest.size {
            return Some(&mut self.smallest);
        }

        let index = self.larger.partition_point(|class| class.size < size);
        self.larger.get_mut(index).filter(|class| class.size == size)
    }

    /// Returns a buffer to the pool, or frees it if the pool has none of its size.
    #[inline(always)]
    pub(super) fn put_back(&mut self, mut packet: Packet) {
        packet.memory = None;
        if packet.buffer.len() == self.smallest.size {
            self.smallest.free.push(packet);
        } else {
            self.put_back_larger(packet);
        }
    }

    /// Puts back a buffer that is not of the smallest size.
    #[inline(never)]
    fn put_back_larger(&mut self, packet: Packet) {
        match self.class_of(packet.buffer.len()) {
            Some(class) => class.free.push(packet),
            None => self.allocated = self.allocated.saturating_sub(1),
        }
    }
}
