//! Requests that a server must survive: counts, flags, ranges, interrupts, maps, and messages
//! without an answer. The client's end is raw bytes, and the server is driven step by step in the
//! same thread.
#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;

use crate::common::*;
use nicforge_vfio_user::wire::{Command, DEFAULT_MAX_DATA_XFER_SIZE, parse_region_info, parse_version};
use nicforge_vfio_user::*;

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const ACTION_MASK: u32 = 8;
const ACTION_TRIGGER: u32 = 32;

fn irqs_payload(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    words(&[20, flags, index, start, count])
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
fn set_irqs_past_the_last_interrupt_is_refused() {
    let mut pair = Pair::negotiated();
    let flags = DATA_NONE | ACTION_TRIGGER;

    for (start, count) in [(VECTORS, 1), (0, VECTORS + 1), (VECTORS - 1, 2), (u32::MAX, 1), (1, u32::MAX)] {
        pair.assert_refuses(
            Command::DeviceSetIrqs,
            &irqs_payload(flags, PCI_MSIX_IRQ, start, count),
            Errno::EINVAL,
        );
    }
    pair.assert_refuses(Command::DeviceSetIrqs, &irqs_payload(flags, 99, 0, 1), Errno::EINVAL);

    assert!(pair.device.irq_calls.is_empty());
}

#[test]
fn set_irqs_with_too_few_or_too_many_descriptors_is_refused_and_they_are_closed() {
    let mut pair = Pair::negotiated();
    let payload = irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 3);
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
    let payload = irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, VECTORS);
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
    let bind = irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 8);
    let fds: Vec<OwnedFd> = (0..8).map(|_| eventfd()).collect();
    pair.send_fds(&request(Command::DeviceSetIrqs, &bind), &fds);
    pair.serve();
    assert_eq!(pair.reply().header.reply_error(), None);

    let reply =
        pair.ask(Command::DeviceSetIrqs, &irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 2, 3));

    assert_eq!(reply.header.reply_error(), None);
    assert_eq!(pair.device.bound(), [0, 1, 5, 6, 7]);
    pair.ask(Command::DeviceSetIrqs, &irqs_payload(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 0));
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
        // One byte for each interrupt is needed, and none comes.
        DATA_BOOL | ACTION_TRIGGER,
    ] {
        pair.assert_refuses(Command::DeviceSetIrqs, &irqs_payload(flags, PCI_MSIX_IRQ, 0, 1), Errno::EINVAL);
    }
    // Only "none, trigger" with start 0 may have count 0.
    pair.assert_refuses(
        Command::DeviceSetIrqs,
        &irqs_payload(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 1, 0),
        Errno::EINVAL,
    );
    pair.assert_refuses(
        Command::DeviceSetIrqs,
        &irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 0),
        Errno::EINVAL,
    );

    assert!(pair.device.irq_calls.is_empty());
}

// Maps

#[test]
fn unmap_of_a_huge_unmapped_range_is_enoent_and_the_connection_stays_usable() {
    let mut pair = Pair::negotiated();

    pair.assert_refuses(Command::DmaUnmap, &unmap_payload(0, 0, u64::MAX), Errno::ENOENT);
    pair.assert_refuses(Command::DmaUnmap, &unmap_payload(0, 1 << 63, 1 << 63), Errno::ENOENT);

    pair.assert_alive();
}

#[test]
fn unmap_is_answered_with_its_entry() {
    let mut pair = Pair::negotiated();
    pair.ask(Command::DmaMap, &map_payload(1, 0, 0xc0000, 0x40000));

    let reply = pair.ask(Command::DmaUnmap, &unmap_payload(0, 0xc0000, 0x40000));

    assert_eq!(reply.payload, unmap_payload(0, 0xc0000, 0x40000));
}

#[test]
fn unmap_without_room_for_its_reply_or_with_too_much_is_refused_and_unmaps_nothing() {
    let mut pair = Pair::negotiated();
    assert_eq!(
        pair.ask(Command::DmaMap, &map_payload(READ_WRITE, 0, 0x1000, 0x1000)).header.reply_error(),
        None
    );
    let unmap = |argsz: u32| [&argsz.to_le_bytes()[..], &unmap_payload(0, 0x1000, 0x1000)[4..]].concat();

    for argsz in [0, 8, 23, DEFAULT_MAX_DATA_XFER_SIZE + 8, u32::MAX] {
        pair.assert_refuses(Command::DmaUnmap, &unmap(argsz), Errno::EINVAL);
    }

    assert_eq!(pair.device.maps.len(), 1);
    assert_eq!(pair.ask(Command::DmaUnmap, &unmap(4096)).header.reply_error(), None);
    assert!(pair.device.maps.is_empty());
}

#[test]
fn maps_of_parts_of_pages_are_refused() {
    let mut pair = Pair::negotiated();

    for (address, size) in [(0, 1), (0x1000, 0xfff), (0x1001, 0x1000), (0x1800, 0x800), (0x1000, 0x1800)] {
        pair.assert_refuses(Command::DmaMap, &map_payload(READ_WRITE, 0, address, size), Errno::EINVAL);
    }

    assert!(pair.device.maps.is_empty());
    // The last page of the address space is an ordinary page.
    pair.ask(Command::DmaMap, &map_payload(READ_WRITE, 0, u64::MAX - 0xfff, 0x1000));
}

#[test]
fn maps_that_are_empty_overflow_or_have_unknown_flags_are_refused() {
    let mut pair = Pair::negotiated();

    pair.assert_refuses(Command::DmaMap, &map_payload(READ_WRITE, 0, 0, 0), Errno::EINVAL);
    pair.assert_refuses(
        Command::DmaMap,
        &map_payload(READ_WRITE, 0, u64::MAX - 0xfff, 0x2000),
        Errno::EINVAL,
    );
    pair.assert_refuses(Command::DmaMap, &map_payload(READ_WRITE, u64::MAX, 0, 0x1000), Errno::EINVAL);
    pair.assert_refuses(Command::DmaMap, &map_payload(8, 0, 0, 4096), Errno::EINVAL);
    pair.assert_refuses(Command::DmaMap, &map_payload(READ_WRITE, 0, 0, 4096)[..31], Errno::EINVAL);

    assert!(pair.device.maps.is_empty());
}

#[test]
fn four_thousand_pages_remapped_over_one_connection_work() {
    let mut pair = Pair::negotiated();

    for round in 0..2u64 {
        for page in 0..4000u64 {
            pair.send(&posted(Command::DmaMap, &map_payload(READ_WRITE, 0, page << 12, 4096)));
            if page % 50 == 49 {
                pair.serve();
            }
        }
        assert_eq!(pair.device.maps.len(), 4000, "round {round}");
        let reply = pair.ask(Command::DmaUnmap, &unmap_payload(UNMAP_ALL, 0, 0));
        assert_eq!(reply.header.reply_error(), None);
    }
}

// Regions

#[test]
fn region_info_respects_argsz_and_reports_the_size_it_needs() {
    let mut pair = Pair::negotiated();
    let ask = |argsz: u32| [words(&[argsz, 0, 1, 0]), vec![0; 16]].concat();

    let short = pair.ask(Command::DeviceGetRegionInfo, &ask(32));
    let full = pair.ask(Command::DeviceGetRegionInfo, &ask(80));

    // As in the reference's answer: mappable, but without capabilities, their offset and the
    // descriptor.
    let flags = REGION_FLAG_READ | REGION_FLAG_WRITE | REGION_FLAG_MMAP;
    assert_eq!(short.payload, [words(&[80, flags, 1, 0, 8192, 0]), vec![0; 8]].concat());
    assert!(short.fds.is_empty());
    assert_eq!(full.payload[..16], words(&[80, flags | REGION_FLAG_CAPS, 1, 32]));
    assert_eq!((full.payload.len(), full.fds.len()), (80, 1));
    pair.assert_refuses(Command::DeviceGetRegionInfo, &ask(31), Errno::EINVAL);
    pair.assert_refuses(Command::DeviceGetRegionInfo, &words(&[32, 0, 99, 0, 0, 0, 0, 0]), Errno::EINVAL);
}

#[test]
fn region_that_is_mapped_as_a_whole_is_announced_as_one_area() {
    let mut pair = Pair::negotiated();
    pair.device.bar1_areas.clear();

    let reply = pair.ask(Command::DeviceGetRegionInfo, &[words(&[4096, 0, 1, 0]), vec![0; 16]].concat());

    let (info, _) = parse_region_info(&reply.payload).unwrap();
    assert_eq!(info.areas, [SparseArea { offset: 0, size: 8192 }]);
    assert_eq!(reply.fds.len(), 1);
}

#[test]
fn client_that_takes_no_descriptors_sees_no_mappable_region() {
    let json = br#"{"capabilities":{"max_msg_fds":0}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);

    let reply = pair.ask(Command::DeviceGetRegionInfo, &[words(&[4096, 0, 1, 0]), vec![0; 16]].concat());

    assert!(reply.fds.is_empty());
    assert_eq!(reply.payload[4] as u32 & REGION_FLAG_MMAP, 0);
}

#[test]
fn write_multi_does_all_writes_and_counts_them() {
    let mut pair = Pair::negotiated();
    let mut payload = 2u64.to_le_bytes().to_vec();
    payload.extend(access(16, 0, 8, &[1, 2, 3, 4, 5, 6, 7, 8]));
    payload.extend(access(32, 0, 2, &[9, 9, 0, 0, 0, 0, 0, 0]));

    let reply = pair.ask(Command::RegionWriteMulti, &payload);

    assert_eq!(reply.payload, 2u64.to_le_bytes());
    assert_eq!(pair.device.writes, [(0, 16, vec![1, 2, 3, 4, 5, 6, 7, 8]), (0, 32, vec![9, 9])]);
}

#[test]
fn write_multiple_is_agreed_on_only_if_both_sides_have_it() {
    let named = |value: bool| format!(r#"{{"capabilities": {{"write_multiple": {value}}}}}"#);

    for (client, server) in [(true, false), (false, true), (false, false)] {
        let config = ServerConfig { write_multiple: server, ..Default::default() };
        let mut pair = Pair::new(config);
        let reply = pair.ask(Command::Version, &version(named(client).as_bytes()));
        let answer = parse_version(&reply.payload).unwrap();

        assert_eq!(answer.capabilities.and_then(|answer| answer.write_multiple), None, "{client} {server}");
    }
}

#[test]
fn write_multi_is_refused_by_a_server_without_it() {
    let config = ServerConfig { write_multiple: false, ..Default::default() };
    let mut pair = Pair::negotiated_with(config, br#"{"capabilities": {"write_multiple": true}}"#);
    let payload = [&1_u64.to_le_bytes()[..], &access(16, 0, 8, &[1; 8])].concat();

    pair.assert_refuses(Command::RegionWriteMulti, &payload, Errno::ENOTSUP);

    assert!(pair.device.writes.is_empty());
}

#[test]
fn write_multi_with_one_bad_write_does_none() {
    let mut pair = Pair::negotiated();
    let mut payload = 2u64.to_le_bytes().to_vec();
    payload.extend(access(16, 0, 8, &[1; 8]));
    payload.extend(access(32, 0, 9, &[1; 8]));

    pair.assert_refuses(Command::RegionWriteMulti, &payload, Errno::EINVAL);

    assert!(pair.device.writes.is_empty());
}

#[test]
fn write_multi_continues_after_a_deferred_write() {
    let mut pair = Pair::negotiated();
    let mut payload = 3u64.to_le_bytes().to_vec();
    for offset in [16, STALL, 32] {
        payload.extend(access(offset, 0, 1, &[1; 8]));
    }
    pair.send(&request(Command::RegionWriteMulti, &payload));
    pair.serve();
    assert_eq!(pair.device.writes.len(), 2);

    pair.server.complete(WRITE_TOKEN, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.writes.len(), 3);
    assert_eq!(pair.reply().payload, 3u64.to_le_bytes());
}

#[test]
fn write_multi_of_thousands_is_carried_out_in_steps_of_the_budget() {
    let config = ServerConfig { budget: 4, ..Default::default() };
    let mut pair = Pair::negotiated_with(config, br#"{"capabilities":{"max_data_xfer_size":1048576}}"#);
    let mut payload = 1000u64.to_le_bytes().to_vec();
    for offset in 0..1000 {
        payload.extend(access(0x1000 + offset, 0, 1, &[1; 8]));
    }
    pair.send(&request(Command::RegionWriteMulti, &payload));
    pair.send(&posted(Command::RegionWrite, &access(0x2000, 0, 1, &[2])));

    let mut before = 0;
    while before < 1001 {
        pair.server.on_readable(&mut pair.device).unwrap();
        let now = pair.device.writes.len();
        assert!(now - before <= 4 * 64, "{} writes in one call", now - before);
        before = now;
    }

    assert!(pair.device.writes.iter().map(|write| write.1).eq((0x1000..0x1000 + 1000).chain([0x2000])));
    assert_eq!(pair.reply().payload, 1000u64.to_le_bytes());
}

// Errno

#[test]
fn replies_carry_the_handlers_own_errno() {
    let mut pair = Pair::negotiated();
    pair.ask(Command::DmaMap, &map_payload(READ_WRITE, 0, 0x1000, 0x1000));

    pair.assert_refuses(Command::DmaMap, &map_payload(READ_WRITE, 0, 0, 0x2000), Errno::EEXIST);
    pair.assert_refuses(Command::DmaUnmap, &unmap_payload(0, 0x1000, 0x800), Errno::ENOENT);
    pair.assert_refuses(Command::RegionRead, &access(0, 4, 4, &[]), Errno::EINVAL);
}

#[test]
fn counts_of_all_ones_are_refused() {
    let mut pair = Pair::negotiated();

    pair.assert_refuses(Command::RegionRead, &access(0, 0, u32::MAX, &[]), Errno::EINVAL);
    pair.assert_refuses(Command::RegionWrite, &access(0, 0, u32::MAX, &[1, 2, 3, 4]), Errno::EINVAL);
    pair.assert_refuses(
        Command::DeviceSetIrqs,
        &irqs_payload(DATA_NONE | ACTION_TRIGGER, 2, 0, u32::MAX),
        Errno::EINVAL,
    );
    pair.assert_refuses(Command::RegionWriteMulti, &[0xff; 8], Errno::EINVAL);
    pair.assert_refuses(Command::DmaMap, &[0xff; 32], Errno::EINVAL);
    pair.assert_refuses(Command::DmaUnmap, &[0xff; 24], Errno::EINVAL);

    pair.assert_alive();
}

#[test]
fn descriptors_of_requests_that_take_none_are_closed() {
    let mut pair = Pair::negotiated();
    for (command, payload) in [
        (Command::DeviceReset, vec![]),
        (Command::RegionRead, access(0, 0, 1, &[])),
        (Command::Unknown(500), vec![1; 10]),
        (Command::DeviceSetIrqs, irqs_payload(DATA_NONE | ACTION_TRIGGER, PCI_MSIX_IRQ, 0, 1)),
    ] {
        let (read, write) = nix::unistd::pipe().unwrap();
        pair.send_fds(&request(command, &payload), &[write.try_clone().unwrap(), write]);
        pair.serve();

        assert!(other_end_is_closed(&read), "{command:?}");
        pair.reply();
    }
}
