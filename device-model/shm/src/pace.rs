//! How a waiting thread passes its time: the one policy for all waits of engine and libraries.
//!
//! A wait has three stages:
//!
//! 1. **Spin**, for about as long as a cache line takes from another processor.
//! 2. **Yield**, while polling pays: the awaited thread may share this processor, and a yield hands
//!    it over in a microsecond. [`poll_limit`] bounds this stage by time.
//! 3. **Sleep**, until the awaited side wakes the thread. To sleep and be woken costs 15 to 30 us
//!    more than to poll.
//!
//! A thread that yields looks busy to the scheduler. Beside other programs that compute, it gets
//! its processor back only after a whole round of theirs, milliseconds later. A thread that sleeps
//! is woken before them. So a process times its yields. While they come back late the host is
//! *busy* ([`is_busy`]), and waits spin for [`BUSY_SPIN`] instead of yielding.
//!
//! # What a process learns
//!
//! - Late yields that take half of the time make the host busy for `SHORTEST_SPAN`. After that
//!   waits yield again. If they are late again, the host is busy for twice as long as before, up to
//!   `LONGEST_SPAN`. To find this out costs a few time slices, one per cent of the time at most in
//!   the end. A few late yields prove nothing: in a parallel program each thread computes for a
//!   while between two messages, and others that share its processor lose less by waiting for it
//!   than by sleeping.
//! - A sleep that was soon over would have been cheaper as a poll, so the limit of polling grows. A
//!   long sleep lets it shrink again.
//!
//! All threads of a process share what one has learnt. The state is a few atomics. A wait that
//! finds its event at once touches none of them.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A yield that takes this long is late. Threads that poll and yield return within microseconds,
/// and a time slice of the scheduler has a millisecond or more.
const LATE: Duration = Duration::from_micros(300);
/// Time for which the delays of late yields are added up.
const WINDOW: Duration = Duration::from_millis(50);
/// Sum of these delays that makes the host busy.
const MUCH: Duration = WINDOW.checked_div(2).unwrap();
/// Time for which a host counts as busy at first.
const SHORTEST_SPAN: Duration = Duration::from_millis(100);
/// Longest time for which a host counts as busy.
const LONGEST_SPAN: Duration = Duration::from_secs(4);

/// Limit of polling at first.
const FIRST_POLL: Duration = Duration::from_micros(100);
/// Shortest limit of polling: what a sleep and a wake cost.
const SHORTEST_POLL: Duration = Duration::from_micros(25);
/// Longest limit of polling.
const LONGEST_POLL: Duration = Duration::from_micros(400);
/// A wait of this many limits was too long for polling.
const LONG_WAIT: u32 = 8;

/// Time for which both sides spin on a busy host before they sleep. It covers an answer of a thread
/// that runs on another processor. Most answers come from one that has to be woken.
pub const BUSY_SPIN: Duration = Duration::from_micros(5);

/// Sleep of a thread that lets others run on a busy host, and that no event wakes.
const NAP: Duration = Duration::from_micros(50);

/// What this process has learnt about the host. Times are in nanoseconds since [`START`], 0 for
/// none.
struct Host {
    /// End of the time for which the host counts as busy.
    busy_until: AtomicU64,
    /// End of the last such time, also once it is over.
    last_end: AtomicU64,
    /// Length of that time.
    span: AtomicU64,
    /// End of the last late yield.
    last_late: AtomicU64,
    /// Start of the window in which delays are added up.
    window: AtomicU64,
    /// Sum of the delays in the window.
    lost: AtomicU64,
    /// Limit of polling, in nanoseconds.
    poll: AtomicU64,
    /// Number of late yields.
    late_yields: AtomicU64,
    /// Nothing is learnt any more: see [`poll_for_good`].
    is_fixed: AtomicBool,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static HOST: Host = Host::new();

impl Host {
    const fn new() -> Self {
        Self {
            busy_until: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            span: AtomicU64::new(0),
            last_late: AtomicU64::new(0),
            window: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            poll: AtomicU64::new(FIRST_POLL.as_nanos() as u64),
            late_yields: AtomicU64::new(0),
            is_fixed: AtomicBool::new(false),
        }
    }

    /// Returns whether the host is busy. On a quiet host this is a single load.
    fn is_busy(&self, now: impl FnOnce() -> u64) -> bool {
        let until = self.busy_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        if now() < until {
            return true;
        }
        // Another thread may have extended the time meanwhile, which then stays.
        let _ = self.busy_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// Records a yield that was late by `delay`. Races between threads only change by how much.
    fn note_late(&self, now: u64, delay: Duration) {
        self.late_yields.fetch_add(1, Ordering::Relaxed);
        if self.is_fixed.load(Ordering::Relaxed) {
            return;
        }

        // Threads that have yielded at the same time have lost the same time.
        let start = now.saturating_sub(nanoseconds(delay));
        let before = self.last_late.swap(now, Ordering::Relaxed);
        let lost = now.saturating_sub(start.max(before));
        if start.saturating_sub(self.window.load(Ordering::Relaxed)) > nanoseconds(WINDOW) {
            self.window.store(start, Ordering::Relaxed);
            self.lost.store(0, Ordering::Relaxed);
        }
        if self.lost.fetch_add(lost, Ordering::Relaxed) + lost >= nanoseconds(MUCH) {
            self.lost.store(0, Ordering::Relaxed);
            self.begin_busy_time(now);
        }
    }

    /// Lets the host count as busy, for longer than before if that was not long ago.
    fn begin_busy_time(&self, now: u64) {
        let span = self.span.load(Ordering::Relaxed);
        let is_soon = now < self.last_end.load(Ordering::Relaxed) + span + nanoseconds(SHORTEST_SPAN);
        let next = if is_soon { 2 * span } else { 0 };

        let span = next.clamp(nanoseconds(SHORTEST_SPAN), nanoseconds(LONGEST_SPAN));
        self.span.store(span, Ordering::Relaxed);
        self.last_end.store(now + span, Ordering::Relaxed);
        self.busy_until.store(now + span, Ordering::Relaxed);
    }

    /// Records a sleep that an event ended, `waited` after the wait had begun to poll.
    fn note_woken(&self, waited: Duration) {
        if self.is_fixed.load(Ordering::Relaxed) {
            return;
        }
        let limit = self.poll.load(Ordering::Relaxed);
        let new = if waited < LONGEST_POLL {
            (limit * 2).min(nanoseconds(LONGEST_POLL))
        } else if nanoseconds(waited) > limit * u64::from(LONG_WAIT) {
            (limit / 2).max(nanoseconds(SHORTEST_POLL))
        } else {
            return;
        };
        if new != limit {
            self.poll.store(new, Ordering::Relaxed);
        }
    }
}

/// Returns a duration in nanoseconds.
const fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// Returns the nanoseconds since the first call in this process, at least 1.
fn now() -> u64 {
    nanoseconds(START.elapsed()).max(1)
}

/// Returns whether other programs take the processors, so that a yield comes back late. A wait then
/// sleeps instead.
#[inline]
pub fn is_busy() -> bool {
    HOST.is_busy(now)
}

/// Returns how many yields of this process have come back late.
pub fn late_yields() -> u64 {
    HOST.late_yields.load(Ordering::Relaxed)
}

/// Returns for how long a wait polls before it sleeps: 25 to 400 us, as earlier waits have taught.
#[inline]
pub fn poll_limit() -> Duration {
    Duration::from_nanos(HOST.poll.load(Ordering::Relaxed))
}

/// Lets all waits of this process poll until they end, and never sleep. It is for measurements and
/// traces, in which time says nothing about the host.
pub fn poll_for_good() {
    HOST.is_fixed.store(true, Ordering::Relaxed);
    HOST.busy_until.store(0, Ordering::Relaxed);
    HOST.poll.store(u64::MAX, Ordering::Relaxed);
}

/// Yields the processor once, and returns whether the yield was late.
pub fn yield_now() -> bool {
    let start = Instant::now();
    thread::yield_now();
    let delay = start.elapsed();

    let is_late = delay >= LATE;
    if is_late {
        HOST.note_late(now(), delay);
    }
    is_late
}

/// Lets other threads run, in a loop that nothing wakes: it yields, or sleeps briefly on a busy
/// host.
pub fn step_aside() {
    if is_busy() {
        thread::sleep(NAP);
    } else {
        yield_now();
    }
}

/// Records that an event has ended a sleep, `waited` after the wait had begun to poll.
pub fn note_woken(waited: Duration) {
    HOST.note_woken(waited);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const SLICE: Duration = Duration::from_millis(3);

    fn is_busy_at(host: &Host, time: u64) -> bool {
        host.is_busy(|| time)
    }

    /// Records yields that are late by a slice each, one after another from `time` on, until the
    /// host is busy. Returns the time then.
    fn be_late(host: &Host, mut time: u64) -> u64 {
        while !is_busy_at(host, time) {
            time += nanoseconds(SLICE);
            host.note_late(time, SLICE);
        }
        time
    }

    #[test]
    fn a_few_late_yields_do_not_make_the_host_busy() {
        let host = Host::new();
        for number in 1..100 {
            let time = 20 * number * MILLISECOND;
            host.note_late(time, SLICE);
            assert!(!is_busy_at(&host, time));
        }
    }

    #[test]
    fn threads_that_are_late_at_once_have_lost_the_time_once() {
        let host = Host::new();
        let time = 1000 * MILLISECOND;
        for thread in 0..100 {
            host.note_late(time + thread, SLICE);
        }
        assert!(!is_busy_at(&host, time));
    }

    #[test]
    fn late_yields_that_take_half_of_the_time_make_the_host_busy() {
        let host = Host::new();
        let begin = 1000 * MILLISECOND;
        let time = be_late(&host, begin);
        assert!(time - begin < nanoseconds(WINDOW), "{} ns", time - begin);
        let end = time + nanoseconds(SHORTEST_SPAN);
        assert!(is_busy_at(&host, end - 1));
        assert!(!is_busy_at(&host, end));
    }

    #[test]
    fn each_busy_time_that_follows_soon_is_twice_as_long_up_to_the_longest() {
        let host = Host::new();
        let mut span = nanoseconds(SHORTEST_SPAN);
        let mut time = be_late(&host, 1000 * MILLISECOND);
        for _ in 0..8 {
            time = be_late(&host, time + span);
            span = (2 * span).min(nanoseconds(LONGEST_SPAN));
            assert!(is_busy_at(&host, time + span - 1));
            assert!(!is_busy_at(&host, time + span));
        }
        // After a long quiet time it is short again.
        let time = be_late(&host, time + 10 * span);
        assert!(!is_busy_at(&host, time + nanoseconds(SHORTEST_SPAN)));
    }

    #[test]
    fn polling_grows_by_short_sleeps_and_shrinks_by_long_ones() {
        let host = Host::new();
        let limit = || Duration::from_nanos(host.poll.load(Ordering::Relaxed));

        (0..8).for_each(|_| host.note_woken(Duration::from_micros(120)));
        assert_eq!(limit(), LONGEST_POLL);
        (0..8).for_each(|_| host.note_woken(Duration::from_secs(1)));
        assert_eq!(limit(), SHORTEST_POLL);
    }
}
