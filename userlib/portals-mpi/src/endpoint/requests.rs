//! Requests, and the queue of those that are complete.

use std::collections::VecDeque;

use nicforge_matching::{Envelope, Kind, Selector};
use nicforge_portals::MemoryDescriptor;

use super::{Completion, Request};
use crate::{
    Buffer, Error,
    pool::{Handle, Pool},
};

/// Progress of a request.
#[derive(Debug)]
pub(super) enum State {
    /// A send waits behind others, or for room in the card.
    Queued,
    /// A send has left, and is not acknowledged.
    InFlight,
    /// A receive waits to be posted.
    Pending,
    /// A receive is posted.
    Posted(MemoryDescriptor),
    /// The data of a receive's message arrive in memory for unexpected messages.
    Arriving,
    /// A receive's data are fetched.
    Fetching,
    /// The completion can be taken.
    Done,
}

/// A request.
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) state: State,
    /// The messages that a receive takes.
    pub(super) selector: Selector,
    /// The envelope of the message. A receive has that of [`Completion::envelope`] until it
    /// matches.
    pub(super) envelope: Envelope,
    pub(super) buffer: Buffer,
    /// The application's value for the completion.
    cookie: u64,
    /// Bytes sent or received, once the request is complete.
    length: usize,
    /// The result, once the request is complete.
    result: Result<(), Error>,
}

impl Entry {
    /// Makes a request that has not started.
    pub(super) fn new(
        kind: Kind,
        cookie: u64,
        selector: Selector,
        envelope: Envelope,
        buffer: Buffer,
    ) -> Self {
        let state = if kind == Kind::Send { State::Queued } else { State::Pending };
        Self { kind, state, selector, envelope, buffer, cookie, length: 0, result: Ok(()) }
    }
}

/// The requests of an endpoint.
#[derive(Default)]
pub(super) struct Requests {
    pool: Pool<Entry>,
    /// Complete requests, in the order in which they were completed.
    done: VecDeque<Handle>,
}

impl Requests {
    pub(super) fn insert(&mut self, entry: Entry) -> Handle {
        self.pool.insert(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.pool.len()
    }

    /// Returns an outstanding request.
    pub(super) fn find(&self, handle: Handle) -> Result<&Entry, Error> {
        self.pool.get(handle).ok_or(Error::NoSuchRequest { request: handle.to_bits() })
    }

    pub(super) fn get(&self, handle: Handle) -> Option<&Entry> {
        self.pool.get(handle)
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut Entry> {
        self.pool.get_mut(handle)
    }

    /// Removes a request that was never started.
    pub(super) fn discard(&mut self, handle: Handle) {
        self.pool.remove(handle);
    }

    /// Returns the outstanding receives whose source, or `None` for any, is accepted by `accepts`.
    pub(super) fn receives_of(&self, accepts: impl Fn(Option<u32>) -> bool) -> Vec<Handle> {
        let is_wanted = |entry: &Entry| entry.kind == Kind::Receive && accepts(entry.selector.source);
        self.pool.handles().filter(|&handle| self.pool.get(handle).is_some_and(is_wanted)).collect()
    }

    /// Completes a request. Returns it, unless it is complete already.
    pub(super) fn complete(
        &mut self,
        handle: Handle,
        length: usize,
        result: Result<(), Error>,
    ) -> Option<&mut Entry> {
        let entry = self.pool.get_mut(handle).filter(|entry| !matches!(entry.state, State::Done))?;
        entry.state = State::Done;
        entry.length = length;
        entry.result = result;
        self.done.push_back(handle);
        Some(entry)
    }

    /// Takes the completion of a request that is complete.
    pub(super) fn take(&mut self, handle: Handle) -> Option<Completion> {
        if let Some(position) = self.done.iter().position(|&other| other == handle) {
            self.done.remove(position);
        }
        self.remove(handle)
    }

    /// Takes the oldest completion.
    pub(super) fn take_first(&mut self) -> Option<Completion> {
        let handle = self.done.pop_front()?;
        self.remove(handle)
    }

    /// Removes a complete request, and makes its completion.
    fn remove(&mut self, handle: Handle) -> Option<Completion> {
        let Entry { kind, envelope, buffer, cookie, length, result, .. } = self.pool.remove(handle)?;
        Some(Completion { request: Request(handle), kind, cookie, envelope, length, result, buffer })
    }
}
