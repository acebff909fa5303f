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
    sink::{Signals, WriteInProgress},
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
    signals: Arc<Signals>,
    /// Clients given up by the last call of [`Self::take_newly_given_up`].
    seen_given_up: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread that checks writes to eventfds.
    pub(crate) fn start() -> Result<Self, EngineError> {
        let signals = Arc::new(Signals::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (checked, stopped) = (Arc::clone(&signals), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("nicforge-watch".to_owned())
            .spawn(move || check_writes(&checked, &stopped))
            .map_err(|reason| EngineError::Thread { what: "that watches eventfds", reason })?;

        signals.set_watchdog(thread.thread().clone());
        Ok(Self { signals, seen_given_up: 0, stop, thread: Some(thread) })
    }

    /// Returns the eventfds, to which clients' eventfds are added.
    pub(crate) fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// Returns whether a client was given up since the last call.
    pub(crate) fn take_newly_given_up(&mut self) -> bool {
        let given_up_count = self.signals.given_up_count();
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
fn check_writes(signals: &Signals, stop: &AtomicBool) {
    let mut watch = Watch::default();
    let mut last_write = (signals.writes(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        watch.check(signals, now);

        let writes = signals.writes();
        if writes != last_write.0 {
            last_write = (writes, now);
        }
        let is_idle = now.saturating_duration_since(last_write.1) >= IDLE_AFTER;
        signals.set_watchdog_checks_often(!is_idle && signals.has_sinks());
        // The eventfds are checked again, because one that was bound before the call above, while
        // the flag still said that the watchdog checks often, has sent no wake-up.
        if signals.has_sinks() {
            std::thread::park_timeout(if is_idle { MAX_IDLE_INTERVAL } else { CHECK_INTERVAL });
        } else {
            // Binding the first eventfd wakes the thread, before that eventfd is written.
            std::thread::park();
        }
    }
}

/// State that the watchdog keeps between two checks.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    last_seen: Option<(WriteInProgress, Instant)>,
}

impl Watch {
    /// Ends the write in progress if it has blocked for too long.
    pub(crate) fn check(&mut self, signals: &Signals, now: Instant) {
        let Some(write) = signals.write_in_progress() else {
            self.last_seen = None;
            return;
        };
        match self.last_seen {
            Some((last_seen, since)) if last_seen == write => {
                let is_late = now.saturating_duration_since(since) >= TIMEOUT;
                // The same write is in progress before and after the thread was seen asleep, so it
                // sleeps in that write. The signal is sent at each check, because a signal just
                // before the call ends nothing.
                if is_late && is_asleep(signals.writer()) && signals.write_in_progress() == Some(write) {
                    signals.end_blocked_write(write);
                }
            }
            _ => self.last_seen = Some((write, now)),
        }
    }
}

/// Returns whether a thread of this process sleeps. A thread that only lost its processor is ready
/// to run. A thread with unknown state counts as asleep.
fn is_asleep(thread: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else { return true };
    // The state follows the name, which is in parentheses and may contain any character.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('R'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt;

    #[test]
    fn thread_that_runs_does_not_sleep_and_one_that_waits_does() {
        assert!(!is_asleep(interrupt::this_thread()));

        let (number_sender, numbers) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || {
            number_sender.send(interrupt::this_thread()).unwrap();
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
