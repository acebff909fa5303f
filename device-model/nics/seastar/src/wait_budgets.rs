//! Budgets of the time for which clients make their node wait. They concern clients whose memory
//! only messages reach.
//!
//! A client that answers each message just within the limit of one access would otherwise hold the
//! engines of its node, and with them the other processes, for as long as it likes. Each engine
//! thus has a [`Budget`] for each client and one for all clients together. Only the part of a wait
//! for an answer that is longer than [`UNCHARGED`] is charged, so that a client that answers at
//! once is never charged. Nothing is charged while the node has no other process that could be
//! delayed.

use nicforge_core::{ids::AttachmentId, time::Nanos};
use nicforge_kit::{Budget, budget};

use crate::config::MAX_CLIENTS;

/// Nanoseconds at the beginning of a wait that are not charged.
const UNCHARGED: u64 = 200_000;
/// Maximum number of nanoseconds between two charges of a wait. A budget assumes that the node was
/// not driven during the rest of a longer time, and does not charge it.
pub(crate) const CHARGE_PERIOD: u64 = 1_000_000;

/// A wait for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The time at which it began.
    pub(crate) since: Nanos,
    /// The time up to which it was charged, or up to which it is not charged.
    charged_until: Nanos,
    /// Number of writes that the client had not answered at the last look.
    unanswered: usize,
}

impl Wait {
    /// Returns a wait that begins now.
    pub(crate) fn new(now: Nanos) -> Self {
        Self { since: now, charged_until: now.after(UNCHARGED), unanswered: 0 }
    }

    /// Records the number of writes that the client has not answered. If it has answered some, the
    /// next [`UNCHARGED`] nanoseconds are not charged.
    pub(crate) fn note_unanswered(&mut self, unanswered: usize, now: Nanos) {
        if unanswered < self.unanswered {
            self.charged_until = now.after(UNCHARGED);
        }
        self.unanswered = unanswered;
    }
}

/// The budgets of an engine.
#[derive(Debug)]
pub(crate) struct WaitBudgets {
    /// The budget of each client, by its attachment.
    clients: [Budget; MAX_CLIENTS],
    /// The budget of all clients of the node together.
    node: Budget,
}

impl Default for WaitBudgets {
    fn default() -> Self {
        Self {
            clients: [Budget::new(budget::CLIENT_NANOSECONDS); MAX_CLIENTS],
            node: Budget::new(budget::CARD_NANOSECONDS),
        }
    }
}

impl WaitBudgets {
    /// Charges a wait for a client up to now. Returns false if the client's budget or the node's is
    /// spent, so that the access must end.
    #[cold]
    pub(crate) fn charge(&mut self, attachment_id: AttachmentId, wait: &mut Wait, now: Nanos) -> bool {
        let Some(client) = self.clients.get_mut(usize::from(attachment_id.0)) else { return false };
        let since = wait.charged_until.min(now);
        wait.charged_until = wait.charged_until.max(now);

        let client_may_wait = client.charge(since, now);
        self.node.charge(since, now) && client_may_wait
    }
}
