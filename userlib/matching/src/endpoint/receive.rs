//! The match of a receive with a message.

use super::{
    Kind,
    core::{Content, Core, Health, Incoming, State, Target},
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
        let handle = self.allocate()?;

        let op = &mut self.ops[handle.index];
        (op.kind, op.state, op.cookie, op.envelope, op.length) =
            (Kind::Receive, State::Queued, cookie, envelope, 0);
        op.buffer = buffer;
        Ok(handle)
    }

    /// Starts a new receive: attaches it to an unexpected message, or posts it.
    #[inline]
    pub(super) fn receive(&mut self, op: u32, selector: Selector) {
        if let Some(message) = self.queues.find(&selector) {
            self.queues.unstore(message);
            return self.attach(op, message);
        }

        if let Some(source) = selector.source.filter(|source| !self.is_alive(*source)) {
            let error = self.peer_error(source);
            return self.finish(op, error);
        }

        self.ops[op].state = State::Posted;
        self.queues.post(op, selector);
    }

    /// Lets `op` receive `message`, which is no longer in the queues.
    pub(super) fn attach(&mut self, op: u32, message: u32) {
        let unexpected = &self.messages[message];
        let (envelope, size, content) = (unexpected.envelope, unexpected.size, unexpected.content);

        let request = &mut self.ops[op];
        (request.envelope, request.length) = (envelope, size);

        match content {
            Content::Stored(chain, complete) => {
                self.store.copy(&chain, &mut request.buffer);
                if complete {
                    self.finish_receive(op);
                } else {
                    request.state = State::Filling;
                    self.redirect(envelope.peer, Target::Op(op));
                }
            }
            Content::Remote(remote, request) => self.start_fetch(op, envelope, size, remote, request),
            Content::ToSelf(send) => self.deliver_to_self(send, op),
            Content::Lost => {
                let error = self.peer_error(envelope.peer);
                self.finish(op, error);
            }
        }

        self.free_message(message);
    }

    /// Starts to fetch a rendezvous message.
    pub(super) fn start_fetch(
        &mut self,
        op: u32,
        envelope: Envelope,
        size: u64,
        remote: RemoteRegion,
        ack: u64,
    ) {
        let request = &mut self.ops[op];
        (request.envelope, request.length, request.remote) = (envelope, size, remote);

        request.ack_handle = Some(ack);

        if self.ops[op].fitting_bytes() == 0 {
            return self.settle(op);
        }

        self.ops[op].state = State::Fetching;
        self.request_links.push(&mut self.transfers, op);
    }

    /// Copies the data of a send to this rank to its receive, and completes both.
    pub(super) fn deliver_to_self(&mut self, send: u32, receive: u32) {
        let source = std::mem::take(&mut self.ops[send].buffer);
        let (envelope, length) = (self.ops[send].envelope, self.ops[send].length);

        let request = &mut self.ops[receive];
        (request.envelope, request.length) = (envelope, length);
        request.buffer.write(0, source.as_slice());
        self.ops[send].buffer = source;

        self.finish_receive(receive);
        self.finish(send, None);
    }

    /// Removes the message that `selector` matches from the queues.
    pub(super) fn claim(&mut self, selector: &Selector) -> Option<Handle> {
        let message = self.queues.find(selector)?;
        self.queues.unstore(message);
        self.messages[message].claimed = true;
        Some(self.messages.handle(message))
    }

    /// Returns the message that was claimed as `handle`.
    pub(super) fn claimed(&self, handle: Handle) -> Result<u32, Error> {
        self.messages
            .find(handle)
            .filter(|&message| self.messages[message].claimed)
            .ok_or(Error::NoSuchMessage { message: handle.to_bits() })
    }

    /// Discards a claimed message.
    pub(super) fn discard(&mut self, message: u32) {
        let peer = self.messages[message].envelope.peer;

        match self.messages[message].content {
            Content::Stored(_, false) => self.redirect(peer, Target::Discard),
            Content::Remote(_, request) => self.queue_ack(peer, request, wire::FETCHED),
            Content::ToSelf(send) => self.finish(send, None),
            Content::Stored(_, true) | Content::Lost => {}
        }

        self.free_message(message);
    }

    /// Changes the destination of the rest of the message that `peer` is sending.
    fn redirect(&mut self, peer: Rank, target: Target) {
        if let Some(Incoming { target: old, .. }) = &mut self.peers[peer as usize].incoming {
            *old = target;
        }
    }

    /// Frees a message that is no longer in the queues, and its part of the window.
    pub(super) fn free_message(&mut self, message: u32) {
        let peer = self.messages[message].envelope.peer;
        self.message_links.remove(&mut self.peers[peer as usize].unexpected, message);

        let unexpected = self.messages.remove(message);
        if let Content::Stored(chain, _) = unexpected.content {
            self.store.release(chain);
        }

        self.peers[peer as usize].window_used -= unexpected.cost;
        if self.peers[peer as usize].health == Health::Alive {
            self.consume(peer, unexpected.cost);
        }
    }
}
