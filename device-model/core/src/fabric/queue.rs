//! The packets on a lane, in order: a ring with one slot for each credit of the lane.

use super::Packet;

/// A ring of packets.
pub(super) struct Queue {
    /// Slots, a power of two. Those from `first` on hold `length` packets.
    places: Box<[Option<Packet>]>,
    first: usize,
    length: usize,
}

impl Queue {
    /// Returns a queue with room for `packets` packets.
    pub(super) fn new(packets: u32) -> Self {
        let places = (0..packets.next_power_of_two()).map(|_| None).collect();
        Self { places, first: 0, length: 0 }
    }

    /// Returns the slot of the packet at position `behind`, counted from the front.
    #[inline]
    fn place(&self, behind: usize) -> usize {
        (self.first + behind) & (self.places.len() - 1)
    }

    /// Adds a packet. There is a free slot, because each packet on a lane uses one of its credits.
    #[inline(always)]
    pub(super) fn push(&mut self, packet: Packet) {
        debug_assert!(self.length < self.places.len(), "more packets than credits");

        let place = self.place(self.length);
        // The slot is empty, so the assignment drops nothing. The pattern shows that to the
        // compiler.
        if let Some(place @ None) = self.places.get_mut(place) {
            *place = Some(packet);
            self.length += 1;
        }
    }

    /// Removes the first packet.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let place = self.place(0);
        let packet = self.places.get_mut(place)?.take()?;
        self.first = place + 1;
        self.length -= 1;

        Some(packet)
    }

    /// Returns the packet at position `behind`, counted from the front.
    #[inline]
    pub(super) fn get(&self, behind: usize) -> Option<&Packet> {
        self.places.get(self.place(behind))?.as_ref()
    }

    /// Takes the packet at position `behind`, after all packets in front of it were taken in the
    /// same way. The caller must call [`Queue::skip`] afterwards.
    #[inline]
    pub(super) fn take(&mut self, behind: usize) -> Option<Packet> {
        let place = self.place(behind);
        self.places.get_mut(place)?.take()
    }

    /// Takes the packet as [`Queue::take`] does, if `wanted` returns true for it.
    #[inline(always)]
    pub(super) fn take_if(&mut self, behind: usize, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        let place = self.place(behind);
        let place = self.places.get_mut(place)?;
        if place.as_ref().is_some_and(wanted) { place.take() } else { None }
    }

    /// Frees the slots of the first `packets` packets, which [`Queue::take`] has emptied.
    #[inline]
    pub(super) fn skip(&mut self, packets: usize) {
        self.first = self.place(packets);
        self.length -= packets;
    }

    /// Moves the first packets to the end of another queue while `goes` returns true. At most
    /// `most` packets move, and no more than the other queue has room for. Returns their number and
    /// their bytes on the wire.
    // Not inlined: on its own, the loop keeps all its variables in registers.
    #[inline(never)]
    pub(super) fn move_to(
        &mut self,
        to: &mut Self,
        most: usize,
        goes: impl Fn(&Packet) -> bool,
    ) -> (usize, u64) {
        let most = most.min(self.length).min(to.places.len() - to.length);
        let (first, behind) = (self.first, to.first + to.length);
        let (from, into) = (&mut *self.places, &mut *to.places);
        let (from_mask, into_mask) = (from.len() - 1, into.len() - 1);
        let (mut moved, mut bytes) = (0, 0);

        while moved < most {
            let (Some(from), Some(into)) =
                (from.get_mut((first + moved) & from_mask), into.get_mut((behind + moved) & into_mask))
            else {
                break;
            };
            match from {
                Some(packet) if goes(packet) => bytes += packet.wire_bytes(),
                _ => break,
            }

            // A swap with the empty slot drops nothing.
            std::mem::swap(from, into);
            moved += 1;
        }

        self.skip(moved);
        to.length += moved;

        (moved, bytes)
    }

    /// Returns the first packet.
    #[inline]
    pub(super) fn front(&self) -> Option<&Packet> {
        self.get(0)
    }

    /// Returns the first packet for changes in place.
    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut Packet> {
        let place = self.place(0);
        self.places.get_mut(place)?.as_mut()
    }
}
