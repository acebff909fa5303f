//! Places for packets on virtual channels that have the bubble rule.
//!
//! A ring with the bubble rule always has a place for a packet of the longest kind. Credits that
//! count bytes do not show that: a short packet that moves on leaves a gap in two buffers, and no
//! long packet fits into either. A buffer of the bubble rule therefore has *slots* for packets of
//! the longest kind, and a packet of any length takes one.
//!
//! The sender counts them. It takes the oldest packets as gone whose credits have returned in sum.
//! Packets of one buffer begin to leave in their order, but the tail of a short one can leave
//! before that of a long one in front of it. The packets that have not begun to leave are the
//! youngest, and their credits are missing: the count is never less than their number.

use nicforge_core::fabric::MAX_CHANNELS;

/// The virtual channels with the bubble rule, which are the same at all ports and nodes.
#[derive(Debug)]
pub(super) struct BubbleChannels {
    /// The virtual channels with the rule, one bit for each.
    vcs: u16,
    /// The empty buffer of each virtual channel with the rule.
    empty: Vec<Buffer>,
    /// Maximum number of slots of a buffer.
    most_slots: usize,
}

/// Slots of the virtual channels with the bubble rule, for all ports of a router.
#[derive(Debug)]
pub(super) struct Slots {
    /// State by port and virtual channel with the rule.
    buffers: Vec<Buffer>,
    /// Rings of the credits that packets took, one for each buffer.
    taken: Vec<u32>,
}

/// The packets that have been sent to a buffer and that may still be there.
#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    /// Slots in total.
    slots: u32,
    /// Credits in total.
    credits: u32,
    /// Position of the oldest packet in its ring.
    first: u32,
    /// Number of packets.
    packets: u32,
    /// Credits that these packets took.
    sum: u32,
}

impl BubbleChannels {
    /// Returns the virtual channels with the rule. Each virtual channel has a number of credits,
    /// and `vcs` has a bit for each that has the rule. The longest packet takes `longest` credits.
    pub(super) fn new(credits: &[u32], vcs: u16, longest: u32) -> Self {
        let mut empty = Vec::new();
        for (_, &credits) in credits.iter().enumerate().filter(|(vc, _)| vcs >> vc & 1 == 1) {
            empty.push(Buffer { slots: credits / longest.max(1), credits, ..Buffer::default() });
        }

        let most_slots = empty.iter().map(|buffer| buffer.slots as usize).max().unwrap_or(0);
        Self { vcs, empty, most_slots }
    }

    /// Returns whether a virtual channel has the rule.
    #[inline]
    pub(super) fn has(&self, vc: usize) -> bool {
        self.vcs >> (vc % MAX_CHANNELS) & 1 == 1
    }

    /// Returns the index of the buffer of a virtual channel, which must have the rule.
    #[inline]
    fn buffer(&self, port: u8, vc: usize) -> usize {
        let before = self.vcs & ((1 << (vc % MAX_CHANNELS)) - 1);
        usize::from(port) * self.empty.len() + before.count_ones() as usize
    }
}

impl Slots {
    /// Returns the empty buffers of `ports` ports.
    pub(super) fn new(ports: u8, bubble_channels: &BubbleChannels) -> Self {
        let buffers = bubble_channels.empty.repeat(usize::from(ports));
        let taken = vec![0; buffers.len() * bubble_channels.most_slots];
        Self { buffers, taken }
    }

    /// Returns the number of free slots of a virtual channel, which must have the rule and has
    /// `credits` credits left.
    #[inline]
    pub(super) fn free(
        &mut self,
        bubble_channels: &BubbleChannels,
        port: u8,
        vc: usize,
        credits: u32,
    ) -> u32 {
        let (index, stride) = (bubble_channels.buffer(port, vc), bubble_channels.most_slots);
        let buffer = &mut self.buffers[index];
        let missing = buffer.credits.saturating_sub(credits);

        // Packets that took one credit each leave together.
        if buffer.sum == buffer.packets && missing < buffer.packets {
            let gone = buffer.packets - missing;
            (buffer.packets, buffer.sum) = (missing, missing);
            buffer.first += gone;
            if buffer.first >= stride as u32 {
                buffer.first -= stride as u32;
            }
        }
        while buffer.packets > 0 {
            let oldest = self.taken[index * stride + buffer.first as usize];
            if buffer.sum - oldest < missing {
                break;
            }
            buffer.sum -= oldest;
            buffer.packets -= 1;
            buffer.first += 1;
            if buffer.first == stride as u32 {
                buffer.first = 0;
            }
        }
        buffer.slots - buffer.packets
    }

    /// Returns the credits at which a virtual channel has `slots` free slots, after
    /// [`Slots::free`]. It has `credits` credits and fewer slots now.
    pub(super) fn credits_until(
        &self,
        bubble_channels: &BubbleChannels,
        (port, vc): (u8, usize),
        credits: u32,
        slots: u32,
    ) -> u32 {
        let (index, stride) = (bubble_channels.buffer(port, vc), bubble_channels.most_slots);
        let buffer = &self.buffers[index];
        let leaving = slots.saturating_sub(buffer.slots - buffer.packets).min(buffer.packets);

        let ring = &self.taken[index * stride..][..stride];
        let (mut oldest, mut position) = (0, buffer.first as usize);
        for _ in 0..leaving {
            oldest += ring[position];
            position = if position + 1 == stride { 0 } else { position + 1 };
        }
        let missing = buffer.credits.saturating_sub(credits);

        // Some credits of the oldest packet cannot have returned, since they return together.
        let returned = buffer.sum.saturating_sub(missing);
        credits + oldest.saturating_sub(returned)
    }

    /// Records a packet that took `credits` credits.
    #[inline]
    pub(super) fn take(&mut self, bubble_channels: &BubbleChannels, port: u8, vc: usize, credits: u32) {
        let (index, stride) = (bubble_channels.buffer(port, vc), bubble_channels.most_slots);
        let buffer = &mut self.buffers[index];
        if buffer.packets < buffer.slots {
            let last = (buffer.first + buffer.packets) % stride as u32;
            self.taken[index * stride + last as usize] = credits;
            buffer.packets += 1;
            buffer.sum += credits;
        }
    }
}

impl Slots {
    /// Records packets that took one credit each.
    #[inline]
    pub(super) fn take_row(&mut self, bubble_channels: &BubbleChannels, port: u8, vc: usize, packets: u32) {
        let (index, stride) = (bubble_channels.buffer(port, vc), bubble_channels.most_slots);
        let buffer = &mut self.buffers[index];
        let packets = packets.min(buffer.slots - buffer.packets);

        let ring = &mut self.taken[index * stride..][..stride];
        let first = (buffer.first + buffer.packets) as usize % stride.max(1);
        let until_end = (packets as usize).min(stride - first);
        ring[first..first + until_end].fill(1);
        ring[..packets as usize - until_end].fill(1);

        buffer.packets += packets;
        buffer.sum += packets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a port with two virtual channels of 32 credits. The second has the bubble rule, and
    /// slots of 8 credits.
    fn slots() -> (BubbleChannels, Slots) {
        let bubble_channels = BubbleChannels::new(&[32, 32], 0b10, 8);
        let slots = Slots::new(1, &bubble_channels);
        (bubble_channels, slots)
    }

    #[test]
    fn a_packet_of_any_length_takes_a_slot() {
        let (bubble_channels, mut slots) = slots();
        let free = slots.free(&bubble_channels, 0, 1, 32);
        assert_eq!((bubble_channels.has(0), bubble_channels.has(1), free), (false, true, 4));

        slots.take(&bubble_channels, 0, 1, 1);
        slots.take(&bubble_channels, 0, 1, 8);
        slots.take(&bubble_channels, 0, 1, 2);

        assert_eq!(slots.free(&bubble_channels, 0, 1, 21), 1);
    }

    #[test]
    fn a_row_takes_slots_as_its_packets_do_one_by_one() {
        let (bubble_channels, mut rows) = slots();
        let (_, mut single) = slots();

        for (taken, credits) in [(3, 31), (1, 28), (2, 32), (9, 28), (0, 29), (1, 32), (4, 30), (0, 28)] {
            rows.take_row(&bubble_channels, 0, 1, taken);
            (0..taken).for_each(|_| single.take(&bubble_channels, 0, 1, 1));

            let free = |slots: &mut Slots| slots.free(&bubble_channels, 0, 1, credits);
            assert_eq!(free(&mut rows), free(&mut single));
            let until = |slots: &Slots| {
                [2, 3, 4].map(|of| slots.credits_until(&bubble_channels, (0, 1), credits, of))
            };
            assert_eq!(until(&rows), until(&single), "{taken} {credits}");
        }
    }

    #[test]
    fn slots_return_with_the_credits_of_the_oldest_packets() {
        let (bubble_channels, mut slots) = slots();
        for credits in [1, 8, 2] {
            slots.take(&bubble_channels, 0, 1, credits);
        }

        assert_eq!(slots.credits_until(&bubble_channels, (0, 1), 21, 2), 22);
        assert_eq!(slots.credits_until(&bubble_channels, (0, 1), 21, 3), 30);
        assert_eq!(slots.free(&bubble_channels, 0, 1, 22), 2);
        assert_eq!(slots.credits_until(&bubble_channels, (0, 1), 22, 3), 30);
        assert_eq!(slots.free(&bubble_channels, 0, 1, 29), 2);
        assert_eq!(slots.free(&bubble_channels, 0, 1, 30), 3);
        assert_eq!(slots.free(&bubble_channels, 0, 1, 32), 4);
    }
}
