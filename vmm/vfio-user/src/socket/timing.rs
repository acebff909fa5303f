//! The time that system calls for a peer take.
//!
//! A peer can make them slow: each read and write of a socket walks all watches that the peer has
//! registered on its own end.

use std::time::{Duration, Instant};

/// The slowest system call of one direction of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTimes {
    longest: Duration,
}

impl CallTimes {
    /// Makes a call and records its time if it is the longest so far.
    pub(crate) fn measure<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();

        self.longest = self.longest.max(start.elapsed());
        result
    }

    /// Returns the time of the longest call and resets it.
    pub(crate) fn take_longest(&mut self) -> Duration {
        std::mem::take(&mut self.longest)
    }
}
