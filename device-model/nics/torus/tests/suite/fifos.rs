//! Injection and reception FIFOs in mapped memory.

use std::sync::atomic::Ordering;

use nicforge_hwi::torus::{FIFO_CHUNKS, RECEPTION_FIFOS, Status, mirror, reg};
use proptest::prelude::*;

use crate::common::{Rig, payload};

#[test]
fn a_full_injection_fifo_keeps_its_packets_until_the_receiver_has_room() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(1).deterministic();

    // The receiver takes nothing: FIFO, buffers of the link, and the sender's FIFO become full.
    let mut sent = 0;
    while rig.try_send(&mut clients[0], 0, header, &payload(sent, 8)) {
        rig.run();
        sent += 1;
    }
    assert!(sent >= 8, "{sent} packets fit");
    assert!(rig.counter(1, "reception_full") > 0);

    for seed in 0..sent {
        let packet = clients[1].receive().unwrap_or_else(|| panic!("packet {seed} of {sent} is missing"));
        assert_eq!(packet.payload, payload(seed, 8));
        clients[1].id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
        rig.run();
    }
    assert_eq!(clients[1].receive(), None);
}

#[test]
fn packets_of_high_priority_pass_a_full_network() {
    let mut rig = Rig::torus([4, 1, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(1).deterministic();
    let mut seed = 0;
    while rig.try_send(&mut clients[0], 0, header, &payload(seed, 8)) {
        rig.run();
        seed += 1;
    }

    let urgent = rig.to(1).high_priority();
    rig.send(&mut clients[0], urgent, &payload(99, 1));
    assert_eq!(clients[1].receive_from(6).map(|packet| packet.payload), Some(payload(99, 1)));
}

#[test]
fn the_groups_of_a_node_are_apart() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, core0, core1) = (rig.core(0, 0), rig.core(1, 0), rig.core(1, 1));
    let place = rig.place(1);

    for (seed, core) in [(1, 1), (2, 0), (3, 1)] {
        let header = nicforge_hwi::torus::PacketHeader::to(place, core);
        rig.send(&mut sender, header, &payload(seed, 2));
    }
    let payloads = |client: &crate::common::Client| -> Vec<_> {
        client.receive_all().into_iter().map(|packet| packet.payload).collect()
    };
    assert_eq!(payloads(&core1), [payload(1, 2), payload(3, 2)]);
    assert_eq!(payloads(&core0), [payload(2, 2)]);
}

#[test]
fn a_posted_tail_sends_without_a_trapped_access() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(1);
    let mut ring = clients[0].id.ring(&rig.machine);

    assert!(clients[0].put(2, header, &payload(5, 4)));
    ring.push32(0, reg::INJECTION_TAIL as u32 + 8, clients[0].tails[2]);
    rig.machine.wake(rig.functions[0]);
    rig.run();
    assert_eq!(clients[1].receive().map(|packet| packet.payload), Some(payload(5, 4)));
    assert_eq!(clients[0].mirrored(mirror::INJECTION_HEAD + 8), 4);
}

#[test]
fn status_counts_the_chunks_of_both_groups() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, core0, core1) = (rig.core(0, 0), rig.core(1, 0), rig.core(1, 1));
    let header = rig.to(1);
    for chunks in [3, 8] {
        rig.send(&mut sender, header, &payload(1, chunks));
    }

    let mut expected = Status::default();
    let fifo = core0.receive().unwrap().fifo;
    core0.head(fifo).store(0, Ordering::Release);
    expected.reception[fifo] = 11;
    let own: [u8; 16] = core0.id.read(&mut rig.machine, 0, reg::STATUS);
    let other: [u8; 16] = core1.id.read(&mut rig.machine, 0, reg::OTHER_STATUS);
    let expected: [u8; 16] = zerocopy::transmute!(expected);
    assert_eq!((own, other), (expected, expected));
    let lower: [u8; 8] = core0.id.read(&mut rig.machine, 0, reg::STATUS);
    assert_eq!(lower, expected[..8]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Packets of random lengths through all injection FIFOs arrive once each, and those of one
    /// FIFO in order if they are deterministic. The receiver takes them at random times.
    #[test]
    fn random_packets_arrive_once_each(
        packets in prop::collection::vec((0_usize..3, 1_usize..=8, 0_u32..4), 1..200),
    ) {
        let mut rig = Rig::torus([2, 2, 1]);
        let mut clients = rig.all_cores();
        let header = rig.to(3).deterministic();
        let (mut sent, mut received) = (Vec::new(), Vec::new());

        for (number, (fifo, chunks, takes)) in packets.into_iter().enumerate() {
            let mut bytes = payload(number as u32, chunks);
            bytes[0] = fifo as u8;
            let mut attempts = 0;
            while !rig.try_send(&mut clients[0], fifo, header, &bytes) {
                received.extend(clients[3].receive_all());
                clients[3].id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
                rig.run();
                attempts += 1;
                prop_assert!(attempts < 100, "no packet leaves FIFO {fifo}");
            }
            sent.push(bytes);
            if takes == 0 {
                rig.run();
                received.extend(clients[3].receive_all());
            }
        }
        loop {
            rig.run();
            let taken = clients[3].receive_all();
            if taken.is_empty() {
                break;
            }
            received.extend(taken);
            clients[3].id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
        }

        for fifo in 0..3 {
            let of_fifo = |bytes: &&Vec<u8>| bytes[0] == fifo;
            let sent: Vec<_> = sent.iter().filter(of_fifo).collect();
            let received: Vec<_> = received.iter().map(|packet| &packet.payload).filter(of_fifo).collect();
            prop_assert_eq!(sent, received);
        }
    }
}

#[test]
fn a_fifo_of_chunks_has_no_gap_at_its_end() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(1).deterministic();
    // 3 does not divide 32, so that packets go on at the start of both rings.
    for seed in 0..3 * FIFO_CHUNKS {
        rig.send(&mut clients[0], header, &payload(seed, 3));
        assert_eq!(clients[1].receive().map(|packet| packet.payload), Some(payload(seed, 3)));
    }
    let tails =
        (0..RECEPTION_FIFOS as u64).map(|fifo| clients[1].mirrored(mirror::RECEPTION_TAIL + 4 * fifo));
    assert_eq!(tails.max(), Some(9 * FIFO_CHUNKS), "all came by one link");
}
