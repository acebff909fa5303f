//! The window of messages to a peer that it has not acknowledged.

use std::collections::HashMap;

use nicforge_portals::{DescriptorId, MemoryDescriptor};

use super::objects::Source;
use crate::{bits, pool::Handle};

/// A message that its receiver has not acknowledged, or whose memory the card may read.
pub(super) struct InFlight {
    /// Its id among all messages from this rank to its receiver. The low byte is its number in the
    /// window.
    pub(super) id: u64,
    /// Its match bits.
    pub(super) match_bits: u64,
    /// The memory that it leaves from.
    pub(super) source: Source,
    /// Bytes of its data.
    pub(super) length: u64,
    /// The request, unless that is complete.
    pub(super) request: Option<Handle>,
    /// The descriptor from which the receiver can get a long message.
    pub(super) exposed: Option<MemoryDescriptor>,
    /// A put of it is in progress: until the card has reported the put's end, it may read the
    /// source. There is one put at a time.
    pub(super) is_put_in_progress: bool,
    /// The receiver has the data.
    pub(super) is_taken: bool,
}

impl InFlight {
    /// Returns whether the receiver can get the message from this descriptor.
    pub(super) fn is_exposed_by(&self, descriptor: DescriptorId) -> bool {
        self.exposed.as_ref().is_some_and(|exposed| exposed.id() == descriptor)
    }

    /// Returns whether the send is complete: the receiver has the data, and the card reads the
    /// source no more.
    pub(super) fn is_complete(&self) -> bool {
        self.is_taken && !self.is_put_in_progress
    }
}

/// The window of messages to a peer: each has a number, which later messages use again.
pub(super) struct Window {
    /// The message with each number.
    messages: Vec<Option<InFlight>>,
    /// The last id with each number.
    ids: Vec<u64>,
    /// Free numbers.
    free: Vec<u8>,
    /// Messages that were taken out of the window, by id: the receiver keeps their headers.
    aside: HashMap<u64, InFlight>,
}

impl Window {
    /// Makes a window of `size` messages, none of which is in use.
    pub(super) fn new(size: u16) -> Self {
        let numbers = 0..usize::from(size);
        Self {
            messages: numbers.clone().map(|_| None).collect(),
            ids: numbers.clone().map(|number| number as u64).collect(),
            free: numbers.rev().map(|number| number as u8).collect(),
            aside: HashMap::new(),
        }
    }

    /// Returns the number of messages, with those that were taken out of the window.
    pub(super) fn len(&self) -> usize {
        self.messages.len() - self.free.len() + self.aside.len()
    }

    /// Takes a message out of the window, whose number is free then. Returns whether it was there.
    pub(super) fn set_aside(&mut self, id: u64) -> bool {
        let number = bits::number(id);
        let place = self.messages.get_mut(usize::from(number));
        let Some(message) = place.and_then(|place| place.take_if(|message| message.id == id)) else {
            return false;
        };
        self.aside.insert(id, message);
        self.free.push(number);
        true
    }

    /// Returns whether a put of a message is in progress.
    pub(super) fn has_put_in_progress(&self) -> bool {
        self.messages.iter().flatten().chain(self.aside.values()).any(|message| message.is_put_in_progress)
    }

    /// Returns the id of the next message, or `None` if the window is full.
    pub(super) fn next_id(&self) -> Option<u64> {
        let number = usize::from(*self.free.last()?);
        // The low byte of an id is the number. The rest counts the uses of the number.
        Some(self.ids.get(number)?.wrapping_add(1 << bits::NUMBER_BITS))
    }

    /// Adds a message, whose id is that of [`Window::next_id`].
    pub(super) fn insert(&mut self, message: InFlight) {
        let Some(number) = self.free.pop().map(usize::from) else { return };
        self.ids[number] = message.id;
        self.messages[number] = Some(message);
    }

    /// Returns the message with an id.
    pub(super) fn find(&mut self, id: u64) -> Option<&mut InFlight> {
        let message = self.messages.get_mut(usize::from(bits::number(id)))?.as_mut();
        message.filter(|message| message.id == id).or_else(|| self.aside.get_mut(&id))
    }

    /// Returns the id of the message with these match bits.
    pub(super) fn id_of(&self, match_bits: u64) -> Option<u64> {
        let message = self.messages.get(usize::from(bits::number(match_bits)))?.as_ref()?;
        (message.match_bits == match_bits).then_some(message.id)
    }

    /// Returns whether there is a message with an id.
    pub(super) fn has(&self, id: u64) -> bool {
        let message = self.messages.get(usize::from(bits::number(id))).and_then(Option::as_ref);
        message.is_some_and(|message| message.id == id) || self.aside.contains_key(&id)
    }

    /// Removes the message with an id, and returns it.
    pub(super) fn remove(&mut self, id: u64) -> Option<InFlight> {
        let number = bits::number(id);
        match self.messages.get_mut(usize::from(number))?.take_if(|message| message.id == id) {
            Some(message) => {
                self.free.push(number);
                Some(message)
            }
            None => self.aside.remove(&id),
        }
    }

    /// Removes all messages, and returns them.
    pub(super) fn drain(&mut self) -> Vec<InFlight> {
        let aside = self.aside.drain().map(|(_, message)| message);
        let messages = self.messages.iter_mut().filter_map(Option::take).chain(aside).collect();
        self.free = (0..self.messages.len()).map(|number| number as u8).collect();
        messages
    }
}
