//! What commands cost, and whose is carried out next.
//!
//! A registration, or the enabling of a ring, looks at every mapping that its memory lies in. A client can post thousands of such commands, and one
//! trapped read would have all of them carried out at once, while nobody else is served. So a card has a budget of *visits* for the commands of
//! all its clients in a turn: of mappings, or of a row of the table's entries. A command that comes when it is used up waits for a later turn, like a send
//! without credit.
//!
//! Who waits stands in line: the first one goes when there is budget again, and with more commands is the last one then. So a VPID that goes on posting
//! dear ones delays another's by one command a turn, not for ever. Who does not come again (its access was given up) loses its place.
//!
//! In: who asks, what it cost. Out: whether it may. What it may touch: itself.

use std::collections::VecDeque;

use nicforge_core::{context::Context, device::AttachmentId, dma::MAX_LEASE};
use nicforge_hwi::{extoll::reg, extoll_atu::command};

/// Visits of a card in a turn. The command that uses up the last of it is carried out whole, whatever it costs, so that there is none that never goes:
/// at most about as much again.
pub(crate) const TURN: u32 = 1 << 14;
/// Turns for which the place of one that does not come is kept: trapped accesses are not offered in each.
const PATIENCE: u8 = 4;

/// Whether a write of this register may cost much: it is one that waits for the budget.
#[inline]
pub(crate) fn is_dear(register: u64) -> bool {
    matches!(register, command::COMMAND | reg::VELO_RING_ENABLE | reg::RMA_QUEUE_ENABLE | reg::RESET_VPID)
}

/// What it costs to take a lease, or to find that there is none.
pub(crate) fn of_lease(context: &Context<'_>, who: AttachmentId, iova: u64, length: u64) -> u32 {
    context.dma_mappings(who, iova, length).map_or(1, |mappings| mappings.min(MAX_LEASE) as u32)
}

/// One that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    who: u16,
    /// Turns since it came last.
    away: u8,
}

/// What a card has left to do in a turn.
#[derive(Debug)]
pub(crate) struct Work {
    left: u32,
    /// Each attachment is in it once at most.
    line: VecDeque<Waiting>,
    visits: u64,
}

impl Default for Work {
    fn default() -> Self {
        Self { left: TURN, line: VecDeque::new(), visits: 0 }
    }
}

impl Work {
    /// Whether a command of `who` may be carried out now. If not it gets, or keeps, a place in the line.
    pub(crate) fn admits(&mut self, who: u16) -> bool {
        if self.left > 0 && self.line.front().is_none_or(|first| first.who == who) {
            self.line.pop_front();
            return true;
        }
        match self.line.iter_mut().find(|waiting| waiting.who == who) {
            Some(waiting) => waiting.away = 0,
            None => self.line.push_back(Waiting { who, away: 0 }),
        }
        false
    }

    /// The command that was admitted cost so much.
    pub(crate) fn spend(&mut self, visits: u32) {
        self.left = self.left.saturating_sub(visits);
        self.visits += u64::from(visits);
    }

    /// An attachment's command will not come again.
    pub(crate) fn forget(&mut self, who: u16) {
        self.line.retain(|waiting| waiting.who != who);
    }

    /// A turn is over. True when somebody waits for the next one.
    pub(crate) fn turn(&mut self) -> bool {
        self.left = TURN;
        self.line.retain_mut(|waiting| {
            waiting.away += 1;
            waiting.away <= PATIENCE
        });
        !self.line.is_empty()
    }

    /// Visits so far.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_a_budget_and_its_last_command_is_whole() {
        let mut work = Work::default();
        assert!(work.admits(0));
        work.spend(TURN - 1);
        assert!(work.admits(1), "something is left");
        work.spend(5 * TURN);
        assert!(!work.admits(0) && !work.admits(1));
        assert!(work.turn());
        assert!(work.admits(0));
        assert_eq!(work.visits(), u64::from(6 * TURN - 1));
    }

    #[test]
    fn who_has_waited_the_longest_goes_first() {
        let mut work = Work::default();
        let mut order = Vec::new();
        for _ in 0..6 {
            // The same ones in the same order in each turn, and one that always has more.
            for who in [3, 3, 1, 2] {
                if work.admits(who) {
                    work.spend(TURN);
                    order.push(who);
                }
            }
            work.turn();
        }
        assert_eq!(order, [3, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn who_does_not_come_again_keeps_nobody_waiting_for_long() {
        let mut work = Work::default();
        assert!(work.admits(0));
        work.spend(TURN);
        assert!(!work.admits(7) && !work.admits(8) && !work.admits(9));
        work.forget(7);
        let turns = (0..10).take_while(|_| {
            work.turn();
            !work.admits(9)
        });
        assert_eq!(turns.count(), usize::from(PATIENCE));
        assert!(!work.turn(), "nobody waits");
    }
}
