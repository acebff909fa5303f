//! The surroundings of a library's threads: clock, sleep, other threads, randomness, and the cost
//! of what they do.
//!
//! On a host these are the operating system's. A thread that runs in a simulation gets them from
//! there, in *virtual time*: the same library then runs on the clock of a modelled machine. A
//! library uses this module instead of [`std::thread`], [`std::time::Instant`], condition variables
//! and random seeds. All its waits then pass virtual time, and the same run gives the same result.
//!
//! A library calls [`charge`] at the steps for which software takes time, and [`note_store`] after
//! a store that a device or another processor can see. Both compile to nothing without the feature
//! `virtual-time`, which only a simulation enables.

mod event;
mod instant;
#[cfg(feature = "virtual-time")]
mod simulation;
mod thread;

#[cfg(feature = "virtual-time")]
use std::sync::TryLockError;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nicforge_shm::pace;

#[cfg(feature = "virtual-time")]
pub use self::simulation::{Entered, Simulation, enter};
pub use self::{
    event::Event,
    instant::Instant,
    thread::{Thread, spawn, thread_number},
};

/// Kinds of work that take a processor's time. A machine's profile says how long each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// An access to a register that the device carries out.
    TrappedAccess,
    /// A write-combined burst into a device's window.
    Burst,
    /// The transfer of a packet from memory into a send FIFO.
    SendPacket,
    /// The transfer of a packet from a receive FIFO to memory.
    ReceivePacket,
    /// The creation or the handling of a control packet of a protocol.
    ControlPacket,
    /// A library's path for one message that is sent.
    SendMessage,
    /// A library's path for one message that is received.
    ReceiveMessage,
    /// The comparison of a message with a posted receive, or the reverse.
    Match,
    /// One pass of a library over its queues, whether or not it finds something to do.
    Progress,
    /// The copy of one byte of memory.
    CopyByte,
    /// The acquisition of a lock.
    Lock,
    /// A system call, without the work that it is for.
    SystemCall,
    /// The transfer of work from one thread to another.
    HandOff,
    /// The wake-up of a thread by an interrupt.
    InterruptWake,
    /// The registration or deregistration of one region of memory.
    Registration,
    /// Work of the program itself, in units that it defines.
    Compute,
}

/// Reports that the calling thread does `count` times work of a kind. In virtual time, the work is
/// done when the call returns.
#[inline(always)]
pub fn charge(kind: Cost, count: usize) {
    #[cfg(feature = "virtual-time")]
    simulation::with(|simulation| simulation.charge(kind, count));
    #[cfg(not(feature = "virtual-time"))]
    let _ = (kind, count);
}

/// Reports a store to memory that a device or another processor polls.
#[inline(always)]
pub fn note_store() {
    #[cfg(feature = "virtual-time")]
    simulation::with(|simulation| simulation.note_store());
}

/// Returns the number of packets or records that a loop moves between two reports of their cost.
/// It is `maximum` on a host. It is 1 in virtual time, in which each takes its own time.
#[inline(always)]
pub fn burst(maximum: usize) -> usize {
    #[cfg(feature = "virtual-time")]
    if simulation::is_entered() {
        return maximum.min(1);
    }
    maximum
}

/// Number of pauses that spin between two that yield the processor.
const SPINS_PER_YIELD: u32 = 64;

/// Pauses in a loop that waits for another thread to free a lock that it holds briefly. `count` is
/// the number of the pause in its loop: most only spin, and some yield the processor.
#[inline]
pub fn pause(count: u32) {
    #[cfg(feature = "virtual-time")]
    if simulation::with(|simulation| simulation.pause()).is_some() {
        return;
    }
    if count.is_multiple_of(SPINS_PER_YIELD) { pace::step_aside() } else { std::hint::spin_loop() }
}

/// Locks a mutex, also after a holder's panic. The holder must leave the data consistent.
///
/// In virtual time a holder may wait. The calling thread then passes time until it has the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(feature = "virtual-time")]
    while simulation::is_entered() {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => pause(1),
        }
    }

    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts the calling thread to sleep.
pub fn sleep(time: Duration) {
    #[cfg(feature = "virtual-time")]
    if simulation::with(|simulation| simulation.sleep(time)).is_some() {
        return;
    }
    std::thread::sleep(time);
}

/// Returns a number that differs from call to call and from process to process. A simulation
/// returns the same numbers in each run with the same seed.
pub fn random() -> u64 {
    #[cfg(feature = "virtual-time")]
    if let Some(number) = simulation::with(|simulation| simulation.random()) {
        return number;
    }

    // Each `RandomState` has random keys of its own, so that it hashes the same value differently.
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u64)
}
