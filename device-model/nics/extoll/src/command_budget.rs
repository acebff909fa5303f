//! The budget of a card for expensive commands, and the order of the commands that wait for it.
//!
//! A registration, or the enabling of a ring, visits every mapping that its memory lies in. A
//! client can post thousands of such commands, and one trapped read would carry them all out while
//! other clients wait.
//!
//! So a card has a budget of *visits* in each pass for the commands of all its clients. A visit is
//! the work of reading one mapping, or a few dozen entries of the ATU's table. A command that finds
//! the budget used up waits for a later pass, like a send without credit.
//!
//! Waiting attachments form a queue. The first is admitted when the budget is refilled; with
//! further commands it joins the queue at the end. An attachment with an endless supply of
//! expensive commands thus delays another one's by one command in each pass. An attachment that
//! stops retrying loses its position.
//!
//! In: requests and the cost of commands. Out: admission.

use std::collections::VecDeque;

use nicforge_core::{context::Context, dma::MAX_LEASE, ids::AttachmentId};
use nicforge_hwi::{extoll::reg, extoll_atu::command};

/// Visits of a card in a pass. The command that uses up the budget is carried out completely, so
/// that every command makes progress. It exceeds the budget by at most about the same number.
pub(crate) const PASS_BUDGET: u32 = 1 << 14;
/// Passes for which an attachment that does not retry keeps its position. Trapped accesses are not
/// retried in every pass.
const MAX_PASSES_WITHOUT_RETRY: u8 = 4;

/// Returns whether a write of this register may cost many visits and so waits for the budget.
#[inline]
pub(crate) fn is_expensive(register: u64) -> bool {
    matches!(register, command::COMMAND | reg::VELO_RING_ENABLE | reg::RMA_QUEUE_ENABLE | reg::RESET_VPID)
}

/// Returns the cost of taking a lease, or of finding that none can be taken, in visits.
pub(crate) fn lease_visits(context: &Context<'_>, attachment: AttachmentId, iova: u64, length: u64) -> u32 {
    context.count_dma_mappings(attachment, iova, length).map_or(1, |mappings| mappings.min(MAX_LEASE) as u32)
}

/// An attachment that waits for the budget.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    attachment: u16,
    /// Passes since its last retry.
    passes_without_retry: u8,
}

/// The budget of a card in the present pass.
#[derive(Debug)]
pub(crate) struct CommandBudget {
    /// Visits left in the pass.
    left: u32,
    /// The attachments that wait, each at most once.
    queue: VecDeque<Waiting>,
    /// Visits so far.
    visits: u64,
}

impl Default for CommandBudget {
    fn default() -> Self {
        Self { left: PASS_BUDGET, queue: VecDeque::new(), visits: 0 }
    }
}

impl CommandBudget {
    /// Returns whether a command of `attachment` may be carried out now. If not, `attachment` gets
    /// or keeps a position in the queue.
    pub(crate) fn admit(&mut self, attachment: u16) -> bool {
        if self.left > 0 && self.queue.front().is_none_or(|first| first.attachment == attachment) {
            self.queue.pop_front();
            return true;
        }

        match self.queue.iter_mut().find(|waiting| waiting.attachment == attachment) {
            Some(waiting) => waiting.passes_without_retry = 0,
            None => self.queue.push_back(Waiting { attachment, passes_without_retry: 0 }),
        }
        false
    }

    /// Charges the cost of the admitted command to the budget.
    pub(crate) fn spend(&mut self, visits: u32) {
        self.left = self.left.saturating_sub(visits);
        self.visits += u64::from(visits);
    }

    /// Removes an attachment whose command will not be retried.
    pub(crate) fn remove(&mut self, attachment: u16) {
        self.queue.retain(|waiting| waiting.attachment != attachment);
    }

    /// Ends a pass and refills the budget. Returns true if any attachment waits.
    #[inline]
    pub(crate) fn end_pass(&mut self) -> bool {
        self.left = PASS_BUDGET;
        !self.queue.is_empty() && self.age_queue()
    }

    /// Counts a pass for the attachments that wait. Returns true if any of them still does.
    #[cold]
    fn age_queue(&mut self) -> bool {
        self.queue.retain_mut(|waiting| {
            waiting.passes_without_retry += 1;
            waiting.passes_without_retry <= MAX_PASSES_WITHOUT_RETRY
        });
        !self.queue.is_empty()
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
    fn a_pass_has_a_budget_and_completes_its_last_command() {
        let mut budget = CommandBudget::default();

        assert!(budget.admit(0));
        budget.spend(PASS_BUDGET - 1);

        assert!(budget.admit(1), "something is left");
        budget.spend(5 * PASS_BUDGET);

        assert!(!budget.admit(0) && !budget.admit(1));
        assert!(budget.end_pass());
        assert!(budget.admit(0));
        assert_eq!(budget.visits(), u64::from(6 * PASS_BUDGET - 1));
    }

    #[test]
    fn the_longest_waiting_attachment_is_admitted_first() {
        let mut budget = CommandBudget::default();
        let mut order = Vec::new();

        for _ in 0..6 {
            // The attachments retry in the same order in each pass, and 3 always has more.
            for attachment in [3, 3, 1, 2] {
                if budget.admit(attachment) {
                    budget.spend(PASS_BUDGET);
                    order.push(attachment);
                }
            }
            budget.end_pass();
        }

        assert_eq!(order, [3, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn an_attachment_that_stops_retrying_delays_others_for_few_passes() {
        let mut budget = CommandBudget::default();
        assert!(budget.admit(0));
        budget.spend(PASS_BUDGET);
        assert!(!budget.admit(7) && !budget.admit(8) && !budget.admit(9));

        budget.remove(7);

        let passes = (0..10).take_while(|_| {
            budget.end_pass();
            !budget.admit(9)
        });
        assert_eq!(passes.count(), usize::from(MAX_PASSES_WITHOUT_RETRY));
        assert!(!budget.end_pass(), "no attachment waits");
    }
}
