//! The control socket of a served machine: one JSON request a connection, one JSON answer.
//!
//! It is in the machine's `admin` folder, for the server's user alone. A request is a line of at
//! most 4096 bytes. One thread serves several connections at a time, and none of them holds up
//! another: a client that does not finish its request within a second, or does not take its answer
//! within five, loses its connection.

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

use nicforge_engine::{EngineError, Listener};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use serde::{Deserialize, Serialize};

use crate::{
    directory::{Directory, SocketFile},
    failure::{Doing, Failure},
    stat::Snapshot,
};

/// The longest request in bytes.
const MAX_REQUEST: usize = 4096;
/// The longest answer in bytes.
const MAX_RESPONSE: u64 = 64 << 20;
/// Connections at a time.
const MAX_CONVERSATIONS: usize = 16;
/// How long a client waits for the server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server waits for a request to be complete.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the server waits for a client to take its answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long no connection is accepted after one could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// What is going on.
    Stat,
    /// Reset a node.
    Reset {
        /// Its name.
        node: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Stat`].
    Stat(Snapshot),
    /// It is done.
    Done,
    /// It was not done.
    Refused {
        /// Why.
        message: String,
        /// Whether there is no such thing as was asked for; else it could not be done now.
        #[serde(default)]
        asked_wrongly: bool,
    },
}

/// Ask the machine that is served in `directory`.
pub fn ask(directory: &Directory, request: &Request) -> Result<Response, Failure> {
    let path = directory.control();
    let what = || {
        format!(
            "no machine answers in {}; is its `nicforge serve` still running?",
            directory.path().display()
        )
    };
    let mut stream = UnixStream::connect(&path).doing(what)?;
    stream.set_read_timeout(Some(TIMEOUT)).doing(what)?;
    stream.set_write_timeout(Some(TIMEOUT)).doing(what)?;
    let mut line = serde_json::to_vec(request).doing(what)?;
    line.push(b'\n');
    stream.write_all(&line).doing(what)?;
    let mut answer = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut answer).doing(what)?;
    serde_json::from_slice(&answer)
        .doing(|| "the server's answer can't be read; is it another version?".into())
}

/// Answers requests on a thread of its own until it is dropped. The socket is removed then; the
/// thread ends as soon as the request that it answers is answered, and is not waited for.
pub struct ControlServer {
    stop: Arc<EventFd>,
    file: SocketFile,
}

impl ControlServer {
    /// Serves `path`. A socket that a dead server left is replaced; a live one is an error.
    ///
    /// # Errors
    /// A [`Failure`] of the surroundings when `path` is in use or a descriptor or thread can't be
    /// had.
    pub fn start(
        path: &Path,
        answer: impl Fn(Request) -> Response + Send + 'static,
    ) -> Result<Self, Failure> {
        let listener = Listener::bind(path).map_err(|error| match error {
            EngineError::SocketInUse { .. } => Failure::environment(format!(
                "a machine is served already in {}; stop it or choose another --dir",
                path.parent().and_then(Path::parent).unwrap_or(path).display()
            )),
            error => Failure::environment(error.to_string()),
        })?;
        let file = SocketFile::of(path)?;

        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let stop = Arc::new(
            EventFd::from_value_and_flags(0, flags).doing(|| "the control socket's eventfd".into())?,
        );
        let thread = std::thread::Builder::new().name("control".into()).spawn({
            let stop = stop.clone();
            move || {
                Conversations { listener, answer: &answer, open: Vec::new(), accept_at: None }.serve(&stop);
            }
        });
        thread.doing(|| "the control socket's thread".into())?;
        Ok(Self { stop, file })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.file.remove();
        // The only failure there is, a counter at its end, leaves the descriptor readable, which is
        // all that is wanted.
        let _ = self.stop.write(1);
    }
}

/// One client, from its connection to its answer.
struct Conversation {
    stream: UnixStream,
    state: State,
    /// When it loses the connection.
    until: Instant,
}

enum State {
    /// The part of its request that has come.
    Asking(Vec<u8>),
    /// Its answer, and how much of that it has taken.
    Answering { answer: Vec<u8>, taken: usize },
}

impl Conversation {
    fn new(fd: OwnedFd, now: Instant) -> Self {
        Self { stream: fd.into(), state: State::Asking(Vec::new()), until: now + PATIENCE }
    }

    /// Which event it waits for.
    fn interest(&self) -> PollFlags {
        match self.state {
            State::Asking(_) => PollFlags::POLLIN,
            State::Answering { .. } => PollFlags::POLLOUT,
        }
    }

    /// Reads and writes as far as that goes without a wait. Returns whether there is more to do
    /// later.
    fn advance(&mut self, answer: &dyn Fn(Request) -> Response, now: Instant) -> std::io::Result<bool> {
        if let State::Asking(line) = &mut self.state {
            if !read_request(&mut self.stream, line)? {
                return Ok(true);
            }

            let response = match serde_json::from_slice(line) {
                Ok(request) => answer(request),
                Err(error) => {
                    let message = format!("the request can't be read: {error}");
                    Response::Refused { message, asked_wrongly: true }
                }
            };
            self.state = State::Answering { answer: serde_json::to_vec(&response)?, taken: 0 };
            self.until = now + ANSWER;
        }

        let State::Answering { answer, taken } = &mut self.state else { return Ok(true) };
        while *taken < answer.len() {
            match self.stream.write(&answer[*taken..]) {
                Ok(count) => *taken += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Reads what has come. Returns whether the request is complete: by the end of its line, of
/// [`MAX_REQUEST`] bytes, or of what the client sends.
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

/// The connections there are, the oldest first.
struct Conversations<'a> {
    listener: Listener,
    answer: &'a dyn Fn(Request) -> Response,
    open: Vec<Conversation>,
    /// No connection is accepted until then: the process had no descriptor left.
    accept_at: Option<Instant>,
}

impl Conversations<'_> {
    fn serve(&mut self, stop: &EventFd) {
        while let Some(ready) = self.wait(stop) {
            let now = Instant::now();
            self.serve_ready(&ready.conversations, now);
            if ready.listener {
                self.accept(now);
            }
        }
    }

    /// Waits until something is ready or due. `None` when the thread is to end.
    fn wait(&mut self, stop: &EventFd) -> Option<Ready> {
        let now = Instant::now();
        self.accept_at = self.accept_at.filter(|at| *at > now);
        let accepts = self.accept_at.is_none();

        let first = self.open.iter().map(|conversation| conversation.until).chain(self.accept_at).min();
        let timeout = first.map_or(PollTimeout::NONE, |at| {
            // A millisecond later, for what is left of one: else the wait would end just before the
            // time.
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });

        let listening = if accepts { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.fd(), listening)];
        fds.extend(
            self.open
                .iter()
                .map(|conversation| PollFd::new(conversation.stream.as_fd(), conversation.interest())),
        );
        // One that was interrupted found nothing ready.
        let polled = poll(&mut fds, timeout);
        let is_ready = |fd: &PollFd<'_>| polled.is_ok() && fd.any().unwrap_or(false);

        if is_ready(&fds[0]) {
            return None;
        }
        Some(Ready {
            listener: accepts && is_ready(&fds[1]),
            conversations: fds[2..].iter().map(is_ready).collect(),
        })
    }

    /// Serves each connection that is ready, and ends those whose time is over.
    fn serve_ready(&mut self, ready: &[bool], now: Instant) {
        let mut ready = ready.iter();
        let answer = self.answer;
        self.open.retain_mut(|conversation| {
            let is_ready = ready.next().copied().unwrap_or(false);
            let goes_on = !is_ready || conversation.advance(answer, now).unwrap_or(false);
            goes_on && conversation.until > now
        });
    }

    /// Accepts a client, and answers at once one that has asked already. When there are too many,
    /// the oldest goes that has not asked, else the oldest.
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
        // A client of another user loses its connection, and nothing else happens.
        if self.listener.welcome(&fd).is_none() {
            return;
        }

        let mut conversation = Conversation::new(fd, now);
        if !conversation.advance(self.answer, now).unwrap_or(false) {
            return;
        }
        if self.open.len() >= MAX_CONVERSATIONS {
            let silent = |conversation: &Conversation| matches!(conversation.state, State::Asking(_));
            self.open.remove(self.open.iter().position(silent).unwrap_or(0));
        }
        self.open.push(conversation);
    }
}

/// The result of one wait.
struct Ready {
    listener: bool,
    /// In the order of the connections.
    conversations: Vec<bool>,
}

#[cfg(test)]
mod tests;
