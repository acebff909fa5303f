//! Reports of ready descriptors.
//!
//! Two implementations exist, and one is chosen at start. Both are *edge-triggered*: readiness is
//! reported when a descriptor is watched and whenever it changes, and not again until it changes.
//! The receiver of a report uses the descriptor until it would block, or remembers that it did not.

mod epoll;
mod uring;

use std::{io, os::fd::BorrowedFd, time::Duration};

pub(crate) use self::{epoll::Epoll, uring::Uring};
use crate::{config::EventLoopKind, error::EngineError};

/// Events that a descriptor is watched for. A hang-up is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self { read: true, write: false };
}

/// Report of a ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Token that it was watched with.
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer is gone, or the descriptor is broken.
    pub(crate) hangup: bool,
}

/// Watches descriptors, each with a token of its own.
pub(crate) trait EventLoop: Send {
    /// Returns the name for reports.
    fn name(&self) -> &'static str;

    /// Reports `fd` as `token` from now on. The caller must call [`EventLoop::unwatch`] before it
    /// closes the descriptor.
    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()>;

    /// Changes the events that `fd` is watched for, and reports it again if it is ready.
    fn rewatch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()>;

    /// Ends the watch of `fd`, which was watched as `token`.
    fn unwatch(&mut self, fd: BorrowedFd<'_>, token: u64);

    /// Collects the reports that are there now, without waiting.
    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()>;

    /// Whether [`EventLoop::poll`] costs no system call when nothing is ready.
    fn poll_is_cheap(&self) -> bool;

    /// Returns the shortest time that is worth a sleep. A shorter sleep would not end in time, or
    /// would save less than its system calls cost.
    fn shortest_sleep(&self) -> Duration;

    /// Sleeps until a descriptor is ready or the time is over (`None`: without limit).
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;
}

/// Makes the requested event loop, or the best available one.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    const TOKEN: u64 = 7;
    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn available_loops() -> Vec<Box<dyn EventLoop>> {
        let kinds = [EventLoopKind::Epoll, EventLoopKind::IoUring];
        kinds.into_iter().filter_map(|kind| choose(kind).ok()).collect()
    }

    /// Waits until an event satisfies `wanted`. One call of `wait` may return a part of the events.
    fn wait_for_event(events: &mut dyn EventLoop, wanted: impl Fn(&Event) -> bool) {
        let mut found = Vec::new();
        for _ in 0..16 {
            events.wait(LONG, &mut found).unwrap();
            if found.iter().any(&wanted) {
                return;
            }
        }
        panic!("not reported: {found:?}");
    }

    fn assert_no_event(events: &mut dyn EventLoop) {
        let mut found = Vec::new();
        events.poll(&mut found).unwrap();
        assert_eq!(found, []);
    }

    #[test]
    fn readiness_is_reported_when_it_changes_and_not_again() {
        for mut events in available_loops() {
            let (mut local_end, mut remote_end) = UnixStream::pair().unwrap();
            events.watch(local_end.as_fd(), TOKEN, Interest::READ).unwrap();
            assert_no_event(&mut *events);
            remote_end.write_all(&[1]).unwrap();
            wait_for_event(&mut *events, |event| event.token == TOKEN && event.readable && !event.hangup);
            assert_no_event(&mut *events);
            local_end.read_exact(&mut [0]).unwrap();
            remote_end.write_all(&[2]).unwrap();
            wait_for_event(&mut *events, |event| event.readable);
            events.unwatch(local_end.as_fd(), TOKEN);
        }
    }

    #[test]
    fn rewatching_reports_a_descriptor_that_was_ready_before() {
        for mut events in available_loops() {
            let (local_end, mut remote_end) = UnixStream::pair().unwrap();
            events.watch(local_end.as_fd(), TOKEN, Interest::READ).unwrap();
            remote_end.write_all(&[1]).unwrap();
            wait_for_event(&mut *events, |event| event.readable);
            events.rewatch(local_end.as_fd(), TOKEN, Interest { read: true, write: true }).unwrap();
            wait_for_event(&mut *events, |event| event.token == TOKEN && event.readable && event.writable);
        }
    }

    #[test]
    fn a_hang_up_is_reported_without_any_interest() {
        for mut events in available_loops() {
            let (local_end, remote_end) = UnixStream::pair().unwrap();
            events.watch(local_end.as_fd(), TOKEN, Interest { read: false, write: false }).unwrap();
            drop(remote_end);
            wait_for_event(&mut *events, |event| event.hangup);
        }
    }

    #[test]
    fn unwatched_descriptors_are_not_reported() {
        for mut events in available_loops() {
            let (local_end, mut remote_end) = UnixStream::pair().unwrap();
            events.watch(local_end.as_fd(), TOKEN, Interest::READ).unwrap();
            remote_end.write_all(&[1]).unwrap();
            events.unwatch(local_end.as_fd(), TOKEN);
            assert_no_event(&mut *events);
            drop(local_end);
            // The event loop holds nothing open.
            assert_eq!(remote_end.read(&mut [0]).unwrap_or(0), 0);
        }
    }
}
