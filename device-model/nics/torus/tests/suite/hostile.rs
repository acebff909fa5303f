//! Clients that break the rules.

use std::sync::atomic::Ordering;

use nicforge_hwi::torus::{Channel, FIFO_CHUNKS, PacketHeader, RECEPTION_FIFOS, hint, mirror, reg};
use proptest::prelude::*;

use crate::common::{Client, Rig, payload};

/// Checks that two nodes still exchange packets.
#[track_caller]
fn check_exchange(rig: &mut Rig, from: &mut Client, to: &Client) {
    while to.receive().is_some() {}
    let header = rig.to(to.node);
    rig.send(from, header, &payload(77, 4));
    assert_eq!(to.receive().map(|packet| packet.payload), Some(payload(77, 4)));
}

#[test]
fn wrong_tails_are_counted_and_ignored() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut client, other) = (rig.core(0, 0), rig.core(1, 0));
    for (errors, tail) in [(1, FIFO_CHUNKS + 1), (2, u32::MAX), (3, 1 << 31)] {
        client.id.write32(&mut rig.machine, 0, reg::INJECTION_TAIL, tail);
        rig.run();
        assert_eq!(client.mirrored(mirror::ERRORS), errors);
    }
    assert_eq!(rig.counter(0, "packets_sent"), 0);
    check_exchange(&mut rig, &mut client, &other);
}

#[test]
fn wrong_heads_free_nothing() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    let header = rig.to(1).deterministic();
    rig.send(&mut sender, header, &payload(1, 2));

    for head in [3, u32::MAX, 1 << 31] {
        for fifo in 0..RECEPTION_FIFOS {
            receiver.head(fifo).store(head, Ordering::Release);
        }
        receiver.id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
        rig.run();
    }
    assert_eq!(receiver.mirrored(mirror::ERRORS), 3 * RECEPTION_FIFOS as u32);
    for fifo in 0..RECEPTION_FIFOS {
        receiver.head(fifo).store(0, Ordering::Release);
    }
    assert_eq!(receiver.receive().map(|packet| packet.payload), Some(payload(1, 2)));
    check_exchange(&mut rig, &mut sender, &receiver);
}

#[test]
fn packets_with_wrong_headers_are_dropped_and_the_next_is_sent() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut client, other) = (rig.core(0, 0), rig.core(1, 0));
    let to = PacketHeader::to;
    let wrong = [
        to([2, 0, 0], 0),
        to([1, 1, 0], 0),
        to([1, 0, 0], 0).with_hints(hint::of_port(0) | hint::of_port(1)),
        to([1, 0, 0], 0).with_channel(Channel::BubblePriority),
        to([1, 0, 0], 0).high_priority(),
        to([0, 0, 0], 0).deposit(),
    ];
    for (count, header) in (1..).zip(wrong) {
        assert!(rig.try_send(&mut client, 0, header, &payload(count, 8)));
        rig.run();
        assert_eq!(client.mirrored(mirror::ERRORS), count);
    }
    assert_eq!((rig.counter(0, "errors"), rig.counter(0, "packets_sent")), (6, 0));
    check_exchange(&mut rig, &mut client, &other);
}

#[test]
fn a_core_that_takes_nothing_stops_only_those_behind_it() {
    let mut rig = Rig::torus([3, 3, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(4).deterministic();
    while rig.try_send(&mut clients[3], 0, header, &payload(1, 8)) {
        rig.run();
    }
    let (mut from, to) = (clients.remove(8), clients.remove(6));
    check_exchange(&mut rig, &mut from, &to);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a client writes to its memory and registers, others go on.
    #[test]
    fn random_writes_of_a_client_do_not_reach_others(
        actions in prop::collection::vec((0_u64..0x1_3000, 0_usize..5, any::<u64>(), any::<[u8; 32]>()), 1..80),
    ) {
        let mut rig = Rig::torus([2, 2, 1]);
        let hostile = rig.core(0, 0);
        let (mut from, to) = (rig.core(1, 1), rig.core(3, 1));

        for (offset, width, place, bytes) in actions {
            let length = [4, 8, 16, 4, 32][width];
            hostile.window.write(place % (0x2000 - 32), &bytes).unwrap();
            if width == 3 {
                let fifo = place % 4;
                let tail = u32::from(bytes[0]) % 40;
                hostile.id.write32(&mut rig.machine, 0, reg::INJECTION_TAIL + 4 * fifo, tail);
            } else {
                let _ = hostile.id.try_write(&mut rig.machine, 0, offset & !3, &bytes[..length]);
                let mut read = [0; 32];
                let _ = hostile.id.try_read(&mut rig.machine, 0, offset & !3, &mut read[..length]);
            }
            rig.run();
        }

        while to.receive().is_some() {}
        let header = PacketHeader::to(rig.place(3), 1).for_life(1).deterministic();
        prop_assert!(rig.try_send(&mut from, 0, header, &payload(77, 4)));
        rig.run();
        let received = to.receive_all();
        prop_assert!(received.iter().any(|packet| packet.payload == payload(77, 4)));
    }
}
