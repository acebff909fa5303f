//! Packets from one node to another.

use nicforge_hwi::{
    mu_packet::{MAX_PAYLOAD, channel, fifo_map, reception_fifo, route_control, routing},
    nd_dcr,
};
use nicforge_network::shape::{Cabling, Dimension, Partition, PartitionRule, Torus};

use super::bed::{Bed, Message, Order, timed};
use crate::config::{Network, Options};

/// Channels of packets from one node to another.
const CHANNELS: [u8; 4] = [channel::DYNAMIC, channel::DETERMINISTIC, channel::HIGH_PRIORITY, channel::SYSTEM];

/// Sends packets between all pairs of nodes on each channel, and checks what arrives.
fn check_all_pairs(mut bed: Bed, packets: u64) {
    let nodes = bed.network.compute_nodes();
    let mark = |from: u32, to: u32, number: u8, packet: u64| {
        packet << 40 | u64::from(number) << 32 | u64::from(from) << 16 | u64::from(to)
    };

    for packet in 0..packets {
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            for number in CHANNELS {
                let message = Message::to(&bed.network, to, number, mark(from, to, number, packet));
                let message = if from == to { message.local() } else { message };
                // Packets of one injection FIFO leave in order.
                let is_user = message.map & fifo_map::TORUS != 0;
                let is_ordered = is_user && number == channel::DETERMINISTIC;
                let map = if is_ordered { fifo_map::EP << (to % 10) } else { message.map };
                bed.send(from, Message { map, ..message });
            }
        }
    }
    bed.run();

    for to in 0..nodes {
        assert_eq!(bed.node(to).refused, []);
        let mut received = bed.marks(to);
        for &(fifo, mark) in &received {
            let (number, from) = ((mark >> 32) as u8, (mark >> 16) as u16);
            assert_eq!(mark as u16, to as u16);
            match number {
                channel::HIGH_PRIORITY => assert_eq!(fifo, reception_fifo::PRIORITY),
                channel::SYSTEM => assert_eq!(fifo, reception_fifo::SYSTEM),
                _ if u32::from(from) == to => assert_eq!(fifo, reception_fifo::LOCAL),
                _ => assert!(fifo < 10),
            }
        }

        // Packets of one sender on one channel in dimension order stay in order.
        for (from, number) in
            (0..nodes).flat_map(|from| CHANNELS[1..].iter().map(move |&number| (from, number)))
        {
            let of_pair = received
                .iter()
                .map(|&(_, mark)| mark)
                .filter(|&mark| ((mark >> 32) as u8, (mark >> 16) as u16) == (number, from as u16));
            let found: Vec<_> = of_pair.map(|mark| mark >> 40).collect();
            assert_eq!(found, (0..packets).collect::<Vec<_>>(), "{from} to {to} on {number}");
        }

        received.sort_unstable_by_key(|&(_, mark)| mark);
        received.dedup_by_key(|(_, mark)| *mark);
        assert_eq!(received.len() as u64, packets * u64::from(nodes) * CHANNELS.len() as u64);
    }
    assert_eq!(bed.machine.fabric().packets_in_use(), 0);
}

#[test]
fn all_pairs_exchange_packets_on_each_channel() {
    check_all_pairs(Bed::torus(&[3, 2, 1, 2, 2], &[], Options::default()), 4);
    check_all_pairs(Bed::torus(&[4, 3], &[false, true], Options::default()), 12);
    check_all_pairs(Bed::torus(&[1], &[], Options::default()), 3);
    check_all_pairs(Bed::torus(&[2, 2, 2, 2, 2], &[], Options::default()), 1);
}

#[test]
fn both_cables_between_two_nodes_carry_the_same_number_of_packets() {
    let mut bed = Bed::torus(&[2, 2, 2, 2, 2], &[], Options::default());
    for (from, to) in (0..32).flat_map(|from| (0..32).map(move |to| (from, to))) {
        let message = Message::to(&bed.network, to, channel::DETERMINISTIC, u64::from(from));
        if from != to {
            bed.send(from, message);
        }
    }
    bed.run();

    // A packet arrives along the last dimension in which its two nodes differ.
    for node in 0..32 {
        let mut of_port = [0; 10];
        for (fifo, _) in bed.marks(node) {
            of_port[usize::from(fifo)] += 1;
        }
        assert_eq!(of_port[0] + of_port[1], 1);
        assert_eq!(of_port[2..], [1, 1, 2, 2, 4, 4, 8, 8]);
    }
}

#[test]
fn all_pairs_exchange_packets_over_links_with_a_bandwidth_and_little_buffer() {
    let mut options = timed();
    options.link.credits = vec![2; super::super::CHANNELS];
    options.order = [4, 2, 0, 1, 3];
    check_all_pairs(Bed::torus(&[4, 4, 2], &[], options.clone()), 6);

    // The escape of a packet leads along another dimension than its zone.
    options.zones = [[0b00010, 0b00101, 0, 0, 0]; 4];
    check_all_pairs(Bed::torus(&[4, 4, 2], &[], options), 6);
}

#[test]
fn hint_bits_choose_the_direction() {
    for (is_down, fifo) in [(false, 1), (true, 0)] {
        let mut bed = Bed::torus(&[5, 2], &[], Options::default());
        for number in [channel::DYNAMIC, channel::DETERMINISTIC] {
            let message = Message::to(&bed.network, 1, number, 7);
            bed.send(0, message.with_hint(0, is_down));
        }
        bed.run();

        // A packet on its way up comes by the port that leads down.
        assert_eq!(bed.marks(1), [(fifo, 7), (fifo, 7)]);
        assert_eq!(bed.counter(3, "forwarded"), if is_down { 2 } else { 0 });
    }
}

#[test]
fn zones_order_the_dimensions_of_dynamic_packets() {
    let zones = [[0b11111, 0, 0, 0, 0], [0b1, 0b10, 0, 0, 0], [0b10, 0b1, 0, 0, 0], [0; 5]];
    let options = Options { zones, ..Options::default() };
    let mut bed = Bed::torus(&[3, 3], &[], options);

    // From (0, 0) to (1, 1): A last comes by A-, port 1, and B last by B-, port 3.
    let target = bed.network.shape().node(&[1, 1, 0, 0, 0]).unwrap();
    for (zone, fifo) in [(1, 3), (2, 1)] {
        let mut message = Message::to(&bed.network, target, channel::DYNAMIC, zone);
        message.header.byte3 |= (zone as u8) << route_control::ZONE_SHIFT;
        for _ in 0..4 {
            bed.send(0, message.clone());
        }
        bed.run();
        let received = std::mem::take(&mut bed.node(target).received);
        assert!(received.iter().all(|receipt| (receipt.fifo, receipt.mark()) == (fifo, zone)));
        assert_eq!(received.len(), 4);
    }

    // A zone without dimensions leaves the deterministic channel alone: A before B.
    let mut message = Message::to(&bed.network, target, channel::DYNAMIC, 3);
    message.header.byte3 |= 3 << route_control::ZONE_SHIFT;
    bed.send(0, message);
    bed.run();
    assert_eq!(bed.marks(target), [(3, 3)]);
}

#[test]
fn escaped_packets_stay_on_the_deterministic_channel_if_they_say_so() {
    // Node 2 forwards packets of zone 0 on the dynamic channel, unless they stay where they are.
    for (bits, dynamic_chunks) in [(0, 2), (route_control::STAY_ON_BUBBLE, 0)] {
        let mut bed = Bed::torus(&[5], &[false], Options::default());
        let zones = nicforge_hwi::nd_dcr::CTRL_DYNAMIC_ZONE01;
        bed.order(0, Order::Write { offset: zones, value: 0 });
        let mut message = Message::to(&bed.network, 3, channel::DYNAMIC, 1);
        message.header.byte3 |= bits;
        bed.send(0, message);
        bed.run();

        assert_eq!(bed.marks(3), [(1, 1)]);
        let port = nicforge_hwi::nd_dcr::port(0);
        let control = port + nicforge_hwi::nd_dcr::link::UPC_CTRL;
        bed.order(2, Order::Write { offset: control, value: 0x40 << 56 });
        let chunks = bed.register(2, port + nicforge_hwi::nd_dcr::link::UPC);
        assert_eq!(chunks, Some(dynamic_chunks));
    }
}

#[test]
fn deposit_packets_reach_each_node_of_a_line_once() {
    for (wraps, target) in [(true, 3), (false, 4)] {
        for number in [channel::DETERMINISTIC, channel::HIGH_PRIORITY, channel::SYSTEM] {
            let mut bed = Bed::torus(&[5, 2], &[wraps], Options::default());
            let message = Message::to(&bed.network, target, number, 9).with_hint(0, false);
            bed.send(0, message.with_routing(routing::DEPOSIT));
            bed.run();

            for node in 0..bed.network.nodes() {
                let expected = usize::from((1..=target).contains(&node));
                assert_eq!(bed.marks(node).len(), expected, "node {node}");
            }
        }
    }
}

#[test]
fn loop_cables_lead_a_nodes_packets_back_to_it() {
    let mut bed = Bed::torus(&[1; 5], &[true; 5], Options::default());
    for port in 0..10 {
        for number in [channel::DYNAMIC, channel::DETERMINISTIC] {
            let message = Message::to(&bed.network, 0, number, port);
            bed.send(0, message.with_hint(port as usize / 2, port % 2 == 1));
        }
    }
    bed.run();

    assert_eq!(bed.node(0).refused, []);
    let mut marks = bed.marks(0);
    marks.sort_unstable();
    let expected: Vec<_> = (0..10).flat_map(|port| [(port, u64::from(port) ^ 1); 2]).collect();
    assert_eq!(marks, expected);
}

#[test]
fn system_packets_reach_io_nodes_and_come_back() {
    let options = Options { io_nodes: vec![vec![5, 0], vec![3]], ..Options::default() };
    let mut bed = Bed::torus(&[2, 3], &[], options);
    assert_eq!((bed.network.nodes(), bed.network.compute_nodes()), (8, 6));
    assert_eq!(bed.network.cables().filter(|cable| cable.a.node >= 6 || cable.b.node >= 6).count(), 3);

    for from in 0..6 {
        for (exit, io_node) in [(5, 6_u32), (0, 6), (3, 7)] {
            let message = Message::to(&bed.network, exit, channel::SYSTEM, u64::from(io_node));
            bed.send(from, message.with_routing(routing::TO_IO));
        }
    }
    bed.run();
    assert_eq!(bed.marks(6), [(reception_fifo::SYSTEM, 6); 12]);
    assert_eq!(bed.marks(7), [(reception_fifo::SYSTEM, 7); 6]);

    // I/O link 10 leads to node 5, and D+ (torus port 7) to node 0.
    for (io_node, port) in [(6, 3), (6, 2), (7, 3)] {
        for target in 0..6 {
            let message = Message::to(&bed.network, target, channel::SYSTEM, u64::from(target));
            bed.send(io_node, message.with_routing(port << routing::FROM_IO.trailing_zeros()));
        }
    }
    bed.run();
    for node in 0..6 {
        assert_eq!(bed.marks(node), [(reception_fifo::SYSTEM, u64::from(node)); 3]);
    }
}

#[test]
fn higher_priorities_pass_while_a_receiver_takes_no_user_packets() {
    let mut bed = Bed::torus(&[4], &[], timed());
    bed.set_deaf(2, 0x7ff);
    for mark in 0..200 {
        bed.send(0, Message::to(&bed.network, 2, channel::DETERMINISTIC, mark).with_hint(0, false));
        bed.send(1, Message::to(&bed.network, 2, channel::DYNAMIC, mark));
    }
    bed.run();
    assert_eq!(bed.marks(2), []);

    // The sender's own queue is full, so these come from others.
    bed.send(3, Message::to(&bed.network, 2, channel::SYSTEM, 1));
    bed.send(3, Message::to(&bed.network, 2, channel::HIGH_PRIORITY, 2));
    bed.run();
    assert_eq!(bed.marks(2).len(), 2);

    bed.set_deaf(2, 0);
    bed.run();
    assert_eq!(bed.marks(2).len(), 402);
    assert_eq!(bed.machine.fabric().packets_in_use(), 0);
}

#[test]
fn unit_works_after_a_reset() {
    let mut bed = Bed::torus(&[3], &[], timed());
    bed.set_deaf(1, u16::MAX);
    for mark in 0..40 {
        bed.send(0, Message::to(&bed.network, 1, channel::DETERMINISTIC, mark));
    }
    bed.run();
    bed.order(1, Order::Reset);
    bed.set_deaf(1, 0);
    bed.run();

    bed.node(1).received.clear();
    bed.send(0, Message::to(&bed.network, 1, channel::DETERMINISTIC, 99));
    bed.run();
    assert_eq!(bed.marks(1), [(1, 99)]);
    assert_eq!(bed.machine.fabric().packets_in_use(), 0);
}

#[test]
fn partitions_are_networks_of_their_own() {
    let machine = Torus::new(&[Dimension::torus(8), Dimension::torus(4), Dimension::torus(2)]).unwrap();
    let part = |lengths: &[u32]| {
        let rule = PartitionRule::BLUE_GENE_Q;
        let partition = Partition::new(machine, &[2, 0, 0], lengths, rule).unwrap();
        Network::partition(&partition, Options::default()).unwrap()
    };

    // Dimensions of the machine's length, or of four nodes, are rings; others are open.
    let rings =
        |network: &Network| network.shape().dimensions().iter().map(|of| of.wraps).collect::<Vec<_>>();
    assert_eq!(rings(&part(&[4, 4, 2])), [true, true, true, false, false]);
    assert_eq!(rings(&part(&[3, 2, 2])), [false, false, true, false, false]);

    let network = part(&[3, 2, 2]);
    assert_eq!(network.cables().count(), 8 + 6 + 12);
    check_all_pairs(Bed::new(network.clone()), 2);

    let mut bed = Bed::new(network);
    bed.send(0, Message::to(&bed.network, 2, channel::DETERMINISTIC, 0).with_hint(0, true));
    bed.run();
    assert_eq!(bed.node(0).refused.len(), 1);
}

#[test]
fn large_networks_have_routes_without_deadlock() {
    let options = Options { io_nodes: vec![vec![0, 7], vec![200]], ..Options::default() };
    let network = Network::torus(&[4, 4, 4, 3, 2], &[true, false], options).unwrap();
    assert_eq!(network.nodes(), 386);
    assert_eq!(network.shape().nodes(), 384);
    assert_eq!(fifo_map::COUNT, 16);
}

#[test]
fn a_dynamic_packet_passes_one_that_waits_in_the_other_queue() {
    // Node 1 takes nothing from the FIFO of port A-. Four packets fill it, and a fifth one waits in
    // a queue of the link. A packet to node 2 needs room in neither.
    let passed = |options: Options| {
        let mut bed = Bed::torus(&[4], &[], options);
        bed.set_deaf(1, 1 << 1);
        for mark in 0..5 {
            bed.send(0, Message::to(&bed.network, 1, channel::DYNAMIC, mark));
        }
        bed.run();
        bed.send(0, Message::to(&bed.network, 2, channel::DYNAMIC, 5).with_hint(0, false));
        bed.run();

        let passed = bed.marks(2);
        bed.set_deaf(1, 0);
        bed.run();
        assert_eq!((bed.marks(1).len(), bed.marks(2)), (5, vec![(1, 5)]));
        !passed.is_empty()
    };

    assert!(passed(timed()));
    // With I/O nodes there is one queue.
    assert!(!passed(Options { io_nodes: vec![vec![3]], ..timed() }));
}

/// Returns the packets of an all-to-all on 64 nodes, and how many of them have escaped to the
/// channel of dimension order.
fn all_to_all_of_dynamic_packets(options: Options) -> (u64, u64) {
    const NODES: u32 = 64;
    const ROUNDS: u64 = 8;
    let mut bed = Bed::torus(&[4, 4, 4], &[], options);

    for node in 0..NODES {
        let most_through =
            Order::Write { offset: nd_dcr::CTRL_INTERNAL, value: 0xf << nd_dcr::THROUGH_RATIO_SHIFT };
        bed.order(node, most_through);
        for (round, step) in (0..ROUNDS).flat_map(|round| (1..NODES).map(move |step| (round, step))) {
            // An odd factor gives each node an order of its own.
            let target = (node + step * (2 * node + 1)) % NODES;
            let mut message = Message::to(&bed.network, target, channel::DYNAMIC, round);
            message.payload.resize(MAX_PAYLOAD, 0);
            bed.send(node, message);
        }
    }
    bed.run();

    let received: usize = (0..NODES).map(|node| bed.marks(node).len()).sum();
    assert_eq!(received as u64, u64::from(NODES * (NODES - 1)) * ROUNDS);
    (received as u64, (0..NODES).map(|node| bed.counter(node, "escaped")).sum())
}

#[test]
fn few_dynamic_packets_of_an_all_to_all_escape_from_two_queues() {
    // With one queue it is about one in 60, and the channel of dimension order fills.
    let (packets, escaped) = all_to_all_of_dynamic_packets(timed());
    assert!(escaped < packets / 300, "{escaped} of {packets} packets");

    let (packets, escaped) = all_to_all_of_dynamic_packets(Options { io_nodes: vec![vec![63]], ..timed() });
    assert!(escaped > packets / 100, "{escaped} of {packets} packets");
}
