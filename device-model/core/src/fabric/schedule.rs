//! What is due when.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::time::Nanos;

/// Something that happens in the fabric at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The next packet of the lane arrives.
    Arrival { lane: u32 },
    /// A credit comes back to the lane's sender.
    Credit { lane: u32 },
    /// The state of a wire is seen by its members.
    Wire { wire: u8 },
}

/// Events in the order of their time; those of the same time in the order they were scheduled.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
}

impl Schedule {
    /// Makes room for this many events in all.
    pub(super) fn reserve(&mut self, events: usize) {
        self.events.reserve(events.saturating_sub(self.events.len()));
    }

    pub(super) fn add(&mut self, due: Nanos, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((due, self.scheduled, event)));
    }

    /// The next event that is due.
    #[inline]
    pub(super) fn pop(&mut self, now: Nanos) -> Option<(Nanos, Event)> {
        if self.next() > now {
            return None;
        }
        self.events.pop().map(|Reverse((due, _, event))| (due, event))
    }

    #[inline]
    pub(super) fn next(&self) -> Nanos {
        self.events.peek().map_or(Nanos::NEVER, |Reverse((due, ..))| *due)
    }
}
