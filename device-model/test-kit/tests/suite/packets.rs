//! Links between devices, and the far end of a link.
#![allow(clippy::unwrap_used, reason = "tests")]

use nicforge_core::{
    fabric::{Direction, LinkSpec},
    ids::AttachmentId,
    time::Nanos,
};
use nicforge_test_kit::{Client, PeerPacket, Testbed};

use crate::echo::*;

/// Returns a link of one virtual channel of two packets, which carries a bit in a nanosecond and
/// delays by a microsecond.
fn slow_link() -> LinkSpec {
    let timed = LinkSpec { delay: 1_000, bits_per_second: 1_000_000_000, ..LinkSpec::default() };
    LinkSpec { credits: vec![2], ..timed }
}

#[test]
fn a_peer_gets_the_answer_of_a_lone_device() {
    let mut bed = Testbed::new();
    let card = bed.add("echo0", Echo::default());
    let peer = bed.peer((card, 0), LinkSpec::default());

    peer.send(&mut bed, 0, &PeerPacket::new(6, b"ping"));
    bed.run_until_idle();

    let answer = peer.take(&mut bed, 0).unwrap();
    assert_eq!((answer.header, answer.bytes.as_slice()), (7, b"ping".as_slice()));
    assert!(peer.take(&mut bed, 0).is_none());
    assert_eq!(bed.fabric().packets_in_use(), 0);
}

#[test]
fn packets_of_a_peer_take_the_time_of_the_link() {
    let mut bed = Testbed::new();
    let card = bed.add("echo0", Echo::default());
    let peer = bed.peer((card, 0), slow_link());

    let packet = PeerPacket { framing: 25, ..PeerPacket::new(0, &[0; 100]) };
    peer.send(&mut bed, 0, &packet);
    bed.run_until_idle();

    // Each way takes the bits of 125 bytes, and the delay.
    assert_eq!(peer.take_all(&mut bed, 0).len(), 1);
    assert_eq!(bed.now(), Nanos(2 * (125 * 8 + 1_000)));
}

#[test]
fn packets_that_a_peer_does_not_take_stall_the_device() {
    let mut bed = Testbed::new();
    let card = bed.add("echo0", Echo::default());
    let peer = bed.peer((card, 0), slow_link());

    let mut sent = 0;
    for _ in 0..8 {
        sent += usize::from(peer.try_send(&mut bed, 0, &PeerPacket::new(sent as u64, &[])));
        bed.run_until_idle();
    }
    let stalled = (sent, peer.credits(&mut bed, 0), bed.fabric().packets_in_use());

    let mut answers = Vec::new();
    while answers.len() < sent {
        answers.extend(peer.take_all(&mut bed, 0).into_iter().map(|packet| packet.header));
        bed.run_until_idle();
    }

    // Two packets are in the buffers of each end.
    assert_eq!(stalled, (4, 0, 4));
    assert_eq!((answers, peer.credits(&mut bed, 0)), (vec![1, 2, 3, 4], 2));
    let stats = bed.fabric().link_stats(peer.link(), Direction::Forward, 0).unwrap();
    assert_eq!(stats.packets, 4);
}

#[test]
fn two_devices_exchange_packets_through_a_link() {
    let mut bed = Testbed::new();
    let cards = ["echo0", "echo1"].map(|name| bed.add(name, Echo::default()));
    let link = bed.connect((cards[0], 0), (cards[1], 0), slow_link());
    let client = Client::attach(&mut bed, cards[0], AttachmentId(0));

    client.write64(&mut bed, 0, REG_SEND, 0);
    let direction = Direction::Backward;
    bed.run_until(|bed| bed.fabric().link_stats(link, direction, 0).unwrap().packets == 10);

    // The packet goes to and fro, a microsecond a way, and its tenth way back begins.
    assert_eq!(bed.now(), Nanos(19 * 1_000));
}
