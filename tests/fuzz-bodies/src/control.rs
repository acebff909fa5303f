//! Requests to the control socket. Any request gets one JSON value as its answer, and the next
//! request is answered too. The client parses any answer of a server.

use std::{
    io::Read, net::Shutdown, os::unix::net::UnixStream, path::PathBuf, sync::OnceLock, time::Duration,
};

use nicforge::control::{ControlServer, Request, Response};
use nicforge_engine::SocketPlace;
use tempfile::TempDir;

use crate::{input::Input, messages::write_all};

/// The longest request that the server reads completely, so that its answer certainly arrives.
const LONGEST: usize = 4096;
/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    if let Ok(response) = serde_json::from_slice::<Response>(data) {
        let serialized = serde_json::to_vec(&response).unwrap();
        assert!(serde_json::from_slice::<Response>(&serialized).is_ok());
    }

    let request = request(&mut Input::new(data));
    let line = request.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
    let is_reset_of_cn0 =
        matches!(serde_json::from_slice(line), Ok(Request::Reset { node }) if node == "cn0");
    let answer = send_to_server(&request);

    // A request of more than one line may be refused: the server reads a piece, which may hold
    // more than the first line.
    assert!(!is_reset_of_cn0 || request.len() > line.len() || matches!(answer, Response::Done));
    assert!(matches!(send_to_server(b"{\"reset\":{\"node\":\"cn0\"}}\n"), Response::Done));
}

/// Returns any bytes, or a request assembled from any pieces.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let mut request = Vec::new();
    let pieces = [
        "{",
        "}",
        "\"reset\"",
        "\"stat\"",
        ":",
        "\"node\"",
        "\"cn0\"",
        ",",
        "[",
        "]",
        "null",
        "\n",
        "\\u0000",
    ];

    while !input.is_empty() && request.len() < LONGEST {
        match input.below(4) {
            0 => request.push(input.u8()),
            1 => request.extend(b"{\"reset\":{\"node\":\"cn0\"}}"),
            2 => request.extend("[".repeat(usize::from(input.u8())).bytes()),
            _ => request.extend(input.pick(&pieces).bytes()),
        }
    }

    request.truncate(LONGEST);
    request
}

/// Sends a request on a connection of its own, and returns the server's answer.
fn send_to_server(request: &[u8]) -> Response {
    let mut stream = UnixStream::connect(&server().path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    write_all(&mut stream, request);

    // The server may have closed the connection already.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();

    // The read fails after the answer if the server closed without having read all bytes.
    let _ = stream.read_to_end(&mut answer);
    serde_json::from_slice(&answer).expect("an answer")
}

/// A control server and its socket.
struct Server {
    path: PathBuf,
    _server: ControlServer,
    _folder: TempDir,
}

/// Returns the server, which all inputs share.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();

    SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let server = ControlServer::start(SocketPlace::open(&path).unwrap(), |request| match request {
            Request::Reset { node } if node == "cn0" => Response::Done,
            Request::Reset { node } => {
                Response::Refused { message: format!("there is no node {node}"), is_usage_error: true }
            }
            Request::Trace(_) => Response::Refused { message: "no trace".into(), is_usage_error: false },
            Request::Stat | Request::Registers { .. } => {
                Response::Refused { message: "no statistics".into(), is_usage_error: false }
            }
        })
        .unwrap();

        Server { path, _server: server, _folder: folder }
    })
}
