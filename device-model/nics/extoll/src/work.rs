//! The budget of a card for expensive commands, and the order of the commands that wait for it.
//!
//! A registration, or the enabling of a ring, visits every mapping that its memory lies in. A
//! client can post thousands of such commands, and one trapped read would carry them all out while
//! other clients wait.
//!
//! So a card has a budget of *visits* in each turn for the commands of all its clients. A visit is
//! a look at one mapping or at one row of the table's entries. A command that finds the budget used
//! up waits for a later turn, like a send without credit.
//!
//! Waiting attachments form a line. The first in line goes when the budget is refilled; with
//! further commands it joins the line at the end. An attachment with an endless supply of expensive
//! commands thus delays another one's by one command in each turn. An attachment that stops
//! retrying loses its position.
//!
//! In: requests and the cost of commands. Out: admission. May touch: its own state.

use std::collections::VecDeque;

use nicforge_core::{context::Context, dma::MAX_LEASE, ids::AttachmentId};
use nicforge_hwi::{extoll::reg, extoll_atu::command};

/// Visits of a card in a turn. The command that uses up the budget is carried out completely, so
/// every command makes progress. It exceeds the budget by about as much again at most.
pub(crate) const TURN: u32 = 1 << 14;
/// Turns for which an attachment that does not retry keeps its position. Trapped accesses are not
/// retried in every turn.
const PATIENCE: u8 = 4;

/// Returns whether a write of this register may cost many visits and so waits for the budget.
#[inline]
pub(crate) fn is_expensive(register: u64) -> bool {
    matches!(register, command::COMMAND | reg::VELO_RING_ENABLE | reg::RMA_QUEUE_ENABLE | reg::RESET_VPID)
}

/// Returns the cost of taking a lease, or of finding that none can be taken, in visits.
pub(crate) fn of_lease(context: &Context<'_>, who: AttachmentId, iova: u64, length: u64) -> u32 {
    context.dma_mappings(who, iova, length).map_or(1, |mappings| mappings.min(MAX_LEASE) as u32)
}

/// An attachment that waits for the budget.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    who: u16,
    /// Turns since its last retry.
    away: u8,
}

/// The budget of a card in the present turn.
#[derive(Debug)]
pub(crate) struct Work {
    left: u32,
    /// The attachments that wait, each at most once.
    line: VecDeque<Waiting>,
    /// Visits so far.
    visits: u64,
}

impl Default for Work {
    fn default() -> Self {
        Self { left: TURN, line: VecDeque::new(), visits: 0 }
    }
}

impl Work {
    /// Returns whether a command of `who` may be carried out now. If not, `who` gets or keeps a
    /// position in the line.
    pub(crate) fn admit(&mut self, who: u16) -> bool {
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

    /// Charges the admitted command with its cost.
    pub(crate) fn spend(&mut self, visits: u32) {
        self.left = self.left.saturating_sub(visits);
        self.visits += u64::from(visits);
    }

    /// Removes an attachment whose command will not be retried.
    pub(crate) fn forget(&mut self, who: u16) {
        self.line.retain(|waiting| waiting.who != who);
    }

    /// Ends a turn and refills the budget. Returns true if any attachment waits.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        self.left = TURN;
        !self.line.is_empty() && self.turn_of_line()
    }

    /// Ends a turn of the attachments that wait. Returns true if any of them still does.
    #[cold]
    fn turn_of_line(&mut self) -> bool {
        self.line.retain_mut(|waiting| {
            waiting.away += 1;
            waiting.away <= PATIENCE
        });
        !self.line.is_empty()
    }

    /// Returns the number of visits so far.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_a_budget_and_its_last_command_is_carried_out_completely() {
        let mut work = Work::default();

        assert!(work.admit(0));
        work.spend(TURN - 1);

        assert!(work.admit(1), "something is left");
        work.spend(5 * TURN);

        assert!(!work.admit(0) && !work.admit(1));
        assert!(work.turn());
        assert!(work.admit(0));
        assert_eq!(work.visits(), u64::from(6 * TURN - 1));
    }

    #[test]
    fn the_attachment_that_has_waited_the_longest_goes_first() {
        let mut work = Work::default();
        let mut order = Vec::new();

        for _ in 0..6 {
            // The attachments retry in the same order in each turn, and 3 always has more.
            for who in [3, 3, 1, 2] {
                if work.admit(who) {
                    work.spend(TURN);
                    order.push(who);
                }
            }
            work.turn();
        }

        assert_eq!(order, [3, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn an_attachment_that_stops_retrying_delays_others_for_few_turns() {
        let mut work = Work::default();
        assert!(work.admit(0));
        work.spend(TURN);
        assert!(!work.admit(7) && !work.admit(8) && !work.admit(9));

        work.forget(7);

        let turns = (0..10).take_while(|_| {
            work.turn();
            !work.admit(9)
        });
        assert_eq!(turns.count(), usize::from(PATIENCE));
        assert!(!work.turn(), "nobody waits");
    }
}
