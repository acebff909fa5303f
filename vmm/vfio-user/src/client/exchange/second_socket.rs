//! The second socket, on which the server sends its requests. A thread of its own serves it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFlags, PollTimeout};
use nix::sys::socket::{Shutdown, shutdown};

use super::{Exchange, poll_one};
use crate::client::Deadline;

/// State of the second socket's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SecondSocketPhase {
    /// The thread waits for requests, and has served all that it took off the socket.
    #[default]
    Waiting,
    /// The thread may have taken a request off the socket that it has not served.
    Serving,
    /// The thread has ended, and the socket is no longer used.
    Ended,
}

/// State of the second socket that the threads share.
#[derive(Debug, Default)]
pub(super) struct SecondSocketState {
    pub(super) phase: SecondSocketPhase,
    /// Number of requests served since [`Exchange::poll_incoming`] last reported them.
    pub(super) unreported: u64,
}

impl Exchange {
    /// Returns the second socket, if there is one.
    pub(in crate::client) fn second_socket(&self) -> Option<BorrowedFd<'_>> {
        self.second_socket.get().map(AsFd::as_fd)
    }

    /// Stores the second socket. A second call changes nothing.
    pub(in crate::client) fn set_second_socket(&self, socket: OwnedFd) {
        let _ = self.second_socket.set(socket);
    }

    /// Ends the second socket in both directions, which ends the thread that serves it.
    pub(in crate::client) fn shut_down_second_socket(&self) {
        if let Some(second_socket) = self.second_socket() {
            let _ = shutdown(second_socket.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Records that no thread serves the second socket any more.
    pub(in crate::client) fn mark_second_socket_ended(&self) {
        let mut state = self.lock();
        state.second_socket.phase = SecondSocketPhase::Ended;
        self.changed.notify_all();
    }

    /// Waits until the server sends something on the second socket, or closes it. The caller must
    /// have served all requests that it took off the socket before.
    pub(in crate::client) fn wait_second_socket_readable(&self, socket: BorrowedFd<'_>) {
        self.set_second_socket_phase(SecondSocketPhase::Waiting);
        poll_one(socket, PollFlags::POLLIN, PollTimeout::NONE);
        self.set_second_socket_phase(SecondSocketPhase::Serving);
    }

    /// Waits until the second socket takes more, or has ended.
    pub(in crate::client) fn wait_second_socket_writable(&self, socket: BorrowedFd<'_>) {
        poll_one(socket, PollFlags::POLLOUT, PollTimeout::NONE);
    }

    /// Counts a request that the second socket's thread has served.
    pub(in crate::client) fn count_second_socket_request(&self) {
        self.lock().second_socket.unreported += 1;
    }

    /// Sets the phase. At the end of [`SecondSocketPhase::Serving`] it wakes the calls that wait in
    /// [`Self::wait_until_served`].
    fn set_second_socket_phase(&self, phase: SecondSocketPhase) {
        let mut state = self.lock();
        state.second_socket.phase = phase;
        if phase == SecondSocketPhase::Waiting && state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until every request that the server has sent on the second socket so far has been
    /// served, or until the deadline.
    pub(super) fn wait_until_served(&self, second_socket: BorrowedFd<'_>, deadline: Deadline) {
        let mut state = self.lock();
        loop {
            let has_input = poll_one(second_socket, PollFlags::POLLIN, PollTimeout::ZERO);
            let is_served = state.second_socket.phase == SecondSocketPhase::Waiting && !has_input;
            if is_served || state.second_socket.phase == SecondSocketPhase::Ended || deadline.is_over() {
                return;
            }
            state = self.wait_for_change(state, deadline);
        }
    }
}
