//! The state of an endpoint without its transport, and the end of a request.

use super::{
    Kind,
    peers::{Acknowledgements, Peers},
    requests::{Requests, State},
    unexpected::UnexpectedMessages,
};
use crate::{
    Config, Error, Rank, Statistics,
    queues::Queues,
    wire::{self, First},
};

/// Length in bytes of the longest short message: one that is assembled on the stack.
pub(super) const MAX_SHORT: usize = 64;

/// Bytes that the headers of all kinds of messages fit in.
const MAX_HEADER: usize = 64;

/// The sizes that an endpoint keeps to. They never change.
pub(super) struct Limits {
    pub(super) config: Config,
    /// Window units that each peer may use.
    pub(super) window: u64,
    /// Units by which the windows of all peers together may grow.
    pub(super) pool: u64,
    /// Units of unexpected messages beyond which a peer may have no window left.
    pub(super) short_at: u64,
    /// Length in bytes of the transport's longest message.
    pub(super) max_message: usize,
    /// Length in bytes of the transport's longest get.
    pub(super) max_get: usize,
    /// Length in bytes of the longest eager message that leaves as one short message.
    pub(super) max_short: usize,
}

/// The state of an endpoint without its transport.
pub(super) struct Core {
    pub(super) limits: Limits,
    pub(super) peers: Peers,
    pub(super) requests: Requests,
    pub(super) unexpected: UnexpectedMessages,
    pub(super) acks: Acknowledgements,
    pub(super) queues: Queues,
    /// The source of a probe that has found nothing since the last call of `progress`, while a peer
    /// was short of its window.
    pub(super) probed: Option<Option<Rank>>,
    /// Buffer in which a message is assembled.
    pub(super) scratch: Vec<u8>,
    pub(super) statistics: Statistics,
}

impl Core {
    /// Returns the state of rank `rank` of `size`, over a transport with these longest messages and
    /// gets.
    pub(super) fn new(config: Config, rank: Rank, size: u32, max_message: usize, max_get: usize) -> Self {
        let max_short = config.eager_threshold.min(max_message.min(MAX_SHORT) - size_of::<First>());
        let (window, pool) = (config.window_units(), config.pool_units());
        // Half of the window may be consumed without a new grant. A send may then find less than
        // its cost. A peer that has a longer eager threshold is considered up to a quarter of the
        // window.
        let longest_cost = wire::cost(config.eager_threshold as u64).max(window / 4);
        let short_at = (window / 2).saturating_sub(longest_cost);
        let limits = Limits { config, window, pool, short_at, max_message, max_get, max_short };
        // Room for the longest header and eager data, so that the buffer never grows.
        let longest_eager = config.eager_threshold.saturating_add(MAX_HEADER);
        let scratch_bytes = max_message.min(longest_eager).max(MAX_HEADER);

        Self {
            peers: Peers::new(rank, size, limits.window),
            limits,
            requests: Requests::new(),
            unexpected: UnexpectedMessages::new(),
            acks: Acknowledgements::new(),
            queues: Queues::new(),
            probed: None,
            scratch: Vec::with_capacity(scratch_bytes),
            statistics: Statistics::default(),
        }
    }

    /// Completes a request successfully. It must not be in any list, nor posted.
    #[inline]
    pub(super) fn complete(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        request.state = State::Done;

        if request.kind == Kind::Send {
            self.statistics.sent += 1;
        } else {
            self.statistics.received += 1;
            self.statistics.bytes_received += request.length;
        }
        self.requests.add_done(slot);
    }

    /// Completes a request with an error. It must not be in any list, nor posted.
    #[cold]
    pub(super) fn fail(&mut self, slot: u32, error: Error) {
        self.statistics.failed += u64::from(error.is_peer());
        let request = &mut self.requests[slot];
        (request.state, request.error) = (State::Done, Some(error));
        self.requests.add_done(slot);
    }

    /// Completes a request, with an error if there is one.
    pub(super) fn finish(&mut self, slot: u32, error: Option<Error>) {
        match error {
            None => self.complete(slot),
            Some(error) => self.fail(slot, error),
        }
    }

    /// Completes a receive whose buffer holds all that fits of its message.
    #[inline]
    pub(super) fn finish_receive(&mut self, slot: u32) {
        let request = &self.requests[slot];
        let (length, capacity) = (request.length, request.buffer.len());
        if length > capacity as u64 {
            self.fail(slot, Error::Truncated { length, capacity });
        } else {
            self.complete(slot);
        }
    }

    /// Adds a receive to the end of its peer's transfers.
    pub(super) fn add_transfer(&mut self, slot: u32) {
        let rank = self.requests[slot].envelope.peer;
        self.requests.links.push(&mut self.peers[rank].transfers, slot);
        self.peers.add_fetching(rank);
    }

    /// Removes a receive from its peer's transfers.
    pub(super) fn remove_transfer(&mut self, slot: u32) {
        let rank = self.requests[slot].envelope.peer;
        self.requests.links.remove(&mut self.peers[rank].transfers, slot);
    }

    /// Returns whether a request, in a taken slot, waits for `peer`.
    pub(super) fn waits_for(&self, slot: u32, peer: Rank) -> bool {
        let request = &self.requests[slot];
        match request.state {
            State::Deregistering | State::Done => false,
            State::Posted => self.queues.source(slot) == Some(peer),
            _ => request.envelope.peer == peer,
        }
    }

    /// Counts `cost` units of `peer` that no longer use its window, and queues a grant when one is
    /// due.
    #[inline]
    pub(super) fn consume(&mut self, peer: Rank, cost: u64) {
        let state = &mut self.peers[peer];
        state.consumed += cost;
        if state.is_grant_due() {
            self.peers.activate(peer);
        }
    }
}
