//! Time limits that do not count time in which the NIC was not driven.
//!
//! A watchdog ends what makes no progress. It checks its subject from time to time, and counts the
//! time between two checks, but at most a sixteenth of its limit. While this NIC was not driven,
//! its neighbours had no time to make progress either.

use nicforge_core::time::Nanos;

/// Least number of checks without progress before a limit is reached.
const CHECKS_PER_LIMIT: u64 = 16;

/// The limit of a watchdog in nanoseconds. 0, the default, disables the watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchdogLimit(u64);

impl WatchdogLimit {
    /// Returns a limit of `nanoseconds`; 0 disables the watchdog.
    pub const fn new(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the limit in nanoseconds, 0 if the watchdog is disabled.
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Returns whether the watchdog is disabled.
    pub const fn is_disabled(self) -> bool {
        self.0 == 0
    }

    /// Returns the most nanoseconds that one check counts, at least 1. The next check is due after
    /// this time.
    pub fn slice(self) -> u64 {
        (self.0 / CHECKS_PER_LIMIT).max(1)
    }

    /// Returns the nanoseconds that a check at `now` counts; the last check was at `last`.
    pub fn counted(self, last: Nanos, now: Nanos) -> u64 {
        now.0.saturating_sub(last.0).min(self.slice())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_disabled_or_tiny_limit_has_a_slice_of_one() {
        assert!(WatchdogLimit::default().is_disabled());
        assert_eq!([0, 1, 31].map(|limit| WatchdogLimit::new(limit).slice()), [1; 3]);
    }

    proptest! {
        #[test]
        fn no_limit_is_reached_in_fewer_than_16_checks(
            limit in 16..u64::MAX,
            checks in proptest::collection::vec(any::<u64>(), 15),
        ) {
            let limit = WatchdogLimit::new(limit);
            let (mut last, mut counted) = (Nanos::ZERO, 0);
            for gap in checks {
                let now = last.after(gap);
                counted += limit.counted(last, now);
                last = now;
            }
            prop_assert!(counted < limit.nanoseconds());
        }

        #[test]
        fn checks_at_their_due_times_count_the_whole_time(limit in 1..1_000_000u64, checks in 1..40u64) {
            let limit = WatchdogLimit::new(limit);
            let mut last = Nanos(5);
            let counted: u64 = (0..checks)
                .map(|_| {
                    let now = last.after(limit.slice());
                    limit.counted(std::mem::replace(&mut last, now), now)
                })
                .sum();
            prop_assert_eq!(counted, last.0 - 5);
        }
    }
}
