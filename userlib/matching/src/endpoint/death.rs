//! Peers that are gone, and requests that end early.
//!
//! From the moment a peer is known to be lost, nothing is sent to it, and its messages are ignored.
//! Many requests may wait for it, so they fail in the following calls of `progress`, a bounded
//! number in each. No list of them exists, because death is rare and messages are not. Instead all
//! slots of requests are checked once. Later requests that need a lost peer fail at once.

use super::{
    Endpoint, Kind,
    core::Core,
    peers::{Cause, FailingPeer, Health},
    requests::State,
    unexpected::Content,
};
use crate::{Error, Gone, Rank, Transport};

/// Number of slots of requests that one call checks.
const CHECKED_SLOTS: u32 = 4096;

impl<T: Transport> Endpoint<T> {
    /// Asks the transport for lost ranks, and fails requests that wait for them, or for a window
    /// that can't grow. Returns the number of steps.
    pub(super) fn fail_waiting(&mut self, budget: usize) -> usize {
        let lost = self.take_lost_peers(budget);
        if self.core.peers.failing.is_empty() {
            return lost;
        }

        // Requests that only wait for the deregistration of their memory still complete, although
        // their peer is lost. They complete before any request fails.
        let steps = lost + self.complete_deregistering();
        steps + self.fail_waiting_requests(budget.saturating_sub(steps))
    }

    /// Takes up to `budget` lost ranks from the transport, and marks them as lost. Returns the
    /// number of ranks taken.
    #[inline]
    fn take_lost_peers(&mut self, budget: usize) -> usize {
        let mut count = 0;
        while count < budget {
            let Some(Gone { rank, why }) = self.transport.poll_gone() else { break };
            count += 1;
            if rank != self.core.peers.own_rank() && rank < self.core.peers.size() {
                self.core.mark_lost(rank, Health::Gone(why));
            }
        }
        count
    }

    /// Fails up to `budget` requests that wait in vain, and checks a bounded number of slots for
    /// them. Returns the number of requests failed.
    #[cold]
    fn fail_waiting_requests(&mut self, budget: usize) -> usize {
        let slot_count = self.core.requests.pool.slot_count();
        let mut failed = 0;

        for _ in 0..CHECKED_SLOTS {
            if failed == budget {
                break;
            }
            let Some(&FailingPeer { rank, cause, next_slot: slot }) = self.core.peers.failing.front() else {
                break;
            };

            // The search for a peer ends when all slots were checked.
            let error = match cause {
                Cause::Lost => self.core.peers.loss_error(rank),
                Cause::WindowFull => self.core.shortage_error(rank),
            };
            let Some(error) = error.filter(|_| slot < slot_count) else {
                self.core.peers.failing.pop_front();
                continue;
            };

            if self.core.requests.pool.is_taken(slot) && self.core.fails_with(slot, rank, cause) {
                self.fail(slot, error);
                failed += 1;
            }
            if let Some(failing) = self.core.peers.failing.front_mut() {
                failing.next_slot = slot + 1;
            }
        }
        failed
    }

    /// Fails a request that is neither done nor waits for its deregistration.
    pub(super) fn fail(&mut self, slot: u32, error: Error) {
        let core = &mut self.core;
        let request = &mut core.requests[slot];
        let (peer, kind, state) = (request.envelope.peer, request.kind, request.state);

        match state {
            State::Queued | State::Sending => {
                core.requests.links.remove(&mut core.peers[peer].sends, slot);
                // The next send may need less of the window.
                core.peers.activate(peer);
            }
            State::Posted => core.queues.unpost(slot),
            State::Fetching => core.remove_transfer(slot),
            State::Offered | State::Filling | State::Draining => {}
            State::Deregistering | State::Done => return,
        }

        // The receiver of an offered rendezvous knows the memory, and may still fetch from it.
        let may_be_fetched = kind == Kind::Send && state == State::Offered;
        if let Some(region) = core.requests[slot].region.take() {
            if may_be_fetched {
                self.transport.abandon(region, peer);
            } else {
                self.transport.deregister(region);
            }
        }

        core.fail(slot, error);
    }
}

impl Core {
    /// Marks `peer` as lost, and discards its incomplete messages. The requests that wait for the
    /// peer fail later, in [`Endpoint::fail_waiting_requests`].
    pub(super) fn mark_lost(&mut self, peer: Rank, health: Health) {
        let state = &mut self.peers[peer];
        if state.health != Health::Alive {
            return;
        }

        state.health = health;
        state.incoming = None;
        self.acks.clear(&mut self.peers[peer]);

        // The peer's window bounds the number of its messages, and so this loop.
        let mut next = self.peers[peer].unexpected.first();
        while let Some(message) = next {
            next = self.unexpected.links.next(message);

            match self.unexpected[message].content {
                Content::Stored { is_complete: true, .. } | Content::ToSelf(_) | Content::Lost => continue,
                Content::Stored { chain, is_complete: false } => self.unexpected.store.release(chain),
                Content::Remote { .. } => {}
            }

            // A claimed message stays until the application receives or discards it. It is in no
            // queue any more.
            self.unexpected[message].content = Content::Lost;
            if !self.unexpected[message].claimed {
                self.queues.remove_unexpected(message);
                self.free_message(message);
            }
        }

        self.peers.failing.push_back(FailingPeer { rank: peer, cause: Cause::Lost, next_slot: 0 });
    }
}
