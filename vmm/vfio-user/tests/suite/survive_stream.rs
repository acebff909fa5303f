//! Streams that a server must survive: negotiation, framing, descriptors, and endings. Each case is
//! known to break an existing server. The client's end is raw bytes, and the server is driven step
//! by step in the same thread.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::common::*;
use nicforge_vfio_user::socket::FrameError;
use nicforge_vfio_user::wire::{Command, Header, parse_version};
use nicforge_vfio_user::*;

const QEMU_JSON: &[u8] = br#"{"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1048576, "pgsizes": 4096, "max_dma_maps": 65535, "write_multiple": true}}"#;

// Negotiation

#[test]
fn version_without_json_is_answered_without_json() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &version(b""));

    assert_eq!(reply.payload, [0, 0, 0, 0]);
    pair.assert_alive();
}

#[test]
fn version_with_json_that_lacks_its_nul_is_answered() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &[&[0, 0, 0, 0], QEMU_JSON].concat());

    assert!(parse_version(&reply.payload).unwrap().capabilities.is_some());
    pair.assert_alive();
}

#[test]
fn version_with_empty_object_is_answered_with_one() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &version(b"{}"));

    assert_eq!(&reply.payload[4..], b"{}\0");
    pair.assert_alive();
}

#[test]
fn version_of_qemu_is_answered_with_only_its_capabilities() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &version(QEMU_JSON));

    assert!(reply.payload.len() - 4 <= 190 && reply.payload.len() <= version(QEMU_JSON).len());
    let answer = parse_version(&reply.payload).unwrap();
    assert_eq!((answer.major, answer.minor), (0, 0));
    let capabilities = answer.capabilities.unwrap();
    assert_eq!(capabilities.max_msg_fds, Some(16));
    assert_eq!(capabilities.max_data_xfer_size, Some(1 << 20));
    assert_eq!((capabilities.pgsizes, capabilities.max_dma_maps), (Some(4096), Some(65535)));
    assert_eq!(capabilities.write_multiple, Some(true));
    assert_eq!(pair.server.peer().unwrap().max_msg_fds, Some(8));
}

#[test]
fn version_reply_is_short_even_with_the_largest_limits() {
    let config = ServerConfig {
        max_data_xfer_size: u32::MAX - 8192,
        pgsizes: u64::MAX,
        max_dma_maps: u32::MAX,
        ..Default::default()
    };
    let mut pair = Pair::new(config);

    let reply = pair.ask(Command::Version, &version(QEMU_JSON));

    assert!(reply.payload.len() - 4 <= 190, "{}", reply.payload.len());
}

#[test]
fn version_with_higher_minor_is_answered_with_ours() {
    let mut pair = Pair::new(ServerConfig::default());

    let reply = pair.ask(Command::Version, &[0, 0, 9, 0]);

    assert_eq!(reply.payload, [0, 0, 0, 0]);
}

#[test]
fn version_with_another_major_is_refused_and_ends_the_connection() {
    let mut pair = Pair::new(ServerConfig::default());
    pair.send(&request(Command::Version, &[1, 0, 0, 0]));

    let error = pair.try_serve().unwrap_err();

    assert!(matches!(error, ConnectionError::Major { major: 1 }));
    assert_eq!(pair.reply().header.reply_error(), Some(Errno::ENOTSUP));
    assert!(matches!(pair.try_serve(), Err(ConnectionError::Ended)));
}

#[test]
fn version_with_malformed_json_is_refused_and_ends_the_connection() {
    for json in [&b"{"[..], b"nonsense", b"{\"capabilities\":{\"max_msg_fds\":\"8\"}}", b"\xff\xff"] {
        let mut pair = Pair::new(ServerConfig::default());
        pair.send(&request(Command::Version, &version(json)));

        let error = pair.try_serve().unwrap_err();

        assert!(matches!(error, ConnectionError::Version(_)));
        assert_eq!(pair.reply().header.reply_error(), Some(Errno::EINVAL));
    }
}

#[test]
fn version_that_allows_no_transfer_is_refused() {
    let mut pair = Pair::new(ServerConfig::default());
    pair.send(&request(Command::Version, &version(br#"{"capabilities":{"max_data_xfer_size":0}}"#)));

    assert!(matches!(pair.try_serve(), Err(ConnectionError::NoTransfers)));
}

#[test]
fn second_version_is_refused_and_the_connection_stays_usable() {
    let mut pair = Pair::negotiated();

    pair.assert_refuses(Command::Version, &version(b"{}"), Errno::EINVAL);

    pair.assert_alive();
}

#[test]
fn command_before_the_version_is_refused_and_ends_the_connection() {
    let mut pair = Pair::new(ServerConfig::default());
    pair.send(&request(Command::DeviceReset, &[]));

    let error = pair.try_serve().unwrap_err();

    assert!(matches!(error, ConnectionError::NotNegotiated { command: Command::DeviceReset }));
    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EINVAL));
    assert_eq!(pair.device.resets, 0);
}

// Framing

#[test]
fn message_size_below_the_header_ends_the_connection() {
    for size in [0, 1, 15] {
        let mut pair = Pair::negotiated();
        let header = Header { size, ..Header::request(1, Command::DeviceReset, 0, false) };
        pair.send(&header.to_bytes());

        let error = pair.try_serve().unwrap_err();

        assert!(matches!(error, ConnectionError::Frame(FrameError::TooShort { .. })));
    }
}

#[test]
fn message_size_past_the_limit_ends_the_connection_before_it_arrives() {
    for size in [2 << 20, u32::MAX] {
        let mut pair = Pair::negotiated();
        let header = Header { size, ..Header::request(1, Command::RegionWrite, 0, false) };
        pair.send(&header.to_bytes());

        let error = pair.try_serve().unwrap_err();

        assert!(matches!(error, ConnectionError::Frame(FrameError::TooLong { .. })));
    }
}

#[test]
fn message_of_unknown_type_ends_the_connection() {
    let mut pair = Pair::negotiated();
    let header = Header { flags: 7, ..Header::request(1, Command::DeviceReset, 0, false) };
    pair.send(&header.to_bytes());

    assert!(matches!(pair.try_serve(), Err(ConnectionError::Frame(FrameError::Type { kind: 7 }))));
}

#[test]
fn access_that_overflows_or_exceeds_the_transfer_size_is_refused() {
    let mut pair = Pair::negotiated_with(
        ServerConfig { max_data_xfer_size: 4096, ..Default::default() },
        br#"{"capabilities":{"max_data_xfer_size":65536}}"#,
    );

    pair.assert_refuses(Command::RegionRead, &access(u64::MAX, 0, 2, &[]), Errno::EINVAL);
    pair.assert_refuses(Command::RegionRead, &access(0, 0, 4097, &[]), Errno::EINVAL);
    let maximum = pair.ask(Command::RegionRead, &access(0, 0, 4096, &[]));

    assert_eq!(maximum.payload.len(), 16 + 4096);
}

#[test]
fn unknown_commands_are_consumed_with_their_payload_and_refused() {
    let mut pair = Pair::negotiated();

    pair.assert_refuses(Command::Unknown(0), &[7; 100], Errno::ENOSYS);
    pair.assert_refuses(Command::Unknown(999), &vec![7; 70_000], Errno::ENOSYS);
    pair.assert_refuses(Command::DeviceGetRegionIoFds, &words(&[16, 0, 0, 0]), Errno::ENOTSUP);
    pair.assert_refuses(Command::DmaRead, &[0; 16], Errno::EINVAL);

    pair.assert_alive();
}

#[test]
fn features_migration_and_dirty_pages_are_refused_as_by_the_reference() {
    let mut pair = Pair::negotiated();
    const GET: u32 = 1 << 16;
    const SET: u32 = 1 << 17;
    const PROBE: u32 = 1 << 18;

    for feature in [1, 2, 6, 7, 8, 0xffff] {
        for operation in [0, GET, SET, PROBE, PROBE | GET | SET] {
            pair.assert_refuses(
                Command::DeviceFeature,
                &words(&[24, operation | feature, 0, 0]),
                Errno::EINVAL,
            );
        }
    }
    pair.assert_refuses(Command::MigDataRead, &words(&[4096, 4088]), Errno::EINVAL);
    pair.assert_refuses(Command::MigDataWrite, &words(&[12, 4, 7]), Errno::EINVAL);
    pair.assert_refuses(Command::DirtyPages, &words(&[8, 1]), Errno::ENOTSUP);

    pair.assert_alive();
}

#[test]
fn payloads_cut_short_are_refused() {
    let mut pair = Pair::negotiated();
    // VERSION has number 1.
    for number in 2..=15 {
        let command = Command::from_number(number);
        if command != Command::DeviceReset {
            let reply = pair.ask(command, &[1, 2, 3]);
            assert!(reply.header.reply_error().is_some(), "{command:?}");
        }
    }

    pair.assert_alive();
}

#[test]
fn reply_without_a_request_is_dropped_and_counted() {
    let mut pair = Pair::negotiated();
    pair.send(&message(Header::reply(5, Command::DmaRead, 20), &[0; 20]));
    pair.send(&message(Header::reply(6, Command::RegionRead, 0), &[]));
    pair.serve();

    assert_eq!(pair.server.counters().unmatched_replies, 2);
    assert!(pair.try_reply().is_none());
    pair.assert_alive();
}

#[test]
fn request_split_over_single_bytes_is_served_once() {
    let mut pair = Pair::negotiated();
    for byte in request(Command::RegionWrite, &access(8, 0, 3, &[1, 2, 3])) {
        assert!(pair.device.writes.is_empty());
        pair.send(&[byte]);
        pair.serve();
    }

    assert_eq!(pair.device.writes, [(0, 8, vec![1, 2, 3])]);
    assert_eq!(pair.reply().header.reply_error(), None);
}

#[test]
fn descriptor_of_a_request_split_over_single_bytes_arrives() {
    let mut pair = Pair::negotiated();
    let bytes = request(Command::DmaMap, &map_payload(READ_WRITE, 0, 0x1000, 0x1000));
    pair.send_fds(&bytes[..1], &[memfd(4096)]);
    for byte in &bytes[1..] {
        pair.serve();
        pair.send(&[*byte]);
    }
    pair.serve();

    assert!(pair.device.maps[&0x1000].1.is_some());
}

#[test]
fn several_requests_in_one_write_are_all_answered_in_order() {
    let mut pair = Pair::negotiated();
    let mut bytes = Vec::new();
    for id in 0..100u16 {
        let payload = access(id.into(), 0, 1, &[]);
        bytes.extend(message(Header::request(id, Command::RegionRead, payload.len(), false), &payload));
    }
    pair.send(&bytes);
    pair.serve();

    for id in 0..100u16 {
        let reply = pair.reply();
        assert_eq!((reply.header.id, reply.payload[16]), (id, (id % 251) as u8));
    }
}

#[test]
fn pipelined_maps_keep_their_own_descriptors() {
    let mut pair = Pair::negotiated();
    for index in 0..64u64 {
        let bytes = request(Command::DmaMap, &map_payload(READ_WRITE, 0, index << 12, 4096));
        // Every third range is a read-only window without a descriptor.
        let fds: Vec<OwnedFd> = if index % 3 == 0 { Vec::new() } else { vec![memfd(4096 + index)] };
        pair.send_fds(&bytes, &fds);
    }
    pair.serve();

    for (index, (_, fd)) in pair.device.maps.values().enumerate() {
        let size = fd.as_ref().map(|fd| nix::sys::stat::fstat(fd).unwrap().st_size);
        assert_eq!(size, (index % 3 != 0).then_some(4096 + index as i64));
    }
    assert_eq!(pair.device.maps.len(), 64);
}

// Descriptors

#[test]
fn descriptors_dripped_into_one_message_without_end_are_closed_above_a_bound() {
    let mut pair = Pair::negotiated();
    let header = Header { size: 4096, ..Header::request(1, Command::DmaMap, 0, false) };
    pair.send(&header.to_bytes());
    let (read, write) = nix::unistd::pipe().unwrap();
    let before = open_descriptors(&write);
    for _ in 0..100 {
        let fds: Vec<OwnedFd> = (0..16).map(|_| write.try_clone().unwrap()).collect();
        pair.send_fds(&[0], &fds);
        drop(fds);
        pair.serve();
    }

    assert!(open_descriptors(&write) - before <= 256);
    drop((pair, write));
    assert!(other_end_is_closed(&read));
}

/// Returns the number of this process's descriptors that lead to the same pipe.
fn open_descriptors(fd: &OwnedFd) -> usize {
    let inode = nix::sys::stat::fstat(fd).unwrap().st_ino;
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let same = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        target.to_str()?.contains(&format!("pipe:[{inode}]")).then_some(())
    };

    entries.filter_map(same).count()
}

// A client that does not read, or dies

#[test]
fn client_that_stops_reading_stops_the_serving_and_not_the_server() {
    let config = ServerConfig { max_queued: 64 * 1024, ..Default::default() };
    let mut pair = Pair::negotiated_with(config, b"{}");
    let bytes = request(Command::RegionRead, &access(0, 0, 32768, &[]));
    for _ in 0..100 {
        pair.send(&bytes);
    }

    let progress = pair.try_serve().unwrap();

    assert_eq!(progress, Progress::Blocked);
    assert!(pair.server.wants_write() && !pair.server.wants_read() && !pair.server.ready());
    let mut replies = 0;
    let deadline = Instant::now() + TIMEOUT;
    while replies < 100 {
        assert!(Instant::now() < deadline);
        while let Some(reply) = pair.try_reply() {
            assert_eq!(reply.payload.len(), 16 + 32768);
            replies += 1;
        }
        pair.server.on_writable().unwrap();
        pair.serve();
    }
}

#[test]
fn each_queued_reply_has_its_descriptor() {
    let mut pair = Pair::negotiated();
    let payload = [words(&[4096, 0, 1, 0]), vec![0; 16]].concat();

    for _ in 0..10 {
        for _ in 0..40 {
            pair.send(&request(Command::DeviceGetRegionInfo, &payload));
        }
        pair.serve();
    }
    // So few replies wait that the process keeps free descriptors.
    assert!(pair.server.wants_write() && !pair.server.wants_read());
    let mut replies = 0;
    let deadline = Instant::now() + TIMEOUT;
    while replies < 400 {
        assert!(Instant::now() < deadline);
        while let Some(reply) = pair.try_reply() {
            assert_eq!((reply.payload.len(), reply.fds.len()), (80, 1));
            replies += 1;
        }
        pair.server.on_writable().unwrap();
        pair.serve();
    }

    assert!(!pair.server.wants_write());
}

#[test]
fn client_that_closes_between_messages_is_closed_after_its_last_request() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(0, 0, 1, &[1])));
    pair.peer.shutdown(std::net::Shutdown::Both).unwrap();

    assert_eq!(pair.try_serve().unwrap(), Progress::Closed);

    assert_eq!(pair.device.writes.len(), 1);
    assert!(!pair.server.wants_read() && !pair.server.wants_write());
}

#[test]
fn requests_of_a_client_that_closes_without_waiting_for_replies_are_all_served() {
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let mut server = ServerConnection::new(socket.into(), ServerConfig::default());
    let mut device = Device::default();
    peer.write_all(&request(Command::Version, &version(b""))).unwrap();
    for value in 0..3 {
        peer.write_all(&request(Command::RegionRead, &access(0, 0, 4, &[]))).unwrap();
        peer.write_all(&posted(Command::RegionWrite, &access(8, 0, 1, &[value]))).unwrap();
    }
    drop(peer);

    serve_to_the_end(&mut server, &mut device);

    assert_eq!(device.writes.len(), 3);
}

#[test]
fn requests_of_a_client_that_closes_on_queued_replies_are_all_served() {
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let mut server = ServerConnection::new(socket.into(), ServerConfig::default());
    let mut device = Device::default();
    peer.write_all(&request(Command::Version, &version(b""))).unwrap();
    while !server.wants_write() {
        peer.write_all(&request(Command::RegionRead, &access(0, 0, 1 << 16, &[]))).unwrap();
        server.on_readable(&mut device).unwrap();
    }
    peer.write_all(&posted(Command::RegionWrite, &access(8, 0, 1, &[1]))).unwrap();
    drop(peer);

    server.on_writable().unwrap();
    assert!(!server.wants_write());
    assert!(matches!(server.dma_read(0, 1, 1), Err(DmaError::NotConnected)));
    serve_to_the_end(&mut server, &mut device);

    assert_eq!(device.writes.len(), 1);
}

/// Serves a connection until the client's end is reached.
fn serve_to_the_end(server: &mut ServerConnection, device: &mut Device) {
    let deadline = Instant::now() + TIMEOUT;
    while server.on_readable(device).unwrap() != Progress::Closed {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn death_of_a_client_within_a_message_is_a_specific_error() {
    for cut in [1, 15, 16, 20] {
        let mut pair = Pair::negotiated();
        let bytes = request(Command::RegionWrite, &access(0, 0, 8, &[1; 8]));
        pair.send(&bytes[..cut]);
        pair.peer.shutdown(std::net::Shutdown::Both).unwrap();

        let error = pair.try_serve().unwrap_err();

        assert!(matches!(error, ConnectionError::Truncated { buffered } if buffered == cut));
        assert!(pair.device.writes.is_empty());
    }
}

#[test]
fn death_of_a_client_with_a_deferred_request_is_detected() {
    let mut pair = Pair::negotiated();
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.serve();
    pair.peer.shutdown(std::net::Shutdown::Both).unwrap();

    assert_eq!(pair.try_serve().unwrap(), Progress::Closed);
}
