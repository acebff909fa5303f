//! The endpoint: requests, and the protocols that complete them.
//!
//! In: calls of the application, messages of the transport. Out: completions.
//!
//! - `mod.rs`: what the application calls; `core.rs`: requests, peers, lists, and how a request ends;
//! - `send.rs`: what leaves; `arrive.rs`: what comes; `receive.rs`: a receive and its message meet;
//! - `transfer.rs`: rendezvous; `death.rs`: peers that are gone.
//!
//! What comes is handled while the transport is being polled, when it can't be called for anything else. So what follows from a
//! message (a registration, an answer) is put on a list and done in the same call of [`Endpoint::progress`], later.

mod arrive;
mod core;
mod death;
mod receive;
mod send;
mod transfer;

use std::fmt;

use nicforge_driver::{Cancel, Deadline, Relax};

use self::core::{Core, State};
use crate::{
    Buffer, Config, Envelope, Error, Rank, Selector, Statistics, Transport, TransportError, pool::Handle,
    wire::LEAST_MESSAGE,
};

/// Names an outstanding request of one endpoint. It finds nothing once the completion was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(Handle);

impl Request {
    /// As a number that is not 0, for software that keeps handles in one.
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// From that number. A wrong one finds nothing.
    pub fn from_bits(bits: u64) -> Self {
        Self(Handle::from_bits(bits))
    }
}

/// Names a claimed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message(Handle);

impl Message {
    /// As a number that is not 0.
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// From that number. A wrong one finds nothing.
    pub fn from_bits(bits: u64) -> Self {
        Self(Handle::from_bits(bits))
    }
}

/// When a send completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// When its buffer can be used again, which may be before a receive has matched.
    #[default]
    Standard,
    /// When the receiver has matched it and has the data (`MPI_Issend`, libfabric's delivery complete).
    Synchronous,
}

/// What a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    #[default]
    Send,
    /// A receive.
    Receive,
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion {
    /// Which.
    pub request: Request,
    /// What it was.
    pub kind: Kind,
    /// From the call that made it.
    pub cookie: u64,
    /// Of the message. Of a receive that has not matched: what it asked for, with rank 0 for any source.
    pub envelope: Envelope,
    /// Bytes sent, or in the buffer.
    pub length: usize,
    /// Whether it succeeded.
    pub result: Result<(), Error>,
    /// The memory that was lent.
    pub buffer: Buffer,
}

/// A message that has arrived and waits for a receive. Its data may still be on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its source, context and tag.
    pub envelope: Envelope,
    /// Its bytes.
    pub length: u64,
}

/// One rank's end of a transport, with matching. For one thread at a time.
///
/// Nothing happens outside of calls: an application that computes for long calls [`Endpoint::progress`] now and then.
/// Dropping it takes all memory back from the transport, whatever is under way.
pub struct Endpoint<T: Transport> {
    transport: T,
    core: Core,
}

impl<T: Transport> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.core.rank)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Endpoint<T> {
    /// An endpoint on `transport`, which is nobody else's.
    ///
    /// # Errors
    /// [`Error::BadConfig`], also for a transport whose messages are too short; [`Error::NoSuchPeer`] when its rank is not one
    /// of its ranks.
    pub fn new(transport: T, config: Config) -> Result<Self, Error> {
        config.check()?;
        let bytes = transport.max_message_bytes();
        if bytes < LEAST_MESSAGE {
            let what = "the transport's message size";
            return Err(Error::BadConfig { what, value: bytes, least: LEAST_MESSAGE, most: usize::MAX });
        }
        let (rank, size) = (transport.rank(), transport.size());
        if rank >= size {
            return Err(Error::NoSuchPeer { peer: rank, size });
        }
        let core = Core::new(config, rank, size, bytes, transport.max_get_bytes().max(1));
        Ok(Self { transport, core })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.core.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.core.peers.len() as u32
    }

    /// What is below.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// What is below, for what only it can do.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        Statistics { rekeyed: self.core.queues.rekeyed(), ..self.core.statistics }
    }

    /// Requests whose completions have not been taken.
    pub fn outstanding(&self) -> usize {
        self.core.ops.len()
    }

    /// Bytes that this endpoint keeps for the data of unexpected messages: the most that were needed at a time.
    pub fn store_bytes(&self) -> usize {
        self.core.store.len() * crate::wire::UNIT
    }

    /// Starts a send of `buffer` to `to.peer`, which may be this rank. `cookie` comes back with the completion.
    ///
    /// What becomes of it later is in its completion, also that the peer is gone already.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::TooManyRequests`]; the buffer is dropped then.
    pub fn isend(
        &mut self,
        to: Envelope,
        mode: Mode,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        self.core.check_peer(to.peer)?;
        let handle = self.core.enter()?;
        let op = &mut self.core.ops[handle.index];
        op.buffer = buffer.into();
        op.length = op.buffer.len() as u64;
        (op.kind, op.mode, op.state, op.cookie, op.envelope) = (Kind::Send, mode, State::Queued, cookie, to);
        self.start_send(handle.index);
        Ok(Request(handle))
    }

    /// Starts a receive into `buffer` of the oldest message that `selector` takes. `cookie` comes back with the completion.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::TooManyRequests`]; the buffer is dropped then.
    pub fn irecv(
        &mut self,
        selector: Selector,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        self.core.check_peer(selector.source.unwrap_or(0))?;
        let envelope = Envelope::new(selector.source.unwrap_or(0), selector.context, selector.tag);
        let handle = self.core.new_receive(buffer.into(), cookie, envelope)?;
        self.core.receive(handle.index, selector);
        Ok(Request(handle))
    }

    /// The message that a receive with `selector` would take, if it has arrived.
    pub fn probe(&mut self, selector: &Selector) -> Option<Arrived> {
        self.core.queues.find(selector).map(|message| self.core.arrived(message))
    }

    /// As [`Endpoint::probe`], and takes the message out of matching (`MPI_Improbe`, libfabric's claim): only
    /// [`Endpoint::receive_claimed`] gets it. Until then its sender's window is that much smaller.
    pub fn claim(&mut self, selector: &Selector) -> Option<(Message, Arrived)> {
        let message = self.core.claim(selector)?;
        Some((Message(message), self.core.arrived(message.index)))
    }

    /// Starts the receive of a claimed message.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`], [`Error::TooManyRequests`]; the buffer is dropped then.
    pub fn receive_claimed(
        &mut self,
        message: Message,
        buffer: impl Into<Buffer>,
        cookie: u64,
    ) -> Result<Request, Error> {
        let found = self.core.claimed(message.0)?;
        let handle = self.core.new_receive(buffer.into(), cookie, Envelope::default())?;
        self.core.attach(handle.index, found);
        Ok(Request(handle))
    }

    /// Throws a claimed message away. Its sender sees it as received.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`].
    pub fn discard(&mut self, message: Message) -> Result<(), Error> {
        let found = self.core.claimed(message.0)?;
        self.core.discard(found);
        Ok(())
    }

    /// Cancels a receive that has no message yet, or a send of which nothing has left. Says whether it did; the request then
    /// completes with [`Error::Cancelled`]. Otherwise it completes as if nobody had tried.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`].
    pub fn cancel(&mut self, request: Request) -> Result<bool, Error> {
        let op = self.find(request)?;
        match self.core.ops[op].state {
            State::Posted | State::Queued => {
                self.fail(op, Error::Cancelled);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The completion of `request`, if it is complete. The handle finds nothing afterwards. It does not make progress.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`].
    pub fn test(&mut self, request: Request) -> Result<Option<Completion>, Error> {
        let op = self.find(request)?;
        Ok((self.core.ops[op].state == State::Done).then(|| self.core.take(op)))
    }

    /// The completion that has been there the longest: the completion queue. A completion taken by [`Endpoint::test`] or
    /// [`Endpoint::wait`] is not in it.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.core.done.first().map(|op| self.core.take(op))
    }

    /// Makes progress until `request` is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`] and [`Error::Interrupted`], after which the request is still outstanding; [`Error::NoSuchRequest`],
    /// [`Error::Transport`]. Failures of the request itself are in its completion.
    pub fn wait(
        &mut self,
        request: Request,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Completion, Error> {
        self.wait_until("a request", deadline, cancel, |endpoint| endpoint.test(request))
    }

    /// Makes progress until there is a completion in the queue.
    ///
    /// # Errors
    /// As [`Endpoint::wait`].
    pub fn wait_next(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Completion, Error> {
        self.wait_until("any request", deadline, cancel, |endpoint| Ok(endpoint.next_completion()))
    }

    fn wait_until<R>(
        &mut self,
        what: &'static str,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut look: impl FnMut(&mut Self) -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let mut relax: Option<Relax> = None;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            let done = self.progress()?;
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Error::Interrupted { what });
            }
            if done > 0 {
                relax = None;
            } else if let Some(found) = look(self)? {
                return Ok(found);
            } else {
                self.transport.relax(relax.get_or_insert_default())?;
            }
            if deadline.has_passed() {
                // What the last turn brought counts.
                return look(self)?.ok_or(Error::Timeout { what });
            }
        }
    }

    /// Takes what has arrived, sends what can be sent, and says how many steps that were. Never waits, and does a bounded amount
    /// of work.
    ///
    /// # Errors
    /// [`Error::Transport`]: the transport as a whole has failed.
    pub fn progress(&mut self) -> Result<usize, Error> {
        let budget = self.core.config.budget;
        let mut steps = self.take_notice(budget);
        steps += self.poll(budget)?;
        steps += self.settle_all();
        steps += self.start_transfers(budget);
        steps += self.settle_all();
        steps += self.flush_active(budget)?;
        Ok(steps)
    }

    /// Offers the transport's messages and completions to the core.
    fn poll(&mut self, budget: usize) -> Result<usize, TransportError> {
        let Self { transport, core } = self;
        let messages = transport.poll(budget, &mut |from, kind, bytes| core.arrive(from, kind, bytes))?;
        let gets = transport.poll_gets(budget, &mut |cookie, result| core.got(cookie, result))?;
        Ok(messages + gets)
    }

    fn find(&self, request: Request) -> Result<u32, Error> {
        self.core.ops.find(request.0).ok_or(Error::NoSuchRequest { request: request.to_bits() })
    }
}

impl<T: Transport> Drop for Endpoint<T> {
    fn drop(&mut self) {
        for op in self.core.ops.iter_mut() {
            if let Some(region) = op.region.take() {
                self.transport.deregister(region);
            }
        }
    }
}
