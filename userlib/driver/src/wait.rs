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

/// The end of a wait: a point on the monotonic clock, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    started: Option<Instant>,
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

    /// Returns the earlier of this deadline and `timeout` from now.
    pub fn at_most(&self, timeout: Duration) -> Self {
        match self.remaining() {
            Some(left) if left < timeout => *self,
            _ => Self::after(timeout),
        }
    }

    /// Returns the error of a wait for `operation` that this deadline has ended.
    pub fn timeout(&self, operation: &'static str) -> Error {
        Error::Timeout {
            what: operation,
            waited: self.started.map(|started| started.elapsed()).unwrap_or_default(),
        }
    }
}

struct CancelState {
    cancelled: AtomicBool,
    event: EventFd,
    /// Held while the flag and the eventfd change together.
    change: Mutex<()>,
}

impl CancelState {
    fn change(&self) -> MutexGuard<'_, ()> {
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
        let _held = self.0.change();

        self.0.cancelled.store(true, Ordering::Release);
        // A write to an eventfd fails only when its counter is full, and then it is readable
        // already.
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
        let _held = self.0.change();
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

/// The steps by which a waiting loop on a host moves from spinning to yielding to sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Number of pauses that only spin (20 to 40 ns each).
    pub spins: u32,
    /// Number of pauses after those that yield the processor (about 1 us each if another thread
    /// wants it).
    pub yields: u32,
    /// Length of the first sleep after those. Each sleep is twice as long as the one before.
    pub first_sleep: Duration,
    /// Length of the longest sleep.
    pub longest_sleep: Duration,
}

impl Backoff {
    /// For few processors: hardly any spinning, then yielding for 100 us or more, then sleeps of 20
    /// us to 1 ms. A thread that waits for longer takes the processor from the thread that it waits
    /// for.
    pub const SHARED: Self = Self {
        spins: 4,
        yields: 100,
        first_sleep: Duration::from_micros(20),
        longest_sleep: Duration::from_millis(1),
    };

    /// For an engine and two applications with one processor each. It spins for about a
    /// microsecond, in which a cache line is transferred, and continues as [`Backoff::SHARED`].
    pub const DEDICATED: Self = Self { spins: 32, ..Self::SHARED };
}

/// The least number of processors for [`Backoff::DEDICATED`]: an engine, two applications, and one
/// for the rest.
const PLENTY: usize = 4;

impl Default for Backoff {
    /// Returns the back-off for the number of processors that this process may use.
    fn default() -> Self {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors =
            PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));

        if *processors >= PLENTY { Self::DEDICATED } else { Self::SHARED }
    }
}

/// One pause of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Pauses the processor.
    Spin,
    /// Yields the processor to another thread.
    Yield,
    /// Sleeps for this time, or blocks on descriptors for that long.
    Sleep(Duration),
}

impl Pause {
    /// Performs the action.
    #[inline]
    pub fn take(self) {
        match self {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
            Pause::Sleep(time) => runtime::sleep(time),
        }
    }
}

/// The state of one waiting loop, advanced by [`crate::Backing::relax`].
///
/// A loop that has made progress calls [`Relax::reset`], so that the next wait starts with spinning
/// again.
#[derive(Clone, Debug)]
pub struct Relax {
    count: u32,
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
        Self { count: 0, pauses: 0, backoff }
    }

    /// Starts again with spinning, after progress.
    #[inline]
    pub fn reset(&mut self) {
        self.pauses = 0;
    }

    /// Returns the number of pauses since the start or the last reset, saturating.
    #[inline]
    pub fn pauses(&self) -> u32 {
        self.pauses
    }

    /// Counts one more call of a device's waiting loop, and returns the count. It counts even if
    /// the backing does not pause.
    #[inline]
    pub(crate) fn count_call(&mut self) -> u32 {
        self.count = self.count.wrapping_add(1);
        self.count
    }

    /// Pauses once: spins, yields or sleeps as the back-off says, and counts it.
    ///
    /// It is for loops that wait for memory without a device. A loop that waits for a device calls
    /// [`crate::Device::relax`].
    #[inline]
    pub fn pause(&mut self) {
        self.next_pause().take();
    }

    /// Counts a pause, and returns it for the caller to take.
    #[inline]
    pub fn next_pause(&mut self) -> Pause {
        let pause = self.pauses;
        self.pauses = pause.saturating_add(1);

        if pause < self.backoff.spins {
            return Pause::Spin;
        }

        let pause = pause - self.backoff.spins;
        if pause < self.backoff.yields {
            return Pause::Yield;
        }

        let doublings = (pause - self.backoff.yields).min(16);
        Pause::Sleep((self.backoff.first_sleep * (1 << doublings)).min(self.backoff.longest_sleep))
    }
}
