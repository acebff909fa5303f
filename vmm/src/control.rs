//! The control socket of a served machine: one JSON request a connection, one JSON answer.
//!
//! It is in the machine's `admin` folder, for its user alone. A request is a line of at most 4096 bytes; who does
//! not finish one within a second is hung up on.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    directory::Directory,
    failure::{Doing, Failure},
    stat::Snapshot,
};

/// The longest request in bytes.
const MAX_REQUEST: u64 = 4096;
/// The longest answer in bytes.
const MAX_RESPONSE: u64 = 64 << 20;
/// How long either side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(2);
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
    path: PathBuf,
}

impl ControlServer {
    /// Serve `path`. A socket that a dead server left is replaced; a live one is an error.
    pub fn start(
        path: &Path,
        answer: impl Fn(Request) -> Response + Send + 'static,
    ) -> Result<Self, Failure> {
        if UnixStream::connect(path).is_ok() {
            return Err(Failure::environment(format!(
                "a machine is served already in {}; stop it or choose another --dir",
                path.parent().and_then(Path::parent).unwrap_or(path).display()
            )));
        }
        // What is there is a dead socket, or nothing.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).doing(|| path.display().to_string())?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .doing(|| path.display().to_string())?;
        listener.set_nonblocking(true).doing(|| path.display().to_string())?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || serve(&listener, &stop, &answer)
        });
        Ok(Self { stop, thread: Some(thread), path: path.to_owned() })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, stop: &AtomicBool, answer: &dyn Fn(Request) -> Response) {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    while !stop.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO))
            .is_ok_and(|ready| ready > 0)
        {
            continue;
        }
        if let Ok((stream, _)) = listener.accept() {
            // A client that goes wrong loses its connection and nothing else happens.
            let _ = converse(stream, answer);
        }
    }
}

fn converse(mut stream: UnixStream, answer: &dyn Fn(Request) -> Response) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT / 2))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(stream.try_clone()?.take(MAX_REQUEST)).read_until(b'\n', &mut line)?;
    let response = match serde_json::from_slice(&line) {
        Ok(request) => answer(request),
        Err(error) => Response::Refused { message: format!("the request can't be read: {error}") },
    };
    stream.write_all(&serde_json::to_vec(&response)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> (tempfile::TempDir, PathBuf, ControlServer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let server = ControlServer::start(&path, |request| match request {
            Request::Reset { node } if node == "cn0" => Response::Done,
            _ => Response::Refused { message: "no".into() },
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
    fn a_second_server_in_the_same_place_is_refused_and_a_dead_socket_replaced() {
        let (_folder, path, server) = served();
        assert!(ControlServer::start(&path, |_| Response::Done).is_err());
        drop(server);
        drop(UnixListener::bind(&path).unwrap());
        assert!(ControlServer::start(&path, |_| Response::Done).is_ok());
    }
}
