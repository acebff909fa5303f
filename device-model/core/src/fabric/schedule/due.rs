//! The events that are due at one time.

use super::{Event, EventKind};
use crate::fabric::GI_WIRES;

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// A set of events, which gives them in their order.
///
/// Thousands of events of a large network can be due at one time. A bit for each possible event
/// orders them without comparisons.
#[derive(Debug, Default)]
pub(super) struct DueEvents {
    /// A bit for each event of a lane.
    words: Vec<u64>,
    /// A bit for each of `words` that is not zero.
    groups: Vec<u64>,
    /// The groups before this one are zero.
    first_group: usize,
    /// The events that are left of the word that [`DueEvents::pop`] has begun.
    rest: u64,
    /// Number of the event that the lowest bit of `rest` stands for.
    base: u32,
    /// A bit for each event of a wire.
    wires: u64,
}

// The wires of the global interrupt network have a bit each.
const _: () = assert!(GI_WIRES as usize <= WORD);

impl DueEvents {
    /// Adds an event. [`DueEvents::pop`] must have returned all earlier ones.
    #[inline]
    pub(super) fn insert(&mut self, event: Event) {
        let word = event.0 as usize / WORD;
        let group = word / WORD;
        let (Some(event_bits), Some(word_bits)) = (self.words.get_mut(word), self.groups.get_mut(group))
        else {
            return self.insert_new(event);
        };

        *event_bits |= 1 << (event.0 as usize % WORD);
        *word_bits |= 1 << (word % WORD);
        self.first_group = self.first_group.min(group);
    }

    /// Adds an event of a wire, or of a lane for which there is no bit yet. Events of wires have
    /// the highest numbers, far beyond the bits of lanes.
    #[cold]
    #[inline(never)]
    fn insert_new(&mut self, event: Event) {
        let (index, kind) = event.parts();
        if kind == EventKind::Wire {
            self.wires |= 1 << (index % WORD);
            return;
        }

        let words = (event.0 as usize / WORD + 1).next_power_of_two();
        self.words.resize(words, 0);
        self.groups.resize(words.div_ceil(WORD), 0);
        self.insert(event);
    }

    /// Returns whether there are no events.
    pub(super) fn is_empty(&self) -> bool {
        self.rest == 0
            && self.wires == 0
            && self.groups.iter().skip(self.first_group).all(|&group| group == 0)
    }

    /// Removes and returns the first event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        if self.rest == 0 && !self.begin_word() {
            return self.pop_wire();
        }

        let bit = self.rest.trailing_zeros();
        self.rest &= self.rest - 1;
        Some(Event(self.base | bit))
    }

    /// Moves the next word that is not zero into `rest`. Returns false if there is none.
    #[inline]
    fn begin_word(&mut self) -> bool {
        while let Some(word_bits) = self.groups.get_mut(self.first_group) {
            if *word_bits == 0 {
                self.first_group += 1;
                continue;
            }

            let word = self.first_group * WORD + word_bits.trailing_zeros() as usize;
            *word_bits &= *word_bits - 1;
            self.rest = self.words.get_mut(word).map_or(0, std::mem::take);
            self.base = (word * WORD) as u32;
            return true;
        }
        false
    }

    /// Removes and returns the event of the first wire.
    #[inline]
    fn pop_wire(&mut self) -> Option<Event> {
        if self.wires == 0 {
            return None;
        }
        let wire = self.wires.trailing_zeros() as u8;
        self.wires &= self.wires - 1;
        Some(Event::of_wire(wire))
    }
}
