//! Detects whether the heartbeat in a mirror still moves.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use nicforge_shm::SharedU64;

/// The time without a beat after which waits check the server. An engine with clients beats every
/// 50 ms.
pub(crate) const RESTS: Duration = Duration::from_millis(250);

/// A longer time between two observations counts as a gap. The observer may have been stopped
/// during a gap, and the engine with it, as when a container or a machine is frozen. A living
/// engine gets this much time after a gap to beat.
const GAP: Duration = Duration::from_secs(1);

/// A heartbeat, and the time at which it last moved.
pub(crate) struct Heartbeat {
    word: SharedU64,
    seen: Mutex<Seen>,
}

struct Seen {
    beat: u64,
    moved: Instant,
    looked: Instant,
    /// The end of the first gap since the last beat.
    gap_ended: Option<Instant>,
}

impl Seen {
    fn new(beat: u64, now: Instant) -> Self {
        Self { beat, moved: now, looked: now, gap_ended: None }
    }

    fn rests_for(&mut self, beat: u64, now: Instant) -> Duration {
        if self.beat != beat {
            *self = Self::new(beat, now);
        }

        if now.saturating_duration_since(self.looked) > GAP {
            // Later gaps do not count. Otherwise a rare observer would never notice that an engine
            // is gone.
            self.gap_ended.get_or_insert(now);
        }
        self.looked = now;

        let rests = now.saturating_duration_since(self.moved);
        match self.gap_ended {
            Some(ended) if now.saturating_duration_since(ended) < GAP => rests.min(GAP),
            _ => rests,
        }
    }
}

impl Heartbeat {
    pub(crate) fn new(word: SharedU64) -> Self {
        let seen = Mutex::new(Seen::new(word.load(Ordering::Relaxed), Instant::now()));
        Self { word, seen }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts the time without a beat at zero.
    pub(crate) fn restart(&self) {
        *self.seen() = Seen::new(self.word.load(Ordering::Relaxed), Instant::now());
    }

    /// Returns the time since the last observed beat. During the first second after a gap, it
    /// returns at most one second.
    pub(crate) fn rests_for(&self) -> Duration {
        let mut seen = self.seen();
        seen.rests_for(self.word.load(Ordering::Relaxed), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(50);

    #[test]
    fn rest_is_the_time_since_the_last_beat_for_one_who_keeps_looking() {
        let start = Instant::now();
        let mut seen = Seen::new(1, start);
        assert_eq!(seen.rests_for(2, start + TICK), Duration::ZERO);

        for tick in 2..=240 {
            assert_eq!(seen.rests_for(2, start + TICK * tick), TICK * (tick - 1));
        }
    }

    #[test]
    fn engine_that_was_frozen_with_its_client_gets_time_to_beat() {
        let start = Instant::now();
        let mut seen = Seen::new(1, start);
        let thawed = start + SECOND * 60;

        assert_eq!(seen.rests_for(1, thawed), SECOND);
        assert_eq!(seen.rests_for(1, thawed + TICK), SECOND);
        assert_eq!(seen.rests_for(2, thawed + TICK * 2), Duration::ZERO);
    }

    #[test]
    fn engine_that_is_gone_is_noticed_a_second_after_a_gap_and_at_the_second_look_of_a_rare_one() {
        let start = Instant::now();
        let away = start + SECOND * 60;

        let mut waits = Seen::new(1, start);
        for tick in 0..20 {
            assert_eq!(waits.rests_for(1, away + TICK * tick), SECOND);
        }
        assert_eq!(waits.rests_for(1, away + SECOND), SECOND * 61);

        let mut rare = Seen::new(1, start);
        assert_eq!(rare.rests_for(1, away), SECOND);
        assert_eq!(rare.rests_for(1, start + SECOND * 120), SECOND * 120);
    }
}
