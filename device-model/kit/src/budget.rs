//! The time for which clients with slow memory may hold what all clients of a card share.
//!
//! A budget is a token bucket of nanoseconds. It is charged while a shared queue or engine waits
//! for the client; such a wait is called a *hold*. It refills at a hundredth of the time that
//! passes. A reset of the client does not refill it.

use nicforge_core::time::Nanos;

/// Nanoseconds for which one client may hold shared parts before its budget needs a refill.
pub const CLIENT_NANOSECONDS: u64 = 50_000_000;
/// Nanoseconds for which all clients of a card together may hold shared parts before the card's
/// budget needs a refill.
pub const CARD_NANOSECONDS: u64 = 100_000_000;
/// Nanoseconds that must pass for a refill of one nanosecond.
const REFILL_RATIO: u64 = 100;
/// Maximum number of nanoseconds charged between two checks. If the card did not run for longer, it
/// could not see the client's answer.
const MAX_CHARGE: u64 = 5_000_000;

/// A token bucket of nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Largest number of nanoseconds in the bucket.
    capacity: i64,
    /// Nanoseconds left. The value is negative after a hold that took longer than was left; that
    /// debt is paid back before the next hold.
    left: i64,
    /// The time up to which the budget has been refilled.
    refilled: Nanos,
    /// The time up to which the current hold is charged; `None` if there is no hold.
    charged_until: Option<Nanos>,
}

impl Budget {
    /// Returns a full budget of `capacity` nanoseconds.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity as i64;
        Self { capacity, left: capacity, refilled: Nanos::ZERO, charged_until: None }
    }

    /// Begins or continues a hold, and charges it up to now. Returns false if the budget is spent.
    pub fn hold(&mut self, now: Nanos) -> bool {
        let since = self.charged_until.replace(now).unwrap_or(now);
        self.charge(since, now)
    }

    /// Ends a hold, and charges the rest of it.
    pub fn release(&mut self, now: Nanos) {
        let since = self.charged_until.take().unwrap_or(now);
        self.charge(since, now);
    }

    /// Refills the budget up to now, and charges the time since `since`. Returns false if the
    /// budget is spent. A caller that keeps the time of its last charge itself calls this method
    /// alone, and neither [`Budget::hold`] nor [`Budget::release`].
    pub fn charge(&mut self, since: Nanos, now: Nanos) -> bool {
        let refill = now.0.saturating_sub(self.refilled.0) / REFILL_RATIO;
        if refill > 0 {
            // The rest of the time, too short for a nanosecond's refill, counts the next time.
            self.refilled.0 += refill * REFILL_RATIO;
            let refill = i64::try_from(refill).unwrap_or(i64::MAX);
            self.left = self.left.saturating_add(refill).min(self.capacity);
        }

        let held = now.0.saturating_sub(since.0);
        self.left = self.left.saturating_sub(held.min(MAX_CHARGE) as i64);

        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time at which the tests begin.
    const START: u64 = 1_000_000_000_000;
    /// Nanoseconds between two checks.
    const CHECK_INTERVAL: u64 = 20_000;

    /// Holds whenever the budget allows it for `window` nanoseconds, and returns the time held.
    fn hold_all(budget: &mut Budget, start: u64, window: u64) -> u64 {
        let (mut held, mut now) = (0, start);
        while now < start + window {
            if budget.hold(Nanos(now)) {
                held += CHECK_INTERVAL;
            } else {
                budget.release(Nanos(now));
            }
            now += CHECK_INTERVAL;
        }
        budget.release(Nanos(now));
        held
    }

    #[test]
    fn queues_are_held_for_the_capacity_and_a_hundredth_of_the_time_that_passes() {
        let mut budget = Budget::new(CLIENT_NANOSECONDS);

        let held = hold_all(&mut budget, START, 5_000_000_000);
        assert!((CLIENT_NANOSECONDS..=CLIENT_NANOSECONDS + 50_100_000).contains(&held), "{held}");

        // The capacity is spent, so only the refill is left.
        let held = hold_all(&mut budget, START + 5_000_000_000, 5_000_000_000);
        assert!((45_000_000..=50_100_000).contains(&held), "{held}");
    }

    #[test]
    fn a_spent_budget_is_full_again_after_a_hundred_times_its_length() {
        let mut budget = Budget::new(CLIENT_NANOSECONDS);
        hold_all(&mut budget, START, 1_000_000_000);
        let later = START + 1_000_000_000 + CLIENT_NANOSECONDS * REFILL_RATIO;
        assert!(hold_all(&mut budget, later, CLIENT_NANOSECONDS) >= CLIENT_NANOSECONDS - CHECK_INTERVAL);
    }

    #[test]
    fn frequent_checks_take_nothing_from_the_refill() {
        let mut budget = Budget::new(CLIENT_NANOSECONDS);
        while budget.charge(Nanos(START), Nanos(START + MAX_CHARGE)) {}
        let left_before = budget.left;

        // Each step is almost twice the time of a nanosecond's refill.
        let (steps, step_time) = (100_000, 2 * REFILL_RATIO - 1);
        for step in 1..=steps {
            let now = Nanos(START + MAX_CHARGE + step * step_time);
            budget.charge(now, now);
        }

        let refilled = budget.left - left_before;
        assert_eq!(refilled, (steps * step_time / REFILL_RATIO) as i64);
    }

    #[test]
    fn a_long_time_without_a_check_does_not_spend_the_budget() {
        let mut budget = Budget::new(CLIENT_NANOSECONDS);
        assert!(budget.hold(Nanos(START)));
        assert!(budget.hold(Nanos(START + 1_000_000_000)), "the card did not run in between");
    }
}
