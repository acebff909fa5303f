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

use crate::{
    Error,
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
/// and all others sleep, longer and longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Number of pauses that only spin, at the beginning. Each takes 20 to 40 ns.
    pub spins: u32,
    /// Number of pauses after the spinning ones that yield the processor. Each takes about 1 us if
    /// another thread wants the processor.
    pub yields: u32,
    /// Length of the first sleep, after the yielding pauses. Each sleep is twice as long as the one
    /// before, up to [`Backoff::longest_sleep`].
    pub first_sleep: Duration,
    /// Length of the longest sleep.
    pub longest_sleep: Duration,
}

impl Backoff {
    /// The back-off for hosts with few processors, on which a spinning thread may take the
    /// processor from the very thread that it waits for. It hardly spins, then yields for 100 us or
    /// more, and then sleeps for 20 us to 1 ms at a time.
    pub const SHARED: Self = Self {
        spins: 4,
        yields: 100,
        first_sleep: Duration::from_micros(20),
        longest_sleep: Duration::from_millis(1),
    };

    /// The back-off for hosts on which an engine and two applications have a processor each. It
    /// spins for about a microsecond, in which a cache line comes from another processor, and
    /// continues as [`Backoff::SHARED`].
    pub const DEDICATED: Self = Self { spins: 32, ..Self::SHARED };
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

/// Maximum number of times that the length of a sleep is doubled.
const MAX_DOUBLINGS: u32 = 16;

/// One pause of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Executes the processor's instruction for spinning loops.
    Spin,
    /// Yields the processor to another thread.
    Yield,
    /// Sleeps for this time. A loop that can block on descriptors blocks for at most this time
    /// instead.
    Sleep(Duration),
}

impl Pause {
    /// Makes the pause.
    #[inline]
    pub fn take(self) {
        match self {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
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
        Self { calls: 0, pauses: 0, backoff }
    }

    /// Lets the next pauses spin again, after progress.
    #[inline]
    pub fn reset(&mut self) {
        self.pauses = 0;
    }

    /// Returns the number of pauses since the start or the last reset. It stops at `u32::MAX`.
    #[inline]
    pub fn pauses(&self) -> u32 {
        self.pauses
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

        if number < self.backoff.spins {
            return Pause::Spin;
        }

        let number_after_spins = number - self.backoff.spins;
        if number_after_spins < self.backoff.yields {
            return Pause::Yield;
        }

        // The bound keeps the shift valid for any number of pauses.
        let doublings = (number_after_spins - self.backoff.yields).min(MAX_DOUBLINGS);
        Pause::Sleep((self.backoff.first_sleep * (1 << doublings)).min(self.backoff.longest_sleep))
    }
}
