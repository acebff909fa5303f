//! The requests of an endpoint.

use std::ops::{Index, IndexMut};

use super::{Completion, Kind, Mode, Request};
use crate::{
    Buffer, Envelope, Error, Region, RemoteRegion,
    lists::{List, Lists},
    pool::{Handle, Pool},
};

/// State of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Send: in its peer's queue; nothing has left.
    #[default]
    Queued,
    /// Send: at the head of its peer's queue; a part has left.
    Sending,
    /// Send: the receiver has the rendezvous request. Or a message to this rank itself waits for
    /// its receive.
    Offered,
    /// Receive: posted.
    Posted,
    /// Receive: matched; the data of the eager message is arriving.
    Filling,
    /// Receive: in its peer's list of transfers; further gets must be started.
    Fetching,
    /// Receive: no further get will be started; some are in flight.
    Draining,
    /// In the list of requests whose memory must be deregistered.
    Deregistering,
    /// In the completion queue.
    Done,
}

/// The operation that a request names. The pool reuses its slot without a reset. [`Requests::take`]
/// clears `buffer`, `moved`, `gets`, `region`, `ack_handle` and `error`; a new request sets the
/// other fields.
#[derive(Debug, Default)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) state: State,
    pub(super) cookie: u64,
    pub(super) envelope: Envelope,
    pub(super) buffer: Buffer,
    /// Length of the message in bytes.
    pub(super) length: u64,
    /// Bytes that have left, or for which gets were started.
    pub(super) moved: usize,
    /// Gets in flight.
    pub(super) gets: u32,
    /// The region of its registered memory.
    pub(super) region: Option<Region>,
    /// Receive: the sender's memory.
    pub(super) remote: RemoteRegion,
    /// Receive: the sender's handle of its request, while an acknowledgement is due.
    pub(super) ack_handle: Option<u64>,
    /// The reason for its failure.
    pub(super) error: Option<Error>,
}

impl Operation {
    /// Returns the number of bytes of the message that fit in the buffer.
    #[inline]
    pub(super) fn fitting_bytes(&self) -> usize {
        self.buffer.len().min(usize::try_from(self.length).unwrap_or(usize::MAX))
    }

    /// Returns length and result for the completion of a failed request. `fitting` is the number of
    /// bytes that fit in the buffer.
    #[cold]
    fn failure(&mut self, fitting: usize) -> (usize, Result<(), Error>) {
        let error = self.error.take();
        let length = if matches!(error, Some(Error::Truncated { .. })) { fitting } else { 0 };
        (length, error.map_or(Ok(()), Err))
    }
}

/// The requests of an endpoint.
///
/// Invariant: a request is in one list at most, and its state says in which: its peer's sends or
/// transfers, those whose memory is deregistered, or the completed requests.
pub(super) struct Requests {
    pub(super) pool: Pool<Operation>,
    pub(super) links: Lists,
    deregistering: List,
    done: List,
}

impl Index<u32> for Requests {
    type Output = Operation;

    #[inline]
    fn index(&self, slot: u32) -> &Operation {
        &self.pool[slot]
    }
}

impl IndexMut<u32> for Requests {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Operation {
        &mut self.pool[slot]
    }
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { pool: Pool::new(), links: Lists::default(), deregistering: List::EMPTY, done: List::EMPTY }
    }

    /// Takes a slot for a request.
    #[inline]
    pub(super) fn allocate(&mut self) -> Result<Handle, Error> {
        self.pool.allocate().ok_or(Error::TooManyRequests { limit: Pool::<Operation>::LIMIT })
    }

    /// Queues a request for deregistration of its memory, after which it completes.
    pub(super) fn queue_deregistration(&mut self, slot: u32) {
        self.pool[slot].state = State::Deregistering;
        self.links.push(&mut self.deregistering, slot);
    }

    /// Takes the next request whose memory must be deregistered.
    pub(super) fn take_deregistering(&mut self) -> Option<u32> {
        self.links.pop(&mut self.deregistering)
    }

    /// Adds a request to the completed ones. It is in no list and has the state [`State::Done`].
    #[inline]
    pub(super) fn add_done(&mut self, slot: u32) {
        self.links.push(&mut self.done, slot);
    }

    /// Returns the oldest completed request.
    #[inline]
    pub(super) fn first_done(&self) -> Option<u32> {
        self.done.first()
    }

    /// Takes the completion of a request that is done.
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> Completion {
        let request = Request(self.pool.handle(slot));
        self.links.remove(&mut self.done, slot);

        let operation = &mut self.pool[slot];
        let fitting = operation.fitting_bytes();
        let (length, result) =
            if operation.error.is_none() { (fitting, Ok(())) } else { operation.failure(fitting) };

        let buffer = std::mem::take(&mut operation.buffer);
        (operation.moved, operation.gets, operation.region, operation.ack_handle) = (0, 0, None, None);

        let Operation { kind, cookie, envelope, .. } = *operation;
        self.pool.release(slot);
        Completion { request, kind, cookie, envelope, length, result, buffer }
    }
}
