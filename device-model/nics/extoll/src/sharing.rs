//! How what a card sends and what passes through it share a way out, a port and virtual channel, that both fill.
//!
//! In a turn a card's clients send first, then goes what passes through. So while packets that pass through wait for a way, clients may use half of
//! the credits that it has at the beginning of a turn; what passes through gets the rest. And while the card itself waits for a way, nothing that passes
//! through waits in that way's output queue, in which there would else never be room for the card: it stays in its input buffer.
//!
//! Neither holds when nobody waits: then who comes may use all there is.

use nicforge_hwi::extoll::LINKS;

use crate::wire::CHANNELS;

/// Ways: a bit a port, by virtual channel.
type Ways = [u8; CHANNELS];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The card's own packets wait for them.
    wanted: Ways,
    /// Packets that pass through waited for them when the last step was over.
    crowded: Ways,
    /// Crowded ones of which it is known what clients may still use in this turn: see `left`.
    opened: Ways,
    /// Those by which a client's packet was the last to leave: where there is one credit at a time, the next one is not for clients.
    own_last: Ways,
    left: [[u32; LINKS]; CHANNELS],
}

impl Sharing {
    /// The card has something for a way on which there is no room.
    #[inline]
    pub(crate) fn want(&mut self, port: u8, vc: usize) {
        self.wanted[vc] |= 1 << port;
    }

    /// Whether the card waits for a way.
    #[inline]
    pub(crate) fn is_wanted(&self, port: u8, vc: usize) -> bool {
        self.wanted[vc] & (1 << port) != 0
    }

    /// Whether anything waits that passes through.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded != [0; CHANNELS]
    }

    /// A step begins: what clients sent in this turn has gone.
    #[inline]
    pub(crate) fn begin_step(&mut self) {
        (self.crowded, self.opened) = ([0; CHANNELS], [0; CHANNELS]);
    }

    /// A packet that passes through has to wait.
    #[inline]
    pub(crate) fn crowd(&mut self, port: u8, vc: usize) {
        self.crowded[vc] |= 1 << port;
    }

    /// A packet that passes through has left.
    #[inline]
    pub(crate) fn pass(&mut self, port: u8, vc: usize) {
        self.own_last[vc] &= !(1 << port);
    }

    /// What passes through has gone, as far as it could.
    #[inline]
    pub(crate) fn end_step(&mut self) {
        self.wanted = [0; CHANNELS];
    }

    /// Packets that clients may still send by a way in this turn, which has that many credits now.
    #[inline]
    pub(crate) fn allowance(&mut self, port: u8, vc: usize, credits: u32) -> u32 {
        if self.crowded[vc] & (1 << port) == 0 { u32::MAX } else { self.part(port, vc, credits) }
    }

    #[cold]
    fn part(&mut self, port: u8, vc: usize, credits: u32) -> u32 {
        let left = &mut self.left[vc][usize::from(port) % LINKS];
        if self.opened[vc] & (1 << port) == 0 {
            self.opened[vc] |= 1 << port;
            *left = (credits + u32::from(self.own_last[vc] & (1 << port) == 0)) / 2;
        }
        *left
    }

    /// Clients have sent packets.
    #[inline]
    pub(crate) fn spend(&mut self, port: u8, vc: usize, packets: u32) {
        self.own_last[vc] |= 1 << port;
        if self.crowded[vc] & (1 << port) != 0 {
            let left = &mut self.left[vc][usize::from(port) % LINKS];
            *left = left.saturating_sub(packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_all_of_a_way_for_which_nothing_waits_that_passes_through() {
        let mut sharing = Sharing::default();
        sharing.crowd(2, 1);
        assert_eq!(sharing.allowance(2, 0, 4), u32::MAX);
        assert_eq!(sharing.allowance(1, 1, 4), u32::MAX);
        sharing.begin_step();
        assert!(!sharing.is_crowded());
        assert_eq!(sharing.allowance(2, 1, 4), u32::MAX);
    }

    #[test]
    fn all_clients_together_have_half_of_one_for_which_something_waits() {
        let mut sharing = Sharing::default();
        sharing.crowd(2, 1);
        assert_eq!(sharing.allowance(2, 1, 16), 8);
        sharing.spend(2, 1, 5);
        assert_eq!(sharing.allowance(2, 1, 11), 3);
        sharing.spend(2, 1, 3);
        assert_eq!(sharing.allowance(2, 1, 8), 0);
    }

    #[test]
    fn single_credits_go_to_both_in_turn() {
        let mut sharing = Sharing::default();
        for _ in 0..3 {
            sharing.begin_step();
            sharing.crowd(0, 0);
            assert_eq!(sharing.allowance(0, 0, 1), 1);
            sharing.spend(0, 0, 1);
            sharing.begin_step();
            sharing.crowd(0, 0);
            assert_eq!(sharing.allowance(0, 0, 1), 0);
            sharing.pass(0, 0);
        }
    }
}
