//! Deadlines, cancellation, and the pauses of a waiting loop.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};

use nicforge_shm::{SAFETY_TIMEOUT, pace};

use crate::{
    Error,
    backing::Armed,
    runtime::{self, Instant},
};

/// The time at which a wait ends: a time-out from now, or never.
///
/// A deadline is made once for a call, and is then passed to all waits of the call: together they
/// end by that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When the deadline was made; `None` for one that never passes.
    started: Option<Instant>,
    /// The time from then until it passes; `None` for one that never passes.
    limit: Option<Duration>,
}

impl Deadline {
    /// Returns the deadline that is `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { started: Some(Instant::now()), limit: Some(timeout) }
    }

    /// Returns a deadline that never passes. The wait still ends when it is cancelled or the device
    /// is gone.
    pub const fn never() -> Self {
        Self { started: None, limit: None }
    }

    /// Returns a deadline that has already passed. A wait with it checks once and does not block.
    pub fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_some_and(|remaining| remaining.is_zero())
    }

    /// Returns the time left, zero once the deadline has passed, or `None` if it never passes.
    pub fn remaining(&self) -> Option<Duration> {
        let (started, limit) = (self.started?, self.limit?);
        Some(limit.saturating_sub(started.elapsed()))
    }

    /// Returns this deadline, or the one that is `timeout` from now if that is earlier.
    pub fn at_most(&self, timeout: Duration) -> Self {
        match self.remaining() {
            Some(remaining) if remaining < timeout => *self,
            _ => Self::after(timeout),
        }
    }

    /// Returns the error of a wait for `operation` that has ended because this deadline has passed.
    /// It reports the time since the deadline was made.
    pub fn timeout(&self, operation: &'static str) -> Error {
        Error::Timeout {
            what: operation,
            waited: self.started.map(|started| started.elapsed()).unwrap_or_default(),
        }
    }
}

/// The state that all clones of a token share.
struct CancelState {
    /// Whether the token is cancelled, for loops that poll.
    cancelled: AtomicBool,
    /// Readable while the token is cancelled, for waits that block in the kernel.
    event: EventFd,
    /// Held while the flag and the eventfd are changed together.
    change: Mutex<()>,
}

impl CancelState {
    /// Locks the flag and the eventfd against other changes.
    fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token that ends waits from another thread. Clones share the token.
///
/// A wait with the token returns [`Error::Cancelled`] soon after [`Cancel::cancel`], even if it
/// blocks in the kernel. The token stays cancelled until [`Cancel::rearm`].
#[derive(Clone)]
pub struct Cancel(Arc<CancelState>);

impl Cancel {
    /// Creates a token that is not cancelled.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] when the process has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::system("creating an eventfd", errno))?;
        Ok(Self(Arc::new(CancelState { cancelled: AtomicBool::new(false), event, change: Mutex::default() })))
    }

    /// Ends every wait that uses the token, now and later.
    pub fn cancel(&self) {
        let _held = self.0.lock_changes();

        self.0.cancelled.store(true, Ordering::Release);
        // The write fails only when the eventfd's counter is full, and it is readable then.
        let _ = self.0.event.write(1);
    }

    /// Returns whether the token is cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Checks the token.
    ///
    /// # Errors
    /// Returns [`Error::Cancelled`] if the token is cancelled.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Makes the token usable again. A wait that has not yet noticed the cancellation may miss it.
    pub fn rearm(&self) {
        let _held = self.0.lock_changes();
        // Reads empty the eventfd, so that it is not readable any more.
        while matches!(self.0.event.read(), Ok(_) | Err(Errno::EINTR)) {}
        self.0.cancelled.store(false, Ordering::Release);
    }
}

impl AsFd for Cancel {
    /// Returns a descriptor that is readable once the token is cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

/// How a waiting loop on a host pauses: its first pauses spin, the next ones yield the processor,
/// and all others sleep.
///
/// On a host whose processors other programs take, no pause yields ([`nicforge_shm::pace`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Number of pauses that only spin, at the beginning. Each takes 20 to 40 ns.
    pub spins: u32,
    /// Time for which the pauses after that yield the processor. `None` is the time that has paid
    /// off in this process so far: 25 to 400 us, and at least 100 yields.
    pub poll: Option<Duration>,
    /// Length of the first sleep, after the yielding pauses, where nothing wakes the thread. Each
    /// sleep is twice as long as the one before, up to [`Backoff::longest_sleep`].
    pub first_sleep: Duration,
    /// Length of the longest sleep where nothing wakes the thread.
    pub longest_sleep: Duration,
}

impl Backoff {
    /// The back-off for hosts with few processors, on which a spinning thread may take the
    /// processor from the very thread that it waits for. It hardly spins, then yields while that
    /// pays, and then sleeps until the engine wakes it, or for 20 us to 1 ms at a time.
    pub const SHARED: Self = Self {
        spins: 4,
        poll: None,
        first_sleep: Duration::from_micros(20),
        longest_sleep: Duration::from_millis(1),
    };

    /// The back-off for hosts on which an engine and two applications have a processor each. It
    /// spins for about a microsecond, in which a cache line comes from another processor, and
    /// continues as [`Backoff::SHARED`].
    pub const DEDICATED: Self = Self { spins: 32, ..Self::SHARED };

    /// Returns this back-off without sleeps: it polls until the wait ends, except on a busy host.
    pub const fn polling(self) -> Self {
        Self { poll: Some(Duration::MAX), ..self }
    }
}

/// Minimum number of processors for [`Backoff::DEDICATED`]: one for an engine, two for
/// applications, and one for the rest.
const MIN_DEDICATED_PROCESSORS: usize = 4;

impl Default for Backoff {
    /// Returns the back-off for the number of processors that this process may use.
    fn default() -> Self {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors =
            PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));

        if *processors >= MIN_DEDICATED_PROCESSORS { Self::DEDICATED } else { Self::SHARED }
    }
}

/// Minimum number of yields before a sleep, where no time is set. Among many threads that yield to
/// each other, time says little about how long a wait will take.
const MIN_YIELDS: u32 = 100;

/// Maximum number of times that the length of a sleep is doubled.
const MAX_DOUBLINGS: u32 = 16;

/// One pause of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Executes the processor's instruction for spinning loops.
    Spin,
    /// Yields the processor to another thread.
    Yield,
    /// Sleeps for this time. A loop that can be woken, or that can block on descriptors, does that
    /// instead.
    Sleep(Duration),
}

impl Pause {
    /// Makes the pause.
    #[inline]
    pub fn take(self) {
        match self {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => {
                pace::yield_now();
            }
            Pause::Sleep(time) => runtime::sleep(time),
        }
    }
}

/// The state of one waiting loop: how many pauses it has made, and with which back-off.
/// [`crate::Backing::relax`] makes the next pause.
///
/// A loop that has made progress calls [`Relax::reset`], so that its next pauses spin again.
#[derive(Clone, Debug)]
pub struct Relax {
    /// Number of calls of [`Relax::count_call`], modulo 2^32.
    calls: u32,
    /// Number of pauses since the start or the last reset.
    pauses: u32,
    /// Number of sleeps since then.
    sleeps: u32,
    /// Time of the first pause after the spinning ones.
    polling_since: Option<Instant>,
    /// What the last pause prepared: the next one blocks, unless the loop finds its event before.
    pub(crate) armed: Option<Armed>,
    /// Number of sleeps since then that a wake-up has ended.
    pub(crate) wakes: u32,
    /// Whether the last pause slept.
    pub(crate) has_slept: bool,
    /// Time at which the loop ends. No sleep goes beyond it.
    pub(crate) deadline: Deadline,
    /// Whether the loop also waits for stores of other programs or threads, which wake nothing.
    waits_for_programs: bool,
    backoff: Backoff,
}

impl Default for Relax {
    fn default() -> Self {
        Self::new()
    }
}

impl Relax {
    /// Creates a loop's state with [`Backoff::default`].
    pub fn new() -> Self {
        Self::with_backoff(Backoff::default())
    }

    /// Creates a loop's state with the given back-off.
    pub const fn with_backoff(backoff: Backoff) -> Self {
        Self {
            calls: 0,
            pauses: 0,
            sleeps: 0,
            polling_since: None,
            armed: None,
            wakes: 0,
            has_slept: false,
            deadline: Deadline::never(),
            waits_for_programs: false,
            backoff,
        }
    }

    /// Lets the next pauses spin again, after progress.
    #[inline]
    pub fn reset(&mut self) {
        if self.pauses != 0 {
            (self.pauses, self.sleeps, self.wakes) = (0, 0, 0);
            (self.polling_since, self.armed) = (None, None);
        }
    }

    /// Limits each sleep to that of the back-off, 20 us to 1 ms, for a loop that also waits for
    /// memory into which other programs or threads store. The engine knows nothing of such stores.
    pub fn wait_for_programs_too(&mut self) {
        self.waits_for_programs = true;
    }

    /// Returns how long a pause may sleep from which the engine wakes the loop. `sleep` is its
    /// length by the back-off.
    pub(crate) fn limit_of_sleep(&self, sleep: Duration) -> Duration {
        let limit = if self.waits_for_programs { sleep } else { SAFETY_TIMEOUT };
        self.deadline.remaining().map_or(limit, |remaining| remaining.min(limit))
    }

    /// Returns the number of pauses since the start or the last reset. It stops at `u32::MAX`.
    #[inline]
    pub fn pauses(&self) -> u32 {
        self.pauses
    }

    /// Returns the time since the first pause that did not spin.
    pub(crate) fn waited(&self) -> Duration {
        self.polling_since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Counts one iteration of a loop that waits for a device, and returns their number so far.
    /// Unlike [`Relax::pauses`], it counts on after a reset, and also if the backing makes no
    /// pause.
    #[inline]
    pub(crate) fn count_call(&mut self) -> u32 {
        self.calls = self.calls.wrapping_add(1);
        self.calls
    }

    /// Makes and counts one pause: spins, yields or sleeps, as the back-off says.
    ///
    /// It is for loops that wait for memory that no device writes. A loop that waits for a device
    /// calls [`crate::Device::relax`] instead.
    #[inline]
    pub fn pause(&mut self) {
        self.next_pause().take();
    }

    /// Counts a pause, and returns it without making it: the caller calls [`Pause::take`], or
    /// blocks.
    #[inline]
    pub fn next_pause(&mut self) -> Pause {
        let number = self.pauses;
        self.pauses = number.saturating_add(1);
        match number.checked_sub(self.backoff.spins) {
            None => Pause::Spin,
            Some(number) => self.next_pause_after_spins(number),
        }
    }

    /// Returns a pause that yields while polling pays, and then one that sleeps. `number` counts
    /// the pauses after the spinning ones.
    fn next_pause_after_spins(&mut self, number: u32) -> Pause {
        let since = *self.polling_since.get_or_insert_with(Instant::now);
        let (limit, min_yields) =
            self.backoff.poll.map_or_else(|| (pace::poll_limit(), MIN_YIELDS), |poll| (poll, 0));
        if self.sleeps == 0 {
            let waited = since.elapsed();
            match pace::is_busy() {
                true if waited < pace::BUSY_SPIN.min(limit) => return Pause::Spin,
                false if waited < limit || number < min_yields => return Pause::Yield,
                _ => (),
            }
        }

        // The bound keeps the shift valid for any number of pauses.
        let doublings = self.sleeps.min(MAX_DOUBLINGS);
        self.sleeps = self.sleeps.saturating_add(1);
        Pause::Sleep((self.backoff.first_sleep * (1 << doublings)).min(self.backoff.longest_sleep))
    }
}
