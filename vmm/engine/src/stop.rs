//! Ending an engine, and waking it, from other threads.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::EngineError;

/// An eventfd that ends the engine's sleep.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<EventFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, EngineError> {
        EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map(|fd| Self(Arc::new(fd)))
            .map_err(|errno| EngineError::System { what: "creating an eventfd", errno })
    }

    /// The only failure there is, a counter at its end, leaves the descriptor readable, which is
    /// all that is wanted.
    pub(crate) fn wake(&self) {
        let _ = self.0.write(1);
    }

    /// Take back all wake-ups so far.
    pub(crate) fn clear(&self) {
        let _ = self.0.read();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ends [`crate::Engine::run`] from another thread. Clones end the same engine.
///
/// [`Stop::stop`] only stores a flag and writes to an eventfd, so that a signal handler may call it
/// too.
#[derive(Clone, Debug)]
pub struct Stop {
    stopped: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    /// A handle that nobody has used yet.
    ///
    /// # Errors
    /// [`EngineError::System`] when the process has no descriptor left.
    pub fn new() -> Result<Self, EngineError> {
        Ok(Self { stopped: Arc::new(AtomicBool::new(false)), waker: Waker::new()? })
    }

    /// End the engine within a turn. Calling it again, or before the engine runs, does no harm.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether [`Stop::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }
}
