//! The server side: one client's connection as a state machine that an event loop of any kind
//! drives.
//!
//! The input is a connected socket, and calls when it can be read or written. The output is calls
//! of a [`Handler`], and replies. The connection has no thread, never waits, and trusts no data of
//! the client.
//!
//! **Order.** Requests are served in the order of arrival. While one is deferred
//! ([`Outcome::Deferred`]), the requests behind it wait in the receive buffer. The connection reads
//! on until that buffer is full, so it notices the end of the client and a `DEVICE_RESET` behind
//! the deferred request. On such a reset [`Handler::reset_pending`] is called, and the handler may
//! give the deferred request up. The requests in front of the reset are still served first; for
//! each one that defers again the handler is called again. Replies to DMA requests of this side do
//! not wait either. Messages that lie more than a full buffer behind are not seen before those in
//! front of them.
//!
//! **Bounds.** One call of [`ServerConnection::on_readable`] ends after [`ServerConfig::budget`]
//! steps or [`ServerConfig::turn`], whichever comes first. Looking behind a deferred request counts
//! too. One step may overrun the time, since a client can slow down a system call on its socket.
//! [`ServerConnection::take_longest_call`] returns how long the slowest one was.
//!
//! **Back-pressure.** Replies that the socket does not take are queued. At
//! [`ServerConfig::max_queued`] bytes or 32 descriptors no more requests are taken until the client
//! reads.
//!
//! **The second socket.** A client that proposes a twin socket gets one: see
//! [`ServerConnection::twin`].
//!
//! **Endings.** When the client has closed its end, the requests in front of the end are served,
//! and replies to them are dropped. If one of them is deferred, the connection ends at once. An
//! error from [`ServerConnection::on_readable`] or `on_writable`, and [`Progress::Closed`], end the
//! connection: the caller drops it. Malformed *requests* are answered with an errno and end
//! nothing. Malformed *framing* ends the connection, since the start of the next message is then
//! unknown.

mod dma;
mod handler;
mod irqs;
mod multi;
mod negotiation;
mod session;
mod twin;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

pub use dma::DmaError;
pub use handler::{Handler, Outcome, Token};

use crate::Errno;
use crate::socket::{Closer, Fill, FrameError, Framed, PendingFds};
use crate::wire::{
    Capabilities, Command, DEFAULT_MAX_DATA_XFER_SIZE, DEFAULT_MAX_DMA_MAPS, DEFAULT_PGSIZES, HEADER_SIZE,
    MAX_VERSION_JSON, MessageType, VersionError,
};
use session::{Kind, Session, State};
use twin::{Twin, dma_outlet};

/// Room for a message's fixed structure and for the interrupts of a `DATA_BOOL`, beside its data.
const MESSAGE_OVERHEAD: usize = HEADER_SIZE + 4096;

/// Descriptors of replies that may wait for the socket before no more requests are taken.
const MAX_QUEUED_FDS: usize = 32;

/// Limits of a connection.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Most descriptors in one message; QEMU refuses a server that names more than 16.
    pub max_msg_fds: u32,
    /// Most bytes of data in one message, at least 1; QEMU refuses more than 64 MiB.
    pub max_data_xfer_size: u32,
    /// Page sizes for DMA maps, or'ed together.
    pub pgsizes: u64,
    /// Most DMA maps at a time. The client is told this limit, and the handler enforces it.
    pub max_dma_maps: u32,
    /// Whether `REGION_WRITE_MULTI` is served.
    pub write_multiple: bool,
    /// Steps in one call of [`ServerConnection::on_readable`], at least 1. A step is a message, a
    /// read from the socket, or 64 writes of a `REGION_WRITE_MULTI`.
    pub budget: u32,
    /// Time after which such a call starts no further step.
    pub turn: Duration,
    /// Bytes of replies that may wait for the socket before no more requests are taken.
    pub max_queued: usize,
    /// Most operations of [`ServerConnection::dma_read`] and `dma_write` at a time, below 65536.
    pub max_dma_outstanding: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_msg_fds: 16,
            max_data_xfer_size: DEFAULT_MAX_DATA_XFER_SIZE,
            pgsizes: DEFAULT_PGSIZES,
            max_dma_maps: DEFAULT_MAX_DMA_MAPS,
            write_multiple: true,
            budget: 64,
            turn: Duration::from_millis(1),
            max_queued: 4 << 20,
            max_dma_outstanding: 64,
        }
    }
}

impl ServerConfig {
    fn message_limit(&self, transfer: usize) -> usize {
        transfer.saturating_add(MESSAGE_OVERHEAD)
    }
}

/// State of the connection at the end of a call of [`ServerConnection::on_readable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All received requests are served: call again when the socket is readable (level-triggered).
    Idle,
    /// The budget is used up: call again soon.
    More,
    /// The connection waits for a deferred request or for the client to read: see
    /// [`ServerConnection::wants_read`], `wants_write` and `ready`.
    Blocked,
    /// The client has closed the connection between two messages.
    Closed,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The stream is broken, or its framing is.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The client died in the middle of a message.
    #[error("the client closed the connection {buffered} bytes into a message")]
    Truncated {
        /// Bytes of the message that had come.
        buffered: usize,
    },
    /// The first message must be a version.
    #[error("the client sent {command:?} before VFIO_USER_VERSION")]
    NotNegotiated {
        /// The command of that message.
        command: Command,
    },
    /// The version could not be read.
    #[error("the client's VFIO_USER_VERSION cannot be read: {0}")]
    Version(#[from] VersionError),
    /// The major version is not supported.
    #[error("the client speaks major version {major}, and only 0 is known")]
    Major {
        /// The version it proposed.
        major: u16,
    },
    /// The client takes no data at all.
    #[error("the client says max_data_xfer_size 0, and no transfer fits into that")]
    NoTransfers,
    /// The connection has ended before.
    #[error("the connection has ended")]
    Ended,
}

/// Why a deferred request was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// No request is deferred with this token.
    #[error("no request is deferred with token {token}")]
    NotDeferred {
        /// The token given.
        token: Token,
    },
    /// A read ends with exactly the requested bytes, any other request with none.
    #[error("the request takes {expected} bytes of data and {got} were given")]
    Length {
        /// Bytes that the request takes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
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

/// Steps and time of one call of [`ServerConnection::on_readable`]. The first step is always taken.
struct Turn {
    steps: u32,
    budget: u32,
    until: Instant,
}

impl Turn {
    fn new(config: &ServerConfig) -> Self {
        Self { steps: 0, budget: config.budget, until: Instant::now() + config.turn }
    }

    fn count_step(&mut self) {
        self.steps += 1;
    }

    fn has_time(&self) -> bool {
        self.steps == 0 || (self.steps < self.budget && Instant::now() < self.until)
    }
}

/// One client's connection.
#[derive(Debug)]
pub struct ServerConnection {
    framed: Framed,
    session: Session,
}

impl ServerConnection {
    /// Takes a socket that a client has connected to.
    pub fn new(socket: OwnedFd, config: ServerConfig) -> Self {
        // Before the negotiation only a version is expected.
        let limit = HEADER_SIZE + 4 + MAX_VERSION_JSON;
        let mut framed = Framed::new(socket, limit, config.max_msg_fds as usize);
        framed.rx.set_pending_limit(PendingFds::NONE);
        Self { framed, session: Session::new(config) }
    }

    /// Sets the place where descriptors that the client passes are closed. Without one they are
    /// closed where they are dropped, which may block for as long as the client likes.
    pub fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.session.closer = Some(closer.clone());
        self.framed.set_closer(closer);
    }

    /// Returns the longest time that one system call for this client has taken since the last call
    /// of this function.
    pub fn take_longest_call(&mut self) -> Duration {
        let twin = self.session.twin.as_mut().map(Twin::take_longest_call).unwrap_or_default();
        self.framed.take_longest_call().max(twin)
    }

    /// Ends the connection and returns its socket. Closing that can block: descriptors that the
    /// client has passed and that were never received are closed with it.
    ///
    /// The second socket can block too, and goes to the closer.
    pub fn into_socket(mut self) -> OwnedFd {
        if let (Some(twin), Some(closer)) = (self.session.twin.take(), &self.session.closer) {
            closer.close(twin.into_socket());
        }
        self.framed.fd
    }

    /// Reads from the socket and serves the received requests, within the budget. It may be called
    /// at any time, and must be called when [`Self::ready`] returns true.
    ///
    /// # Errors
    /// [`ConnectionError`] when the connection has ended.
    pub fn on_readable(&mut self, handler: &mut dyn Handler) -> Result<Progress, ConnectionError> {
        if self.session.state == State::Ended {
            return Err(ConnectionError::Ended);
        }
        let result = self.drive_both(handler);
        if matches!(result, Err(_) | Ok(Progress::Closed)) {
            self.session.state = State::Ended;
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
        if self.session.state == State::Ended {
            return Err(ConnectionError::Ended);
        }

        let mut turn = Turn::new(&self.session.config);
        let mut may_go_on = || {
            let has_time = turn.has_time();
            turn.count_step();
            has_time
        };
        let twin = self.session.twin.as_mut().map_or(Ok(false), |twin| twin.flush_while(&mut may_go_on));
        let (_, mut out) = self.framed.split();
        let stopped = twin.and_then(|twin| Ok(out.flush_while(&mut may_go_on)? || twin));
        stopped.map_err(|error| {
            self.session.state = State::Ended;
            error.into()
        })
    }

    /// Whether the event loop should call [`Self::on_readable`] when the socket is readable. After
    /// a hang-up, which is reported in any case, it should always call it.
    pub fn wants_read(&self) -> bool {
        match (&self.session.deferred, self.session.state) {
            (_, State::Ended) => false,
            (Some(_), _) => self.framed.rx.has_room(),
            (None, _) => !self.is_clogged(),
        }
    }

    /// Whether the event loop should call [`Self::on_writable`] when the socket is writable.
    pub fn wants_write(&self) -> bool {
        self.session.state != State::Ended && self.framed.queued() > 0
    }

    /// Returns the second socket, on which DMA requests go out and their replies come in; `None`
    /// when the client proposed none.
    ///
    /// The event loop should call [`Self::note_twin_readable`] and [`Self::on_readable`] when it is
    /// readable or hangs up, until [`Self::twin_has_ended`]. It is closed with this connection.
    pub fn twin(&self) -> Option<BorrowedFd<'_>> {
        self.session.twin.as_ref().map(Twin::socket)
    }

    /// Whether the client has closed the second socket. DMA operations fail from then on, and the
    /// event loop need not watch it.
    pub fn twin_has_ended(&self) -> bool {
        self.session.twin.as_ref().is_some_and(|twin| !twin.is_usable())
    }

    /// Reports that the second socket is readable, or that its peer has closed it. The next call of
    /// [`Self::on_readable`] reads it. While DMA operations are outstanding it is read in any case.
    pub fn note_twin_readable(&mut self) {
        if let Some(twin) = &mut self.session.twin {
            twin.note_readable();
        }
    }

    /// Whether the event loop should call [`Self::on_writable`] when the second socket is writable.
    pub fn twin_wants_write(&self) -> bool {
        self.session.state != State::Ended && self.twin_queued() > 0
    }

    fn twin_queued(&self) -> usize {
        self.session.twin.as_ref().map_or(0, Twin::queued)
    }

    /// Whether [`Self::on_readable`] has work even if the socket is not readable: after a
    /// completion, after [`Progress::More`], and when the client has read enough of a full queue of
    /// replies.
    pub fn ready(&self) -> bool {
        match (&self.session.deferred, self.session.state) {
            (_, State::Ended) => false,
            _ if self.session.twin.as_ref().is_some_and(Twin::has_message) => true,
            (Some(deferred), _) => deferred.result.is_some() || self.session.is_drained(),
            (None, _) => !self.is_clogged() && self.framed.rx.has_message(),
        }
    }

    /// Returns the token of the deferred request, if there is one that was not completed.
    pub fn deferred(&self) -> Option<Token> {
        let deferred = self.session.deferred.as_ref()?;
        deferred.is_the_handlers().then_some(deferred.token)
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

    fn complete_with(&mut self, token: Token, result: Result<&[u8], Errno>) -> Result<(), CompleteError> {
        let waiting = self.session.deferred.as_mut();
        let Some(deferred) = waiting.filter(|it| it.token == token && it.is_the_handlers()) else {
            return Err(CompleteError::NotDeferred { token });
        };
        if let Ok(data) = result {
            let expected = match &deferred.kind {
                Kind::Read(access) => access.count.get() as usize,
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
        let mut out = dma_outlet(&mut self.framed, &mut self.session.twin);
        self.session.dma.read(&mut out, self.session.limits, address, len, token)
    }

    /// Requests a write of 1 byte to 16 MiB to the client's memory; [`Handler::dma_write_done`]
    /// follows.
    ///
    /// # Errors
    /// [`DmaError`]; the operation has not started then.
    pub fn dma_write(&mut self, address: u64, data: &[u8], token: Token) -> Result<(), DmaError> {
        self.check_running()?;
        let mut out = dma_outlet(&mut self.framed, &mut self.session.twin);
        self.session.dma.write(&mut out, self.session.limits, address, data, token)
    }

    /// Returns the number of operations of [`Self::dma_read`] and [`Self::dma_write`] that have not
    /// ended.
    pub fn dma_outstanding(&self) -> usize {
        self.session.dma.outstanding()
    }

    /// Ends the operation of [`Self::dma_read`] or [`Self::dma_write`] that has this token, without
    /// a call of the handler, which has given it up. Its slot becomes free, and a late reply is
    /// dropped. Returns false when there is no such operation.
    pub fn forget_dma(&mut self, token: Token) -> bool {
        self.session.dma.forget(token)
    }

    /// Ends all operations of [`Self::dma_read`] and [`Self::dma_write`] with an error, when the
    /// connection has ended or the device is reset. Late replies are dropped.
    pub fn fail_dma(&mut self, errno: Errno, handler: &mut dyn Handler) {
        self.session.dma.fail_all(errno, handler);
    }

    /// Returns the capabilities that the client named, once it has sent its version.
    pub fn peer(&self) -> Option<&Capabilities> {
        (self.session.state != State::AwaitVersion).then_some(&self.session.peer)
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
        self.session.counters
    }

    fn check_running(&self) -> Result<(), DmaError> {
        let usable = self.session.twin.as_ref().is_none_or(Twin::is_usable);
        let running = self.session.state == State::Running && !self.framed.tx.has_ended() && usable;
        if running { Ok(()) } else { Err(DmaError::NotConnected) }
    }

    fn is_clogged(&self) -> bool {
        // A reply must not overtake a DMA request that waits for the second socket.
        if self.twin_queued() > 0 {
            return true;
        }
        // A small reply may hold a descriptor, of which a process has fewer than bytes.
        self.framed.queued() >= self.session.config.max_queued || self.framed.queued_fds() >= MAX_QUEUED_FDS
    }

    /// Serves the second socket and then the first, both within one turn.
    fn drive_both(&mut self, handler: &mut dyn Handler) -> Result<Progress, ConnectionError> {
        let mut turn = Turn::new(&self.session.config);
        let more = self.session.drive_twin(handler, &mut turn)?;
        self.session.settle_drain();
        match self.drive(handler, &mut turn)? {
            Progress::Idle | Progress::Blocked if more => Ok(Progress::More),
            progress => Ok(progress),
        }
    }

    fn drive(&mut self, handler: &mut dyn Handler, turn: &mut Turn) -> Result<Progress, ConnectionError> {
        let mut drained = false;
        while turn.has_time() {
            turn.count_step();
            if self.session.deferred.is_some() {
                match self.wait_deferred(handler, turn)? {
                    Some(progress) => return Ok(progress),
                    None => continue,
                }
            }
            if self.is_clogged() {
                return Ok(Progress::Blocked);
            }

            let (rx, mut out) = self.framed.split();
            if let Some(message) = rx.next_message()? {
                self.session.dispatch(&mut out, message, handler)?;
                self.apply_negotiation();
                continue;
            }

            if drained {
                return Ok(Progress::Idle);
            }
            match self.framed.fill()? {
                Fill::Data { drained: all } => drained = all,
                Fill::WouldBlock | Fill::Full => return Ok(Progress::Idle),
                Fill::End => return self.end(),
            }
        }
        Ok(Progress::More)
    }

    /// Sets the stream's limits after a VERSION, once no message is borrowed from it.
    fn apply_negotiation(&mut self) {
        if let Some(limit) = self.session.new_limit.take() {
            self.framed.set_limit(limit);
            let fds = PendingFds::for_messages_of(self.session.config.max_msg_fds as usize);
            self.framed.rx.set_pending_limit(fds);
        }
    }

    /// Takes a step while a request is deferred; `None` means that the caller goes on.
    fn wait_deferred(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<Option<Progress>, ConnectionError> {
        let (_, mut out) = self.framed.split();
        if self.session.finish_deferred(&mut out, handler)? {
            return Ok(None);
        }

        self.look_ahead(handler, turn)?;
        if let Some(deferred) = self.session.deferred.as_mut()
            && self.session.resets_ahead > 0
            && !deferred.asked
        {
            deferred.asked = true;
            if let Some(errno) = handler.reset_pending(deferred.token) {
                deferred.result = Some(Err(errno));
                return Ok(None);
            }
        }
        if !turn.has_time() {
            return Ok(Some(Progress::More));
        }

        if !self.framed.rx.has_room() {
            // No byte can be read now, so only a poll tells whether the client has gone.
            let gone = self.has_hung_up();
            return Ok(Some(if gone { Progress::Closed } else { Progress::Blocked }));
        }
        match self.framed.fill()? {
            Fill::Data { .. } => Ok(None),
            Fill::WouldBlock | Fill::Full => Ok(Some(Progress::Blocked)),
            Fill::End => Ok(Some(Progress::Closed)),
        }
    }

    /// Looks at the messages behind the deferred request, within the turn. Resets are counted.
    /// Replies to operations of this side are taken out and served, since the deferred request may
    /// depend on them.
    fn look_ahead(&mut self, handler: &mut dyn Handler, turn: &mut Turn) -> Result<(), ConnectionError> {
        let session = &mut self.session;
        let (rx, mut out) = self.framed.split();
        session.scanned = session.scanned.max(rx.position());
        let mut served = Vec::new();
        let mut result = Ok(());
        while turn.has_time()
            && let Some(header) = rx.header_at(session.scanned)
        {
            turn.count_step();
            let from = session.scanned;
            session.scanned = from + u64::from(header.size);
            if header.message_type() == MessageType::Reply && session.expects(&header) {
                session.counters.messages += 1;
                let payload = rx.payload_at(from, &header).unwrap_or_default();
                result = session.dma.on_reply(&mut out, session.limits, &header, payload, handler).map(drop);
                served.push((from, session.scanned));
                if result.is_err() {
                    break;
                }
            }
            if header.message_type() == MessageType::Command && header.command == Command::DeviceReset {
                session.resets_ahead += 1;
            }
        }

        // The bytes behind move up once in each pass: the buffer may hold a mebibyte.
        rx.remove(&served);
        session.scanned -= served.iter().map(|(from, behind)| behind - from).sum::<u64>();
        result.map_err(ConnectionError::from)
    }

    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self.framed.as_fd(), PollFlags::empty())];
        let _ = poll(&mut fds, PollTimeout::ZERO);
        fds[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    fn end(&self) -> Result<Progress, ConnectionError> {
        match self.framed.rx.buffered() {
            0 => Ok(Progress::Closed),
            buffered => Err(ConnectionError::Truncated { buffered }),
        }
    }
}

impl AsFd for ServerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.framed.as_fd()
    }
}
