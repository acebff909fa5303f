//! Messages that were taken out of the ring for later calls.

use std::collections::VecDeque;

use crate::{Address, Error, Filter, Message};

/// Messages that arrived while a call waited for another one, in order.
///
/// Invariant: there are at most `capacity` of them. A call that finds no room leaves the next
/// message in the ring.
pub(crate) struct KeptMessages {
    messages: VecDeque<Message>,
    capacity: usize,
}

impl KeptMessages {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { messages: VecDeque::new(), capacity }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.messages.len() >= self.capacity
    }

    /// Returns the error of a call that needs room for another message.
    pub(crate) fn full(&self) -> Error {
        Error::KeptFull { kept: self.len() }
    }

    /// Returns the position of the first message that `filter` selects.
    pub(crate) fn position(&self, filter: Filter) -> Option<usize> {
        self.messages.iter().position(|message| filter.admits(message))
    }

    /// Adds a message. The caller has checked that there is room.
    pub(crate) fn push(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// Removes the message at a position.
    pub(crate) fn remove(&mut self, at: usize) -> Option<Message> {
        self.messages.remove(at)
    }

    /// Returns the number of messages of a sender.
    pub(crate) fn of_sender(&self, from: Address) -> u32 {
        self.messages.iter().filter(|message| message.from == from).count() as u32
    }
}
