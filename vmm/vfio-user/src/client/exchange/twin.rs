//! The second socket, which a thread of its own serves.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFlags, PollTimeout};
use nix::sys::socket::{Shutdown, shutdown};

use super::{Exchange, poll_one};
use crate::client::Deadline;

/// State of the second socket's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TwinPhase {
    /// It waits for requests, and has served all that it took off the socket.
    #[default]
    Waiting,
    /// It may have taken a request off the socket that it has not served.
    Serving,
    /// It has ended, and the socket is no longer used.
    Ended,
}

/// State of the second socket that the threads share.
#[derive(Debug, Default)]
pub(super) struct TwinState {
    pub(super) phase: TwinPhase,
    /// Requests served since [`Exchange::poll_incoming`] last reported them.
    pub(super) unreported: u64,
}

impl Exchange {
    /// Returns the second socket, if there is one.
    pub(in crate::client) fn twin(&self) -> Option<BorrowedFd<'_>> {
        self.twin.get().map(AsFd::as_fd)
    }

    /// Stores the second socket, once.
    pub(in crate::client) fn begin_twin(&self, socket: OwnedFd) {
        let _ = self.twin.set(socket);
    }

    /// Ends the second socket in both directions, which ends the thread that serves it.
    pub(in crate::client) fn shut_twin(&self) {
        if let Some(twin) = self.twin() {
            let _ = shutdown(twin.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Records that no thread serves the second socket any more.
    pub(in crate::client) fn end_twin(&self) {
        let mut state = self.lock();
        state.twin.phase = TwinPhase::Ended;
        self.changed.notify_all();
    }

    /// Waits until the server sends something on the second socket, or closes it. The caller must
    /// have served all requests that it took off the socket before.
    pub(in crate::client) fn wait_twin_readable(&self, socket: BorrowedFd<'_>) {
        self.set_twin_phase(TwinPhase::Waiting);
        poll_one(socket, PollFlags::POLLIN, PollTimeout::NONE);
        self.set_twin_phase(TwinPhase::Serving);
    }

    /// Waits until the second socket takes more, or has ended.
    pub(in crate::client) fn wait_twin_writable(&self, socket: BorrowedFd<'_>) {
        poll_one(socket, PollFlags::POLLOUT, PollTimeout::NONE);
    }

    /// Counts a request that the second socket's thread has served.
    pub(in crate::client) fn count_twin(&self) {
        self.lock().twin.unreported += 1;
    }

    fn set_twin_phase(&self, phase: TwinPhase) {
        let mut state = self.lock();
        state.twin.phase = phase;
        if phase == TwinPhase::Waiting && state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until the requests were served that the server has sent on the second socket so far,
    /// or until the deadline.
    pub(super) fn settle(&self, twin: BorrowedFd<'_>, deadline: Deadline) {
        let mut state = self.lock();
        loop {
            let has_input = poll_one(twin, PollFlags::POLLIN, PollTimeout::ZERO);
            let is_served = state.twin.phase == TwinPhase::Waiting && !has_input;
            if is_served || state.twin.phase == TwinPhase::Ended || deadline.is_over() {
                return;
            }
            state = self.nap(state, deadline);
        }
    }
}
