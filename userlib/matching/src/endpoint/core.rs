//! The state of an endpoint without its transport, and how a request ends.

use std::collections::VecDeque;

use super::{Arrived, Completion, Kind, Mode, Request};
use crate::{
    Buffer, Config, Envelope, Error, Loss, Rank, Region, RemoteRegion, Statistics,
    lists::{List, Lists},
    pool::{Handle, Pool},
    queues::Queues,
    store::{Chain, Store},
};

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

/// A request.
#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) state: State,
    /// Whether it is in the list of its peer's requests.
    pub(super) owned: bool,
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
    pub(super) fn goal(&self) -> usize {
        self.buffer.len().min(usize::try_from(self.length).unwrap_or(usize::MAX))
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
    /// All requests that wait for it.
    pub(super) ops: List,
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
    /// A request's place in its peer's `ops`.
    pub(super) owners: Lists,
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
    /// Peers that were lost and still have requests.
    pub(super) lost: VecDeque<Rank>,
    /// A message being put together.
    pub(super) scratch: Vec<u8>,
    pub(super) statistics: Statistics,
}

impl Core {
    pub(super) fn new(config: Config, rank: Rank, size: u32, max_message: usize, max_get: usize) -> Self {
        let window = config.window_units();
        let peer = || Peer {
            health: Health::Alive,
            sends: List::EMPTY,
            answers: List::EMPTY,
            owed: 0,
            ops: List::EMPTY,
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
            owners: Lists::default(),
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
            statistics: Statistics::default(),
        }
    }

    pub(super) fn check_peer(&self, peer: Rank) -> Result<(), Error> {
        let size = self.peers.len() as u32;
        if peer < size { Ok(()) } else { Err(Error::NoSuchPeer { peer, size }) }
    }

    pub(super) fn insert(&mut self, op: Op) -> Result<Handle, Error> {
        self.ops.insert(op).map_err(|_| Error::TooManyRequests { limit: Pool::<Op>::LIMIT })
    }

    /// Why nothing can be done with a peer, unless it is alive.
    pub(super) fn peer_error(&self, peer: Rank) -> Option<Error> {
        match self.peers[peer as usize].health {
            Health::Alive => None,
            Health::Gone(why) => Some(Error::PeerGone { peer, why }),
            Health::Bad(what, value) => Some(Error::BadPeer { peer, what, value }),
        }
    }

    /// The request waits for its peer from now on.
    pub(super) fn own(&mut self, op: u32) {
        let request = &mut self.ops[op];
        if !request.owned {
            request.owned = true;
            self.owners.push(&mut self.peers[request.envelope.peer as usize].ops, op);
        }
    }

    /// The request, which is in no list of places and not posted, is complete.
    pub(super) fn finish(&mut self, op: u32, error: Option<Error>) {
        let request = &mut self.ops[op];
        if request.owned {
            request.owned = false;
            self.owners.remove(&mut self.peers[request.envelope.peer as usize].ops, op);
        }
        request.state = State::Done;
        match &error {
            Some(error) => self.statistics.failed += u64::from(error.is_peer()),
            None if request.kind == Kind::Send => self.statistics.sent += 1,
            None => {
                self.statistics.received += 1;
                self.statistics.bytes_received += request.length;
            }
        }
        request.error = error;
        self.places.push(&mut self.done, op);
    }

    /// A receive has all that its buffer takes of its message.
    pub(super) fn finish_receive(&mut self, op: u32) {
        let request = &self.ops[op];
        let capacity = request.buffer.len();
        let length = request.length;
        let truncated = (length > capacity as u64).then_some(Error::Truncated { length, capacity });
        self.finish(op, truncated);
    }

    /// Takes the completion of a request that is done.
    pub(super) fn take(&mut self, op: u32) -> Completion {
        let request = Request(self.ops.handle(op));
        self.places.remove(&mut self.done, op);
        let op = self.ops.remove(op);
        let length = match &op.error {
            None | Some(Error::Truncated { .. }) => op.goal(),
            Some(_) => 0,
        };
        let Op { kind, cookie, envelope, buffer, error, .. } = op;
        Completion { request, kind, cookie, envelope, length, result: error.map_or(Ok(()), Err), buffer }
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
    pub(super) fn grant_due(&self, window: u64) -> bool {
        self.consumed + window - self.granted >= window.div_ceil(2)
    }
}
