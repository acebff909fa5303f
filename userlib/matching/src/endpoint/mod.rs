//! The endpoint: requests, and the protocols that complete them.
//!
//! Input: calls of the application, messages of the transport. Output: completions.
//!
//! | module | content |
//! | --- | --- |
//! | `mod.rs` | the interface for the application |
//! | `core.rs` | the parts of the state, and the end of a request |
//! | `requests.rs` | requests, and the lists of them |
//! | `peers.rs` | peers, and the acknowledgements for them |
//! | `unexpected.rs` | unexpected messages |
//! | `send.rs` | messages to other ranks |
//! | `arrive.rs` | messages from other ranks |
//! | `receive.rs` | the match of a receive with a message |
//! | `transfer.rs` | rendezvous transfers |
//! | `death.rs` | peers that are gone |
//! | `window.rs` | windows that are too small for a receive that waits |
//!
//! Messages are handled while the transport is being polled, when no other call of the transport is
//! possible. The consequences of a message (a registration, an acknowledgement) are therefore
//! queued, and carried out later in the same call of [`Endpoint::progress`].

mod arrive;
mod core;
mod death;
mod peers;
mod receive;
mod requests;
mod send;
mod transfer;
mod unexpected;
mod window;

use std::fmt;

use nicforge_driver::{
    Cancel, Deadline, Relax,
    runtime::{Cost, charge},
};

use self::{core::Core, requests::State};
use crate::{
    Buffer, Config, Envelope, Error, Rank, Selector, Statistics, Transport, TransportError, pool::Handle,
    wire::LEAST_MESSAGE,
};

/// Handle of an outstanding request of one endpoint. It finds nothing after the completion was
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(Handle);

impl Request {
    /// Returns the handle as a nonzero number, for software that stores handles as numbers.
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the handle for a number of [`Request::to_bits`]. Any other number finds nothing.
    pub fn from_bits(bits: u64) -> Self {
        Self(Handle::from_bits(bits))
    }
}

/// Handle of a claimed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message(Handle);

impl Message {
    /// Returns the handle as a nonzero number.
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the handle for a number of [`Message::to_bits`]. Any other number finds nothing.
    pub fn from_bits(bits: u64) -> Self {
        Self(Handle::from_bits(bits))
    }
}

/// The event that completes a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The caller may use the buffer again. A receive may not have matched yet.
    #[default]
    Standard,
    /// The receiver has matched the message and has its data (`MPI_Issend`, libfabric's delivery
    /// complete).
    Synchronous,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    #[default]
    Send,
    /// A receive.
    Receive,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub request: Request,
    /// Its kind.
    pub kind: Kind,
    /// The value given to the call that made the request.
    pub cookie: u64,
    /// Envelope of the message. A receive that has not matched returns what it asked for, with rank
    /// 0 for any source.
    pub envelope: Envelope,
    /// Bytes sent, or bytes in the buffer.
    pub length: usize,
    /// The result of the request.
    pub result: Result<(), Error>,
    /// The memory lent to the request.
    pub buffer: Buffer,
}

/// An unexpected message. Its data may not have arrived completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Source, context and tag.
    pub envelope: Envelope,
    /// Length of the message in bytes.
    pub length: u64,
}

/// One rank's end of a transport, with matching. One thread at a time uses it.
///
/// The protocol advances only inside calls. An application that computes for long should call
/// [`Endpoint::progress`] now and then. Dropping the endpoint deregisters all memory, whatever is
/// in flight.
pub struct Endpoint<T: Transport> {
    transport: T,
    core: Core,
}

impl<T: Transport> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.core.peers.own_rank())
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Endpoint<T> {
    /// Creates an endpoint on `transport`.
    ///
    /// # Errors
    /// [`Error::BadConfig`], also for a transport whose messages are too short.
    /// [`Error::NoSuchPeer`] when the transport's own rank is out of range.
    pub fn new(transport: T, config: Config) -> Result<Self, Error> {
        config.check()?;

        let bytes = transport.max_message_bytes();
        if bytes < LEAST_MESSAGE {
            let operation = "the transport's message size";
            return Err(Error::BadConfig {
                what: operation,
                value: bytes,
                least: LEAST_MESSAGE,
                most: usize::MAX,
            });
        }

        let (rank, size) = (transport.rank(), transport.size());
        if rank >= size {
            return Err(Error::NoSuchPeer { peer: rank, size });
        }

        let core = Core::new(config, rank, size, bytes, transport.max_get_bytes().max(1));
        Ok(Self { transport, core })
    }

    /// Returns this rank.
    pub fn rank(&self) -> Rank {
        self.core.peers.own_rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.core.peers.size()
    }

    /// Returns the transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns the transport, for operations that only it offers.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        Statistics { rekeyed: self.core.queues.rekeyed(), ..self.core.statistics }
    }

    /// Returns the number of requests whose completions have not been taken.
    pub fn outstanding(&self) -> usize {
        self.core.requests.pool.len()
    }

    /// Returns the bytes allocated for the data of unexpected messages: the most that were needed
    /// at a time.
    pub fn store_bytes(&self) -> usize {
        self.core.unexpected.store.len() * crate::wire::UNIT
    }

    /// Starts a send of `buffer` to `to.peer`, which may be this rank. The completion returns
    /// `cookie`.
    ///
    /// The completion also reports later errors, and that the peer is gone already.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::TooManyRequests`]; these drop the buffer.
    pub fn isend(
        &mut self,
        to: Envelope,
        mode: Mode,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        self.core.peers.check_rank(to.peer)?;
        let handle = self.core.requests.allocate()?;

        let request = &mut self.core.requests[handle.index];
        request.buffer = buffer.into();
        request.length = request.buffer.len() as u64;
        (request.kind, request.mode, request.state, request.cookie, request.envelope) =
            (Kind::Send, mode, State::Queued, cookie, to);

        self.start_send(handle.index);
        Ok(Request(handle))
    }

    /// Starts a receive into `buffer` of the oldest message that `selector` takes. The completion
    /// returns `cookie`.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::TooManyRequests`]; these drop the buffer.
    pub fn irecv(
        &mut self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        self.core.peers.check_rank(selector.source.unwrap_or(0))?;
        let envelope = Envelope::new(selector.source.unwrap_or(0), selector.context, selector.tag);
        let handle = self.core.new_receive(buffer.into(), cookie, envelope)?;
        self.core.receive(handle.index, selector);
        Ok(Request(handle))
    }

    /// Returns the message that a receive with `selector` would take, if it has arrived.
    pub fn probe(&mut self, selector: &Selector) -> Option<Arrived> {
        match self.core.queues.find_unexpected(selector) {
            Some(message) => Some(self.core.unexpected.arrived(message)),
            None => {
                self.core.note_probe(selector);
                None
            }
        }
    }

    /// As [`Endpoint::probe`], but removes the message from matching (`MPI_Improbe`, libfabric's
    /// claim). Only [`Endpoint::receive_claimed`] can receive it. Until then it uses up part of its
    /// sender's window.
    pub fn claim(&mut self, selector: &Selector) -> Option<(Message, Arrived)> {
        let message = self.core.claim(selector)?;
        Some((Message(message), self.core.unexpected.arrived(message.index)))
    }

    /// Starts the receive of a claimed message.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`], [`Error::TooManyRequests`]; these drop the buffer.
    pub fn receive_claimed(
        &mut self,
        message: Message,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        let found = self.core.find_claimed(message.0)?;
        let handle = self.core.new_receive(buffer.into(), cookie, Envelope::default())?;
        self.core.receive_unexpected(handle.index, found);
        Ok(Request(handle))
    }

    /// Discards a claimed message. For its sender it counts as received.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`].
    pub fn discard(&mut self, message: Message) -> Result<(), Error> {
        let found = self.core.find_claimed(message.0)?;
        self.core.discard(found);
        Ok(())
    }

    /// Cancels a receive that has not matched, or a send of which nothing has left. Returns whether
    /// it has cancelled the request.
    ///
    /// A cancelled request completes with [`Error::Cancelled`]. Any other request completes as
    /// usual.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`].
    pub fn cancel(&mut self, request: Request) -> Result<bool, Error> {
        let slot = self.find(request)?;
        match self.core.requests[slot].state {
            State::Posted | State::Queued => {
                self.fail(slot, Error::Cancelled);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the completion of `request`, if it is complete. The handle finds nothing afterwards.
    /// This call makes no progress.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`].
    pub fn test(&mut self, request: Request) -> Result<Option<Completion>, Error> {
        let slot = self.find(request)?;
        Ok((self.core.requests[slot].state == State::Done).then(|| self.core.requests.take(slot)))
    }

    /// Returns the oldest completion in the completion queue. [`Endpoint::test`] and
    /// [`Endpoint::wait`] remove the completions that they return.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.core.requests.first_done().map(|slot| self.core.requests.take(slot))
    }

    /// Makes progress until `request` is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`] and [`Error::Interrupted`]: the request is still outstanding.
    /// [`Error::NoSuchRequest`], [`Error::Transport`]. The completion reports the failure of the
    /// request itself.
    pub fn wait(
        &mut self,
        request: Request,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Completion, Error> {
        self.wait_until("a request", deadline, cancel, |endpoint| endpoint.test(request))
    }

    /// Makes progress until a completion is in the queue.
    ///
    /// # Errors
    /// As [`Endpoint::wait`].
    pub fn wait_next(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Completion, Error> {
        self.wait_until("any request", deadline, cancel, |endpoint| Ok(endpoint.next_completion()))
    }

    /// Makes progress until `attempt` returns a result. A cancellation ends the wait even if the
    /// same call of `progress` has completed something.
    fn wait_until<R>(
        &mut self,
        operation: &'static str,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let mut relax: Option<Relax> = None;

        loop {
            if let Some(value) = attempt(self)? {
                return Ok(value);
            }

            let steps = self.progress()?;

            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Error::Interrupted { what: operation });
            }

            if steps > 0 {
                relax = None;
            } else {
                self.transport.relax(relax.get_or_insert_default())?;
            }

            if deadline.has_passed() {
                // The last call of `progress` may have completed a request.
                return attempt(self)?.ok_or(Error::Timeout { what: operation });
            }
        }
    }

    /// Handles arrived messages, and sends queued messages as far as possible. Returns the number
    /// of steps. Never blocks; [`Config::budget`] bounds the work of each kind.
    ///
    /// # Errors
    /// [`Error::Transport`]: the transport as a whole has failed.
    pub fn progress(&mut self) -> Result<usize, Error> {
        charge(Cost::Progress, 1);
        let budget = self.core.limits.config.budget;
        let mut steps = self.fail_waiting(budget);

        steps += self.poll(budget)?;
        if !self.core.peers.short.is_empty() {
            self.core.relieve_short_peers();
        }
        steps += self.complete_deregistering();
        steps += self.start_transfers(budget);
        steps += self.complete_deregistering();

        steps += self.flush_active(budget)?;
        Ok(steps)
    }

    /// Offers the transport's messages and completions of gets to the core.
    fn poll(&mut self, budget: usize) -> Result<usize, TransportError> {
        let Self { transport, core } = self;
        let messages =
            transport.poll(budget, &mut |from, kind, bytes| core.handle_message(from, kind, bytes))?;
        let gets =
            transport.poll_gets(budget, &mut |cookie, result| core.handle_get_completion(cookie, result))?;
        Ok(messages + gets)
    }

    /// Returns the slot of an outstanding request.
    fn find(&self, request: Request) -> Result<u32, Error> {
        self.core.requests.pool.find(request.0).ok_or(Error::NoSuchRequest { request: request.to_bits() })
    }
}

impl<T: Transport> Drop for Endpoint<T> {
    fn drop(&mut self) {
        for request in self.core.requests.pool.iter_mut() {
            if let Some(region) = request.region.take() {
                self.transport.deregister(region);
            }
        }
    }
}
