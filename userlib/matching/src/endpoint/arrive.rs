//! Messages from other ranks. No field is trusted; a peer that sends an invalid one is treated as
//! dead.

use nicforge_driver::runtime::{self, Cost};
use zerocopy::FromBytes;

use super::{
    core::Core,
    peers::{Acknowledgement, Full, Health, Incoming, Target},
    requests::State,
    unexpected::{Content, UnexpectedMessage},
};
use crate::{
    Envelope, Rank, RemoteRegion, Taken,
    pool::Handle,
    store::Chain,
    wire::{self, Finish, First, Grant, Rendezvous},
};

/// The violated rule, and the invalid value.
pub(super) type Violation = (&'static str, u64);

impl Core {
    /// Handles a message of `from`. Returns [`Taken::NotNow`] if the message must wait in the
    /// transport, because it exceeds the sender's window.
    pub(super) fn handle_message(&mut self, from: Rank, kind: u8, bytes: &[u8]) -> Taken {
        if !self.peers.is_source(from) {
            self.statistics.strays += 1;
            return Taken::Yes;
        }

        let result = match kind {
            wire::FIRST => self.receive_first(from, bytes),
            wire::MORE => self.receive_more(from, bytes).map(|()| Taken::Yes),
            wire::REQUEST => self.receive_request(from, bytes),
            wire::FINISH => self.receive_finish(from, bytes).map(|()| Taken::Yes),
            wire::GRANT => self.receive_grant(from, bytes).map(|()| Taken::Yes),
            wire::FULL => self.receive_full(from, bytes).map(|()| Taken::Yes),
            wire::BLOCKED => self.receive_blocked(from, bytes).map(|()| Taken::Yes),
            _ => Err(("a message of an unknown kind", u64::from(kind))),
        };

        result.unwrap_or_else(|(what, value)| {
            self.mark_lost(from, Health::Bad(what, value));
            Taken::Yes
        })
    }

    /// Handles the beginning of an eager message.
    #[inline]
    fn receive_first(&mut self, from: Rank, bytes: &[u8]) -> Result<Taken, Violation> {
        let (header, data) =
            First::read_from_prefix(bytes).map_err(|_| ("a short header", bytes.len() as u64))?;
        let size = u64::from(header.size.get());
        let envelope = Envelope::new(from, header.context.get(), header.tag.get());
        let cost = wire::cost(size);

        if self.peers[from].incoming.is_some() {
            return Err(("a message within a message", size));
        }
        if data.len() as u64 > size {
            return Err(("more data than the message has", data.len() as u64));
        }

        let target = if let Some(slot) = self.queues.take_posted_for(&envelope) {
            self.statistics.expected += 1;
            self.consume(from, cost);
            let request = &mut self.requests[slot];
            (request.envelope, request.length) = (envelope, size);

            if data.len() as u64 == size {
                // The message is complete.
                request.buffer.write(0, data);
                self.statistics.eager += 1;
                runtime::charge(Cost::ReceiveMessage, 1);
                self.finish_receive(slot);
                return Ok(Taken::Yes);
            }

            request.state = State::Filling;
            Target::Request(slot)
        } else {
            if cost > self.limits.window {
                // Without this, the message would be refused for ever.
                return Err(("an eager message that is larger than the window", size));
            }

            let unexpected = UnexpectedMessage {
                envelope,
                size,
                cost,
                claimed: false,
                content: Content::Stored { chain: Chain::EMPTY, is_complete: false },
            };
            match self.store_within_window(unexpected) {
                Some(message) => Target::Message(message),
                None => return Ok(Taken::NotNow),
            }
        };

        self.statistics.eager += 1;
        runtime::charge(Cost::ReceiveMessage, 1);
        self.fill(from, Incoming { target, received: 0, size }, data);
        Ok(Taken::Yes)
    }

    /// Handles further data of an eager message.
    fn receive_more(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Violation> {
        let Some(incoming) = self.peers[from].incoming.take() else {
            return Err(("data without a message", bytes.len() as u64));
        };

        let remaining = incoming.size - incoming.received;
        if bytes.is_empty() || bytes.len() as u64 > remaining {
            self.peers[from].incoming = Some(incoming);
            return Err(("data that the message does not have", bytes.len() as u64));
        }

        self.fill(from, incoming, bytes);
        Ok(())
    }

    /// Stores further data of an eager message at its destination, and records whether more must
    /// come.
    fn fill(&mut self, from: Rank, mut incoming: Incoming, data: &[u8]) {
        let offset = incoming.received as usize;
        incoming.received += data.len() as u64;
        let complete = incoming.received == incoming.size;

        match incoming.target {
            Target::Request(slot) => {
                self.requests[slot].buffer.write(offset, data);
                if complete {
                    self.finish_receive(slot);
                }
            }
            Target::Message(message) => {
                self.unexpected.append(message, data, complete);
            }
            Target::Discard => {}
        }

        self.peers[from].incoming = (!complete).then_some(incoming);
    }

    /// Handles a rendezvous request.
    fn receive_request(&mut self, from: Rank, bytes: &[u8]) -> Result<Taken, Violation> {
        let header = Rendezvous::read_from_bytes(bytes)
            .map_err(|_| ("a request of the wrong length", bytes.len() as u64))?;
        if self.peers[from].incoming.is_some() {
            return Err(("a request within a message", header.request.get()));
        }

        if header.reserved.get() != 0 {
            return Err(("a request with a reserved field that is not 0", header.reserved.get().into()));
        }

        let size = header.size.get();
        if size > isize::MAX as u64 {
            return Err(("a message larger than memory", size));
        }

        let envelope = Envelope::new(from, header.context.get(), header.tag.get());
        let remote = RemoteRegion { key: header.key.get(), offset: header.offset.get() };
        let cost = wire::cost(0);

        if self.peers[from].unsent_acks >= self.limits.window
            && self.peers[from].remaining(self.peers[from].window_used) < cost
        {
            // The peer does not take acknowledgements, and has no window: it may not cause more of
            // them.
            self.statistics.refused += 1;
            return Ok(Taken::NotNow);
        }

        if let Some(slot) = self.queues.take_posted_for(&envelope) {
            self.statistics.expected += 1;
            self.consume(from, cost);
            self.start_fetch(slot, envelope, size, remote, header.request.get());
        } else {
            let content = Content::Remote { region: remote, ack_handle: header.request.get() };
            let unexpected = UnexpectedMessage { envelope, size, cost, claimed: false, content };
            if self.store_within_window(unexpected).is_none() {
                return Ok(Taken::NotNow);
            }
        }

        self.statistics.rendezvous += 1;
        runtime::charge(Cost::ReceiveMessage, 1);
        Ok(Taken::Yes)
    }

    /// Handles the acknowledgement of a rendezvous.
    fn receive_finish(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Violation> {
        let finish = Finish::read_from_bytes(bytes)
            .map_err(|_| ("an answer of the wrong length", bytes.len() as u64))?;
        if finish.reserved.get() != 0 {
            return Err(("an answer with a reserved field that is not 0", finish.reserved.get().into()));
        }

        let handle = Handle::from_bits(finish.request.get());
        let Some(slot) = self.requests.pool.find(handle) else {
            return Err(("an answer to no request", finish.request.get()));
        };

        let request = &mut self.requests[slot];
        if request.state != State::Offered || request.envelope.peer != from {
            return Err(("an answer to another's request", finish.request.get()));
        }

        if finish.status.get() != wire::FETCHED {
            request.error = Some(crate::Error::NotFetched { peer: from });
        }
        self.requests.queue_deregistration(slot);
        Ok(())
    }

    /// Handles a window grant.
    fn receive_grant(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Violation> {
        let grant =
            Grant::read_from_bytes(bytes).map_err(|_| ("a grant of the wrong length", bytes.len() as u64))?;

        let peer = &mut self.peers[from];
        peer.limit = peer.limit.max(grant.limit.get());
        if peer.full == Full::Asks {
            peer.full = Full::No;
        }

        if !peer.sends.is_empty() {
            self.peers.activate(from);
        }
        Ok(())
    }

    /// Stores an unexpected message. Returns `None` when it exceeds its sender's window, or when
    /// there are too many messages.
    fn store_within_window(&mut self, unexpected: UnexpectedMessage) -> Option<u32> {
        let (from, cost) = (unexpected.envelope.peer, unexpected.cost);
        let peer = &self.peers[from];
        let used = peer.window_used + cost;
        let allowed = self.limits.window.max(peer.granted_limit.saturating_sub(peer.consumed));

        let message = if used <= allowed { self.store_unexpected(unexpected) } else { None };
        match message {
            Some(_) => self.statistics.unexpected += 1,
            None => self.statistics.refused += 1,
        }

        if used > self.limits.short_at {
            self.note_short(from);
        }
        message
    }

    /// Stores an unexpected message without a check of the window.
    pub(super) fn store_unexpected(&mut self, unexpected: UnexpectedMessage) -> Option<u32> {
        let (envelope, cost) = (unexpected.envelope, unexpected.cost);
        let peer = &mut self.peers[envelope.peer];
        let message = self.unexpected.add(&mut peer.unexpected, unexpected)?;

        peer.window_used += cost;
        self.queues.add_unexpected(message, envelope);
        Some(message)
    }

    /// Queues an acknowledgement for `to`, of the sender's request `request` with this status. Does
    /// nothing if `to` is lost.
    pub(super) fn queue_ack(&mut self, to: Rank, request: u64, status: u32) {
        let is_queued = self.peers.is_alive(to)
            && self.acks.add(&mut self.peers[to], Acknowledgement { request, status });
        if is_queued {
            self.peers.activate(to);
        }
    }
}
