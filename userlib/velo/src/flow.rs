//! Flow control: the grant and the return of credits.
//!
//! Each direction of a connection has one granting end, the receiver, and one spending end, the
//! sender. The granting end keeps [`crate::peer::Incoming`], the spending end
//! [`crate::peer::Outgoing`]. These invariants hold:
//!
//! - A sender spends one credit for each message, and sends nothing without a credit.
//! - The receiver grants credits once for each connection. Later credits only return those that the
//!   sender has spent.
//! - The outstanding grants to all VPIDs of one node never exceed the limit of [`NodeBudgets`].
//! - A control message names the generation that it is meant for, and a credit message the
//!   connection, so a stale one changes nothing.
//!
//! At most two credit messages for each peer are in flight in the posted-write ring. Credits return
//! in halves of a grant, so a peer that reads its ring never needs more. The card's watchdog drops
//! the messages for a peer that does not read.
//!
//! The outstanding grants to all VPIDs of a node are less than half of that node's share of the
//! receive ring. The receiving card returns slot credits to a sending card in batches of half a
//! share. So a sender that keeps to its grant never waits for slots in its card.

use std::collections::VecDeque;

use nicforge_hwi::extoll_velo::MAX_SLOTS;

use crate::{Config, directory::Directory, kept::KeptMessages, peer::Peer, tenant::Tenant};

/// Slots reserved for the control messages of each VPID of a node: a connect, a close, and two
/// credit returns.
const CONTROL_SLOTS: u32 = 4;
/// Credits for each VPID of a node in a ring whose size this library selects, unless that would
/// exceed the longest ring.
const SUITABLE_CREDITS: u32 = 4;
/// The least number of slots that this library selects.
const LEAST_SUITABLE_SLOTS: u32 = 512;

/// Credits of the nodes of a network.
///
/// Invariant: `reserved` is the sum of the credits granted to a node's VPIDs, and of their kept
/// messages whose grant has ended. A grant never lifts it above `limit`.
struct NodeBudgets {
    reserved: Vec<u32>,
    limit: u32,
}

impl NodeBudgets {
    /// Returns the credits that may still be granted to VPIDs of a node.
    fn free(&self, node: usize) -> u32 {
        self.limit.saturating_sub(self.reserved[node])
    }

    /// Takes credits out of a node's budget.
    fn reserve(&mut self, node: usize, credits: u32) {
        self.reserved[node] += credits;
    }

    /// Returns credits to a node's budget.
    fn release(&mut self, node: usize, credits: u32) {
        self.reserved[node] = self.reserved[node].saturating_sub(credits);
    }
}

/// Nodes with a refused sender that waits until credits are free.
///
/// No message announces that a tenant of the node has died, and that its credits are free. So the
/// port looks at one of these nodes in some of its polls.
///
/// Invariant: a node is in `queue` at most once, and exactly while its `queued` is set.
struct WaitingNodes {
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    /// Polls since the last look.
    polls: u32,
}

impl WaitingNodes {
    /// Number of polls from one look to the next. A look reads the table entry of each VPID of a
    /// node, which is too much for every poll.
    const POLLS_PER_LOOK: u32 = 64;

    fn new(nodes: u32) -> Self {
        let nodes = nodes as usize;
        Self { queue: VecDeque::with_capacity(nodes), queued: vec![false; nodes], polls: 0 }
    }

    /// Adds a node, unless it waits already.
    fn add(&mut self, node: usize) {
        if !std::mem::replace(&mut self.queued[node], true) {
            self.queue.push_back(node as u32);
        }
    }

    /// Counts a poll. Returns and removes a node, if a look is due.
    fn next_due(&mut self) -> Option<usize> {
        self.polls += 1;
        if self.polls < Self::POLLS_PER_LOOK {
            return None;
        }

        self.polls = 0;
        let node = self.queue.pop_front()? as usize;
        self.queued[node] = false;
        Some(node)
    }
}

/// The connect of a sender.
#[derive(Clone, Copy)]
pub(crate) struct IncomingConnect {
    pub(crate) sender: Tenant,
    /// The sender's number of the connection.
    pub(crate) connection: u8,
    /// Credits that the sender asks for.
    pub(crate) window: u32,
}

/// The connections of a port, and the control messages that they wait for.
///
/// Invariant: a peer is in `pending` at most once, and exactly while its `queued` is set.
pub(crate) struct FlowControl {
    /// Whether connections have credits.
    pub(crate) enabled: bool,
    /// Credits that a connection asks for, and that it is granted at most. At least 1.
    pub(crate) window: u32,
    /// Peers by their number in the directory.
    pub(crate) peers: Vec<Peer>,
    budgets: NodeBudgets,
    waiting: WaitingNodes,
    /// Peers with a pending control message.
    pending: VecDeque<u32>,
}

impl FlowControl {
    /// Returns the flow control of a port without connections, whose receive ring has `slots`
    /// slots.
    pub(crate) fn new(config: &Config, directory: &Directory, slots: u32) -> Self {
        let (nodes, vpids) = (directory.nodes(), directory.vpids());

        Self {
            enabled: config.flow_control,
            window: config.window.max(1),
            peers: vec![Peer::default(); nodes as usize * vpids as usize],
            budgets: NodeBudgets { reserved: vec![0; nodes as usize], limit: budget(slots, nodes, vpids) },
            waiting: WaitingNodes::new(nodes),
            pending: VecDeque::new(),
        }
    }

    /// Handles the connect of a present tenant. A tenant that has a grant receives no second one.
    pub(crate) fn handle_connect(
        &mut self,
        index: usize,
        connect: IncomingConnect,
        directory: &Directory,
        kept: &KeptMessages,
    ) {
        let IncomingConnect { sender, connection, window } = connect;
        let peer = &self.peers[index];
        let is_connected = sender.is(peer.incoming.sender);
        if is_connected && peer.incoming.has_grant() || !peer.unresponsive.allows(sender) {
            return;
        }

        if !is_connected {
            self.end_grant(index, directory, kept);
        }

        let peer = &mut self.peers[index];
        (peer.incoming.sender, peer.incoming.connection) = (Some(sender), connection);
        peer.incoming.requested = window;
        peer.refusals.count_for(sender);
        self.grant(index, directory);
    }

    /// Handles the close of a tenant, and grants its credits to others.
    pub(crate) fn handle_close(
        &mut self,
        index: usize,
        sender: Tenant,
        directory: &Directory,
        kept: &KeptMessages,
    ) {
        if sender.is(self.peers[index].incoming.sender) {
            self.end_grant(index, directory, kept);
            self.peers[index].incoming.sender = None;
            self.grant_waiting(directory.node_of(index), directory);
        }
    }

    /// Grants a connecting peer as many credits as are free, and queues the grant. The grant is 0,
    /// a refusal, when none are free.
    fn grant(&mut self, index: usize, directory: &Directory) {
        let node = directory.node_of(index);
        if self.budgets.free(node) == 0 {
            self.release_grants_of_ended_tenants(node, directory);
        }

        let free = self.budgets.free(node);
        let peer = &mut self.peers[index];
        let available = if peer.excluded { 0 } else { free };
        let granted = available.min(peer.incoming.requested).min(self.window);

        // A sender that was refused too often gets no further answer until credits are free.
        if !peer.refusals.count_answer(granted == 0) {
            self.waiting.add(node);
            return;
        }

        // The first credit return carries the whole grant.
        peer.due.refusal = granted == 0;
        (peer.incoming.granted, peer.incoming.unreturned) = (granted, granted);
        self.budgets.reserve(node, granted);
        self.queue(index);
    }

    /// Grants credits that have become free to those peers of a node that wait for them.
    fn grant_waiting(&mut self, node: usize, directory: &Directory) {
        for index in directory.indices_of(node) {
            if self.budgets.free(node) > 0 && self.is_waiting(index, directory) {
                self.grant(index, directory);
            }
        }
    }

    /// Returns whether the present tenant of a peer waits for credits.
    fn is_waiting(&self, index: usize, directory: &Directory) -> bool {
        let peer = &self.peers[index];
        let sender = peer.incoming.sender;
        let is_present = || sender == directory.tenant(directory.address_of(index));
        peer.refusals.awaits_grant && sender.is_some() && is_present()
    }

    /// Returns whether a refused sender waits for the credits of tenants that end without a close.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.queue.is_empty()
    }

    /// Takes back the credits of a node's tenants that have ended, and grants them to the node's
    /// refused senders. A call looks at one node at most, and most calls at none.
    #[cold]
    pub(crate) fn regrant_credits_of_ended_tenants(&mut self, directory: &Directory) {
        let Some(node) = self.waiting.next_due() else { return };

        self.release_grants_of_ended_tenants(node, directory);
        self.grant_waiting(node, directory);

        if directory.indices_of(node).any(|index| self.is_waiting(index, directory)) {
            self.waiting.add(node);
        }
    }

    /// Ends the grants of a tenant that does not read its credit messages. A peer that this port
    /// has itself connected to is left as it is.
    pub(crate) fn mark_unresponsive(&mut self, index: usize, directory: &Directory) {
        let peer = &mut self.peers[index];
        if peer.outgoing.receiver.is_some() {
            return;
        }

        peer.unresponsive.record(peer.incoming.sender);
        // Messages that still arrive from it were covered by the earlier grant.
        self.release_grant(index, directory);
    }

    /// Ends the grant to a tenant. Its close is after its messages, so all of them have left the
    /// ring. Kept messages that the application has not taken continue to use up the node's budget.
    fn end_grant(&mut self, index: usize, directory: &Directory, kept_messages: &KeptMessages) {
        self.release_grant(index, directory);

        let kept = kept_messages.of_sender(directory.address_of(index));
        let peer = &mut self.peers[index];
        let newly_without_grant = kept.saturating_sub(peer.kept_without_grant);
        peer.kept_without_grant += newly_without_grant;
        self.budgets.reserve(directory.node_of(index), newly_without_grant);
    }

    /// Releases the credits granted to a peer.
    fn release_grant(&mut self, index: usize, directory: &Directory) {
        let peer = &mut self.peers[index];
        self.budgets.release(directory.node_of(index), peer.incoming.granted);

        (peer.incoming.granted, peer.incoming.unreturned) = (0, 0);
        peer.due.refusal = false;
    }

    /// Releases the credits granted to tenants of a node that have gone.
    fn release_grants_of_ended_tenants(&mut self, node: usize, directory: &Directory) {
        for index in directory.indices_of(node) {
            let sender = self.peers[index].incoming.sender;
            if sender.is_some() && sender != directory.tenant(directory.address_of(index)) {
                // Messages of it may still be in the ring, so `sender` continues to name them.
                self.release_grant(index, directory);
            }
        }
    }

    /// Releases the budget of a kept message that the application has taken, if its sender's grant
    /// has ended. Returns whether that was so.
    pub(crate) fn release_kept(&mut self, index: usize, directory: &Directory) -> bool {
        let peer = &mut self.peers[index];
        if peer.kept_without_grant == 0 {
            return false;
        }

        peer.kept_without_grant -= 1;
        let node = directory.node_of(index);
        self.budgets.release(node, 1);
        self.grant_waiting(node, directory);
        true
    }

    /// Returns whether control messages are pending.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the number of peers with a pending control message.
    pub(crate) fn pending_peers(&self) -> usize {
        self.pending.len()
    }

    /// Returns the peer whose pending control message is next.
    pub(crate) fn next_pending(&self) -> Option<usize> {
        self.pending.front().map(|&index| index as usize)
    }

    /// Queues a peer for a control message.
    pub(crate) fn queue(&mut self, index: usize) {
        let due = &mut self.peers[index].due;
        if !due.queued {
            due.queued = true;
            self.pending.push_back(index as u32);
        }
    }

    /// Moves the next peer after all others.
    pub(crate) fn postpone_next(&mut self) {
        self.pending.rotate_left(1);
    }

    /// Removes the next peer, whose control messages are posted or no longer needed.
    pub(crate) fn finish_next(&mut self) {
        let Some(index) = self.pending.pop_front() else { return };
        let peer = &mut self.peers[index as usize];
        peer.incoming.unreturned = 0;
        (peer.due.refusal, peer.due.queued) = (false, false);
    }
}

/// Returns the credits that may be outstanding to all VPIDs of one node together: half of the
/// node's share of the slots, less the slots for control messages. The latter take up to half of
/// that half.
fn budget(slots: u32, nodes: u32, vpids: u32) -> u32 {
    let share = slots / nodes.max(1);
    let half = share / 2;
    half.saturating_sub((CONTROL_SLOTS * vpids).min(half / 2)).max(1)
}

/// Returns a number of slots that suits a network.
pub(crate) fn suitable_slots(nodes: u32, vpids: u32) -> u32 {
    // Grants and control messages together have half of a share.
    let minimum = nodes.saturating_mul(vpids).saturating_mul(2 * (CONTROL_SLOTS + SUITABLE_CREDITS));
    minimum.clamp(LEAST_SUITABLE_SLOTS, MAX_SLOTS as u32).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_less_than_half_of_a_share() {
        for (slots, nodes, vpids) in [(512, 2, 4), (65_536, 512, 64), (64, 64, 256), (512, 1, 1)] {
            let share = slots / nodes;
            assert!(budget(slots, nodes, vpids) <= (share / 2).max(1));
        }
        assert_eq!(suitable_slots(2, 4), 512);
        assert_eq!(suitable_slots(2048, 256), 65_536);
    }
}
