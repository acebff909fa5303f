//! Ways of packets through the torus.

use nicforge_core::fabric::LinkSpec;
use nicforge_hwi::torus::{CHANNELS, PacketHeader, hint};
use nicforge_torus::{Options, config::MAX_ON_LINK};

use crate::common::{Rig, payload};

/// Returns options of links as on the machine: 1.4 Gb/s, with a delay.
fn timed() -> Options {
    let link = LinkSpec {
        delay: 50,
        bits_per_second: 1_400_000_000,
        cut_through: Some(32),
        ..LinkSpec::new(CHANNELS, 4, MAX_ON_LINK)
    };
    Options { link }
}

/// Sends a packet of each kind from each node to each other one, and checks that all arrive.
fn all_pairs(mut rig: Rig) {
    let nodes = rig.network.nodes();
    let mut clients = rig.all_cores();
    let kinds: [fn(PacketHeader) -> PacketHeader; 3] =
        [|header| header, PacketHeader::deterministic, PacketHeader::high_priority];

    for (kind, of_kind) in kinds.into_iter().enumerate() {
        for from in 0..nodes {
            for to in 0..nodes {
                let (header, seed) = (of_kind(rig.to(to)), from * nodes + to);
                let chunks = seed as usize % 8 + 1;
                rig.send(&mut clients[from as usize], header, &payload(seed, chunks));
                let received = clients[to as usize].receive_all();
                assert_eq!(received.len(), 1, "kind {kind} from {from} to {to}");
                assert_eq!(received[0].payload, payload(seed, chunks));
                assert_eq!(received[0].fifo == 6, kind == 2);
            }
        }
    }
    assert_eq!(rig.total("packets_received"), u64::from(3 * nodes * nodes));
    assert_eq!(rig.total("errors") + rig.total("discarded") + rig.total("undeliverable"), 0);
}

#[test]
fn packets_of_all_kinds_reach_each_node_of_a_torus() {
    all_pairs(Rig::torus([3, 2, 2]));
}

#[test]
fn packets_of_all_kinds_reach_each_node_of_a_mesh() {
    all_pairs(Rig::with([3, 2, 2], [false; 3], Options::default()));
}

#[test]
fn packets_of_all_kinds_reach_each_node_over_timed_links() {
    all_pairs(Rig::with([3, 2, 2], [true, false, true], timed()));
}

#[test]
fn a_node_alone_sends_to_itself() {
    let mut rig = Rig::torus([1, 1, 1]);
    let mut client = rig.core(0, 0);
    let header = rig.to(0).with_hints(hint::of_port(4));
    rig.send(&mut client, header, &payload(1, 3));
    let received = client.receive().unwrap();
    assert_eq!((received.fifo, received.payload), (4, payload(1, 3)));
}

#[test]
fn a_packet_is_in_the_fifo_of_the_link_by_which_it_came() {
    let mut rig = Rig::torus([4, 4, 4]);
    let mut middle = rig.core(21, 0);
    // Node 21 is at (1, 1, 1). A packet that comes by port `p` was sent by the neighbour there.
    for (port, from) in [(0, 22), (1, 20), (2, 25), (3, 17), (4, 37), (5, 5)] {
        let mut neighbour = rig.core(from, 0);
        let header = rig.to(21);
        rig.send(&mut neighbour, header, &payload(from, 1));
        assert_eq!(middle.receive().map(|packet| packet.fifo), Some(port), "from node {from}");
        assert_eq!(middle.receive(), None);
    }
    let header = rig.to(21);
    rig.send(&mut middle, header, &payload(0, 1));
    assert_eq!(middle.receive().map(|packet| packet.fifo), Some(0));
}

#[test]
fn hint_bits_choose_the_longer_way() {
    let mut rig = Rig::torus([4, 1, 1]);
    let mut clients = rig.all_cores();
    let to_neighbour = rig.to(1);

    rig.send(&mut clients[0], to_neighbour, &payload(1, 1));
    assert_eq!(rig.total("forwarded"), 0);
    let down = to_neighbour.with_hints(hint::of_port(1));
    rig.send(&mut clients[0], down, &payload(2, 1));
    // Nodes 3 and 2 pass it on, and it arrives by node 1's link X+ instead of X-.
    assert_eq!((rig.counter(3, "forwarded"), rig.counter(2, "forwarded")), (1, 1));
    let fifos: Vec<_> = clients[1].receive_all().iter().map(|packet| packet.fifo).collect();
    assert_eq!(fifos, [0, 1], "one packet by each link");
}

#[test]
fn a_deposit_packet_leaves_a_copy_on_each_node_of_its_line() {
    let mut rig = Rig::torus([4, 2, 1]);
    let mut clients = rig.all_cores();
    // Up from node 0 to node 3, by the long way.
    let header = rig.to(3).deposit().with_hints(hint::of_port(0));
    rig.send(&mut clients[0], header, &payload(7, 8));

    for (node, client) in clients.iter().enumerate() {
        let received: Vec<_> = client.receive_all().into_iter().map(|packet| packet.payload).collect();
        let expected = if (1..=3).contains(&node) { vec![payload(7, 8)] } else { vec![] };
        assert_eq!(received, expected, "node {node}");
    }
}

#[test]
fn deterministic_packets_stay_in_order_and_dynamic_ones_all_arrive() {
    for is_dynamic in [false, true] {
        let mut rig = Rig::with([4, 4, 1], [true; 3], timed());
        let mut clients = rig.all_cores();
        let (target, packets) = (10, 40);
        let to = rig.to(target);
        let header = if is_dynamic { to } else { to.deterministic() };

        let mut seeds = Vec::new();
        for seed in 0..packets {
            let from = if seed % 3 == 2 { 5 } else { 0 };
            while !rig.try_send(&mut clients[from], 0, header, &payload(seed * 64 + from as u32, 2)) {
                rig.machine.advance(100);
                rig.machine.settle();
                seeds.extend(clients[target as usize].receive_all());
            }
        }
        rig.run();
        loop {
            let received = clients[target as usize].receive_all();
            if received.is_empty() {
                break;
            }
            seeds.extend(received);
            rig.machine.settle();
            rig.run();
        }

        assert_eq!(seeds.len(), packets as usize);
        let of_sender = |from: u32| {
            let sent = (0..packets).filter(move |seed| (if seed % 3 == 2 { 5 } else { 0 }) == from);
            sent.map(move |seed| payload(seed * 64 + from, 2)).collect::<Vec<_>>()
        };
        for from in [0, 5] {
            let expected = of_sender(from);
            let mut arrived: Vec<_> = seeds
                .iter()
                .map(|packet| packet.payload.clone())
                .filter(|bytes| expected.contains(bytes))
                .collect();
            if is_dynamic {
                arrived.sort();
                let mut expected = expected;
                expected.sort();
                assert_eq!(arrived, expected);
            } else {
                assert_eq!(arrived, expected, "from node {from}");
            }
        }
    }
}
