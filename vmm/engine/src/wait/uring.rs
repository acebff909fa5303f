//! The event loop on io_uring: multishot polls, reported in a ring that is read without a system
//! call.
//!
//! The ring is set up so that the kernel does not interrupt the engine to deliver a report
//! (`COOP_TASKRUN`). It sets a flag in shared memory instead (`TASKRUN_FLAG`), and the next check
//! that finds the flag collects the report with one call.
//!
//! UNSAFETY: pushing to the submission queue is unsafe, because an entry may point to memory that
//! the kernel uses later. Only polls and their removal are pushed here, and they point to no
//! memory.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

use io_uring::{
    IoUring, cqueue, opcode, squeue,
    types::{Fd, SubmitArgs, Timespec},
};
use nix::{
    libc,
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{Event, EventLoop, Interest};

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
/// User data of a completion whose outcome does not matter.
const IGNORED: u64 = 0;
/// Most calls into the kernel to get one entry into the queue.
const ATTEMPTS: usize = 64;

struct Watch {
    token: u64,
    fd: RawFd,
    interest: Interest,
}

pub(crate) struct Uring {
    ring: IoUring,
    /// By the number of the poll in the kernel. Each poll has its own number, so that a late report
    /// of an old one is recognized.
    watches: HashMap<u64, Watch>,
    current: HashMap<u64, u64>,
    next: u64,
    ended: Vec<u64>,
}

impl Uring {
    /// Makes a ring, and tests that it reports a descriptor twice.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no waits with a time-out",
            ));
        }
        let mut new = Self {
            ring,
            watches: HashMap::new(),
            current: HashMap::new(),
            next: IGNORED + 1,
            ended: Vec::new(),
        };
        new.try_out()?;
        Ok(new)
    }

    fn try_out(&mut self) -> io::Result<()> {
        const TOKEN: u64 = 1;
        let probe = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        self.watch(probe.as_fd(), TOKEN, Interest::READ)?;

        let mut reported = true;
        for _ in 0..2 {
            probe.write(1)?;
            let mut events = Vec::new();
            self.wait(Some(Duration::from_millis(200)), &mut events)?;
            reported &= events.iter().any(|event| event.token == TOKEN && event.readable);
            probe.read()?;
        }

        self.unwatch(probe.as_fd(), TOKEN);
        if reported {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::Unsupported, "multishot polls do not report"))
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            // SAFETY: the callers push a poll or the removal of one, which point to no memory.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "the submission queue stays full"))
    }

    fn submit(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // The call was interrupted, or reports must be collected first. The entries stay queued
            // for the next call.
            Err(error) if transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn arm(&mut self, id: u64, fd: RawFd, interest: Interest) -> io::Result<()> {
        let mut flags = libc::POLLRDHUP as u32;
        if interest.read {
            flags |= libc::POLLIN as u32;
        }
        if interest.write {
            flags |= libc::POLLOUT as u32;
        }

        self.push(&opcode::PollAdd::new(Fd(fd), flags).multi(true).build().user_data(id))?;
        self.submit()
    }

    fn collect(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        for completion in self.ring.completion() {
            let id = completion.user_data();
            let Some(watch) = self.watches.get(&id) else { continue };
            let result = completion.result();
            let flags = if result < 0 { libc::POLLERR as u32 } else { result as u32 };
            let has = |bits: i16| flags & bits as u32 != 0;
            events.push(Event {
                token: watch.token,
                readable: has(libc::POLLIN | libc::POLLRDHUP),
                writable: has(libc::POLLOUT),
                hangup: has(libc::POLLHUP | libc::POLLERR | libc::POLLNVAL),
            });
            if result >= 0 && !cqueue::more(completion.flags()) {
                self.ended.push(id);
            }
        }

        while let Some(id) = self.ended.pop() {
            if let Some(watch) = self.watches.get(&id) {
                let (fd, interest) = (watch.fd, watch.interest);
                self.arm(id, fd, interest)?;
            }
        }
        Ok(())
    }
}

fn transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME))
}

impl EventLoop for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let id = self.next;
        self.next += 1;
        self.watches.insert(id, Watch { token, fd: fd.as_raw_fd(), interest });
        self.current.insert(token, id);
        self.arm(id, fd.as_raw_fd(), interest)
    }

    fn rewatch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.unwatch(fd, token);
        self.watch(fd, token, interest)
    }

    fn unwatch(&mut self, _fd: BorrowedFd<'_>, token: u64) {
        let Some(id) = self.current.remove(&token) else { return };
        self.watches.remove(&id);
        // The poll holds the file open, so it is removed at once. If only the call fails, the entry
        // stays queued for the next call into the kernel.
        let removed =
            self.push(&opcode::PollRemove::new(id).build().user_data(IGNORED)).and_then(|()| self.submit());
        if let Err(error) = removed {
            tracing::warn!(%error, "a poll could not be taken back");
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let submission = self.ring.submission();
        let call = submission.taskrun() || submission.cq_overflow() || !submission.is_empty();
        drop(submission);
        if call {
            // This call also collects the reports that the flags announce.
            self.submit()?;
        }
        self.collect(events)
    }

    fn poll_is_cheap(&self) -> bool {
        true
    }

    fn shortest_sleep(&self) -> Duration {
        Duration::from_micros(50)
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let waited = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match waited {
            Ok(_) => {}
            Err(error) if transient(&error) => {}
            Err(error) => return Err(error),
        }
        self.collect(events)
    }
}
