//! Packets, and the pool of their buffers.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use crate::dma::DmaLease;

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

/// Content and headers of a [`Packet`].
#[derive(Debug)]
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
}

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

/// A pool of buffers of one size, up to a bound.
#[derive(Debug)]
pub(super) struct Pool {
    size: usize,
    free: Vec<Packet>,
    /// Number of buffers in existence, free or not.
    allocated: usize,
    bound: usize,
    /// The bound was set explicitly, and new links do not raise it.
    fixed: bool,
}

impl Pool {
    pub(super) fn new(size: usize, bound: usize) -> Self {
        Self { size, free: Vec::new(), allocated: 0, bound, fixed: false }
    }

    /// Changes the size of new buffers. A returned buffer of another size is freed.
    pub(super) fn set_size(&mut self, size: usize) {
        if size != self.size {
            self.allocated -= self.free.len();
            self.free.clear();
            self.size = size;
        }
    }

    /// Sets the bound, which new links no longer raise.
    pub(super) fn set_bound(&mut self, bound: usize) {
        self.bound = bound;
        self.fixed = true;
    }

    /// Raises the bound for the packets of a new link, so that no link can use up what others need.
    pub(super) fn raise_bound(&mut self, packets: usize) {
        if !self.fixed {
            self.bound += packets;
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn in_use(&self) -> usize {
        self.allocated - self.free.len()
    }

    /// Takes a buffer for a packet of `length` bytes, whose content is arbitrary.
    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Option<Packet> {
        if length > self.size {
            return None;
        }

        let mut packet = match self.free.pop() {
            Some(packet) => packet,
            None => self.allocate()?,
        };

        packet.length = length as u32;
        packet.framing = 0;
        packet.header = 0;

        Some(packet)
    }

    /// Allocates a buffer, unless the bound is reached.
    #[cold]
    fn allocate(&mut self) -> Option<Packet> {
        if self.allocated >= self.bound {
            return None;
        }

        self.allocated += 1;

        // The free list has room for every buffer, so that returning one never allocates.
        if self.free.capacity() < self.allocated {
            self.free.reserve(self.allocated.next_power_of_two().max(64));
        }

        Some(Packet(Box::new(Contents {
            buffer: vec![0; self.size].into_boxed_slice(),
            length: 0,
            framing: 0,
            header: 0,
            memory: None,
        })))
    }

    /// Returns a buffer to the pool, or frees it if its size is not the pool's.
    #[inline(always)]
    pub(super) fn put_back(&mut self, mut packet: Packet) {
        packet.memory = None;
        if packet.buffer.len() == self.size {
            self.free.push(packet);
        } else {
            self.allocated = self.allocated.saturating_sub(1);
        }
    }
}
