//! The connection of one client, as its event loop sees it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

use super::config::ServerConfig;
use super::deferred::ReplyKind;
use super::dispatcher::{Dispatcher, Phase};
use super::dma::DmaError;
use super::error::{CompleteError, ConnectionError};
use super::handler::{Handler, Token};
use super::second_socket::{SecondSocket, dma_send_half};
use super::turn::Turn;
use crate::Errno;
use crate::socket::{Closer, Framed, PendingFds};
use crate::wire::{Capabilities, HEADER_SIZE, MAX_VERSION_JSON, VersionPayload};

/// Number of descriptors in replies that wait for the socket from which on no requests are taken.
const MAX_QUEUED_FDS: usize = 32;

/// State of the connection at the end of a call of [`ServerConnection::on_readable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All received requests are served. The caller should call again when the socket is readable
    /// (level-triggered).
    Idle,
    /// The turn has ended before all received requests were served. The caller should call again
    /// soon.
    More,
    /// The connection waits for a deferred request or for the client to read: see
    /// [`ServerConnection::wants_read`], `wants_write` and `ready`.
    Blocked,
    /// The client has closed the connection between two messages.
    Closed,
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages taken off the stream.
    pub messages: u64,
    /// Requests answered with an error, or that would have been, had they wanted a reply.
    pub failed: u64,
    /// Replies that no request waited for, which were dropped.
    pub unmatched_replies: u64,
}

/// One client's connection.
#[derive(Debug)]
pub struct ServerConnection {
    pub(super) framed: Framed,
    pub(super) dispatcher: Dispatcher,
}

impl ServerConnection {
    /// Takes a socket that a client has connected to.
    pub fn new(socket: OwnedFd, config: ServerConfig) -> Self {
        // Before the negotiation only a `VERSION` is expected.
        let limit = HEADER_SIZE + size_of::<VersionPayload>() + MAX_VERSION_JSON;
        let mut framed = Framed::new(socket, limit, config.max_msg_fds as usize);
        framed.rx.set_pending_limit(PendingFds::NONE);
        Self { framed, dispatcher: Dispatcher::new(config) }
    }

    /// Sets the closer of descriptors that the client passes. Without one they are
    /// closed where they are dropped, which may block for as long as the client likes.
    pub fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.dispatcher.closer = Some(closer.clone());
        self.framed.set_closer(closer);
    }

    /// Returns the longest time that one system call for this client has taken since the last call
    /// of this function.
    pub fn take_longest_call(&mut self) -> Duration {
        let second_socket =
            self.dispatcher.second_socket.as_mut().map(SecondSocket::take_longest_call).unwrap_or_default();
        self.framed.take_longest_call().max(second_socket)
    }

    /// Ends the connection and returns its socket. Closing that can block: descriptors that the
    /// client has passed and that were never received are closed with it.
    ///
    /// The second socket can block too, and goes to the closer.
    pub fn into_socket(mut self) -> OwnedFd {
        if let (Some(second_socket), Some(closer)) =
            (self.dispatcher.second_socket.take(), &self.dispatcher.closer)
        {
            closer.close(second_socket.into_socket());
        }
        self.framed.fd
    }

    /// Reads from the socket and serves the received requests, within the budget. It may be called
    /// at any time, and must be called when [`Self::ready`] returns true.
    ///
    /// # Errors
    /// [`ConnectionError`] when the connection has ended.
    pub fn on_readable(&mut self, handler: &mut dyn Handler) -> Result<Progress, ConnectionError> {
        if self.dispatcher.phase == Phase::Ended {
            return Err(ConnectionError::Ended);
        }
        let result = self.serve_both_sockets(handler);
        if matches!(result, Err(_) | Ok(Progress::Closed)) {
            self.dispatcher.phase = Phase::Ended;
        }
        result
    }

    /// Sends the queues of both sockets, as far as the sockets take them and within
    /// [`ServerConfig::budget`] messages and [`ServerConfig::turn`]. Returns whether the call must
    /// be repeated soon, because it stopped for that limit. The caller should check
    /// [`Self::ready`] afterwards.
    ///
    /// # Errors
    /// [`ConnectionError`] when the connection has ended.
    pub fn on_writable(&mut self) -> Result<bool, ConnectionError> {
        if self.dispatcher.phase == Phase::Ended {
            return Err(ConnectionError::Ended);
        }

        let mut turn = Turn::new(&self.dispatcher.config);
        let mut may_send = || {
            let may_continue = turn.may_continue();
            turn.count_step();
            may_continue
        };
        let second_has_more = self
            .dispatcher
            .second_socket
            .as_mut()
            .map_or(Ok(false), |second_socket| second_socket.flush_while(&mut may_send));
        let (_, mut out) = self.framed.split();
        let has_more = second_has_more
            .and_then(|second_has_more| Ok(out.flush_while(&mut may_send)? || second_has_more));
        has_more.map_err(|error| {
            self.dispatcher.phase = Phase::Ended;
            error.into()
        })
    }

    /// Whether the event loop should call [`Self::on_readable`] when the socket is readable. After
    /// a hang-up, which is reported in any case, it should always call it.
    pub fn wants_read(&self) -> bool {
        match (&self.dispatcher.deferred, self.dispatcher.phase) {
            (_, Phase::Ended) => false,
            (Some(_), _) => self.framed.rx.has_room(),
            (None, _) => !self.has_full_queue(),
        }
    }

    /// Whether the event loop should call [`Self::on_writable`] when the socket is writable.
    pub fn wants_write(&self) -> bool {
        self.dispatcher.phase != Phase::Ended && self.framed.queued() > 0
    }

    /// Returns the second socket, on which DMA requests go out and their replies come in; `None`
    /// when the client proposed none.
    ///
    /// The event loop should call [`Self::note_second_socket_readable`] and [`Self::on_readable`]
    /// when it is readable or hangs up, until [`Self::second_socket_has_ended`]. It is closed with
    /// this connection.
    pub fn second_socket(&self) -> Option<BorrowedFd<'_>> {
        self.dispatcher.second_socket.as_ref().map(SecondSocket::socket)
    }

    /// Whether the client has closed the second socket. DMA operations fail from then on, and the
    /// event loop need not watch it.
    pub fn second_socket_has_ended(&self) -> bool {
        self.dispatcher.second_socket.as_ref().is_some_and(|second_socket| !second_socket.is_usable())
    }

    /// Reports that the second socket is readable, or that its peer has closed it. The next call of
    /// [`Self::on_readable`] reads it. While DMA operations are outstanding it is read in any case.
    pub fn note_second_socket_readable(&mut self) {
        if let Some(second_socket) = &mut self.dispatcher.second_socket {
            second_socket.note_readable();
        }
    }

    /// Whether the event loop should call [`Self::on_writable`] when the second socket is writable.
    pub fn second_socket_wants_write(&self) -> bool {
        self.dispatcher.phase != Phase::Ended && self.second_socket_queued() > 0
    }

    fn second_socket_queued(&self) -> usize {
        self.dispatcher.second_socket.as_ref().map_or(0, SecondSocket::queued)
    }

    /// Whether [`Self::on_readable`] has work even if the socket is not readable: after a
    /// completion, after [`Progress::More`], and when the client has read enough of a full queue of
    /// replies.
    pub fn ready(&self) -> bool {
        match (&self.dispatcher.deferred, self.dispatcher.phase) {
            (_, Phase::Ended) => false,
            _ if self.dispatcher.second_socket.as_ref().is_some_and(SecondSocket::has_message) => true,
            (Some(deferred), _) => deferred.result.is_some() || self.dispatcher.can_answer_unmap(),
            (None, _) => !self.has_full_queue() && self.framed.rx.has_message(),
        }
    }

    /// Returns the token of the deferred request, if there is one that was not completed.
    pub fn deferred(&self) -> Option<Token> {
        let deferred = self.dispatcher.deferred.as_ref()?;
        deferred.awaits_handler().then_some(deferred.token)
    }

    /// Ends the deferred request that has this token, except for a successful read. The next call
    /// of [`Self::on_readable`] sends the reply.
    ///
    /// # Errors
    /// [`CompleteError`]; the request is unchanged then.
    pub fn complete(&mut self, token: Token, result: Result<(), Errno>) -> Result<(), CompleteError> {
        self.complete_with(token, result.map(|()| &[][..]))
    }

    /// Ends the deferred read that has this token, with all of its bytes or an error; otherwise as
    /// [`Self::complete`].
    ///
    /// # Errors
    /// [`CompleteError`]; the request is unchanged then.
    pub fn complete_read(&mut self, token: Token, result: Result<&[u8], Errno>) -> Result<(), CompleteError> {
        self.complete_with(token, result)
    }

    /// Stores the result of the deferred request that has this token. The next turn of the
    /// connection sends the reply.
    fn complete_with(&mut self, token: Token, result: Result<&[u8], Errno>) -> Result<(), CompleteError> {
        let deferred = self.dispatcher.deferred.as_mut();
        let Some(deferred) = deferred.filter(|deferred| deferred.token == token && deferred.awaits_handler())
        else {
            return Err(CompleteError::NotDeferred { token });
        };
        if let Ok(data) = result {
            let expected = match &deferred.kind {
                ReplyKind::Read(access) => access.count.get() as usize,
                _ => 0,
            };
            if data.len() != expected {
                return Err(CompleteError::Length { expected, got: data.len() });
            }
            deferred.data = data.to_vec();
        }
        deferred.result = Some(result.map(|_| ()));
        Ok(())
    }

    /// Requests `len` bytes of the client's memory, 1 to 16 MiB. [`Handler::dma_read_done`]
    /// receives them.
    ///
    /// # Errors
    /// [`DmaError`]; the operation has not started then.
    pub fn dma_read(&mut self, address: u64, len: usize, token: Token) -> Result<(), DmaError> {
        self.check_running()?;
        let mut out = dma_send_half(&mut self.framed, &mut self.dispatcher.second_socket);
        self.dispatcher.dma.read(&mut out, self.dispatcher.dma_limits, address, len, token)
    }

    /// Requests a write of 1 byte to 16 MiB to the client's memory; [`Handler::dma_write_done`]
    /// follows.
    ///
    /// The client receives the writes in the order of the calls, except for the further messages of
    /// a write that is longer than the client's transfer size: see [`Self::has_unsent_writes`].
    ///
    /// # Errors
    /// [`DmaError`]; the operation has not started then.
    pub fn dma_write(&mut self, address: u64, data: &[u8], token: Token) -> Result<(), DmaError> {
        self.check_running()?;
        let mut out = dma_send_half(&mut self.framed, &mut self.dispatcher.second_socket);
        self.dispatcher.dma.write(&mut out, self.dispatcher.dma_limits, address, data, token)
    }

    /// Whether a write has bytes that no message has carried yet, because the client takes fewer at
    /// a time. A caller that keeps its writes in order starts the next one when this has ended.
    pub fn has_unsent_writes(&self) -> bool {
        self.dispatcher.dma.has_unsent_writes()
    }

    /// Returns the number of operations of [`Self::dma_read`] and [`Self::dma_write`] that have not
    /// ended.
    pub fn dma_outstanding(&self) -> usize {
        self.dispatcher.dma.outstanding()
    }

    /// Ends the operation of [`Self::dma_read`] or [`Self::dma_write`] that has this token, without
    /// a call of the handler, which has given it up. Its slot becomes free, and a late reply is
    /// dropped. Returns false when there is no such operation.
    pub fn forget_dma(&mut self, token: Token) -> bool {
        self.dispatcher.dma.remove(token)
    }

    /// Ends all operations of [`Self::dma_read`] and [`Self::dma_write`] with an error, when the
    /// connection has ended or the device is reset. Late replies are dropped.
    pub fn fail_dma(&mut self, errno: Errno, handler: &mut dyn Handler) {
        self.dispatcher.dma.fail_all(errno, handler);
    }

    /// Returns the capabilities that the client named, once it has sent its version.
    pub fn peer(&self) -> Option<&Capabilities> {
        (self.dispatcher.phase != Phase::AwaitVersion).then_some(&self.dispatcher.client_capabilities)
    }

    /// Returns process, user and group of the client, as they were when it connected.
    ///
    /// # Errors
    /// The error of `SO_PEERCRED`.
    pub fn peer_credentials(&self) -> Result<UnixCredentials, Errno> {
        Ok(getsockopt(&self.framed, sockopt::PeerCredentials)?)
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.dispatcher.counters
    }

    /// Returns an error unless DMA requests can be sent: the client has negotiated, and the sockets
    /// are open.
    fn check_running(&self) -> Result<(), DmaError> {
        let is_second_usable = self.dispatcher.second_socket.as_ref().is_none_or(SecondSocket::is_usable);
        let is_first_usable = self.dispatcher.phase == Phase::Running && !self.framed.tx.has_ended();
        if is_first_usable && is_second_usable { Ok(()) } else { Err(DmaError::NotConnected) }
    }

    /// Returns whether so many messages wait to be sent that no further request may be taken.
    pub(super) fn has_full_queue(&self) -> bool {
        // A reply must not overtake a DMA request that waits for the second socket.
        if self.second_socket_queued() > 0 {
            return true;
        }
        // Descriptors have a limit of their own, because a few small replies can hold many.
        self.framed.queued() >= self.dispatcher.config.max_queued
            || self.framed.queued_fds() >= MAX_QUEUED_FDS
    }
}

impl AsFd for ServerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.framed.as_fd()
    }
}
