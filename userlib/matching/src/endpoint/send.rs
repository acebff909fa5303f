//! Messages to other ranks. For each peer grants and acknowledgements leave first, then the sends
//! in their order.

use zerocopy::IntoBytes;

use super::{
    Endpoint, Mode,
    core::{Core, SHORT},
    peers::Health,
    requests::State,
    transfer::register,
    unexpected::{Content, UnexpectedMessage},
};
use crate::{
    Access, Envelope, Error, Rank, Transport, TransportError,
    pool::Pool,
    store::Chain,
    wire::{self, Finish, First, Grant, Rendezvous},
};

/// Whether a peer must be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing is left, or the rest waits for the peer's window.
    Rest,
    /// A later call must continue.
    Again,
}

/// Result of one step of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A message left, or the send is over.
    Done,
    /// The transport has no room.
    NoRoom,
    /// The peer's window is used up.
    NoWindow,
}

impl<T: Transport> Endpoint<T> {
    /// Starts a new send. It leaves at once if nothing else waits for the peer.
    pub(super) fn start_send(&mut self, op: u32) {
        let peer = self.core.requests[op].envelope.peer;
        if peer == self.core.peers.own() {
            return self.core.send_to_self(op);
        }

        if !self.core.peers.is_alive(peer) {
            let error = self.core.peers.error(peer);
            return self.core.finish(op, error);
        }

        let first = self.core.peers[peer].sends.is_empty();
        let at_once = if first { self.send_at_once(peer, op) } else { None };
        if at_once == Some(Step::Done) {
            return;
        }

        self.core.requests.links.push(&mut self.core.peers[peer].sends, op);

        if at_once == Some(Step::NoRoom) {
            self.core.peers.activate(peer);
        } else if first {
            let mut budget = self.core.limits.config.budget;
            // The next call of `progress` reports a failure of the transport.
            if self.flush(peer, &mut budget) != Ok(Next::Rest) {
                self.core.peers.activate(peer);
            }
        }
    }

    /// Sends a short message at once when nothing must leave before it. Returns `None` when the
    /// send does not qualify or can't leave now.
    #[inline]
    fn send_at_once(&mut self, rank: Rank, op: u32) -> Option<Step> {
        let core = &mut self.core;
        let (peer, request) = (&mut core.peers[rank], &core.requests[op]);

        let data = request.buffer.as_slice();
        let cost = wire::cost(data.len() as u64);

        let fits = data.len() <= core.limits.short
            && request.mode == Mode::Standard
            && peer.acks.is_empty()
            && !peer.grant_due(core.limits.window)
            && peer.sent + cost <= peer.limit;

        if !fits {
            return None;
        }

        let mut room = [0; SHORT];
        let (header, rest) = room.split_first_chunk_mut::<{ size_of::<First>() }>()?;
        *header = zerocopy::transmute!(first_header(&request.envelope, data.len()));

        match data.first_chunk::<8>().filter(|_| data.len() == 8) {
            // A call costs more than the move.
            Some(quadword) => *rest.first_chunk_mut()? = *quadword,
            None => rest.get_mut(..data.len())?.copy_from_slice(data),
        }

        let length = size_of::<First>() + data.len();
        match self.transport.try_send(rank, wire::FIRST, room.get(..length)?) {
            Ok(true) => {
                peer.sent += cost;
                core.complete(op);
                Some(Step::Done)
            }
            // The next call of `progress` reports a failure of the transport.
            Ok(false) | Err(_) => Some(Step::NoRoom),
        }
    }

    /// Sends to each queued peer once, until `budget` steps are done. Returns the number of steps.
    pub(super) fn flush_active(&mut self, mut budget: usize) -> Result<usize, TransportError> {
        let before = budget;
        for _ in 0..self.core.peers.count_active() {
            if budget == 0 {
                break;
            }
            let Some(peer) = self.core.peers.take_active() else { break };

            let next = self.flush(peer, &mut budget);
            if next != Ok(Next::Rest) {
                self.core.peers.activate(peer);
            }
            next?;
        }
        Ok(before - budget)
    }

    /// Sends to one peer until the transport or the window has no room, or `budget` is used up. A
    /// step that sends nothing costs no budget.
    fn flush(&mut self, rank: Rank, budget: &mut usize) -> Result<Next, TransportError> {
        while *budget > 0 {
            let peer = &self.core.peers[rank];
            if peer.health != Health::Alive {
                return Ok(Next::Rest);
            }

            let step = if peer.grant_due(self.core.limits.window) {
                self.send_grant(rank)?
            } else if let Some(ack) = peer.acks.first() {
                self.send_ack(rank, ack)?
            } else if let Some(op) = peer.sends.first() {
                self.send_part(rank, op)?
            } else {
                return Ok(Next::Rest);
            };

            match step {
                Step::Done => *budget -= 1,
                Step::NoRoom => return Ok(Next::Again),
                Step::NoWindow => {
                    self.core.statistics.window_waits += 1;
                    return Ok(Next::Rest);
                }
            }
        }
        Ok(Next::Again)
    }

    /// Grants the peer the whole window beyond what it has consumed.
    fn send_grant(&mut self, rank: Rank) -> Result<Step, TransportError> {
        let peer = &mut self.core.peers[rank];
        let limit = peer.consumed + self.core.limits.window;

        if !self.transport.try_send(rank, wire::GRANT, Grant { limit: limit.into() }.as_bytes())? {
            return Ok(Step::NoRoom);
        }

        peer.granted_limit = limit;
        self.core.statistics.grants += 1;
        Ok(Step::Done)
    }

    /// Sends the acknowledgement `ack` to `rank`, and removes it from the list. It stays there if
    /// the transport has no room.
    fn send_ack(&mut self, rank: Rank, ack: u32) -> Result<Step, TransportError> {
        let content = self.core.acks.get(ack);
        let message =
            Finish { request: content.request.into(), status: content.status.into(), reserved: 0.into() };

        if !self.transport.try_send(rank, wire::FINISH, message.as_bytes())? {
            return Ok(Step::NoRoom);
        }

        self.core.acks.remove(&mut self.core.peers[rank], ack);
        Ok(Step::Done)
    }

    /// Sends the next message of the first send in a peer's queue.
    fn send_part(&mut self, rank: Rank, op: u32) -> Result<Step, TransportError> {
        let request = &self.core.requests[op];
        let length = request.buffer.len();
        if request.state == State::Sending {
            let part = length.min(request.moved + self.core.limits.max_message);
            let data = &request.buffer.as_slice()[request.moved..part];
            if !self.transport.try_send(rank, wire::MORE, data)? {
                return Ok(Step::NoRoom);
            }

            self.core.record_sent(rank, op, part);
            return Ok(Step::Done);
        }

        let eager = request.mode == Mode::Standard && length <= self.core.limits.config.eager_threshold;
        let cost = wire::cost(if eager { length as u64 } else { 0 });

        let peer = &self.core.peers[rank];
        if peer.sent + cost > peer.limit {
            return Ok(Step::NoWindow);
        }

        if eager { self.send_first(rank, op, cost) } else { self.send_request(rank, op, cost) }
    }

    /// Sends the beginning of an eager message.
    fn send_first(&mut self, rank: Rank, op: u32, cost: u64) -> Result<Step, TransportError> {
        let core = &mut self.core;
        let request = &core.requests[op];
        let header = first_header(&request.envelope, request.buffer.len());
        let part = request.buffer.len().min(core.limits.max_message - size_of::<First>());

        core.scratch.clear();
        core.scratch.extend_from_slice(header.as_bytes());
        core.scratch.extend_from_slice(&request.buffer.as_slice()[..part]);

        if !self.transport.try_send(rank, wire::FIRST, &core.scratch)? {
            return Ok(Step::NoRoom);
        }

        core.peers[rank].sent += cost;
        core.requests[op].state = State::Sending;
        core.record_sent(rank, op, part);
        Ok(Step::Done)
    }

    /// Sends a rendezvous request. If the memory can't be registered, the send fails and nothing
    /// leaves.
    fn send_request(&mut self, rank: Rank, op: u32, cost: u64) -> Result<Step, TransportError> {
        let core = &mut self.core;
        let region = match register(&mut self.transport, &mut core.requests[op], Access::Source) {
            Ok(Some(region)) => region,
            Ok(None) => return Ok(Step::NoRoom),
            Err(error) => {
                core.requests.links.remove(&mut core.peers[rank].sends, op);
                core.finish(op, Some(Error::Transport(error)));
                return Ok(Step::Done);
            }
        };

        let request = &core.requests[op];
        let message = Rendezvous {
            context: request.envelope.context.into(),
            reserved: 0.into(),
            tag: request.envelope.tag.into(),
            size: request.length.into(),
            key: region.remote.key.into(),
            offset: region.remote.offset.into(),
            request: core.requests.pool.handle(op).to_bits().into(),
        };

        if !self.transport.try_send(rank, wire::REQUEST, message.as_bytes())? {
            return Ok(Step::NoRoom);
        }

        core.peers[rank].sent += cost;
        core.requests[op].state = State::Offered;
        core.requests.links.remove(&mut core.peers[rank].sends, op);
        Ok(Step::Done)
    }
}

/// Returns the header of an eager message.
#[inline]
fn first_header(envelope: &Envelope, length: usize) -> First {
    First { context: envelope.context.into(), size: (length as u32).into(), tag: envelope.tag.into() }
}

impl Core {
    /// Records that an eager send has reached byte `part`, and completes it at the end.
    fn record_sent(&mut self, rank: Rank, op: u32, part: usize) {
        let request = &mut self.requests[op];
        request.moved = part;

        if part == request.buffer.len() {
            self.requests.links.remove(&mut self.peers[rank].sends, op);
            self.complete(op);
        }
    }

    /// Sends to this rank. The data goes to a posted receive, or into the store. A long message
    /// stays in its buffer until its receive.
    fn send_to_self(&mut self, op: u32) {
        let request = &self.requests[op];
        let (envelope, size) = (request.envelope, request.length);

        if let Some(receive) = self.queues.arrive(&envelope) {
            self.statistics.expected += 1;
            return self.deliver_to_self(op, receive);
        }

        self.statistics.unexpected += 1;
        let cost = wire::cost(size);
        let peer = &self.peers[envelope.peer];
        let store = request.mode == Mode::Standard
            && request.buffer.len() <= self.limits.config.eager_threshold
            && peer.window_used + cost <= self.limits.window;

        if !store {
            // It uses none of the window, since the application holds the memory.
            self.requests[op].state = State::Offered;
            let unexpected =
                UnexpectedMessage { envelope, size, cost: 0, claimed: false, content: Content::ToSelf(op) };
            if self.store_unexpected(unexpected).is_none() {
                self.finish(op, Some(Error::TooManyRequests { limit: Pool::<UnexpectedMessage>::LIMIT }));
            }
            return;
        }

        let unexpected = UnexpectedMessage {
            envelope,
            size,
            cost,
            claimed: false,
            content: Content::Stored(Chain::EMPTY, true),
        };
        let Some(message) = self.store_unexpected(unexpected) else {
            return self.finish(op, Some(Error::TooManyRequests { limit: Pool::<UnexpectedMessage>::LIMIT }));
        };

        self.unexpected.append(message, self.requests[op].buffer.as_slice(), true);
        self.finish(op, None);
    }
}
