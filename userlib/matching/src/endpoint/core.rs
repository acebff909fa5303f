//! The state of an endpoint without its transport, and how a request ends.

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

/// Bytes of a short message of the transport at most: one that is put together on the stack.
pub(super) const SHORT: usize = 64;

/// Where a request is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Send: in its peer's queue; nothing has left.
    #[default]
    Queued,
    /// Send: the first of its peer's queue; a part has left.
    Sending,
    /// Send: the receiver has been told, or a message to this rank itself waits for its receive.
    Offered,
    /// Receive: waits for its message.
    Posted,
    /// Receive: the data of its message come eagerly.
    Filling,
    /// Receive: in the list of transfers; gets are still to be started.
    Pulling,
    /// Receive: no get is to be started any more; some are under way.
    Draining,
    /// In the list of those whose memory is to be taken back.
    Settling,
    /// In the completion queue.
    Done,
}

/// A request. Its place in the pool is used again as it is: [`Core::take`] leaves no buffer, region, answer, error, and nothing moved; whoever
/// makes a request sets the rest.
#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) state: State,
    pub(super) cookie: u64,
    pub(super) envelope: Envelope,
    pub(super) buffer: Buffer,
    /// Bytes of the message.
    pub(super) length: u64,
    /// Bytes that have left, or that gets were started for.
    pub(super) moved: usize,
    /// Gets under way.
    pub(super) gets: u32,
    /// Its registered memory.
    pub(super) region: Option<Region>,
    /// Receive: the sender's memory.
    pub(super) remote: RemoteRegion,
    /// Receive: the sender's name for its request, which waits for an answer.
    pub(super) answer: Option<u64>,
    /// Why it failed.
    pub(super) error: Option<Error>,
}

impl Op {
    /// Bytes of the message that the buffer takes.
    #[inline]
    pub(super) fn goal(&self) -> usize {
        self.buffer.len().min(usize::try_from(self.length).unwrap_or(usize::MAX))
    }

    /// What the completion of a request that has failed says: bytes in the buffer, where they would be `goal`, and why.
    #[cold]
    fn failure(&mut self, goal: usize) -> (usize, Result<(), Error>) {
        let error = self.error.take();
        let length = if matches!(error, Some(Error::Truncated { .. })) { goal } else { 0 };
        (length, error.map_or(Ok(()), Err))
    }
}

/// A message that waits for its receive.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) envelope: Envelope,
    pub(super) size: u64,
    /// Units of its sender's window.
    pub(super) cost: u64,
    /// Not in the queues any more.
    pub(super) claimed: bool,
    pub(super) content: Content,
}

/// What there is of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Content {
    /// Its sender was lost before all of it had come. Only claimed ones.
    #[default]
    Lost,
    /// Data that came eagerly; all of them or not.
    Stored(Chain, bool),
    /// Where to fetch it, and the sender's name for its request.
    Remote(RemoteRegion, u64),
    /// A send of this rank to itself.
    Own(u32),
}

/// An answer to a rendezvous that has not left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) request: u64,
    pub(super) status: u32,
}

/// Whether a peer can be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Alive,
    Gone(Loss),
    Bad(&'static str, u64),
}

/// Where the rest of an eager message goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Op(u32),
    Message(u32),
    Nobody,
}

/// The eager message of a peer that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) target: Target,
    pub(super) received: u64,
    pub(super) size: u64,
}

/// Another rank, or this one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) health: Health,
    /// Sends in their order.
    pub(super) sends: List,
    /// Answers that have not left, and how many.
    pub(super) answers: List,
    pub(super) owed: u64,
    /// Messages from it that wait here.
    pub(super) waiting: List,
    pub(super) incoming: Option<Incoming>,
    /// Units sent to it, and how many it allows, in all.
    pub(super) sent: u64,
    pub(super) limit: u64,
    /// Units of its messages that wait here.
    pub(super) held: u64,
    /// Units of its messages that do not wait any more, in all, and the limit it was told last.
    pub(super) consumed: u64,
    pub(super) granted: u64,
    /// Whether it is in the list of peers to send to.
    pub(super) active: bool,
}

pub(super) struct Core {
    pub(super) config: Config,
    pub(super) window: u64,
    pub(super) rank: Rank,
    pub(super) max_message: usize,
    pub(super) max_get: usize,
    pub(super) peers: Vec<Peer>,
    pub(super) ops: Pool<Op>,
    /// A request's place: in a peer's sends, the transfers, the settling or the done ones.
    pub(super) places: Lists,
    pub(super) messages: Pool<Waiting>,
    /// A message's place in its peer's `waiting`.
    pub(super) sources: Lists,
    pub(super) answers: Pool<Answer>,
    /// An answer's place in its peer's `answers`.
    pub(super) answering: Lists,
    pub(super) queues: Queues,
    pub(super) store: Store,
    pub(super) transfers: List,
    pub(super) settling: List,
    pub(super) done: List,
    /// Peers that there is something to send to.
    pub(super) active: VecDeque<Rank>,
    /// Peers that were lost and may still have requests, and the first place in `ops` that was not looked at for them.
    pub(super) lost: VecDeque<(Rank, u32)>,
    /// A message being put together.
    pub(super) scratch: Vec<u8>,
    /// Bytes of an eager message at most that leaves as one short message of the transport.
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
            answers: List::EMPTY,
            owed: 0,
            waiting: List::EMPTY,
            incoming: None,
            sent: 0,
            limit: window,
            held: 0,
            consumed: 0,
            granted: window,
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
            places: Lists::default(),
            messages: Pool::new(),
            sources: Lists::default(),
            answers: Pool::new(),
            answering: Lists::default(),
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

    pub(super) fn check_peer(&self, peer: Rank) -> Result<(), Error> {
        let size = self.peers.len() as u32;
        if peer < size { Ok(()) } else { Err(Error::NoSuchPeer { peer, size }) }
    }

    /// A place for a request.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<Handle, Error> {
        self.ops.enter().ok_or(Error::TooManyRequests { limit: Pool::<Op>::LIMIT })
    }

    /// Whether a peer can be talked to.
    #[inline]
    pub(super) fn is_alive(&self, peer: Rank) -> bool {
        matches!(self.peers[peer as usize].health, Health::Alive)
    }

    /// Why nothing can be done with a peer, unless it is alive.
    pub(super) fn peer_error(&self, peer: Rank) -> Option<Error> {
        match self.peers[peer as usize].health {
            Health::Alive => None,
            Health::Gone(why) => Some(Error::PeerGone { peer, why }),
            Health::Bad(what, value) => Some(Error::BadPeer { peer, what, value }),
        }
    }

    /// The request, which is in no list of places and not posted, has succeeded.
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
        self.places.push(&mut self.done, op);
    }

    /// The request, which is in no list of places and not posted, has failed.
    #[cold]
    pub(super) fn fail(&mut self, op: u32, error: Error) {
        let request = &mut self.ops[op];
        request.state = State::Done;
        self.statistics.failed += u64::from(error.is_peer());
        request.error = Some(error);
        self.places.push(&mut self.done, op);
    }

    /// One of both.
    pub(super) fn finish(&mut self, op: u32, error: Option<Error>) {
        match error {
            None => self.complete(op),
            Some(error) => self.fail(op, error),
        }
    }

    /// A receive has all that its buffer takes of its message.
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
        self.places.remove(&mut self.done, op);
        let place = &mut self.ops[op];
        let goal = place.goal();
        let (length, result) = if place.error.is_none() { (goal, Ok(())) } else { place.failure(goal) };
        let buffer = std::mem::take(&mut place.buffer);
        (place.moved, place.gets, place.region, place.answer) = (0, 0, None, None);
        let Op { kind, cookie, envelope, .. } = *place;
        self.ops.leave(op);
        Completion { request, kind, cookie, envelope, length, result, buffer }
    }

    /// Whether a request, which is at a place that is taken, waits for `peer`.
    pub(super) fn waits_for(&self, op: u32, peer: Rank) -> bool {
        let request = &self.ops[op];
        match request.state {
            State::Settling | State::Done => false,
            State::Posted => self.queues.source(op) == Some(peer),
            _ => request.envelope.peer == peer,
        }
    }

    /// There may be something to send to `peer`.
    pub(super) fn activate(&mut self, peer: Rank) {
        let state = &mut self.peers[peer as usize];
        if !state.active && peer != self.rank && state.health == Health::Alive {
            state.active = true;
            self.active.push_back(peer);
        }
    }

    /// Messages of `peer` that cost so many units have left the window.
    #[inline]
    pub(super) fn consume(&mut self, peer: Rank, cost: u64) {
        let state = &mut self.peers[peer as usize];
        state.consumed += cost;
        if state.grant_due(self.window) {
            self.activate(peer);
        }
    }

    /// The memory of the request is to be taken back, then it is complete.
    pub(super) fn settle(&mut self, op: u32) {
        self.ops[op].state = State::Settling;
        self.places.push(&mut self.settling, op);
    }

    pub(super) fn arrived(&self, message: u32) -> Arrived {
        let waiting = &self.messages[message];
        Arrived { envelope: waiting.envelope, length: waiting.size }
    }
}

impl Peer {
    /// Whether half of the window or more has not been granted again.
    #[inline]
    pub(super) fn grant_due(&self, window: u64) -> bool {
        self.consumed + window - self.granted >= window.div_ceil(2)
    }
}
