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

    /// Returns the index of the lane, wire or node.
    #[inline(always)]
    pub(super) const fn index(self) -> u32 {
        self.0 >> Self::KIND_BITS
    }

    #[inline]
    pub(super) const fn kind(self) -> Kind {
        let index = self.index();
        match self.0 & ((1 << Self::KIND_BITS) - 1) {
            0 => Kind::Arrival(index),
            1 => Kind::Credit(index),
            2 => Kind::Idle(index),
            _ => Kind::Timer(index),
        }
    }
}

/// The events of one time. Arrivals are apart, because a loop over events of one kind is shorter.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Lanes of arrivals.
    pub(super) arrivals: Vec<u32>,
    /// Events of the other kinds.
    pub(super) others: Vec<Event>,
}

/// The events of a network.
#[derive(Debug)]
pub(super) struct Wheel {
    /// Events of the wheel are from this time on, and before this time plus [`SLOTS`].
    base: u64,
    /// Lanes of arrivals by slot. A slot without events has no memory, here and below.
    arrivals: Box<[Vec<u32>; SLOTS]>,
    /// Events of the other kinds by slot.
    others: Box<[Vec<Event>; SLOTS]>,
    occupied: OccupiedSlots,
    /// Memory that slots have had. The last one is the most likely to be in a cache.
    spare: Vec<Events>,
    /// Events that are not on the wheel.
    far: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Wheel {
    /// Returns a wheel without events, at time 0.
    pub(super) fn new() -> Self {
        Self {
            base: 0,
            arrivals: Box::new([const { Vec::new() }; SLOTS]),
            others: Box::new([const { Vec::new() }; SLOTS]),
            occupied: OccupiedSlots::default(),
            spare: Vec::new(),
            far: BinaryHeap::new(),
        }
    }

    /// Adds the arrival of a lane's packet at `due`, which is after the time of the last
    /// [`Wheel::take`].
    #[inline(always)]
    pub(super) fn add_arrival(&mut self, due: Nanos, lane: u32) {
        let arrivals = &mut self.arrivals[due.0 as usize % SLOTS];
        if due.0.wrapping_sub(self.base) < SLOTS as u64 && arrivals.len() < arrivals.capacity() {
            arrivals.push(lane);
        } else {
            self.add_with_room(due, Event::new(Kind::Arrival(lane)));
        }
    }

    /// Adds an event of another kind, as [`Wheel::add_arrival`] does.
    #[inline(never)]
    pub(super) fn add(&mut self, due: Nanos, kind: Kind) {
        let event = Event::new(kind);
        let others = &mut self.others[due.0 as usize % SLOTS];
        if due.0.wrapping_sub(self.base) < SLOTS as u64 && others.len() < others.capacity() {
            others.push(event);
        } else {
            self.add_with_room(due, event);
        }
    }

    /// Adds an event for which the wheel has no room yet.
    #[cold]
    #[inline(never)]
    fn add_with_room(&mut self, due: Nanos, event: Event) {
        if due.0.wrapping_sub(self.base) >= SLOTS as u64 {
            return self.far.push(Reverse((due.0, event)));
        }

        let slot = due.0 as usize % SLOTS;
        let (arrivals, others) = (&mut self.arrivals[slot], &mut self.others[slot]);
        if arrivals.is_empty() && others.is_empty() {
            Events { arrivals: *arrivals, others: *others } = self.spare.pop().unwrap_or_default();
            self.occupied.insert(slot);
        }
        match event.kind() {
            Kind::Arrival(lane) => arrivals.push(lane),
            _ => others.push(event),
        }
    }

    /// Returns the events of the next time, and that time, if it is at most `limit`. The caller
    /// must return the memory: [`Wheel::recycle`].
    pub(super) fn take(&mut self, limit: Nanos) -> Option<(Nanos, Events)> {
        let near = self.occupied.first_time(self.base).unwrap_or(u64::MAX);
        let far = self.far.peek().map_or(u64::MAX, |Reverse((time, _))| *time);
        let time = near.min(far);
        if time > limit.0 || time == u64::MAX {
            return None;
        }

        let mut events = Events::default();
        if near == time {
            let slot = time as usize % SLOTS;
            events.arrivals = std::mem::take(&mut self.arrivals[slot]);
            events.others = std::mem::take(&mut self.others[slot]);
            self.occupied.remove(slot);
        }
        while let Some(Reverse((due, event))) = self.far.peek()
            && *due == time
        {
            match event.kind() {
                Kind::Arrival(lane) => events.arrivals.push(lane),
                _ => events.others.push(*event),
            }
            self.far.pop();
        }

        self.base = time;
        Some((Nanos(time), events))
    }

    /// Keeps the memory of events that were carried out.
    pub(super) fn recycle(&mut self, mut events: Events) {
        events.arrivals.clear();
        events.others.clear();
        self.spare.push(events);
    }
}
