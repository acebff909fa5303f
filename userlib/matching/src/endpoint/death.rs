//! Peers that are gone, and requests that end early.
//!
//! From the moment a peer is known to be lost, nothing is sent to it, and its messages are ignored.
//! Many requests may wait for it, so they fail in the following calls of `progress`, a bounded
//! number in each. No list of them exists, because death is rare and messages are not. Instead all
//! places of requests are checked once. Later requests that need a lost peer fail at once.

use super::{
    Endpoint, Kind,
    core::{Content, Core, Health, State},
};
use crate::{Error, Gone, Rank, Transport};

/// Number of places checked in one call.
const PLACES: u32 = 4096;

impl<T: Transport> Endpoint<T> {
    /// Asks the transport for lost ranks, and fails requests that wait for them. Returns the number
    /// of steps.
    pub(super) fn take_notice(&mut self, budget: usize) -> usize {
        let mut steps = 0;

        while steps < budget {
            let Some(Gone { rank: peer, why }) = self.transport.poll_gone() else { break };
            steps += 1;
            if peer != self.core.rank && (peer as usize) < self.core.peers.len() {
                self.core.lose(peer, Health::Gone(why));
            }
        }

        if self.core.lost.is_empty() {
            return steps;
        }
        // Settling requests complete before any request fails.
        steps += self.settle_all();

        for _ in 0..PLACES {
            let Some(&(peer, op)) = self.core.lost.front().filter(|_| steps < budget) else { break };

            match self.core.peer_error(peer).filter(|_| op < self.core.ops.places()) {
                Some(error) => {
                    if self.core.ops.is_taken(op) && self.core.waits_for(op, peer) {
                        self.fail(op, error);
                        steps += 1;
                    }
                    if let Some((_, next)) = self.core.lost.front_mut() {
                        *next = op + 1;
                    }
                }
                None => {
                    self.core.lost.pop_front();
                }
            }
        }
        steps
    }

    /// Fails a request that is neither done nor settling.
    pub(super) fn fail(&mut self, op: u32, error: Error) {
        let core = &mut self.core;
        let request = &mut core.ops[op];
        let (peer, kind, state) = (request.envelope.peer, request.kind, request.state);

        match state {
            State::Queued | State::Sending => {
                core.places.remove(&mut core.peers[peer as usize].sends, op);
                // The send behind it may need less of the window.
                core.activate(peer);
            }
            State::Posted => core.queues.unpost(op),
            State::Pulling => core.places.remove(&mut core.transfers, op),
            State::Offered | State::Filling | State::Draining => {}
            State::Settling | State::Done => return,
        }

        // The receiver knows the memory of a rendezvous send.
        let told = kind == Kind::Send && state == State::Offered;
        if let Some(region) = core.ops[op].region.take() {
            match told {
                true => self.transport.abandon(region, peer),
                false => self.transport.deregister(region),
            }
        }

        core.fail(op, error);
    }
}

impl Core {
    /// Marks `peer` as lost, and discards its incomplete messages.
    pub(super) fn lose(&mut self, peer: Rank, health: Health) {
        let state = &mut self.peers[peer as usize];
        if state.health != Health::Alive {
            return;
        }

        state.health = health;
        state.incoming = None;
        while let Some(answer) = self.answering.pop(&mut self.peers[peer as usize].answers) {
            self.answers.remove(answer);
        }

        // The peer's window bounds the number of messages.
        let mut next = self.peers[peer as usize].waiting.first();
        while let Some(message) = next {
            next = self.sources.next(message);
            let waiting = &mut self.messages[message];

            match waiting.content {
                Content::Stored(_, true) | Content::Own(_) | Content::Lost => continue,
                Content::Stored(chain, false) => self.store.release(chain),
                Content::Remote(..) => {}
            }

            waiting.content = Content::Lost;
            if !waiting.claimed {
                self.queues.unstore(message);
                self.forget(message);
            }
        }

        self.lost.push_back((peer, 0));
    }
}
