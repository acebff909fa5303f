//! Peers that are gone, and requests that end before their time.
//!
//! A lost peer gets nothing and is not listened to from the moment it is known. The requests that wait for it may be many, so
//! they fail in the calls of `progress` that follow, a bounded number in each. Nobody keeps a list of them: death is rare, and messages are not. All
//! requests are looked at once, from the first place on; what is asked of a lost peer later fails at once.

use super::{
    Endpoint, Kind,
    core::{Content, Core, Health, State},
};
use crate::{Error, Gone, Rank, Transport};

/// Places of requests that are looked at in one call.
const PLACES: u32 = 4096;

impl<T: Transport> Endpoint<T> {
    /// Asks the transport who is gone, and fails requests of those who are. Says how many steps that were.
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
        // What is being settled is complete before anything is failed.
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

    /// Ends a request that is not done and not being settled.
    pub(super) fn fail(&mut self, op: u32, error: Error) {
        let core = &mut self.core;
        let request = &mut core.ops[op];
        let (peer, kind, state) = (request.envelope.peer, request.kind, request.state);
        match state {
            State::Queued | State::Sending => {
                core.places.remove(&mut core.peers[peer as usize].sends, op);
                // What stood behind it may need less of the window.
                core.activate(peer);
            }
            State::Posted => core.queues.unpost(op),
            State::Pulling => core.places.remove(&mut core.transfers, op),
            State::Offered | State::Filling | State::Draining => {}
            State::Settling | State::Done => return,
        }
        // Its receiver knows where it is.
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
    /// Nothing more is expected of `peer`.
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
        // As many as its window holds, at most.
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
