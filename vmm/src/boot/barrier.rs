//! Barriers between the guests of one boot: `nicforge-barrier NAME` in a guest waits until the
//! commands of all guests have come to the barrier of that name.
//!
//! A barrier exists from its first call to the answers, so that its name can be used again. A
//! guest whose command has ended comes to no barrier any more, so its end answers all calls.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nicforge_guest::BarrierCall;

/// The number of calls of one guest that wait at the same time.
const MAX_CALLS: usize = 64;

/// The end of a call of a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All guests have come.
    Passed,
    /// The command of this guest has ended before it came.
    Left(String),
    /// The call's time is over.
    TimedOut(Duration),
    /// Too many calls of the guest wait.
    Refused,
}

impl End {
    /// Returns the exit code of the program in the guest.
    pub(super) const fn status(&self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Left(_) => 1,
            Self::Refused => 3,
            // As that of the command `timeout`.
            Self::TimedOut(_) => 124,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("all have come"),
            Self::Left(guest) => write!(f, "the command in {guest} has ended"),
            Self::TimedOut(limit) => write!(f, "not all have come within {} s", limit.as_secs()),
            Self::Refused => write!(f, "{MAX_CALLS} calls of this guest wait already"),
        }
    }
}

/// A call that waits at a barrier.
struct Waiting {
    guest: usize,
    /// The call's number in its guest.
    number: u64,
    limit: Duration,
    /// The end of the limit.
    until: Instant,
}

/// The barriers of some guests, which have numbers from 0 on.
pub(super) struct Barriers {
    guests: Vec<Participant>,
    /// The calls at each barrier that some guest has come to.
    open: BTreeMap<String, Vec<Waiting>>,
}

/// A guest, as far as barriers depend on it.
struct Participant {
    name: String,
    /// Whether its command has ended.
    ended: bool,
    /// Ends of its calls that have not been sent to it.
    ends: Vec<(u64, End)>,
}

impl Barriers {
    /// Returns barriers for guests of these names.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let participant = |name| Participant { name, ended: false, ends: Vec::new() };
        Self { guests: names.into_iter().map(participant).collect(), open: BTreeMap::new() }
    }

    /// Adds a call of a guest. When all guests have called the barrier, all calls there end with
    /// [`End::Passed`]. The call ends at once when a command has ended, or when too many calls of
    /// the guest wait.
    pub(super) fn add_call(&mut self, guest: usize, call: BarrierCall, now: Instant) {
        if let Some(left) = self.guests.iter().find(|other| other.ended) {
            let end = End::Left(left.name.clone());
            return self.answer(guest, call.number, end);
        }

        let calls = self.open.values().flatten().filter(|waiting| waiting.guest == guest).count();
        if calls >= MAX_CALLS {
            return self.answer(guest, call.number, End::Refused);
        }

        let BarrierCall { number, name, limit } = call;
        let waiting = self.open.entry(name.clone()).or_default();
        waiting.push(Waiting { guest, number, limit, until: now + limit });

        let has_called = |guest| waiting.iter().any(|waiting| waiting.guest == guest);
        if (0..self.guests.len()).all(has_called) {
            for passed in self.open.remove(&name).unwrap_or_default() {
                self.answer(passed.guest, passed.number, End::Passed);
            }
        }
    }

    /// Records that a guest's command has ended. All calls that wait end with [`End::Left`].
    pub(super) fn end_command(&mut self, guest: usize) {
        let Some(left) = self.guests.get_mut(guest) else { return };
        left.ended = true;
        let name = left.name.clone();

        for waiting in std::mem::take(&mut self.open).into_values().flatten() {
            self.answer(waiting.guest, waiting.number, End::Left(name.clone()));
        }
    }

    /// Returns whether the commands of all guests have ended.
    pub(super) fn have_all_ended(&self) -> bool {
        self.guests.iter().all(|guest| guest.ended)
    }

    /// Returns the ends of a guest's calls since the last time, with the calls' numbers.
    pub(super) fn take_ends(&mut self, guest: usize, now: Instant) -> Vec<(u64, End)> {
        let Some(participant) = self.guests.get_mut(guest) else { return Vec::new() };
        let mut ends = std::mem::take(&mut participant.ends);

        for waiting in self.open.values_mut() {
            let expired = waiting.extract_if(.., |waiting| waiting.guest == guest && waiting.until <= now);
            ends.extend(expired.map(|expired| (expired.number, End::TimedOut(expired.limit))));
        }

        self.open.retain(|_, waiting| !waiting.is_empty());
        ends
    }

    /// Keeps the end of a call for the guest, until [`Self::take_ends`].
    fn answer(&mut self, guest: usize, number: u64, end: End) {
        if let Some(participant) = self.guests.get_mut(guest) {
            participant.ends.push((number, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64, name: &str, seconds: u64) -> BarrierCall {
        BarrierCall { number, name: name.into(), limit: Duration::from_secs(seconds) }
    }

    fn two() -> (Barriers, Instant) {
        (Barriers::new(["a".to_owned(), "b".to_owned()]), Instant::now())
    }

    #[test]
    fn barrier_calls_return_when_all_guests_have_called_and_the_name_can_be_reused() {
        let (mut barriers, now) = two();
        for number in [1, 2] {
            barriers.add_call(0, call(number, "x", 9), now);
            barriers.add_call(1, call(7, "y", 9), now);
            assert_eq!((barriers.take_ends(0, now), barriers.take_ends(1, now)), (vec![], vec![]));

            barriers.add_call(1, call(8, "x", 9), now);
            assert_eq!(barriers.take_ends(0, now), [(number, End::Passed)]);
            assert_eq!(barriers.take_ends(1, now), [(8, End::Passed)]);
        }
    }

    #[test]
    fn second_call_of_a_guest_does_not_stand_for_another_guest() {
        let (mut barriers, now) = two();
        barriers.add_call(0, call(1, "x", 9), now);
        barriers.add_call(0, call(2, "x", 9), now);
        assert_eq!(barriers.take_ends(0, now), []);

        barriers.add_call(1, call(1, "x", 9), now);
        assert_eq!(barriers.take_ends(0, now), [(1, End::Passed), (2, End::Passed)]);
    }

    #[test]
    fn the_end_of_a_command_ends_waiting_and_later_barrier_calls() {
        let (mut barriers, now) = two();
        barriers.add_call(0, call(1, "x", 9), now);
        barriers.end_command(1);
        barriers.add_call(0, call(2, "y", 9), now);

        let left = End::Left("b".into());
        assert_eq!(barriers.take_ends(0, now), [(1, left.clone()), (2, left)]);
        assert!(!barriers.have_all_ended());

        barriers.end_command(0);
        assert!(barriers.have_all_ended());
    }

    #[test]
    fn a_barrier_call_that_times_out_ends_and_is_not_counted() {
        let (mut barriers, now) = two();
        barriers.add_call(0, call(1, "x", 2), now);
        assert_eq!(barriers.take_ends(0, now + Duration::from_millis(1999)), []);

        let over = now + Duration::from_secs(2);
        assert_eq!(barriers.take_ends(0, over), [(1, End::TimedOut(Duration::from_secs(2)))]);

        barriers.add_call(1, call(1, "x", 9), over);
        assert_eq!(barriers.take_ends(1, over), []);

        barriers.add_call(0, call(2, "x", 9), over);
        assert_eq!(barriers.take_ends(1, over), [(1, End::Passed)]);
    }

    #[test]
    fn calls_of_one_guest_beyond_the_limit_are_refused() {
        let (mut barriers, now) = two();
        for number in 0..=MAX_CALLS as u64 {
            barriers.add_call(0, call(number, &format!("x{number}"), 9), now);
        }

        assert_eq!(barriers.take_ends(0, now), [(MAX_CALLS as u64, End::Refused)]);
        assert!(barriers.take_ends(1, now).is_empty());
    }

    #[test]
    fn single_guest_passes_at_once() {
        let now = Instant::now();
        let mut barriers = Barriers::new(["a".to_owned()]);
        barriers.add_call(0, call(1, "x", 9), now);
        assert_eq!(barriers.take_ends(0, now), [(1, End::Passed)]);
    }

    #[test]
    fn each_end_has_a_code_of_its_own() {
        let ends = [End::Passed, End::Left("b".into()), End::Refused, End::TimedOut(Duration::from_secs(1))];
        assert_eq!(ends.map(|end| end.status()), [0, 1, 3, 124]);
    }
}
