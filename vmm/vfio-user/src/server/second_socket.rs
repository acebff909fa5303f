//! The second socket, on which DMA requests go out and their replies come in.
//!
//! It exists when the client proposed it. The kernel does not order messages between two sockets,
//! so the server does it where it must. No request is taken while DMA requests wait in the queue of
//! the second socket. The answer to a `DMA_UNMAP` waits for the replies to the DMA requests that
//! touch its range.
//!
//! When the client closes this socket, the operations in flight fail, and so does each new one. The
//! connection continues. A malformed stream ends the connection, as on the first socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::deferred::ReplyKind;
use super::dispatcher::Dispatcher;
use super::error::ConnectionError;
use super::handler::Handler;
use super::turn::Turn;
use crate::Errno;
use crate::socket::{Closer, FrameError, Framed, PendingFds, ReadOutcome, SendHalf};
use crate::wire::{Header, MessageType};

/// The server's end of the second socket.
#[derive(Debug)]
pub(super) struct SecondSocket {
    framed: Framed,
    /// Whether the end of the socket was noticed and the operations in flight have failed.
    ended: bool,
    /// Whether the event loop has reported input that was not read to its end yet.
    is_readable: bool,
}

impl SecondSocket {
    /// Makes the pair of sockets; the second value is the client's end. Messages have at most
    /// `limit` bytes. `closer` closes descriptors that come on it.
    pub(super) fn pair(limit: usize, closer: Option<Arc<dyn Closer>>) -> nix::Result<(Self, OwnedFd)> {
        let (local_end, remote_end) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        // A reply to a DMA request brings no descriptors, so none is kept.
        let mut framed = Framed::new(local_end, limit, 0);
        framed.rx.set_pending_limit(PendingFds::NONE);
        if let Some(closer) = closer {
            framed.set_closer(closer);
        }
        Ok((Self { framed, ended: false, is_readable: false }, remote_end))
    }

    /// Returns the longest time that one system call on this socket has taken since the last call
    /// of this function.
    pub(super) fn take_longest_call(&mut self) -> Duration {
        self.framed.take_longest_call()
    }

    /// Returns the socket, whose close can block.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.framed.fd
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.framed.as_fd()
    }

    /// Whether DMA requests can still be sent.
    pub(super) fn is_usable(&self) -> bool {
        !self.ended && !self.framed.tx.has_ended()
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        if self.is_usable() { self.framed.queued() } else { 0 }
    }

    /// Whether a reply can be taken without reading the socket.
    pub(super) fn has_message(&self) -> bool {
        !self.ended && self.framed.rx.has_message()
    }

    pub(super) fn note_readable(&mut self) {
        self.is_readable = true;
    }

    /// Sends the queue, as far as the socket takes it and while `may_send` returns true. Returns
    /// whether messages are left because it returned false.
    pub(super) fn flush_while(&mut self, may_send: impl FnMut() -> bool) -> Result<bool, FrameError> {
        self.framed.split().1.flush_while(may_send)
    }
}

/// Returns the sending half of the socket for DMA requests: the second socket if there is one, else
/// the first.
pub(super) fn dma_send_half<'a>(
    first_socket: &'a mut Framed,
    second_socket: &'a mut Option<SecondSocket>,
) -> SendHalf<'a> {
    match second_socket {
        Some(second_socket) => second_socket.framed.split().1,
        None => first_socket.split().1,
    }
}

impl Dispatcher {
    /// Serves the messages on the second socket, within the turn. It is read while replies are
    /// outstanding, and when the event loop has reported input. Returns whether there may be more
    /// input, because the turn has ended first.
    pub(super) fn serve_second_socket(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<bool, ConnectionError> {
        let mut drained = false;
        while turn.may_continue() {
            let awaits_replies = self.dma.outstanding() > 0;
            let Some(second_socket) =
                self.second_socket.as_mut().filter(|second_socket| !second_socket.ended)
            else {
                return Ok(false);
            };
            if !second_socket.is_usable() {
                self.end_second_socket(handler);
                return Ok(false);
            }

            let (rx, mut out) = second_socket.framed.split();
            if let Some(message) = rx.next_message()? {
                turn.count_step();
                self.counters.messages += 1;
                let header = message.header;
                if header.message_type() == MessageType::Command {
                    self.counters.failed += 1;
                    refuse(&mut out, &header, self.config.max_queued)?;
                } else if !self.dma.on_reply(&mut out, self.dma_limits, &header, message.payload, handler)? {
                    self.counters.unmatched_replies += 1;
                }
                continue;
            }

            if drained || !(second_socket.is_readable || awaits_replies) {
                second_socket.is_readable = false;
                return Ok(false);
            }
            turn.count_step();
            match second_socket.framed.fill()? {
                ReadOutcome::Data { drained: is_empty } => drained = is_empty,
                ReadOutcome::WouldBlock | ReadOutcome::Full => drained = true,
                ReadOutcome::End => self.end_second_socket(handler),
            }
        }
        Ok(true)
    }

    /// Records that the second socket has ended, and fails the DMA operations in flight.
    fn end_second_socket(&mut self, handler: &mut dyn Handler) {
        if let Some(second_socket) = &mut self.second_socket {
            second_socket.ended = true;
        }
        self.dma.fail_all(Errno::ENOTCONN, handler);
    }

    /// Returns whether a `DMA_UNMAP` that waits for DMA requests can be answered now: no request in
    /// flight touches its range any more.
    pub(super) fn can_answer_unmap(&self) -> bool {
        self.deferred.as_ref().is_some_and(|deferred| match &deferred.kind {
            ReplyKind::UnmapAfterDma { unmap, .. } => deferred.result.is_none() && !self.dma.touches(unmap),
            _ => false,
        })
    }

    /// Completes a `DMA_UNMAP` that has waited for DMA requests, if it can be answered now.
    pub(super) fn complete_waiting_unmap(&mut self) {
        if self.can_answer_unmap()
            && let Some(deferred) = &mut self.deferred
        {
            deferred.result = Some(Ok(()));
        }
    }
}

/// Refuses a command on the second socket, on which only the server sends commands. A client that
/// does not read the answers gets no more.
fn refuse(out: &mut SendHalf<'_>, header: &Header, max_queued: usize) -> Result<(), FrameError> {
    if header.no_reply() || out.queued() >= max_queued {
        return Ok(());
    }
    let reply = Header::error_reply(header.id, header.command, Errno::EINVAL);
    out.send(&reply.to_bytes(), &[], &[])
}
