//! The end of a machine: power-off, reset, or a failure.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Why a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest switched itself off.
    PowerOff,
    /// The guest reset itself. [`crate::Running::restart`] starts it anew.
    Reset,
    /// The owner stopped it.
    Stopped,
    /// A processor cannot go on: for example after a triple fault.
    Failed(String),
}

/// The state of the machine's power.
#[derive(Default)]
pub(crate) struct Power {
    end: Mutex<Option<End>>,
    changed: Condvar,
}

impl Power {
    /// Ends the machine. The first reason counts.
    pub(crate) fn end(&self, reason: End) {
        self.lock().get_or_insert(reason);
        self.changed.notify_all();
    }

    /// Returns why the machine has ended, if it has.
    pub(crate) fn ended(&self) -> Option<End> {
        self.lock().clone()
    }

    /// Waits for the end, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> Option<End> {
        let running = |end: &mut Option<End>| end.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), limit, running);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<End>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
