//! The fabric's schedule: events in order of time.
//!
//! Near events are on a timing wheel with a slot for each of the next nanoseconds, far ones in a
//! heap. A lane has at most one event for its packets on it, for the first that is coming: see
//! [`super::track`].

mod due;

use std::{cmp::Reverse, collections::BinaryHeap};

use self::due::DueEvents;
use super::{
    GI_WIRES, MAX_CHANNELS, MAX_FUNCTIONS, MAX_PORTS,
    wheel::{OccupiedSlots, SLOTS},
};
use crate::time::Nanos;

/// The end of a list of entries.
const END: u32 = u32::MAX;

/// An event in the fabric.
///
/// Events of one time are in the order of their lanes, and those of one lane in the order of
/// [`EventKind`]. Equal events of one time are one. The order therefore depends on nothing outside
/// of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event(u32);

/// Kinds of events, in the order in which those of one lane and one time are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    /// Credits return to the lane's sender, which waits for them.
    Credit,
    /// Packets of the lane arrive, or their heads do.
    Arrival,
    /// The wire of the lane's path may have fallen idle.
    Idle,
    /// The members of a wire of the global interrupt network see its new state.
    Wire,
}

impl Event {
    /// Number of bits of the kind. The number of the lane or wire is above them.
    const KIND_BITS: u32 = 2;
    /// The first number that stands for a wire instead of a lane. Wires come after all lanes.
    const FIRST_WIRE: u32 = (u32::MAX >> Self::KIND_BITS) - GI_WIRES as u32;
    /// No event: one that was cancelled.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// Returns an event of a lane. An event of a path is that of its first lane.
    #[inline]
    pub(super) const fn of_lane(lane: u32, kind: EventKind) -> Self {
        Self(lane << Self::KIND_BITS | kind as u32)
    }

    /// Returns the event of a wire of the global interrupt network.
    pub(super) const fn of_wire(wire: u8) -> Self {
        Self::of_lane(Self::FIRST_WIRE + wire as u32, EventKind::Wire)
    }

    /// Returns the index of the lane. That of an event of a wire is larger than those of all lanes.
    #[inline]
    pub(super) const fn lane(self) -> usize {
        (self.0 >> Self::KIND_BITS) as usize
    }

    /// Returns whether packets arrive, or their heads.
    #[inline]
    pub(super) const fn is_arrival(self) -> bool {
        self.0 & ((1 << Self::KIND_BITS) - 1) == EventKind::Arrival as u32
    }

    /// Returns the index of the lane, or the number of the wire, and the kind.
    #[inline]
    pub(super) const fn parts(self) -> (usize, EventKind) {
        let number = self.0 >> Self::KIND_BITS;
        match self.0 & ((1 << Self::KIND_BITS) - 1) {
            0 => (number as usize, EventKind::Credit),
            1 => (number as usize, EventKind::Arrival),
            2 => (number as usize, EventKind::Idle),
            _ => (number.wrapping_sub(Self::FIRST_WIRE) as usize, EventKind::Wire),
        }
    }
}

// Each lane ends at a virtual channel of a port of a function, so that its index fits.
const _: () =
    assert!(MAX_FUNCTIONS as u64 * MAX_PORTS as u64 * (MAX_CHANNELS as u64) < Event::FIRST_WIRE as u64);

/// The place of an event in the schedule, by which it can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    /// The place of an event that cannot be cancelled.
    pub(super) const FAR: Self = Self(END);
    /// The place of no event.
    pub(super) const NONE: Self = Self(END - 1);
}

/// An event on the wheel.
#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Event,
    /// Index of the next entry of the same slot, or of the next free one, or [`END`].
    next: u32,
}

/// Events in order of time, and in that of [`Event`] at one time.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Time of the first event, or [`Nanos::NEVER`].
    next: Nanos,
    wheel: Wheel,
    /// Events that were far away when they were added.
    far: BinaryHeap<Reverse<(Nanos, Event)>>,
    /// The events of one time that are being carried out.
    due: DueEvents,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { next: Nanos::NEVER, wheel: Wheel::new(), far: BinaryHeap::new(), due: DueEvents::default() }
    }
}

impl Schedule {
    /// Returns the time of the next event, or [`Nanos::NEVER`].
    #[inline]
    pub(super) fn next(&self) -> Nanos {
        self.next
    }

    /// Adds an event that is due at `due`, after the present time `now`. Returns its place, which
    /// it has until it is due.
    #[inline]
    pub(super) fn add(&mut self, now: Nanos, due: Nanos, event: Event) -> Place {
        self.next = self.next.min(due);
        match self.wheel.add(due.0, event) {
            Some(index) => Place(index),
            None => self.add_far(now, due, event),
        }
    }

    /// Adds an event that does not fit onto the wheel as it stands.
    #[cold]
    #[inline(never)]
    fn add_far(&mut self, now: Nanos, due: Nanos, event: Event) -> Place {
        self.wheel.turn_to(now.0);
        match self.wheel.add(due.0, event) {
            Some(index) => Place(index),
            None => {
                self.far.push(Reverse((due, event)));
                Place::FAR
            }
        }
    }

    /// Cancels an event that is not yet due. Returns false if it stays, because it is far away.
    ///
    /// The time of a cancelled event may still be that of [`Schedule::next`].
    #[inline]
    pub(super) fn cancel(&mut self, place: Place) -> bool {
        let entry = self.wheel.entries.get_mut(place.0 as usize);
        entry.is_some_and(|entry| {
            entry.event = Event::NONE;
            true
        })
    }

    /// Takes the events of the time of the next event, if that is `now` or earlier, and returns the
    /// time. [`Schedule::pop`] then returns the events.
    pub(super) fn begin(&mut self, now: Nanos) -> Option<Nanos> {
        let due = self.next;
        if due > now {
            return None;
        }

        self.wheel.take(due.0, &mut self.due);
        while self.far.peek().is_some_and(|Reverse((time, _))| *time == due) {
            if let Some(Reverse((_, event))) = self.far.pop() {
                self.due.insert(event);
            }
        }

        let next_far = self.far.peek().map_or(Nanos::NEVER, |Reverse((time, _))| *time);
        self.next = next_far.min(Nanos(self.wheel.first().unwrap_or(u64::MAX)));

        // At `Nanos::NEVER`, the time of no event, there are events only if some were added for it.
        (due < Nanos::NEVER || !self.due.is_empty()).then_some(due)
    }

    /// Returns the next event of the time that [`Schedule::begin`] returned.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.due.pop()
    }
}

/// The events of the next [`SLOTS`] nanoseconds. Each slot is a list of the events of one time.
#[derive(Debug)]
struct Wheel {
    /// All events are from this time on, and before this time plus [`SLOTS`].
    base: u64,
    /// First entry of each slot. There are no slots before the first event.
    slots: Box<[u32]>,
    occupied: OccupiedSlots,
    entries: Vec<Entry>,
    /// First free entry, or [`END`].
    free: u32,
}

impl Wheel {
    fn new() -> Self {
        Self {
            base: 0,
            slots: Box::default(),
            occupied: OccupiedSlots::default(),
            entries: Vec::new(),
            free: END,
        }
    }

    /// Returns the slot of a time.
    #[inline]
    fn slot(time: u64) -> usize {
        time as usize % SLOTS
    }

    /// Adds an event, and returns the index of its entry. Returns `None`, and changes nothing, if
    /// its time is not on the wheel.
    #[inline]
    fn add(&mut self, time: u64, event: Event) -> Option<u32> {
        let slot = Self::slot(time);
        if time.wrapping_sub(self.base) >= SLOTS as u64 {
            return None;
        }
        let Some(first) = self.slots.get_mut(slot) else { return self.add_first(time, event) };

        let entry = Entry { event, next: *first };
        let mut index = self.free;
        if let Some(free) = self.entries.get_mut(index as usize) {
            self.free = free.next;
            *free = entry;
        } else {
            index = self.entries.len() as u32;
            self.entries.push(entry);
        }

        *first = index;
        self.occupied.insert(slot);
        Some(index)
    }

    /// Adds the first event of all. A fabric whose packets take no time has no slots.
    #[cold]
    #[inline(never)]
    fn add_first(&mut self, time: u64, event: Event) -> Option<u32> {
        self.slots = vec![END; SLOTS].into_boxed_slice();
        self.add(time, event)
    }

    /// Removes the events of a time that is not after [`Wheel::first`], and adds them to `events`.
    /// The wheel starts at that time then.
    fn take(&mut self, time: u64, events: &mut DueEvents) {
        let slot = Self::slot(time);
        let is_on_wheel = time.wrapping_sub(self.base) < SLOTS as u64;
        let Some(first) = self.slots.get_mut(slot).filter(|_| is_on_wheel) else { return };

        let mut index = std::mem::replace(first, END);
        while let Some(entry) = self.entries.get_mut(index as usize) {
            if entry.event != Event::NONE {
                events.insert(entry.event);
            }
            let next = std::mem::replace(&mut entry.next, self.free);
            self.free = index;
            index = next;
        }

        self.occupied.remove(slot);
        self.base = time;
    }

    /// Returns the time of the first event.
    #[inline]
    fn first(&self) -> Option<u64> {
        self.occupied.first_time(self.base)
    }

    /// Moves the base forward to `now`, or to the first event if that is earlier.
    fn turn_to(&mut self, now: u64) {
        let latest = self.first().map_or(now, |first| first.min(now));
        self.base = self.base.max(latest);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A step of a test: an event is added or cancelled, or the time moves on.
    #[derive(Clone, Debug)]
    enum Act {
        Add { ahead: u64, lane: u32, kind: EventKind },
        Cancel { number: usize },
        Advance { ahead: u64 },
    }

    /// Times ahead: ties and near ones, those about the end of the wheel, and horizons of timers.
    fn ahead() -> impl Strategy<Value = u64> {
        let turns = SLOTS as u64;
        prop_oneof![
            8 => 1..20u64,
            4 => 1..turns,
            2 => turns - 2..turns + 3,
            2 => turns..1_000_000,
            1 => 1_000_000_000..4_000_000_000_000u64,
            1 => Just(u64::MAX / 2),
        ]
    }

    fn act() -> impl Strategy<Value = Act> {
        let kind = prop_oneof![
            Just(EventKind::Credit),
            Just(EventKind::Arrival),
            Just(EventKind::Idle),
            Just(EventKind::Wire),
        ];
        let lane = prop_oneof![0..6u32, 0..(1u32 << 20)];
        prop_oneof![
            4 => (ahead(), lane, kind).prop_map(|(ahead, lane, kind)| Act::Add { ahead, lane, kind }),
            1 => any::<usize>().prop_map(|number| Act::Cancel { number }),
            1 => prop_oneof![0..30u64, 0..20_000u64, ahead()].prop_map(|ahead| Act::Advance { ahead }),
        ]
    }

    /// Carries out what is due, and compares it with the sorted list.
    fn compare(schedule: &mut Schedule, sorted: &mut Vec<(Nanos, Event)>, now: Nanos) {
        sorted.sort_unstable();
        while let Some(due) = schedule.begin(now) {
            while let Some(event) = schedule.pop() {
                assert_eq!((due, event), sorted.remove(0));
                sorted.retain(|other| *other != (due, event));
            }
        }

        let next = sorted.first().map_or(Nanos::NEVER, |(due, _)| *due);
        assert!(sorted.is_empty() || next > now, "{next:?} is left at {now:?}");
        // The time of a cancelled event may be left.
        assert!(schedule.next() > now && schedule.next() <= next);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_a_sorted_list(acts in prop::collection::vec(act(), 1..400)) {
            let (mut schedule, mut sorted) = (Schedule::default(), Vec::new());
            let (mut now, mut places) = (Nanos::ZERO, Vec::new());
            for act in acts {
                match act {
                    Act::Add { ahead, lane, kind } => {
                        let event = match kind {
                            EventKind::Wire => Event::of_wire(lane as u8 % GI_WIRES),
                            kind => Event::of_lane(lane, kind),
                        };
                        let due = now.after(ahead);
                        places.push((schedule.add(now, due, event), due, event));
                        sorted.push((due, event));
                    }
                    Act::Cancel { number } => {
                        places.retain(|(_, due, _)| *due > now);
                        let Some(&(place, due, event)) = places.get(number % places.len().max(1)) else { continue };
                        let is_there = sorted.iter().position(|one| *one == (due, event));
                        if schedule.cancel(place) && let Some(position) = is_there {
                            sorted.remove(position);
                        }
                        places.retain(|(other, ..)| *other != place);
                    }
                    Act::Advance { ahead } => {
                        now = now.after(ahead).min(Nanos(u64::MAX - 1));
                        compare(&mut schedule, &mut sorted, now);
                    }
                }
            }

            compare(&mut schedule, &mut sorted, Nanos(u64::MAX - 1));
        }
    }

    #[test]
    fn an_event_has_the_parts_that_it_was_made_of() {
        for kind in [EventKind::Credit, EventKind::Arrival, EventKind::Idle] {
            assert_eq!(Event::of_lane(1 << 26, kind).parts(), (1 << 26, kind));
        }
        assert_eq!(Event::of_wire(3).parts(), (3, EventKind::Wire));
        assert!(Event::of_wire(0) > Event::of_lane(1 << 26, EventKind::Idle));
    }

    #[test]
    fn many_lanes_at_one_time_are_in_their_order() {
        let mut schedule = Schedule::default();
        for lane in (0..10_000).rev() {
            schedule.add(Nanos(5), Nanos(1_000_005), Event::of_lane(lane, EventKind::Arrival));
            schedule.add(Nanos(5), Nanos(6), Event::of_lane(lane, EventKind::Arrival));
        }

        for due in [6, 1_000_005] {
            assert_eq!(schedule.begin(Nanos(2_000_000)), Some(Nanos(due)));
            let lanes: Vec<_> = std::iter::from_fn(|| schedule.pop()).map(|event| event.parts().0).collect();
            assert_eq!(lanes, (0..10_000).collect::<Vec<_>>());
        }
        assert_eq!((schedule.begin(Nanos::NEVER), schedule.next()), (None, Nanos::NEVER));
    }
}
