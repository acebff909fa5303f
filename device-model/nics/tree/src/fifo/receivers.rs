//! Packets in the receive FIFO whose receiver is gone.
//!
//! A packet can name its core. If that core has no client, the packet has no receiver. A packet
//! that names no core is for the core that reads the FIFO, which is the owner of the FIFO's lock.
//! If the owner dies, the packet has no receiver until another core takes the lock.

use std::sync::atomic::Ordering;

use nicforge_hwi::{
    tree::{CORES, Header},
    tree_dcr::LOCK_OWNER_NIC,
};
use nicforge_shm::SharedU32;

use super::{Discarded, events::Events, memory::ReceiveMemory, receive::ReceiveFifo};

/// The receivers of a channel's packets, as far as they are gone.
pub(super) struct Receivers {
    /// Cores that have no client, one bit for each core. Always 0 in the system channel, where
    /// packets for cores are like all others.
    absent: u32,
    /// A core has left since the packets before this number arrived, and they may be for that core.
    /// The packet at the front of the FIFO is checked until the head has come to this number.
    check_front_until: Option<u32>,
    reader: Reader,
}

/// The core that reads the packets that name no core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// No owner of the receive lock has died since a core last took the lock.
    Alive,
    /// The owner of the receive lock died, and no core has taken the lock since.
    Dead,
}

impl Receivers {
    /// Returns the receivers of the user channel's packets. No core has a client.
    pub(super) fn of_user_channel() -> Self {
        Self { absent: (1 << CORES) - 1, ..Self::of_system_channel() }
    }

    /// Returns the receivers of the system channel's packets.
    pub(super) fn of_system_channel() -> Self {
        Self { absent: 0, check_front_until: None, reader: Reader::Alive }
    }

    /// Starts again with an empty FIFO.
    pub(super) fn restart(&mut self) {
        self.check_front_until = None;
        self.reader = Reader::Alive;
    }

    /// Records that a core has a client.
    pub(super) fn attach(&mut self, core: u16) {
        self.absent &= !(1 << core);
    }

    /// Records that a core has lost its client. In an open channel `tail` is the receive FIFO's:
    /// packets for the core up to there no longer have a receiver.
    pub(super) fn detach(&mut self, core: u16, tail: Option<u32>) {
        self.absent |= 1 << core;
        self.check_front_until = tail.or(self.check_front_until);
    }

    /// Records that the owner of the receive lock has died.
    pub(super) fn reader_died(&mut self) {
        self.reader = Reader::Dead;
    }

    /// Records that software has freed `packets` packets. Only a core that has the lock does so, so
    /// a live reader has had the lock since.
    #[inline]
    pub(super) fn note_freed(&mut self, packets: u32) {
        if packets != 0 {
            self.reader = Reader::Alive;
        }
    }

    /// Returns whether a packet that arrives has a receiver, or may get one. `irq_count` is the
    /// number of packets with the irq bit in the FIFO.
    #[inline]
    pub(super) fn check_receiver(&mut self, memory: &ReceiveMemory, header: Header, irq_count: u32) -> bool {
        if self.is_for_absent(header) {
            return false;
        }

        // A packet with the irq bit in the FIFO may be for a live core, such as the acknowledgement
        // that it waits for. Then the packets after it may be for that core, too.
        if self.reader == Reader::Dead && is_for_reader(header) && irq_count == 0 {
            if memory.lock.load(Ordering::Acquire) == 0 {
                return false;
            }
            self.reader = Reader::Alive;
        }

        true
    }

    /// Returns whether a packet is for a core that has no client.
    #[inline]
    fn is_for_absent(&self, header: Header) -> bool {
        self.absent != 0 && header.core().is_some_and(|core| self.absent & (1 << core) != 0)
    }

    /// Returns whether the owner in a lock box is a core without a client.
    fn is_absent_owner(&self, owner: u32) -> bool {
        // The lower half of the word is the owner's attachment number + 1.
        let core = (owner & 0xffff).wrapping_sub(1);
        core < u32::from(CORES) && self.absent & (1 << core) != 0
    }
}

/// Returns whether a packet is for the reader of the FIFO: it has neither an irq bit nor a core's
/// name that would assign it to another core.
#[inline]
fn is_for_reader(header: Header) -> bool {
    !header.irq() && header.core().is_none()
}

/// Takes the receive lock from `owner` for the NIC. Returns false if `owner` does not have it.
fn take_lock(lock: &SharedU32, owner: u32) -> bool {
    lock.compare_exchange(owner, LOCK_OWNER_NIC, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Discarding at the front of the FIFO. The NIC holds the receive lock meanwhile, so that no core
/// reads a packet that is being discarded.
impl ReceiveFifo {
    /// Discards packets for cores without a client from the front of the FIFO.
    #[inline]
    pub(super) fn discard_for_absent(&mut self, memory: &ReceiveMemory, events: &mut Events) -> Discarded {
        match self.receivers.check_front_until {
            None => Discarded::default(),
            Some(until) => self.discard_front_for_absent(memory, until, events),
        }
    }

    /// Discards packets for cores without a client from the front of the FIFO, while a live core
    /// does not have the receive lock. Only packets before number `until` may be for such a core:
    /// once the head has come there, the front is not checked any more.
    #[cold]
    fn discard_front_for_absent(
        &mut self,
        memory: &ReceiveMemory,
        until: u32,
        events: &mut Events,
    ) -> Discarded {
        let remaining = until.wrapping_sub(self.head());
        if remaining == 0 || remaining > self.count() {
            self.receivers.check_front_until = None;
            return Discarded::default();
        }

        if !self.front_is_for_absent(memory) {
            return Discarded::default();
        }

        let owner = memory.lock.load(Ordering::Acquire);
        // A core can hand the lock over to a core that has just left, so that no event frees it.
        let is_free = owner == 0 || self.receivers.is_absent_owner(owner);
        if !is_free || !take_lock(&memory.lock, owner) {
            return Discarded { any: false, locked: true };
        }

        self.poll_head(memory, events);
        let before = self.discarded;
        while self.front_is_for_absent(memory) {
            self.free_one();
            self.discarded += 1;
        }

        self.store_head(memory);
        memory.lock.store(0, Ordering::Release);

        Discarded { any: self.discarded != before, locked: false }
    }

    /// Returns whether the packet at the front is for a core without a client.
    fn front_is_for_absent(&self, memory: &ReceiveMemory) -> bool {
        self.header(memory, self.head()).is_some_and(|header| self.receivers.is_for_absent(header))
    }

    /// Discards packets from the front of the FIFO while the owner of the receive lock is dead and
    /// no core has taken it. Only packets for the reader are discarded. Returns whether any packet
    /// was discarded.
    #[inline]
    pub(super) fn discard_for_dead_reader(&mut self, memory: &ReceiveMemory, events: &mut Events) -> bool {
        self.receivers.reader == Reader::Dead && self.discard_front_for_reader(memory, events)
    }

    /// Discards packets for the reader from the front of the FIFO, if no core has taken the receive
    /// lock since its owner died. Returns whether any packet was discarded.
    #[cold]
    fn discard_front_for_reader(&mut self, memory: &ReceiveMemory, events: &mut Events) -> bool {
        if !self.front_is_for_reader(memory) {
            return false;
        }

        if !take_lock(&memory.lock, 0) {
            self.receivers.reader = Reader::Alive;
            return false;
        }

        self.poll_head(memory, events);
        let before = self.discarded;
        while self.receivers.reader == Reader::Dead && self.front_is_for_reader(memory) {
            self.free_one();
            self.discarded += 1;
        }

        let any = self.discarded != before;
        if any {
            self.store_head(memory);
        }

        memory.lock.store(0, Ordering::Release);
        any
    }

    /// Returns whether the packet at the front is for the reader.
    fn front_is_for_reader(&self, memory: &ReceiveMemory) -> bool {
        self.header(memory, self.head()).is_some_and(is_for_reader)
    }
}
