//! The time for which clients with slow memory may hold what all clients of a card share.
//!
//! A budget is a token bucket of nanoseconds. It is charged while a shared queue or engine waits
//! for the client. It refills at a hundredth of the time that passes. A reset of the client does
//! not refill it.

use nicforge_core::time::Nanos;

/// Nanoseconds that one client may hold shared parts at once.
pub const OF_CLIENT: u64 = 50_000_000;
/// Nanoseconds that all clients of a card may hold shared parts at once, together.
pub const OF_CARD: u64 = 100_000_000;
/// Nanoseconds that must pass for a refill of one nanosecond.
const REFILL: u64 = 100;
/// Maximum number of nanoseconds charged between two checks. A card that was not driven for longer
/// could not see an answer.
const SLICE: u64 = 5_000_000;

/// A token bucket of nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    capacity: i64,
    /// Nanoseconds left. The value is negative after a hold that took longer than was left; that
    /// debt is paid back before the next hold.
    left: i64,
    /// The time up to which the budget has been refilled.
    refilled: Nanos,
    /// The time up to which the current hold is charged.
    held: Option<Nanos>,
}

impl Budget {
    /// Returns a full budget of `capacity` nanoseconds.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity as i64;
        Self { capacity, left: capacity, refilled: Nanos::ZERO, held: None }
    }

    /// Begins or continues a hold, and charges it up to now. Returns false if the budget is spent.
    pub fn hold(&mut self, now: Nanos) -> bool {
        let since = self.held.replace(now).unwrap_or(now);
        self.spend(since, now)
    }

    /// Ends a hold, and charges the rest of it.
    pub fn release(&mut self, now: Nanos) {
        let since = self.held.take().unwrap_or(now);
        self.spend(since, now);
    }

    /// Refills the budget up to now, and charges the time since `since`. Returns false if the
    /// budget is spent. The caller of this method keeps the time of its last charge itself, and
    /// needs neither [`Budget::hold`] nor [`Budget::release`].
    pub fn spend(&mut self, since: Nanos, now: Nanos) -> bool {
        let refill = now.0.saturating_sub(self.refilled.0) / REFILL;
        if refill > 0 {
            let refill = i64::try_from(refill).unwrap_or(i64::MAX);
            self.left = self.left.saturating_add(refill).min(self.capacity);
            self.refilled = now;
        }

        let held = now.0.saturating_sub(since.0);
        self.left = self.left.saturating_sub(held.min(SLICE) as i64);
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000_000;

    /// Holds as often as it may for `window` nanoseconds, and returns the time held.
    fn hold_all(budget: &mut Budget, start: u64, window: u64) -> u64 {
        let (mut held, mut now) = (0, start);
        while now < start + window {
            if budget.hold(Nanos(now)) {
                now += 20_000;
                held += 20_000;
            } else {
                budget.release(Nanos(now));
                now += 20_000;
            }
        }
        budget.release(Nanos(now));
        held
    }

    #[test]
    fn a_window_holds_the_capacity_and_a_hundredth_of_its_length() {
        let mut budget = Budget::new(OF_CLIENT);

        let held = hold_all(&mut budget, START, 5_000_000_000);
        assert!((OF_CLIENT..=OF_CLIENT + 50_100_000).contains(&held), "{held}");

        // The second window has only its refill.
        let held = hold_all(&mut budget, START + 5_000_000_000, 5_000_000_000);
        assert!((45_000_000..=50_100_000).contains(&held), "{held}");
    }

    #[test]
    fn a_spent_budget_is_full_again_after_a_hundred_times_its_length() {
        let mut budget = Budget::new(OF_CLIENT);
        hold_all(&mut budget, START, 1_000_000_000);
        let later = START + 1_000_000_000 + OF_CLIENT * REFILL;
        assert!(hold_all(&mut budget, later, OF_CLIENT) >= OF_CLIENT - 20_000);
    }

    #[test]
    fn time_without_a_check_is_charged_in_slices() {
        let mut budget = Budget::new(OF_CLIENT);
        assert!(budget.hold(Nanos(START)));
        assert!(budget.hold(Nanos(START + 1_000_000_000)), "the card was not driven");
    }
}
