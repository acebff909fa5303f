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
    errno::Errno,
    libc,
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{Event, EventLoop, Interest};

/// Entries of the submission queue.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. It is the larger one, because a multishot poll is submitted
/// once and completes at each report.
const COMPLETIONS: u32 = 4096;
/// How long the test of a new ring waits for a report, which comes at once if polls work.
const TEST_WAIT: Duration = Duration::from_millis(200);
/// User data of a completion whose outcome does not matter.
const IGNORED: u64 = 0;
/// Maximum number of calls into the kernel to get one entry into the queue.
const ATTEMPTS: usize = 64;
/// Errors in a row after which a poll is not armed again.
const MAX_ERRORS: u32 = 8;

/// A watched descriptor, which one multishot poll in the kernel reports.
struct Watch {
    token: u64,
    fd: RawFd,
    interest: Interest,
    /// Errors of its poll since the last report.
    errors: u32,
}

impl Watch {
    /// Turns the result of a poll into an event. The kernel may end a poll with an error, for
    /// example for lack of memory, which says nothing about the descriptor. It is then reported as
    /// ready, so that its user checks it, and its poll is armed again. After [`MAX_ERRORS`] it
    /// counts as broken.
    fn event(&mut self, result: i32) -> Event {
        let Ok(flags) = u32::try_from(result) else {
            self.errors += 1;
            let Interest { read, write } = self.interest;
            return Event { token: self.token, readable: read, writable: write, hangup: self.is_broken() };
        };

        self.errors = 0;
        let has = |bits: i16| flags & bits as u32 != 0;
        Event {
            token: self.token,
            readable: has(libc::POLLIN | libc::POLLRDHUP),
            writable: has(libc::POLLOUT),
            hangup: has(libc::POLLHUP | libc::POLLERR | libc::POLLNVAL),
        }
    }

    fn is_broken(&self) -> bool {
        self.errors >= MAX_ERRORS
    }
}

/// The event loop on io_uring, with a multishot poll for each watch.
pub(crate) struct Uring {
    ring: IoUring,
    /// The watches by the number of their poll. The number is the poll's user data in the kernel.
    /// No number is used twice, so that a late report of an old poll is recognized.
    watches: HashMap<u64, Watch>,
    /// Number of the poll of each token.
    poll_of_token: HashMap<u64, u64>,
    /// Number of the next poll.
    next_poll: u64,
    /// Numbers of the polls that have ended and must be armed again.
    ended: Vec<u64>,
}

impl Uring {
    /// Makes a ring, and tests that its polls report.
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
            poll_of_token: HashMap::new(),
            next_poll: IGNORED + 1,
            ended: Vec::new(),
        };
        new.check_multishot()?;
        Ok(new)
    }

    /// Checks that multishot polls report: two events of an eventfd must arrive.
    fn check_multishot(&mut self) -> io::Result<()> {
        const TOKEN: u64 = 1;
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        self.watch(eventfd.as_fd(), TOKEN, Interest::READ)?;

        let mut reported = true;
        for _ in 0..2 {
            eventfd.write(1)?;
            let mut events = Vec::new();
            self.wait(Some(TEST_WAIT), &mut events)?;
            reported &= events.iter().any(|event| event.token == TOKEN && event.readable);
            eventfd.read()?;
        }

        self.unwatch(eventfd.as_fd(), TOKEN);
        if reported {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::Unsupported, "multishot polls do not report"))
        }
    }

    /// Queues an entry for the kernel. It calls into the kernel while the queue is full.
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

    /// Hands the queued entries to the kernel.
    fn submit(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // The call was interrupted, or reports must be collected first. The entries stay queued
            // for the next call.
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts the multishot poll `id` of a descriptor.
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

    /// Appends the completed polls to `events`, and arms again those that have ended.
    fn collect(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        for completion in self.ring.completion() {
            let id = completion.user_data();
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            let result = completion.result();
            events.push(watch.event(result));

            let has_ended = result < 0 || !cqueue::more(completion.flags());
            if watch.is_broken() {
                let errno = Errno::from_raw(-result);
                tracing::error!(%errno, "a descriptor cannot be watched any more: its polls fail");
            } else if has_ended {
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

/// Returns whether a call into the kernel failed for a reason that does not last.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME))
}

impl EventLoop for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let id = self.next_poll;
        self.next_poll += 1;
        self.watches.insert(id, Watch { token, fd: fd.as_raw_fd(), interest, errors: 0 });
        self.poll_of_token.insert(token, id);
        self.arm(id, fd.as_raw_fd(), interest)
    }

    fn rewatch(&mut self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.unwatch(fd, token);
        self.watch(fd, token, interest)
    }

    fn unwatch(&mut self, _fd: BorrowedFd<'_>, token: u64) {
        let Some(id) = self.poll_of_token.remove(&token) else { return };
        self.watches.remove(&id);
        // The poll holds the file open, so it is removed at once. If only the call fails, the entry
        // stays queued for the next call into the kernel.
        let removed =
            self.push(&opcode::PollRemove::new(id).build().user_data(IGNORED)).and_then(|()| self.submit());
        if let Err(error) = removed {
            tracing::warn!(%error, "a poll could not be removed");
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let submission = self.ring.submission();
        let needs_call = submission.taskrun() || submission.cq_overflow() || !submission.is_empty();
        drop(submission);
        if needs_call {
            // In this call the kernel also moves the reports that the two flags announce to the
            // completion queue.
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
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        self.collect(events)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    const TOKEN: u64 = 7;

    /// Collects events until one satisfies `wanted`.
    fn collect_until(uring: &mut Uring, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut found = Vec::new();
        for _ in 0..64 {
            uring.wait(Some(Duration::from_secs(1)), &mut found).unwrap();
            if let Some(event) = found.iter().find(|event| wanted(event)) {
                return *event;
            }
        }
        panic!("not reported: {found:?}");
    }

    #[test]
    fn poll_that_ends_with_an_error_is_armed_again() {
        let Ok(mut uring) = Uring::new() else { return };
        let (local_end, mut remote_end) = UnixStream::pair().unwrap();
        uring.watch(local_end.as_fd(), TOKEN, Interest::READ).unwrap();

        // The poll ends with ECANCELED, although its descriptor is still watched.
        let removal = opcode::PollRemove::new(uring.poll_of_token[&TOKEN]).build().user_data(IGNORED);
        uring.push(&removal).and_then(|()| uring.submit()).unwrap();
        let report = collect_until(&mut uring, |event| event.token == TOKEN);
        assert!(report.readable && !report.hangup, "{report:?}");
        let mut rest = Vec::new();
        uring.poll(&mut rest).unwrap();
        assert_eq!(rest, []);

        remote_end.write_all(&[1]).unwrap();
        collect_until(&mut uring, |event| event.token == TOKEN && event.readable);
    }

    #[test]
    fn descriptor_whose_polls_always_fail_is_reported_as_hung_up_once() {
        let Ok(mut uring) = Uring::new() else { return };
        // No process has a descriptor with this number.
        let fd = RawFd::MAX;
        uring.watches.insert(1000, Watch { token: TOKEN, fd, interest: Interest::READ, errors: 0 });
        uring.arm(1000, fd, Interest::READ).unwrap();

        collect_until(&mut uring, |event| event.token == TOKEN && event.hangup);

        let mut rest = Vec::new();
        uring.poll(&mut rest).unwrap();
        assert_eq!(rest, []);
    }
}
