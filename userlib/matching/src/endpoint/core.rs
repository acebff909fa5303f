//! The state of an endpoint without its transport, and the end of a request.

use std::collections::VecDeque;

use super::{Arrived, Completion, Kind, Mode, Request};
use crate::{
    Buffer, Config, Envelope, Error, Loss, Rank, Region, RemoteRegion, Statistics,
    lists::{List, Lists},
    pool::{Handle, Pool},
    queues::Queues,
    store::{Chain, Store},
    wire::First,
};

/// Length in bytes of the longest short message: one that is assembled on the stack.
pub(super) const SHORT: usize = 64;

/// State of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Send: in its peer's queue; nothing has left.
    #[default]
    Queued,
    /// Send: at the head of its peer's queue; a part has left.
    Sending,
    /// Send: the receiver has the rendezvous request. Or a message to this rank itself waits for
    /// its receive.
    Offered,
    /// Receive: posted.
    Posted,
    /// Receive: matched; the data of the eager message is arriving.
    Filling,
    /// Receive: in the list of transfers; further gets must be started.
    Fetching,
    /// Receive: no further get will be started; some are in flight.
    Draining,
    /// In the list of requests whose memory must be deregistered.
    Settling,
    /// In the completion queue.
    Done,
}

/// A request. The pool reuses its place without a reset. [`Core::take`] clears `buffer`, `moved`,
/// `gets`, `region`, `ack_handle` and `error`; a new request sets the other fields.
#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) state: State,
    pub(super) cookie: u64,
    pub(super) envelope: Envelope,
    pub(super) buffer: Buffer,
    /// Length of the message in bytes.
    pub(super) length: u64,
    /// Bytes that have left, or for which gets were started.
    pub(super) moved: usize,
    /// Gets in flight.
    pub(super) gets: u32,
    /// The region of its registered memory.
    pub(super) region: Option<Region>,
    /// Receive: the sender's memory.
    pub(super) remote: RemoteRegion,
    /// Receive: the sender's handle of its request, while an acknowledgement is due.
    pub(super) ack_handle: Option<u64>,
    /// The reason for its failure.
    pub(super) error: Option<Error>,
}

impl Op {
    /// Returns the number of bytes of the message that fit in the buffer.
    #[inline]
    pub(super) fn fitting_bytes(&self) -> usize {
        self.buffer.len().min(usize::try_from(self.length).unwrap_or(usize::MAX))
    }

    /// Returns length and result for the completion of a failed request. `fitting` is the number of
    /// bytes that fit in the buffer.
    #[cold]
    fn failure(&mut self, fitting: usize) -> (usize, Result<(), Error>) {
        let error = self.error.take();
        let length = if matches!(error, Some(Error::Truncated { .. })) { fitting } else { 0 };
        (length, error.map_or(Ok(()), Err))
    }
}

/// An unexpected message.
#[derive(Debug, Default)]
pub(super) struct UnexpectedMessage {
    pub(super) envelope: Envelope,
    pub(super) size: u64,
    /// Units of its sender's window that it uses.
    pub(super) cost: u64,
    /// Whether it was claimed, and is no longer in the queues.
    pub(super) claimed: bool,
    pub(super) content: Content,
}

/// The content of an unexpected message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Content {
    /// Its sender was lost before the data was complete. Only claimed messages have this state.
    #[default]
    Lost,
    /// Eager data, and whether it is complete.
    Stored(Chain, bool),
    /// The memory to fetch it from, and the sender's handle of its request.
    Remote(RemoteRegion, u64),
    /// A send of this rank to itself, by its request.
    ToSelf(u32),
}

/// The acknowledgement of a rendezvous, not yet sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acknowledgement {
    pub(super) request: u64,
    pub(super) status: u32,
}

/// Whether a peer takes part in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Alive,
    Gone(Loss),
    Bad(&'static str, u64),
}

/// Destination of the remaining data of an eager message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Op(u32),
    Message(u32),
    Discard,
}

/// An eager message that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) target: Target,
    pub(super) received: u64,
    pub(super) size: u64,
}

/// State of another rank, or of this one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) health: Health,
    /// Sends in their order.
    pub(super) sends: List,
    /// Acknowledgements not yet sent.
    pub(super) acks: List,
    /// Number of acknowledgements not yet sent.
    pub(super) unsent_acks: u64,
    /// Its unexpected messages.
    pub(super) unexpected: List,
    pub(super) incoming: Option<Incoming>,
    /// Total number of window units sent to it.
    pub(super) sent: u64,
    /// Total number of window units that it has granted.
    pub(super) limit: u64,
    /// Window units that its unexpected messages use.
    pub(super) window_used: u64,
    /// Total number of window units of its messages that have left the window.
    pub(super) consumed: u64,
    /// The limit of the last grant sent to it.
    pub(super) granted_limit: u64,
    /// Whether it is in the list of peers with something to send.
    pub(super) active: bool,
}

/// The state of an endpoint without its transport.
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) window: u64,
    pub(super) rank: Rank,
    pub(super) max_message: usize,
    pub(super) max_get: usize,
    pub(super) peers: Vec<Peer>,
    pub(super) ops: Pool<Op>,
    /// Links of requests: each is in a peer's sends, the transfers, the settling or the completed
    /// requests.
    pub(super) request_links: Lists,
    pub(super) messages: Pool<UnexpectedMessage>,
    /// Links of messages in `unexpected` of their peers.
    pub(super) message_links: Lists,
    pub(super) acks: Pool<Acknowledgement>,
    /// Links of acknowledgements in `acks` of their peers.
    pub(super) ack_links: Lists,
    pub(super) queues: Queues,
    pub(super) store: Store,
    pub(super) transfers: List,
    pub(super) settling: List,
    pub(super) done: List,
    /// Peers with something to send.
    pub(super) active: VecDeque<Rank>,
    /// Lost peers that may still have requests, each with the first place of `ops` not yet checked.
    pub(super) lost: VecDeque<(Rank, u32)>,
    /// Buffer in which a message is assembled.
    pub(super) scratch: Vec<u8>,
    /// Length in bytes of the longest eager message that leaves as one short message.
    pub(super) short: usize,
    pub(super) statistics: Statistics,
}

impl Core {
    pub(super) fn new(config: Config, rank: Rank, size: u32, max_message: usize, max_get: usize) -> Self {
        let window = config.window_units();
        let short = config.eager_threshold.min(max_message.min(SHORT) - size_of::<First>());

        let peer = || Peer {
            health: Health::Alive,
            sends: List::EMPTY,
            acks: List::EMPTY,
            unsent_acks: 0,
            unexpected: List::EMPTY,
            incoming: None,
            sent: 0,
            limit: window,
            window_used: 0,
            consumed: 0,
            granted_limit: window,
            active: false,
        };

        Self {
            config,
            window,
            rank,
            max_message,
            max_get,
            peers: (0..size).map(|_| peer()).collect(),
            ops: Pool::new(),
            request_links: Lists::default(),
            messages: Pool::new(),
            message_links: Lists::default(),
            acks: Pool::new(),
            ack_links: Lists::default(),
            queues: Queues::new(),
            store: Store::new(),
            transfers: List::EMPTY,
            settling: List::EMPTY,
            done: List::EMPTY,
            active: VecDeque::with_capacity(size as usize),
            lost: VecDeque::with_capacity(size as usize),
            scratch: Vec::with_capacity(max_message.min(config.eager_threshold.saturating_add(64)).max(64)),
            short,
            statistics: Statistics::default(),
        }
    }

    /// Checks that a rank exists.
    pub(super) fn check_peer(&self, peer: Rank) -> Result<(), Error> {
        let size = self.peers.len() as u32;
        if peer < size { Ok(()) } else { Err(Error::NoSuchPeer { peer, size }) }
    }

    /// Takes a place for a request.
    #[inline]
    pub(super) fn allocate(&mut self) -> Result<Handle, Error> {
        self.ops.allocate().ok_or(Error::TooManyRequests { limit: Pool::<Op>::LIMIT })
    }

    /// Returns whether a peer takes part in the protocol.
    #[inline]
    pub(super) fn is_alive(&self, peer: Rank) -> bool {
        matches!(self.peers[peer as usize].health, Health::Alive)
    }

    /// Returns the reason why a peer does not take part, if so.
    pub(super) fn peer_error(&self, peer: Rank) -> Option<Error> {
        match self.peers[peer as usize].health {
            Health::Alive => None,
            Health::Gone(why) => Some(Error::PeerGone { peer, why }),
            Health::Bad(what, value) => Some(Error::BadPeer { peer, what, value }),
        }
    }

    /// Completes a request successfully. It must not be in any list, nor posted.
    #[inline]
    pub(super) fn complete(&mut self, op: u32) {
        let request = &mut self.ops[op];
        request.state = State::Done;

        if request.kind == Kind::Send {
            self.statistics.sent += 1;
        } else {
            self.statistics.received += 1;
            self.statistics.bytes_received += request.length;
        }
        self.request_links.push(&mut self.done, op);
    }

    /// Completes a request with an error. It must not be in any list, nor posted.
    #[cold]
    pub(super) fn fail(&mut self, op: u32, error: Error) {
        let request = &mut self.ops[op];
        request.state = State::Done;
        self.statistics.failed += u64::from(error.is_peer());
        request.error = Some(error);
        self.request_links.push(&mut self.done, op);
    }

    /// Completes a request, with an error if there is one.
    pub(super) fn finish(&mut self, op: u32, error: Option<Error>) {
        match error {
            None => self.complete(op),
            Some(error) => self.fail(op, error),
        }
    }

    /// Completes a receive whose buffer holds all that fits of its message.
    #[inline]
    pub(super) fn finish_receive(&mut self, op: u32) {
        let request = &self.ops[op];
        let (length, capacity) = (request.length, request.buffer.len());
        if length > capacity as u64 {
            self.fail(op, Error::Truncated { length, capacity });
        } else {
            self.complete(op);
        }
    }

    /// Takes the completion of a request that is done.
    #[inline]
    pub(super) fn take(&mut self, op: u32) -> Completion {
        let request = Request(self.ops.handle(op));
        self.request_links.remove(&mut self.done, op);

        let place = &mut self.ops[op];
        let fitting = place.fitting_bytes();
        let (length, result) = if place.error.is_none() { (fitting, Ok(())) } else { place.failure(fitting) };

        let buffer = std::mem::take(&mut place.buffer);
        (place.moved, place.gets, place.region, place.ack_handle) = (0, 0, None, None);

        let Op { kind, cookie, envelope, .. } = *place;
        self.ops.release(op);
        Completion { request, kind, cookie, envelope, length, result, buffer }
    }

    /// Returns whether a request, at a taken place, waits for `peer`.
    pub(super) fn waits_for(&self, op: u32, peer: Rank) -> bool {
        let request = &self.ops[op];
        match request.state {
            State::Settling | State::Done => false,
            State::Posted => self.queues.source(op) == Some(peer),
            _ => request.envelope.peer == peer,
        }
    }

    /// Queues `peer` for sending, if it is alive.
    pub(super) fn activate(&mut self, peer: Rank) {
        let state = &mut self.peers[peer as usize];
        if !state.active && peer != self.rank && state.health == Health::Alive {
            state.active = true;
            self.active.push_back(peer);
        }
    }

    /// Counts `cost` units of `peer` that have left the window, and queues a grant when one is due.
    #[inline]
    pub(super) fn consume(&mut self, peer: Rank, cost: u64) {
        let state = &mut self.peers[peer as usize];
        state.consumed += cost;
        if state.grant_due(self.window) {
            self.activate(peer);
        }
    }

    /// Queues a request for deregistration of its memory, after which it completes.
    pub(super) fn settle(&mut self, op: u32) {
        self.ops[op].state = State::Settling;
        self.request_links.push(&mut self.settling, op);
    }

    /// Returns the description of an unexpected message.
    pub(super) fn arrived(&self, message: u32) -> Arrived {
        let unexpected = &self.messages[message];
        Arrived { envelope: unexpected.envelope, length: unexpected.size }
    }
}

impl Peer {
    /// Returns whether half of the window or more was consumed since the last grant.
    #[inline]
    pub(super) fn grant_due(&self, window: u64) -> bool {
        self.consumed + window - self.granted_limit >= window.div_ceil(2)
    }
}
