//! Ending and waking of an engine from other threads.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task,
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

    /// Wakes the engine. The write fails only if the eventfd's counter is at its maximum, and then
    /// the descriptor is readable anyway.
    pub(crate) fn wake(&self) {
        let _ = self.0.write(1);
    }

    /// Returns the waker for companions of devices.
    pub(crate) fn for_companions(&self) -> task::Waker {
        Arc::new(CompanionWaker(self.clone())).into()
    }

    /// Clears all wake-ups so far.
    pub(crate) fn clear(&self) {
        let _ = self.0.read();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes the engine for a companion of a device.
struct CompanionWaker(Waker);

impl task::Wake for CompanionWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
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
    /// Makes a handle for one engine.
    ///
    /// # Errors
    /// [`EngineError::System`] when the process has no descriptor left.
    pub fn new() -> Result<Self, EngineError> {
        Ok(Self { stopped: Arc::new(AtomicBool::new(false)), waker: Waker::new()? })
    }

    /// Ends the engine within a round. It may be called repeatedly, and before the engine runs.
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
