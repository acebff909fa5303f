//! The in-process backing: the driver library holds a machine directly, without a server.
//!
//! [`LocalMachine::open`] returns a [`Backing`] for one attachment of a [`Machine`]. The module
//! touches the machine, under its lock, and the clock. It uses no sockets and no threads of its
//! own.
//!
//! The waiting threads step the machine. Each pause of a waiting loop ([`Backing::relax`]) tries
//! the lock and steps the machine once. A thread that does not get the lock leaves the step to the
//! lock's holder. When the machine has no work until a client's next access, waiting threads sleep.
//! A sleep lasts at most [`LONGEST_SLEEP`], and every access to the machine ends it.
//!
//! A machine in virtual time ([`LocalMachine::with_clock`]) is stepped by its clock's owner, and a
//! pause of a waiting loop calls [`Clock::wait`].
//!
//! - `mod.rs`: the machine behind its lock, stepping and sleeping;
//! - `attachment.rs`: [`Backing`] for one attachment;
//! - `interrupt.rs`: interrupts as counters;
//! - `memory.rs`: the clients' DMA memory, and the answers to DMA messages.

mod attachment;
mod interrupt;
mod memory;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_core::{
    device::Ended,
    ids::{AttachmentId, FunctionId},
    machine::{Machine, MachineError, Next, TurnLimits},
    time::Nanos,
};
use nicforge_driver::{Backing, Error, GoneCause, Pause, Relax};
use nicforge_shm::{OwnerProcess, pace};
use thiserror::Error;

use self::{attachment::LocalAttachment, memory::ClientMemory};

/// The longest single sleep of a waiting thread. It bounds how long a client's store to mapped
/// memory waits when it wakes no thread.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// How long a trapped access waits while the device stalls it.
pub const STALL_LIMIT: Duration = Duration::from_secs(2);
/// Work budget of each function in one pause of a waiting thread, in packets.
const BUDGET: u32 = 64;
/// A thread waits awake for a timer that expires within this time. A sleep would overrun it.
const NO_SLEEP_WITHIN: Duration = Duration::from_micros(100);
/// Time between two scans of all mapped memory while threads sleep. The scans find stores of
/// clients that the machine's memory barrier does not reach.
const RESCAN_INTERVAL: Duration = Duration::from_millis(10);

/// The reason why an attachment could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The machine has no function of that name.
    #[error("the machine has no function {name:?}")]
    NoSuchFunction {
        /// The requested name.
        name: String,
    },
    /// The function has no attachment of that name.
    #[error("function {function:?} has no attachment {name:?}")]
    NoSuchAttachment {
        /// The function's name.
        function: String,
        /// The requested name.
        name: String,
    },
    /// The machine refused the request.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Code of the machine panicked, so its state is undefined. (The panic of a device takes only
    /// its function out of service: [`MachineError::OutOfService`].)
    #[error("this machine panicked, which is a defect; build a new machine")]
    Broken,
}

/// The clock of a machine in virtual time. Its owner steps the machine, by [`Machine::run_until`].
pub trait Clock: Send + Sync {
    /// Returns the current time, at which accesses take effect.
    fn now(&self) -> Nanos;

    /// Passes the time of one pause of a loop that waits for a function.
    fn wait(&self, function: FunctionId);
}

/// A machine that threads of this process share. The module describes how they step it.
pub struct LocalMachine {
    inner: Mutex<Inner>,
    /// The clock of a machine in virtual time.
    clock: Option<Box<dyn Clock>>,
    started: Instant,
    sleepers: Arc<Sleepers>,
    /// The process that has the machine. Children of `fork` have only a copy of a part of it: they
    /// share its memory.
    owner: OwnerProcess,
}

/// The state under the lock.
struct Inner {
    machine: Machine,
    /// The clients of the attachments that are taken.
    tenants: HashMap<(FunctionId, AttachmentId), Tenant>,
    /// Number of the tenant that came last.
    last_tenant: u64,
    /// Time of the last scan of all mapped memory.
    last_rescan: Instant,
}

/// The client that holds an attachment.
struct Tenant {
    /// A number that is never reused, so that an evicted backing cannot reach its successor's
    /// attachment.
    id: u64,
    /// Counts the client's own resets, which end stalled accesses.
    resets: u64,
    memory: ClientMemory,
    /// Set when the client loses or drops the attachment. Waiting threads check it.
    is_lost: Arc<AtomicBool>,
}

/// The threads that sleep until the machine changes.
#[derive(Default)]
struct Sleepers {
    count: AtomicU32,
    changed: Condvar,
}

impl Sleepers {
    /// Wakes all threads that sleep.
    fn wake(&self) {
        // Sleepers count themselves under the machine's lock, and the changes they wait for are
        // made under it.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

impl LocalMachine {
    /// Shares a machine. Its time starts now.
    pub fn new(machine: Machine) -> Arc<Self> {
        Self::create(machine, None)
    }

    /// Shares a machine in virtual time. A client's access first brings the machine to the clock's
    /// time, and nothing else but the clock's owner does.
    pub fn with_clock(machine: Machine, clock: Box<dyn Clock>) -> Arc<Self> {
        Self::create(machine, Some(clock))
    }

    /// Returns a machine with this clock, or with the real time.
    fn create(machine: Machine, clock: Option<Box<dyn Clock>>) -> Arc<Self> {
        let started = Instant::now();
        let tenants = HashMap::new();
        Arc::new(Self {
            inner: Mutex::new(Inner { machine, tenants, last_tenant: 0, last_rescan: started }),
            clock,
            started,
            sleepers: Arc::default(),
            owner: OwnerProcess::current(),
        })
    }

    /// Takes an attachment for a client. The client holds it until it drops the returned backing
    /// and everything made from it, or until it is evicted.
    ///
    /// # Errors
    /// Returns [`OpenError::Machine`] when there is no such attachment or a client holds it, and
    /// [`OpenError::Broken`].
    pub fn open(
        self: &Arc<Self>,
        function: FunctionId,
        attachment: AttachmentId,
    ) -> Result<Arc<dyn Backing>, OpenError> {
        let mut inner = self.lock_now().map_err(|_| OpenError::Broken)?;
        inner.machine.attach(function, attachment)?;

        inner.last_tenant += 1;
        let id = inner.last_tenant;
        let is_lost = Arc::<AtomicBool>::default();
        let tenant = Tenant { id, resets: 0, memory: ClientMemory::default(), is_lost: is_lost.clone() };
        inner.tenants.insert((function, attachment), tenant);

        drop(inner);
        self.sleepers.wake();
        Ok(Arc::new(LocalAttachment::new(self.clone(), function, attachment, id, is_lost)))
    }

    /// Takes an attachment as [`LocalMachine::open`] does, by the names of function and attachment.
    ///
    /// # Errors
    /// Returns the errors of [`LocalMachine::open`], and those for unknown names.
    pub fn open_named(
        self: &Arc<Self>,
        function: &str,
        attachment: &str,
    ) -> Result<Arc<dyn Backing>, OpenError> {
        let (function, attachment) = self.find(function, attachment)?;
        self.open(function, attachment)
    }

    /// Returns the attachment of these names.
    fn find(&self, function: &str, attachment: &str) -> Result<(FunctionId, AttachmentId), OpenError> {
        let inner = self.inner.lock().map_err(|_| OpenError::Broken)?;
        let machine = &inner.machine;

        let id = (0..machine.functions())
            .map(FunctionId)
            .find(|&id| machine.name(id) == Some(function))
            .ok_or_else(|| OpenError::NoSuchFunction { name: function.to_owned() })?;

        let index = machine
            .spec(id)
            .and_then(|spec| spec.attachments.iter().position(|spec| spec.name == attachment))
            .ok_or_else(|| OpenError::NoSuchAttachment {
                function: function.to_owned(),
                name: attachment.to_owned(),
            })?;

        Ok((id, AttachmentId(index as u16)))
    }

    /// Takes an attachment away from its client, as an operator does. The client's calls fail from
    /// now on.
    ///
    /// # Errors
    /// Returns [`OpenError::Machine`] when no client holds it, and [`OpenError::Broken`].
    pub fn evict(&self, function: FunctionId, attachment: AttachmentId) -> Result<(), OpenError> {
        let mut inner = self.lock_now().map_err(|_| OpenError::Broken)?;
        inner.machine.detach(function, attachment, Ended::Evicted)?;

        if let Some(tenant) = inner.tenants.remove(&(function, attachment)) {
            tenant.is_lost.store(true, Ordering::Release);
        }

        drop(inner);
        self.sleepers.wake();
        Ok(())
    }

    /// Takes an attachment away as [`LocalMachine::evict`] does, by name.
    ///
    /// # Errors
    /// Returns the errors of [`LocalMachine::evict`], and those for unknown names.
    pub fn evict_named(&self, function: &str, attachment: &str) -> Result<(), OpenError> {
        let (function, attachment) = self.find(function, attachment)?;
        self.evict(function, attachment)
    }

    /// Calls `f` with the machine itself, to read counters, set faults or reset a function.
    pub fn with<R>(&self, f: impl FnOnce(&mut Machine) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut inner.machine);
        inner.answer_dma_messages();

        drop(inner);
        self.sleepers.wake();
        result
    }

    /// Steps the machine until it has no immediate work, at most `steps` times. A machine whose
    /// clients wait does not need this call.
    pub fn settle(&self, steps: u32) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..steps {
            if inner.step(self.now()) != Next::Now {
                break;
            }
        }

        drop(inner);
        self.sleepers.wake();
    }

    /// Pauses once in a loop that waits for a function: steps the machine, and then spins, yields
    /// the processor or sleeps if the step found no work.
    fn relax(&self, function: FunctionId, relax: &mut Relax) -> Result<(), Error> {
        let next = relax.next_pause();
        if let Some(clock) = &self.clock {
            clock.wait(function);
            return Ok(());
        }

        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(_)) => return Err(broken()),
            Err(TryLockError::WouldBlock) => {
                // The lock's holder steps the machine for this thread, too.
                pause(next);
                return Ok(());
            }
        };

        match inner.step(self.now()) {
            Next::Now => {
                drop(inner);
                self.sleepers.wake();
                relax.reset();
            }
            Next::Poll => {
                if pace::is_busy() {
                    // Polling does not pay, so that the machine goes cold and the thread sleeps.
                    inner.machine.cool_in_next_step();
                    return Ok(());
                }
                drop(inner);
                pause(next);
            }
            Next::At(time) => match self.time_to_sleep(time) {
                Some(limit) if matches!(next, Pause::Sleep(_)) => self.sleep(inner, limit)?,
                _ => {
                    drop(inner);
                    pause(next);
                }
            },
        }

        Ok(())
    }

    /// Returns how long to sleep for an event at `time`, or `None` when the event is too near.
    fn time_to_sleep(&self, time: Nanos) -> Option<Duration> {
        let remaining = Duration::from_nanos(time.0.saturating_sub(self.now().0));
        (remaining > NO_SLEEP_WITHIN).then(|| (remaining - NO_SLEEP_WITHIN).min(LONGEST_SLEEP))
    }

    /// Sleeps until another thread has changed the machine, or for `limit`. After a sleep of
    /// `limit`, but no sooner than [`RESCAN_INTERVAL`] after the last scan, it makes the next step
    /// scan all mapped memory, for stores that wake no thread.
    fn sleep(&self, inner: MutexGuard<'_, Inner>, limit: Duration) -> Result<(), Error> {
        self.sleepers.count.fetch_add(1, Ordering::Relaxed);
        let outcome = self.sleepers.changed.wait_timeout(inner, limit);
        self.sleepers.count.fetch_sub(1, Ordering::Relaxed);
        let Ok((mut inner, wait_result)) = outcome else { return Err(broken()) };

        if wait_result.timed_out() && inner.last_rescan.elapsed() >= RESCAN_INTERVAL {
            inner.last_rescan = Instant::now();
            inner.machine.rescan();
        }

        Ok(())
    }

    /// Checks that this process has the machine.
    fn check_owner(&self) -> Result<(), Error> {
        if self.owner.is_current() { Ok(()) } else { Err(Error::ForeignProcess) }
    }

    /// Locks the machine, unless a thread has panicked under the lock.
    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        self.check_owner()?;
        self.inner.lock().map_err(|_| broken())
    }

    /// Locks the machine for an access, which takes effect at the current time.
    fn lock_now(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let mut inner = self.lock()?;
        if let Some(clock) = &self.clock {
            // The result tells whether the work ended within the limits. It is ignored here,
            // because the clock's owner steps the machine too and gets the same result.
            let _ = inner.machine.run_until(clock.now(), TurnLimits::default());
        }
        Ok(inner)
    }

    /// Returns the time since the machine was shared.
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Inner {
    /// Steps the machine once, and answers its DMA messages to clients.
    fn step(&mut self, now: Nanos) -> Next {
        let next = self.machine.step(now, BUDGET);
        if self.answer_dma_messages() { Next::Now } else { next }
    }
}

/// Waits for a short time without sleeping.
fn pause(kind: Pause) {
    match kind {
        Pause::Spin => std::hint::spin_loop(),
        Pause::Yield | Pause::Sleep(_) => pace::step_aside(),
    }
}

/// Returns the error of a machine that panicked under the lock.
fn broken() -> Error {
    Error::DeviceGone { cause: GoneCause::Stopped }
}
