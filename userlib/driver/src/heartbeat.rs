//! The heartbeat in a mirror: whether it moves.

use std::{
    sync::{Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use nicforge_shm::SharedU64;

/// How long a heartbeat rests before somebody asks whether its engine lives. An engine with clients beats every 50 ms.
pub(crate) const RESTS: Duration = Duration::from_millis(250);

/// A heartbeat, and when it was last seen to move.
pub(crate) struct Heartbeat {
    word: SharedU64,
    last: Mutex<(u64, Instant)>,
}

impl Heartbeat {
    pub(crate) fn new(word: SharedU64) -> Self {
        let last = Mutex::new((word.load(Ordering::Relaxed), Instant::now()));
        Self { word, last }
    }

    /// Forgets how long it has rested.
    pub(crate) fn restart(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
            (self.word.load(Ordering::Relaxed), Instant::now());
    }

    /// For how long it has not moved, as far as those who asked can tell.
    pub(crate) fn rests_for(&self) -> Duration {
        let beat = self.word.load(Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != beat {
            *last = (beat, Instant::now());
        }
        last.1.elapsed()
    }
}
