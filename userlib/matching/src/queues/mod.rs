//! The two queues of matching: posted receives and unexpected messages.
//!
//! Input: selectors and envelopes, with the numbers of their requests and messages. Output:
//! matches. The queues hold no data.
//!
//! Selectors with the same wildcards form a class ([`Class`]). Within a class, a selector and the
//! messages that it takes have the same key ([`bins::Key`]).
//!
//! - An arriving message looks up one bin for each class that has posted receives, and takes the
//!   oldest receive found.
//! - A receive looks up one bin of messages. A message is in a bin of every class that has a table.
//!
//! The cost of either does not depend on the number of entries that wait.

mod bins;

use bins::{Bins, Key};

use crate::{
    envelope::{Envelope, Rank, Selector},
    lists::{List, Lists},
};

/// Number of classes with tables.
const CLASSES: usize = 8;
/// The class number of receives without a table. They are in one list, and each of them is
/// compared.
const NO_TABLE: usize = CLASSES;
/// The class of receives that name their source and their whole tag. It always has a table.
const EXACT: usize = 0;

/// A class: the wildcards of its selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    any_source: bool,
    ignore: u64,
}

impl Class {
    /// The class without wildcards, whose number is [`EXACT`].
    const EXACT: Self = Self { any_source: false, ignore: 0 };

    /// Returns the class of a selector.
    fn of(selector: &Selector) -> Self {
        Self { any_source: selector.source.is_none(), ignore: selector.ignore }
    }

    /// Returns the key of a message in class `number`.
    #[inline]
    fn key(&self, number: usize, envelope: &Envelope) -> Key {
        Key {
            class: number as u8,
            source: if self.any_source { 0 } else { envelope.peer },
            context: envelope.context,
            tag: envelope.tag & !self.ignore,
        }
    }
}

/// State of a class that has a table.
#[derive(Clone, Copy, Debug)]
struct Table {
    class: Class,
    /// Number of its posted receives.
    posted: u32,
    /// The clock at its last use.
    used: u64,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
struct Posted {
    selector: Selector,
    /// The clock when it was posted: it is older than receives with a greater number.
    sequence: u64,
    class: usize,
}

/// Both queues. The caller numbers receives and messages densely.
#[derive(Debug)]
pub(crate) struct Queues {
    tables: [Option<Table>; CLASSES],
    /// One bit for each class: set while the class has posted receives.
    posted_classes: u16,
    /// Counts posted receives and uses of tables, and orders both.
    clock: u64,
    /// Posted receives by number.
    posted: Vec<Posted>,
    posted_bins: Bins,
    /// Envelopes of unexpected messages by number.
    stored: Vec<Envelope>,
    /// Bins of messages. The node of a message in a class is [`CLASSES`] times its number, plus the
    /// class.
    stored_bins: Bins,
    /// The links of the messages in `arrived`.
    arrivals: Lists,
    /// All messages in order of arrival.
    arrived: List,
}

impl Queues {
    /// Returns empty queues. Only the class [`EXACT`] has a table.
    pub(crate) fn new() -> Self {
        let mut tables = [None; CLASSES];
        tables[EXACT] = Some(Table { class: Class::EXACT, posted: 0, used: 0 });
        Self {
            tables,
            posted_classes: 0,
            clock: 0,
            posted: Vec::new(),
            posted_bins: Bins::new(),
            stored: Vec::new(),
            stored_bins: Bins::new(),
            arrivals: Lists::default(),
            arrived: List::EMPTY,
        }
    }

    /// Returns how often a hash table has changed its key because of long chains.
    pub(crate) fn rekeyed(&self) -> u64 {
        self.posted_bins.rekeyed() + self.stored_bins.rekeyed()
    }

    /// Returns the oldest message that `selector` takes.
    #[inline]
    pub(crate) fn find_unexpected(&mut self, selector: &Selector) -> Option<u32> {
        if self.arrived.is_empty() { None } else { self.search_unexpected(selector) }
    }

    /// Searches a queue that is not empty for [`Queues::find_unexpected`].
    fn search_unexpected(&mut self, selector: &Selector) -> Option<u32> {
        let class = self.class_number(selector);
        match self.tables.get(class).and_then(Option::as_ref) {
            Some(table) => {
                let key = table.class.key(class, &envelope_of(selector));
                self.stored_bins.first(&key).map(|node| node / CLASSES as u32)
            }
            None => std::iter::successors(self.arrived.first(), |&message| self.arrivals.next(message))
                .find(|&message| selector.matches(&self.stored[message as usize])),
        }
    }

    /// Allocates memory for unexpected messages with numbers below `count`.
    pub(crate) fn reserve(&mut self, count: u32) {
        let messages = count as usize;
        self.stored.reserve(messages.saturating_sub(self.stored.len()));
        self.arrivals.reserve(messages);

        let tables = self.tables.iter().flatten().count();
        self.stored_bins.reserve(messages * tables, messages * CLASSES);
    }

    /// Returns whether any receive is posted.
    pub(crate) fn has_posted(&self) -> bool {
        self.posted_classes != 0
    }

    /// Returns whether a posted receive takes messages from any source. Receives without a table do
    /// not count.
    pub(crate) fn has_posted_for_any_source(&self) -> bool {
        self.tables.iter().flatten().any(|table| table.class.any_source && table.posted > 0)
    }

    /// Adds an unexpected message.
    pub(crate) fn add_unexpected(&mut self, message: u32, envelope: Envelope) {
        if message as usize >= self.stored.len() {
            self.stored.resize(message as usize + 1, envelope);
        }
        self.stored[message as usize] = envelope;

        self.arrivals.push(&mut self.arrived, message);

        for (number, table) in self.tables.iter().enumerate() {
            if let Some(table) = table {
                self.stored_bins.push(node(message, number), table.class.key(number, &envelope));
            }
        }
    }

    /// Removes an unexpected message.
    pub(crate) fn remove_unexpected(&mut self, message: u32) {
        self.arrivals.remove(&mut self.arrived, message);
        for (number, table) in self.tables.iter().enumerate() {
            if table.is_some() {
                self.stored_bins.remove(node(message, number));
            }
        }
    }

    /// Posts a receive for which [`Queues::find_unexpected`] has found no message.
    pub(crate) fn post(&mut self, receive: u32, selector: Selector) {
        let class = self.class_number(&selector);

        self.clock += 1;
        let posted = Posted { selector, sequence: self.clock, class };

        match self.posted.get_mut(receive as usize) {
            Some(slot) => *slot = posted,
            None => self.posted.resize(receive as usize + 1, posted),
        }

        self.posted_classes |= 1 << class;

        let key = match self.tables.get_mut(class) {
            Some(Some(table)) => {
                table.posted += 1;
                table.class.key(class, &envelope_of(&selector))
            }
            _ => NO_TABLE_KEY,
        };

        self.posted_bins.push(receive, key);
    }

    /// Returns the source that a posted receive names.
    pub(crate) fn source(&self, receive: u32) -> Option<Rank> {
        self.posted.get(receive as usize)?.selector.source
    }

    /// Removes and returns the oldest posted receive that takes a message with `envelope`.
    #[inline]
    pub(crate) fn take_posted_for(&mut self, envelope: &Envelope) -> Option<u32> {
        let class = self.posted_classes.trailing_zeros() as usize;
        let has_one_class_at_most = self.posted_classes & self.posted_classes.wrapping_sub(1) == 0;
        // With one class in use, the order of its bin is the order of posting.
        if has_one_class_at_most && let Some(Some(table)) = self.tables.get_mut(class) {
            let receive = self.posted_bins.pop(&table.class.key(class, envelope))?;
            table.posted -= 1;
            if table.posted == 0 {
                self.posted_classes = 0;
            }
            return Some(receive);
        }
        self.take_posted_among_classes(envelope)
    }

    /// As [`Queues::take_posted_for`], with posted receives in several classes or without a table.
    fn take_posted_among_classes(&mut self, envelope: &Envelope) -> Option<u32> {
        let mut oldest: Option<u32> = None;
        let mut classes = self.posted_classes;
        while classes != 0 {
            let class = classes.trailing_zeros() as usize;
            // Clears the lowest bit, which is that of the class.
            classes &= classes - 1;
            let found = match self.tables.get(class).and_then(Option::as_ref) {
                Some(table) => self.posted_bins.first(&table.class.key(class, envelope)),
                None => self
                    .posted_bins
                    .iter(&NO_TABLE_KEY)
                    .find(|&receive| self.posted[receive as usize].selector.matches(envelope)),
            };

            let sequence = |receive: u32| self.posted[receive as usize].sequence;
            if let Some(found) = found
                && oldest.is_none_or(|oldest| sequence(found) < sequence(oldest))
            {
                oldest = Some(found);
            }
        }

        if let Some(receive) = oldest {
            self.unpost(receive);
        }
        oldest
    }

    /// Removes a posted receive.
    pub(crate) fn unpost(&mut self, receive: u32) {
        let class = self.posted[receive as usize].class;
        self.posted_bins.remove(receive);

        let has_more = match self.tables.get_mut(class) {
            Some(Some(table)) => {
                table.posted -= 1;
                table.posted > 0
            }
            _ => self.posted_bins.first(&NO_TABLE_KEY).is_some(),
        };

        if !has_more {
            self.posted_classes &= !(1 << class);
        }
    }

    /// Returns the number of a selector's class, and marks its table as used. A new class gets a
    /// table if one is free or has no posted receives. Otherwise its number is [`NO_TABLE`].
    #[inline]
    fn class_number(&mut self, selector: &Selector) -> usize {
        let class = Class::of(selector);
        if class == Class::EXACT {
            return EXACT;
        }

        self.clock += 1;
        for (number, table) in self.tables.iter_mut().enumerate() {
            if let Some(table) = table
                && table.class == class
            {
                table.used = self.clock;
                return number;
            }
        }
        self.assign_table(class)
    }

    /// Assigns a table to `class`: a free one, or the least recently used one without posted
    /// receives. Returns its number, or [`NO_TABLE`] if all have posted receives. Walks the
    /// unexpected messages, so it costs no more than a search without a table.
    #[cold]
    fn assign_table(&mut self, class: Class) -> usize {
        let candidates = self.tables.iter().enumerate().skip(EXACT + 1);
        let Some(number) = candidates
            .filter(|(_, table)| table.is_none_or(|table| table.posted == 0))
            .min_by_key(|(_, table)| table.map_or(0, |table| table.used))
            .map(|(number, _)| number)
        else {
            return NO_TABLE;
        };

        let replaces = self.tables[number].is_some();
        self.tables[number] = Some(Table { class, posted: 0, used: self.clock });

        let mut next = self.arrived.first();
        while let Some(message) = next {
            let node = node(message, number);
            if replaces {
                self.stored_bins.remove(node);
            }
            self.stored_bins.push(node, class.key(number, &self.stored[message as usize]));
            next = self.arrivals.next(message);
        }
        number
    }
}

/// The key of receives without a table.
const NO_TABLE_KEY: Key = Key { class: NO_TABLE as u8, source: 0, context: 0, tag: 0 };

/// Returns an envelope that the selector would take; its class ignores the fields that the selector
/// leaves open.
fn envelope_of(selector: &Selector) -> Envelope {
    Envelope::new(selector.source.unwrap_or(0), selector.context, selector.tag)
}

/// Returns the node of a message in the bins of a class.
fn node(message: u32, class: usize) -> u32 {
    message * CLASSES as u32 + class as u32
}

#[cfg(test)]
mod tests;
