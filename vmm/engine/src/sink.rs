//! Eventfds that clients bind to interrupts.
//!
//! A write to a client's eventfd must not block the engine. The eventfd is made non-blocking, but
//! the client has the same open file. It can undo that and fill the counter, and then the write
//! blocks. It can also register thousands of watches on the eventfd, which each write walks.
//!
//! So the [watchdog](crate::watchdog) checks the engine's writes, and ends one that blocks by a
//! signal to the engine's thread. Each write is also timed. A client whose write had to be ended,
//! or whose eventfds slow writes down, is *given up*: none of its eventfds is written or bound any
//! more, and the engine takes the attachment from it.
//!
//! A write can take long by chance: a hypervisor may take the processor away, and the kernel may
//! account that time to the thread. An eventfd with many watches is slow each time. So two long
//! writes to one eventfd in a row prove that it is slow, and a short write between them begins the
//! count anew. All slow writes, including those below the limit of a long one, are charged to a
//! budget of their client. Without the budget, many writes just below the limit would hold the
//! engine for seconds.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

use nicforge_core::interrupt::InterruptSink;
use nicforge_vfio_user::{Errno, PeerFd};
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{FcntlArg, OFlag, fcntl, readlink},
    unistd::write,
};

use crate::{
    pace::{CALL_BUDGET, CallBudget, LONG_CALL, SLOW_TIME, ThreadTime},
    sigurg,
};

/// Name of an eventfd in `/proc/self/fd`.
const EVENTFD_NAME: &str = "anon_inode:[eventfd]";

/// The time from which on a write is slow is this part of the time from which on it is long: 200
/// microseconds by default. A write usually takes a microsecond.
const SLOW_PART: u32 = 50;

/// A client as the owner of eventfds.
#[derive(Debug)]
pub(crate) struct EventFdOwner {
    /// Whether its eventfds are no longer written.
    given_up: AtomicBool,
    /// The time until which the client is suspected, in nanoseconds since `since`. Writes to the
    /// eventfds of a suspected client are also measured by the time that the kernel accounts to the
    /// thread ([`ThreadTime`]).
    suspected_until: AtomicU64,
    /// The time when this value was made.
    since: Instant,
    /// Budget for the time of writes that were slow by both measures.
    slow_writes: Mutex<CallBudget>,
    /// Time from which on a write is long.
    long_call: Duration,
}

impl Default for EventFdOwner {
    fn default() -> Self {
        Self::new(LONG_CALL)
    }
}

impl EventFdOwner {
    /// Returns the owner for a new client. Writes that take `long_call` or longer are long.
    pub(crate) fn new(long_call: Duration) -> Self {
        Self {
            given_up: AtomicBool::new(false),
            suspected_until: AtomicU64::new(0),
            since: Instant::now(),
            slow_writes: Mutex::default(),
            long_call,
        }
    }

    /// Returns whether the client's eventfds are written no more, because writes to them held the
    /// engine.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Returns the time from which on a write is slow.
    fn slow_call(&self) -> Duration {
        self.long_call / SLOW_PART
    }

    /// Returns whether the client is suspected at this time.
    fn is_suspected(&self, now: Instant) -> bool {
        self.nanoseconds_until(now) < self.suspected_until.load(Ordering::Relaxed)
    }

    /// Suspects the client after a write of this length, which was slow by the clock. After a long
    /// write the client is suspected from then on. After a shorter one it is suspected for a while,
    /// because a write can be slow by chance, and measuring costs system calls.
    fn suspect(&self, length: Duration, now: Instant) {
        let until = if length >= self.long_call { u64::MAX } else { self.nanoseconds_until(now + SLOW_TIME) };
        self.suspected_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Returns the nanoseconds from the creation of this value until `time`.
    fn nanoseconds_until(&self, time: Instant) -> u64 {
        let passed = time.saturating_duration_since(self.since);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Charges a slow write that ended now. Returns whether the client has overspent its budget.
    fn charge(&self, length: Duration, now: Instant) -> bool {
        let charged = if length >= self.long_call {
            // The whole host can be stopped during a single write.
            length.min(CALL_BUDGET / 2)
        } else {
            // Settings that permit longer calls make those below the limit cheaper in proportion.
            length.min(LONG_CALL.mul_f64(length.div_duration_f64(self.long_call)))
        };

        let mut budget = self.slow_writes.lock().unwrap_or_else(PoisonError::into_inner);
        budget.charge(charged, now)
    }
}

/// A write to an eventfd in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteInProgress {
    /// Number of the eventfd's [`EventFdSink`].
    sink: u64,
    /// Number of the write, counted over all eventfds.
    number: u64,
}

/// The eventfds of an engine's clients, and the write in progress. The engine's thread and the
/// watchdog share it.
#[derive(Debug, Default)]
pub(crate) struct EventFds {
    /// Number of the sink whose eventfd is being written, 0 for none. Only the engine's thread
    /// writes.
    writing: AtomicU64,
    /// The kernel's id of that thread.
    writer: AtomicI32,
    /// Number of writes so far.
    writes: AtomicU64,
    /// Number of clients that were given up.
    given_up_count: AtomicU64,
    /// Number of the sink that was made last.
    last_id: AtomicU64,
    /// The owner of each sink.
    sinks: Mutex<HashMap<u64, Arc<EventFdOwner>>>,
    /// Whether the watchdog checks often. If not, the next write wakes it.
    watchdog_checks_often: AtomicBool,
    watchdog: OnceLock<Thread>,
}

impl EventFds {
    /// Returns the number of clients that were given up so far.
    pub(crate) fn given_up_count(&self) -> u64 {
        self.given_up_count.load(Ordering::Acquire)
    }

    /// Returns the write in progress, if there is one.
    pub(crate) fn write_in_progress(&self) -> Option<WriteInProgress> {
        let sink = self.writing.load(Ordering::Acquire);
        (sink != 0).then(|| WriteInProgress { sink, number: self.writes() })
    }

    /// Returns whether any eventfd is bound.
    pub(crate) fn has_sinks(&self) -> bool {
        !self.sinks().is_empty()
    }

    /// Returns the number of writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Returns the kernel's id of the thread that writes.
    pub(crate) fn writer(&self) -> i32 {
        self.writer.load(Ordering::Acquire)
    }

    /// Sets the thread that is woken when a write begins while the watchdog checks less often.
    pub(crate) fn set_watchdog(&self, thread: Thread) {
        // Each engine has one watchdog.
        let _ = self.watchdog.set(thread);
    }

    /// Records whether the watchdog checks often. If it does, a write need not wake it.
    pub(crate) fn set_watchdog_checks_often(&self, checks_often: bool) {
        self.watchdog_checks_often.store(checks_often, Ordering::Release);
    }

    /// Ends a write that blocks, and gives up its client.
    pub(crate) fn end_blocked_write(&self, write: WriteInProgress) {
        let Some(owner) = self.sinks().get(&write.sink).cloned() else { return };
        self.give_up(&owner);
        if let Err(errno) = sigurg::interrupt_thread(self.writer()) {
            tracing::error!(%errno, "a write to an eventfd that blocks the engine could not be ended");
        }
    }

    /// Marks the client of an eventfd as given up. Only the first call is counted.
    fn give_up(&self, owner: &EventFdOwner) {
        if !owner.given_up.swap(true, Ordering::AcqRel) {
            self.given_up_count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Records that this thread begins a write to the eventfd of `sink`.
    fn begin_write(&self, sink: u64) {
        self.writer.store(sigurg::this_thread_id(), Ordering::Relaxed);
        // Only one thread writes, so this needs no atomic addition.
        let writes = self.writes.load(Ordering::Relaxed);
        self.writes.store(writes.wrapping_add(1), Ordering::Relaxed);
        self.writing.store(sink, Ordering::Release);

        self.wake_watchdog();
    }

    /// Wakes the watchdog unless it checks often already.
    fn wake_watchdog(&self) {
        if !self.watchdog_checks_often.load(Ordering::Relaxed)
            && let Some(watchdog) = self.watchdog.get()
        {
            self.set_watchdog_checks_often(true);
            watchdog.unpark();
        }
    }

    /// Records that no write is in progress any more.
    fn end_write(&self) {
        self.writing.store(0, Ordering::Release);
    }

    fn sinks(&self) -> MutexGuard<'_, HashMap<u64, Arc<EventFdOwner>>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An interrupt's sink that signals a client's eventfd.
#[derive(Debug)]
pub(crate) struct EventFdSink {
    fd: PeerFd,
    /// Number of the sink in `eventfds`, from 1.
    id: u64,
    owner: Arc<EventFdOwner>,
    eventfds: Arc<EventFds>,
    /// Whether the last write took long by the clock.
    was_long: AtomicBool,
}

impl EventFdSink {
    /// Takes an eventfd for the interrupts of a client.
    ///
    /// # Errors
    /// `EINVAL` for any other kind of file, since a write to one may take as long as its owner
    /// likes. `EPERM` for a client that was given up.
    pub(crate) fn bind(
        fd: PeerFd,
        owner: &Arc<EventFdOwner>,
        eventfds: &Arc<EventFds>,
    ) -> Result<Arc<Self>, Errno> {
        if owner.is_given_up() {
            return Err(Errno::EPERM);
        }
        check_eventfd(&fd)?;
        set_nonblocking(&fd)?;

        let id = eventfds.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        eventfds.sinks().insert(id, Arc::clone(owner));
        eventfds.wake_watchdog();
        Ok(Arc::new(Self {
            fd,
            id,
            owner: Arc::clone(owner),
            eventfds: Arc::clone(eventfds),
            was_long: AtomicBool::new(false),
        }))
    }

    /// Checks the length of a write that began at `start` and has just ended. `thread_time` is what
    /// the kernel had accounted to the thread at `start`; it is measured only for a suspected
    /// client.
    ///
    /// A client is suspected after its first slow write. It is given up after writes that were slow
    /// by the thread's time too: two long ones in a row to one eventfd, or more than its budget.
    fn check_length(&self, start: Instant, thread_time: Option<ThreadTime>) {
        let now = Instant::now();
        let length = now.saturating_duration_since(start);
        let is_long = length >= self.owner.long_call;
        // Without `thread_time` no write of the client was long before, so `was_long` is false.
        let was_long = thread_time.is_some() && self.was_long.load(Ordering::Relaxed);
        if was_long != is_long {
            self.was_long.store(is_long, Ordering::Relaxed);
        }
        if length < self.owner.slow_call() {
            return;
        }

        self.owner.suspect(length, now);
        let Some(thread_time) = thread_time else { return };
        let confirmed = thread_time.confirmed_part_of(length);
        let is_overspent = confirmed >= self.owner.slow_call() && self.owner.charge(confirmed, now);
        let is_long_again = was_long && confirmed >= self.owner.long_call;
        if is_overspent || is_long_again {
            self.eventfds.give_up(&self.owner);
        }
    }
}

impl Drop for EventFdSink {
    fn drop(&mut self) {
        self.eventfds.sinks().remove(&self.id);
    }
}

impl InterruptSink for EventFdSink {
    fn signal(&self) {
        if self.owner.is_given_up() {
            return;
        }
        let start = Instant::now();
        let thread_time = if self.owner.is_suspected(start) { ThreadTime::now() } else { None };

        self.eventfds.begin_write(self.id);
        // At the end of the counter the write fails with `EAGAIN`, which needs no retry: the client
        // has signals enough to read.
        while write(self.fd.as_fd(), &1_u64.to_ne_bytes()) == Err(SystemErrno::EINTR)
            && !self.owner.is_given_up()
        {}
        self.eventfds.end_write();

        self.check_length(start, thread_time);
    }
}

/// Returns an error for anything but an eventfd. It reads the name of the file in `/proc`, because
/// a call to a file of another kind could block.
pub(crate) fn check_eventfd(fd: &PeerFd) -> Result<(), Errno> {
    let target = readlink(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).as_str())?;
    if target.to_str() == Some(EVENTFD_NAME) { Ok(()) } else { Err(Errno::EINVAL) }
}

fn set_nonblocking(fd: &PeerFd) -> Result<(), SystemErrno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(|_| ())
}

#[cfg(test)]
mod tests;
