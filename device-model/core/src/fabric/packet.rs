//! Packets and the pool that their buffers come from.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use crate::dma::DmaLease;

/// A packet on its way through the fabric. It is moved from hop to hop, never copied: what moves is
/// a pointer.
///
/// Its buffer belongs to the fabric's pool: a NIC that is done with one gives it back by
/// [`super::Ports::recycle`]. One that is dropped is lost to the pool's bound.
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

/// What a [`Packet`] holds.
#[derive(Debug)]
pub struct Contents {
    buffer: Box<[u8]>,
    length: u32,
    /// Bytes that the link carries beside [`Contents::bytes`] (header, checksum); they count for
    /// its bandwidth only.
    pub framing: u32,
    /// For the NIC: a header, a route, a tag. The fabric does not look at it.
    pub header: u64,
    /// Memory that the packet refers to instead of carrying it, for NICs that copy bulk data once,
    /// on arrival. What of it is meant is the NIC's affair, and that [`Contents::framing`] counts
    /// it. Gone when the packet is recycled.
    pub memory: Option<Arc<DmaLease>>,
}

impl Contents {
    /// The content.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length as usize]
    }

    /// The content, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length as usize]
    }

    /// Makes `bytes`, of the same length, the content.
    #[inline]
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let content = self.bytes_mut();
        match (content.first_chunk_mut::<8>(), <[u8; 8]>::try_from(bytes)) {
            // A word, as many have, without a call.
            (Some(content), Ok(word)) => *content = word,
            _ => content.copy_from_slice(bytes),
        }
    }

    /// Length of the content in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the content is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes on the wire.
    #[inline]
    pub(super) fn wire_bytes(&self) -> u64 {
        u64::from(self.length) + u64::from(self.framing)
    }
}

/// Buffers, all of one size, up to a bound.
#[derive(Debug)]
pub(super) struct Pool {
    size: usize,
    free: Vec<Packet>,
    /// Buffers that exist, free or not.
    made: usize,
    bound: usize,
    /// The bound was given and does not follow the links.
    fixed: bool,
}

impl Pool {
    pub(super) fn new(size: usize, bound: usize) -> Self {
        Self { size, free: Vec::new(), made: 0, bound, fixed: false }
    }

    /// Changes the size of new buffers. Those of another size are dropped when they come back.
    pub(super) fn set_size(&mut self, size: usize) {
        if size != self.size {
            self.made -= self.free.len();
            self.free.clear();
            self.size = size;
        }
    }

    pub(super) fn set_bound(&mut self, bound: usize) {
        self.bound = bound;
        self.fixed = true;
    }

    /// Makes room for packets on a link, so that no link can take what others need.
    pub(super) fn raise_bound(&mut self, packets: usize) {
        if !self.fixed {
            self.bound += packets;
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn in_use(&self) -> usize {
        self.made - self.free.len()
    }

    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Option<Packet> {
        if length > self.size {
            return None;
        }

        let mut packet = match self.free.pop() {
            Some(packet) => packet,
            None => self.make()?,
        };

        packet.length = length as u32;
        packet.framing = 0;
        packet.header = 0;

        Some(packet)
    }

    #[cold]
    fn make(&mut self) -> Option<Packet> {
        if self.made >= self.bound {
            return None;
        }

        self.made += 1;

        // The free list can hold every buffer there is, so that giving one back never allocates.
        if self.free.capacity() < self.made {
            self.free.reserve(self.made.next_power_of_two().max(64));
        }

        Some(Packet(Box::new(Contents {
            buffer: vec![0; self.size].into_boxed_slice(),
            length: 0,
            framing: 0,
            header: 0,
            memory: None,
        })))
    }

    #[inline(always)]
    pub(super) fn give(&mut self, mut packet: Packet) {
        packet.memory = None;
        if packet.buffer.len() == self.size {
            self.free.push(packet);
        } else {
            self.made = self.made.saturating_sub(1);
        }
    }
}
