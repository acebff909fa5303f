//! The server and the second socket that a client proposed. The client's ends are raw bytes, and
//! the server is driven step by step in the same thread.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::net::UnixStream;

use crate::common::*;
use nicforge_vfio_user::socket::Framed;
use nicforge_vfio_user::wire::{Command, Header, TwinSocket, parse_version};
use nicforge_vfio_user::*;

/// JSON of a client that proposes a second socket.
const PROPOSAL: &[u8] = br#"{"capabilities":{"max_msg_fds":8,"twin_socket":{"supported":true}}}"#;
/// As [`PROPOSAL`], with DMA messages of at most 4096 bytes.
const PROPOSAL_OF_SMALL_TRANSFERS: &[u8] =
    br#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":4096,"twin_socket":{"supported":true}}}"#;

/// A connection with a second socket, and the client's end of that socket.
struct TwoSockets {
    pair: Pair,
    second_socket: Framed,
}

impl TwoSockets {
    fn new() -> Self {
        Self::with(ServerConfig::default(), PROPOSAL)
    }

    /// Returns a server with a second socket, which the client's capabilities `json` ask for.
    fn with(config: ServerConfig, json: &[u8]) -> Self {
        let mut pair = Pair::new(config);
        let mut reply = pair.ask(Command::Version, &version(json));
        assert_eq!(reply.fds.len(), 1);
        Self { pair, second_socket: Framed::new(reply.fds.remove(0).into(), 4 << 20, 0) }
    }

    fn request(&mut self) -> ReceivedMessage {
        receive(&mut self.second_socket).expect("a request on the second socket")
    }

    fn answer(&mut self, request: &ReceivedMessage, payload: &[u8]) {
        self.send(&message(Header::reply(request.header.id, request.header.command, payload.len()), payload));
    }

    fn send(&mut self, bytes: &[u8]) {
        self.second_socket.send(bytes, &[], &[]).unwrap();
    }

    /// Maps a range without a descriptor.
    fn map(&mut self, address: u64, size: u64) {
        let reply = self.pair.ask(Command::DmaMap, &map_payload(READ_WRITE, 0, address, size));
        assert_eq!(reply.header.reply_error(), None);
    }
}

fn dma_payload(address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    [&address.to_le_bytes()[..], &count.to_le_bytes(), data].concat()
}

#[test]
fn version_that_proposes_a_second_socket_is_answered_with_it_and_its_index() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &version(PROPOSAL));

    let capabilities = parse_version(&reply.payload).unwrap().capabilities.unwrap();
    assert_eq!(capabilities.twin_socket, Some(TwinSocket { supported: true, fd_index: Some(0) }));
    assert_eq!(reply.fds.len(), 1);
    assert!(pair.server.second_socket().is_some());
}

#[test]
fn version_without_a_second_socket_or_room_for_its_descriptor_is_answered_without() {
    for json in [
        &br#"{"capabilities":{"max_msg_fds":8}}"#[..],
        br#"{"capabilities":{"twin_socket":{}}}"#,
        br#"{"capabilities":{"twin_socket":{"supported":false}}}"#,
        br#"{"capabilities":{"max_msg_fds":0,"twin_socket":{"supported":true}}}"#,
    ] {
        let mut pair = Pair::new(ServerConfig::default());

        let reply = pair.ask(Command::Version, &version(json));

        assert_eq!(parse_version(&reply.payload).unwrap().capabilities.unwrap().twin_socket, None);
        assert!(reply.fds.is_empty() && pair.server.second_socket().is_none());
    }
}

#[test]
fn dma_messages_use_only_the_second_socket() {
    let mut sockets = TwoSockets::with(ServerConfig::default(), PROPOSAL_OF_SMALL_TRANSFERS);
    sockets.pair.server.dma_read(0x1000, 5000, 1).unwrap();
    sockets.pair.server.dma_write(0x8000, &[9; 3], 2).unwrap();

    let first = sockets.request();
    let write = sockets.request();
    sockets.answer(&first, &dma_payload(0x1000, 4096, &[1; 4096]));
    sockets.answer(&write, &dma_payload(0x8000, 3, &[]));
    sockets.pair.serve();
    let second = sockets.request();
    sockets.answer(&second, &dma_payload(0x2000, 904, &[2; 904]));
    sockets.pair.serve();

    assert_eq!((first.header.command, first.payload), (Command::DmaRead, dma_payload(0x1000, 4096, &[])));
    assert_eq!((write.header.command, write.payload), (Command::DmaWrite, dma_payload(0x8000, 3, &[9; 3])));
    assert_eq!(second.payload, dma_payload(0x2000, 904, &[]));
    let device = &sockets.pair.device;
    assert_eq!(device.dma_reads, [(1, Ok([vec![1; 4096], vec![2; 904]].concat()))]);
    assert_eq!(device.dma_writes, [(2, Ok(()))]);
    assert!(sockets.pair.try_reply().is_none());
}

#[test]
fn reply_on_the_first_socket_ends_no_operation_of_the_second() {
    let mut sockets = TwoSockets::new();
    sockets.pair.server.dma_read(0, 4, 1).unwrap();
    let dma_request = sockets.request();
    let reply =
        message(Header::reply(dma_request.header.id, Command::DmaRead, 20), &dma_payload(0, 4, &[7; 4]));

    sockets.pair.send(&reply);
    // The reply comes a second time after a deferred request, where replies are searched for.
    sockets.pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    sockets.pair.send(&reply);
    sockets.pair.serve();

    assert!(sockets.pair.device.dma_reads.is_empty());
    sockets.pair.server.complete(WRITE_TOKEN, Ok(())).unwrap();
    sockets.pair.serve();
    assert_eq!(sockets.pair.server.counters().unmatched_replies, 2);
    sockets.answer(&dma_request, &dma_payload(0, 4, &[8; 4]));
    sockets.pair.serve();
    assert_eq!(sockets.pair.device.dma_reads, [(1, Ok(vec![8; 4]))]);
}

#[test]
fn replies_on_the_second_socket_pass_a_deferred_request() {
    let mut sockets = TwoSockets::new();
    sockets.pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    sockets.pair.serve();
    sockets.pair.server.dma_read(0, 4, 1).unwrap();

    let dma_request = sockets.request();
    sockets.answer(&dma_request, &dma_payload(0, 4, &[7; 4]));
    sockets.pair.serve();

    assert_eq!(sockets.pair.device.dma_reads.len(), 1);
    assert_eq!(sockets.pair.server.deferred(), Some(WRITE_TOKEN));
}

#[test]
fn answer_to_an_unmap_waits_for_the_requests_that_touch_its_range() {
    let mut sockets = TwoSockets::new();
    sockets.map(0x1000, 0x1000);
    sockets.map(0x4000, 0x1000);
    sockets.pair.server.dma_write(0x1800, &[1; 16], 1).unwrap();
    sockets.pair.server.dma_write(0x4000, &[2; 16], 2).unwrap();
    let [touching, other] = [sockets.request(), sockets.request()];

    sockets.pair.send(&request(Command::DmaUnmap, &unmap_payload(0, 0x1000, 0x1000)));
    sockets.pair.serve();
    assert!(sockets.pair.try_reply().is_none());
    // The connection defers the unmap, not the handler.
    assert_eq!(sockets.pair.server.deferred(), None);
    assert!(sockets.pair.server.complete(0, Ok(())).is_err());
    sockets.answer(&touching, &dma_payload(0x1800, 16, &[]));
    sockets.pair.serve();

    let answer = sockets.pair.reply();
    assert_eq!((answer.header.command, answer.header.reply_error()), (Command::DmaUnmap, None));
    assert_eq!(answer.payload, unmap_payload(0, 0x1000, 0x1000));
    assert_eq!(sockets.pair.device.dma_writes, [(1, Ok(()))]);
    sockets.answer(&other, &dma_payload(0x4000, 16, &[]));
    sockets.pair.assert_alive();
    assert_eq!(sockets.pair.device.dma_writes, [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn operation_of_several_messages_ends_at_an_unmap_after_the_message_in_flight() {
    let mut sockets = TwoSockets::with(ServerConfig::default(), PROPOSAL_OF_SMALL_TRANSFERS);
    sockets.map(0, 0x4000);
    sockets.pair.server.dma_read(0, 0x3000, 1).unwrap();
    let dma_request = sockets.request();

    sockets.pair.send(&request(Command::DmaUnmap, &unmap_payload(0, 0, 0x4000)));
    sockets.pair.serve();
    assert!(sockets.pair.device.dma_reads.is_empty() && sockets.pair.try_reply().is_none());
    sockets.answer(&dma_request, &dma_payload(0, 4096, &[1; 4096]));
    sockets.pair.serve();

    assert_eq!(sockets.pair.device.dma_reads, [(1, Err(Errno::EFAULT))]);
    assert_eq!(sockets.pair.reply().header.command, Command::DmaUnmap);
    assert!(receive(&mut sockets.second_socket).is_none());
}

#[test]
fn unmap_continues_when_the_operation_that_it_waits_for_is_aborted() {
    let abortions: [fn(&mut TwoSockets); 3] = [
        |sockets| assert!(sockets.pair.server.forget_dma(1)),
        |sockets| sockets.pair.server.fail_dma(Errno::ECANCELED, &mut sockets.pair.device),
        |sockets| sockets.second_socket = Framed::new(UnixStream::pair().unwrap().0.into(), 4096, 0),
    ];
    for abort in abortions {
        let mut sockets = TwoSockets::new();
        sockets.map(0, 0x1000);
        sockets.pair.server.dma_read(0, 64, 1).unwrap();
        sockets.pair.send(&request(Command::DmaUnmap, &unmap_payload(0, 0, 0x1000)));
        sockets.pair.serve();
        assert!(sockets.pair.try_reply().is_none() && !sockets.pair.server.ready());

        abort(&mut sockets);
        sockets.pair.serve();

        assert_eq!(sockets.pair.reply().header.command, Command::DmaUnmap);
    }
}

#[test]
fn client_that_closes_its_second_socket_is_served_without_dma_messages() {
    let mut sockets = TwoSockets::new();
    sockets.pair.server.dma_read(0, 64, 1).unwrap();
    let TwoSockets { mut pair, second_socket } = sockets;
    drop(second_socket);

    pair.serve();

    assert_eq!(pair.device.dma_reads, [(1, Err(Errno::ENOTCONN))]);
    assert!(pair.server.second_socket_has_ended());
    assert!(matches!(pair.server.dma_write(0, &[1], 2), Err(DmaError::NotConnected)));
    pair.assert_alive();
}

#[test]
fn bad_framing_on_the_second_socket_ends_the_connection() {
    let valid = Header::reply(1, Command::DmaRead, 0);
    for header in
        [Header { size: 15, ..valid }, Header { size: u32::MAX, ..valid }, Header { flags: 7, ..valid }]
    {
        let mut sockets = TwoSockets::new();
        sockets.send(&header.to_bytes());

        assert!(matches!(sockets.pair.try_serve(), Err(ConnectionError::Frame(_))));
        assert!(matches!(sockets.pair.try_serve(), Err(ConnectionError::Ended)));
    }
}

#[test]
fn commands_on_the_second_socket_are_refused_there_and_have_no_effect() {
    let mut sockets = TwoSockets::new();
    for command in [Command::DeviceReset, Command::Version, Command::DmaRead, Command::Unknown(99)] {
        sockets.send(&request(command, &[0; 16]));
        sockets.send(&posted(command, &[0; 16]));
        sockets.pair.serve();

        let refused = sockets.request();
        assert_eq!((refused.header.command, refused.header.reply_error()), (command, Some(Errno::EINVAL)));
        assert!(receive(&mut sockets.second_socket).is_none());
    }
    assert_eq!(sockets.pair.device.resets, 0);
    assert!(sockets.pair.try_reply().is_none());
}

#[test]
fn client_that_floods_the_second_socket_is_limited_to_its_share_of_a_turn() {
    let mut sockets = TwoSockets::with(ServerConfig { budget: 4, ..Default::default() }, PROPOSAL);
    let before = sockets.pair.server.counters().messages;
    sockets.send(&Header::reply(1, Command::DmaRead, 0).to_bytes().repeat(100));

    sockets.pair.server.note_second_socket_readable();
    let progress = sockets.pair.server.on_readable(&mut sockets.pair.device).unwrap();

    assert_eq!(progress, Progress::More);
    assert!(sockets.pair.server.counters().messages <= before + 4);
    assert!(sockets.pair.server.ready());
    sockets.pair.serve();
    assert_eq!(sockets.pair.server.counters().unmatched_replies, 100);
}

#[test]
fn queues_for_a_client_that_does_not_read_its_second_socket_are_bounded() {
    let mut sockets = TwoSockets::with(ServerConfig { max_queued: 4096, ..Default::default() }, PROPOSAL);
    let mut operations = 0;
    while sockets.pair.server.dma_write(0, &[1; 60_000], operations).is_ok() {
        operations += 1;
    }
    assert!(sockets.pair.server.second_socket_wants_write());
    // Its own requests wait: no answer may overtake the queued messages.
    sockets.pair.send(&request(Command::DeviceReset, &[]));
    assert_eq!(sockets.pair.try_serve().unwrap(), Progress::Blocked);
    assert_eq!(sockets.pair.device.resets, 0);
    // Refusals that the client does not read are not kept either.
    sockets.send(&request(Command::DeviceReset, &[]).repeat(1000));
    assert_eq!(sockets.pair.try_serve().unwrap(), Progress::Blocked);

    let mut received = 0;
    while let Some(message) = receive(&mut sockets.second_socket) {
        received += u64::from(message.header.command == Command::DmaWrite);
        sockets.pair.server.on_writable().unwrap();
    }
    sockets.pair.serve();

    assert_eq!(received, operations);
    assert_eq!((sockets.pair.device.resets, sockets.pair.reply().header.command), (1, Command::DeviceReset));
}

#[test]
fn second_socket_is_closed_with_the_connection() {
    let TwoSockets { pair, mut second_socket } = TwoSockets::new();

    drop(pair);

    assert_eq!(second_socket.fill().unwrap(), nicforge_vfio_user::socket::ReadOutcome::End);
}
