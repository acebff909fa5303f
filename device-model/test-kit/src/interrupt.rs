//! Interrupts as counts.

use std::sync::atomic::{AtomicU64, Ordering};

use nicforge_core::interrupt::InterruptSink;

/// A sink that counts its signals. [`crate::Client::bind`] and [`crate::Client::bind_msix`] make
/// it.
#[derive(Debug, Default)]
pub struct InterruptCount(AtomicU64);

impl InterruptCount {
    /// Returns the number of signals since it was bound, or since the last
    /// [`InterruptCount::take`].
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns the count and sets it to 0.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl InterruptSink for InterruptCount {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
