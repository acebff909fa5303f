//! Arbitration between a card's own packets and packets that pass through it.
//!
//! Both kinds leave by the same *output channels*; an output channel is a port and a virtual
//! channel.
//!
//! In a pass, a card's clients send first, and then transit packets move. While transit packets
//! wait for an output channel, clients may use half of the credits that the output channel has at
//! the beginning of the pass. Transit packets get the rest.
//!
//! While the card itself waits for an output channel, no transit packet enters that output
//! channel's output queue; it stays in its input buffer. Otherwise the queue would never have room
//! for the card's packets.
//!
//! Without waiting packets of the other kind, each kind may use all credits.

use nicforge_hwi::extoll::LINKS;

use crate::packet::CHANNELS;

/// A set of output channels: for each virtual channel, one bit for each port.
type OutputChannels = [u8; CHANNELS];

/// The state of the arbitration.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Output channels for which this card's own packets wait.
    with_waiting_sends: OutputChannels,
    /// Output channels that transit packets waited for at the end of the last step.
    contended: OutputChannels,
    /// Contended output channels whose allowance in this pass has been set.
    with_allowance: OutputChannels,
    /// Output channels whose last packet was a client's. Where credits come one at a time, the next
    /// credit is for a transit packet.
    last_was_clients: OutputChannels,
    /// Packets that clients may still send in this pass by each output channel of `with_allowance`.
    allowances: [[u32; LINKS]; CHANNELS],
}

impl Sharing {
    /// Records that the card has a packet for an output channel without room.
    #[inline]
    pub(crate) fn note_waiting_send(&mut self, port: u8, vc: usize) {
        self.with_waiting_sends[vc] |= 1 << port;
    }

    /// Returns whether the card waits for an output channel.
    #[inline]
    pub(crate) fn has_waiting_send(&self, port: u8, vc: usize) -> bool {
        self.with_waiting_sends[vc] & (1 << port) != 0
    }

    /// Returns whether any transit packet waits.
    #[inline]
    pub(crate) fn has_waiting_transit(&self) -> bool {
        self.contended != [0; CHANNELS]
    }

    /// Begins a step. The clients' packets of this pass have been sent.
    #[inline]
    pub(crate) fn begin_step(&mut self) {
        (self.contended, self.with_allowance) = ([0; CHANNELS], [0; CHANNELS]);
    }

    /// Records that a transit packet has to wait for an output channel.
    #[inline]
    pub(crate) fn note_waiting_transit(&mut self, port: u8, vc: usize) {
        self.contended[vc] |= 1 << port;
    }

    /// Records that a transit packet has left by an output channel.
    #[inline]
    pub(crate) fn note_forwarded(&mut self, port: u8, vc: usize) {
        self.last_was_clients[vc] &= !(1 << port);
    }

    /// Ends a step. Transit packets have moved as far as they could.
    #[inline]
    pub(crate) fn end_step(&mut self) {
        self.with_waiting_sends = [0; CHANNELS];
    }

    /// Returns the number of packets that clients may still send by an output channel in this pass;
    /// the output channel has `credits` credits now.
    #[inline]
    pub(crate) fn allowance(&mut self, port: u8, vc: usize, credits: u32) -> u32 {
        if self.contended[vc] & (1 << port) == 0 {
            u32::MAX
        } else {
            self.contended_allowance(port, vc, credits)
        }
    }

    /// Returns the allowance for a contended output channel. The first call of a pass sets it to
    /// half of the credits, rounded down if the last packet was a client's, and else up.
    #[cold]
    fn contended_allowance(&mut self, port: u8, vc: usize, credits: u32) -> u32 {
        // The port exists, so `%` changes nothing; with it the compiler omits a bounds check.
        let remaining = &mut self.allowances[vc][usize::from(port) % LINKS];

        if self.with_allowance[vc] & (1 << port) == 0 {
            self.with_allowance[vc] |= 1 << port;
            let rounds_up = self.last_was_clients[vc] & (1 << port) == 0;
            *remaining = (credits + u32::from(rounds_up)) / 2;
        }

        *remaining
    }

    /// Records that clients have sent packets by an output channel.
    #[inline]
    pub(crate) fn spend(&mut self, port: u8, vc: usize, packets: u32) {
        self.last_was_clients[vc] |= 1 << port;
        if self.contended[vc] & (1 << port) != 0 {
            let remaining = &mut self.allowances[vc][usize::from(port) % LINKS];
            *remaining = remaining.saturating_sub(packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_use_all_credits_of_an_output_without_transit_packets() {
        let mut sharing = Sharing::default();
        sharing.note_waiting_transit(2, 1);

        assert_eq!(sharing.allowance(2, 0, 4), u32::MAX);
        assert_eq!(sharing.allowance(1, 1, 4), u32::MAX);

        sharing.begin_step();
        assert!(!sharing.has_waiting_transit());
        assert_eq!(sharing.allowance(2, 1, 4), u32::MAX);
    }

    #[test]
    fn all_clients_together_may_use_half_of_a_contended_output() {
        let mut sharing = Sharing::default();
        sharing.note_waiting_transit(2, 1);

        assert_eq!(sharing.allowance(2, 1, 16), 8);
        sharing.spend(2, 1, 5);
        assert_eq!(sharing.allowance(2, 1, 11), 3);
        sharing.spend(2, 1, 3);
        assert_eq!(sharing.allowance(2, 1, 8), 0);
    }

    #[test]
    fn single_credits_alternate_between_clients_and_transit_packets() {
        let mut sharing = Sharing::default();
        for _ in 0..3 {
            sharing.begin_step();
            sharing.note_waiting_transit(0, 0);
            assert_eq!(sharing.allowance(0, 0, 1), 1);
            sharing.spend(0, 0, 1);
            sharing.begin_step();
            sharing.note_waiting_transit(0, 0);
            assert_eq!(sharing.allowance(0, 0, 1), 0);
            sharing.note_forwarded(0, 0);
        }
    }
}
