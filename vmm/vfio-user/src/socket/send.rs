//! The sending half: straight to the socket, or to a queue when it is full.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::timing::CallTimes;
use super::{FrameError, sys};

/// A message, or the rest of one, that waits for the socket.
#[derive(Debug)]
struct QueuedMessage {
    bytes: Vec<u8>,
    /// Number of the bytes that were sent.
    sent: usize,
    /// Descriptors that go with the first byte.
    fds: Vec<OwnedFd>,
}

/// The send queue. Each message is sent by a system call of its own, because QEMU takes a header
/// that is cut in two for an error. The kernel never cuts a message within its first bytes if they
/// are also the first of a `sendmsg`.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    queue: VecDeque<QueuedMessage>,
    /// Unsent bytes of the queue.
    queued: usize,
    /// Unsent descriptors of the queue.
    queued_fds: usize,
    /// Whether the peer has closed its end.
    ended: bool,
    pub(super) times: CallTimes,
}

impl Sender {
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn queued_fds(&self) -> usize {
        self.queued_fds
    }

    /// Whether [`SendHalf`] has found that the peer does not read any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sends a message of two parts, or queues what the socket does not take.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrameError> {
        let total = head.len() + body.len();
        let sent = if self.queue.is_empty() {
            self.times.measure(|| try_send(socket, head, body, fds))?
        } else {
            0
        };
        if sent == total {
            return Ok(());
        }

        // Descriptors went out with the first byte, if any byte did.
        let mut unsent_fds = Vec::new();
        if sent == 0 {
            for fd in fds {
                unsent_fds.push(fd.try_clone_to_owned()?);
            }
        }

        let mut bytes = Vec::with_capacity(total - sent);
        bytes.extend_from_slice(head.get(sent..).unwrap_or_default());
        bytes.extend_from_slice(&body[sent.saturating_sub(head.len())..]);

        self.queued += bytes.len();
        self.queued_fds += unsent_fds.len();
        self.queue.push_back(QueuedMessage { bytes, sent: 0, fds: unsent_fds });
        Ok(())
    }

    /// Sends the queue, as far as the socket takes it.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), FrameError> {
        self.flush_while(socket, || true).map(drop)
    }

    /// As [`Self::flush`], with one system call for each message, while `may_send` returns true.
    /// Returns whether messages are left because it returned false.
    pub(crate) fn flush_while(
        &mut self,
        socket: BorrowedFd<'_>,
        mut may_send: impl FnMut() -> bool,
    ) -> Result<bool, FrameError> {
        while let Some(first) = self.queue.front_mut() {
            if !may_send() {
                return Ok(true);
            }

            let fds: Vec<_> = first.fds.iter().map(AsFd::as_fd).collect();
            let sent = self.times.measure(|| try_send(socket, &first.bytes[first.sent..], &[], &fds))?;
            if sent == 0 {
                return Ok(false);
            }

            self.queued_fds -= first.fds.len();
            first.fds.clear();
            first.sent += sent;
            self.queued -= sent;

            if first.sent == first.bytes.len() {
                self.queue.pop_front();
            }
        }
        Ok(false)
    }
}

/// Sends as much as the socket takes now, and returns the number of bytes; zero when it takes none.
fn try_send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, FrameError> {
    match sys::send(socket, head, body, fds) {
        Ok(sent) => Ok(sent),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                Err(FrameError::Closed)
            }
            _ => Err(error.into()),
        },
    }
}

/// The sending half of a stream, apart from the receiving one, so that a reply goes out while its
/// request is still borrowed. A peer that has closed its end causes no error here, because the
/// bytes that it sent before are still to be read. Replies to them are dropped.
pub(crate) struct SendHalf<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) tx: &'a mut Sender,
}

impl SendHalf<'_> {
    /// Sends a message, or queues what the socket does not take. It does nothing after the stream
    /// has ended.
    pub(crate) fn send(
        &mut self,
        head: &[u8],
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrameError> {
        if self.tx.ended {
            return Ok(());
        }
        let sent = self.tx.send(self.socket, head, body, fds);
        self.ignore_closed(sent)
    }

    /// Sends the queue as [`Sender::flush_while`] does.
    pub(crate) fn flush_while(&mut self, may_send: impl FnMut() -> bool) -> Result<bool, FrameError> {
        let mut has_more = false;
        let flushed = self.tx.flush_while(self.socket, may_send).map(|is_left| has_more = is_left);
        self.ignore_closed(flushed)?;
        Ok(has_more)
    }

    pub(crate) fn queued(&self) -> usize {
        self.tx.queued()
    }

    /// Returns the result of a send. If the peer has closed its end, the queue is dropped and the
    /// result is no error.
    fn ignore_closed(&mut self, sent: Result<(), FrameError>) -> Result<(), FrameError> {
        match sent {
            Err(FrameError::Closed) => {
                *self.tx = Sender { ended: true, times: self.tx.times, ..Sender::default() };
                Ok(())
            }
            other => other,
        }
    }
}
