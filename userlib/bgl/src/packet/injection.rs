//! An injection FIFO.

use std::sync::atomic::Ordering;

use nicforge_hwi::torus::{
    FIFO, FIFO_CHUNKS, INJECTION_FIFOS, PRIORITY_INJECTION, PacketHeader, mirror, reg, window,
};
use nicforge_shm::{SharedU32, Window};

use super::ring;
use crate::Error;

/// An injection FIFO of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectionFifo {
    /// The first FIFO for packets of normal priority.
    Normal0 = 0,
    /// The second FIFO for packets of normal priority.
    Normal1 = 1,
    /// The third FIFO for packets of normal priority.
    Normal2 = 2,
    /// The FIFO for packets of high priority.
    Priority = 3,
}
const _: () = assert!(
    InjectionFifo::Priority as usize == PRIORITY_INJECTION && PRIORITY_INJECTION + 1 == INJECTION_FIFOS
);

/// The memory and the counts of an injection FIFO.
///
/// The public headers let software use only [`nicforge_hwi::torus::SAFE_CHUNKS`] of a FIFO, because
/// a status that was read may not count a packet that has been written since. This FIFO uses all
/// [`FIFO_CHUNKS`]: it counts its own packets, and subtracts those that the card has taken. An old
/// count of the card only hides room.
#[derive(Debug)]
pub(super) struct Injection {
    ring: Window,
    /// Chunks that the card has taken, modulo 2^32, in the mirror.
    card_head: SharedU32,
    /// Chunks that the card is known to have taken.
    head: u32,
    /// Chunks that were written.
    tail: u32,
    /// Chunks that the card knows of.
    published: u32,
    /// The register of the tail.
    tail_register: u64,
}

impl Injection {
    /// Opens FIFO `index` of the windows. It is empty, because its attachment is new.
    pub(super) fn new(windows: &Window, mirrors: &Window, index: usize) -> Result<Self, Error> {
        let index = index as u64;
        let card_head = mirrors.u32(mirror::INJECTION_HEAD + 4 * index)?;
        let head = card_head.load(Ordering::Acquire);
        Ok(Self {
            ring: windows.window(window::INJECTION + FIFO * index, FIFO)?,
            card_head,
            head,
            tail: head,
            published: head,
            tail_register: reg::INJECTION_TAIL + 4 * index,
        })
    }

    /// Returns whether there is room for a number of chunks.
    #[inline]
    pub(super) fn find_room(&mut self, chunks: u32) -> bool {
        let has_room = |head: u32, tail: u32| tail.wrapping_sub(head) + chunks <= FIFO_CHUNKS;
        if has_room(self.head, self.tail) {
            return true;
        }

        // A head beyond what was published, or behind the last one, is an error of the card.
        let head = self.card_head.load(Ordering::Acquire);
        if head.wrapping_sub(self.head) > self.published.wrapping_sub(self.head) {
            return false;
        }
        self.head = head;
        has_room(head, self.tail)
    }

    /// Writes a packet, for which [`Injection::find_room`] has found room.
    #[inline]
    pub(super) fn write<'a>(
        &mut self,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        ring::write_packet(&self.ring, self.tail, header, payload)?;
        self.tail = self.tail.wrapping_add(header.chunks());
        Ok(())
    }

    /// Returns the register and the value of a tail that the card does not know yet.
    #[inline]
    pub(super) fn unpublished_tail(&self) -> Option<(u64, u32)> {
        (self.tail != self.published).then_some((self.tail_register, self.tail))
    }

    /// Records that the card knows the tail.
    #[inline]
    pub(super) fn mark_published(&mut self) {
        self.published = self.tail;
    }

    /// Returns whether the card has taken all packets.
    pub(super) fn is_empty(&self) -> bool {
        self.card_head.load(Ordering::Acquire) == self.tail
    }
}
