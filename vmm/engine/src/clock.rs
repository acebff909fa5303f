//! The engine's clock: when all mapped memory is checked again, and when the next deadline is.

use std::time::{Duration, Instant};

use nicforge_core::time::Nanos;

/// The time since the engine was made, and the events that are due by it.
#[derive(Debug)]
pub(crate) struct EngineClock {
    start: Instant,
    /// Time of the last check of all mapped memory, since `start`.
    scanned: Duration,
    /// Time of the next event that is due.
    deadline: Option<Instant>,
}

impl EngineClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), scanned: Duration::ZERO, deadline: None }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the time from the start until `now`.
    pub(crate) fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// Returns whether the last check of all mapped memory was at least `interval` ago. `now` is
    /// the time since the start.
    pub(crate) fn is_scan_due(&self, now: Duration, interval: Duration) -> bool {
        now.saturating_sub(self.scanned) >= interval
    }

    /// Records a check of all mapped memory.
    pub(crate) fn note_scan(&mut self, now: Duration) {
        self.scanned = now;
    }

    /// Records that an event is due at this time.
    pub(crate) fn note_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Returns the current time when an event is due, and forgets the deadline. The caller must
    /// note the deadlines of the events that are not due yet.
    pub(crate) fn take_due(&mut self) -> Option<Instant> {
        let deadline = self.deadline?;
        let now = Instant::now();
        (deadline <= now).then(|| {
            self.deadline = None;
            now
        })
    }

    /// Returns how long to sleep: until the machine has work at `machine_time`, an event is due, or
    /// `scan_interval` has passed since the last check of all memory. `None` means without limit.
    ///
    /// A sleep is rounded up to whole sleeps of `shortest`, unless `machine_time` ends it.
    pub(crate) fn sleep_time(
        &self,
        machine_time: Nanos,
        now: Instant,
        scan_interval: Option<Duration>,
        shortest: Duration,
    ) -> Option<Duration> {
        let since_start = self.since_start(now);
        let until_scan =
            scan_interval.map(|interval| interval.saturating_sub(since_start.saturating_sub(self.scanned)));
        let until_deadline = self.deadline.map(|deadline| deadline.saturating_duration_since(now));

        // A remainder would need one more sleep, so the time is rounded up to whole sleeps.
        let round_up = |time: Duration| {
            let sleeps = time.as_nanos().div_ceil(shortest.as_nanos().max(1)).max(1);
            shortest.saturating_mul(u32::try_from(sleeps).unwrap_or(u32::MAX))
        };
        let rounded = [until_scan, until_deadline].into_iter().flatten().min().map(round_up);

        let until_machine = (machine_time < Nanos::NEVER)
            .then(|| Duration::from_nanos(machine_time.0).saturating_sub(since_start));
        [rounded, until_machine].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(1);

    #[test]
    fn sleep_without_clients_deadlines_and_timers_has_no_limit() {
        let clock = EngineClock::new();
        assert_eq!(clock.sleep_time(Nanos::NEVER, Instant::now(), None, SHORTEST), None);
    }

    #[test]
    fn sleep_until_a_deadline_takes_whole_sleeps_and_one_for_the_machine_does_not() {
        let mut clock = EngineClock::new();
        let now = clock.start;
        clock.note_deadline(now + Duration::from_micros(2500));

        let sleep_for_deadline = clock.sleep_time(Nanos::NEVER, now, None, SHORTEST);
        let sleep_for_machine = clock.sleep_time(Nanos(700_000), now, None, SHORTEST);

        assert_eq!(sleep_for_deadline, Some(Duration::from_millis(3)));
        assert_eq!(sleep_for_machine, Some(Duration::from_micros(700)));
    }

    #[test]
    fn deadline_that_is_over_is_taken_once() {
        let mut clock = EngineClock::new();
        clock.note_deadline(Instant::now());

        assert!(clock.take_due().is_some());
        assert!(clock.take_due().is_none());
    }
}
