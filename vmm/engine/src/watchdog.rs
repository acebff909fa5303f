//! Ending writes to eventfds that block.
//!
//! A thread of its own looks at the engine's writes and does nothing else, so that no other work
//! can delay it. It looks every few milliseconds while interrupts are sent, rests while none are,
//! and sleeps while no eventfd is bound.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, Thread},
    time::{Duration, Instant},
};

use crate::{
    error::EngineError,
    sink::{Signals, WriteUnderWay},
};

/// How often the engine's writes are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a write may take before the watchdog asks what the engine's thread is doing. It takes a
/// microsecond.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);
/// How long the engine may send no interrupt before the watchdog rests.
const REST_AFTER: Duration = Duration::from_secs(1);
/// How long it rests at most. The engine wakes it without a fence, so that a wake-up can get lost;
/// this bounds what one write can take then.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// The thread. It ends when this is dropped.
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start(signals: Arc<Signals>) -> Result<Self, EngineError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("nicforge-watch".to_owned())
            .spawn(move || work(&signals, &stopped))
            .map_err(|reason| EngineError::Thread { what: "that watches eventfds", reason })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// The thread, for whoever wakes it.
    pub(crate) fn thread(&self) -> Option<Thread> {
        self.thread.as_ref().map(|thread| thread.thread().clone())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It waits for nothing but its own clock.
            let _ = thread.join();
        }
    }
}

fn work(signals: &Signals, stop: &AtomicBool) {
    let mut watch = Watch::default();
    let mut last_write = (signals.writes(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        watch.look(signals, now);

        let writes = signals.writes();
        if writes != last_write.0 {
            last_write = (writes, now);
        }
        let rests = now.saturating_duration_since(last_write.1) >= REST_AFTER;
        signals.set_watched(!rests && signals.has_sinks());
        // Asked again: an eventfd that was bound before the watch was off has woken nothing.
        if signals.has_sinks() {
            std::thread::park_timeout(if rests { LONGEST_REST } else { LOOK });
        } else {
            // The first eventfd that is bound wakes it, in time before it is written.
            std::thread::park();
        }
    }
}

/// What the watchdog has seen.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Option<(WriteUnderWay, Instant)>,
}

impl Watch {
    /// Ends the write under way when it has blocked for too long.
    pub(crate) fn look(&mut self, signals: &Signals, now: Instant) {
        let Some(write) = signals.under_way() else {
            self.seen = None;
            return;
        };
        match self.seen {
            Some((seen, since)) if seen == write => {
                let is_late = now.saturating_duration_since(since) >= PATIENCE;
                // The same write before and after the thread was seen to sleep: it sleeps in that
                // write. The signal is sent at each look, because one that comes just before the
                // call ends nothing.
                if is_late && sleeps(signals.writer()) && signals.under_way() == Some(write) {
                    signals.rescue(write);
                }
            }
            _ => self.seen = Some((write, now)),
        }
    }
}

/// Returns whether a thread of this process waits for something. One that only lost its processor
/// is ready to run. A thread whose state is not known counts as waiting.
fn sleeps(thread: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else { return true };
    // The state follows the name, which is in parentheses and may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('R'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt;

    #[test]
    fn thread_that_runs_does_not_sleep_and_one_that_waits_does() {
        assert!(!sleeps(interrupt::this_thread()));

        let (tell, told) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || {
            tell.send(interrupt::this_thread()).unwrap();
            let _ = released.recv();
        });
        let number = told.recv().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !sleeps(number) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        drop(release);
        waiter.join().unwrap();
    }
}
