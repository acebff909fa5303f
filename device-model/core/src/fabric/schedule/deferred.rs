//! Events that are scheduled when the present is over.

use super::Schedule;
use crate::time::Nanos;

/// Lanes whose next event is scheduled when the present is over. Most devices cancel it before.
#[derive(Debug)]
pub(in crate::fabric) struct Deferred {
    pub(in crate::fabric) lanes: Vec<u32>,
    /// Time of the first of these events, or [`Nanos::NEVER`].
    first: Nanos,
    /// Time at which the first lane was added.
    pub(in crate::fabric) since: Nanos,
}

impl Default for Deferred {
    fn default() -> Self {
        Self { lanes: Vec::new(), first: Nanos::NEVER, since: Nanos::ZERO }
    }
}

impl Deferred {
    /// Returns the time of the first event, or [`Nanos::NEVER`].
    #[inline]
    pub(super) fn first(&self) -> Nanos {
        self.first
    }
}

impl Schedule {
    /// Puts off the scheduling of a lane's event, which is due at `due`. The lane must note
    /// [`super::Place::DEFERRED`].
    #[inline]
    pub(in crate::fabric) fn defer(&mut self, now: Nanos, due: Nanos, lane: u32) {
        let Deferred { lanes, first, since } = &mut self.deferred;
        if lanes.is_empty() {
            *since = now;
        }
        *first = (*first).min(due);
        lanes.push(lane);
    }

    /// Returns whether [`Schedule::defer`] was called since the last
    /// [`Schedule::take_deferred`].
    #[inline]
    pub(in crate::fabric) fn has_deferred(&self) -> bool {
        !self.deferred.lanes.is_empty()
    }

    /// Takes the lanes of [`Schedule::defer`]. The caller schedules their events, and returns the
    /// list for further use.
    #[inline]
    pub(in crate::fabric) fn take_deferred(&mut self) -> Deferred {
        std::mem::take(&mut self.deferred)
    }

    /// Takes back the memory of a list of lanes.
    #[inline]
    pub(in crate::fabric) fn reuse_deferred(&mut self, mut lanes: Vec<u32>) {
        lanes.clear();
        self.deferred.lanes = lanes;
    }
}
