//! The match of a receive with a message.

use nicforge_driver::runtime::{self, Cost};

use super::{
    Kind,
    core::Core,
    peers::{Health, Incoming, Target},
    requests::State,
    unexpected::Content,
};
use crate::{Buffer, Envelope, Error, Rank, RemoteRegion, Selector, pool::Handle, wire};

impl Core {
    /// Creates a receive.
    #[inline]
    pub(super) fn new_receive(
        &mut self,
        buffer: Buffer,
        cookie: u64,
        envelope: Envelope,
    ) -> Result<Handle, Error> {
        let handle = self.requests.allocate()?;

        let request = &mut self.requests[handle.index];
        (request.kind, request.state, request.cookie, request.envelope, request.length) =
            (Kind::Receive, State::Queued, cookie, envelope, 0);
        request.buffer = buffer;
        Ok(handle)
    }

    /// Starts a new receive: attaches it to an unexpected message, or posts it.
    #[inline]
    pub(super) fn receive(&mut self, slot: u32, selector: Selector) {
        if let Some(message) = self.queues.find_unexpected(&selector) {
            self.queues.remove_unexpected(message);
            return self.receive_unexpected(slot, message);
        }

        if let Some(source) = selector.source.filter(|source| !self.peers.is_alive(*source)) {
            let error = self.peers.loss_error(source);
            return self.finish(slot, error);
        }

        self.requests[slot].state = State::Posted;
        self.queues.post(slot, selector);
    }

    /// Delivers the unexpected message `message` to the receive request `slot`. The caller has
    /// removed the message from the queues.
    pub(super) fn receive_unexpected(&mut self, slot: u32, message: u32) {
        let unexpected = &self.unexpected[message];
        let (envelope, size, content) = (unexpected.envelope, unexpected.size, unexpected.content);

        let request = &mut self.requests[slot];
        (request.envelope, request.length) = (envelope, size);

        match content {
            Content::Stored { chain, is_complete } => {
                self.unexpected.store.copy(&chain, &mut request.buffer);
                runtime::charge(Cost::CopyByte, request.fitting_bytes());
                if is_complete {
                    self.finish_receive(slot);
                } else {
                    request.state = State::Filling;
                    self.redirect(envelope.peer, Target::Request(slot));
                }
            }
            Content::Remote { region, ack_handle } => {
                self.start_fetch(slot, envelope, size, region, ack_handle);
            }
            Content::ToSelf(send) => self.deliver_to_self(send, slot),
            Content::Lost => {
                let error = self.peers.loss_error(envelope.peer);
                self.finish(slot, error);
            }
        }

        self.free_message(message);
    }

    /// Starts to fetch a rendezvous message from `remote` for the receive `slot`. The
    /// acknowledgement returns `ack_handle`, the sender's handle of its request.
    pub(super) fn start_fetch(
        &mut self,
        slot: u32,
        envelope: Envelope,
        size: u64,
        remote: RemoteRegion,
        ack_handle: u64,
    ) {
        let request = &mut self.requests[slot];
        (request.envelope, request.length, request.remote) = (envelope, size, remote);

        request.ack_handle = Some(ack_handle);

        // Nothing is fetched for an empty buffer or message. The end of the request sends the
        // acknowledgement.
        if self.requests[slot].fitting_bytes() == 0 {
            return self.requests.queue_deregistration(slot);
        }

        self.requests[slot].state = State::Fetching;
        self.add_transfer(slot);
    }

    /// Copies the data of the request `send`, a send to this rank itself, to the request `receive`,
    /// and completes both.
    pub(super) fn deliver_to_self(&mut self, send: u32, receive: u32) {
        let source = std::mem::take(&mut self.requests[send].buffer);
        let (envelope, length) = (self.requests[send].envelope, self.requests[send].length);

        let request = &mut self.requests[receive];
        (request.envelope, request.length) = (envelope, length);
        request.buffer.write(0, source.as_slice());
        self.requests[send].buffer = source;

        self.finish_receive(receive);
        self.finish(send, None);
    }

    /// Removes the message that `selector` matches from the queues.
    pub(super) fn claim(&mut self, selector: &Selector) -> Option<Handle> {
        let Some(message) = self.queues.find_unexpected(selector) else {
            self.note_probe(selector);
            return None;
        };
        self.queues.remove_unexpected(message);
        self.unexpected[message].claimed = true;
        Some(self.unexpected.pool.handle(message))
    }

    /// Returns the message that was claimed as `handle`.
    pub(super) fn find_claimed(&self, handle: Handle) -> Result<u32, Error> {
        self.unexpected
            .pool
            .find(handle)
            .filter(|&message| self.unexpected[message].claimed)
            .ok_or(Error::NoSuchMessage { message: handle.to_bits() })
    }

    /// Discards a claimed message.
    pub(super) fn discard(&mut self, message: u32) {
        let peer = self.unexpected[message].envelope.peer;

        match self.unexpected[message].content {
            Content::Stored { is_complete: false, .. } => self.redirect(peer, Target::Discard),
            Content::Remote { ack_handle, .. } => self.queue_ack(peer, ack_handle, wire::FETCHED),
            Content::ToSelf(send) => self.finish(send, None),
            Content::Stored { is_complete: true, .. } | Content::Lost => {}
        }

        self.free_message(message);
    }

    /// Changes the destination of the rest of the message that `peer` is sending.
    fn redirect(&mut self, peer: Rank, target: Target) {
        if let Some(Incoming { target: old, .. }) = &mut self.peers[peer].incoming {
            *old = target;
        }
    }

    /// Frees a message that is no longer in the queues, and its part of its sender's window.
    pub(super) fn free_message(&mut self, message: u32) {
        let peer = self.unexpected[message].envelope.peer;
        let unexpected = self.unexpected.remove(&mut self.peers[peer].unexpected, message);

        self.peers[peer].window_used -= unexpected.cost;
        if self.peers[peer].health == Health::Alive {
            self.consume(peer, unexpected.cost);
        }
    }
}
