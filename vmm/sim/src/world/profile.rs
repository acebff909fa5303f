//! The costs of software on a modelled machine.

use std::collections::BTreeMap;

use nicforge_driver::runtime::Cost;

use super::Picos;

/// The time that work takes on a processor of a modelled machine.
///
/// Work without an entry takes no time. A profile without entries is that of an infinitely fast
/// processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    costs: BTreeMap<Cost, Picos>,
    /// Time of one iteration of a loop that waits: the poll period. A program that polls sees an
    /// event at the next multiple of it after the beginning of the wait.
    poll: Picos,
    /// Time from a notification to the moment at which the sleeping thread runs.
    wake: Picos,
}

impl Default for Profile {
    /// Returns the profile of an infinitely fast processor, which polls each nanosecond.
    fn default() -> Self {
        Self { costs: BTreeMap::new(), poll: Picos::nanos(1), wake: Picos::ZERO }
    }
}

impl Profile {
    /// Returns a profile of costs in nanoseconds, which polls each nanosecond.
    #[must_use]
    pub fn of_nanos(costs: impl IntoIterator<Item = (Cost, f64)>) -> Self {
        let add = |profile: Self, (kind, time)| profile.with(kind, Picos::of_nanos(time));
        costs.into_iter().fold(Self::default(), add)
    }

    /// Sets the time that one unit of a kind of work takes.
    #[must_use]
    pub fn with(mut self, kind: Cost, time: Picos) -> Self {
        self.costs.insert(kind, time);
        self
    }

    /// Sets the poll period, which is at least a picosecond.
    #[must_use]
    pub fn with_poll(mut self, time: Picos) -> Self {
        self.poll = time.max(Picos(1));
        self
    }

    /// Sets the time from a notification to the moment at which the sleeping thread runs.
    #[must_use]
    pub fn with_wake(mut self, time: Picos) -> Self {
        self.wake = time;
        self
    }

    /// Returns the time of `count` units of work.
    pub fn cost(&self, kind: Cost, count: usize) -> Picos {
        self.costs.get(&kind).map_or(Picos::ZERO, |&time| time * count as u64)
    }

    /// Returns the kinds of work that take time, with the time of one unit.
    pub fn costs(&self) -> impl Iterator<Item = (Cost, Picos)> {
        self.costs.iter().map(|(&kind, &time)| (kind, time))
    }

    /// Returns the poll period: the time of one iteration of a loop that waits.
    pub fn poll(&self) -> Picos {
        self.poll
    }

    /// Returns the time that a sleeping thread takes to run after a notification.
    pub fn wake(&self) -> Picos {
        self.wake
    }
}
