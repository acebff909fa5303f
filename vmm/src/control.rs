//! The control socket of a served machine. Each connection has one JSON request and one JSON
//! answer.
//!
//! The socket is in the machine's `admin` folder, to which only the server's user has access. A
//! request is a line of at most 4096 bytes. One thread serves several connections at a time. A
//! client that sends or reads slowly delays no other. The answers are made one after the other, and
//! each waits for the engine, for at most a second for each function that it concerns. A client
//! must finish its request within one second, and read its answer within five. Otherwise the server
//! closes the connection.

use std::{
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_engine::{EngineError, Listener, SocketAccess, SocketFile, SocketPlace};
use nicforge_trace::{Entry, Selection};
use nicforge_vfio_user::socket::connect_within;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use serde::{Deserialize, Serialize};

use crate::{
    directory::Directory,
    escape,
    failure::{ErrorContext, Failure, program},
    regs::RegistersSnapshot,
    stat::MachineSnapshot,
};

/// The longest request in bytes.
const MAX_REQUEST: usize = 4096;
/// The longest answer in bytes.
const MAX_RESPONSE: u64 = 64 << 20;
/// The greatest number of open connections.
const MAX_CONNECTIONS: usize = 16;
/// How long a client waits for the server, to connect and then for each part of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server waits for a request to be complete.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the server waits for a client to take its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long no connection is accepted after a failed accept. The listener stays ready meanwhile,
/// for example when the process has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A request to the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Return a snapshot of the machine.
    Stat,
    /// Return the registers of an attachment.
    Registers {
        /// The node and the attachment, as `NODE.ATTACHMENT`.
        attachment: String,
    },
    /// Reset a node.
    Reset {
        /// The node's name.
        node: String,
    },
    /// Trace the machine.
    Trace(TraceRequest),
}

/// A request about the trace of a machine. One client at a time traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceRequest {
    /// Begin a trace.
    Start {
        /// The events.
        selection: Selection,
        /// Number of records that the server keeps until they are read.
        records: usize,
        /// Begin with this many records of those that the server keeps anyway.
        last: Option<usize>,
    },
    /// Return the next events of a trace. A trace for which no client asks within five seconds
    /// ends.
    Read {
        /// Number of the trace.
        trace: u64,
        /// Number of the first record.
        from: u64,
    },
    /// End a trace.
    Stop {
        /// Number of the trace.
        trace: u64,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The answer to [`Request::Stat`].
    Stat(MachineSnapshot),
    /// The answer to [`TraceRequest::Start`].
    TraceStarted {
        /// Number of the trace.
        trace: u64,
        /// Number of its first record.
        from: u64,
        /// Number of the next record that the machine will make.
        end: u64,
    },
    /// The answer to [`TraceRequest::Read`].
    Trace {
        /// The events, oldest first.
        entries: Vec<Entry>,
        /// Records that were overwritten before this request.
        lost: u64,
        /// Number of the first record of the next request.
        next: u64,
        /// Number of the next record that the machine will make.
        end: u64,
    },
    /// The answer to [`Request::Registers`].
    Registers(RegistersSnapshot),
    /// The request was carried out.
    Done,
    /// The request was not carried out.
    Refused {
        /// The reason.
        message: String,
        /// Whether the requested object does not exist. Otherwise the request could not be carried
        /// out at this time.
        #[serde(default)]
        is_usage_error: bool,
    },
}

impl Response {
    /// Puts each text in one line without control characters.
    fn escape_texts(&mut self) {
        match self {
            Self::Stat(snapshot) => snapshot.escape_texts(),
            Self::Registers(snapshot) => snapshot.escape_texts(),
            Self::Trace { entries, .. } => {
                entries.iter_mut().flat_map(Entry::texts_mut).for_each(escape::put_in_one_line);
            }
            Self::Done | Self::TraceStarted { .. } => {}
            Self::Refused { message, is_usage_error: _ } => escape::put_in_one_line(message),
        }
    }
}

/// Sends a request to the machine that is served in `directory`, and waits for the answer. Its
/// texts can be printed, whoever has answered.
pub fn ask(directory: &Directory, request: &Request) -> Result<Response, Failure> {
    let path = directory.control_socket();
    let description = || {
        format!(
            "no machine answers in {}; is its `{} serve` still running?",
            directory.path().display(),
            program()
        )
    };

    let socket = connect_within(&path, CLIENT_TIMEOUT).context(description)?;
    let mut stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(CLIENT_TIMEOUT)).context(description)?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT)).context(description)?;

    let mut line = serde_json::to_vec(request).context(description)?;
    line.push(b'\n');
    stream.write_all(&line).context(description)?;

    let mut answer = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut answer).context(description)?;

    let mut response: Response = serde_json::from_slice(&answer)
        .context(|| "the server's answer can't be read; is it another version?".into())?;
    response.escape_texts();
    Ok(response)
}

/// Answers requests on a thread of its own. Dropping it removes the socket and tells the thread to
/// end. The thread ends after its current request, and the drop does not wait for it.
pub struct ControlServer {
    /// Signalled when the thread must end.
    stop: Arc<EventFd>,
    file: SocketFile,
}

impl ControlServer {
    /// Serves a socket at a place. One that a dead server left behind is replaced. A live one is an
    /// error.
    ///
    /// # Errors
    /// Returns a [`Failure`] of the environment when the place is in use, or when no descriptor or
    /// thread is available.
    pub fn start(
        place: SocketPlace,
        answer: impl Fn(Request) -> Response + Send + 'static,
    ) -> Result<Self, Failure> {
        let listener = Listener::bind_at(place, SocketAccess::default()).map_err(|error| match error {
            EngineError::SocketInUse { path } => Failure::environment(format!(
                "a machine is served already in {}; stop it or choose another --dir",
                // The socket is in `admin/` of the machine's directory.
                path.parent().and_then(Path::parent).unwrap_or(&path).display()
            )),
            error => Failure::environment(error.to_string()),
        })?;

        let file = listener.file().clone();

        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let stop = Arc::new(
            EventFd::from_value_and_flags(0, flags).context(|| "the control socket's eventfd".into())?,
        );
        let thread = std::thread::Builder::new().name("control".into()).spawn({
            let stop = stop.clone();
            move || {
                ControlConnections { listener, answer: &answer, open: Vec::new(), accept_at: None }
                    .serve(&stop);
            }
        });
        thread.context(|| "the control socket's thread".into())?;
        Ok(Self { stop, file })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.file.remove();
        // The write fails only when the counter is at its limit. The descriptor is then readable,
        // which is enough.
        let _ = self.stop.write(1);
    }
}

/// The connection of one client, from its start to its answer.
struct ControlConnection {
    stream: UnixStream,
    state: State,
    /// The time at which the server closes the connection.
    until: Instant,
}

/// How far the exchange with a client has come.
enum State {
    /// The received part of the request.
    Asking(Vec<u8>),
    /// The answer, and the number of its bytes that were sent.
    Answering { answer: Vec<u8>, sent: usize },
}

impl ControlConnection {
    /// Begins the exchange with an accepted client.
    fn new(fd: OwnedFd, now: Instant) -> Self {
        Self { stream: fd.into(), state: State::Asking(Vec::new()), until: now + REQUEST_TIMEOUT }
    }

    /// Returns the event that the connection waits for.
    fn poll_events(&self) -> PollFlags {
        match self.state {
            State::Asking(_) => PollFlags::POLLIN,
            State::Answering { .. } => PollFlags::POLLOUT,
        }
    }

    /// Reads and writes as far as possible without blocking. Returns whether the connection must
    /// stay open.
    fn advance(&mut self, answer: &dyn Fn(Request) -> Response, now: Instant) -> std::io::Result<bool> {
        if let State::Asking(line) = &mut self.state {
            if !read_request(&mut self.stream, line)? {
                return Ok(true);
            }

            let response = match serde_json::from_slice(line) {
                Ok(request) => answer(request),
                Err(error) => {
                    let message = format!("the request can't be read: {error}");
                    Response::Refused { message, is_usage_error: true }
                }
            };

            self.state = State::Answering { answer: serde_json::to_vec(&response)?, sent: 0 };
            self.until = now + ANSWER_TIMEOUT;
        }

        let State::Answering { answer, sent } = &mut self.state else { return Ok(true) };
        while *sent < answer.len() {
            match self.stream.write(&answer[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }

        Ok(false)
    }
}

/// Reads the available bytes. Returns whether the request is complete. It ends with a line end,
/// after [`MAX_REQUEST`] bytes, or when the client closes its side.
fn read_request(stream: &mut UnixStream, line: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut piece = [0; 512];
    while line.len() < MAX_REQUEST && !line.contains(&b'\n') {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }

    Ok(true)
}

/// The open connections, the oldest first.
struct ControlConnections<'a> {
    listener: Listener,
    answer: &'a dyn Fn(Request) -> Response,
    open: Vec<ControlConnection>,
    /// No connection is accepted before this time, because the process had no free descriptor.
    accept_at: Option<Instant>,
}

impl ControlConnections<'_> {
    /// Serves connections until `stop` is signalled. It is the body of the thread.
    fn serve(&mut self, stop: &EventFd) {
        while let Some(ready) = self.wait(stop) {
            let now = Instant::now();
            self.serve_ready(&ready.connections, now);
            if ready.listener {
                self.accept(now);
            }
        }
    }

    /// Waits until a connection is ready or its time is over. Returns `None` when the thread must
    /// end.
    fn wait(&mut self, stop: &EventFd) -> Option<Ready> {
        let now = Instant::now();
        self.accept_at = self.accept_at.filter(|at| *at > now);
        let accepts = self.accept_at.is_none();

        let first = self.open.iter().map(|connection| connection.until).chain(self.accept_at).min();
        let timeout = first.map_or(PollTimeout::NONE, |at| {
            // `poll` counts whole milliseconds. One more is added, so that the wait does not end
            // just before the time.
            let remaining = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX)
        });

        let listening = if accepts { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.fd(), listening)];
        fds.extend(
            self.open
                .iter()
                .map(|connection| PollFd::new(connection.stream.as_fd(), connection.poll_events())),
        );

        // After an interrupted poll, nothing counts as ready.
        let polled = poll(&mut fds, timeout);
        let is_ready = |fd: &PollFd<'_>| polled.is_ok() && fd.any().unwrap_or(false);

        if is_ready(&fds[0]) {
            return None;
        }

        Some(Ready {
            listener: accepts && is_ready(&fds[1]),
            connections: fds[2..].iter().map(is_ready).collect(),
        })
    }

    /// Serves each ready connection, and closes those whose time is over.
    fn serve_ready(&mut self, ready: &[bool], now: Instant) {
        let mut ready = ready.iter();
        let answer = self.answer;
        self.open.retain_mut(|connection| {
            let is_ready = ready.next().copied().unwrap_or(false);
            let continues = !is_ready || connection.advance(answer, now).unwrap_or(false);
            continues && connection.until > now
        });
    }

    /// Accepts a client, and answers it at once if its request is complete. When there are too many
    /// connections, one is closed: the oldest without a complete request, or else the oldest.
    fn accept(&mut self, now: Instant) {
        let fd = match self.listener.accept() {
            Ok(Some(fd)) => fd,
            Ok(None) => return,
            Err(errno) => {
                tracing::warn!(%errno, "a control connection could not be accepted");
                self.accept_at = Some(now + ACCEPT_PAUSE);
                return;
            }
        };

        // The connection of another user's client is closed without an answer.
        if self.listener.authorize(&fd).is_none() {
            return;
        }

        let mut connection = ControlConnection::new(fd, now);
        if !connection.advance(self.answer, now).unwrap_or(false) {
            return;
        }

        if self.open.len() >= MAX_CONNECTIONS {
            let is_incomplete = |connection: &ControlConnection| matches!(connection.state, State::Asking(_));
            self.open.remove(self.open.iter().position(is_incomplete).unwrap_or(0));
        }

        self.open.push(connection);
    }
}

/// The result of one wait.
struct Ready {
    listener: bool,
    /// One entry for each connection, in their order.
    connections: Vec<bool>,
}

#[cfg(test)]
mod tests;
