//! Learning that descriptors are ready.
//!
//! Two implementations, chosen at start. Both are *edge-triggered*: readiness is reported when a descriptor is watched and
//! whenever it changes, and not again until it changes. Who gets a report uses the descriptor until it would block, or
//! remembers that it did not.

mod epoll;
mod uring;

use std::{io, os::fd::BorrowedFd, time::Duration};

pub(crate) use self::{epoll::Epoll, uring::Uring};
use crate::{config::EventLoopKind, error::EngineError};

/// What a descriptor is watched for. A hang-up is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self { read: true, write: false };
}

/// A descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// What it was watched as.
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer is gone, or the descriptor is broken.
    pub(crate) hangup: bool,
}

/// Watches descriptors. Each has a token of its own.
pub(crate) trait EventLoop: Send {
    fn name(&self) -> &'static str;

    /// Report `fd` as `token` from now on. Whoever closes it calls [`EventLoop::unwatch`] first.
    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()>;

    /// Change what `fd` is watched for; reports it again if it is ready.
    fn rewatch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()>;

    fn unwatch(&mut self, fd: BorrowedFd<'_>, token: u64);

    /// Collect what is ready now.
    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()>;

    /// Whether [`EventLoop::poll`] costs no system call when nothing is ready.
    fn poll_is_cheap(&self) -> bool;

    /// Sleep until something is ready or the time is over (`None`: for good).
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;
}

/// The event loop asked for, or the best there is.
pub(crate) fn choose(kind: EventLoopKind) -> Result<Box<dyn EventLoop>, EngineError> {
    let epoll = || {
        Epoll::new()
            .map(|epoll| Box::new(epoll) as Box<dyn EventLoop>)
            .map_err(|reason| EngineError::Wait { event_loop: "epoll", reason })
    };
    match kind {
        EventLoopKind::Epoll => epoll(),
        EventLoopKind::IoUring => match Uring::new() {
            Ok(uring) => Ok(Box::new(uring)),
            Err(reason) => Err(EngineError::IoUring { reason }),
        },
        EventLoopKind::Auto => match Uring::new() {
            Ok(uring) => Ok(Box::new(uring)),
            Err(reason) => {
                tracing::info!(%reason, "io_uring does not work here, using epoll");
                epoll()
            }
        },
    }
}
