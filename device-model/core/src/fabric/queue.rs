//! Packets on a lane, in order: a ring with room for as many as the lane has credits.

use super::Packet;

/// See the module.
pub(super) struct Queue {
    /// A power of two of places; those that hold a packet begin at `first` and are `length`.
    places: Box<[Option<Packet>]>,
    first: usize,
    length: usize,
}

impl Queue {
    /// Room for `packets`.
    pub(super) fn new(packets: u32) -> Self {
        let places = (0..packets.next_power_of_two()).map(|_| None).collect();
        Self { places, first: 0, length: 0 }
    }

    /// Where the packet is that `behind` others are in front of.
    #[inline]
    fn place(&self, behind: usize) -> usize {
        (self.first + behind) & (self.places.len() - 1)
    }

    /// Adds a packet. There is room: each packet on a lane has one of its credits.
    #[inline(always)]
    pub(super) fn push(&mut self, packet: Packet) {
        debug_assert!(self.length < self.places.len(), "more packets than credits");
        let place = self.place(self.length);
        // An empty place, so that nothing is dropped.
        if let Some(place @ None) = self.places.get_mut(place) {
            *place = Some(packet);
            self.length += 1;
        }
    }

    /// Takes the first packet.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let place = self.place(0);
        let packet = self.places.get_mut(place)?.take()?;
        self.first = place + 1;
        self.length -= 1;
        Some(packet)
    }

    /// The packet that `behind` others are in front of.
    #[inline]
    pub(super) fn get(&self, behind: usize) -> Option<&Packet> {
        self.places.get(self.place(behind))?.as_ref()
    }

    /// Takes the packet that `behind` others were in front of, which were taken so too:
    /// [`Queue::skip`] follows.
    #[inline]
    pub(super) fn take(&mut self, behind: usize) -> Option<Packet> {
        let place = self.place(behind);
        self.places.get_mut(place)?.take()
    }

    /// As [`Queue::take`], if `wanted` says so of the packet.
    #[inline(always)]
    pub(super) fn take_if(&mut self, behind: usize, wanted: impl FnOnce(&Packet) -> bool) -> Option<Packet> {
        let place = self.place(behind);
        let place = self.places.get_mut(place)?;
        if place.as_ref().is_some_and(wanted) { place.take() } else { None }
    }

    /// So many of the first packets were taken.
    #[inline]
    pub(super) fn skip(&mut self, packets: usize) {
        self.first = self.place(packets);
        self.length -= packets;
    }

    /// Moves the first packets to the end of another queue as long as `goes` says so: `most` of
    /// them at most, and no more than there are and there is room for. Gives how many, and how many
    /// bytes they have on the wire.
    // By itself the loop has all it needs in registers.
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
            // With the empty place: nothing to drop.
            std::mem::swap(from, into);
            moved += 1;
        }

        self.skip(moved);
        to.length += moved;

        (moved, bytes)
    }

    /// The first packet.
    #[inline]
    pub(super) fn front(&self) -> Option<&Packet> {
        self.get(0)
    }

    /// The first packet, to be changed in place.
    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut Packet> {
        let place = self.place(0);
        self.places.get_mut(place)?.as_mut()
    }
}
