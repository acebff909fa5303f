//! A framed stream over a UNIX `SOCK_STREAM` socket.
//!
//! The input is bytes and descriptors as the kernel delivers them, cut anywhere. The output is
//! whole messages with the descriptors that came with them. The stream never blocks and holds at
//! most one message of the negotiated size. It owns every descriptor as soon as the descriptor is
//! in this process, so none leaks.
//!
//! The kernel ends a `recvmsg` after the part that carried descriptors, and does not report more
//! about the message that they belong to. Peers send one message in each `sendmsg`. So descriptors
//! belong to the last message that starts within the bytes they came with; if none starts there,
//! they belong to the message in progress.
//!
//! System calls are in `sys` and `peer`, which with `descriptor` are the only modules of this crate
//! with `unsafe`.

mod connect;
mod descriptor;
mod peer;
mod receive;
mod send;
mod sys;
mod timing;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

pub use connect::connect_within;
pub use descriptor::{Closer, PeerFd};
pub(crate) use peer::{has_exited, peer_process};
pub use receive::{Message, ReadOutcome};
pub(crate) use receive::{PendingFds, Receiver};
pub(crate) use send::{SendHalf, Sender};

/// Maximum number of descriptors that a stream keeps for messages that were not taken yet, unless
/// its owner sets a lower limit. Descriptors above the limit are closed on arrival.
pub const MAX_PENDING_FDS: usize = 256;

/// Maximum number of descriptors that the kernel passes in one message (`SCM_MAX_FD` of Linux).
pub const MAX_MESSAGE_FDS: usize = sys::SCM_MAX_FD;

/// Why a stream cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A header claims a message shorter than the header, so the start of the next one is unknown.
    #[error("a message claims {size} bytes, less than its 16-byte header")]
    TooShort {
        /// The size it claims.
        size: u32,
    },
    /// A header claims more than the limit.
    #[error("a message claims {size} bytes, more than the limit of {limit}: keep to max_data_xfer_size")]
    TooLong {
        /// The size it claims.
        size: u32,
        /// The limit.
        limit: usize,
    },
    /// A message is neither a request nor a reply.
    #[error("a message has type {kind}, neither request nor reply")]
    Type {
        /// The *Type* bits.
        kind: u8,
    },
    /// The peer has closed its end.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer's process has died, but the kernel has not closed its end yet.
    #[error("the peer's process has died")]
    Died,
    /// A system call failed.
    #[error("the socket failed: {0}")]
    Io(#[from] std::io::Error),
}

/// A non-blocking stream of messages.
#[derive(Debug)]
pub struct Framed {
    pub(crate) fd: OwnedFd,
    pub(crate) rx: Receiver,
    pub(crate) tx: Sender,
}

impl Framed {
    /// Takes a connected stream socket, blocking or not. Messages larger than `limit` bytes end the
    /// stream; the limit is at least 16. A message keeps at most `max_fds` descriptors.
    pub fn new(fd: OwnedFd, limit: usize, max_fds: usize) -> Self {
        // Without this option a read drops a byte that was sent out of band, and the kernel then
        // closes the descriptors that came with it on this thread. Every socket takes the option,
        // so the result does not matter.
        let _ = setsockopt(&fd, sockopt::OobInline, &true);
        Self { fd, rx: Receiver::new(limit, max_fds), tx: Sender::default() }
    }

    /// Sets the closer of descriptors of the peer. Without one they are closed where
    /// they are dropped.
    pub fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.rx.set_closer(closer);
    }

    /// Returns the longest time that one system call for this stream has taken since the last call
    /// of this function.
    pub fn take_longest_call(&mut self) -> Duration {
        self.rx.times.take_longest().max(self.tx.times.take_longest())
    }

    /// Sets the size of the largest message from now on, in bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.rx.set_limit(limit);
    }

    /// Reads once from the socket, without waiting.
    ///
    /// # Errors
    /// [`FrameError::Io`] with the error of the system call.
    pub fn fill(&mut self) -> Result<ReadOutcome, FrameError> {
        self.rx.fill(self.fd.as_fd())
    }

    /// Takes the next whole message out of the received bytes, if there is one.
    ///
    /// # Errors
    /// A [`FrameError`] when the header makes no sense; the stream is then lost.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, FrameError> {
        self.rx.next_message()
    }

    /// Sends a message, made of `head` and `body`, with descriptors. Bytes that the socket does not
    /// take now are copied to a queue, with the descriptors duplicated; [`Self::flush`] sends them
    /// later. The caller should check [`Self::queued`] before it produces more.
    ///
    /// # Errors
    /// [`FrameError::Closed`], or the error of the system call.
    pub fn send(&mut self, head: &[u8], body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        self.tx.send(self.fd.as_fd(), head, body, fds)
    }

    /// Sends the queue, as far as the socket takes it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn flush(&mut self) -> Result<(), FrameError> {
        self.tx.flush(self.fd.as_fd())
    }

    /// Returns both halves, to answer a message that is still borrowed.
    pub(crate) fn split(&mut self) -> (&mut Receiver, SendHalf<'_>) {
        (&mut self.rx, SendHalf { socket: self.fd.as_fd(), tx: &mut self.tx })
    }

    /// Returns the number of bytes that wait for the socket.
    pub fn queued(&self) -> usize {
        self.tx.queued()
    }

    /// Returns the number of descriptors that wait for the socket.
    pub fn queued_fds(&self) -> usize {
        self.tx.queued_fds()
    }
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
