//! Messages between nodes: sizes and alignments.

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::{INLINE, message};
use nicforge_seastar::{Options, config::DEFAULT_MTU};
use nicforge_seastar_firmware::chip::{Event, TransferStatus};

use crate::common::{BOTH, Message, Rig, pattern, receive_at};

/// Where messages arrive in the memory of their receiver.
const TARGET: usize = 2 << 20;

/// Sends a message of `length` bytes from node 0 to node 1, and checks what arrives.
fn check_message(rig: &mut Rig, name: u32, from: usize, to: usize, length: usize) {
    let data = pattern(name as usize, length);
    rig.kernels[0].write(from, &data);
    rig.kernels[1].write(to, &vec![0xaa; length + 1]);
    rig.scripts[1].on_event(receive_at(to));
    let before = (rig.scripts[0].transmitted().len(), rig.scripts[1].events().len());

    rig.send(0, Message::put(name, 1, from, length));
    let expected = if length > INLINE { 2 } else { 1 };
    rig.until(|rig| {
        rig.scripts[0].transmitted().len() == before.0 + 1
            && rig.scripts[1].events().len() == before.1 + expected
    });

    assert_eq!(
        rig.scripts[0].transmitted().last(),
        Some(&(name, TransferStatus::Complete)),
        "{length} bytes"
    );
    let events = rig.scripts[1].events().split_off(before.1);
    let Event::Header { packet, stream, .. } = events[0] else { panic!("{:?}", events[0]) };
    assert_eq!((packet.trusted.source_node, packet.trusted.length as usize), (0, length));
    assert_eq!((packet.trusted.kind, packet.message.match_bits), (message::PUT, name.into()));

    if length > INLINE {
        let stream = stream.unwrap();
        assert_eq!(events[1], Event::Received { stream, status: TransferStatus::Complete }, "{length} bytes");
        assert!(rig.kernels[1].read(to, length) == data, "{length} bytes");
    } else {
        assert_eq!((stream, &packet.inline[..length]), (None, &data[..]));
    }
    assert_eq!(rig.kernels[1].read(to + length, 1), [0xaa], "{length} bytes");
}

#[test]
fn messages_of_all_sizes_arrive_unchanged() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, &[2], Options::default());
        let around = |size: usize| size - 1..=size + 1;
        let sizes = [0, 1].into_iter().chain(around(16)).chain(around(64)).chain([1000]);
        let sizes = sizes.chain(around(DEFAULT_MTU)).chain(around(2 * DEFAULT_MTU));
        // Packets refer to memory from 2 KB on, and to 8 packets' bytes at most.
        let sizes = sizes.chain(around(2048)).chain(around(8 * DEFAULT_MTU)).chain([1 << 20]);
        for (name, length) in sizes.enumerate() {
            check_message(&mut rig, name as u32, 0, TARGET, length);
        }
    }
}

#[test]
fn messages_over_links_with_a_bandwidth_arrive_unchanged() {
    let mut options = Options::default();
    options.link.bits_per_second = 20_000_000_000;
    options.link.delay = 50;
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], options);
    for (name, length) in
        [0, 1, 15, 16, 17, 59, 60, 61, 63, 64, 65, 127, 128, 129, 5000].into_iter().enumerate()
    {
        check_message(&mut rig, name as u32, 0, TARGET, length);
    }
}

#[test]
fn messages_arrive_at_any_alignment() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    for (name, (from, to)) in [(0, 1), (1, 0), (3, 5), (63, 65), (4095, 4097)].into_iter().enumerate() {
        check_message(&mut rig, name as u32, from, TARGET + to, 20_000);
    }
}
