//! What a server must survive: each case is known to break an existing one. The client's end is raw bytes, and
//! the server is driven step by step in the same thread.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Instant;

use common::*;
use nicforge_vfio_user::socket::FrameError;
use nicforge_vfio_user::wire::{Command, Header, MessageType, parse_version};
use nicforge_vfio_user::*;

const QEMU_JSON: &[u8] = br#"{"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1048576, "pgsizes": 4096, "max_dma_maps": 65535, "write_multiple": true}}"#;

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const ACTION_MASK: u32 = 8;
const ACTION_TRIGGER: u32 = 32;

fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    words(&[20, flags, index, start, count])
}

// Negotiation

#[test]
fn version_without_json_is_answered_without_json() {
    let mut pair = Pair::new(ServerConfig::default());

    let got = pair.ask(Command::Version, &version(b""));

    assert_eq!(got.payload, [0, 0, 0, 0]);
    pair.assert_alive();
}

#[test]
fn version_with_json_that_lacks_its_nul_is_answered() {
    let mut pair = Pair::new(ServerConfig::default());

    let got = pair.ask(Command::Version, &[&[0, 0, 0, 0], QEMU_JSON].concat());

    assert!(parse_version(&got.payload).unwrap().capabilities.is_some());
    pair.assert_alive();
}

#[test]
fn version_with_empty_object_is_answered_with_one() {
    let mut pair = Pair::new(ServerConfig::default());

    let got = pair.ask(Command::Version, &version(b"{}"));

    assert_eq!(&got.payload[4..], b"{}\0");
    pair.assert_alive();
}

#[test]
fn version_of_qemu_is_answered_shortly_with_what_it_named() {
    let mut pair = Pair::new(ServerConfig::default());

    let got = pair.ask(Command::Version, &version(QEMU_JSON));

    assert!(got.payload.len() - 4 <= 190 && got.payload.len() <= version(QEMU_JSON).len());
    let answer = parse_version(&got.payload).unwrap();
    assert_eq!((answer.major, answer.minor), (0, 0));
    let capabilities = answer.capabilities.unwrap();
    assert_eq!(capabilities.max_msg_fds, Some(16));
    assert_eq!(capabilities.max_data_xfer_size, Some(1 << 20));
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

    let got = pair.ask(Command::Version, &version(QEMU_JSON));

    assert!(got.payload.len() - 4 <= 190, "{}", got.payload.len());
}

#[test]
fn version_with_higher_minor_is_answered_with_ours() {
    let mut pair = Pair::new(ServerConfig::default());

    let got = pair.ask(Command::Version, &[0, 0, 9, 0]);

    assert_eq!(got.payload, [0, 0, 0, 0]);
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
fn second_version_is_refused_and_the_connection_goes_on() {
    let mut pair = Pair::negotiated();

    pair.refuses(Command::Version, &version(b"{}"), Errno::EINVAL);

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
fn counts_of_all_ones_are_refused() {
    let mut pair = Pair::negotiated();

    pair.refuses(Command::RegionRead, &access(0, 0, u32::MAX, &[]), Errno::EINVAL);
    pair.refuses(Command::RegionWrite, &access(0, 0, u32::MAX, &[1, 2, 3, 4]), Errno::EINVAL);
    pair.refuses(Command::DeviceSetIrqs, &set_irqs(DATA_NONE | ACTION_TRIGGER, 2, 0, u32::MAX), Errno::EINVAL);
    pair.refuses(Command::RegionWriteMulti, &[0xff; 8], Errno::EINVAL);
    pair.refuses(Command::DmaMap, &[0xff; 32], Errno::EINVAL);
    pair.refuses(Command::DmaUnmap, &[0xff; 24], Errno::EINVAL);

    pair.assert_alive();
}

#[test]
fn access_that_overflows_or_exceeds_the_transfer_size_is_refused() {
    let mut pair = Pair::negotiated_with(
        ServerConfig { max_data_xfer_size: 4096, ..Default::default() },
        br#"{"capabilities":{"max_data_xfer_size":65536}}"#,
    );

    pair.refuses(Command::RegionRead, &access(u64::MAX, 0, 2, &[]), Errno::EINVAL);
    pair.refuses(Command::RegionRead, &access(0, 0, 4097, &[]), Errno::EINVAL);
    let most = pair.ask(Command::RegionRead, &access(0, 0, 4096, &[]));

    assert_eq!(most.payload.len(), 16 + 4096);
}

#[test]
fn unknown_commands_are_consumed_with_their_payload_and_refused() {
    let mut pair = Pair::negotiated();

    pair.refuses(Command::Unknown(0), &[7; 100], Errno::ENOSYS);
    pair.refuses(Command::Unknown(999), &vec![7; 70_000], Errno::ENOSYS);
    pair.refuses(Command::DeviceFeature, &[7; 33], Errno::ENOTSUP);
    pair.refuses(Command::MigDataRead, &[7; 8], Errno::ENOTSUP);
    pair.refuses(Command::DeviceGetRegionIoFds, &words(&[16, 0, 0, 0]), Errno::ENOTSUP);
    pair.refuses(Command::DmaRead, &[0; 16], Errno::EINVAL);

    pair.assert_alive();
}

#[test]
fn payloads_cut_short_are_refused() {
    let mut pair = Pair::negotiated();
    for number in 2..=15 {
        let command = Command::from_number(number);
        if command != Command::DeviceReset {
            let got = pair.ask(command, &[1, 2, 3]);
            assert!(got.header.reply_error().is_some(), "{command:?}");
        }
    }

    pair.assert_alive();
}

#[test]
fn reply_to_nothing_is_dropped_and_counted() {
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
    let bytes = request(Command::DmaMap, &map_payload(3, 0, 0x1000, 0x1000));
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
    for id in 0..500u16 {
        let payload = access(id.into(), 0, 1, &[]);
        bytes.extend(message(Header::request(id, Command::RegionRead, payload.len(), false), &payload));
    }
    pair.send(&bytes);
    pair.serve();

    for id in 0..500u16 {
        let got = pair.reply();
        assert_eq!((got.header.id, got.payload[16]), (id, (id % 251) as u8));
    }
}

#[test]
fn pipelined_maps_keep_their_own_descriptors() {
    let mut pair = Pair::negotiated();
    for index in 0..64u64 {
        let bytes = request(Command::DmaMap, &map_payload(3, 0, index << 12, 4096));
        // Every third is a read-only window without a descriptor.
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

// NO_REPLY

#[test]
fn posted_requests_get_no_reply_even_when_they_fail() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(0, 0, 2, &[5, 6])));
    pair.send(&posted(Command::RegionWrite, &access(0, 99, 2, &[5, 6])));
    pair.send(&posted(Command::RegionRead, &access(0, 0, u32::MAX, &[])));
    pair.send(&posted(Command::Unknown(77), &[1; 9]));
    pair.send(&posted(Command::DmaUnmap, &unmap_payload(0, 0, 4096)));
    pair.send(&posted(Command::DeviceGetInfo, &[0; 3]));
    pair.serve();

    assert!(pair.try_reply().is_none());
    assert_eq!(pair.server.counters().failed, 5);
    assert_eq!(pair.device.writes, [(0, 0, vec![5, 6])]);
    pair.assert_alive();
}

// Interrupts

#[test]
fn set_irqs_past_the_end_is_refused() {
    let mut pair = Pair::negotiated();
    let flags = DATA_NONE | ACTION_TRIGGER;

    for (start, count) in [(VECTORS, 1), (0, VECTORS + 1), (VECTORS - 1, 2), (u32::MAX, 1), (1, u32::MAX)] {
        pair.refuses(Command::DeviceSetIrqs, &set_irqs(flags, PCI_MSIX_IRQ, start, count), Errno::EINVAL);
    }
    pair.refuses(Command::DeviceSetIrqs, &set_irqs(flags, 99, 0, 1), Errno::EINVAL);

    assert!(pair.device.irq_calls.is_empty());
}

#[test]
fn set_irqs_with_too_few_or_too_many_descriptors_is_refused_and_they_are_closed() {
    let mut pair = Pair::negotiated();
    let payload = set_irqs(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 3);
    for count in [1, 2, 4] {
        let (read, write) = nix::unistd::pipe().unwrap();
        let fds: Vec<OwnedFd> = (0..count).map(|_| write.try_clone().unwrap()).collect();
        pair.send_fds(&request(Command::DeviceSetIrqs, &payload), &fds);
        drop((write, fds));
        pair.serve();

        assert_eq!(pair.reply().header.reply_error(), Some(Errno::EINVAL));
        assert!(other_end_is_closed(&read));
    }
    assert!(pair.device.irq_calls.is_empty());
}

#[test]
fn set_irqs_with_more_descriptors_than_a_message_may_bring_is_refused_and_they_are_closed() {
    let mut pair = Pair::negotiated();
    let (read, write) = nix::unistd::pipe().unwrap();
    let fds: Vec<OwnedFd> = (0..VECTORS).map(|_| write.try_clone().unwrap()).collect();
    let payload = set_irqs(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, VECTORS);
    pair.send_fds(&request(Command::DeviceSetIrqs, &payload), &fds);
    drop((write, fds));
    pair.serve();

    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EMFILE));
    assert!(other_end_is_closed(&read));
    pair.assert_alive();
}

#[test]
fn disabling_a_range_stops_exactly_those_vectors() {
    let mut pair = Pair::negotiated();
    let bind = set_irqs(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 8);
    let fds: Vec<OwnedFd> = (0..8).map(|_| eventfd()).collect();
    pair.send_fds(&request(Command::DeviceSetIrqs, &bind), &fds);
    pair.serve();
    assert_eq!(pair.reply().header.reply_error(), None);

    let got = pair.ask(Command::DeviceSetIrqs, &set_irqs(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 2, 3));

    assert_eq!(got.header.reply_error(), None);
    assert_eq!(pair.device.bound(), [0, 1, 5, 6, 7]);
    pair.ask(Command::DeviceSetIrqs, &set_irqs(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 0));
    assert!(pair.device.bound().is_empty());
}

#[test]
fn set_irqs_with_contradicting_flags_is_refused() {
    let mut pair = Pair::negotiated();

    for flags in [
        0,
        DATA_NONE,
        ACTION_TRIGGER,
        DATA_NONE | DATA_BOOL | ACTION_TRIGGER,
        DATA_NONE | ACTION_TRIGGER | ACTION_MASK,
        DATA_NONE | ACTION_TRIGGER | 64,
        DATA_NONE | ACTION_MASK,
        // One byte an interrupt is needed, and none comes.
        DATA_BOOL | ACTION_TRIGGER,
    ] {
        pair.refuses(Command::DeviceSetIrqs, &set_irqs(flags, PCI_MSIX_IRQ, 0, 1), Errno::EINVAL);
    }
    // Only "none, trigger" with start 0 may have count 0.
    pair.refuses(Command::DeviceSetIrqs, &set_irqs(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 1, 0), Errno::EINVAL);
    pair.refuses(Command::DeviceSetIrqs, &set_irqs(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 0), Errno::EINVAL);

    assert!(pair.device.irq_calls.is_empty());
}

// Descriptors

#[test]
fn descriptors_of_requests_that_take_none_are_closed() {
    let mut pair = Pair::negotiated();
    for (command, payload) in [
        (Command::DeviceReset, vec![]),
        (Command::RegionRead, access(0, 0, 1, &[])),
        (Command::Unknown(500), vec![1; 10]),
        (Command::DeviceSetIrqs, set_irqs(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 1)),
    ] {
        let (read, write) = nix::unistd::pipe().unwrap();
        pair.send_fds(&request(command, &payload), &[write.try_clone().unwrap(), write]);
        pair.serve();

        assert!(other_end_is_closed(&read), "{command:?}");
        pair.reply();
    }
}

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

/// How many descriptors of this process lead to the same pipe.
fn open_descriptors(fd: &OwnedFd) -> usize {
    let inode = nix::sys::stat::fstat(fd).unwrap().st_ino;
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let same = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        target.to_str()?.contains(&format!("pipe:[{inode}]")).then_some(())
    };
    entries.filter_map(same).count()
}

// Maps

#[test]
fn unmap_of_a_huge_range_never_mapped_is_enoent_and_the_connection_goes_on() {
    let mut pair = Pair::negotiated();

    pair.refuses(Command::DmaUnmap, &unmap_payload(0, 0, u64::MAX), Errno::ENOENT);
    pair.refuses(Command::DmaUnmap, &unmap_payload(0, 1 << 63, 1 << 63), Errno::ENOENT);

    pair.assert_alive();
}

#[test]
fn unmap_is_answered_with_its_entry() {
    let mut pair = Pair::negotiated();
    pair.ask(Command::DmaMap, &map_payload(1, 0, 0xc0000, 0x40000));

    let got = pair.ask(Command::DmaUnmap, &unmap_payload(0, 0xc0000, 0x40000));

    assert_eq!(got.payload, unmap_payload(0, 0xc0000, 0x40000));
}

#[test]
fn maps_that_are_empty_overflow_or_have_unknown_flags_are_refused() {
    let mut pair = Pair::negotiated();

    pair.refuses(Command::DmaMap, &map_payload(3, 0, 0, 0), Errno::EINVAL);
    pair.refuses(Command::DmaMap, &map_payload(3, 0, u64::MAX, 2), Errno::EINVAL);
    pair.refuses(Command::DmaMap, &map_payload(3, u64::MAX, 0, 2), Errno::EINVAL);
    pair.refuses(Command::DmaMap, &map_payload(8, 0, 0, 4096), Errno::EINVAL);
    pair.refuses(Command::DmaMap, &map_payload(3, 0, 0, 4096)[..31], Errno::EINVAL);

    assert!(pair.device.maps.is_empty());
}

#[test]
fn four_thousand_pages_remapped_over_one_connection_work() {
    let mut pair = Pair::negotiated();
    for round in 0..2u64 {
        for page in 0..4000u64 {
            pair.send(&posted(Command::DmaMap, &map_payload(3, 0, page << 12, 4096)));
            if page % 500 == 499 {
                pair.serve();
            }
        }
        assert_eq!(pair.device.maps.len(), 4000, "round {round}");
        let got = pair.ask(Command::DmaUnmap, &unmap_payload(2, 0, 0));
        assert_eq!(got.header.reply_error(), None);
    }
}

// Regions

#[test]
fn region_info_respects_argsz_and_says_what_it_needs() {
    let mut pair = Pair::negotiated();
    let ask = |argsz: u32| [words(&[argsz, 0, 1, 0]), vec![0; 16]].concat();

    let short = pair.ask(Command::DeviceGetRegionInfo, &ask(32));
    let full = pair.ask(Command::DeviceGetRegionInfo, &ask(80));

    assert_eq!(short.payload.len(), 32);
    assert_eq!(short.payload[..4], 80u32.to_le_bytes());
    assert_eq!((full.payload.len(), full.fds.len()), (80, 1));
    pair.refuses(Command::DeviceGetRegionInfo, &ask(31), Errno::EINVAL);
    pair.refuses(Command::DeviceGetRegionInfo, &words(&[32, 0, 99, 0, 0, 0, 0, 0]), Errno::EINVAL);
}

#[test]
fn client_that_takes_no_descriptors_sees_no_mappable_region() {
    let json = br#"{"capabilities":{"max_msg_fds":0}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);

    let got = pair.ask(Command::DeviceGetRegionInfo, &[words(&[4096, 0, 1, 0]), vec![0; 16]].concat());

    assert!(got.fds.is_empty());
    assert_eq!(got.payload[4] as u32 & REGION_FLAG_MMAP, 0);
}

#[test]
fn write_multi_does_all_writes_and_counts_them() {
    let mut pair = Pair::negotiated();
    let mut payload = 2u64.to_le_bytes().to_vec();
    payload.extend(access(16, 0, 8, &[1, 2, 3, 4, 5, 6, 7, 8]));
    payload.extend(access(32, 0, 2, &[9, 9, 0, 0, 0, 0, 0, 0]));

    let got = pair.ask(Command::RegionWriteMulti, &payload);

    assert_eq!(got.payload, 2u64.to_le_bytes());
    assert_eq!(pair.device.writes, [(0, 16, vec![1, 2, 3, 4, 5, 6, 7, 8]), (0, 32, vec![9, 9])]);
}

#[test]
fn write_multi_with_one_bad_write_does_none() {
    let mut pair = Pair::negotiated();
    let mut payload = 2u64.to_le_bytes().to_vec();
    payload.extend(access(16, 0, 8, &[1; 8]));
    payload.extend(access(32, 0, 9, &[1; 8]));

    pair.refuses(Command::RegionWriteMulti, &payload, Errno::EINVAL);

    assert!(pair.device.writes.is_empty());
}

#[test]
fn write_multi_continues_behind_a_deferred_write() {
    let mut pair = Pair::negotiated();
    let mut payload = 3u64.to_le_bytes().to_vec();
    for offset in [16, STALL, 32] {
        payload.extend(access(offset, 0, 1, &[1; 8]));
    }
    pair.send(&request(Command::RegionWriteMulti, &payload));
    pair.serve();
    assert_eq!(pair.device.writes.len(), 2);

    pair.server.complete(77, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.writes.len(), 3);
    assert_eq!(pair.reply().payload, 3u64.to_le_bytes());
}

// Deferred requests

#[test]
fn requests_behind_a_deferred_one_wait_and_keep_their_order() {
    let mut pair = Pair::negotiated();
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&posted(Command::RegionWrite, &access(8, 0, 1, &[2])));
    pair.serve();
    assert_eq!(pair.device.writes.len(), 1);
    assert!(pair.try_reply().is_none());
    assert_eq!(pair.server.deferred(), Some(77));

    pair.server.complete(77, Err(Errno::EBUSY)).unwrap();
    assert!(pair.server.ready());
    pair.serve();

    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EBUSY));
    assert_eq!(pair.device.writes.len(), 2);
}

#[test]
fn completing_what_is_not_deferred_or_with_the_wrong_length_is_an_error() {
    let mut pair = Pair::negotiated();
    assert_eq!(pair.server.complete(77, Ok(())), Err(CompleteError::NotDeferred { token: 77 }));
    pair.send(&request(Command::RegionRead, &access(STALL_READ, 0, 4, &[])));
    pair.serve();

    assert_eq!(pair.server.complete(78, Ok(())), Err(CompleteError::Length { expected: 4, got: 0 }));
    assert_eq!(pair.server.complete(5, Ok(())), Err(CompleteError::NotDeferred { token: 5 }));
    pair.server.complete_read(78, Ok(&[1, 2, 3, 4])).unwrap();
    pair.serve();

    assert_eq!(pair.reply().payload[16..], [1, 2, 3, 4]);
}

#[test]
fn reset_behind_stalled_posted_writes_passes_them_in_order() {
    let mut pair = Pair::negotiated();
    pair.device.abort_with = Some(Errno::ECANCELED);
    for value in 0..3 {
        pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[value])));
    }
    pair.serve();
    assert_eq!(pair.device.writes.len(), 1);

    let got = pair.ask(Command::DeviceReset, &[]);

    assert_eq!((got.header.command, got.header.reply_error()), (Command::DeviceReset, None));
    assert_eq!(pair.device.aborts, [77, 77, 77]);
    assert_eq!(pair.device.resets, 1);
    // The reset is behind us: the next stalled write is not given up.
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[9])));
    pair.serve();
    assert_eq!(pair.device.aborts.len(), 3);
    assert_eq!(pair.server.deferred(), Some(77));
}

#[test]
fn handler_that_does_not_give_up_is_asked_once() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&request(Command::DeviceReset, &[]));
    pair.serve();
    pair.serve();
    assert_eq!((pair.device.aborts.len(), pair.device.resets), (1, 0));

    pair.server.complete(77, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.resets, 1);
}

#[test]
fn client_that_keeps_sending_behind_a_deferred_request_fills_one_buffer_and_no_more() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.peer.set_nonblocking(true).unwrap();
    let bytes = posted(Command::RegionWrite, &access(0x1000, 0, 4096, &[2; 4096]));
    let mut accepted = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut refused = 0;
    while refused < 2 {
        match pair.peer.write(&bytes[accepted % bytes.len()..]) {
            Ok(count) => (accepted, refused) = (accepted + count, 0),
            Err(_) => refused += 1,
        }
        pair.serve();
        assert!(Instant::now() < deadline && accepted < 8 << 20);
    }
    assert!(!pair.server.wants_read());

    pair.server.complete(77, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.writes.len(), 1 + accepted / bytes.len());
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
    let deadline = Instant::now() + PATIENCE;
    while replies < 100 {
        assert!(Instant::now() < deadline);
        while let Some(got) = pair.try_reply() {
            assert_eq!(got.payload.len(), 16 + 32768);
            replies += 1;
        }
        pair.server.on_writable().unwrap();
        pair.serve();
    }
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
fn client_that_dies_in_the_middle_of_a_message_is_an_error_that_says_so() {
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
fn client_that_dies_behind_a_deferred_request_is_noticed() {
    let mut pair = Pair::negotiated();
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.serve();
    pair.peer.shutdown(std::net::Shutdown::Both).unwrap();

    assert_eq!(pair.try_serve().unwrap(), Progress::Closed);
}

// Errno

#[test]
fn replies_carry_the_handlers_own_errno() {
    let mut pair = Pair::negotiated();
    pair.ask(Command::DmaMap, &map_payload(3, 0, 0x1000, 0x1000));

    pair.refuses(Command::DmaMap, &map_payload(3, 0, 0x1fff, 0x1000), Errno::EEXIST);
    pair.refuses(Command::DmaUnmap, &unmap_payload(0, 0x1000, 0x800), Errno::ENOENT);
    pair.refuses(Command::RegionRead, &access(0, 4, 4, &[]), Errno::EINVAL);
}

// Requests to the client

#[test]
fn dma_is_cut_to_the_clients_transfer_size() {
    let json = br#"{"capabilities":{"max_data_xfer_size":4}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);
    pair.server.dma_read(0x1000, 10, 1).unwrap();
    pair.server.dma_write(0x2000, &[1, 2, 3, 4, 5], 2).unwrap();
    let mut spans = Vec::new();
    while let Some(got) = pair.try_reply() {
        assert_eq!(got.header.message_type(), MessageType::Command);
        let address = u64::from_le_bytes(got.payload[..8].try_into().unwrap());
        let count = got.payload[8] as usize;
        spans.push((got.header.command, address, count));
        let data = if got.header.command == Command::DmaRead { vec![address as u8; count] } else { Vec::new() };
        let payload = [&got.payload[..16], &data].concat();
        pair.send(&message(Header::reply(got.header.id, got.header.command, payload.len()), &payload));
        pair.serve();
    }

    spans.sort_by_key(|span| span.1);
    assert_eq!(
        spans,
        [
            (Command::DmaRead, 0x1000, 4),
            (Command::DmaRead, 0x1004, 4),
            (Command::DmaRead, 0x1008, 2),
            (Command::DmaWrite, 0x2000, 4),
            (Command::DmaWrite, 0x2004, 1)
        ]
    );
    assert_eq!(pair.device.dma_reads, [(1, Ok(vec![0, 0, 0, 0, 4, 4, 4, 4, 8, 8]))]);
    assert_eq!(pair.device.dma_writes, [(2, Ok(()))]);
}

#[test]
fn dma_replies_of_wrong_size_are_errors_of_that_operation() {
    let mut pair = Pair::negotiated();
    for (token, payload) in [(1, vec![]), (2, vec![0; 16]), (3, vec![0; 16 + 9]), (4, vec![0; 7])] {
        pair.server.dma_read(0x1000, 8, token).unwrap();
        let id = pair.reply().header.id;
        pair.send(&message(Header::reply(id, Command::DmaRead, payload.len()), &payload));
        pair.serve();
    }
    pair.server.dma_read(0x1000, 8, 5).unwrap();
    let id = pair.reply().header.id;
    pair.send(&Header::error_reply(id, Command::DmaRead, Errno::EFAULT).to_bytes());
    pair.serve();

    let errors: Vec<_> = pair.device.dma_reads.iter().map(|(_, result)| result.clone().unwrap_err()).collect();
    assert_eq!(errors, [Errno::EPROTO, Errno::EPROTO, Errno::EPROTO, Errno::EPROTO, Errno::EFAULT]);
    assert_eq!(pair.server.dma_outstanding(), 0);
}

#[test]
fn dma_beyond_the_bound_is_busy_and_can_be_failed() {
    let mut pair = Pair::negotiated();
    for token in 0..64 {
        pair.server.dma_read(0x1000, 8, token).unwrap();
    }

    let error = pair.server.dma_write(0, &[1], 64).unwrap_err();
    pair.server.fail_dma(Errno::ENOTCONN, &mut pair.device);

    assert!(matches!(error, DmaError::Busy { outstanding: 64, .. }));
    assert_eq!(pair.device.dma_reads.len(), 64);
    assert!(matches!(pair.server.dma_read(u64::MAX, 2, 0), Err(DmaError::Range { .. })));
    assert!(matches!(pair.server.dma_read(0, 0, 0), Err(DmaError::Range { .. })));
}

#[test]
fn dma_replies_pass_requests_that_wait_behind_a_deferred_one() {
    let mut pair = Pair::negotiated();
    pair.server.dma_read(0x1000, 3, 1).unwrap();
    pair.server.dma_read(0x1000, 1, 2).unwrap();
    let (first, second) = (pair.reply().header.id, pair.reply().header.id);
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&posted(Command::RegionWrite, &access(8, 0, 1, &[2])));
    let payload = access(0x1000, 3, 0, &[7, 8, 9]);
    pair.send(&message(Header::reply(first, Command::DmaRead, payload.len()), &payload));
    // A descriptor behind the reply stays with its own message.
    pair.send_fds(&posted(Command::DmaMap, &map_payload(3, 0, 0, 4096)), &[memfd(4096)]);
    let payload = access(0x1000, 1, 0, &[6]);
    pair.send(&message(Header::reply(second, Command::DmaRead, payload.len()), &payload));
    pair.serve();

    assert_eq!(pair.device.dma_reads, [(1, Ok(vec![7, 8, 9])), (2, Ok(vec![6]))]);
    assert_eq!(pair.device.writes.len(), 1);
    pair.server.complete(77, Ok(())).unwrap();
    pair.serve();
    assert_eq!(pair.device.writes.len(), 2);
    assert!(pair.device.maps[&0].1.is_some());
}

#[test]
fn dma_before_the_version_is_refused() {
    let mut pair = Pair::new(ServerConfig::default());

    assert!(matches!(pair.server.dma_read(0, 1, 1), Err(DmaError::NotConnected)));
}
