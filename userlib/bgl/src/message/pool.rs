//! Memory for packets that can't be unpacked yet.

use nicforge_hwi::torus::MAX_PAYLOAD;

use super::{
    slab::NONE,
    wire::{Kind, MessageId, SoftwareHeader},
};
use crate::packet::{PayloadReader, Rank};

/// Bytes of a packet's payload, wherever they are.
pub(super) trait Payload {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Copies bytes from `offset` on, and returns whether the payload has them all.
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> bool;
}

impl Payload for PayloadReader<'_> {
    #[inline]
    fn len(&self) -> usize {
        PayloadReader::len(self)
    }

    #[inline]
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> bool {
        PayloadReader::copy_to(self, offset, out)
    }
}

/// A packet in the pool.
#[derive(Clone, Debug)]
pub(super) struct StoredPacket {
    pub(super) header: SoftwareHeader,
    /// The next packet of the same list, or [`NONE`].
    pub(super) next: u32,
    len: u8,
    payload: [u8; MAX_PAYLOAD],
}

impl Payload for StoredPacket {
    fn len(&self) -> usize {
        self.len.into()
    }

    fn copy_to(&self, offset: usize, out: &mut [u8]) -> bool {
        let payload = self.payload.get(..self.len.into()).unwrap_or_default();
        let Some(bytes) = payload.get(offset..).and_then(|rest| rest.get(..out.len())) else { return false };
        out.copy_from_slice(bytes);
        true
    }
}

/// A pool of packets. It grows only by [`Pool::grow`].
#[derive(Debug)]
pub(super) struct Pool {
    packets: Vec<StoredPacket>,
    first_free: u32,
}

impl Pool {
    /// Returns a pool without room.
    pub(super) const fn new() -> Self {
        Self { packets: Vec::new(), first_free: NONE }
    }

    /// Adds room for packets.
    pub(super) fn grow(&mut self, packets: u8) {
        for _ in 0..packets {
            let index = self.packets.len() as u32;
            self.packets.push(StoredPacket {
                header: NO_PACKET,
                next: self.first_free,
                len: 0,
                payload: [0; MAX_PAYLOAD],
            });
            self.first_free = index;
        }
    }

    /// Returns the number of packets for which the pool was made.
    pub(super) fn capacity(&self) -> usize {
        self.packets.len()
    }

    /// Stores a packet in front of a list that begins at `next`. Returns the list's new beginning,
    /// or `None` if there is no room.
    pub(super) fn store(
        &mut self,
        header: SoftwareHeader,
        payload: &PayloadReader<'_>,
        next: u32,
    ) -> Option<u32> {
        let index = self.first_free;
        let packet = self.packets.get_mut(index as usize)?;
        let bytes = packet.payload.get_mut(..payload.len())?;
        if !payload.copy_to(0, bytes) {
            return None;
        }

        self.first_free = packet.next;
        (packet.header, packet.len, packet.next) = (header, payload.len() as u8, next);
        Some(index)
    }

    /// Returns a packet.
    pub(super) fn get(&self, index: u32) -> Option<&StoredPacket> {
        self.packets.get(index as usize)
    }

    /// Frees a packet. Returns the next one of its list.
    pub(super) fn free(&mut self, index: u32) -> u32 {
        let Some(packet) = self.packets.get_mut(index as usize) else { return NONE };
        let next = std::mem::replace(&mut packet.next, self.first_free);
        self.first_free = index;
        next
    }
}

/// The header of room that has no packet.
const NO_PACKET: SoftwareHeader =
    SoftwareHeader { kind: Kind::Eager, source: Rank(0), life: 0, id: MessageId::new(0), field: 0 };
