//! Random messages between random nodes.

use std::collections::BTreeMap;

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::{INLINE, KERNEL};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Event, Pieces, TransferStatus};
use proptest::prelude::*;

use crate::common::{Message, Rig, pattern, piece};

/// Where messages arrive, and the bytes of a place.
const TARGET: usize = 2 << 20;
const PLACE: usize = 1 << 16;
const NODES: usize = 8;

/// Messages as source, target and length.
fn messages() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    let length = prop_oneof![0..40_usize, 40..3000_usize, 3000..40_000_usize];
    proptest::collection::vec((0..NODES, 0..NODES, length), 1..30)
}

/// Sends messages, and checks that those of each pair arrive in order and unchanged.
fn check(options: Options, messages: &[(usize, usize, usize)]) {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2, 2, 2], options);
    for script in &rig.scripts {
        script.on_event(|chip, event| {
            if let Event::Header { packet, stream: Some(stream), .. } = *event {
                let offset = TARGET + packet.message.match_bits as usize * PLACE;
                let length = packet.trusted.length;
                chip.receive(stream, length, Pieces::One(piece(KERNEL, offset, length as usize))).unwrap();
            }
        });
    }

    let mut expected: BTreeMap<(usize, usize), Vec<u64>> = BTreeMap::new();
    let mut requested = [0; NODES];
    for (name, &(from, to, length)) in messages.iter().enumerate() {
        rig.kernels[from].write(name * PLACE, &pattern(name, length));
        rig.send(from, Message::put(name as u32, to, name * PLACE, length));
        expected.entry((from, to)).or_default().push(name as u64);
        requested[to] += if length > INLINE { 2 } else { 1 };
    }
    let arrived = |event: &Event| matches!(event, Event::Header { .. } | Event::Received { .. });
    rig.until(|rig| (0..NODES).all(|node| rig.scripts[node].count(arrived) == requested[node]));

    let mut seen: BTreeMap<(usize, usize), Vec<u64>> = BTreeMap::new();
    for (to, script) in rig.scripts.iter().enumerate() {
        assert!(script.received().iter().all(|&end| end == TransferStatus::Complete));
        for event in script.events() {
            if let Event::Header { packet, .. } = event {
                let from = packet.trusted.source_node as usize;
                seen.entry((from, to)).or_default().push(packet.message.match_bits);
                let (name, length) = (packet.message.match_bits as usize, packet.trusted.length as usize);
                if length <= INLINE {
                    assert_eq!(packet.inline[..length], pattern(name, length));
                }
            }
        }
    }
    assert_eq!(seen, expected);
    for (name, &(_, to, length)) in messages.iter().enumerate().filter(|(_, message)| message.2 > INLINE) {
        let is_same = rig.kernels[to].read(TARGET + name * PLACE, length) == pattern(name, length);
        assert!(is_same, "message {name} of {length} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn messages_of_each_pair_arrive_in_order_and_unchanged(messages in messages()) {
        check(Options { mtu: 1024, ..Options::default() }, &messages);
    }

    #[test]
    fn messages_over_timed_links_arrive_in_order_and_unchanged(messages in messages()) {
        let mut options = Options::default();
        options.link.bits_per_second = 20_000_000_000;
        options.link.delay = 30;
        options.link.cut_through = Some(16);
        check(options, &messages);
    }
}
