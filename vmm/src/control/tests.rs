use std::{os::unix::net::UnixListener, path::PathBuf};

use super::*;

const RESET: &[u8] = b"{\"reset\":{\"node\":\"cn0\"}}\n";
/// More than a socket holds.
const LONG: usize = 8 << 20;

/// Starts a server that answers `cn0` at once. It answers every other request at such length that
/// the answer does not fit into a socket.
fn served() -> (tempfile::TempDir, PathBuf, ControlServer) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let server = ControlServer::start(&path, |request| match request {
        Request::Reset { node } if node == "cn0" => Response::Done,
        _ => Response::Refused { message: "no".repeat(LONG / 2), is_usage_error: true },
    })
    .unwrap();

    (folder, path, server)
}

fn answer(stream: &mut UnixStream) -> std::io::Result<Response> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

fn raw(path: &Path, line: &[u8]) -> Response {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(line).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    answer(&mut stream).unwrap()
}

#[test]
fn a_request_is_answered() {
    let (_folder, path, _server) = served();
    assert!(matches!(raw(&path, RESET), Response::Done));
}

#[test]
fn bytes_that_are_no_request_are_refused_and_the_next_request_answered() {
    let (_folder, path, _server) = served();
    assert!(matches!(raw(&path, &[0xff; MAX_REQUEST]), Response::Refused { .. }));
    assert!(matches!(raw(&path, RESET), Response::Done));
}

#[test]
fn a_silent_connection_and_an_unread_answer_delay_no_other_request() {
    let (_folder, path, _server) = served();
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"{").unwrap();
    let mut unread = UnixStream::connect(&path).unwrap();
    unread.write_all(b"\"stat\"\n").unwrap();

    for _ in 0..3 {
        assert!(matches!(raw(&path, RESET), Response::Done));
    }

    // Both connections are still open, because the others were answered before their time was over.
    silent.write_all(&RESET[1..]).unwrap();
    assert!(matches!(answer(&mut silent).unwrap(), Response::Done));
    assert!(
        matches!(answer(&mut unread).unwrap(), Response::Refused { message, .. } if message.len() == LONG)
    );
}

#[test]
fn a_silent_connection_is_closed_at_its_deadline() {
    let (_folder, path, _server) = served();
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"{").unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn the_oldest_silent_connection_is_closed_at_the_limit() {
    let (_folder, path, _server) = served();
    let mut connections: Vec<_> =
        (0..=MAX_CONVERSATIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();

    // This request is after all connections, so its answer shows that they have been accepted.
    assert!(matches!(raw(&path, RESET), Response::Done));

    let mut last = connections.pop().unwrap();
    last.write_all(RESET).unwrap();

    assert!(matches!(answer(&mut last).unwrap(), Response::Done));
    let mut state = connections[..2].iter_mut().map(|connection| {
        connection.set_nonblocking(true).unwrap();
        connection.read(&mut [0; 1])
    });

    assert!(matches!(state.next().unwrap(), Ok(0)));
    assert_eq!(state.next().unwrap().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    std::fs::write(&path, "precious").unwrap();
    assert!(ControlServer::start(&path, |_| Response::Done).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_second_server_at_a_path_is_refused_and_a_dead_socket_replaced() {
    let (_folder, path, server) = served();
    assert!(ControlServer::start(&path, |_| Response::Done).is_err());
    drop(server);
    drop(UnixListener::bind(&path).unwrap());
    assert!(ControlServer::start(&path, |_| Response::Done).is_ok());
}
