//! Ends writes to eventfds that block.
//!
//! A thread checks the engine's writes and does nothing else, so that no other work can delay it.
//! It checks every few milliseconds while interrupts are sent, less often while none are, and
//! sleeps while no eventfd is bound.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    error::EngineError,
    sink::{EventFds, WriteInProgress},
};

/// Time between two checks of the engine's writes.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Time that a write may take before the watchdog checks the state of the engine's thread. A write
/// usually takes a microsecond.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(10);
/// Time without an interrupt after which the watchdog checks less often.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Longest time between two checks while no interrupts are sent. The engine wakes the watchdog
/// without a fence, so a wake-up can get lost; this bounds how long a write can block then.
const MAX_IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// The eventfds of an engine, and the thread that checks the writes to them. Dropping this value
/// ends the thread.
pub(crate) struct Watchdog {
    eventfds: Arc<EventFds>,
    /// Clients given up by the last call of [`Self::take_newly_given_up`].
    seen_given_up: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread that checks writes to eventfds.
    pub(crate) fn start() -> Result<Self, EngineError> {
        let eventfds = Arc::new(EventFds::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (checked, stopped) = (Arc::clone(&eventfds), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("nicforge-watch".to_owned())
            .spawn(move || check_writes(&checked, &stopped))
            .map_err(|reason| EngineError::Thread { what: "that watches eventfds", reason })?;

        eventfds.set_watchdog(thread.thread().clone());
        Ok(Self { eventfds, seen_given_up: 0, stop, thread: Some(thread) })
    }

    /// Returns the eventfds that the watchdog checks.
    pub(crate) fn eventfds(&self) -> &Arc<EventFds> {
        &self.eventfds
    }

    /// Returns whether a client was given up since the last call.
    pub(crate) fn take_newly_given_up(&mut self) -> bool {
        let given_up_count = self.eventfds.given_up_count();
        std::mem::replace(&mut self.seen_given_up, given_up_count) != given_up_count
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread waits for nothing but its own clock.
            let _ = thread.join();
        }
    }
}

/// Checks the engine's writes to eventfds until `stop` is set. It is the body of the watchdog's
/// thread.
fn check_writes(eventfds: &EventFds, stop: &AtomicBool) {
    let mut blocked_write = BlockedWriteCheck::default();
    let mut writes_before = eventfds.writes();
    let mut last_write_seen = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        blocked_write.check(eventfds, now);

        let writes = eventfds.writes();
        if writes != writes_before {
            (writes_before, last_write_seen) = (writes, now);
        }
        let is_idle = now.saturating_duration_since(last_write_seen) >= IDLE_AFTER;
        eventfds.set_watchdog_checks_often(!is_idle && eventfds.has_sinks());
        // The eventfds are checked again, because one that was bound before the call above, while
        // the flag still said that the watchdog checks often, has sent no wake-up.
        if eventfds.has_sinks() {
            std::thread::park_timeout(if is_idle { MAX_IDLE_INTERVAL } else { CHECK_INTERVAL });
        } else {
            // Binding the first eventfd wakes the thread, before that eventfd is written.
            std::thread::park();
        }
    }
}

/// The check for a write that blocks, with its state from one check to the next.
#[derive(Debug, Default)]
pub(crate) struct BlockedWriteCheck {
    /// The write that was in progress at the last check, and when it was first seen.
    last_seen: Option<(WriteInProgress, Instant)>,
}

impl BlockedWriteCheck {
    /// Ends the write in progress if it has blocked for [`TIMEOUT`].
    pub(crate) fn check(&mut self, eventfds: &EventFds, now: Instant) {
        let Some(write) = eventfds.write_in_progress() else {
            self.last_seen = None;
            return;
        };
        match self.last_seen {
            Some((last_seen, first_seen_at)) if last_seen == write => {
                let is_late = now.saturating_duration_since(first_seen_at) >= TIMEOUT;
                // The same write is in progress before and after the thread was seen asleep, so it
                // sleeps in that write. The signal is sent at each check, because a signal just
                // before the call ends nothing.
                if is_late && is_asleep(eventfds.writer()) && eventfds.write_in_progress() == Some(write) {
                    eventfds.end_blocked_write(write);
                }
            }
            _ => self.last_seen = Some((write, now)),
        }
    }
}

/// Returns whether a thread of this process sleeps, by its state in `/proc`. A thread that only
/// lost its processor is ready to run, and not asleep; nor is one that a debugger has stopped. A
/// thread with unknown state counts as asleep.
fn is_asleep(thread: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else { return true };
    // The state follows the name, which is in parentheses and may contain any character.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('R' | 't' | 'T'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sigurg;

    #[test]
    fn thread_that_runs_does_not_sleep_and_one_that_waits_does() {
        assert!(!is_asleep(sigurg::this_thread_id()));

        let (number_sender, numbers) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || {
            number_sender.send(sigurg::this_thread_id()).unwrap();
            let _ = released.recv();
        });
        let number = numbers.recv().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_asleep(number) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        drop(release);
        waiter.join().unwrap();
    }
}
