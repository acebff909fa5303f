//! The state of the node's two FIFOs that the threads of this process share.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use nicforge_driver::runtime;

use super::cores::{spin_lock, try_lock};
use crate::tree::{Held, HoldsLock, LockBox};

/// Number of pauses for which the lock of the send FIFO stays free for a thread that waits for it.
/// They are few, because that thread may not be running at all.
const PAUSES_FOR_WAITER: u32 = 8;
/// A value of [`ReceiveFifo::empty_at`] that no packet count has, since these have 32 bits.
const NOT_EMPTY: u64 = u64::MAX;

/// A core's write that no call receives any more. Its data are discarded as they arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    pub(super) core: u32,
    /// Number of data packets that have not arrived.
    pub(super) packets: usize,
}

/// The lock box that guards the receive FIFO, and the data in the FIFO that no call receives.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The node's lock box. It is held as long as this process serves.
    pub(super) held: Held<LockBox>,
    pub(super) drain: Option<Drain>,
}

impl HoldsLock for Incoming {
    fn number(&self) -> u64 {
        self.held.number()
    }
}

/// The send FIFO's lock. This process holds the node's lock box as long as it serves.
#[derive(Debug)]
pub(super) struct SendLock {
    held: Mutex<Held<LockBox>>,
    /// Number of threads that wait for the lock.
    wanted: AtomicU32,
}

impl SendLock {
    /// Returns the lock of the send FIFO. `guard` is the node's lock box, which this process keeps.
    pub(super) fn new(guard: Held<LockBox>) -> Self {
        Self { held: Mutex::new(guard), wanted: AtomicU32::new(0) }
    }

    /// Spins until it has locked the send FIFO. [`SendLock::has_waiter`] is true meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Held<LockBox>> {
        if let Some(guard) = try_lock(&self.held) {
            return guard;
        }

        self.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = spin_lock(&self.held);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Pauses while the lock is free, so that a waiting thread takes it. A caller that locked it
    /// again at once would starve that thread.
    pub(super) fn let_waiter_take(&self) {
        for pause in 1..=PAUSES_FOR_WAITER {
            if !self.has_waiter() {
                break;
            }
            runtime::pause(pause);
        }
    }

    /// Returns whether a thread waits for the lock. A holder with more than a batch of packets then
    /// frees it.
    #[inline]
    pub(super) fn has_waiter(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

/// The receive FIFO.
///
/// Invariant: only the thread that holds `incoming` touches the FIFO, and while `reading` is set
/// only the thread that set it takes data packets.
#[derive(Debug)]
pub(super) struct ReceiveFifo {
    pub(super) incoming: Mutex<Incoming>,
    /// A thread receives data or is about to.
    reading: AtomicBool,
    /// [`TreeChannel::received`] when the FIFO was last found empty without a drain. It is
    /// [`NOT_EMPTY`] from the beginning of a drain on. It is written under the lock of `incoming`.
    ///
    /// [`TreeChannel::received`]: crate::tree::TreeChannel::received
    empty_at: AtomicU64,
}

impl ReceiveFifo {
    /// Returns the state of the receive FIFO. `guard` is the node's lock box, which this process
    /// keeps.
    pub(super) fn new(guard: Held<LockBox>) -> Self {
        Self {
            incoming: Mutex::new(Incoming { held: guard, drain: None }),
            reading: AtomicBool::new(false),
            empty_at: AtomicU64::new(NOT_EMPTY),
        }
    }

    /// Returns whether a thread receives data or is about to.
    #[inline]
    pub(super) fn has_reader(&self) -> bool {
        self.reading.load(Ordering::Acquire)
    }

    /// Sets whether a thread receives data or is about to.
    #[inline]
    pub(super) fn set_has_reader(&self, has_reader: bool) {
        self.reading.store(has_reader, Ordering::Release);
    }

    /// Returns whether the FIFO was found empty when the NIC had counted `received` packets.
    #[inline]
    pub(super) fn is_empty_at(&self, received: u64) -> bool {
        received == self.empty_at.load(Ordering::Acquire)
    }

    /// Records that the FIFO was found empty, without a drain, when the NIC had counted `received`
    /// packets. `_incoming` proves that the caller holds the FIFO's lock.
    pub(super) fn set_empty_at(&self, _incoming: &Incoming, received: u64) {
        self.empty_at.store(received, Ordering::Release);
    }

    /// Begins a drain: the FIFO does not count as empty until it has ended.
    pub(super) fn begin_drain(&self, incoming: &mut Incoming, drain: Drain) {
        self.empty_at.store(NOT_EMPTY, Ordering::Release);
        incoming.drain = Some(drain);
    }
}
