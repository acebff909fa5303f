//! Sleeping without a fence in the writer.
//!
//! Somebody who waits for records in memory stops looking after a while and sleeps; a writer that
//! stores a record then has to see that and kick it. The textbook protocol has a full fence on both
//! sides between *my store* and *my load of your word*, and in the writer that fence is paid for
//! every record. Here the sleeper, which sleeps rarely, makes every writer's CPU execute a barrier
//! instead:
//!
//! - writer: store the record (release); load the *sleeping* word ([`must_kick`]); kick when it is
//!   set;
//! - sleeper ([`Sleeper::sleep`]): set *sleeping*; `membarrier(GLOBAL_EXPEDITED)`; scan once more;
//!   when there is nothing, sleep for at most [`SAFETY_TIMEOUT`]; clear *sleeping*.
//!
//! Either the record is in memory before the barrier, and the scan finds it, or the writer's load
//! comes after the barrier and finds *sleeping* set. The barrier reaches processes that called
//! [`register_membarrier`]; what it does not reach (a guest's CPUs, other kernels) is covered by
//! the time-out. Where the sleeper has no barrier at all ([`BarrierKind::WriterMustFence`]), the
//! writer has to fence or to live with the time-out.
//!
//! The traits exist so that a model checker can run the same code: it has no asymmetric barrier,
//! and models it with a sequentially consistent fence on both sides.
//!
//! UNSAFETY: calls `membarrier`, which touches no memory of ours.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::word::SharedU32;

/// The longest sleep in one go: what a kick that got lost costs at most.
pub const SAFETY_TIMEOUT: Duration = Duration::from_millis(10);

// Linux, include/uapi/linux/membarrier.h.
const QUERY: c_int = 0;
const GLOBAL: c_int = 1 << 0;
const GLOBAL_EXPEDITED: c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: c_int = 1 << 2;

/// Why the barrier is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WakeError {
    /// `membarrier` failed in a way that does not mean that the kernel or the container lacks it.
    #[error("membarrier command {command}: {errno}")]
    Membarrier {
        /// The command.
        command: c_int,
        /// What the kernel said.
        errno: Errno,
    },
}

fn membarrier(command: c_int) -> Result<c_long, Errno> {
    // SAFETY: takes three integers and writes no memory.
    Errno::result(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// Lets sleepers of other processes reach this one with their barrier. Both sides call it once when
/// they open.
///
/// Gives false where the kernel or the container does not allow it: see
/// [`BarrierKind::WriterMustFence`].
///
/// # Errors
/// [`WakeError::Membarrier`] for a failure that says neither.
pub fn register_membarrier() -> Result<bool, WakeError> {
    match membarrier(REGISTER_GLOBAL_EXPEDITED) {
        Ok(_) => Ok(true),
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM | Errno::EACCES) => Ok(false),
        Err(errno) => Err(WakeError::Membarrier { command: REGISTER_GLOBAL_EXPEDITED, errno }),
    }
}

/// What orders a sleeper's store of *sleeping* before its last scan, on its CPU and on the
/// writers'.
pub trait SleeperBarrier {
    /// Executes the barrier.
    fn barrier(&self);
}

/// What orders a writer's record before its load of *sleeping*.
pub trait WriterBarrier {
    /// Executes the barrier.
    fn barrier(&self);
}

/// What the sleeper's side of the barrier is on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// Interrupts the CPUs that run registered processes: under a microsecond.
    GlobalExpedited,
    /// Waits until every CPU has scheduled: milliseconds, but no registration is needed.
    Global,
    /// There is none: a writer must use [`FullFence`], or a kick can come as late as
    /// [`SAFETY_TIMEOUT`].
    WriterMustFence,
}

/// The kernel's asymmetric barrier, in the best form there is.
#[derive(Clone, Copy, Debug)]
pub struct Membarrier {
    kind: BarrierKind,
}

impl Membarrier {
    /// Asks the kernel what it has.
    pub fn open() -> Self {
        let commands = membarrier(QUERY).unwrap_or(0) as c_int;
        let works = |command| commands & command != 0 && membarrier(command).is_ok();
        let kind = if works(GLOBAL_EXPEDITED) {
            BarrierKind::GlobalExpedited
        } else if works(GLOBAL) {
            BarrierKind::Global
        } else {
            BarrierKind::WriterMustFence
        };

        Membarrier { kind }
    }

    /// What it found.
    pub fn kind(&self) -> BarrierKind {
        self.kind
    }
}

impl SleeperBarrier for Membarrier {
    fn barrier(&self) {
        // The call fails only when a filter was put on this process since `open`; the time-out
        // covers that.
        let _ = match self.kind {
            BarrierKind::GlobalExpedited => membarrier(GLOBAL_EXPEDITED),
            BarrierKind::Global => membarrier(GLOBAL),
            BarrierKind::WriterMustFence => Ok(0),
        };

        fence(Ordering::SeqCst);
    }
}

/// The writer's side when the sleeper has a barrier: nothing that a CPU executes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl WriterBarrier for NoFence {
    #[inline(always)]
    fn barrier(&self) {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The writer's side when the sleeper has none: a full fence, which costs several times what a
/// record does.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullFence;

impl WriterBarrier for FullFence {
    #[inline(always)]
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A *sleeping* word as its writer, the sleeper, and its readers see it. Relaxed accesses: the
/// barriers order them.
pub trait SleepFlag {
    /// Sets it to 1 or 0.
    fn set(&self, sleeping: bool);
    /// Whether it is not 0.
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

/// Whether the sleeper must be kicked, asked by a writer after it stored a record.
#[inline]
pub fn must_kick(sleeping: &impl SleepFlag, barrier: &impl WriterBarrier) -> bool {
    barrier.barrier();
    sleeping.is_set()
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The last scan found work: there was no sleep.
    FoundWork,
    /// Slept, and was kicked or timed out: look again.
    Woken,
}

/// Puts a scanner of memory to sleep without losing a record.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper<B> {
    barrier: B,
}

impl Sleeper<Membarrier> {
    /// With the kernel's barrier.
    pub fn open() -> Self {
        Sleeper { barrier: Membarrier::open() }
    }

    /// What the barrier is.
    pub fn kind(&self) -> BarrierKind {
        self.barrier.kind()
    }
}

impl<B: SleeperBarrier> Sleeper<B> {
    /// With a barrier of the caller's.
    pub fn new(barrier: B) -> Self {
        Sleeper { barrier }
    }

    /// Announces the sleep in every flag, scans once more, and sleeps when there was nothing.
    ///
    /// `scan` tells whether there is work. `sleep` blocks until a kick or for at most the time it
    /// is given; a kick that came before it blocks must end it at once (an eventfd's counter does
    /// that). The flags are clear afterwards.
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

    /// The barrier alone, for a sleeper whose flags and scan are spread over its own loop.
    ///
    /// The order is the one of [`Sleeper::sleep`]: set the flags, this, scan, sleep, clear the
    /// flags.
    pub fn barrier(&self) {
        self.barrier.barrier();
    }
}
