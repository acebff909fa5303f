//! How long the engine takes for a client, and what follows from it.
//!
//! A client can make a system call of the engine slow, for example by hanging thousands of watches
//! on its end of a socket or on an eventfd, which each write walks. The wall clock alone does not
//! prove it: the engine's thread may have lost its processor meanwhile. So a client with a slow
//! call is *slow* for a while. Its turns come one at a time between those of all other clients, and
//! they are measured by the processor time of the thread and by the waits in the kernel. A call
//! that took long by this measure too is the client's doing.

use std::time::{Duration, Instant};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};

/// A system call for a client that takes longer than this makes the client slow.
const SLOW_CALL: Duration = Duration::from_millis(1);
/// A turn of a client that takes longer than this makes the client slow.
const SLOW_TURN: Duration = Duration::from_millis(5);
/// How long a client stays slow after the last slow call or turn.
const SLOW_TIME: Duration = Duration::from_secs(1);
/// A system call that takes longer than this costs a client its attachment.
pub(crate) const LONGEST_CALL: Duration = Duration::from_millis(10);

/// What the kernel says that this thread has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTime {
    processor: Duration,
    /// Times that the thread waited for something in the kernel.
    waits: i64,
}

impl ThreadTime {
    /// Reads the thread's account; `None` when the kernel does not tell.
    pub(crate) fn now() -> Option<Self> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let processor = duration(usage.user_time()) + duration(usage.system_time());
        Some(Self { processor, waits: usage.voluntary_context_switches() })
    }

    /// Returns whether at least `limit` has gone by since `self` through the fault of what was
    /// called: the thread was running that long, or waited in the kernel.
    pub(crate) fn proves(self, limit: Duration) -> bool {
        Self::now().is_some_and(|now| {
            now.processor.saturating_sub(self.processor) >= limit || now.waits > self.waits
        })
    }
}

fn duration(time: TimeVal) -> Duration {
    let microseconds = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
    Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
}

/// How a client's turns have been lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    slow_until: Option<Instant>,
}

/// A turn under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnStart {
    at: Instant,
    account: Option<ThreadTime>,
}

/// What a turn has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoesOn,
    /// The client makes system calls so slow that it must go.
    HoldsEngine,
}

impl Pace {
    /// Returns whether the client's turns come between those of the others.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow_until.is_some()
    }

    /// Begins a turn. Only the turns of a slow client cost a system call for their account.
    pub(crate) fn start(&mut self, now: Instant) -> TurnStart {
        self.slow_until = self.slow_until.filter(|until| now < *until);
        let account = if self.is_slow() { ThreadTime::now() } else { None };
        TurnStart { at: now, account }
    }

    /// Ends a turn in which the slowest system call took `longest_call`. Returns its length and
    /// what follows.
    pub(crate) fn finish(&mut self, start: TurnStart, longest_call: Duration) -> (Duration, Verdict) {
        let now = Instant::now();
        let length = now.saturating_duration_since(start.at);
        let was_slow = longest_call >= SLOW_CALL || length >= SLOW_TURN;
        if was_slow {
            self.slow_until = Some(now + SLOW_TIME);
        }

        let is_proven =
            longest_call >= LONGEST_CALL && start.account.is_some_and(|account| account.proves(LONGEST_CALL));
        (length, if is_proven { Verdict::HoldsEngine } else { Verdict::GoesOn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);

    /// Uses the processor for longer than a call may take.
    fn burn() {
        let account = ThreadTime::now().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !account.proves(LONGEST_CALL * 2) {
            assert!(Instant::now() < deadline);
        }
    }

    #[test]
    fn first_long_call_makes_a_client_slow_and_the_second_one_ends_it() {
        let mut pace = Pace::default();
        let start = pace.start(Instant::now());
        burn();
        assert_eq!(pace.finish(start, LONGEST_CALL).1, Verdict::GoesOn);
        assert!(pace.is_slow());

        let start = pace.start(Instant::now());
        burn();

        assert_eq!(pace.finish(start, LONGEST_CALL).1, Verdict::HoldsEngine);
    }

    #[test]
    fn long_call_of_a_thread_that_did_not_run_proves_nothing() {
        let mut pace = Pace { slow_until: Some(Instant::now() + SLOW_TIME) };
        // The account stays as it is: this stands for a thread that had no processor.
        let start = TurnStart { at: Instant::now(), account: ThreadTime::now() };

        assert_eq!(pace.finish(start, LONGEST_CALL).1, Verdict::GoesOn);
    }

    #[test]
    fn client_with_quick_turns_is_not_slow_any_more_after_a_while() {
        let mut pace = Pace::default();
        let start = pace.start(Instant::now());
        pace.finish(start, SLOW_CALL);
        assert!(pace.is_slow());

        let start = pace.start(Instant::now() + SLOW_TIME * 2);
        pace.finish(TurnStart { at: Instant::now(), ..start }, SHORT);

        assert!(!pace.is_slow());
    }
}
