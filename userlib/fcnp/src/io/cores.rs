//! The I/O node's state of each compute core, and the pset's two slots.
//!
//! Everything here is touched once for each message. The locks are spin locks: no thread sleeps on
//! them, and an unlock is never a system call.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
};

use nicforge_driver::runtime::{self, Cost, charge};

use crate::{
    protocol::{CoreName, HEAD, Scope},
    tree::Generation,
};

/// Locks the mutex if it is free.
#[inline]
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let guard = match mutex.try_lock() {
        Ok(guard) => guard,
        // No holder panics in the middle of a change, so the data are consistent.
        Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
        Err(TryLockError::WouldBlock) => return None,
    };

    charge(Cost::Lock, 1);
    Some(guard)
}

/// Spins until it has locked the mutex. Holders keep it for the work of a few packets and never
/// wait.
#[inline]
pub(super) fn spin_lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut turns = 0_u32;
    loop {
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
        turns = turns.wrapping_add(1);
        runtime::pause(turns);
    }
}

/// A direction, named from the compute core's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The core reads: the I/O node's application writes.
    Read = 0,
    /// The core writes: the I/O node's application reads.
    Write = 1,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::Read, Self::Write];

    /// Returns whether a RESET of this scope concerns the direction.
    pub(super) fn is_in(self, scope: Scope) -> bool {
        match self {
            Direction::Read => scope.has_read(),
            Direction::Write => scope.has_write(),
        }
    }
}

/// A process on a compute core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoreLink {
    pub(super) name: CoreName,
    pub(super) generation: Generation,
}

/// A request for which the application has not yet made the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) size: u32,
    pub(super) head: [u8; HEAD],
}

/// A RESET whose acknowledgement has not been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReset {
    pub(super) scope: Scope,
    pub(super) token: u32,
}

/// The state of a compute core. Its arrays have an element for each [`Direction`].
#[derive(Debug, Default)]
pub(super) struct CoreState {
    /// The process that has sent a RESET.
    pub(super) link: Option<CoreLink>,
    /// The link was lost, and no call in this direction has reported it.
    pub(super) lost: [bool; 2],
    pub(super) requests: [Option<Request>; 2],
    /// A transfer is running, or its data are being discarded.
    pub(super) running: [bool; 2],
    /// An acknowledgement of a RESET is due once the transfers in its scope have ended.
    pub(super) pending_reset: Option<PendingReset>,
    /// The message that aborts the running read is due. The pset's slot stays taken until it has
    /// left.
    pub(super) is_abort_due: bool,
}

/// A compute core: its locked state, and flags that are read without the lock.
#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) state: Mutex<CoreState>,
    /// A thread is in a call.
    pub(super) busy: [AtomicBool; 2],
    /// A RESET arrived for the running transfer.
    pub(super) revoked: [AtomicBool; 2],
    /// The core is in the reply queue.
    pub(super) queued: AtomicBool,
}

impl Core {
    /// Returns whether the core has withdrawn the running transfer of `direction`.
    pub(super) fn is_revoked(&self, direction: Direction) -> bool {
        self.revoked[direction as usize].load(Ordering::Acquire)
    }
}

/// The pset's slot for its only active read, or write. Waiting cores get it in the order of their
/// arrival.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    owner: Option<u32>,
    waiting: VecDeque<u32>,
}

impl Slot {
    /// Creates a free slot with queue space for `cores` cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { state: Mutex::new(SlotState { owner: None, waiting: VecDeque::with_capacity(cores) }) }
    }

    /// Takes the slot for `core` if it is free and `core` is first in the queue. Otherwise `core`
    /// enters the queue. A core has at most one call for each slot.
    pub(super) fn try_take(&self, core: u32) -> bool {
        let mut state = spin_lock(&self.state);

        if state.owner.is_none() && state.waiting.front().is_none_or(|first| *first == core) {
            state.waiting.pop_front();
            state.owner = Some(core);
            return true;
        }

        if !state.waiting.contains(&core) {
            state.waiting.push_back(core);
        }
        false
    }

    /// Removes `core` from the queue.
    pub(super) fn leave(&self, core: u32) {
        spin_lock(&self.state).waiting.retain(|waiting| *waiting != core);
    }

    /// Frees the slot, if `core` has it.
    pub(super) fn release(&self, core: u32) {
        let mut state = spin_lock(&self.state);
        if state.owner == Some(core) {
            state.owner = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_granted_to_waiting_cores_in_order() {
        let slot = Slot::new(4);
        let taken = [slot.try_take(1), slot.try_take(2), slot.try_take(3)];

        slot.release(1);
        let passed_by = slot.try_take(3);
        let second = slot.try_take(2);
        assert_eq!((taken, passed_by, second), ([true, false, false], false, true));
    }

    #[test]
    fn slot_skips_a_core_that_left() {
        let slot = Slot::new(4);
        slot.try_take(1);
        slot.try_take(2);
        slot.try_take(3);
        slot.leave(2);
        slot.release(1);
        assert!(slot.try_take(3));
    }

    #[test]
    fn slot_is_not_released_by_another_core() {
        let slot = Slot::new(4);
        slot.try_take(1);
        slot.release(2);
        assert!(!slot.try_take(3));
    }
}
