//! The fabric's event queue.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::time::Nanos;

/// An event in the fabric.
///
/// Events of one time are in the order of their lanes, and those of one lane in the order of
/// [`EventKind`]. Equal events are interchangeable: a packet's arrival concerns the next packet of
/// the lane. The order therefore depends on nothing outside of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// Index of the lane. An event of a path has its first lane, and one of a wire
    /// [`Event::NO_LANE`].
    lane: u32,
    kind: EventKind,
}

/// Kinds of events, in the order in which those of one lane and one time are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    /// Credits return to the lane's sender.
    Credit { credits: u32 },
    /// The tail of the packet arrives whose head arrived last.
    Tail,
    /// The next packet of the lane arrives as a whole.
    Arrival,
    /// The head of the lane's next packet arrives.
    Head,
    /// The wire of the lane's path may have fallen idle.
    Idle,
    /// The members of a wire of the global interrupt network see its new state.
    Wire { wire: u8 },
}

impl Event {
    /// Lane of the events that concern none. They come after those of all lanes.
    const NO_LANE: u32 = u32::MAX;

    /// Returns an event of a lane.
    #[inline]
    pub(super) const fn of_lane(lane: u32, kind: EventKind) -> Self {
        Self { lane, kind }
    }

    /// Returns the event of a wire of the global interrupt network.
    pub(super) const fn of_wire(wire: u8) -> Self {
        Self { lane: Self::NO_LANE, kind: EventKind::Wire { wire } }
    }

    /// Returns the index of the lane, and the kind.
    #[inline]
    pub(super) const fn parts(self) -> (usize, EventKind) {
        (self.lane as usize, self.kind)
    }
}

/// Events in order of time.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
}

impl Schedule {
    /// Reserves room for this many events in total.
    pub(super) fn reserve(&mut self, events: usize) {
        self.events.reserve(events.saturating_sub(self.events.len()));
    }

    pub(super) fn add(&mut self, due: Nanos, event: Event) {
        self.events.push(Reverse((due, event)));
    }

    /// Removes and returns the next event if it is due.
    #[inline]
    pub(super) fn pop(&mut self, now: Nanos) -> Option<(Nanos, Event)> {
        if self.next() > now {
            return None;
        }
        self.events.pop().map(|Reverse(event)| event)
    }

    /// Returns the time of the next event, or [`Nanos::NEVER`].
    #[inline]
    pub(super) fn next(&self) -> Nanos {
        self.events.peek().map_or(Nanos::NEVER, |Reverse((due, _))| *due)
    }
}
