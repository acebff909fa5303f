//! A reception FIFO: chunks in mapped memory that the card fills and software takes.

use std::sync::atomic::Ordering;

use nicforge_hwi::torus::{CHUNK, FIFO_CHUNKS};
use nicforge_shm::SharedU32;

use crate::ring::Ring;

/// A reception FIFO of a group.
///
/// `tail` counts the chunks that the card has put into the memory, and `head` those that software
/// has taken. There are at most [`FIFO_CHUNKS`] between them.
#[derive(Debug, Default)]
pub(crate) struct ReceptionFifo {
    head: u32,
    tail: u32,
    /// The last wrong head that software wrote; it is reported once.
    wrong_head: Option<u32>,
}

impl ReceptionFifo {
    /// Returns the number of chunks that software has taken.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Returns the number of chunks that the card has put into the memory.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the number of chunks in the FIFO.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns whether the FIFO has room for a packet of this many bytes.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.count() as usize + bytes / CHUNK <= FIFO_CHUNKS as usize
    }

    /// Puts a packet into the memory. The caller must have seen that there is room for it.
    #[inline]
    pub(crate) fn put(&mut self, ring: &Ring, packet: &[u8]) {
        ring.write(self.tail, packet);
        self.tail = self.tail.wrapping_add((packet.len() / CHUNK) as u32);
    }

    /// Frees the chunks before `head`, where software says it is. Returns false for a head that is
    /// not between the last one and the tail, the first time.
    #[inline]
    pub(crate) fn set_head(&mut self, head: u32) -> bool {
        if head == self.head {
            return true;
        }
        if head.wrapping_sub(self.head) <= self.count() {
            (self.head, self.wrong_head) = (head, None);
            return true;
        }
        let is_reported = self.wrong_head == Some(head);
        self.wrong_head = Some(head);
        is_reported
    }

    /// Looks for chunks that software has taken since, where it writes its head. Returns whether
    /// the FIFO has room for a packet of this many bytes now. A wrong head is left for
    /// [`ReceptionFifo::set_head`] to report.
    pub(crate) fn set_head_and_find_room(&mut self, head: &SharedU32, bytes: usize) -> bool {
        let head = head.load(Ordering::Acquire);
        if head.wrapping_sub(self.head) <= self.count() {
            self.head = head;
        }
        self.has_room(bytes)
    }
}
