//! Rendezvous transfers: registration of memory, gets, and deregistration at the end.

#![allow(unsafe_code, reason = "the only module where a request's memory is registered")]

use super::{
    Endpoint, Kind,
    core::Core,
    requests::{Operation, State},
};
use crate::{Access, Error, Get, Rank, Region, Transport, TransportError, pool::Handle, wire};

/// Returns the region of a request's memory, and registers it if necessary. Empty memory needs no
/// region. Returns `None` when there is no room now.
pub(super) fn register<T: Transport>(
    transport: &mut T,
    request: &mut Operation,
    access: Access,
) -> Result<Option<Region>, TransportError> {
    if request.region.is_none() && request.fitting_bytes() > 0 {
        let memory = crate::Memory { length: request.fitting_bytes(), ..request.buffer.memory() };
        // SAFETY: by the contract of its buffer, or because the buffer owns it, the memory is lent
        // to the request until the request completes or the endpoint is dropped.
        // `Operation::region` is deregistered before either. Meanwhile a source is only read. A
        // destination is not accessed, because its request is in `Fetching`.
        request.region = unsafe { transport.register(memory, access) }?;
        return Ok(request.region);
    }
    Ok(Some(request.region.unwrap_or_default()))
}

/// Gets of a transfer that were started.
struct Started {
    gets: usize,
    /// Whether the transport has room for more.
    has_room: bool,
}

impl<T: Transport> Endpoint<T> {
    /// Starts gets for the transfers of all peers in turn. It looks at `budget` peers at most. A
    /// peer for whose gets the transport has no room does not stop those of others. Returns the
    /// number of gets.
    pub(super) fn start_transfers(&mut self, budget: usize) -> usize {
        let mut started = 0;
        for _ in 0..budget.min(self.core.peers.count_fetching()) {
            let Some(rank) = self.core.peers.take_fetching() else { break };
            started += self.start_transfers_from(rank, budget);
            if !self.core.peers[rank].transfers.is_empty() {
                self.core.peers.add_fetching(rank);
            }
        }
        started
    }

    /// Starts gets for all transfers of a peer in turn, until the transport has no room for gets
    /// from it. It looks at `budget` transfers at most. Returns the number of gets.
    fn start_transfers_from(&mut self, rank: Rank, budget: usize) -> usize {
        let mut started = 0;
        let mut first = None;
        for _ in 0..budget {
            let Some(slot) = self.core.peers[rank].transfers.first() else { break };
            if first == Some(slot) {
                break;
            }

            first.get_or_insert(slot);
            let Started { gets, has_room } = self.start_gets(slot);
            started += gets;
            if !has_room {
                break;
            }
        }
        started
    }

    /// Starts gets of one transfer, up to its limit. A transfer with more to fetch moves to the end
    /// of the list, unless the transport has no room for gets.
    fn start_gets(&mut self, slot: u32) -> Started {
        let Self { transport, core } = self;
        let cookie = core.requests.pool.handle(slot).to_bits();
        let request = &mut core.requests[slot];
        let fitting = request.fitting_bytes();

        let mut gets = 0;
        let result = loop {
            if request.moved == fitting || request.gets >= core.limits.config.gets_in_flight {
                break Ok(());
            }
            let local = match register(transport, request, Access::Destination) {
                Ok(Some(local)) => local,
                // Other transfers hold the regions, and continue until there is room again.
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };

            let mut remote = request.remote;
            let length = core.limits.max_get.min(fitting - request.moved);
            remote.offset = remote.offset.wrapping_add(request.moved as u64);
            let local_offset = request.moved;
            let get = Get { peer: request.envelope.peer, remote, local, local_offset, length, cookie };

            match transport.start_get(&get) {
                Ok(true) => {
                    request.moved += length;
                    request.gets += 1;
                    gets += 1;
                }
                Ok(false) => return Started { gets, has_room: false },
                Err(error) => break Err(error),
            }
        };

        let is_finished = request.moved == fitting || result.is_err();
        core.remove_transfer(slot);
        if !is_finished {
            core.add_transfer(slot);
        } else {
            start_draining(core, slot, result.err());
        }
        Started { gets, has_room: true }
    }

    /// Deregisters the memory of all requests that wait for it, and completes them. Returns the
    /// number of requests.
    pub(super) fn complete_deregistering(&mut self) -> usize {
        let mut completed = 0;
        while let Some(slot) = self.core.requests.take_deregistering() {
            completed += 1;

            let request = &mut self.core.requests[slot];
            if let Some(region) = request.region.take() {
                self.transport.deregister(region);
            }

            let (kind, peer, error) = (request.kind, request.envelope.peer, request.error.take());
            if let Some(ack) = request.ack_handle.take() {
                let status = if error.is_none() { wire::FETCHED } else { wire::NOT_FETCHED };
                self.core.queue_ack(peer, ack, status);
            }

            match (kind, error) {
                (Kind::Receive, None) => self.core.finish_receive(slot),
                (_, error) => self.core.finish(slot, error),
            }
        }
        completed
    }
}

/// Records that no further get of a transfer will be started. The transfer must not be in the list.
fn start_draining(core: &mut Core, slot: u32, error: Option<TransportError>) {
    let request = &mut core.requests[slot];
    request.state = State::Draining;

    if let Some(error) = error {
        request.error.get_or_insert(Error::Transport(error));
    }

    if request.gets == 0 {
        core.requests.queue_deregistration(slot);
    }
}

impl Core {
    /// Handles the completion of a get.
    pub(super) fn handle_get_completion(&mut self, cookie: u64, result: Result<(), TransportError>) {
        let Some(slot) = self.requests.pool.find(Handle::from_bits(cookie)) else { return };

        let state = self.requests[slot].state;
        if !matches!(state, State::Fetching | State::Draining) || self.requests[slot].gets == 0 {
            return;
        }

        self.requests[slot].gets -= 1;
        match (state, result) {
            (State::Fetching, Ok(())) => {}
            (State::Fetching, Err(error)) => {
                self.remove_transfer(slot);
                start_draining(self, slot, Some(error));
            }
            (_, result) => start_draining(self, slot, result.err()),
        }
    }
}
