//! Messages to other ranks. For each peer grants and acknowledgements leave first, then the sends
//! in their order.

use nicforge_driver::runtime::{Cost, charge};
use zerocopy::IntoBytes;

use super::{
    Endpoint, Mode,
    core::{Core, MAX_SHORT},
    peers::{Health, Shortage},
    requests::State,
    transfer::register,
    unexpected::{Content, UnexpectedMessage},
    window::Wait,
};
use crate::{
    Access, Envelope, Error, Rank, Transport, TransportError,
    pool::Pool,
    store::Chain,
    wire::{self, Finish, First, Grant, Rendezvous},
};

/// Whether a peer must be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flushed {
    /// Nothing is left, or the rest waits for the peer's window.
    Idle,
    /// A later call must continue.
    Unfinished,
}

/// Result of one step of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A message left, or the send is over.
    Done,
    /// The transport has no room.
    NoRoom,
    /// The peer's window has no room for this send.
    NoWindow(u32),
}

impl<T: Transport> Endpoint<T> {
    /// Starts a new send. It leaves at once if nothing else waits for the peer.
    pub(super) fn start_send(&mut self, slot: u32) {
        charge(Cost::SendMessage, 1);
        let peer = self.core.requests[slot].envelope.peer;
        if peer == self.core.peers.own_rank() {
            return self.core.send_to_self(slot);
        }

        if !self.core.peers.is_alive(peer) {
            let error = self.core.peers.loss_error(peer);
            return self.core.finish(slot, error);
        }

        let is_first = self.core.peers[peer].sends.is_empty();
        let at_once = if is_first { self.send_at_once(peer, slot) } else { None };
        if at_once == Some(Step::Done) {
            return;
        }

        self.core.requests.links.push(&mut self.core.peers[peer].sends, slot);

        if at_once == Some(Step::NoRoom) {
            self.core.peers.activate(peer);
        } else if is_first {
            let mut budget = self.core.limits.config.budget;
            // The next call of `progress` reports a failure of the transport.
            if self.flush(peer, &mut budget) != Ok(Flushed::Idle) {
                self.core.peers.activate(peer);
            }
        }
    }

    /// Sends a short message at once when nothing must leave before it. Returns
    /// [`Step::NoRoom`] when the transport does not take it, and `None` when the send is too long,
    /// must wait for others, or has no window.
    #[inline]
    fn send_at_once(&mut self, rank: Rank, slot: u32) -> Option<Step> {
        let core = &mut self.core;
        let (peer, request) = (&mut core.peers[rank], &core.requests[slot]);

        let data = request.buffer.as_slice();
        let cost = wire::cost(data.len() as u64);

        let fits = data.len() <= core.limits.max_short
            && request.mode == Mode::Standard
            && peer.acks.is_empty()
            && !peer.is_grant_due()
            && peer.sent + cost <= peer.limit;

        if !fits {
            return None;
        }

        let mut buffer = [0; MAX_SHORT];
        let (header, rest) = buffer.split_first_chunk_mut::<{ size_of::<First>() }>()?;
        *header = zerocopy::transmute!(first_header(&request.envelope, data.len()));

        match data.first_chunk::<8>().filter(|_| data.len() == 8) {
            // A move, because a call of `memcpy` costs more for such a short message.
            Some(quadword) => *rest.first_chunk_mut()? = *quadword,
            None => rest.get_mut(..data.len())?.copy_from_slice(data),
        }

        let length = size_of::<First>() + data.len();
        match self.transport.try_send(rank, wire::FIRST, buffer.get(..length)?) {
            Ok(true) => {
                peer.sent += cost;
                core.complete(slot);
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

            let flushed = self.flush(peer, &mut budget);
            if flushed != Ok(Flushed::Idle) {
                self.core.peers.activate(peer);
            }
            flushed?;
        }
        Ok(before - budget)
    }

    /// Sends to one peer until the transport or the window has no room, or `budget` is used up. A
    /// step that sends nothing costs no budget.
    fn flush(&mut self, rank: Rank, budget: &mut usize) -> Result<Flushed, TransportError> {
        while *budget > 0 {
            let peer = &self.core.peers[rank];
            if peer.health != Health::Alive {
                return Ok(Flushed::Idle);
            }

            let step = if peer.is_grant_due() && peer.unsent_acks < self.core.limits.window {
                self.send_grant(rank)?
            } else if let Some(ack) = peer.acks.first() {
                self.send_ack(rank, ack)?
            } else if let Some(slot) = peer.sends.first() {
                self.send_part(rank, slot)?
            } else {
                return Ok(Flushed::Idle);
            };

            match step {
                Step::Done => *budget -= 1,
                Step::NoRoom => return Ok(Flushed::Unfinished),
                Step::NoWindow(slot) => match self.wait_for_window(rank, slot)? {
                    Wait::Over => *budget -= 1,
                    Wait::ForRoom => return Ok(Flushed::Unfinished),
                    Wait::ForGrant => return Ok(Flushed::Idle),
                },
            }
        }
        Ok(Flushed::Unfinished)
    }

    /// Grants the peer the whole window beyond what it has consumed, or as much as its window was
    /// grown. Where that is no more than before, tells the peer that its window can't grow.
    fn send_grant(&mut self, rank: Rank) -> Result<Step, TransportError> {
        let window = self.core.limits.window;
        let peer = &mut self.core.peers[rank];
        let limit = peer.grown_limit.max(peer.consumed + window);

        if limit <= peer.granted_limit {
            return Ok(if self.send_shortage(rank)? { Step::Done } else { Step::NoRoom });
        }

        if !self.transport.try_send(rank, wire::GRANT, Grant { limit: limit.into() }.as_bytes())? {
            return Ok(Step::NoRoom);
        }

        (peer.granted_limit, peer.shortage) = (limit, Shortage::None);
        peer.schedule_grant(window);
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
    fn send_part(&mut self, rank: Rank, slot: u32) -> Result<Step, TransportError> {
        let request = &self.core.requests[slot];
        let length = request.buffer.len();
        if request.state == State::Sending {
            let end = length.min(request.moved + self.core.limits.max_message);
            let data = &request.buffer.as_slice()[request.moved..end];
            if !self.transport.try_send(rank, wire::MORE, data)? {
                return Ok(Step::NoRoom);
            }

            self.core.record_sent(rank, slot, end);
            return Ok(Step::Done);
        }

        let eager = request.mode == Mode::Standard && length <= self.core.limits.config.eager_threshold;
        let cost = wire::cost(if eager { length as u64 } else { 0 });

        let peer = &self.core.peers[rank];
        if peer.sent + cost > peer.limit {
            return Ok(Step::NoWindow(slot));
        }

        if eager { self.send_first(rank, slot, cost) } else { self.send_request(rank, slot, cost) }
    }

    /// Sends the beginning of an eager message, whose cost to the window is `cost`.
    fn send_first(&mut self, rank: Rank, slot: u32, cost: u64) -> Result<Step, TransportError> {
        let core = &mut self.core;
        let request = &core.requests[slot];
        let header = first_header(&request.envelope, request.buffer.len());
        let part = request.buffer.len().min(core.limits.max_message - size_of::<First>());

        core.scratch.clear();
        core.scratch.extend_from_slice(header.as_bytes());
        core.scratch.extend_from_slice(&request.buffer.as_slice()[..part]);

        if !self.transport.try_send(rank, wire::FIRST, &core.scratch)? {
            return Ok(Step::NoRoom);
        }

        core.peers[rank].sent += cost;
        core.requests[slot].state = State::Sending;
        core.record_sent(rank, slot, part);
        Ok(Step::Done)
    }

    /// Sends a rendezvous request, whose cost to the window is `cost`. If the memory can't be
    /// registered, the send fails and nothing leaves.
    fn send_request(&mut self, rank: Rank, slot: u32, cost: u64) -> Result<Step, TransportError> {
        let core = &mut self.core;
        let region = match register(&mut self.transport, &mut core.requests[slot], Access::Source) {
            Ok(Some(region)) => region,
            Ok(None) => return Ok(Step::NoRoom),
            Err(error) => {
                core.requests.links.remove(&mut core.peers[rank].sends, slot);
                core.finish(slot, Some(Error::Transport(error)));
                return Ok(Step::Done);
            }
        };

        let request = &core.requests[slot];
        let message = Rendezvous {
            context: request.envelope.context.into(),
            reserved: 0.into(),
            tag: request.envelope.tag.into(),
            size: request.length.into(),
            key: region.remote.key.into(),
            offset: region.remote.offset.into(),
            request: core.requests.pool.handle(slot).to_bits().into(),
        };

        if !self.transport.try_send(rank, wire::REQUEST, message.as_bytes())? {
            return Ok(Step::NoRoom);
        }

        core.peers[rank].sent += cost;
        core.requests[slot].state = State::Offered;
        core.requests.links.remove(&mut core.peers[rank].sends, slot);
        Ok(Step::Done)
    }
}

/// Returns the header of an eager message.
#[inline]
fn first_header(envelope: &Envelope, length: usize) -> First {
    First { context: envelope.context.into(), size: (length as u32).into(), tag: envelope.tag.into() }
}

impl Core {
    /// Records that the bytes of an eager send before `end` have left, and completes the send if
    /// these are all.
    fn record_sent(&mut self, rank: Rank, slot: u32, end: usize) {
        let request = &mut self.requests[slot];
        request.moved = end;

        if end == request.buffer.len() {
            self.requests.links.remove(&mut self.peers[rank].sends, slot);
            self.complete(slot);
        }
    }

    /// Sends to this rank. The data goes to a posted receive, or into the store. A long message
    /// stays in its buffer until its receive.
    fn send_to_self(&mut self, slot: u32) {
        let request = &self.requests[slot];
        let (envelope, size) = (request.envelope, request.length);

        if let Some(receive) = self.queues.take_posted_for(&envelope) {
            self.statistics.expected += 1;
            return self.deliver_to_self(slot, receive);
        }

        self.statistics.unexpected += 1;
        let cost = wire::cost(size);
        let peer = &self.peers[envelope.peer];
        let is_stored = request.mode == Mode::Standard
            && request.buffer.len() <= self.limits.config.eager_threshold
            && peer.window_used + cost <= self.limits.window;

        if !is_stored {
            // The message uses none of the window, since the application holds the memory.
            self.requests[slot].state = State::Offered;
            let unexpected =
                UnexpectedMessage { envelope, size, cost: 0, claimed: false, content: Content::ToSelf(slot) };
            if self.store_unexpected(unexpected).is_none() {
                self.finish(slot, Some(Error::TooManyRequests { limit: Pool::<UnexpectedMessage>::LIMIT }));
            }
            return;
        }

        let unexpected = UnexpectedMessage {
            envelope,
            size,
            cost,
            claimed: false,
            content: Content::Stored { chain: Chain::EMPTY, is_complete: true },
        };
        let Some(message) = self.store_unexpected(unexpected) else {
            return self
                .finish(slot, Some(Error::TooManyRequests { limit: Pool::<UnexpectedMessage>::LIMIT }));
        };

        self.unexpected.append(message, self.requests[slot].buffer.as_slice(), true);
        self.finish(slot, None);
    }
}
