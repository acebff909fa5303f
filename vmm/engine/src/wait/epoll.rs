//! The event loop on epoll.

use std::{io, os::fd::BorrowedFd, time::Duration};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll as Set, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use super::{Event, EventLoop, Interest};

/// Events that one system call collects.
const BATCH: usize = 64;

/// The event loop on `epoll`, with edge-triggered watches.
pub(crate) struct Epoll {
    set: Set,
    batch: [EpollEvent; BATCH],
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        let set = Set::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { set, batch: [EpollEvent::empty(); BATCH] })
    }

    /// Waits for events, and appends them to `events`.
    fn collect(&mut self, timeout: EpollTimeout, events: &mut Vec<Event>) -> io::Result<()> {
        let count = match self.set.wait(&mut self.batch, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        events.extend(self.batch[..count].iter().map(|event| {
            let flags = event.events();
            Event {
                token: event.data(),
                readable: flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP),
                writable: flags.contains(EpollFlags::EPOLLOUT),
                hangup: flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR),
            }
        }));
        Ok(())
    }
}

/// Returns the flags of an edge-triggered watch.
fn flags(interest: Interest) -> EpollFlags {
    let mut flags = EpollFlags::EPOLLET | EpollFlags::EPOLLRDHUP;
    flags.set(EpollFlags::EPOLLIN, interest.read);
    flags.set(EpollFlags::EPOLLOUT, interest.write);
    flags
}

impl EventLoop for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        Ok(self.set.add(fd, EpollEvent::new(flags(interest), token))?)
    }

    fn rewatch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        Ok(self.set.modify(fd, &mut EpollEvent::new(flags(interest), token))?)
    }

    fn unwatch(&mut self, fd: BorrowedFd<'_>, _token: u64) {
        // This fails only for a descriptor that is not watched, and then there is nothing to
        // remove.
        let _ = self.set.delete(fd);
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.collect(EpollTimeout::ZERO, events)
    }

    fn poll_is_cheap(&self) -> bool {
        false
    }

    fn shortest_sleep(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        // Whole milliseconds, rounded down; the remainder is less than the shortest sleep. A sleep
        // that ends after a minute without an event is begun again by the engine's next round.
        let timeout = timeout.map_or(EpollTimeout::NONE, |timeout| {
            let milliseconds = timeout.as_millis().min(60_000);
            EpollTimeout::try_from(milliseconds as i32).unwrap_or(EpollTimeout::MAX)
        });
        self.collect(timeout, events)
    }
}
