//! A place to sleep until something changes.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Something that threads sleep on. Telling it costs no system call when nobody sleeps.
#[derive(Debug, Default)]
pub(super) struct Event {
    count: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Event {
    /// To be read before one looks at what one waits for.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Something changed.
    pub(super) fn tell(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            // A sleeper that has seen the old count is asleep, or gone, once we have the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Sleeps until something changes since `count` was read, at most `most`.
    pub(super) fn sleep(&self, count: u32, most: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(guard, most, |()| self.count() == count));
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn change_before_the_sleep_ends_it_at_once() {
        let event = Event::default();
        let count = event.count();
        event.tell();
        event.sleep(count, Duration::from_secs(3600));
    }

    #[test]
    fn change_during_the_sleep_ends_it() {
        let event = Arc::new(Event::default());
        let (count, sleeper) = (event.count(), event.clone());
        let thread = thread::spawn(move || sleeper.sleep(count, Duration::from_secs(3600)));
        event.tell();
        thread.join().unwrap();
    }
}
