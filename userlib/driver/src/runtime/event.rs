//! A condition on which threads sleep.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// A condition variable with a count of its notifications. A notification costs no system call
/// while no thread sleeps.
#[derive(Debug, Default)]
pub struct Event {
    /// Number of notifications, modulo 2^32.
    count: AtomicU32,
    /// Number of threads in [`Event::sleep`].
    sleepers: AtomicU32,
    /// Held from a sleeper's check of `count` until it waits on `changed`.
    lock: Mutex<()>,
    changed: Condvar,
}

impl Event {
    /// Returns the count. A waiter reads it before it checks its condition.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Notifies all sleepers of a change.
    pub fn notify(&self) {
        // Threads that poll memory instead of sleeping here see the change, too.
        super::note_store();
        self.count.fetch_add(1, Ordering::SeqCst);

        if self.sleepers.load(Ordering::SeqCst) != 0 {
            #[cfg(feature = "virtual-time")]
            if super::simulation::with(|simulation| simulation.notify(self.address())).is_some() {
                return;
            }

            // A sleeper that has read the old count holds the lock until it waits on `changed`.
            // When this thread has had the lock, it cannot miss the notification any more.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Sleeps until a notification, for `maximum` at most. A notification since `count` was read
    /// ends the sleep at once.
    pub fn sleep(&self, count: u32, maximum: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.sleep_counted(count, maximum);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps while this thread is counted among the sleepers.
    fn sleep_counted(&self, count: u32, maximum: Duration) {
        #[cfg(feature = "virtual-time")]
        if super::simulation::is_entered() {
            if self.count() == count {
                super::simulation::with(|simulation| simulation.wait(self.address(), maximum));
            }
            return;
        }

        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(guard, maximum, |()| self.count() == count));
    }

    /// Returns the name of this event in a simulation, which compares it and does nothing else
    /// with it.
    #[cfg(feature = "virtual-time")]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
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
        event.notify();
        event.sleep(count, Duration::from_secs(3600));
    }

    #[test]
    fn change_during_the_sleep_ends_it() {
        let event = Arc::new(Event::default());
        let (count, sleeper) = (event.count(), event.clone());
        let thread = thread::spawn(move || sleeper.sleep(count, Duration::from_secs(3600)));
        event.notify();
        thread.join().unwrap();
    }
}
