//! Time that the engine spends on a client, and its consequences.
//!
//! A client can slow down a system call of the engine. For example, it can register thousands of
//! watches on its end of a socket or on an eventfd, and each write walks them. The wall clock alone
//! does not prove it: the engine's thread may have lost its processor meanwhile. So a client with a
//! slow call is *slow* for a while. One slow client is served in each round, after all others. Its
//! turns are measured by the processor time of the thread and by its waits in the kernel. A call
//! that took long by this measure too is probably the client's doing.
//!
//! It is not certain: a thread also waits in the kernel for memory that another thread maps, and a
//! hypervisor may take the processor away during the call. So such calls are charged to a budget of
//! the client, and only a client that has overspent it loses its attachment.

use std::time::{Duration, Instant};

use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};

/// A system call for a client that takes longer than this makes the client slow.
const SLOW_CALL: Duration = Duration::from_millis(1);
/// A turn of a client that takes longer than this makes the client slow.
const SLOW_TURN: Duration = Duration::from_millis(5);
/// How long a client stays slow after the last slow call or turn.
pub(crate) const SLOW_TIME: Duration = Duration::from_secs(1);
/// A system call that takes longer than this is charged to its client, unless the engine's settings
/// say otherwise.
pub(crate) const LONG_CALL: Duration = Duration::from_millis(10);
/// Time that the long calls of a client may take together before the budget is refilled. It covers
/// several calls that were long by chance. A client that hangs 200,000 watches on its socket
/// spends it in two calls.
pub(crate) const CALL_BUDGET: Duration = Duration::from_millis(100);
/// Nanoseconds that must pass until the budget is refilled by one nanosecond.
const TIME_PER_REFILL: u32 = 10;

/// The processor time and context switches of this thread so far, as the kernel accounts them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTime {
    processor: Duration,
    /// Times that the thread waited in the kernel.
    waits: i64,
    /// Times that the thread lost its processor while it was ready to run.
    preemptions: i64,
}

impl ThreadTime {
    /// Returns what this thread has used so far, or `None` when the kernel does not report it.
    pub(crate) fn now() -> Option<Self> {
        // The times in `usage` may be as old as the last tick of the kernel, which is too coarse
        // for short calls.
        let processor = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?.into();
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let waits = usage.voluntary_context_switches();
        Some(Self { processor, waits, preemptions: usage.involuntary_context_switches() })
    }

    /// Returns whether a call that began at `self`, and took at least `limit` by the clock, was not
    /// merely delayed by other threads. The thread ran for `limit`, or it waited in the kernel and
    /// never lost its processor.
    pub(crate) fn confirms_call_of(self, limit: Duration) -> bool {
        self.confirmed_part_of(limit) >= limit
    }

    /// Returns the part of a call's length by the clock that other threads did not cause. The call
    /// began at `self` and has just ended. The part is the time that the thread ran, or all of
    /// `length` if the thread waited in the kernel and never lost its processor.
    pub(crate) fn confirmed_part_of(self, length: Duration) -> Duration {
        let Some(now) = Self::now() else { return Duration::ZERO };
        if now.waits > self.waits && now.preemptions == self.preemptions {
            return length;
        }
        now.processor.saturating_sub(self.processor).min(length)
    }
}

/// A client's budget of [`CALL_BUDGET`] for long calls. It is refilled by a tenth of the time that
/// passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallBudget {
    /// The part of the budget that is spent.
    spent: Duration,
    /// The time up to which the budget has been refilled.
    refilled: Option<Instant>,
}

impl CallBudget {
    /// Charges a call that ended now. Returns whether the budget is overspent.
    pub(crate) fn charge(&mut self, call: Duration, now: Instant) -> bool {
        let refill =
            self.refilled.map_or(Duration::ZERO, |at| now.saturating_duration_since(at) / TIME_PER_REFILL);
        self.spent = self.spent.saturating_sub(refill).saturating_add(call);
        self.refilled = Some(now);

        self.spent > CALL_BUDGET
    }
}

/// Whether a client's recent turns were slow, and what its long calls have cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    slow_until: Option<Instant>,
    budget: CallBudget,
    /// Time from which on a call is long.
    long_call: Duration,
}

/// Start of a turn in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnStart {
    at: Instant,
    /// The thread's time at the start, which is measured only for a slow client.
    thread_time: Option<ThreadTime>,
}

/// Whether a client keeps its attachment after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The client keeps its attachment.
    GoesOn,
    /// The client slows system calls down so much that it must lose its attachment.
    HoldsEngine,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(LONG_CALL)
    }
}

impl Pace {
    /// Returns the pace of a new client. Calls that take `long_call` or longer are charged to it.
    pub(crate) fn new(long_call: Duration) -> Self {
        Self { slow_until: None, budget: CallBudget::default(), long_call }
    }

    /// Returns whether the client is slow, so that its turns come after those of the others.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow_until.is_some()
    }

    /// Starts a turn. Only a turn of a slow client costs a system call, for the thread's time.
    pub(crate) fn start(&mut self, now: Instant) -> TurnStart {
        self.slow_until = self.slow_until.filter(|until| now < *until);
        let thread_time = if self.is_slow() { ThreadTime::now() } else { None };
        TurnStart { at: now, thread_time }
    }

    /// Ends a turn in which the slowest system call took `longest_call`. A slow call or turn makes
    /// the client slow. Returns the length of the turn and the verdict on the client.
    pub(crate) fn finish(&mut self, start: TurnStart, longest_call: Duration) -> (Duration, Verdict) {
        let now = Instant::now();
        let length = now.saturating_duration_since(start.at);
        let was_slow = longest_call >= SLOW_CALL || length >= SLOW_TURN;
        if was_slow {
            self.slow_until = Some(now + SLOW_TIME);
        }

        let limit = self.long_call;
        let is_proven =
            longest_call >= limit && start.thread_time.is_some_and(|time| time.confirms_call_of(limit));
        let is_overspent = is_proven && self.budget.charge(longest_call, now);
        (length, if is_overspent { Verdict::HoldsEngine } else { Verdict::GoesOn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);

    /// Uses the processor for longer than a call may take.
    fn use_processor() {
        let account = ThreadTime::now().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !account.confirms_call_of(LONG_CALL * 2) {
            assert!(Instant::now() < deadline);
        }
    }

    /// Takes a turn whose slowest call took `call` by the clock, and whose processor time proves
    /// that the call itself took long.
    fn finish_turn_with_proven_call(pace: &mut Pace, call: Duration) -> Verdict {
        let start = pace.start(Instant::now());
        use_processor();
        pace.finish(start, call).1
    }

    #[test]
    fn first_long_call_makes_a_client_slow_and_only_further_ones_are_charged() {
        let mut pace = Pace::default();

        assert_eq!(finish_turn_with_proven_call(&mut pace, CALL_BUDGET * 2), Verdict::GoesOn);
        assert!(pace.is_slow());
        assert_eq!(finish_turn_with_proven_call(&mut pace, CALL_BUDGET * 2), Verdict::HoldsEngine);
    }

    #[test]
    fn long_calls_end_a_client_when_they_add_up_to_more_than_its_budget() {
        let mut pace = Pace { slow_until: Some(Instant::now() + SLOW_TIME * 20), ..Pace::default() };

        assert_eq!(finish_turn_with_proven_call(&mut pace, CALL_BUDGET), Verdict::GoesOn);
        // On a loaded machine the budget is refilled while the test waits for a processor.
        assert!(
            (0..20).any(|_| finish_turn_with_proven_call(&mut pace, CALL_BUDGET) == Verdict::HoldsEngine)
        );
    }

    #[test]
    fn calls_below_the_limit_of_the_settings_cost_nothing() {
        let later = Instant::now() + SLOW_TIME * 20;
        let mut pace = Pace { slow_until: Some(later), ..Pace::new(CALL_BUDGET * 4) };

        for _ in 0..3 {
            assert_eq!(finish_turn_with_proven_call(&mut pace, CALL_BUDGET * 2), Verdict::GoesOn);
        }
    }

    #[test]
    fn budget_is_refilled_by_a_tenth_of_the_time() {
        let (mut budget, start) = (CallBudget::default(), Instant::now());
        assert!(!budget.charge(CALL_BUDGET, start));
        assert!(budget.charge(LONG_CALL, start + LONG_CALL * 9));
        assert!(!budget.charge(LONG_CALL, start + LONG_CALL * 30));
        assert!(!budget.charge(CALL_BUDGET, start + SLOW_TIME * 20));
    }

    #[test]
    fn long_call_of_a_thread_without_processor_time_is_not_charged() {
        let mut pace = Pace { slow_until: Some(Instant::now() + SLOW_TIME), ..Pace::default() };
        // The account does not change: this stands for a thread that had no processor.
        let start = TurnStart { at: Instant::now(), thread_time: ThreadTime::now() };

        assert_eq!(pace.finish(start, CALL_BUDGET * 2).1, Verdict::GoesOn);
    }

    #[test]
    fn a_slow_client_becomes_normal_after_a_period_of_quick_turns() {
        let mut pace = Pace::default();
        let start = pace.start(Instant::now());
        pace.finish(start, SLOW_CALL);
        assert!(pace.is_slow());

        let start = pace.start(Instant::now() + SLOW_TIME * 2);
        pace.finish(TurnStart { at: Instant::now(), ..start }, SHORT);

        assert!(!pace.is_slow());
    }
}
