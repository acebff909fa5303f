//! The window of messages to a peer that it has not acknowledged.

use nicforge_portals::{DescriptorId, MemoryDescriptor};

use super::objects::Source;
use crate::{bits, pool::Handle};

/// A message that its receiver has not acknowledged, or whose memory the card may read.
pub(super) struct InFlight {
    /// Its name for the receiver, of all messages from this rank to that one.
    pub(super) id: u64,
    /// Its match bits.
    pub(super) match_bits: u64,
    pub(super) source: Source,
    pub(super) length: u64,
    /// The request, unless that is complete.
    pub(super) request: Option<Handle>,
    /// The descriptor from which the receiver can get a long message.
    pub(super) exposed: Option<MemoryDescriptor>,
    /// A put of it is in progress. Until the card has reported its end, it may read the source.
    /// There is one at a time.
    pub(super) is_put_in_progress: bool,
    /// The receiver has the data.
    pub(super) is_taken: bool,
}

impl InFlight {
    /// Returns whether the receiver can get the message from this descriptor.
    pub(super) fn is_exposed_by(&self, descriptor: DescriptorId) -> bool {
        self.exposed.as_ref().is_some_and(|exposed| exposed.id() == descriptor)
    }

    /// Returns whether the send is complete: the receiver has the data, and the card reads no
    /// more of the source.
    pub(super) fn is_complete(&self) -> bool {
        self.is_taken && !self.is_put_in_progress
    }
}

/// The messages to a peer, by number.
pub(super) struct Window {
    messages: Vec<Option<InFlight>>,
    /// The last name of each number.
    ids: Vec<u64>,
    /// Free numbers.
    free: Vec<u8>,
}

impl Window {
    pub(super) fn new(size: u16) -> Self {
        let numbers = 0..usize::from(size);
        Self {
            messages: numbers.clone().map(|_| None).collect(),
            ids: numbers.clone().map(|number| number as u64).collect(),
            free: numbers.rev().map(|number| number as u8).collect(),
        }
    }

    /// Returns the number of messages.
    pub(super) fn len(&self) -> usize {
        self.messages.len() - self.free.len()
    }

    /// Returns whether a put of a message is in progress.
    pub(super) fn has_put_in_progress(&self) -> bool {
        self.messages.iter().flatten().any(|message| message.is_put_in_progress)
    }

    /// Returns the name of the next message, if the window is not full.
    pub(super) fn next_id(&self) -> Option<u64> {
        let number = usize::from(*self.free.last()?);
        // The number is below the name's lowest byte; the rest counts its uses.
        Some(self.ids.get(number)?.wrapping_add(1 << bits::NUMBER_BITS))
    }

    /// Enters a message, whose name is that of [`Window::next_id`].
    pub(super) fn enter(&mut self, message: InFlight) {
        let Some(number) = self.free.pop().map(usize::from) else { return };
        self.ids[number] = message.id;
        self.messages[number] = Some(message);
    }

    /// Returns the message of a name.
    pub(super) fn find(&mut self, id: u64) -> Option<&mut InFlight> {
        let message = self.messages.get_mut(usize::from(bits::number(id)))?.as_mut()?;
        (message.id == id).then_some(message)
    }

    /// Returns the name of the message with these match bits.
    pub(super) fn id_of(&self, match_bits: u64) -> Option<u64> {
        let message = self.messages.get(usize::from(bits::number(match_bits)))?.as_ref()?;
        (message.match_bits == match_bits).then_some(message.id)
    }

    /// Returns whether there is a message of a name.
    pub(super) fn has(&self, id: u64) -> bool {
        let message = self.messages.get(usize::from(bits::number(id))).and_then(Option::as_ref);
        message.is_some_and(|message| message.id == id)
    }

    /// Removes the message of a name.
    pub(super) fn leave(&mut self, id: u64) -> Option<InFlight> {
        let number = bits::number(id);
        let message = self.messages.get_mut(usize::from(number))?.take_if(|message| message.id == id)?;
        self.free.push(number);
        Some(message)
    }

    /// Removes all messages.
    pub(super) fn drain(&mut self) -> Vec<InFlight> {
        let messages = self.messages.iter_mut().filter_map(Option::take).collect();
        self.free = (0..self.messages.len()).map(|number| number as u8).collect();
        messages
    }
}
