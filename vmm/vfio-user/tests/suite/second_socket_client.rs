//! The client and a server's second socket. The server is raw bytes on both, in a thread or in the
//! test itself.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::*;
use nicforge_vfio_user::socket::Framed;
use nicforge_vfio_user::wire::{Command, Header};
use nicforge_vfio_user::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// JSON of a server that offers the second socket as the reply's first descriptor.
const AGREED: &[u8] = br#"{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}"#;

/// Memory from address 0 on, with slow writes.
struct SlowMemory(Mutex<Vec<u8>>);

impl GuestMemory for SlowMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        let memory = self.0.lock().unwrap();
        let from = memory.get(address as usize..).and_then(|memory| memory.get(..data.len()));
        data.copy_from_slice(from.ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        for _ in 0..100 {
            std::thread::yield_now();
        }
        let mut memory = self.0.lock().unwrap();
        let to = memory.get_mut(address as usize..).and_then(|memory| memory.get_mut(..data.len()));
        to.ok_or(Errno::EFAULT)?.copy_from_slice(data);
        Ok(())
    }
}

/// Returns 4096 bytes of 0x5a.
fn slow_memory() -> Arc<SlowMemory> {
    Arc::new(SlowMemory(Mutex::new(vec![0x5a; 4096])))
}

/// The server's ends of both sockets.
struct ServerEnds {
    main: Framed,
    second_socket: Framed,
}

fn framed(stream: UnixStream) -> Framed {
    Framed::new(stream.into(), 4 << 20, 16)
}

/// Waits for a message.
fn wait(socket: &mut Framed) -> ReceivedMessage {
    let deadline = Instant::now() + TIMEOUT;

    loop {
        if let Some(reply) = receive(socket) {
            return reply;
        }
        assert!(Instant::now() < deadline, "no message came");
        poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::from(100_u8)).unwrap();
    }
}

fn dma_payload(address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    [&address.to_le_bytes()[..], &count.to_le_bytes(), data].concat()
}

/// Answers the version with `json` and `fds`, and returns the proposal.
fn answer_version(main: &mut Framed, json: &[u8], fds: &[OwnedFd]) -> ReceivedMessage {
    let request = wait(main);
    let payload = version(json);
    let reply = message(Header::reply(request.header.id, Command::Version, payload.len()), &payload);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    main.send(&reply, &[], &fds).unwrap();
    request
}

/// Returns a client that has agreed on a second socket, and the server's ends.
fn connect_with_second_socket(config: ClientConfig) -> (Client, ServerEnds) {
    let (client_end, main) = UnixStream::pair().unwrap();
    let (remote_end, local_end) = UnixStream::pair().unwrap();
    let mut main = framed(main);
    let server = std::thread::spawn(move || {
        answer_version(&mut main, AGREED, &[remote_end.into()]);
        main
    });
    let client = Client::from_socket(client_end.into(), config).unwrap();

    (client, ServerEnds { main: server.join().unwrap(), second_socket: framed(local_end) })
}

fn config_with_memory(memory: &Arc<SlowMemory>) -> ClientConfig {
    ClientConfig { timeout: TIMEOUT, memory: Some(memory.clone()), ..Default::default() }
}

/// Serves one request on the first socket; `before` runs before it is answered.
fn serve_one(
    mut ends: ServerEnds,
    before: impl FnOnce(&mut ServerEnds) + Send + 'static,
) -> JoinHandle<ServerEnds> {
    std::thread::spawn(move || {
        let request = wait(&mut ends.main);
        before(&mut ends);
        ends.main
            .send(&Header::reply(request.header.id, request.header.command, 0).to_bytes(), &[], &[])
            .unwrap();
        ends
    })
}

#[test]
fn second_socket_is_proposed_without_an_index_and_agreed_on() {
    let (local_end, main) = UnixStream::pair().unwrap();
    let (remote_end, _near) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || answer_version(&mut framed(main), AGREED, &[remote_end.into()]));

    let client = Client::from_socket(local_end.into(), ClientConfig::default()).unwrap();

    let json = String::from_utf8(server.join().unwrap().payload[4..].to_vec()).unwrap();
    assert!(json.contains(r#""twin_socket":{"supported":true}"#), "{json}");
    assert!(client.limits().twin_socket);
}

#[test]
fn requests_on_the_second_socket_are_served_while_no_call_waits() {
    let memory = slow_memory();
    let (client, mut ends) = connect_with_second_socket(config_with_memory(&memory));

    ends.second_socket
        .send(&request(Command::DmaWrite, &dma_payload(16, 4, &[1, 2, 3, 4])), &[], &[])
        .unwrap();
    let written = wait(&mut ends.second_socket);
    ends.second_socket.send(&request(Command::DmaRead, &dma_payload(15, 6, &[])), &[], &[]).unwrap();
    let read = wait(&mut ends.second_socket);
    ends.second_socket.send(&request(Command::DmaRead, &dma_payload(4096, 6, &[])), &[], &[]).unwrap();
    let refused = wait(&mut ends.second_socket);

    assert_eq!((written.header.reply_error(), written.payload), (None, dma_payload(16, 4, &[])));
    assert_eq!(read.payload, dma_payload(15, 6, &[0x5a, 1, 2, 3, 4, 0x5a]));
    assert_eq!(refused.header.reply_error(), Some(Errno::EFAULT));
    // They are reported once, by the next call.
    assert_eq!(client.poll_incoming(TIMEOUT).unwrap(), 3);
    assert_eq!(client.poll_incoming(Duration::ZERO).unwrap(), 0);
}

#[test]
fn poll_incoming_ends_with_the_first_request_on_the_second_socket() {
    let memory = slow_memory();
    let (client, mut ends) = connect_with_second_socket(config_with_memory(&memory));

    let server = std::thread::spawn(move || {
        ends.second_socket.send(&request(Command::DmaWrite, &dma_payload(0, 1, &[9])), &[], &[]).unwrap();
        wait(&mut ends.second_socket);
        ends
    });

    assert_eq!(client.poll_incoming(TIMEOUT).unwrap(), 1);
    assert_eq!(memory.0.lock().unwrap()[0], 9);
    server.join().unwrap();
}

#[test]
fn poll_incoming_ends_when_the_server_hangs_up_the_first_socket() {
    let (client, ends) = connect_with_second_socket(config_with_memory(&slow_memory()));
    let ServerEnds { main, second_socket } = ends;
    drop(main);

    assert!(matches!(client.poll_incoming(TIMEOUT), Err(ClientError::Disconnected { .. })));
    drop(second_socket);
}

#[test]
fn call_returns_after_the_requests_that_were_sent_before_its_reply() {
    for _ in 0..50 {
        let memory = slow_memory();
        let (client, ends) = connect_with_second_socket(config_with_memory(&memory));
        let server = serve_one(ends, |ends| {
            for at in 0..8 {
                ends.second_socket
                    .send(&request(Command::DmaWrite, &dma_payload(at, 1, &[7])), &[], &[])
                    .unwrap();
            }
        });

        client.reset().unwrap();

        assert_eq!(memory.0.lock().unwrap()[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0x5a]);
        server.join().unwrap();
    }
}

/// The reference's server blocks in a read or write of client memory, and reads no other message
/// meanwhile.
#[test]
fn calls_and_requests_of_a_server_that_reads_nothing_else_meanwhile_do_not_deadlock() {
    let memory = slow_memory();
    let (client, mut ends) = connect_with_second_socket(config_with_memory(&memory));
    let server = std::thread::spawn(move || {
        for _ in 0..100 {
            ends.second_socket
                .send(&request(Command::DmaRead, &dma_payload(0, 4096, &[])), &[], &[])
                .unwrap();
            assert_eq!(wait(&mut ends.second_socket).header.reply_error(), None);
            let request = wait(&mut ends.main);
            let reply = Header::reply(request.header.id, request.header.command, 0).to_bytes();
            ends.main.send(&reply, &[], &[]).unwrap();
        }
    });

    for _ in 0..100 {
        client.reset().unwrap();
    }

    server.join().unwrap();
}

#[test]
fn offer_that_names_no_connected_socket_is_malformed() {
    let directory = tempfile::tempdir().unwrap();
    let stream = || OwnedFd::from(UnixStream::pair().unwrap().0);
    let datagram = || OwnedFd::from(UnixDatagram::pair().unwrap().0);
    let listener = || OwnedFd::from(UnixListener::bind(directory.path().join("l")).unwrap());
    let offer = |rest: &str| format!(r#"{{"capabilities":{{"twin_socket":{{"supported":true{rest}}}}}}}"#);
    let cases = [
        (offer(""), vec![stream()]),
        (offer(r#","fd_index":0"#), vec![]),
        (offer(r#","fd_index":1"#), vec![stream()]),
        (offer(r#","fd_index":18446744073709551615"#), vec![stream()]),
        (offer(r#","fd_index":0"#), vec![memfd(4096)]),
        (offer(r#","fd_index":0"#), vec![eventfd()]),
        (offer(r#","fd_index":0"#), vec![datagram()]),
        (offer(r#","fd_index":0"#), vec![listener()]),
    ];
    for (json, fds) in cases {
        let (local_end, main) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            answer_version(&mut framed(main), json.as_bytes(), &fds);
        });

        let error = Client::from_socket(local_end.into(), ClientConfig::default()).unwrap_err();

        assert!(matches!(error, ClientError::Malformed { command: Command::Version, .. }), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn second_socket_that_was_not_proposed_is_malformed() {
    let configs = [
        ClientConfig { twin_socket: false, ..Default::default() },
        ClientConfig { max_msg_fds: 0, ..Default::default() },
    ];
    for config in configs {
        let (local_end, main) = UnixStream::pair().unwrap();
        let remote_end = UnixStream::pair().unwrap().0;
        let server =
            std::thread::spawn(move || answer_version(&mut framed(main), AGREED, &[remote_end.into()]));

        let error = Client::from_socket(local_end.into(), config).unwrap_err();

        assert!(matches!(error, ClientError::Malformed { command: Command::Version, .. }), "{error}");
        let json = String::from_utf8(server.join().unwrap().payload[4..].to_vec()).unwrap();
        assert!(!json.contains("twin_socket"), "{json}");
    }
}

#[test]
fn server_that_declines_has_one_socket() {
    let declined = br#"{"capabilities":{"twin_socket":{"supported":false}}}"#;
    for json in [&declined[..], br#"{"capabilities":{"twin_socket":{}}}"#, br#"{"capabilities":{}}"#] {
        let (local_end, main) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || answer_version(&mut framed(main), json, &[]));

        let client = Client::from_socket(local_end.into(), ClientConfig::default()).unwrap();

        assert!(!client.limits().twin_socket);
        server.join().unwrap();
    }
}

#[test]
fn bad_framing_on_the_second_socket_ends_the_client_and_a_call_that_waits() {
    let short = Header { size: 15, ..Header::request(1, Command::DmaRead, 0, false) };
    let long = Header { size: u32::MAX, ..short };
    let unknown = Header { flags: 7, ..Header::request(1, Command::DmaRead, 0, false) };
    for header in [short, long, unknown] {
        let (client, mut ends) = connect_with_second_socket(config_with_memory(&slow_memory()));
        let server = std::thread::spawn(move || {
            wait(&mut ends.main);
            ends.second_socket.send(&header.to_bytes(), &[], &[]).unwrap();
            ends
        });

        assert!(matches!(client.reset(), Err(ClientError::Disconnected { .. })));
        assert!(matches!(client.device_info(), Err(ClientError::Disconnected { .. })));
        assert!(!client.is_alive());
        server.join().unwrap();
    }
}

#[test]
fn calls_go_on_when_the_server_closes_its_second_socket() {
    let memory = slow_memory();
    let (client, mut ends) = connect_with_second_socket(config_with_memory(&memory));
    ends.second_socket.send(&posted(Command::DmaWrite, &dma_payload(0, 1, &[3])), &[], &[]).unwrap();
    ends.second_socket = framed(UnixStream::pair().unwrap().0);

    for _ in 0..3 {
        let server = serve_one(ends, |_| {});
        client.reset().unwrap();
        ends = server.join().unwrap();
    }

    // The request that it sent before was served.
    assert_eq!(memory.0.lock().unwrap()[0], 3);
    assert!(client.is_alive());
}

#[test]
fn replies_on_the_second_socket_are_ignored() {
    let (client, ends) = connect_with_second_socket(config_with_memory(&slow_memory()));
    let server = serve_one(ends, |ends| {
        for id in 0..8 {
            let reply = Header::error_reply(id, Command::DeviceReset, Errno::EIO);
            ends.second_socket.send(&reply.to_bytes(), &[], &[]).unwrap();
        }
    });

    client.reset().unwrap();

    server.join().unwrap();
}

#[test]
fn server_that_floods_its_second_socket_cannot_pass_the_deadline() {
    let timeout = Duration::from_millis(200);
    let (client, ends) = connect_with_second_socket(ClientConfig {
        timeout,
        memory: Some(slow_memory()),
        ..Default::default()
    });
    let ServerEnds { main, mut second_socket } = ends;
    let flood = std::thread::spawn(move || {
        let requests = posted(Command::DmaRead, &dma_payload(0, 1, &[])).repeat(100);
        while second_socket.send(&requests, &[], &[]).and_then(|()| second_socket.flush()).is_ok() {
            let _ =
                poll(&mut [PollFd::new(second_socket.as_fd(), PollFlags::POLLOUT)], PollTimeout::from(1_u8));
        }
    });
    let started = Instant::now();

    let error = client.reset().unwrap_err();
    drop(client);

    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(started.elapsed() < TIMEOUT);
    flood.join().unwrap();
    drop(main);
}

#[test]
fn thread_of_the_second_socket_ends_with_the_client() {
    let memory = slow_memory();
    let (client, mut ends) = connect_with_second_socket(config_with_memory(&memory));

    drop(client);

    // No thread holds the memory any more, and both sockets are closed.
    assert_eq!(Arc::strong_count(&memory), 1);
    let end = |socket: &mut Framed| matches!(socket.fill(), Ok(nicforge_vfio_user::socket::ReadOutcome::End));
    assert!(end(&mut ends.second_socket) && end(&mut ends.main));
}
