//! Events in order of time.
//!
//! Near events are on a timing wheel with a slot for each of the next nanoseconds, far ones in a
//! heap. The events of one time have no order: see the module documentation of [`super`].

use std::{cmp::Reverse, collections::BinaryHeap};

use nicforge_core::{
    fabric::wheel::{OccupiedSlots, SLOTS},
    time::Nanos,
};

/// An event of a lane, a wire or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event(u32);

/// Kinds of events, with the index of the lane, wire or node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The head or the tail of the first packet of a lane has arrived.
    Arrival(u32),
    /// Credits return to the sender of a lane, which waits for them.
    Credit(u32),
    /// A wire may have fallen idle.
    Idle(u32),
    /// The timer of a node.
    Timer(u32),
}

impl Event {
    /// Bits of the kind's number. The index is above them.
    const KIND_BITS: u32 = 2;
    /// Indices are below this.
    pub(super) const INDICES: usize = 1 << (u32::BITS - Self::KIND_BITS);

    pub(super) const fn new(kind: Kind) -> Self {
        let (index, kind) = match kind {
            Kind::Arrival(index) => (index, 0),
            Kind::Credit(index) => (index, 1),
            Kind::Idle(index) => (index, 2),
            Kind::Timer(index) => (index, 3),
        };
        Self(index << Self::KIND_BITS | kind)
    }

    #[inline]
    pub(super) const fn kind(self) -> Kind {
        let index = self.0 >> Self::KIND_BITS;
        match self.0 & ((1 << Self::KIND_BITS) - 1) {
            0 => Kind::Arrival(index),
            1 => Kind::Credit(index),
            2 => Kind::Idle(index),
            _ => Kind::Timer(index),
        }
    }
}

/// The events of a network.
#[derive(Debug)]
pub(super) struct Wheel {
    /// Events of the wheel are from this time on, and before this time plus [`SLOTS`].
    base: u64,
    /// A slot without events has no memory.
    slots: Box<[Vec<Event>; SLOTS]>,
    occupied: OccupiedSlots,
    /// Empty vectors that slots have had. The memory of the last one is the most likely to be in a
    /// cache.
    spare: Vec<Vec<Event>>,
    /// Events that are too far away for the wheel, with their times: the earliest one first.
    far: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Wheel {
    /// Returns a wheel without events, at time 0.
    pub(super) fn new() -> Self {
        Self {
            base: 0,
            slots: Box::new([const { Vec::new() }; SLOTS]),
            occupied: OccupiedSlots::default(),
            spare: Vec::new(),
            far: BinaryHeap::new(),
        }
    }

    /// Adds an event at `due`, which is after the time of the last [`Wheel::take`].
    #[inline]
    pub(super) fn add(&mut self, due: Nanos, kind: Kind) {
        let (time, event) = (due.0, Event::new(kind));
        let slot = time as usize % SLOTS;
        if time.wrapping_sub(self.base) >= SLOTS as u64 {
            return self.add_far(time, event);
        }

        if self.slots[slot].len() == self.slots[slot].capacity() {
            self.make_room(slot);
        }
        self.slots[slot].push(event);
    }

    /// Adds the event of a wire that falls idle at `due`, as [`Wheel::add`] does.
    #[inline(never)]
    pub(super) fn add_idle(&mut self, due: Nanos, wire: u32) {
        self.add(due, Kind::Idle(wire));
    }

    /// Makes room for another event in a slot. If it is the first one, the slot gets a spare vector
    /// and counts as occupied.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, slot: usize) {
        let events = &mut self.slots[slot];
        if events.is_empty() {
            *events = self.spare.pop().unwrap_or_default();
            self.occupied.insert(slot);
        }
        events.reserve(1);
    }

    /// Adds an event that is too far away for the wheel.
    #[cold]
    #[inline(never)]
    fn add_far(&mut self, time: u64, event: Event) {
        self.far.push(Reverse((time, event)));
    }

    /// Returns the events of the next time, and that time, if it is at most `limit`. The caller
    /// must return the memory: [`Wheel::recycle`].
    pub(super) fn take(&mut self, limit: Nanos) -> Option<(Nanos, Vec<Event>)> {
        let near = self.occupied.first_time(self.base).unwrap_or(u64::MAX);
        let far = self.far.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
        let time = near.min(far);
        if time > limit.0 || time == u64::MAX {
            return None;
        }

        let mut events = Vec::new();
        if near == time {
            let slot = time as usize % SLOTS;
            events = std::mem::take(&mut self.slots[slot]);
            self.occupied.remove(slot);
        }
        while let Some(Reverse((due, event))) = self.far.peek()
            && *due == time
        {
            events.push(*event);
            self.far.pop();
        }

        self.base = time;
        Some((Nanos(time), events))
    }

    /// Keeps the memory of events that were carried out.
    pub(super) fn recycle(&mut self, mut events: Vec<Event>) {
        events.clear();
        self.spare.push(events);
    }
}
