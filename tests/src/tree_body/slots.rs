//! Packets through the mapped slots: order, full FIFOs, back-pressure, read pointers.

use std::thread;

use nicforge_hwi::{
    tree::{Header, VC_USER, mirror, window},
    tree_dcr::{REC_PRXF, dcr, error_word, pix, prx, status},
};
use nicforge_test_body::body;

use super::{
    CREDITS, Core, DEPTH_1, DEPTH_256, MACHINE, NODES, counter, irq_to, name, numbered, payload,
    run_until_idle, to, transfer,
};
use crate::backing::Rig;

/// Every node reaches every node, itself included, and packets keep their order and headers.
#[body(on(MACHINE, DEPTH_1, DEPTH_256))]
pub fn every_node_reaches_every_node_in_order(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    for from in &nodes {
        for target in &nodes {
            let header = |number| Header::point_to_point(number, target.address(), number % 3 == 0);
            let packets: Vec<_> =
                (0..30).map(|number| (header(number), payload(number + 100 * from.address()))).collect();
            transfer(from, target, &packets);
        }
    }

    run_until_idle(rig);
    assert!(nodes.iter().all(|node| node.try_receive().is_none()));
}

/// All nodes send to one at once: no packet is lost, and each sender's packets keep their order.
#[body]
pub fn all_nodes_send_to_one_and_each_stream_keeps_its_order(rig: &dyn Rig) {
    const PACKETS: u32 = 200;

    let nodes = Core::of_all(rig);
    let target = &nodes[0];
    thread::scope(|scope| {
        for (from, node) in (0..).zip(&nodes[1..]) {
            scope.spawn(move || {
                for number in 0..PACKETS {
                    node.send(Header::point_to_point(from, 0, false), &payload(number));
                }
            });
        }

        let mut received = [0; NODES as usize - 1];
        for _ in 0..PACKETS * (NODES - 1) {
            let (header, bytes) = target.receive();
            let number = &mut received[header.class() as usize];
            assert!(
                bytes == payload(*number),
                "packet {number} of sender {} is missing or changed",
                header.class()
            );
            *number += 1;
        }
    });
}

/// The irq bit arrives, is counted while its packet is in the FIFO, and is visible in the status
/// word.
#[body]
pub fn the_irq_bit_is_counted_while_its_packet_waits(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn3"]);
    for number in 0..6 {
        let header = if number % 2 == 1 { irq_to(4) } else { to(4) };
        io.send(header, &payload(number));
    }

    node.wait_until(|| node.word(mirror::RECV_TAIL) == 6);
    for remaining in [3, 3, 2, 2, 1, 1] {
        assert_eq!(node.word(mirror::RECV_IRQ), remaining);
        assert_eq!(node.word(mirror::STATUS) & status::IRQ, status::IRQ);
        node.receive();
        run_until_idle(rig);
    }

    assert_eq!(node.word(mirror::RECV_IRQ), 0);
    assert_eq!(node.word(mirror::STATUS) & status::IRQ, 0);
}

/// A receiver does not read, so its FIFO, the link and the send FIFO fill, and no further packet
/// moves. Each packet that is read lets one more in, and none is lost. This holds for any depth.
#[body(on(MACHINE, DEPTH_1, DEPTH_256))]
pub fn a_receiver_that_does_not_read_fills_all_fifos_and_loses_no_packet(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let depth = io.word(mirror::RECV_DEPTH);

    let sent = node.send_until_full(rig, to(0), 0);
    assert_eq!(sent, depth + CREDITS + depth);
    assert_eq!((io.word(mirror::RECV_TAIL), io.unread_packets()), (depth, depth));
    assert_eq!(node.word(mirror::SEND_HEAD), depth + CREDITS);

    io.receive_numbers(0, 1);
    run_until_idle(rig);
    assert!(node.try_send(to(0), &payload(sent)));

    run_until_idle(rig);
    assert!(!node.has_room());

    io.receive_numbers(1, sent);
    run_until_idle(rig);

    assert!(io.try_receive().is_none() && node.has_room());
}

/// A read pointer that advances over many packets at once frees their slots.
#[body(on(MACHINE, DEPTH_1, DEPTH_256))]
pub fn a_pointer_over_many_packets_frees_them_all(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let depth = io.word(mirror::RECV_DEPTH);
    let sent = node.send_until_full(rig, to(0), 0);

    io.store(window::RECV_HEAD, depth);
    run_until_idle(rig);
    assert_eq!(io.unread_packets(), depth.min(sent - depth));

    io.receive_numbers(depth, sent - depth);
}

/// A node that does not read blocks the packets for it hop by hop. Other packets on the same
/// channel pass. When the node reads, it gets all of its packets.
#[body]
pub fn a_blocked_node_delays_only_its_own_packets(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let [io, cn0, cn1, cn2, cn3] = &nodes[..] else { panic!("the usual machine does not have five nodes") };
    let sent = cn2.send_until_full(rig, to(0), 0);

    assert_eq!(sent, 2 * 8 + 2 * CREDITS);

    transfer(cn3, cn2, &numbered(3, 1000, 40));
    transfer(cn1, cn2, &numbered(3, 2000, 40));
    transfer(io, cn0, &numbered(1, 3000, 40));
    transfer(cn1, cn3, &numbered(4, 4000, 40));

    assert!(!cn2.has_room());

    io.receive_numbers(0, sent);
    run_until_idle(rig);

    assert!(io.try_receive().is_none());
}

/// A blocked channel of either kind does not block the other one on the same nodes and links.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_blocked_channel_does_not_block_the_other(rig: &dyn Rig) {
    let users = Core::everywhere(rig, "core0");
    let admins = Core::everywhere(rig, "admin");

    for (blocked, open) in [(&users, &admins), (&admins, &users)] {
        let sent = blocked[3].send_until_full(rig, to(0), 0);
        let back = blocked[0].send_until_full(rig, to(3), 500);

        transfer(&open[3], &open[0], &numbered(0, 1000, 60));
        transfer(&open[0], &open[3], &numbered(3, 2000, 60));

        blocked[0].receive_numbers(0, sent);
        blocked[3].receive_numbers(500, back);
    }
}

/// Packets in transit through a node touch neither its FIFOs nor its count of received packets.
#[body]
pub fn packets_in_transit_do_not_reach_clients_of_the_nodes_between(rig: &dyn Rig) {
    let [cn1, between, cn3] = Core::of(rig, ["cn1", "cn0", "cn3"]);
    let before = counter(rig, "cn0", "vc1_forwarded");

    transfer(&cn1, &cn3, &numbered(4, 0, 50));
    assert_eq!(counter(rig, "cn0", "vc1_forwarded") - before, 50);
    assert_eq!((counter(rig, "cn0", "vc1_received"), counter(rig, "cn0", "vc1_sent")), (0, 0));
    assert_eq!((between.word(mirror::RECV_TAIL), between.word(mirror::SEND_HEAD)), (0, 0));
    assert_eq!((between.word(mirror::STATUS), between.unread_packets()), (0, 0));
    assert_eq!(counter(rig, "cn3", "vc1_received"), 50);
}

/// Invalid read pointers set an error bit, free no slot, and do not prevent a later valid one.
#[body]
pub fn a_bad_read_pointer_is_reported_and_ignored(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let sent = node.send_until_full(rig, to(0), 0);
    io.receive_numbers(0, 3);
    run_until_idle(rig);

    assert!(node.has_room());

    let before = io.word(mirror::RECV_TAIL);
    for invalid in [2, before + 1, 1000, 1 << 31, u32::MAX] {
        io.store(window::RECV_HEAD, invalid);
        run_until_idle(rig);
        assert_eq!(io.word(mirror::ERROR) & error_word(prx::PFU1, 0), prx::PFU1, "read pointer {invalid}");
        assert_eq!(io.read(dcr(REC_PRXF)) & !prx::WM1, prx::PFU1, "read pointer {invalid}");
        assert_eq!(io.word(mirror::RECV_TAIL), before, "read pointer {invalid}");
    }

    io.store(window::RECV_HEAD, 3);
    io.receive_numbers(3, sent - 3);
    assert_eq!(io.errors(), (0, 0));

    // They are also invalid while the FIFO is empty.
    io.store(window::RECV_HEAD, sent + 1);
    run_until_idle(rig);

    assert_eq!(io.errors(), (prx::PFU1, 0));

    io.store(window::RECV_HEAD, sent);
    transfer(&node, &io, &numbered(0, 100, 20));
}

/// A packet for an address outside the machine is discarded, sets an error bit and is counted. The
/// next one passes.
#[body]
pub fn a_packet_for_an_absent_node_is_discarded_and_counted(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);

    for target in [NODES, 1023, 0xff_ffff] {
        node.send(to(target), &payload(9));
        run_until_idle(rig);
        assert_eq!(node.errors(), (0, pix::ADDR0));
    }

    assert_eq!(counter(rig, "cn2", "vc1_no_target"), 3);

    transfer(&node, &io, &numbered(0, 1, 1));
}

/// The mirror shows the node's address and role.
#[body]
pub fn the_mirror_holds_the_address_and_role_of_the_node(rig: &dyn Rig) {
    for (address, node) in (0..).zip(Core::of_all(rig)) {
        let words =
            [mirror::NODE_ADDRESS, mirror::CHANNEL, mirror::NODES, mirror::IO_NODE, mirror::PSET_SIZE];
        assert_eq!(words.map(|offset| node.word(offset)), [address, VC_USER as u32, NODES, 0, NODES - 1]);
        assert_eq!(node.word(mirror::PSET_RANK), address.wrapping_sub(1), "{}", name(address));
        assert_eq!((node.word(mirror::SEND_DEPTH), node.word(mirror::RECV_DEPTH)), (8, 8));
    }
}

/// The channels of a node are separate: the windows of one are not visible in the other. A core's
/// packets arrive at cores, the admin's at the admin.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_core_reaches_the_user_channel_only(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let (io_admin, node_admin) = (Core::open(rig, "io0", "admin"), Core::open(rig, "cn0", "admin"));
    node.store(window::SRAM, 0xabcd);
    node.store(window::LOCK + 5 * window::LOCK_STRIDE, 1);

    node.send(to(0), &payload(1));
    node_admin.send(to(0), &payload(2));

    io.receive_numbers(1, 1);
    io_admin.receive_numbers(2, 1);
    run_until_idle(rig);

    assert!(io.try_receive().is_none() && io_admin.try_receive().is_none());
    assert_eq!((node_admin.window_word(window::SRAM), node_admin.locked_by(5)), (0, 0));
    assert_eq!((node.word(mirror::CHANNEL), node_admin.word(mirror::CHANNEL)), (1, 0));
    assert_eq!((counter(rig, "cn0", "vc0_sent"), counter(rig, "cn0", "vc1_sent")), (1, 1));
}
