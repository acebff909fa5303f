//! Windows that are too small for a receive that waits.
//!
//! A message stands behind all earlier ones of its sender. When those use up the window, and
//! nothing receives them, a receive of a later message would wait for ever. So a window grows while
//! a receive, or a probe, waits for its peer, as far as the pool of all windows has room. Beyond
//! that both sides are told: [`crate::wire`] describes how.
//!
//! A window grows by one grant of as many units as a window has. Later grants are due as if it had
//! never grown, so that what is received returns to the pool.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    Endpoint,
    arrive::Violation,
    core::Core,
    peers::{Cause, FailingPeer, Full, Health, Shortage},
    requests::State,
};
use crate::{
    Error, Rank, Selector, Transport, TransportError,
    wire::{self, Blocked},
};

/// Number of peers without a window that one call checks.
const CHECKED_PEERS: usize = 4;
/// Number of slots of requests that one call checks for each of them.
const CHECKED_SLOTS: u32 = 64;

/// Result of the search for a receive that waits for a peer.
enum Search {
    Found,
    /// There is none in the slots before this one.
    Unfinished(u32),
    /// There is none.
    Over,
}

impl Core {
    /// Notes that a peer's unexpected messages use much of its window.
    #[cold]
    pub(super) fn note_short(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.peers[rank].is_short, true) {
            self.peers.short.push_back((rank, 0));
        }
    }

    /// Notes that a probe or a claim has found nothing. It counts as a receive that waits until the
    /// next call of `progress`.
    pub(super) fn note_probe(&mut self, selector: &Selector) {
        if !self.peers.short.is_empty() {
            self.probed = Some(selector.source);
        }
    }

    /// Enlarges the windows of some peers that may have nothing left of theirs, and for which a
    /// receive waits.
    #[cold]
    pub(super) fn relieve_short_peers(&mut self) {
        let probed = self.probed.take();
        for _ in 0..CHECKED_PEERS.min(self.peers.short.len()) {
            let Some((rank, slot)) = self.peers.short.pop_front() else { return };

            let peer = &mut self.peers[rank];
            if peer.health != Health::Alive || peer.window_used <= self.limits.short_at {
                peer.is_short = false;
                continue;
            }

            let mut next_slot = 0;
            if peer.remaining(peer.window_used) < self.limits.window.div_ceil(2) {
                let is_probed = probed.is_some_and(|source| source.is_none_or(|source| source == rank));
                match if is_probed { Search::Found } else { self.search_receive(rank, slot) } {
                    Search::Found => self.relieve(rank),
                    Search::Unfinished(slot) => next_slot = slot,
                    Search::Over => {}
                }
            }
            self.peers.short.push_back((rank, next_slot));
        }
    }

    /// Searches for a posted receive that may wait for `rank`, from slot `first` on.
    fn search_receive(&self, rank: Rank, first: u32) -> Search {
        if self.queues.has_posted_for_any_source() {
            return Search::Found;
        }
        if !self.queues.has_posted() {
            return Search::Over;
        }

        let slot_count = self.requests.pool.slot_count();
        let end = slot_count.min(first.saturating_add(CHECKED_SLOTS));
        if (first..end).any(|slot| self.is_posted_for(slot, rank)) {
            Search::Found
        } else if end < slot_count {
            Search::Unfinished(end)
        } else {
            Search::Over
        }
    }

    /// Returns whether a slot has a posted receive that a message of `rank` can match.
    fn is_posted_for(&self, slot: u32, rank: Rank) -> bool {
        self.requests.pool.is_taken(slot)
            && self.requests[slot].state == State::Posted
            && self.queues.source(slot).is_none_or(|source| source == rank)
    }

    /// Enlarges the window of a peer for which a receive waits. Without room in the pool, asks the
    /// peer whether a send of it waits. If one does, the receives that wait for the peer fail.
    fn relieve(&mut self, rank: Rank) {
        if self.grow_window(rank) {
            return;
        }

        let peer = &mut self.peers[rank];
        match peer.shortage {
            Shortage::None => peer.shortage = Shortage::MustAsk,
            Shortage::Blocked => {
                peer.shortage = Shortage::MustGiveUp;
                self.peers.failing.push_back(FailingPeer { rank, cause: Cause::WindowFull, next_slot: 0 });
            }
            Shortage::MustAsk | Shortage::Asked | Shortage::MustGiveUp => return,
        }
        self.peers[rank].grant_at = 0;
        self.peers.activate(rank);
    }

    /// Enlarges the window of a peer by its original size, and allocates the memory for it. Returns
    /// false without room in the pool. A peer may have as much of the pool as it leaves free, so
    /// that there is room for others.
    fn grow_window(&mut self, rank: Rank) -> bool {
        let (step, pool) = (self.limits.window, self.limits.pool);
        let used = self.peers.count_grown_units(step);
        let own = self.peers[rank].grown_units(step);
        if own + step > pool.saturating_sub(used + step) {
            return false;
        }

        let peer = &mut self.peers[rank];
        peer.grown_limit = peer.granted_limit.max(peer.grown_limit) + step;
        peer.grant_at = 0;
        self.peers.add_grown(rank);
        self.peers.activate(rank);
        self.statistics.grown += 1;

        // A message uses a unit at least, and a block of data in the store another one.
        let messages = self.unexpected.pool.len() + (used + step) as usize;
        self.unexpected.reserve(messages);
        self.queues.reserve(messages as u32);
        true
    }

    /// Handles a message about this rank's window at `from`, which can't grow.
    pub(super) fn receive_full(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Violation> {
        let full = wire::Full::read_from_bytes(bytes)
            .map_err(|_| ("a full window of the wrong length", bytes.len() as u64))?;

        let peer = &mut self.peers[from];
        let last = peer.sends.last().map(|slot| self.requests.pool.handle(slot));
        peer.full_bytes = full.used.get().saturating_mul(wire::UNIT as u64);
        peer.full = match (full.verdict.get(), last) {
            (wire::ASK, _) => Full::Asks,
            (wire::GIVE_UP, Some(last)) => Full::GivesUp(last),
            (wire::GIVE_UP, None) => Full::No,
            (verdict, _) => return Err(("a full window with an unknown verdict", verdict.into())),
        };
        peer.full_limit = full.limit.get();

        if last.is_some() {
            self.peers.activate(from);
        }
        Ok(())
    }

    /// Handles a peer's answer that a send of it waits for the window.
    pub(super) fn receive_blocked(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Violation> {
        let blocked = Blocked::read_from_bytes(bytes)
            .map_err(|_| ("a blocked send of the wrong length", bytes.len() as u64))?;

        // An answer that crosses a grant is of no more use.
        let peer = &mut self.peers[from];
        if peer.shortage == Shortage::Asked && blocked.limit.get() == peer.granted_limit {
            peer.shortage = Shortage::Blocked;
        }
        Ok(())
    }

    /// Returns the error of requests that wait for a full window: this rank's, or that of `rank`
    /// for this rank.
    fn window_error(&self, rank: Rank, bytes: u64, is_own: bool) -> Error {
        let own = self.peers.own_rank();
        let (sender, receiver) = if is_own { (rank, own) } else { (own, rank) };
        Error::WindowFull { sender, receiver, bytes }
    }

    /// Returns the error of receives that wait for `rank` while its window can't grow; `None` if it
    /// has a new grant.
    pub(super) fn shortage_error(&self, rank: Rank) -> Option<Error> {
        let peer = &self.peers[rank];
        let is_full = peer.remaining(peer.window_used) < self.limits.window.div_ceil(2);
        is_full.then(|| self.window_error(rank, peer.window_used * wire::UNIT as u64, true))
    }

    /// Returns whether a request in a taken slot fails for this cause.
    pub(super) fn fails_with(&self, slot: u32, rank: Rank, cause: Cause) -> bool {
        match cause {
            Cause::Lost => self.waits_for(slot, rank),
            Cause::WindowFull => self.is_posted_for(slot, rank),
        }
    }
}

/// Whether the sends to a peer wait on.
pub(super) enum Wait {
    /// They wait for a grant.
    ForGrant,
    /// The transport has no room for the answer to the peer.
    ForRoom,
    /// The first send has failed.
    Over,
}

impl<T: Transport> Endpoint<T> {
    /// Handles a send, the first of its peer, for which the peer's window has no room.
    #[cold]
    pub(super) fn wait_for_window(&mut self, rank: Rank, slot: u32) -> Result<Wait, TransportError> {
        let core = &mut self.core;
        core.statistics.window_waits += 1;

        let peer = &mut core.peers[rank];
        match peer.full {
            Full::No => {}
            Full::Asks => {
                let answer = Blocked { limit: peer.full_limit.into() };
                if !self.transport.try_send(rank, wire::BLOCKED, answer.as_bytes())? {
                    return Ok(Wait::ForRoom);
                }
                peer.full = Full::No;
            }
            Full::GivesUp(last) => {
                let is_waiting = core
                    .requests
                    .pool
                    .find(last)
                    .is_some_and(|last| core.requests[last].state == State::Queued);
                if !is_waiting || last.index == slot {
                    peer.full = Full::No;
                }
                if is_waiting {
                    let error = core.window_error(rank, core.peers[rank].full_bytes, false);
                    self.fail(slot, error);
                    return Ok(Wait::Over);
                }
            }
        }
        Ok(Wait::ForGrant)
    }

    /// Tells a peer that its window can't grow, if it must be told. Returns false when the
    /// transport has no room.
    #[cold]
    pub(super) fn send_shortage(&mut self, rank: Rank) -> Result<bool, TransportError> {
        let window = self.core.limits.window;
        let peer = &mut self.core.peers[rank];
        let (verdict, next) = match peer.shortage {
            Shortage::MustAsk => (wire::ASK, Shortage::Asked),
            Shortage::MustGiveUp => (wire::GIVE_UP, Shortage::None),
            _ => {
                peer.schedule_grant(window);
                return Ok(true);
            }
        };

        let (limit, used) = (peer.granted_limit.into(), peer.window_used.into());
        let full = wire::Full { limit, used, verdict: verdict.into(), reserved: 0.into() };
        if !self.transport.try_send(rank, wire::FULL, full.as_bytes())? {
            return Ok(false);
        }
        peer.shortage = next;
        peer.schedule_grant(window);
        Ok(true)
    }
}
