//! A VPID's receive ring: slots in memory of its own, which the card fills and its owner empties.
//!
//! The slots are shared out among the nodes of the network. A slot that its owner has given back is owed to the node whose message was in it; what is
//! owed goes back in batches of half a share, so that a sender that has used up its share always gets some back when its messages are read.

use std::collections::VecDeque;

use nicforge_core::dma::DmaLease;
use nicforge_hwi::extoll_velo::{MAX_MESSAGE, MAX_SLOTS, MIN_SLOTS, SLOT, SLOT_DATA, SLOT_HEADER};
use nicforge_shm::Window;

/// Where a ring is, as its owner's registers say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base: u64,
    pub(crate) slots: u64,
}

impl Place {
    /// Whether a network of so many nodes can use it.
    pub(crate) fn is_sound(self, nodes: u32) -> bool {
        self.slots.is_power_of_two()
            && (MIN_SLOTS..=MAX_SLOTS).contains(&self.slots)
            && self.slots >= u64::from(nodes)
            && self.base.is_multiple_of(4096)
            && self.base.checked_add(self.slots * SLOT).is_some()
    }

    /// Slots that each node gets.
    pub(crate) fn share(self, nodes: u32) -> u32 {
        // At most MAX_SLOTS.
        (self.slots / u64::from(nodes.max(1))) as u32
    }
}

/// What became of a message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is in the ring.
    Done,
    /// Its sender had no credit for it, which happens only around the reset of a card.
    NoCredit,
    /// The ring's memory is not there any more.
    MemoryGone,
}

/// A message of a quadword follows its slot's header.
const _: () = assert!(SLOT_DATA == SLOT_HEADER + 8);

/// An enabled ring.
pub(crate) struct Ring {
    memory: DmaLease,
    slots: u64,
    /// Messages put in so far, and messages that its owner has taken out.
    delivered: u64,
    taken: u64,
    /// By slot: the node whose message is in it.
    from: Vec<u16>,
    /// By node: slots given back that it has not been told of.
    owed: Vec<u32>,
    /// By node: slots that are its own, less those that it may fill: its messages that were not read, and what is owed.
    used: Vec<u32>,
    share: u32,
    batch: u32,
    /// Nodes that are owed a batch. Each is in it at most once, since what is owed is paid as a whole.
    due: VecDeque<u32>,
}

impl Ring {
    pub(crate) fn new(memory: DmaLease, place: Place, nodes: u32) -> Self {
        let share = place.share(nodes);
        Self {
            memory,
            slots: place.slots,
            delivered: 0,
            taken: 0,
            from: vec![0; place.slots as usize],
            owed: vec![0; nodes as usize],
            used: vec![0; nodes as usize],
            share,
            batch: (share / 2).max(1),
            due: VecDeque::with_capacity(nodes as usize),
        }
    }

    /// What a node may still send: all of its share but what lies unread or is owed.
    pub(crate) fn left_to(&self, node: u32) -> u32 {
        self.share - self.used.get(node as usize).copied().unwrap_or(self.share).min(self.share)
    }

    /// Whether there are messages that its owner has not taken.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.delivered != self.taken
    }

    /// For messages of a node that are put in in a row. `None`: the ring's memory is not in one mapping, or not there any more: what
    /// [`Ring::put_one`] says.
    #[inline]
    pub(crate) fn fill(&mut self, node: u32) -> Option<Filling<'_>> {
        let memory = self.memory.whole()?;
        let used = self.used.get_mut(node as usize);
        let room = used.as_ref().map_or(0, |used| self.share.saturating_sub(**used));
        let next = self.delivered;
        Some(Filling {
            memory,
            mask: self.slots - 1,
            next,
            end: next.wrapping_add(room.into()),
            delivered: &mut self.delivered,
            from: &mut self.from,
            node: node as u16,
            used,
        })
    }

    /// Puts a message of a node in, whatever mappings its slot lies in. Apart from [`Ring::fill`], which knows of one only and is the faster for it.
    #[inline(never)]
    pub(crate) fn put_one(&mut self, node: u32, header: u64, message: &[u8]) -> Put {
        let used = self.used.get_mut(node as usize).filter(|used| **used < self.share);
        let Some(used) = used.filter(|_| message.len() <= MAX_MESSAGE) else { return Put::NoCredit };
        let index = self.delivered & (self.slots - 1);
        let at = index * SLOT;
        let written = self
            .memory
            .write(at + SLOT_DATA, message)
            .and_then(|()| self.memory.store_u64_release(at + SLOT_HEADER, header));
        let (Ok(()), Some(from)) = (written, self.from.get_mut(index as usize)) else {
            return Put::MemoryGone;
        };
        *from = node as u16;
        *used += 1;
        self.delivered += 1;
        Put::Done
    }

    /// The owner says how many messages it has taken so far. False when that makes no sense.
    pub(crate) fn taken(&mut self, taken: u64) -> bool {
        if taken < self.taken || taken > self.delivered {
            return false;
        }
        let from = |at: u64| self.from.get((at & (self.slots - 1)) as usize).copied();
        while self.taken < taken
            && let Some(node) = from(self.taken)
        {
            // Those of a node that come in a row are counted together.
            let start = self.taken;
            while self.taken < taken && from(self.taken) == Some(node) {
                self.taken += 1;
            }
            let owed = &mut self.owed[usize::from(node)];
            let before = *owed;
            *owed += (self.taken - start) as u32;
            if before < self.batch && *owed >= self.batch {
                self.due.push_back(node.into());
            }
        }
        true
    }

    /// Whom something is owed, a batch at least.
    #[inline]
    pub(crate) fn due(&self) -> Option<(u32, u32)> {
        let node = *self.due.front()?;
        Some((node, self.owed[node as usize]))
    }

    /// What [`Ring::due`] said was sent.
    pub(crate) fn paid(&mut self) {
        if let Some(node) = self.due.pop_front() {
            let owed = std::mem::take(&mut self.owed[node as usize]);
            self.used[node as usize] -= owed.min(self.used[node as usize]);
        }
    }
}

/// A ring into which messages of one node are put in a row. They count when this is dropped.
pub(crate) struct Filling<'a> {
    memory: &'a Window,
    mask: u64,
    /// The next message, counted like all that were delivered, and the first one that the node has no slot for.
    next: u64,
    end: u64,
    delivered: &'a mut u64,
    from: &'a mut [u16],
    node: u16,
    used: Option<&'a mut u32>,
}

impl Filling<'_> {
    /// Puts a message in.
    #[inline(always)]
    pub(crate) fn put(&mut self, header: u64, message: &[u8]) -> Put {
        if self.next == self.end {
            return Put::NoCredit;
        }
        let index = self.next & self.mask;
        let at = index * SLOT;
        // No more of the slot than the message needs: a short one takes one cache line, which its reader fetches.
        let written = match *message {
            [a, b, c, d, e, f, g, h] => {
                let quadword = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                self.memory.store_record(at + SLOT_HEADER, header, quadword)
            }
            _ if message.len() <= MAX_MESSAGE => self
                .memory
                .write(at + SLOT_DATA, message)
                .and_then(|()| self.memory.store_u64_release(at + SLOT_HEADER, header)),
            _ => return Put::NoCredit,
        };
        let (Ok(()), Some(from)) = (written, self.from.get_mut(index as usize)) else {
            return Put::MemoryGone;
        };
        *from = self.node;
        self.next = self.next.wrapping_add(1);
        Put::Done
    }

    /// Messages that were put in so far.
    #[inline]
    pub(crate) fn put_in(&self) -> u32 {
        // At most the node's share.
        self.next.wrapping_sub(*self.delivered) as u32
    }
}

impl Drop for Filling<'_> {
    #[inline]
    fn drop(&mut self) {
        let put = self.put_in();
        *self.delivered = self.next;
        if let Some(used) = &mut self.used {
            **used += put;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_cannot_be_are_unsound() {
        let sound = Place { base: 0x1000, slots: 64 };
        assert!(sound.is_sound(1) && sound.is_sound(64));
        let unsound = [
            Place { base: 0x1008, ..sound },
            Place { slots: 0, ..sound },
            Place { slots: 63, ..sound },
            Place { slots: 32, ..sound },
            Place { slots: 1 << 17, ..sound },
            Place { base: 0xffff_ffff_ffff_f000, ..sound },
        ];
        assert!(unsound.iter().all(|place| !place.is_sound(1)));
        assert!(!sound.is_sound(65));
        assert_eq!(sound.share(3), 21);
    }
}
