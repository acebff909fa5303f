//! The peers of an endpoint, and what waits to be sent to them.

use std::{
    collections::VecDeque,
    ops::{Index, IndexMut},
};

use crate::{
    Error, Loss, Rank,
    lists::{List, Lists},
    pool::{Handle, Pool},
};

/// Whether a peer takes part in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It takes part, as far as this rank knows.
    Alive,
    /// The transport has reported its loss.
    Gone(Loss),
    /// It has violated the protocol: the rule, and the invalid value.
    Bad(&'static str, u64),
}

/// Destination of the remaining data of an eager message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// The buffer of a receive.
    Request(u32),
    /// The store of unexpected messages.
    Message(u32),
    /// None: the application has discarded the message.
    Discard,
}

/// An eager message that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) target: Target,
    pub(super) received: u64,
    pub(super) size: u64,
}

/// State of this rank's window for a peer that can't grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// There is none, as far as this rank knows.
    None,
    /// The peer must be asked whether a send of it waits.
    MustAsk,
    /// The peer was asked.
    Asked,
    /// A send of the peer waits.
    Blocked,
    /// The peer must be told that its sends fail.
    MustGiveUp,
}

/// The last message of kind [`crate::wire::FULL`] of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// There was none since the last grant, or it was answered.
    No,
    /// The peer asks whether a send waits for its window.
    Asks,
    /// Sends that wait for the window fail, up to this one.
    GivesUp(Handle),
}

/// State of another rank, or of this one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) health: Health,
    /// Sends in their order.
    pub(super) sends: List,
    /// Receives that fetch messages of it, and need further gets.
    pub(super) transfers: List,
    /// Whether it is in the list of peers with transfers.
    is_fetching: bool,
    /// Acknowledgements not yet sent.
    pub(super) acks: List,
    /// Number of acknowledgements not yet sent.
    pub(super) unsent_acks: u64,
    /// Its unexpected messages.
    pub(super) unexpected: List,
    /// The eager message of which it has sent a part.
    pub(super) incoming: Option<Incoming>,
    /// Total number of window units sent to it.
    pub(super) sent: u64,
    /// Total number of window units that it has granted.
    pub(super) limit: u64,
    /// The last thing that it has said about its window for this rank, if that can't grow.
    pub(super) full: Full,
    /// Bytes of its window that this rank's messages use, as it has said when its window was full.
    pub(super) full_bytes: u64,
    /// The limit of the window then.
    pub(super) full_limit: u64,
    /// Window units that its unexpected messages use.
    pub(super) window_used: u64,
    /// Total number of window units of its messages that have left the window.
    pub(super) consumed: u64,
    /// The limit of the last grant sent to it.
    pub(super) granted_limit: u64,
    /// The value of `consumed` from which on a grant is due, or a message about a window that can't
    /// grow.
    pub(super) grant_at: u64,
    /// The limit up to which its window was grown last.
    pub(super) grown_limit: u64,
    /// Whether its window can't grow.
    pub(super) shortage: Shortage,
    /// Whether it is in the list of peers that may have no window left.
    pub(super) is_short: bool,
    /// Whether it is in the list of peers whose windows have grown.
    pub(super) is_grown: bool,
    /// Whether it is in the list of peers with messages to send.
    pub(super) active: bool,
}

impl Peer {
    /// Returns whether a grant is due, or a message about a window that can't grow.
    #[inline]
    pub(super) fn is_grant_due(&self) -> bool {
        self.consumed >= self.grant_at
    }

    /// Sets the time of the next grant: when it raises the peer's limit by half of the window or
    /// more.
    pub(super) fn schedule_grant(&mut self, window: u64) {
        self.grant_at = self.granted_limit - window + window.div_ceil(2);
    }

    /// Returns the units that the peer's messages may still use, beyond `used` units.
    pub(super) fn remaining(&self, used: u64) -> u64 {
        self.granted_limit.max(self.grown_limit).saturating_sub(self.consumed).saturating_sub(used)
    }

    /// Returns the units beyond a window that the peer's messages use or may use.
    pub(super) fn grown_units(&self, window: u64) -> u64 {
        let used = match self.health {
            Health::Alive => self.granted_limit.max(self.grown_limit).saturating_sub(self.consumed),
            _ => self.window_used,
        };
        used.saturating_sub(window)
    }
}

/// The acknowledgement of a rendezvous, not yet sent: the fields of [`crate::wire::Finish`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acknowledgement {
    /// The sender's handle of its request.
    pub(super) request: u64,
    pub(super) status: u32,
}

/// The acknowledgements that are not yet sent.
///
/// Invariant: each is in `acks` of the peer that it is for, and counted in its `unsent_acks`.
pub(super) struct Acknowledgements {
    pool: Pool<Acknowledgement>,
    links: Lists,
}

impl Acknowledgements {
    /// Returns an empty pool.
    pub(super) fn new() -> Self {
        Self { pool: Pool::new(), links: Lists::default() }
    }

    /// Adds an acknowledgement to those of `peer`. Returns whether there was room. The limit of the
    /// pool is far above the windows of all peers.
    pub(super) fn add(&mut self, peer: &mut Peer, ack: Acknowledgement) -> bool {
        let Ok(ack) = self.pool.insert(ack) else { return false };
        peer.unsent_acks += 1;
        self.links.push(&mut peer.acks, ack.index);
        true
    }

    /// Returns an acknowledgement that is not yet sent.
    pub(super) fn get(&self, ack: u32) -> Acknowledgement {
        self.pool[ack]
    }

    /// Removes an acknowledgement, which is sent, from those of `peer`.
    pub(super) fn remove(&mut self, peer: &mut Peer, ack: u32) {
        peer.unsent_acks -= 1;
        self.links.remove(&mut peer.acks, ack);
        self.pool.remove(ack);
    }

    /// Removes all acknowledgements of a lost peer.
    pub(super) fn clear(&mut self, peer: &mut Peer) {
        while let Some(ack) = self.links.pop(&mut peer.acks) {
            self.pool.remove(ack);
        }
        peer.unsent_acks = 0;
    }
}

/// The reason for which requests fail that wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The peer does not take part any more.
    Lost,
    /// The peer's window can't grow. Posted receives fail, also those from any source.
    WindowFull,
}

/// A peer for which requests wait in vain, and how far the search for them has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailingPeer {
    pub(super) rank: Rank,
    pub(super) cause: Cause,
    /// The first slot of the pool of requests that was not checked yet.
    pub(super) next_slot: u32,
}

/// The ranks of the transport.
///
/// Invariant: a rank is in `active` at most once, and exactly while its peer's `active` is set.
/// This rank itself is never active.
pub(super) struct Peers {
    /// This rank.
    own: Rank,
    states: Vec<Peer>,
    /// Peers with messages to send.
    active: VecDeque<Rank>,
    /// Peers with transfers, in the order of their turns.
    fetching: VecDeque<Rank>,
    /// Peers for which requests may still wait in vain.
    pub(super) failing: VecDeque<FailingPeer>,
    /// Peers that may have no window left, and how far the search for a receive that waits for them
    /// has come: the next slot of the pool of requests.
    pub(super) short: VecDeque<(Rank, u32)>,
    /// Peers whose windows have grown. Some may have used that up.
    grown: Vec<Rank>,
}

impl Index<Rank> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, rank: Rank) -> &Peer {
        &self.states[rank as usize]
    }
}

impl IndexMut<Rank> for Peers {
    #[inline]
    fn index_mut(&mut self, rank: Rank) -> &mut Peer {
        &mut self.states[rank as usize]
    }
}

impl Peers {
    /// Creates the state of `size` ranks, each of which may use `window` units at first.
    pub(super) fn new(own: Rank, size: u32, window: u64) -> Self {
        let peer = || Peer {
            health: Health::Alive,
            sends: List::EMPTY,
            transfers: List::EMPTY,
            is_fetching: false,
            acks: List::EMPTY,
            unsent_acks: 0,
            unexpected: List::EMPTY,
            incoming: None,
            sent: 0,
            limit: window,
            full: Full::No,
            full_bytes: 0,
            full_limit: 0,
            window_used: 0,
            consumed: 0,
            granted_limit: window,
            grant_at: window.div_ceil(2),
            grown_limit: 0,
            shortage: Shortage::None,
            is_short: false,
            is_grown: false,
            active: false,
        };

        Self {
            own,
            states: (0..size).map(|_| peer()).collect(),
            active: VecDeque::with_capacity(size as usize),
            fetching: VecDeque::with_capacity(size as usize),
            failing: VecDeque::with_capacity(size as usize),
            short: VecDeque::new(),
            grown: Vec::new(),
        }
    }

    /// Returns this rank.
    #[inline]
    pub(super) fn own_rank(&self) -> Rank {
        self.own
    }

    /// Returns the number of ranks.
    pub(super) fn size(&self) -> u32 {
        self.states.len() as u32
    }

    /// Checks that a rank exists.
    pub(super) fn check_rank(&self, peer: Rank) -> Result<(), Error> {
        let size = self.size();
        if peer < size { Ok(()) } else { Err(Error::NoSuchPeer { peer, size }) }
    }

    /// Returns whether messages of `peer` are handled: it is another rank, and takes part.
    pub(super) fn is_source(&self, peer: Rank) -> bool {
        let known = self.states.get(peer as usize).is_some_and(|peer| matches!(peer.health, Health::Alive));
        known && peer != self.own
    }

    /// Returns whether a peer takes part in the protocol.
    #[inline]
    pub(super) fn is_alive(&self, peer: Rank) -> bool {
        matches!(self[peer].health, Health::Alive)
    }

    /// Returns the error of requests that need a peer which does not take part; `None` for a peer
    /// that does.
    pub(super) fn loss_error(&self, peer: Rank) -> Option<Error> {
        match self[peer].health {
            Health::Alive => None,
            Health::Gone(why) => Some(Error::PeerGone { peer, why }),
            Health::Bad(what, value) => Some(Error::BadPeer { peer, what, value }),
        }
    }

    /// Adds a peer to those with transfers.
    pub(super) fn add_fetching(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self[peer].is_fetching, true) {
            self.fetching.push_back(peer);
        }
    }

    /// Returns the number of peers with transfers.
    pub(super) fn count_fetching(&self) -> usize {
        self.fetching.len()
    }

    /// Takes the next peer with transfers.
    pub(super) fn take_fetching(&mut self) -> Option<Rank> {
        let peer = self.fetching.pop_front()?;
        self[peer].is_fetching = false;
        Some(peer)
    }

    /// Adds a peer to those whose windows have grown.
    pub(super) fn add_grown(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self[peer].is_grown, true) {
            self.grown.push(peer);
        }
    }

    /// Returns the units beyond their windows that all peers together use or may use.
    pub(super) fn count_grown_units(&mut self, window: u64) -> u64 {
        let (states, mut units) = (&mut self.states, 0);
        self.grown.retain(|&rank| {
            let peer = &mut states[rank as usize];
            let grown = peer.grown_units(window);
            units += grown;
            peer.is_grown = grown > 0;
            peer.is_grown
        });
        units
    }

    /// Queues `peer` for sending, if it is alive.
    pub(super) fn activate(&mut self, peer: Rank) {
        let state = &mut self.states[peer as usize];
        if !state.active && peer != self.own && state.health == Health::Alive {
            state.active = true;
            self.active.push_back(peer);
        }
    }

    /// Returns the number of peers queued for sending.
    pub(super) fn count_active(&self) -> usize {
        self.active.len()
    }

    /// Takes the next peer queued for sending.
    pub(super) fn take_active(&mut self) -> Option<Rank> {
        let peer = self.active.pop_front()?;
        self[peer].active = false;
        Some(peer)
    }
}
