//! Messages of processes in host-based mode that the firmware does not have yet, and the nodes that
//! the kernel refuses because they do not take its answers.
//!
//! Each node has a queue of answers (replies, and acknowledgements of puts) and a queue of requests
//! (puts and gets of this node's processes), which take turns, as the nodes do. The firmware has
//! room for [`KERNEL_MESSAGES`]. A node gets no more of it than it leaves free, so that nodes which
//! take nothing leave room for the others.
//!
//! The limits of its process bound the requests. Answers are bounded by a quota for each node: the
//! firmware refuses puts and gets of a node with more, and the flow control lets that node wait
//! alone. Events are always taken, because those that end operations make room.
//!
//! Nodes may refuse each other, also in a circle. In each of them, answers overtake the requests
//! that were refused, if the firmware has them. So the requests to a node leave room for answers.

use std::collections::VecDeque;

use nicforge_hwi::seastar::{KERNEL_MESSAGES, message};

use super::messages::OutgoingMessage;

/// Number of unfinished answers to a node above which its puts and gets are refused.
const REFUSES_ABOVE: u32 = 1024;
/// Number of unfinished answers to a refused node at which it is admitted again.
const ADMITS_AT: u32 = REFUSES_ABOVE / 2;

/// The messages to a node, and what is known of its own.
#[derive(Default)]
struct Peer {
    answers: VecDeque<OutgoingMessage>,
    requests: VecDeque<OutgoingMessage>,
    /// Messages that the firmware has.
    in_flight: u16,
    /// Requests among them.
    requests_in_flight: u16,
    /// Answers in `answers` and in flight.
    unfinished_answers: u32,
    /// The last message that was passed to the firmware was an answer.
    had_answer: bool,
    /// The node is in the queue of turns.
    has_turn: bool,
    /// The firmware was told to refuse the node.
    is_refused: bool,
    /// The node is in the queue of those to be refused or admitted.
    is_due: bool,
}

impl Peer {
    fn has_messages(&self) -> bool {
        !self.answers.is_empty() || !self.requests.is_empty()
    }

    /// Returns the queue whose first message is next, if one may be sent. The firmware has room for
    /// `free` messages.
    fn next_kind(&self, free: u16) -> Option<Kind> {
        if self.in_flight >= free {
            return None;
        }
        let may_request = !self.requests.is_empty() && 2 * self.requests_in_flight < free;
        match (self.answers.is_empty(), may_request) {
            (false, false) => Some(Kind::Answer),
            (false, true) if !self.had_answer => Some(Kind::Answer),
            (_, true) => Some(Kind::Request),
            (true, false) => None,
        }
    }

    /// Returns the first message of a queue.
    fn first(&self, kind: Kind) -> Option<&OutgoingMessage> {
        match kind {
            Kind::Answer => self.answers.front(),
            Kind::Request => self.requests.front(),
        }
    }
}

/// The queue of a node that a message is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Answer,
    Request,
}

/// Numbers of messages in the kernel's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelBacklog {
    /// Answers to other nodes that are queued or being sent.
    pub answers: usize,
    /// Puts and gets of this node's processes that are queued.
    pub requests: usize,
    /// Nodes whose puts and gets are refused, because too many answers to them are unfinished.
    pub refused_nodes: usize,
}

/// The messages that the firmware does not have yet.
pub(super) struct Outbox {
    /// All nodes of the network.
    peers: Vec<Peer>,
    /// Nodes with queued messages, in the order of their turns.
    turns: VecDeque<u32>,
    /// Messages that the firmware has.
    in_flight: u16,
    /// Nodes that may have to be refused or admitted.
    due: Vec<u32>,
}

impl Outbox {
    /// Makes the outbox of a kernel in a network of `nodes` nodes.
    pub(super) fn new(nodes: u32) -> Self {
        let mut peers = Vec::new();
        peers.resize_with(nodes as usize, Peer::default);
        Self { peers, turns: VecDeque::new(), in_flight: 0, due: Vec::new() }
    }

    /// Returns whether the network has this node.
    pub(super) fn has_node(&self, node: u32) -> bool {
        (node as usize) < self.peers.len()
    }

    /// Queues a message behind those of its kind to the same node, which the network must have.
    pub(super) fn push(&mut self, outgoing: OutgoingMessage) {
        let node = outgoing.target.node;
        let Some(peer) = self.peers.get_mut(node as usize) else { return };

        if outgoing.is_answer() {
            peer.answers.push_back(outgoing);
            peer.unfinished_answers += 1;
            if peer.unfinished_answers > REFUSES_ABOVE && !peer.is_refused && !peer.is_due {
                peer.is_due = true;
                self.due.push(node);
            }
        } else {
            peer.requests.push_back(outgoing);
        }
        if !peer.has_turn {
            peer.has_turn = true;
            self.turns.push_back(node);
        }
    }

    /// Returns the next message to pass to the firmware, and gives its node the next turn.
    /// [`Self::take`] removes it.
    pub(super) fn next(&mut self) -> Option<OutgoingMessage> {
        for _ in 0..self.turns.len() {
            let &node = self.turns.front()?;
            let free = self.free();
            let peer = self.peers.get_mut(node as usize)?;
            match peer.next_kind(free).and_then(|kind| peer.first(kind)) {
                Some(&first) => return Some(first),
                None if peer.has_messages() => self.turns.rotate_left(1),
                None => {
                    peer.has_turn = false;
                    self.turns.pop_front();
                }
            }
        }
        None
    }

    /// Removes the message that [`Self::next`] has returned. `is_sent` says that the firmware has
    /// it now: [`Self::end`] follows. Otherwise it has ended.
    pub(super) fn take(&mut self, is_sent: bool) {
        let free = self.free();
        let Some(&node) = self.turns.front() else { return };
        let Some(peer) = self.peers.get_mut(node as usize) else { return };
        let Some(kind) = peer.next_kind(free) else { return };
        self.turns.pop_front();
        let is_answer = kind == Kind::Answer;
        let queue = if is_answer { &mut peer.answers } else { &mut peer.requests };
        queue.pop_front();
        peer.had_answer = is_answer;

        peer.has_turn = peer.has_messages();
        if peer.has_turn {
            self.turns.push_back(node);
        }
        if is_sent {
            peer.in_flight += 1;
            peer.requests_in_flight += u16::from(!is_answer);
            self.in_flight += 1;
        } else if is_answer {
            self.finish_answers(node, 1);
        }
    }

    /// Records the end of a message that the firmware had.
    pub(super) fn end(&mut self, outgoing: &OutgoingMessage) {
        let node = outgoing.target.node;
        let Some(peer) = self.peers.get_mut(node as usize) else { return };
        let is_request = !outgoing.is_answer();
        peer.in_flight = peer.in_flight.saturating_sub(1);
        peer.requests_in_flight = peer.requests_in_flight.saturating_sub(is_request.into());
        self.in_flight = self.in_flight.saturating_sub(1);
        if !is_request {
            self.finish_answers(node, 1);
        }
    }

    /// Returns the number of messages for which the firmware has room.
    fn free(&self) -> u16 {
        KERNEL_MESSAGES.saturating_sub(self.in_flight)
    }

    /// Removes the queued messages of a process, by the number of its start.
    pub(super) fn remove_process(&mut self, start: u32) {
        for node in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(node) else { return };
            let answers = peer.answers.len();
            peer.answers.retain(|outgoing| outgoing.start != start);
            peer.requests.retain(|outgoing| outgoing.start != start);
            let removed = answers - peer.answers.len();
            self.finish_answers(node as u32, removed as u32);
        }
    }

    /// Subtracts answers to a node that have ended.
    fn finish_answers(&mut self, node: u32, count: u32) {
        let Some(peer) = self.peers.get_mut(node as usize) else { return };
        peer.unfinished_answers = peer.unfinished_answers.saturating_sub(count);
        if peer.unfinished_answers <= ADMITS_AT && peer.is_refused && !peer.is_due {
            peer.is_due = true;
            self.due.push(node);
        }
    }

    /// Returns a node that the firmware must refuse from now on (`true`) or admit.
    pub(super) fn next_due(&mut self) -> Option<(u32, bool)> {
        while let Some(node) = self.due.pop() {
            let Some(peer) = self.peers.get_mut(node as usize) else { continue };
            peer.is_due = false;
            // Answers may have ended since the node became due.
            let limit = if peer.is_refused { ADMITS_AT } else { REFUSES_ABOVE };
            let is_refused = peer.unfinished_answers > limit;
            if peer.is_refused != is_refused {
                peer.is_refused = is_refused;
                return Some((node, is_refused));
            }
        }
        None
    }

    /// Returns whether no message is queued, and no node has to be refused or admitted.
    pub(super) fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.due.is_empty()
    }

    /// Counts the messages.
    pub(super) fn backlog(&self) -> KernelBacklog {
        let mut backlog = KernelBacklog::default();
        for peer in &self.peers {
            backlog.answers += peer.unfinished_answers as usize;
            backlog.requests += peer.requests.len();
            backlog.refused_nodes += usize::from(peer.is_refused);
        }
        backlog
    }
}

impl OutgoingMessage {
    /// Returns whether the message answers one of its target.
    fn is_answer(&self) -> bool {
        matches!(self.kind, message::REPLY | message::PORTALS_ACK)
    }
}
