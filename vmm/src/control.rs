//! The control socket of a served machine: one JSON request a connection, one JSON answer.
//!
//! It is in the machine's `admin` folder, for its user alone. A request is a line of at most 4096 bytes; who does
//! not finish one within a second is hung up on.

use std::{
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_engine::{EngineError, Listener};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::{
    directory::Directory,
    failure::{Doing, Failure},
    stat::Snapshot,
};

/// The longest request in bytes.
const MAX_REQUEST: usize = 4096;
/// The longest answer in bytes.
const MAX_RESPONSE: u64 = 64 << 20;
/// How long a client waits for the server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server waits for a request to be complete.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the server waits for a client to take a piece of the answer.
const ANSWER: Duration = Duration::from_secs(1);
/// How often the serving thread looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);

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

/// Answers requests on a thread of its own until it is dropped.
pub struct ControlServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Serve `path`. A socket that a dead server left is replaced; a live one is an error.
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
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || serve(&listener, &stop, &answer)
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &Listener, stop: &AtomicBool, answer: &dyn Fn(Request) -> Response) {
    while !stop.load(Ordering::Acquire) {
        if !readable(listener.fd(), LOOK) {
            continue;
        }
        match listener.accept() {
            // A client that goes wrong, or is somebody else's, loses its connection and nothing else happens.
            Ok(Some(client)) if listener.welcome(&client).is_some() => drop(converse(client.into(), stop, answer)),
            Ok(_) => {}
            // No descriptor is left: others may be given back soon.
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Whether there is something to read within `time`.
fn readable(fd: BorrowedFd<'_>, time: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO)).is_ok_and(|ready| ready > 0)
}

fn converse(
    mut stream: UnixStream,
    stop: &AtomicBool,
    answer: &dyn Fn(Request) -> Response,
) -> std::io::Result<()> {
    let line = request_line(&mut stream, stop)?;
    let response = match serde_json::from_slice(&line) {
        Ok(request) => answer(request),
        Err(error) => {
            let message = format!("the request can't be read: {error}");
            Response::Refused { message, asked_wrongly: true }
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(&serde_json::to_vec(&response)?)
}

/// Reads up to the end of the line, of [`MAX_REQUEST`] bytes, of the connection, or of [`PATIENCE`], whichever comes first.
fn request_line(stream: &mut UnixStream, stop: &AtomicBool) -> std::io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut piece = [0; 512];
    while line.len() < MAX_REQUEST && !line.contains(&b'\n') && !stop.load(Ordering::Acquire) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if !readable(stream.as_fd(), left.min(LOOK)) {
            continue;
        }
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, path::PathBuf};

    use super::*;

    fn served() -> (tempfile::TempDir, PathBuf, ControlServer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let server = ControlServer::start(&path, |request| match request {
            Request::Reset { node } if node == "cn0" => Response::Done,
            _ => Response::Refused { message: "no".into(), asked_wrongly: true },
        })
        .unwrap();
        (folder, path, server)
    }

    fn raw(path: &Path, line: &[u8]) -> Response {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(line).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    #[test]
    fn a_request_is_answered() {
        let (_folder, path, _server) = served();
        assert!(matches!(raw(&path, b"{\"reset\":{\"node\":\"cn0\"}}\n"), Response::Done));
    }

    #[test]
    fn what_is_no_request_is_refused_and_the_next_one_answered() {
        let (_folder, path, _server) = served();
        assert!(matches!(raw(&path, &[0xff; 10_000][..4096]), Response::Refused { .. }));
        assert!(matches!(raw(&path, b"{\"reset\":{\"node\":\"cn0\"}}\n"), Response::Done));
    }

    #[test]
    fn who_sends_a_request_byte_by_byte_holds_nobody_up_for_longer_than_the_patience() {
        let (_folder, path, _server) = served();
        let mut slow = UnixStream::connect(&path).unwrap();
        slow.write_all(b"{").unwrap();
        let started = Instant::now();
        assert!(matches!(raw(&path, b"{\"reset\":{\"node\":\"cn0\"}}\n"), Response::Done));
        assert!(started.elapsed() < TIMEOUT);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        std::fs::write(&path, "precious").unwrap();
        assert!(ControlServer::start(&path, |_| Response::Done).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_second_server_in_the_same_place_is_refused_and_a_dead_socket_replaced() {
        let (_folder, path, server) = served();
        assert!(ControlServer::start(&path, |_| Response::Done).is_err());
        drop(server);
        drop(UnixListener::bind(&path).unwrap());
        assert!(ControlServer::start(&path, |_| Response::Done).is_ok());
    }
}
