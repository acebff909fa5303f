//! The client side: blocking calls, each with a deadline, from any number of threads.
//!
//! The input is the path of a server's socket, and calls. The output is the device's regions,
//! interrupts and answers. While a call waits, requests of the server reach the [`GuestMemory`]
//! passed at connect.
//!
//! One thread at a time reads the socket for all waiting threads. An uncontended call is one
//! `sendmsg` and, when the answer is there, one `recvmsg`. The client keeps the limits that the
//! server names, and assumes the specification's default for the others. Replies are checked before
//! they are used.

mod exchange;
mod incoming;
mod irqs;
mod requests;
mod second_socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

pub use irqs::IrqPayload;

use crate::Errno;
use crate::socket::{FrameError, Framed, connect_within, has_exited, peer_process};
use crate::wire::*;
use exchange::Exchange;
use second_socket::SecondSocket;

/// Memory that the server may access by DMA messages.
///
/// It is called from the thread that reads the socket. Where the server has a second socket for its
/// requests, it is called from a thread of the client's own. It must not call the client.
pub trait GuestMemory: Send + Sync {
    /// Fills `data` from DMA address `address` on.
    ///
    /// # Errors
    /// The error number for the server, `EFAULT` for an address that is not mapped.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Stores `data` from DMA address `address` on.
    ///
    /// # Errors
    /// The error number for the server, `EFAULT` for an address that is not mapped.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno>;
}

/// Knowledge from elsewhere that the server is gone although its socket is still open.
///
/// The kernel keeps the sockets of a killed process open for seconds when one of its io_urings
/// refers to them. A dead process alone proves nothing, because a server may hand its socket to
/// another one; see [`Client::server_process`].
pub trait ServerWatch: Send + Sync {
    /// Whether the server is gone for good. A waiting call asks at least every 100 ms.
    fn is_lost(&self) -> bool;
}

/// A process, identified by a descriptor, so that a reused process id does not matter.
#[derive(Debug)]
pub struct ServerProcess(OwnedFd);

impl ServerProcess {
    /// Whether it has exited; costs one `poll` and does not wait.
    pub fn has_exited(&self) -> bool {
        has_exited(self.0.as_fd())
    }
}

/// Settings of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// Time that a call may take.
    pub timeout: Duration,
    /// Time that the socket is polled before the thread sleeps; zero sleeps at once.
    pub spin: Duration,
    /// Maximum number of descriptors that the server may send in one message.
    pub max_msg_fds: u32,
    /// Maximum number of bytes of data that a message to us may carry, at least 1.
    pub max_data_xfer_size: u32,
    /// Memory that the server may access by DMA messages; without it such requests fail with
    /// `EFAULT`.
    pub memory: Option<Arc<dyn GuestMemory>>,
    /// Ends the waits for a server that died while its socket stays open. Without it calls wait for
    /// the socket or for their deadline.
    pub watch: Option<Arc<dyn ServerWatch>>,
    /// Whether to propose a second socket for the server's requests. It needs `max_msg_fds` of at
    /// least 1.
    pub twin_socket: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            spin: Duration::ZERO,
            max_msg_fds: 8,
            max_data_xfer_size: DEFAULT_MAX_DATA_XFER_SIZE,
            memory: None,
            watch: None,
            twin_socket: true,
        }
    }
}

impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig")
            .field("timeout", &self.timeout)
            .field("spin", &self.spin)
            .field("max_msg_fds", &self.max_msg_fds)
            .field("max_data_xfer_size", &self.max_data_xfer_size)
            .field("memory", &self.memory.is_some())
            .field("watch", &self.watch.is_some())
            .field("twin_socket", &self.twin_socket)
            .finish()
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens at the path.
    #[error("cannot connect to {path}: {errno}; is the server running?")]
    Connect {
        /// The path.
        path: PathBuf,
        /// Error of `connect`.
        errno: Errno,
    },
    /// The server answered with an error.
    #[error("{command:?} failed at the server: {errno}")]
    Refused {
        /// Command of the request.
        command: Command,
        /// Error number that the server sent.
        errno: Errno,
    },
    /// No answer came in time.
    #[error("{command:?} was not answered within {timeout:?}")]
    Timeout {
        /// Command of the request.
        command: Command,
        /// Time that the call waited.
        timeout: Duration,
    },
    /// The server is gone, or its stream was malformed; the client cannot be used any more.
    #[error("the connection to the server is lost: {reason}")]
    Disconnected {
        /// Why the connection ended.
        reason: Arc<FrameError>,
    },
    /// The answer does not follow the specification.
    #[error("the server's reply to {command:?} makes no sense: {what}")]
    Malformed {
        /// Command of the request.
        command: Command,
        /// Description of the mistake.
        what: String,
    },
    /// The request cannot be put into a message.
    #[error("invalid argument: {0}")]
    Argument(&'static str),
    /// A system call on our side failed.
    #[error("{call} failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
}

impl ClientError {
    /// Returns the closest error number: the server's own where it sent one.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Connect { errno, .. } | Self::Refused { errno, .. } | Self::System { errno, .. } => *errno,
            Self::Timeout { .. } => Errno::ETIMEDOUT,
            Self::Disconnected { .. } => Errno::ENOTCONN,
            Self::Malformed { .. } => Errno::EPROTO,
            Self::Argument(_) => Errno::EINVAL,
        }
    }
}

/// Limits of the server, with the specification's defaults for those that it did not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Minor protocol version agreed on.
    pub minor: u16,
    /// Maximum number of descriptors in one message to it.
    pub max_msg_fds: u32,
    /// Maximum number of bytes of data in one message to it, 1 or more.
    pub max_data_xfer_size: u32,
    /// Page sizes for DMA maps, or'ed together.
    pub pgsizes: u64,
    /// Maximum number of DMA maps at a time.
    pub max_dma_maps: u64,
    /// Whether it takes `REGION_WRITE_MULTI`.
    pub write_multiple: bool,
    /// Whether it sends its requests on a second socket.
    pub twin_socket: bool,
}

impl ServerLimits {
    /// Checks the server's answer, and fills in the defaults.
    fn of(answer: &VersionMessage, capabilities: &Capabilities) -> Result<Self, ClientError> {
        let command = Command::Version;
        if answer.major != VERSION_MAJOR || answer.minor > VERSION_MINOR {
            let description = format!("version {}.{} was not proposed", answer.major, answer.minor);
            return Err(ClientError::Malformed { command, what: description });
        }
        let limit_or = |value: Option<u64>, default: u32| {
            value.map_or(default, |value| u32::try_from(value).unwrap_or(u32::MAX))
        };
        let limits = Self {
            minor: answer.minor,
            max_msg_fds: limit_or(capabilities.max_msg_fds, DEFAULT_MAX_MSG_FDS),
            max_data_xfer_size: limit_or(capabilities.max_data_xfer_size, DEFAULT_MAX_DATA_XFER_SIZE),
            pgsizes: capabilities.pgsizes.unwrap_or(DEFAULT_PGSIZES),
            max_dma_maps: capabilities.max_dma_maps.unwrap_or(DEFAULT_MAX_DMA_MAPS.into()),
            write_multiple: capabilities.write_multiple.unwrap_or(false),
            twin_socket: false,
        };
        if limits.max_data_xfer_size == 0 {
            return Err(malformed(command, "max_data_xfer_size 0 allows no access at all"));
        }
        Ok(limits)
    }
}

/// A connection to a vfio-user server.
///
/// It ends when the client is dropped, also if children of `fork` have the socket open, too. A
/// child that drops its copy of the client does not end it.
#[derive(Debug)]
pub struct Client {
    /// The second socket; its thread ends before the first socket is closed.
    second_socket: Option<SecondSocket>,
    /// Id of the process that has connected.
    process: u32,
    exchange: Arc<Exchange>,
    config: ClientConfig,
    limits: ServerLimits,
    /// The time at which all calls give up, if that comes before their own deadlines.
    common_end: Mutex<Option<Instant>>,
}

impl Client {
    /// Connects to the socket at `path` and negotiates; `timeout` also bounds each later call.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn connect(path: impl AsRef<Path>, timeout: Duration) -> Result<Self, ClientError> {
        Self::connect_with(path, ClientConfig { timeout, ..Default::default() })
    }

    /// Connects to the socket at `path` and negotiates.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn connect_with(path: impl AsRef<Path>, config: ClientConfig) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let deadline = Deadline::after(config.timeout);
        let fd = connect_within(path, config.timeout)
            .map_err(|errno| ClientError::Connect { path: path.to_owned(), errno })?;
        Self::negotiate(fd, config, deadline)
    }

    /// Takes a connected stream socket and negotiates.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn from_socket(fd: OwnedFd, config: ClientConfig) -> Result<Self, ClientError> {
        let deadline = Deadline::after(config.timeout);
        Self::negotiate(fd, config, deadline)
    }

    /// Negotiates the version and the limits on a connected socket, and starts the second one if
    /// both sides want it.
    fn negotiate(fd: OwnedFd, config: ClientConfig, deadline: Deadline) -> Result<Self, ClientError> {
        if config.max_data_xfer_size == 0 {
            return Err(ClientError::Argument("max_data_xfer_size is zero"));
        }
        // A reply carries at most the data that was requested, and a server's request at most the
        // size that this side names.
        let max_data = config.max_data_xfer_size.max(DEFAULT_MAX_DATA_XFER_SIZE) as usize;
        let message_limit = max_data.saturating_add(requests::MAX_INFO_REPLY);
        let exchange =
            Arc::new(Exchange::new(Framed::new(fd, message_limit, config.max_msg_fds as usize), &config));

        let command = Command::Version;
        let wants_second_socket = config.twin_socket && config.max_msg_fds > 0;
        let body = build_version(&proposal(&config, wants_second_socket));
        let (answer, fds) = exchange.call(command, &body, &[], &[], deadline, |reply| {
            let answer = parse_version(reply.payload).map_err(|error| malformed(command, error))?;
            let fds = reply.fds.into_iter().map(OwnedFd::from).collect();
            Ok((answer, fds))
        })?;

        let capabilities = answer.capabilities.clone().unwrap_or_default();
        let mut limits = ServerLimits::of(&answer, &capabilities)?;

        let second_socket = match capabilities.twin_socket.filter(|offer| offer.supported) {
            Some(_) if !wants_second_socket => {
                return Err(malformed(command, "a twin socket was not proposed"));
            }
            Some(offer) => Some(SecondSocket::start(&exchange, &offer, fds, message_limit)?),
            None => None,
        };
        limits.twin_socket = second_socket.is_some();
        let process = std::process::id();
        Ok(Self { second_socket, process, exchange, config, limits, common_end: Mutex::new(None) })
    }

    /// Returns the limits that the server named.
    pub fn limits(&self) -> ServerLimits {
        self.limits
    }

    /// Returns the socket, to be polled for the server's requests or its end; callers must not read
    /// from it. A server that has a second socket sends no requests here.
    pub fn socket_fd(&self) -> BorrowedFd<'_> {
        self.exchange.socket()
    }

    /// Whether the server is still there; costs one `poll` and does not wait. It is also false
    /// after a malformed stream, and when [`ClientConfig::watch`] reports the server lost.
    pub fn is_alive(&self) -> bool {
        if self.exchange.is_dead() || self.exchange.is_lost() {
            return false;
        }

        // Hang-up and errors are always reported.
        let mut fds = [PollFd::new(self.exchange.socket(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(_) => fds[0].revents().is_some_and(|events| events.is_empty()),
            Err(errno) => errno == nix::errno::Errno::EINTR,
        }
    }

    /// Returns the process id of the server, as it was when it listened.
    ///
    /// # Errors
    /// [`ClientError::System`]
    pub fn server_pid(&self) -> Result<i32, ClientError> {
        getsockopt(&self.exchange.socket(), sockopt::PeerCredentials)
            .map(|credentials| credentials.pid())
            .map_err(|errno| ClientError::System { call: "getsockopt", errno: errno.into() })
    }

    /// Returns the server's process, as it was when it listened. The result is `None` when the
    /// kernel does not report it, or when the process is in a namespace that this process does not
    /// see. It is also `None` when that process had exited before this call: then another one
    /// serves.
    pub fn server_process(&self) -> Option<ServerProcess> {
        peer_process(self.exchange.socket()).map(ServerProcess)
    }

    /// Serves requests of the server until one was served or `timeout` is over, and returns their
    /// number. Calls that wait do this too, so it is only needed when no call waits.
    ///
    /// Requests on a second socket are served without this call. Its result includes those served
    /// since the last call.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`]
    pub fn poll_incoming(&self, timeout: Duration) -> Result<u64, ClientError> {
        self.exchange.poll_incoming(Deadline::after(timeout))
    }

    /// Limits the calls that follow together: from `within` from now on, all of them give up, also
    /// before [`ClientConfig::timeout`]. `None` removes the limit.
    pub fn limit_calls(&self, within: Option<Duration>) {
        let end = within.and_then(|within| Instant::now().checked_add(within));
        *self.common_end.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }

    /// Returns the deadline of a call that begins now.
    fn deadline(&self) -> Deadline {
        let own = Deadline::after(self.config.timeout);
        let common_end = *self.common_end.lock().unwrap_or_else(PoisonError::into_inner);
        match common_end {
            Some(end) if own.at.is_none_or(|at| end < at) => Deadline { at: Some(end), ..own },
            _ => own,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            drop(self.second_socket.take());
            self.exchange.shut_down();
        } else if let Some(second_socket) = self.second_socket.take() {
            second_socket.forget();
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket_fd()
    }
}

/// Returns the `VERSION` that a client proposes.
fn proposal(config: &ClientConfig, wants_second_socket: bool) -> VersionMessage {
    VersionMessage {
        major: VERSION_MAJOR,
        minor: VERSION_MINOR,
        has_json: true,
        capabilities: Some(Capabilities {
            max_msg_fds: Some(config.max_msg_fds.into()),
            max_data_xfer_size: Some(config.max_data_xfer_size.into()),
            pgsizes: Some(DEFAULT_PGSIZES),
            max_dma_maps: Some(DEFAULT_MAX_DMA_MAPS.into()),
            write_multiple: Some(true),
            twin_socket: wants_second_socket.then_some(TwinSocket { supported: true, fd_index: None }),
        }),
    }
}

/// Returns the error for a reply that breaks the specification.
fn malformed(command: Command, what: impl ToString) -> ClientError {
    ClientError::Malformed { command, what: what.to_string() }
}

/// The point in time at which a call gives up.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    timeout: Duration,
    /// `None` when the time does not fit into the clock, so that the call never gives up.
    at: Option<Instant>,
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        Self { timeout, at: Instant::now().checked_add(timeout) }
    }

    fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }
}
