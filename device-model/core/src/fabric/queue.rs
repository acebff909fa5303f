//! The packets on a lane, in order: a ring that grows to the most packets that it has held.

use nicforge_shm::prefetch;

use super::Packet;

/// Number of slots that a queue gets with its first packet.
const FIRST_SLOTS: usize = 4;

/// A ring of packets.
pub(super) struct Queue {
    /// Slots, a power of two or none.
    slots: Box<[Option<Packet>]>,
    /// Index of the first packet's slot, modulo the number of slots. The others follow it.
    first: u32,
    /// Number of packets.
    length: u32,
}

impl Queue {
    /// Returns a queue without slots.
    pub(super) fn new() -> Self {
        Self { slots: Box::default(), first: 0, length: 0 }
    }

    /// Returns the index of the slot of the packet at a position, counted from the front.
    #[inline]
    fn slot_index(&self, position: usize) -> usize {
        (self.first as usize + position) & self.slots.len().wrapping_sub(1)
    }

    /// Adds a packet.
    #[inline(always)]
    pub(super) fn push(&mut self, packet: Packet) {
        let slot = self.slot_index(self.length as usize);
        // The slot is empty, so the assignment drops nothing. The pattern shows that to the
        // compiler.
        if let Some(slot @ None) = self.slots.get_mut(slot) {
            *slot = Some(packet);
            self.length += 1;
        } else {
            self.grow_and_push(packet);
        }
    }

    /// Adds a packet to a full queue.
    #[cold]
    #[inline(never)]
    fn grow_and_push(&mut self, packet: Packet) {
        self.grow();
        let slot = self.slot_index(self.length as usize);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some(packet);
            self.length += 1;
        }
    }

    /// Doubles the number of slots, and moves the packets to the first ones. The credits of the
    /// lane bound the number.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let new_length = (2 * self.slots.len()).max(FIRST_SLOTS);
        let packets = (0..self.slots.len()).map(|position| self.take(position)).collect::<Vec<_>>();
        self.slots = packets.into_iter().chain(std::iter::repeat_with(|| None)).take(new_length).collect();
        self.first = 0;
    }

    /// Makes room for this many more packets.
    #[inline]
    pub(super) fn reserve(&mut self, packets: usize) {
        while self.slots.len() - (self.length as usize) < packets {
            self.grow();
        }
    }

    /// Removes the first packet.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let slot = self.slot_index(0);
        let packet = self.slots.get_mut(slot)?.take()?;
        self.first = slot as u32 + 1;
        self.length -= 1;

        Some(packet)
    }

    /// Returns the packet at a position, counted from the front.
    #[inline]
    pub(super) fn get(&self, position: usize) -> Option<&Packet> {
        self.slots.get(self.slot_index(position))?.as_ref()
    }

    /// Takes the packet at a position, counted from the front, after all packets in front of it
    /// were taken in the same way. Its slot counts as used until the caller calls [`Queue::skip`].
    #[inline]
    pub(super) fn take(&mut self, position: usize) -> Option<Packet> {
        let slot = self.slot_index(position);
        self.slots.get_mut(slot)?.take()
    }

    /// Takes the packet as [`Queue::take`] does, if `wanted` returns true for it.
    #[inline(always)]
    pub(super) fn take_if(
        &mut self,
        position: usize,
        wanted: &mut impl FnMut(&Packet) -> bool,
    ) -> Option<Packet> {
        let slot = self.slot_index(position);
        let slot = self.slots.get_mut(slot)?;
        // A plain call, and not `Option::is_some_and`, after which it would not be inlined.
        let is_wanted = match slot {
            Some(packet) => wanted(packet),
            None => false,
        };
        if is_wanted { slot.take() } else { None }
    }

    /// Frees the slots of the first `packets` packets, which [`Queue::take`] has emptied.
    #[inline]
    pub(super) fn skip(&mut self, packets: usize) {
        self.first = self.slot_index(packets) as u32;
        self.length -= packets as u32;
    }

    /// Moves the first packets to the end of another queue while `goes` returns true, at most
    /// `maximum`. Reports them in `moved`, also if `goes` panics.
    // Not inlined: on its own, the loop keeps all its variables in registers.
    #[inline(never)]
    pub(super) fn move_to(
        &mut self,
        to: &mut Self,
        maximum: usize,
        moved: &mut Moved,
        goes: impl Fn(&Packet) -> bool,
    ) {
        let maximum = maximum.min(self.length as usize);
        to.reserve(maximum);
        let (first, end) = (self.first as usize, (to.first + to.length) as usize);
        let mut row = Move { from: self, to, moved, packets: 0, bytes: 0 };
        let (sources, targets) = (&mut *row.from.slots, &mut *row.to.slots);
        let (source_mask, target_mask) = (sources.len().wrapping_sub(1), targets.len().wrapping_sub(1));

        while row.packets < maximum {
            let (Some(source), Some(target)) = (
                sources.get_mut((first + row.packets) & source_mask),
                targets.get_mut((end + row.packets) & target_mask),
            ) else {
                break;
            };
            match source {
                Some(packet) if goes(packet) => row.bytes += packet.wire_bytes(),
                _ => break,
            }

            // A swap with the empty slot drops nothing.
            std::mem::swap(source, target);
            row.packets += 1;
        }
    }

    /// Returns the number of packets.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.length
    }

    /// Returns the first packet.
    #[inline]
    pub(super) fn front(&self) -> Option<&Packet> {
        self.get(0)
    }

    /// Has the processor load the slot of the first packet.
    #[inline]
    pub(super) fn prefetch_front(&self) {
        if let Some(slot) = self.slots.get(self.slot_index(0)) {
            prefetch(slot);
        }
    }

    /// Returns the first packet for changes in place.
    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut Packet> {
        let slot = self.slot_index(0);
        self.slots.get_mut(slot)?.as_mut()
    }
}

/// Packets that [`Queue::move_to`] moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Number of packets.
    pub(super) packets: u32,
    /// Their bytes on the wire.
    pub(super) bytes: u64,
}

/// A move of packets between two queues. Its drop completes the move.
struct Move<'a> {
    from: &'a mut Queue,
    to: &'a mut Queue,
    moved: &'a mut Moved,
    packets: usize,
    bytes: u64,
}

impl Drop for Move<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.from.skip(self.packets);
        self.to.length += self.packets as u32;
        *self.moved = Moved { packets: self.packets as u32, bytes: self.bytes };
    }
}
