//! Peers that are gone, and requests that end early.
//!
//! From the moment a peer is known to be lost, nothing is sent to it, and its messages are ignored.
//! Many requests may wait for it, so they fail in the following calls of `progress`, a bounded
//! number in each. No list of them exists, because death is rare and messages are not. Instead all
//! places of requests are checked once. Later requests that need a lost peer fail at once.

use super::{Endpoint, Kind, core::Core, peers::Health, requests::State, unexpected::Content};
use crate::{Error, Gone, Rank, Transport};

/// Number of places checked in one call.
const CHECKED_PLACES: u32 = 4096;

impl<T: Transport> Endpoint<T> {
    /// Asks the transport for lost ranks, and fails requests that wait for them. Returns the number
    /// of steps.
    pub(super) fn handle_lost_peers(&mut self, budget: usize) -> usize {
        let mut steps = 0;

        while steps < budget {
            let Some(Gone { rank: peer, why }) = self.transport.poll_gone() else { break };
            steps += 1;
            if peer != self.core.peers.own() && peer < self.core.peers.size() {
                self.core.mark_lost(peer, Health::Gone(why));
            }
        }

        if self.core.peers.lost.is_empty() {
            return steps;
        }
        // Settling requests complete before any request fails.
        steps += self.settle_all();

        for _ in 0..CHECKED_PLACES {
            let Some(&(peer, op)) = self.core.peers.lost.front().filter(|_| steps < budget) else { break };

            match self.core.peers.error(peer).filter(|_| op < self.core.requests.pool.places()) {
                Some(error) => {
                    if self.core.requests.pool.is_taken(op) && self.core.waits_for(op, peer) {
                        self.fail(op, error);
                        steps += 1;
                    }
                    if let Some((_, next)) = self.core.peers.lost.front_mut() {
                        *next = op + 1;
                    }
                }
                None => {
                    self.core.peers.lost.pop_front();
                }
            }
        }
        steps
    }

    /// Fails a request that is neither done nor settling.
    pub(super) fn fail(&mut self, op: u32, error: Error) {
        let core = &mut self.core;
        let request = &mut core.requests[op];
        let (peer, kind, state) = (request.envelope.peer, request.kind, request.state);

        match state {
            State::Queued | State::Sending => {
                core.requests.links.remove(&mut core.peers[peer].sends, op);
                // The send behind it may need less of the window.
                core.peers.activate(peer);
            }
            State::Posted => core.queues.unpost(op),
            State::Fetching => core.requests.remove_transfer(op),
            State::Offered | State::Filling | State::Draining => {}
            State::Settling | State::Done => return,
        }

        // The receiver knows the memory of a rendezvous send.
        let is_known = kind == Kind::Send && state == State::Offered;
        if let Some(region) = core.requests[op].region.take() {
            match is_known {
                true => self.transport.abandon(region, peer),
                false => self.transport.deregister(region),
            }
        }

        core.fail(op, error);
    }
}

impl Core {
    /// Marks `peer` as lost, and discards its incomplete messages.
    pub(super) fn mark_lost(&mut self, peer: Rank, health: Health) {
        let state = &mut self.peers[peer];
        if state.health != Health::Alive {
            return;
        }

        state.health = health;
        state.incoming = None;
        self.acks.clear(&mut self.peers[peer]);

        // The peer's window bounds the number of messages.
        let mut next = self.peers[peer].unexpected.first();
        while let Some(message) = next {
            next = self.unexpected.links.next(message);

            match self.unexpected[message].content {
                Content::Stored(_, true) | Content::ToSelf(_) | Content::Lost => continue,
                Content::Stored(chain, false) => self.unexpected.store.release(chain),
                Content::Remote(..) => {}
            }

            self.unexpected[message].content = Content::Lost;
            if !self.unexpected[message].claimed {
                self.queues.unstore(message);
                self.free_message(message);
            }
        }

        self.peers.lost.push_back((peer, 0));
    }
}
