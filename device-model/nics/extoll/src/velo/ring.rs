//! A VPID's receive ring: slots in its own memory, which the card fills and its owner empties.
//!
//! The slots are shared out among the nodes of the network. When the owner frees a slot, a credit
//! is due to the node whose message was in it. Credits are returned in batches of half a share. So
//! a sender that has used up its share gets credit back whenever its messages are read.

use std::collections::VecDeque;

use nicforge_core::dma::DmaLease;
use nicforge_hwi::extoll_velo::{MAX_SLOTS, MIN_SLOTS, SLOT, SLOT_DATA, SLOT_HEADER};
use nicforge_shm::{Records, Window};

use super::{QUADWORD, receive::PacketRow};
use crate::{
    packet::PacketHeader,
    ring_registers::{RingLimits, RingRegisters},
};

/// The rings that VELO can use.
pub(super) const LIMITS: RingLimits = RingLimits { entries: MIN_SLOTS..=MAX_SLOTS, entry: SLOT };

/// Returns the number of slots that each node gets of a ring.
fn share_of(slots: u64, nodes: u32) -> u32 {
    // The value fits: it is at most MAX_SLOTS.
    (slots / u64::from(nodes.max(1))) as u32
}

/// The outcome of putting messages of a row into the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Number of messages that are in slots.
    pub(super) delivered: u32,
    /// Number of messages that were dropped.
    pub(super) undelivered: u32,
    /// Whether the ring's memory is gone.
    pub(super) gone: bool,
}

// A slot is a record: its header, and then the data.
const _: () = assert!(SLOT_HEADER == 0 && SLOT_DATA == 8);

/// Consecutive slots with messages of one node.
#[derive(Clone, Copy, Debug)]
struct SlotsOfSender {
    node: u16,
    /// Number of slots, at least one.
    slots: u32,
}

/// Credit to return to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditDue {
    pub(super) node: u32,
    pub(super) credit: u32,
}

/// An enabled ring.
pub(crate) struct Ring {
    memory: DmaLease,
    slots: u64,
    /// Number of messages put in so far.
    delivered: u64,
    /// Number of messages that the owner has taken out.
    taken: u64,
    /// The nodes whose messages are in the slots from `taken` to `delivered`, in order.
    senders: VecDeque<SlotsOfSender>,
    /// By node, the slots that were freed and whose credit was not returned.
    freed: Vec<u32>,
    /// By node, the slots of its share that it may not fill: those with unread messages, and those
    /// whose credit was not returned.
    used: Vec<u32>,
    /// Number of slots for each node.
    share: u32,
    /// Number of credits that are returned together, at least.
    batch: u32,
    /// Nodes to which a batch is due. Each is in the queue at most once, since all its credit is
    /// returned together.
    nodes_due: VecDeque<u32>,
}

impl Ring {
    /// Returns an empty ring in this memory, of a card in a network of `nodes` nodes.
    pub(crate) fn new(memory: DmaLease, registers: RingRegisters, nodes: u32) -> Self {
        let slots = registers.entries;
        let share = share_of(slots, nodes);
        Self {
            memory,
            slots,
            delivered: 0,
            taken: 0,
            // There are never more entries than slots with a message.
            senders: VecDeque::with_capacity(slots as usize),
            freed: vec![0; nodes as usize],
            used: vec![0; nodes as usize],
            share,
            batch: (share / 2).max(1),
            nodes_due: VecDeque::with_capacity(nodes as usize),
        }
    }

    /// Returns the credit that a node has: its share without unread slots and credits not returned.
    pub(crate) fn credit_of(&self, node: u32) -> u32 {
        self.share - self.used.get(node as usize).copied().unwrap_or(self.share).min(self.share)
    }

    /// Returns whether the ring has messages that its owner has not taken.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.delivered != self.taken
    }

    /// Returns the number of messages that the owner has taken.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Writes the first messages of a row into slots, as long as their packets have the header
    /// `packet_header`. All of them are from `node` and get `slot_header`.
    #[inline(always)]
    pub(super) fn put_row(
        &mut self,
        node: u32,
        slot_header: u64,
        packet_header: u64,
        row: &mut impl PacketRow,
    ) -> Delivered {
        let used = self.used.get_mut(node as usize);
        let available = used.as_ref().map_or(0, |used| self.share.saturating_sub(**used));
        let next = self.delivered;

        let filling = Filling {
            next,
            end: next.wrapping_add(available.into()),
            delivered: &mut self.delivered,
            senders: &mut self.senders,
            node: node as u16,
            used,
        };

        let headers = Headers { packet: packet_header, slot: slot_header };
        match self.memory.whole().map(Records::new) {
            Some(Ok(slots)) => filling.put_row(&slots, headers, row),
            _ => {
                let slots = ScatteredSlots { memory: &self.memory, mask: self.slots - 1 };
                filling.put_scattered_row(&slots, headers, row)
            }
        }
    }

    /// Frees slots up to the owner's read pointer, the number of messages taken so far. Returns
    /// false if the value is invalid.
    pub(crate) fn free_up_to(&mut self, taken: u64) -> bool {
        if taken < self.taken || taken > self.delivered {
            return false;
        }

        while self.taken < taken
            && let Some(SlotsOfSender { node, slots }) = self.senders.front_mut()
        {
            let node = *node;
            // The number fits: it is at most `slots`.
            let count = (taken - self.taken).min((*slots).into()) as u32;
            *slots -= count;
            if *slots == 0 {
                self.senders.pop_front();
            }
            self.taken += u64::from(count);

            let freed = &mut self.freed[usize::from(node)];
            let before = *freed;
            *freed += count;
            if before < self.batch && *freed >= self.batch {
                self.nodes_due.push_back(node.into());
            }
        }
        true
    }

    /// Returns whether a batch of credit is due to a node.
    #[inline]
    pub(super) fn has_credit_due(&self) -> bool {
        !self.nodes_due.is_empty()
    }

    /// Returns the credit of the first node to which a batch is due.
    #[inline]
    pub(super) fn credit_due(&self) -> Option<CreditDue> {
        let node = *self.nodes_due.front()?;
        Some(CreditDue { node, credit: self.freed[node as usize] })
    }

    /// Records that the credit from [`Ring::credit_due`] was sent.
    pub(crate) fn mark_credit_returned(&mut self) {
        if let Some(node) = self.nodes_due.pop_front() {
            let freed = std::mem::take(&mut self.freed[node as usize]);
            self.used[node as usize] -= freed.min(self.used[node as usize]);
        }
    }
}

/// The memory of a ring's slots.
trait SlotMemory {
    /// Writes messages of `length` bytes each into the slots from number `first` on. Numbers count
    /// on beyond the end of the ring. Each slot gets its message, and then `header`. Returns the
    /// number of messages written, which is less than that of all messages if the memory is gone.
    fn put(&self, first: u64, header: u64, messages: &[u8], length: usize) -> u64;
}

/// Slots that lie in one mapping.
impl SlotMemory for Records<{ SLOT as usize }, &Window> {
    #[inline(always)]
    fn put(&self, first: u64, header: u64, messages: &[u8], length: usize) -> u64 {
        // Only the needed part of a slot is written: a short message takes one cache line, which
        // its reader fetches. Messages consist of whole quadwords, and most of them of one.
        let quadwords = messages.as_chunks::<QUADWORD>().0;
        if length == QUADWORD {
            self.put_words(first, header, quadwords);
            return quadwords.len() as u64;
        }

        let mut count = 0;
        for message in quadwords.chunks_exact(length / QUADWORD) {
            Records::put(self, first.wrapping_add(count), header, message);
            count += 1;
        }
        count
    }
}

/// Slots in a lease that may lie in several mappings.
struct ScatteredSlots<'a> {
    memory: &'a DmaLease,
    /// Number of slots minus 1.
    mask: u64,
}

impl SlotMemory for ScatteredSlots<'_> {
    fn put(&self, first: u64, header: u64, messages: &[u8], length: usize) -> u64 {
        let mut count = 0;
        for message in messages.chunks_exact(length) {
            let at = (first.wrapping_add(count) & self.mask) * SLOT;
            let written = self
                .memory
                .write(at + SLOT_DATA, message)
                .and_then(|()| self.memory.store_u64_release(at + SLOT_HEADER, header));
            if written.is_err() {
                break;
            }
            count += 1;
        }
        count
    }
}

/// The header of the packets of a row, and that of the slots into which their messages are put.
#[derive(Clone, Copy, Debug)]
struct Headers {
    packet: u64,
    slot: u64,
}

/// The slots of a ring that may be filled with messages of one node, while these are written.
/// Dropping this value adds the messages written to the counts of the ring.
struct Filling<'a> {
    /// Number of the next message.
    next: u64,
    /// Number of the first message for which the node has no slot.
    end: u64,
    /// [`Ring::delivered`].
    delivered: &'a mut u64,
    /// [`Ring::senders`].
    senders: &'a mut VecDeque<SlotsOfSender>,
    node: u16,
    /// The node's entry of [`Ring::used`]; `None` if the node does not exist.
    used: Option<&'a mut u32>,
}

impl Filling<'_> {
    /// Writes the messages of a row into slots: see [`Ring::put_row`].
    #[inline(always)]
    fn put_row(mut self, memory: &impl SlotMemory, headers: Headers, row: &mut impl PacketRow) -> Delivered {
        let length = PacketHeader::decode(headers.packet).quadwords * QUADWORD;
        let (mut undelivered, mut is_gone) = (0, false);

        while !is_gone
            && let Some(packet) = row.front()
            && packet.header == headers.packet
        {
            let bytes = packet.bytes();
            // The numbers fit: a packet has at most MAX_QUADWORDS messages.
            let count = (bytes.len() / length) as u32;
            let fitting = count.min(self.room());
            let messages = bytes.get(..fitting as usize * length).unwrap_or_default();

            let put = memory.put(self.next, headers.slot, messages, length);
            self.next = self.next.wrapping_add(put);
            is_gone = put < u64::from(fitting);
            undelivered += count - put as u32;
            row.remove_front();
        }

        Delivered { delivered: self.put_count(), undelivered, gone: is_gone }
    }

    /// As [`Filling::put_row`], for slots in several mappings. It is not inlined, because the loop
    /// for memory in one mapping needs all registers.
    #[inline(never)]
    fn put_scattered_row(
        self,
        memory: &ScatteredSlots<'_>,
        headers: Headers,
        row: &mut impl PacketRow,
    ) -> Delivered {
        self.put_row(memory, headers, row)
    }

    /// Returns the number of slots that are left for the node.
    #[inline(always)]
    fn room(&self) -> u32 {
        // The value fits: it is at most the node's share.
        self.end.wrapping_sub(self.next) as u32
    }

    /// Returns the number of messages written so far.
    #[inline]
    fn put_count(&self) -> u32 {
        // The value fits: it is at most the node's share.
        self.next.wrapping_sub(*self.delivered) as u32
    }
}

impl Drop for Filling<'_> {
    #[inline]
    fn drop(&mut self) {
        // Adds the messages written to the counts of the ring.
        let put = self.put_count();
        *self.delivered = self.next;
        match self.senders.back_mut() {
            Some(last) if last.node == self.node => last.slots += put,
            _ if put > 0 => self.senders.push_back(SlotsOfSender { node: self.node, slots: put }),
            _ => {}
        }
        if let Some(used) = &mut self.used {
            **used += put;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_the_slots_equally() {
        assert_eq!([1, 3, 64].map(|nodes| share_of(64, nodes)), [64, 21, 1]);
    }
}
