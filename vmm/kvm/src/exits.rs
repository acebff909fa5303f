//! Counts of exits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of exits to this process, by their cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Accesses to I/O ports.
    pub ports: u64,
    /// Accesses to the configuration space.
    pub configuration: u64,
    /// Accesses to other addresses without memory.
    pub memory: u64,
    /// All other causes.
    pub other: u64,
}

impl Exits {
    /// Returns the number of all exits.
    pub fn total(&self) -> u64 {
        self.ports + self.configuration + self.memory + self.other
    }
}

/// Counters of a running machine, shared by its processors.
#[derive(Debug, Default)]
pub(crate) struct ExitCounters {
    pub(crate) ports: AtomicU64,
    pub(crate) configuration: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) other: AtomicU64,
}

impl ExitCounters {
    pub(crate) fn read(&self) -> Exits {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Exits {
            ports: value(&self.ports),
            configuration: value(&self.configuration),
            memory: value(&self.memory),
            other: value(&self.other),
        }
    }
}

/// Counts one exit.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
