//! The fabric's event queue.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::time::Nanos;

/// An event in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The next packet of the lane arrives.
    Arrival { lane: u32 },
    /// A credit returns to the lane's sender.
    Credit { lane: u32 },
    /// The members of a wire see its new state.
    Wire { wire: u8 },
}

/// Events in order of time. Events of the same time stay in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
}

impl Schedule {
    /// Reserves room for this many events in total.
    pub(super) fn reserve(&mut self, events: usize) {
        self.events.reserve(events.saturating_sub(self.events.len()));
    }

    pub(super) fn add(&mut self, due: Nanos, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((due, self.scheduled, event)));
    }

    /// Removes and returns the next event if it is due.
    #[inline]
    pub(super) fn pop(&mut self, now: Nanos) -> Option<(Nanos, Event)> {
        if self.next() > now {
            return None;
        }
        self.events.pop().map(|Reverse((due, _, event))| (due, event))
    }

    /// Returns the time of the next event, or [`Nanos::NEVER`].
    #[inline]
    pub(super) fn next(&self) -> Nanos {
        self.events.peek().map_or(Nanos::NEVER, |Reverse((due, ..))| *due)
    }
}
