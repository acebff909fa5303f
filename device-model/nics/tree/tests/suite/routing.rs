//! Point-to-point packets through the slots, back-pressure, errors of the slots, and faults on the
//! links.

use crate::common::{Rig, irq_to, payload, to};
use nicforge_core::{
    fabric::{Direction, Fault, LinkSpec},
    machine::Next,
};
use nicforge_hwi::{
    tree::{Header, mirror, vector, window},
    tree_dcr::{REG_INT_ENABLE, checksum, exceptions, pix, prx, status},
};
use nicforge_tree::Route;

#[test]
fn every_node_reaches_every_node_of_two_psets() {
    let mut rig = Rig::psets(&[6, 5]);
    let nodes = rig.functions.len() as u32;
    let clients: Vec<_> = (0..nodes).map(|node| rig.core(node)).collect();

    for from in 0..nodes {
        for target in 0..nodes {
            assert!(clients[from as usize].try_send(to(target), &payload(from * 100 + target)));
            rig.run();

            let received = clients[target as usize].receive();

            assert_eq!(received, Some((to(target), payload(from * 100 + target))), "{from} to {target}");
        }
    }
    assert!(clients.iter().all(|client| client.unread_packets() == 0));
}

#[test]
fn packets_between_two_nodes_keep_their_order() {
    let mut rig = Rig::psets(&[16]);
    let (io, compute) = (rig.core(0), rig.core(16));
    for number in 0..100 {
        assert!(io.try_send(to(16), &payload(number)));
        rig.run();
        assert_eq!(compute.receive().unwrap().1, payload(number));
    }
    assert_eq!(rig.counter(16, "vc1_received"), 100);
    assert_eq!(rig.counter(0, "vc1_sent"), 100);
}

#[test]
fn a_stream_of_many_kinds_is_the_same_over_links_that_take_packets_in_rows_and_one_by_one() {
    let summed = |header: Header| Header(header.0 | checksum::SOME);
    let kinds = [
        to(4),
        to(4),
        irq_to(4),
        Header::to_core(0, 4, 0, false),
        // This core has no client.
        Header::to_core(0, 4, 3, false),
        Header::to_core(0, 4, 1, true),
        summed(to(4)),
        to(2),
        to(2),
        // There is no such node.
        to(900),
        to(1),
        to(3),
    ];

    let mut results = Vec::new();
    let timed =
        LinkSpec { delay: 20, bits_per_second: 6_800_000_000, credits: vec![4, 4], ..LinkSpec::default() };
    // The heads of packets are forwarded early, and nothing else changes.
    let with_heads = LinkSpec { cut_through: Some(16), ..timed.clone() };
    for link in [LinkSpec::default(), LinkSpec { delay: 20, ..LinkSpec::default() }, timed, with_heads] {
        let mut rig = Rig::with(&[4], link, |config| config.recv_depth = 256);
        let clients: Vec<_> = (0..5).map(|node| rig.core(node)).collect();
        let other = rig.attach(4, 1);

        let count = rig.interrupts(&clients[4]);

        rig.write32(&clients[4], REG_INT_ENABLE, 1 << vector::RECV_IRQ);
        let packets: Vec<_> = (0..150u32)
            .map(|number| (kinds[(number * number / 3) as usize % kinds.len()], payload(number)))
            .collect();

        assert_eq!(rig.send_all(&clients[0], &packets), packets.len());

        // The cores of a node share its receive FIFO.
        assert_eq!(other.unread_packets(), clients[4].unread_packets());
        assert!(count[usize::from(vector::RECV_IRQ)].take() > 0);
        let received: Vec<Vec<_>> = clients
            .iter()
            .map(|client| {
                std::iter::from_fn(|| client.receive()).map(|(header, data)| (header.0, data)).collect()
            })
            .collect();
        for (node, received) in received.iter().enumerate() {
            // Of the cores that packets name, 0 and 1 have clients.
            let expected = packets.iter().filter(|(header, _)| {
                header.node() as usize == node && header.core().is_none_or(|core| core < 2)
            });
            let expected: Vec<_> = expected.map(|(header, data)| (header.0, *data)).collect();
            assert_eq!(*received, expected, "node {node}");
        }

        rig.run();
        let names = ["sent", "received", "forwarded", "discarded", "no_target"];
        let counters: Vec<_> =
            (0..5u32).flat_map(|node| names.map(|name| rig.counter(node, &format!("vc1_{name}")))).collect();
        results.push((counters, clients[4].mirror(mirror::RECV_TAIL), clients[0].mirror(mirror::SEND_HEAD)));
    }
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
}

#[test]
fn the_fifos_of_nodes_on_the_way_are_not_touched() {
    let mut rig = Rig::psets(&[16]);
    let (io, between, compute) = (rig.core(0), rig.core(7), rig.core(16));

    rig.send_all(&io, &[(to(16), payload(1))]);

    assert_eq!(compute.unread_packets(), 1);
    assert_eq!(between.mirror(mirror::RECV_TAIL), 0);
    assert_eq!(between.mirror(mirror::SEND_HEAD), 0);
    assert_eq!(rig.counter(7, "vc1_forwarded"), 1);
}

#[test]
fn a_receiver_that_reads_nothing_stops_the_sender_and_nothing_is_lost() {
    let mut rig = Rig::psets(&[4]);
    let (io, compute) = (rig.core(0), rig.core(4));
    let packets: Vec<_> = (0..200).map(|number| (to(4), payload(number))).collect();

    let sent = rig.send_all(&io, &packets);

    // The bound is 8 receive slots, 8 send slots, and 2 links with 4 credits each.
    assert_eq!(sent, 24);
    assert_eq!(status::send_headers(io.mirror(mirror::STATUS)), 8);
    assert_eq!(status::headers(compute.mirror(mirror::STATUS)), 8);
    for number in 0..sent as u32 {
        assert_eq!(compute.receive().unwrap().1, payload(number));
        rig.run();
    }
    assert_eq!(compute.receive(), None);
    assert_eq!(io.mirror(mirror::SEND_HEAD), 24);
}

#[test]
fn a_blocked_user_channel_does_not_stop_the_system_channel() {
    let mut rig = Rig::psets(&[4]);
    let (io, _compute) = (rig.core(0), rig.core(4));
    let (io_admin, compute_admin) = (rig.admin(0), rig.admin(4));
    let packets: Vec<_> = (0..100).map(|number| (to(4), payload(number))).collect();
    rig.send_all(&io, &packets);

    for number in 0..50 {
        rig.send_all(&io_admin, &[(to(4), payload(1000 + number))]);
        assert_eq!(compute_admin.receive().unwrap().1, payload(1000 + number));
    }
}

#[test]
fn a_blocked_pset_does_not_stop_its_neighbours_packets_or_presence_symbols() {
    let mut rig = Rig::psets(&[2, 2]);
    let (io_a, compute_a) = (rig.core(0), rig.core(1));
    let (io_b, _compute_b) = (rig.core(3), rig.core(4));
    let packets: Vec<_> = (0..100).map(|number| (to(4), payload(number))).collect();
    rig.send_all(&io_b, &packets);

    // The loop makes more presence changes than the links to the blocked pset have credits.
    for _ in 0..20 {
        let late = rig.core(2);
        rig.kill(&late);
        rig.run();
    }
    rig.send_all(&io_a, &[(to(1), payload(7))]);
    rig.send_all(&compute_a, &[(to(0), payload(8))]);

    assert_eq!(compute_a.receive().unwrap().1, payload(7));
    assert_eq!(io_a.receive().unwrap().1, payload(8));
    assert_eq!(io_a.presence(2, 0), 40);
    assert_eq!(io_b.presence(2, 0), 40);
}

#[test]
fn packets_for_a_node_wait_until_its_first_client_attaches() {
    let mut rig = Rig::psets(&[2]);
    let io = rig.core(0);
    rig.send_all(&io, &[(to(1), payload(1)), (to(1), payload(2))]);

    let compute = rig.core(1);

    assert_eq!(compute.receive().unwrap().1, payload(1));
    assert_eq!(compute.receive().unwrap().1, payload(2));
}

#[test]
fn a_packet_for_an_address_that_does_not_exist_is_discarded_and_reported() {
    let mut rig = Rig::psets(&[2]);
    let io = rig.core(0);

    rig.send_all(&io, &[(to(700), payload(1)), (to(1), payload(2))]);

    assert_eq!(rig.counter(0, "vc1_no_target"), 1);
    assert_eq!(exceptions(io.mirror(mirror::ERROR)).inject & pix::ADDR0, pix::ADDR0);
    let compute = rig.core(1);
    assert_eq!(compute.receive().unwrap().1, payload(2));
}

#[test]
fn a_packet_that_is_routed_back_where_it_came_from_is_discarded() {
    let mut rig = Rig::with(&[1], LinkSpec::default(), |config| {
        config.routes.targets[1] = Route::Port(config.node_address as u8 ^ 1)
    });
    let io = rig.core(0);

    rig.send_all(&io, &[(to(1), payload(1))]);

    assert_eq!(rig.counter(1, "vc1_no_target"), 1);
    assert_eq!(rig.machine.fabric().packets_in_use(), 0);
}

#[test]
fn a_bad_receive_pointer_is_ignored_and_reported() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    rig.send_all(&io, &[(to(1), payload(1))]);

    compute.set_window(window::RECV_HEAD, 3);
    rig.run();

    assert_eq!(exceptions(compute.mirror(mirror::ERROR)).receive & prx::PFU1, prx::PFU1);
    compute.set_window(window::RECV_HEAD, 0);
    assert_eq!(compute.receive().unwrap().1, payload(1));
    let packets: Vec<_> = (0..8).map(|number| (to(1), payload(number))).collect();
    assert_eq!(rig.send_all(&io, &packets), 8);
    assert_eq!(compute.unread_packets(), 8);
}

#[test]
fn the_mirror_holds_the_identity_and_the_tree_position_of_the_node() {
    let mut rig = Rig::psets(&[2, 3]);
    let compute = rig.core(5);
    let io = rig.core(3);

    let words = |client: &crate::common::Client| {
        [mirror::NODE_ADDRESS, mirror::CHANNEL, mirror::SEND_DEPTH, mirror::RECV_DEPTH]
            .map(|at| client.mirror(at))
    };
    assert_eq!(words(&compute), [5, 1, 8, 8]);
    assert_eq!(compute.mirror(mirror::NODES), 7);
    assert_eq!(compute.mirror(mirror::IO_NODE), 3);
    assert_eq!(compute.mirror(mirror::PSET_RANK), 1);
    assert_eq!(compute.mirror(mirror::PSET_SIZE), 3);
    assert_eq!(io.mirror(mirror::PSET_RANK), u32::MAX);
}

#[test]
fn irq_marked_packets_are_counted_while_they_are_in_the_fifo() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    rig.send_all(&io, &[(to(1), payload(1)), (irq_to(1), payload(2)), (irq_to(1), payload(3))]);
    assert_eq!(compute.mirror(mirror::RECV_IRQ), 2);
    assert_eq!(compute.mirror(mirror::STATUS) & status::IRQ, status::IRQ);

    for remaining in [2, 1, 0] {
        compute.receive().unwrap();
        rig.run();
        assert_eq!(compute.mirror(mirror::RECV_IRQ), remaining);
    }
    assert_eq!(compute.mirror(mirror::STATUS) & status::IRQ, 0);
}

#[test]
fn checksum_errors_on_a_link_cost_time_and_nothing_else() {
    for cut_through in [None, Some(4)] {
        let timed = LinkSpec { delay: 100, bits_per_second: 6_800_000_000, ..LinkSpec::default() };
        let mut rig = Rig::with(&[4], LinkSpec { cut_through, ..timed }, |_| {});
        let (io, compute) = (rig.core(0), rig.core(4));
        let last = *rig.links.last().unwrap();

        let hook = |_: &mut _, number| if number % 3 == 1 { Fault::Corrupt } else { Fault::None };
        rig.machine.fabric().set_fault(last, Direction::Forward, Some(Box::new(hook))).unwrap();

        for number in 0..40 {
            rig.send_all(&io, &[(to(4), payload(number))]);

            assert_eq!(compute.receive().unwrap().1, payload(number));
        }

        let stats = rig.machine.fabric().link_stats(last, Direction::Forward, 1).unwrap();
        assert!(stats.retransmissions > 5);
    }
}

#[test]
fn a_deep_fifo_holds_as_many_packets_as_its_depth() {
    let mut rig = Rig::with(&[2], LinkSpec::default(), |config| {
        config.send_depth = 256;
        config.recv_depth = 128;
    });
    let (io, compute) = (rig.core(0), rig.core(1));
    let packets: Vec<_> = (0..500).map(|number| (to(1), payload(number))).collect();

    assert_eq!(rig.send_all(&io, &packets), 256 + 128 + 4);

    for number in 0..388 {
        assert_eq!(compute.receive().unwrap().1, payload(number));
        rig.run();
    }
}

#[test]
fn streams_in_both_directions_reach_the_payload_bandwidth_of_the_link() {
    for cut_through in [None, Some(4)] {
        let gigabits = rate_both_ways(cut_through);
        // Of 260 bytes 256 are payload; two hops and a full FIFO at the start cost little.
        assert!((6.6..6.7).contains(&gigabits), "{gigabits} Gb/s, {cut_through:?}");
    }
}

/// Returns the bandwidth of the payload in Gb/s, in each of both directions at once, over two hops
/// of 6.8 Gb/s.
fn rate_both_ways(cut_through: Option<u32>) -> f64 {
    let link = LinkSpec {
        delay: 50,
        bits_per_second: 6_800_000_000,
        credits: vec![8, 8],
        cut_through,
        ..LinkSpec::default()
    };
    let mut rig = Rig::with(&[4], link, |_| {});
    let (io, compute) = (rig.core(0), rig.core(4));

    let (start, mut received) = (rig.machine.now(), [0u32; 2]);

    while received != [1000, 1000] {
        let _ = rig.machine.step(64);
        while io.try_send(to(4), &payload(1)) || compute.try_send(to(0), &payload(2)) {}
        for (count, client) in received.iter_mut().zip([&compute, &io]) {
            while *count < 1000 && client.receive().is_some() {
                *count += 1;
            }
        }

        if rig.machine.step(64) != Next::Now {
            let step_end = rig.machine.now().after(1000);
            let next = rig.machine.fabric().next_event();
            rig.machine.advance_to(next.min(step_end));
        }
    }

    1000.0 * 256.0 * 8.0 / (rig.machine.now().0 - start.0) as f64
}

#[test]
fn a_fabric_that_is_short_of_packets_slows_down_and_loses_nothing() {
    let mut rig = Rig::psets(&[4]);
    let (io, compute) = (rig.core(0), rig.core(4));
    rig.machine.fabric().set_pool_bound(2);

    let (mut sent, mut received) = (0, 0);
    while received < 50 {
        while sent < 50 && io.try_send(to(4), &payload(sent)) {
            sent += 1;
        }

        rig.run();
        rig.machine.advance(10_000);

        while let Some((_, data)) = compute.receive() {
            assert_eq!(data, payload(received));
            received += 1;
        }
    }

    assert_eq!(rig.machine.fabric().packets_in_use(), 0);
}
