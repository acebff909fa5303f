//! The cores to which control packets are due.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::cores::{spin_lock, try_lock};

/// The cores to which control packets are due, in order.
///
/// Invariant: a core whose `queued` flag is set is in the queue, or a thread that holds the queue
/// handles it. `pending` counts both, and is written under the queue's lock.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    queue: Mutex<VecDeque<u32>>,
    pending: AtomicUsize,
}

impl ReplyQueue {
    /// Returns an empty queue for a number of cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { queue: Mutex::new(VecDeque::with_capacity(cores)), pending: AtomicUsize::new(0) }
    }

    /// Adds a core. The caller has set the core's `queued` flag.
    pub(super) fn push(&self, core: u32) {
        let mut queue = spin_lock(&self.queue);
        queue.push_back(core);
        self.pending.store(queue.len(), Ordering::Release);
    }

    /// Returns whether control packets to any core are due.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Locks the queue, unless another thread handles it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, VecDeque<u32>>> {
        try_lock(&self.queue)
    }

    /// Updates `pending` before the holder of the queue unlocks it.
    pub(super) fn finish(&self, queue: &VecDeque<u32>) {
        self.pending.store(queue.len(), Ordering::Release);
    }
}
