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

/// A longer time between two observations counts as a gap. The observer may have been stopped
/// during a gap, and the engine with it, as when a container or a machine is frozen. A living
/// engine gets this much time after a gap to beat.
const GAP: Duration = Duration::from_secs(1);

/// A heartbeat, and the time at which it last moved.
pub(crate) struct Heartbeat {
    word: SharedU64,
    observation: Mutex<Observation>,
}

struct Observation {
    beat: u64,
    last_beat: Instant,
    checked: Instant,
    /// The end of the first gap since the last beat.
    gap_ended: Option<Instant>,
}

impl Observation {
    fn new(beat: u64, now: Instant) -> Self {
        Self { beat, last_beat: now, checked: now, gap_ended: None }
    }

    /// Records an observation of the heartbeat at `now`. Returns the time since it last moved,
    /// bounded after a gap.
    fn time_since_beat(&mut self, beat: u64, now: Instant) -> Duration {
        if self.beat != beat {
            *self = Self::new(beat, now);
        }

        if now.saturating_duration_since(self.checked) > GAP {
            // Later gaps do not count. Otherwise a rare observer would never notice that an engine
            // is gone.
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
    pub(crate) fn new(word: SharedU64) -> Self {
        let observation = Mutex::new(Observation::new(word.load(Ordering::Relaxed), Instant::now()));
        Self { word, observation }
    }

    fn observation(&self) -> MutexGuard<'_, Observation> {
        runtime::lock(&self.observation)
    }

    /// Restarts the time without a beat at zero.
    pub(crate) fn restart(&self) {
        *self.observation() = Observation::new(self.word.load(Ordering::Relaxed), Instant::now());
    }

    /// Returns the time since the last observed beat. During the first second after a gap, it
    /// returns at most one second.
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
