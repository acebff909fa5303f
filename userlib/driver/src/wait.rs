//! Waiting: deadlines, cancellation, and the turns of a waiting loop.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};

use crate::Error;

/// When a wait gives up: a point on the monotonic clock, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    started: Option<Instant>,
    limit: Option<Duration>,
}

impl Deadline {
    /// `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { started: Some(Instant::now()), limit: Some(timeout) }
    }

    /// No limit. The wait still ends when it is cancelled or the device is gone.
    pub const fn never() -> Self {
        Self { started: None, limit: None }
    }

    /// Already passed: look once, do not wait.
    pub fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// Time left, zero once it has passed; `None` when it never does.
    pub fn remaining(&self) -> Option<Duration> {
        let (started, limit) = (self.started?, self.limit?);
        Some(limit.saturating_sub(started.elapsed()))
    }

    /// The earlier of this and `timeout` from now.
    pub fn at_most(&self, timeout: Duration) -> Self {
        match self.remaining() {
            Some(left) if left < timeout => *self,
            _ => Self::after(timeout),
        }
    }

    /// The error of a wait for `what` that this deadline ended.
    pub fn timeout(&self, what: &'static str) -> Error {
        Error::Timeout { what, waited: self.started.map(|started| started.elapsed()).unwrap_or_default() }
    }
}

struct CancelState {
    cancelled: AtomicBool,
    event: EventFd,
    /// Held while the two above change together.
    change: Mutex<()>,
}

impl CancelState {
    fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token that ends waits from another thread. Clones stand for the same token.
///
/// A wait that was given the token returns [`Error::Cancelled`] soon after [`Cancel::cancel`], also when it blocks in the
/// kernel. The token stays cancelled until [`Cancel::rearm`].
#[derive(Clone)]
pub struct Cancel(Arc<CancelState>);

impl Cancel {
    /// A token that is not cancelled.
    ///
    /// # Errors
    /// [`Error::Refused`] when the process has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::system("creating an eventfd", errno))?;
        Ok(Self(Arc::new(CancelState { cancelled: AtomicBool::new(false), event, change: Mutex::default() })))
    }

    /// Ends every wait that has the token, now and later.
    pub fn cancel(&self) {
        let _held = self.0.change();
        self.0.cancelled.store(true, Ordering::Release);
        // A write to an eventfd fails only when its counter is full, and then it is readable already.
        let _ = self.0.event.write(1);
    }

    /// Whether it was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// [`Error::Cancelled`] if it was cancelled.
    ///
    /// # Errors
    /// That one.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Makes the token usable again. Waits that have not noticed the cancellation yet may miss it.
    pub fn rearm(&self) {
        let _held = self.0.change();
        while matches!(self.0.event.read(), Ok(_) | Err(Errno::EINTR)) {}
        self.0.cancelled.store(false, Ordering::Release);
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

/// How a waiting loop on a host moves from spinning to yielding to sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Turns that only pause the processor (some 20 to 40 ns each).
    pub spins: u32,
    /// Turns after those that give the processor away (about 1 us each when somebody wants it).
    pub yields: u32,
    /// Length of the first sleep after those; each is twice the one before.
    pub first_sleep: Duration,
    /// The longest sleep.
    pub longest_sleep: Duration,
}

impl Patience {
    /// Where processors are scarce: hardly any spinning, then yielding for a hundred microseconds or more, then sleeps of 20 us to
    /// 1 ms. Who waits for longer than that is in the way of whom it waits for.
    pub const SHARED: Self = Self {
        spins: 4,
        yields: 100,
        first_sleep: Duration::from_micros(20),
        longest_sleep: Duration::from_millis(1),
    };

    /// Where the engine and two applications have a processor each: as [`Patience::SHARED`], after about a microsecond of
    /// spinning, in which a cache line comes over.
    pub const DEDICATED: Self = Self { spins: 32, ..Self::SHARED };
}

/// Processors from which on nobody needs to get out of the way: an engine, two applications, and one for the rest.
const PLENTY: usize = 4;

impl Default for Patience {
    /// What suits the number of processors that this process may use.
    fn default() -> Self {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors =
            PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        if *processors >= PLENTY { Self::DEDICATED } else { Self::SHARED }
    }
}

/// What the next turn of a waiting loop should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Pause the processor.
    Spin,
    /// Give the processor to another thread.
    Yield,
    /// Sleep this long, or wait for a descriptor that long.
    Sleep(Duration),
}

impl Turn {
    /// Does it.
    #[inline]
    pub fn take(self) {
        match self {
            Turn::Spin => std::hint::spin_loop(),
            Turn::Yield => std::thread::yield_now(),
            Turn::Sleep(time) => std::thread::sleep(time),
        }
    }
}

/// The state of one waiting loop, advanced by [`crate::Backing::relax`].
///
/// A loop that saw something happen calls [`Relax::reset`], so that the next wait starts with spinning again.
#[derive(Clone, Debug)]
pub struct Relax {
    count: u32,
    turns: u32,
    patience: Patience,
}

impl Default for Relax {
    fn default() -> Self {
        Self::new()
    }
}

impl Relax {
    /// A loop with [`Patience::default`].
    pub fn new() -> Self {
        Self::with_patience(Patience::default())
    }

    /// A loop with a patience of its own.
    pub const fn with_patience(patience: Patience) -> Self {
        Self { count: 0, turns: 0, patience }
    }

    /// Something happened: start again with spinning.
    #[inline]
    pub fn reset(&mut self) {
        self.turns = 0;
    }

    /// Turns since the start or the last reset, saturating.
    #[inline]
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Counts the calls of a device's loop, whatever its backing makes of them.
    #[inline]
    pub(crate) fn count(&mut self) -> u32 {
        self.count = self.count.wrapping_add(1);
        self.count
    }

    /// Counts a turn and says what it should do.
    #[inline]
    pub fn turn(&mut self) -> Turn {
        let turn = self.turns;
        self.turns = turn.saturating_add(1);
        if turn < self.patience.spins {
            return Turn::Spin;
        }
        let turn = turn - self.patience.spins;
        if turn < self.patience.yields {
            return Turn::Yield;
        }
        let doublings = (turn - self.patience.yields).min(16);
        Turn::Sleep((self.patience.first_sleep * (1 << doublings)).min(self.patience.longest_sleep))
    }
}
