//! Detects whether the heartbeat in a mirror still moves.

use std::{
    sync::{Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use nicforge_shm::SharedU64;

use crate::runtime::{self, Instant};

/// The time without a beat after which waits check the server. An engine with clients beats every
/// 50 ms.
pub(crate) const BEAT_TIMEOUT: Duration = Duration::from_millis(250);

/// A longer time between two observations counts as a gap. During a gap, the observer may have been
/// stopped together with the engine, as when a container or a machine is frozen. After a gap, an
/// engine has this much time to beat before it counts as stopped for longer.
const GAP: Duration = Duration::from_secs(1);

/// A heartbeat, and the time at which it last moved.
pub(crate) struct Heartbeat {
    /// The word that the engine increments.
    word: SharedU64,
    observation: Mutex<Observation>,
}

/// The latest observation of a heartbeat.
struct Observation {
    /// The word's value at the last beat.
    beat: u64,
    /// Time at which the last beat was observed.
    last_beat: Instant,
    /// Time of the last observation.
    checked: Instant,
    /// The end of the first gap since the last beat, if there was a gap.
    gap_ended: Option<Instant>,
}

impl Observation {
    /// Returns the observation of a beat at `now`.
    fn new(beat: u64, now: Instant) -> Self {
        Self { beat, last_beat: now, checked: now, gap_ended: None }
    }

    /// Records an observation of the heartbeat at `now`, when the word has the value `beat`.
    /// Returns the time since the last beat; for a while after a gap, at most [`GAP`].
    fn time_since_beat(&mut self, beat: u64, now: Instant) -> Duration {
        if self.beat != beat {
            *self = Self::new(beat, now);
        }

        if now.saturating_duration_since(self.checked) > GAP {
            // Only the first gap counts. For an observer that looks so rarely that each look ends a
            // gap, the engine would otherwise never count as stopped.
            self.gap_ended.get_or_insert(now);
        }
        self.checked = now;

        let stopped_for = now.saturating_duration_since(self.last_beat);
        match self.gap_ended {
            Some(ended) if now.saturating_duration_since(ended) < GAP => stopped_for.min(GAP),
            _ => stopped_for,
        }
    }
}

impl Heartbeat {
    /// Begins to observe the heartbeat in a word.
    pub(crate) fn new(word: SharedU64) -> Self {
        let observation = Mutex::new(Observation::new(word.load(Ordering::Relaxed), Instant::now()));
        Self { word, observation }
    }

    /// Locks the observation.
    fn observation(&self) -> MutexGuard<'_, Observation> {
        runtime::lock(&self.observation)
    }

    /// Restarts the time without a beat at zero.
    pub(crate) fn restart(&self) {
        *self.observation() = Observation::new(self.word.load(Ordering::Relaxed), Instant::now());
    }

    /// Observes the heartbeat, and returns the time since the last beat. During the first second
    /// after a gap between observations, it returns at most one second.
    pub(crate) fn time_since_beat(&self) -> Duration {
        let mut observation = self.observation();
        observation.time_since_beat(self.word.load(Ordering::Relaxed), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(50);

    #[test]
    fn time_is_counted_from_the_last_beat_for_an_observer_without_gaps() {
        let start = Instant::now();
        let mut observation = Observation::new(1, start);
        assert_eq!(observation.time_since_beat(2, start + TICK), Duration::ZERO);

        for tick in 2..=240 {
            assert_eq!(observation.time_since_beat(2, start + TICK * tick), TICK * (tick - 1));
        }
    }

    #[test]
    fn engine_that_was_frozen_with_its_client_gets_time_to_beat() {
        let start = Instant::now();
        let mut observation = Observation::new(1, start);
        let thawed = start + SECOND * 60;

        assert_eq!(observation.time_since_beat(1, thawed), SECOND);
        assert_eq!(observation.time_since_beat(1, thawed + TICK), SECOND);
        assert_eq!(observation.time_since_beat(2, thawed + TICK * 2), Duration::ZERO);
    }

    #[test]
    fn a_dead_engine_is_detected_a_second_after_a_gap_or_at_the_second_rare_check() {
        let start = Instant::now();
        let after_gap = start + SECOND * 60;

        let mut frequent = Observation::new(1, start);
        for tick in 0..20 {
            assert_eq!(frequent.time_since_beat(1, after_gap + TICK * tick), SECOND);
        }
        assert_eq!(frequent.time_since_beat(1, after_gap + SECOND), SECOND * 61);

        let mut rare = Observation::new(1, start);
        assert_eq!(rare.time_since_beat(1, after_gap), SECOND);
        assert_eq!(rare.time_since_beat(1, start + SECOND * 120), SECOND * 120);
    }
}
