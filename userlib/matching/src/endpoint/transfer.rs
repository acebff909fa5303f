//! Rendezvous transfers: registration of memory, gets, and deregistration at the end.

#![allow(unsafe_code, reason = "the one place where a request's memory is registered")]

use super::{
    Endpoint, Kind,
    core::Core,
    requests::{Op, State},
};
use crate::{Access, Error, Get, Region, Transport, TransportError, pool::Handle, wire};

/// Returns the region of a request's memory, and registers it if necessary. Empty memory needs no
/// region. Returns `None` when there is no room now.
pub(super) fn register<T: Transport>(
    transport: &mut T,
    op: &mut Op,
    access: Access,
) -> Result<Option<Region>, TransportError> {
    if op.region.is_none() && op.fitting_bytes() > 0 {
        let memory = crate::Memory { length: op.fitting_bytes(), ..op.buffer.memory() };
        // SAFETY: by the contract of its buffer, or because the buffer owns it, the memory is lent
        // to the request until the request completes or the endpoint is dropped. `Op::region` is
        // deregistered before either. Meanwhile a source is only read. A destination is not
        // accessed, because its request is in `Fetching`.
        op.region = unsafe { transport.register(memory, access) }?;
        return Ok(op.region);
    }
    Ok(Some(op.region.unwrap_or_default()))
}

impl<T: Transport> Endpoint<T> {
    /// Starts gets for all transfers in turn, until none can be started or `budget` is used up.
    /// Returns the number of gets.
    pub(super) fn start_transfers(&mut self, budget: usize) -> usize {
        let mut started = 0;
        let mut first = None;
        for _ in 0..budget {
            let Some(op) = self.core.requests.first_transfer() else { break };
            if first == Some(op) {
                break;
            }

            first.get_or_insert(op);
            let Some(gets) = self.start_gets(op) else { break };
            started += gets;
        }
        started
    }

    /// Starts gets of one transfer, up to its limit. A transfer with more to fetch moves to the end
    /// of the list. Returns `None` when the transport has no room for gets.
    fn start_gets(&mut self, op: u32) -> Option<usize> {
        let Self { transport, core } = self;
        let cookie = core.requests.pool.handle(op).to_bits();
        let request = &mut core.requests[op];
        let fitting = request.fitting_bytes();

        let mut started = 0;
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
                    started += 1;
                }
                Ok(false) => return None,
                Err(error) => break Err(error),
            }
        };

        let over = request.moved == fitting || result.is_err();
        core.requests.remove_transfer(op);
        if !over {
            core.requests.add_transfer(op);
        } else {
            start_draining(core, op, result.err());
        }
        Some(started)
    }

    /// Deregisters the memory of all settling requests, and completes them. Returns the number of
    /// requests.
    pub(super) fn settle_all(&mut self) -> usize {
        let mut settled = 0;
        while let Some(op) = self.core.requests.take_settling() {
            settled += 1;

            let request = &mut self.core.requests[op];
            if let Some(region) = request.region.take() {
                self.transport.deregister(region);
            }

            let (kind, peer, error) = (request.kind, request.envelope.peer, request.error.take());
            if let Some(ack) = request.ack_handle.take() {
                let status = if error.is_none() { wire::FETCHED } else { wire::NOT_FETCHED };
                self.core.queue_ack(peer, ack, status);
            }

            match (kind, error) {
                (Kind::Receive, None) => self.core.finish_receive(op),
                (_, error) => self.core.finish(op, error),
            }
        }
        settled
    }
}

/// Records that no further get of a transfer will be started. The transfer must not be in the list.
fn start_draining(core: &mut Core, op: u32, error: Option<TransportError>) {
    let request = &mut core.requests[op];
    request.state = State::Draining;

    if let Some(error) = error {
        request.error.get_or_insert(Error::Transport(error));
    }

    if request.gets == 0 {
        core.requests.settle(op);
    }
}

impl Core {
    /// Handles the completion of a get.
    pub(super) fn get_ended(&mut self, cookie: u64, result: Result<(), TransportError>) {
        let Some(op) = self.requests.pool.find(Handle::from_bits(cookie)) else { return };

        let state = self.requests[op].state;
        if !matches!(state, State::Fetching | State::Draining) || self.requests[op].gets == 0 {
            return;
        }

        self.requests[op].gets -= 1;
        match (state, result) {
            (State::Fetching, Ok(())) => {}
            (State::Fetching, Err(error)) => {
                self.requests.remove_transfer(op);
                start_draining(self, op, Some(error));
            }
            (_, result) => start_draining(self, op, result.err()),
        }
    }
}
