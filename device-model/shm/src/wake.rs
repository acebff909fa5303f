//! A sleep and wake protocol without a fence in the writer.
//!
//! A receiver that polls memory for records goes to sleep after a while. A writer that stores a
//! record must then see this and send a kick. The textbook protocol has a full fence on both sides,
//! between the store and the load of the other side's word. The writer would pay for that fence
//! with every record. Here the sleeper, which sleeps rarely, makes every writer's CPU execute a
//! barrier instead:
//!
//! - Writer: store the record (release); load the *sleeping* word ([`must_kick`]); kick if it is
//!   set.
//! - Sleeper ([`Sleeper::sleep`]): set *sleeping*; `membarrier(GLOBAL_EXPEDITED)`; scan once more;
//!   if there is no work, sleep for at most [`SAFETY_TIMEOUT`]; clear *sleeping*.
//!
//! Either the record is in memory before the barrier, and the scan finds it, or the writer's load
//! comes after the barrier, and finds the word set.
//!
//! The barrier reaches processes that called [`register_membarrier`]. The time-out covers writers
//! that it does not reach, such as a guest's CPUs and other kernels. If the sleeper has no barrier
//! at all ([`BarrierKind::WriterMustFence`]), the writer must use a fence or accept the time-out.
//!
//! The traits let a model checker run the same code. It has no asymmetric barrier, and models one
//! as a sequentially consistent fence on both sides.
//!
//! UNSAFETY: calls `membarrier`, which touches no memory of the process.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::word::SharedU32;

/// Longest duration of one sleep. It bounds the cost of a lost kick.
pub const SAFETY_TIMEOUT: Duration = Duration::from_millis(10);

// Linux, include/uapi/linux/membarrier.h.
const QUERY: c_int = 0;
const GLOBAL: c_int = 1 << 0;
const GLOBAL_EXPEDITED: c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: c_int = 1 << 2;

/// Reason why the barrier is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WakeError {
    /// `membarrier` failed for another reason than that the kernel or the container lacks it.
    #[error("membarrier command {command}: {errno}")]
    Membarrier {
        /// Number of the command.
        command: c_int,
        /// Error number from the kernel.
        errno: Errno,
    },
}

/// Calls `membarrier` with a command.
fn membarrier(command: c_int) -> Result<c_long, Errno> {
    // SAFETY: takes three integers and writes no memory.
    Errno::result(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// Registers this process, so that barriers of sleepers in other processes reach it. Both sides
/// call it once when they open.
///
/// The first call of a process with several threads waits until every processor has run another
/// thread: milliseconds, or seconds beside programs that compute. A program avoids that by a call
/// before it starts threads.
///
/// Returns false if the kernel or the container does not permit it: see
/// [`BarrierKind::WriterMustFence`].
///
/// # Errors
/// [`WakeError::Membarrier`] for other failures.
pub fn register_membarrier() -> Result<bool, WakeError> {
    match membarrier(REGISTER_GLOBAL_EXPEDITED) {
        Ok(_) => Ok(true),
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM | Errno::EACCES) => Ok(false),
        Err(errno) => Err(WakeError::Membarrier { command: REGISTER_GLOBAL_EXPEDITED, errno }),
    }
}

/// Barrier that orders a sleeper's store of *sleeping* before its last scan, on its own CPU and on
/// the writers'.
pub trait SleeperBarrier {
    /// Executes the barrier.
    fn barrier(&self);
}

/// Barrier that orders a writer's record before its load of *sleeping*.
pub trait WriterBarrier {
    /// Executes the barrier.
    fn barrier(&self);
}

/// Kind of the sleeper's barrier on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// The barrier interrupts the CPUs that run registered processes. It takes less than a
    /// microsecond.
    GlobalExpedited,
    /// The barrier waits until every CPU has scheduled. It takes milliseconds, but needs no
    /// registration.
    Global,
    /// There is no barrier. A writer must use [`FullFence`], or a kick can come as late as
    /// [`SAFETY_TIMEOUT`].
    WriterMustFence,
}

/// The kernel's asymmetric barrier, in the best form available.
#[derive(Clone, Copy, Debug)]
pub struct Membarrier {
    kind: BarrierKind,
}

impl Membarrier {
    /// Queries the kernel for the best form of the barrier.
    pub fn open() -> Self {
        let commands = membarrier(QUERY).unwrap_or(0) as c_int;
        let is_available = |command| commands & command != 0 && membarrier(command).is_ok();
        let kind = if is_available(GLOBAL_EXPEDITED) {
            BarrierKind::GlobalExpedited
        } else if is_available(GLOBAL) {
            BarrierKind::Global
        } else {
            BarrierKind::WriterMustFence
        };

        Membarrier { kind }
    }

    /// Returns the kind of the barrier.
    pub fn kind(&self) -> BarrierKind {
        self.kind
    }
}

impl SleeperBarrier for Membarrier {
    fn barrier(&self) {
        // The call fails only if a system call filter was added to this process after `open`. The
        // time-out covers that case.
        let _ = match self.kind {
            BarrierKind::GlobalExpedited => membarrier(GLOBAL_EXPEDITED),
            BarrierKind::Global => membarrier(GLOBAL),
            BarrierKind::WriterMustFence => Ok(0),
        };

        fence(Ordering::SeqCst);
    }
}

/// The writer's side if the sleeper has a barrier. It executes no instruction.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl WriterBarrier for NoFence {
    #[inline(always)]
    fn barrier(&self) {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The writer's side if the sleeper has no barrier: a full fence, which costs several times as much
/// as a record.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullFence;

impl WriterBarrier for FullFence {
    #[inline(always)]
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A *sleeping* word, for the sleeper that writes it and for its readers. Accesses are relaxed,
/// because the barriers order them.
pub trait SleepFlag {
    /// Sets the word to 1 or 0.
    fn set(&self, sleeping: bool);
    /// Returns whether the word is not 0.
    fn is_set(&self) -> bool;
}

impl SleepFlag for SharedU32 {
    #[inline]
    fn set(&self, sleeping: bool) {
        self.store(sleeping.into(), Ordering::Relaxed);
    }
    #[inline]
    fn is_set(&self) -> bool {
        self.load(Ordering::Relaxed) != 0
    }
}

/// Returns whether the sleeper must be kicked. A writer calls it after it has stored a record.
#[inline]
pub fn must_kick(sleeping: &impl SleepFlag, barrier: &impl WriterBarrier) -> bool {
    barrier.barrier();
    sleeping.is_set()
}

/// Returns whether the sleeper must be woken, as [`must_kick`] does, and clears its word if so. A
/// writer that makes many stores thus wakes a sleeper once.
#[inline]
pub fn take_sleeper(sleeping: &impl SleepFlag, barrier: &impl WriterBarrier) -> bool {
    let must_wake = must_kick(sleeping, barrier);
    if must_wake {
        sleeping.set(false);
    }
    must_wake
}

/// Result of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The last scan found work, and there was no sleep.
    FoundWork,
    /// The sleep ended by a kick or by its time-out. The caller should scan again.
    Woken,
}

/// Puts a scanner of memory to sleep without losing a record.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper<B> {
    barrier: B,
}

impl Sleeper<Membarrier> {
    /// Returns a sleeper with the kernel's barrier.
    pub fn open() -> Self {
        Sleeper { barrier: Membarrier::open() }
    }

    /// Returns the kind of the barrier.
    pub fn kind(&self) -> BarrierKind {
        self.barrier.kind()
    }
}

impl<B: SleeperBarrier> Sleeper<B> {
    /// Returns a sleeper with a barrier of the caller's.
    pub fn new(barrier: B) -> Self {
        Sleeper { barrier }
    }

    /// Sets every flag, scans once more, and sleeps if there was no work. The flags are clear
    /// afterwards.
    ///
    /// `scan` returns whether there is work. `sleep` blocks until a kick, and at most for the given
    /// time. A kick that comes before it blocks must end it at once, as an eventfd's counter does.
    pub fn sleep<'a, F: SleepFlag + 'a>(
        &self,
        flags: impl Iterator<Item = &'a F> + Clone,
        scan: impl FnOnce() -> bool,
        sleep: impl FnOnce(Duration),
    ) -> Slept {
        flags.clone().for_each(|flag| flag.set(true));
        self.barrier.barrier();

        let slept = if scan() {
            Slept::FoundWork
        } else {
            sleep(SAFETY_TIMEOUT);
            Slept::Woken
        };

        flags.for_each(|flag| flag.set(false));

        slept
    }

    /// Executes the barrier alone, for a sleeper whose flags and scan are spread over its own loop.
    ///
    /// The order is that of [`Sleeper::sleep`]: set the flags, call this, scan, sleep, clear the
    /// flags.
    pub fn barrier(&self) {
        self.barrier.barrier();
    }
}
