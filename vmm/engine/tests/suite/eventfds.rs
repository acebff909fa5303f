//! Clients that make their eventfds blocking again, and keep them full.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::common::{
    raw::{Raw, access, request, version, words},
    *,
};
use nicforge_vfio_user::{Client, Errno, PCI_MSIX_IRQ, wire::Command};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};

const DATA_NONE: u32 = 1;
const DATA_EVENTFD: u32 = 4;
const ACTION_TRIGGER: u32 = 32;
/// The largest value of a counter.
const FULL: u64 = u64::MAX - 1;

both_loops! {
    fn replacing_an_eventfd_that_blocks_does_not_stop_the_eviction(config) {
        config.messages = 512;
        config.client_turn = LONG;
        let served = Served::start(config);
        let (mut raw, other) = (Raw::negotiated(&served.path(A)), served.client(B));
        let (first, second) = (eventfd(), eventfd());

        raw.send_fds(&bind_request(), &[first.as_fd()]);
        assert_eq!(raw.reply().0.reply_error(), None);
        for fd in [&first, &second] {
            make_blocking(fd);
            fd.write(FULL).unwrap();
        }
        // All requests are served in one turn: the first eventfd is given up long before the turn
        // ends.
        let rest = request(Command::RegionRead, &access(0, 1, 1 << 12, &[])).repeat(400);
        raw.send_fds(&[trigger_request(), bind_request()].concat(), &[second.as_fd()]);
        raw.send(&rest);
        let snapshot = served.wait_until_free(A);

        assert_eq!(server_of(&snapshot, A).evicted, 1);
        assert_eq!(read32(&other, reg::SCRATCH), 0);
    }

    fn an_eventfd_that_is_filled_repeatedly_does_not_block_the_engine(config) {
        let served = Served::start(config);
        let (mut raw, other) = (Raw::negotiated(&served.path(A)), served.client(B));
        let fd = eventfd();

        raw.send_fds(&bind_request(), &[fd.as_fd()]);
        assert_eq!(raw.reply().0.reply_error(), None);
        make_blocking(&fd);
        let fillers = CounterFillers::start(fd.as_fd());
        raw.send(&trigger_request());
        let snapshot = served.wait_until_free(A);

        drop(fillers);
        assert_eq!(server_of(&snapshot, A).evicted, 1);
        assert_eq!(read32(&other, reg::SCRATCH), 0);
    }
}

both_loops! {
    fn an_attachment_rests_after_a_client_that_held_the_engine(config) {
        let served = Served::start(config);
        let (mut raw, other) = (Raw::negotiated(&served.path(A)), served.client(B));
        let fd = eventfd();

        raw.send_fds(&bind_request(), &[fd.as_fd()]);
        assert_eq!(raw.reply().0.reply_error(), None);
        make_blocking(&fd);
        fd.write(FULL).unwrap();
        raw.send(&trigger_request());
        served.wait_until_free(A);
        let mut next = Raw::connect(&served.path(A));
        next.send(&version(0, 0, b"{}\0"));
        assert_eq!(next.reply().0.reply_error(), Some(Errno::EAGAIN));
        assert_eq!(read32(&other, reg::SCRATCH), 0);
        // The back-off ends: a client that tries again gets the attachment.
        let deadline = Instant::now() + LONG;
        while Client::connect(served.path(A), LONG).is_err() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}

/// Returns the request that binds vector 0 to the eventfd that comes with it.
fn bind_request() -> Vec<u8> {
    request(Command::DeviceSetIrqs, &words(&[20, DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 1]))
}

/// Returns the request that triggers vector 0.
fn trigger_request() -> Vec<u8> {
    request(Command::DeviceSetIrqs, &words(&[20, DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 1]))
}

fn make_blocking(fd: &EventFd) {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// Returns whether a write to an eventfd would block.
fn is_full(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 0
}

/// Number of threads of [`CounterFillers`].
const FILLERS: usize = 200;

/// Many threads that fill a counter as soon as it is emptied.
struct CounterFillers {
    fd: File,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl CounterFillers {
    /// Starts threads that fill the eventfd's counter, and waits until it is full.
    fn start(fd: BorrowedFd<'_>) -> Self {
        let copy = || File::from(fd.try_clone_to_owned().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let fill = |_| {
            let (mut fd, stop) = (copy(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let _ = fd.write(&FULL.to_ne_bytes());
                }
            })
        };
        let threads = (0..FILLERS).map(fill).collect();
        let deadline = Instant::now() + LONG;

        while !is_full(fd) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        Self { fd: copy(), stop, threads }
    }
}

impl Drop for CounterFillers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        fcntl(&self.fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        while !self.threads.iter().all(|thread| thread.is_finished()) {
            let _ = self.fd.read(&mut [0; 8]);
            std::thread::yield_now();
        }
    }
}
