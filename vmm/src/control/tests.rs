use std::{os::unix::net::UnixListener, path::PathBuf};

use super::*;

const RESET: &[u8] = b"{\"reset\":{\"node\":\"cn0\"}}\n";
/// Bytes of an answer that are more than a socket holds.
const LONG_ANSWER: usize = 8 << 20;

/// Starts a server that answers `cn0` at once. It answers every other request at such length that
/// the answer does not fit into a socket.
fn served() -> (tempfile::TempDir, PathBuf, ControlServer) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let server = ControlServer::start(SocketPlace::open(&path).unwrap(), |request| match request {
        Request::Reset { node } if node == "cn0" => Response::Done,
        _ => Response::Refused { message: "no".repeat(LONG_ANSWER / 2), is_usage_error: true },
    })
    .unwrap();

    (folder, path, server)
}

/// Reads an answer to the end of the connection.
fn read_answer(stream: &mut UnixStream) -> std::io::Result<Response> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Connects, sends a line, and returns the answer.
fn ask_with_line(path: &Path, line: &[u8]) -> Response {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(line).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    read_answer(&mut stream).unwrap()
}

#[test]
fn a_request_is_answered() {
    let (_folder, path, _server) = served();
    assert!(matches!(ask_with_line(&path, RESET), Response::Done));
}

#[test]
fn bytes_that_are_no_request_are_refused_and_the_next_request_answered() {
    let (_folder, path, _server) = served();
    assert!(matches!(ask_with_line(&path, &[0xff; MAX_REQUEST]), Response::Refused { .. }));
    assert!(matches!(ask_with_line(&path, RESET), Response::Done));
}

#[test]
fn a_silent_connection_and_an_unread_answer_delay_no_other_request() {
    let (_folder, path, _server) = served();
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"{").unwrap();
    let mut unread = UnixStream::connect(&path).unwrap();
    unread.write_all(b"\"stat\"\n").unwrap();

    for _ in 0..3 {
        assert!(matches!(ask_with_line(&path, RESET), Response::Done));
    }

    // Both connections are still open, because the others were answered before their time was over.
    silent.write_all(&RESET[1..]).unwrap();
    assert!(matches!(read_answer(&mut silent).unwrap(), Response::Done));
    assert!(
        matches!(read_answer(&mut unread).unwrap(), Response::Refused { message, .. } if message.len() == LONG_ANSWER)
    );
}

#[test]
fn a_silent_connection_is_closed_at_its_deadline() {
    let (_folder, path, _server) = served();
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"{").unwrap();
    silent.set_read_timeout(Some(CLIENT_TIMEOUT)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn the_oldest_silent_connection_is_closed_at_the_limit() {
    const ATTEMPTS: usize = 10;
    let (_folder, path, _server) = served();

    for _ in 0..ATTEMPTS {
        let started = Instant::now();
        let mut connections: Vec<_> =
            (0..=MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();

        // The oldest connection is closed when the last one is accepted.
        connections[0].set_read_timeout(Some(CLIENT_TIMEOUT)).unwrap();
        let oldest = connections[0].read(&mut [0; 1]);
        connections[1].set_nonblocking(true).unwrap();
        let second = connections[1].read(&mut [0; 1]);
        let mut last = connections.pop().unwrap();
        last.write_all(RESET).unwrap();
        let answer = read_answer(&mut last);

        // On a busy host all silent connections may have reached their deadline by now.
        if started.elapsed() < REQUEST_TIMEOUT {
            assert_eq!(oldest.unwrap(), 0);
            assert_eq!(second.unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(matches!(answer.unwrap(), Response::Done));
            return;
        }
    }
    panic!("the host is too slow for {ATTEMPTS} attempts within {REQUEST_TIMEOUT:?}");
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    std::fs::write(&path, "precious").unwrap();
    assert!(ControlServer::start(SocketPlace::open(&path).unwrap(), |_| Response::Done).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_second_server_at_a_path_is_refused_and_a_dead_socket_replaced() {
    let (_folder, path, server) = served();
    assert!(ControlServer::start(SocketPlace::open(&path).unwrap(), |_| Response::Done).is_err());
    drop(server);
    drop(UnixListener::bind(&path).unwrap());
    assert!(ControlServer::start(SocketPlace::open(&path).unwrap(), |_| Response::Done).is_ok());
}
