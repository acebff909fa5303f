//! Clients that attach, detach and die: presence, lock boxes, and packets left in the FIFOs.

use crate::common::{Client, LOCK_RECV, Rig, irq_to, payload, to};
use nicforge_core::ids::AttachmentId;
use nicforge_hwi::{
    tree::{Header, mirror, vector, window},
    tree_dcr::REG_INT_ENABLE,
};

/// Offset of the send FIFO's lock box in the window.
const LOCK_SEND: u64 = window::LOCK + window::LOCK_SEND * window::LOCK_STRIDE;

#[test]
fn an_attached_core_is_seen_by_all_nodes_on_both_channels() {
    let mut rig = Rig::psets(&[3, 2]);
    let watchers: Vec<_> = (0..7).map(|node| rig.admin(node)).collect();
    let user = rig.attach(1, 2);

    let _late = rig.attach(5, 3);

    for watcher in &watchers {
        assert_eq!(watcher.presence(5, 3), 1);
        assert_eq!(watcher.presence(1, 2), 1);
        assert_eq!(watcher.presence(5, 0), 0);
    }
    assert_eq!(user.presence(5, 3), 1);
    assert_eq!(user.presence(1, 2), 1);
}

#[test]
fn a_channel_that_opens_late_shows_the_presence_of_all_cores() {
    let mut rig = Rig::psets(&[3]);
    let first = rig.core(1);
    rig.kill(&first);
    let _second = rig.attach(1, 0);
    let _third = rig.attach(2, 1);
    rig.run();

    let late = rig.core(3);

    assert_eq!(late.presence(1, 0), 3);
    assert_eq!(late.presence(2, 1), 1);
    assert_eq!(late.presence(3, 0), 1);
}

#[test]
fn the_presence_symbol_of_a_dead_core_arrives_after_its_packets() {
    let mut rig = Rig::psets(&[4]);
    let (io, compute) = (rig.core(0), rig.core(4));

    // These are more packets than the path to the I/O node holds, so the rest is in the send FIFO
    // when the core dies.
    let packets: Vec<_> = (0..100).map(|number| (to(0), payload(number))).collect();
    let sent = rig.send_all(&compute, &packets) as u32;

    rig.kill(&compute);
    rig.run();

    let mut received = 0;
    while io.presence(4, 0) == 1 {
        assert_eq!(io.receive().unwrap().1, payload(received));
        received += 1;
        rig.run();
    }

    // At most the packets in the receive slots are left.
    while let Some((_, data)) = io.receive() {
        assert_eq!(data, payload(received));
        received += 1;
    }
    assert_eq!(io.presence(4, 0), 2);
    assert_eq!(received, sent);
}

#[test]
fn the_presence_symbol_of_a_dead_core_does_not_pass_the_send_slots_of_live_cores() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);

    let (dead, _left) = (rig.attach(4, 0), rig.attach(4, 1));
    let packets: Vec<_> = (0..100).map(|number| (to(0), payload(number))).collect();

    let sent = rig.send_all(&dead, &packets) as u32;
    rig.kill(&dead);
    rig.run();

    for number in 0..sent {
        // The last packets may be in the receive slots when the symbol arrives.
        assert!(io.presence(4, 0) == 1 || sent - number <= 8);
        assert_eq!(io.receive().unwrap().1, payload(number));
        rig.run();
    }

    assert_eq!((io.presence(4, 0), io.presence(4, 1)), (2, 1));
}

#[test]
fn presence_changes_are_counted_and_raise_an_enabled_interrupt() {
    let mut rig = Rig::psets(&[2]);

    let io = rig.core(0);
    let counts = rig.interrupts(&io);
    rig.write32(&io, REG_INT_ENABLE, 1 << vector::PRESENCE);
    counts[usize::from(vector::PRESENCE)].take();
    let before = io.mirror(mirror::PRESENCE_CHANGES);

    let compute = rig.core(1);
    rig.kill(&compute);
    rig.run();

    assert_eq!(io.mirror(mirror::PRESENCE_CHANGES), before + 2);
    assert_eq!(counts[usize::from(vector::PRESENCE)].take(), 2);
}

#[test]
fn a_change_before_the_interrupt_was_enabled_raises_it_then_and_once() {
    let mut rig = Rig::psets(&[2]);
    let io = rig.core(0);
    let counts = rig.interrupts(&io);
    let _compute = rig.core(1);
    assert_eq!(counts[usize::from(vector::PRESENCE)].take(), 0);

    rig.write32(&io, REG_INT_ENABLE, 1 << vector::PRESENCE);
    rig.write32(&io, REG_INT_ENABLE, 1 << vector::PRESENCE);

    assert_eq!(counts[usize::from(vector::PRESENCE)].take(), 1);
}

#[test]
fn packets_for_a_core_whose_client_died_are_discarded_and_block_no_sender() {
    let mut rig = Rig::psets(&[4]);
    let (io, compute) = (rig.core(0), rig.core(4));
    rig.kill(&compute);
    rig.run();
    let packets: Vec<_> = (0..100).map(|number| (to(4), payload(number))).collect();

    assert_eq!(rig.send_all(&io, &packets), 100);

    assert_eq!(rig.counter(4, "vc1_discarded"), 100);
    let successor = rig.core(4);
    rig.send_all(&io, &[(to(4), payload(7))]);
    assert_eq!(successor.receive().unwrap().1, payload(7));
}

#[test]
fn a_new_client_finds_empty_fifos_and_memory_of_its_own() {
    let mut rig = Rig::psets(&[2]);
    let (io, first) = (rig.core(0), rig.core(1));
    rig.send_all(&io, &[(to(1), payload(1)), (irq_to(1), payload(2))]);
    first.set_window(window::SRAM, 42);
    rig.kill(&first);
    rig.run();

    let second = rig.core(1);

    assert_eq!(second.unread_packets(), 0);
    assert_eq!(second.window(window::SRAM), 0);
    assert_eq!(second.mirror(mirror::RECV_TAIL), 0);
    assert_eq!(second.mirror(mirror::RECV_IRQ), 0);
    // The dead client's mapping is not the memory that the NIC reads now.
    first.try_send(to(0), &payload(9));
    rig.run();
    assert_eq!(io.receive(), None);
}

#[test]
fn the_cores_of_a_node_share_their_fifos_and_memory() {
    let mut rig = Rig::psets(&[2]);
    let (io, first, second) = (rig.core(0), rig.attach(1, 0), rig.attach(1, 1));

    first.set_window(window::SRAM + 8, 7);
    rig.send_all(&io, &[(to(1), payload(3))]);

    assert_eq!(second.window(window::SRAM + 8), 7);
    assert_eq!(second.receive().unwrap().1, payload(3));
    assert_eq!(first.receive(), None);
    rig.kill(&first);
    rig.send_all(&second, &[(to(0), payload(4))]);
    assert_eq!(io.receive().unwrap().1, payload(4));
}

#[test]
fn lock_boxes_of_a_dead_core_are_freed_and_no_others() {
    let mut rig = Rig::psets(&[2]);
    let (first, second) = (rig.attach(1, 0), rig.attach(1, 1));
    let lock = |number: u64| window::LOCK + number * window::LOCK_STRIDE;
    // The lower half of a lock is the number of its owner's attachment plus 1.
    second.set_window(LOCK_SEND, 0xabcd_0002);
    second.set_window(lock(63), 0x0001_0001);
    second.set_window(lock(30), 0x0000_0001);

    rig.kill(&first);

    assert_eq!(second.window(LOCK_SEND), 0xabcd_0002);
    assert_eq!(second.window(lock(63)), 0);
    assert_eq!(second.window(lock(30)), 0);
}

#[test]
fn the_packets_of_a_dead_reader_are_discarded_until_the_next_reader_takes_the_lock() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (reader, other) = (rig.attach(4, 0), rig.attach(4, 1));
    reader.take_receive_lock();
    let packets: Vec<_> = (0..24).map(|number| (to(4), payload(number))).collect();
    assert_eq!(rig.send_all(&io, &packets), 24);
    rig.kill(&reader);
    rig.run();

    // The stream drains, and so does a second one. The packet with the irq bit stays, with all
    // packets after it.
    rig.send_all(&io, &packets);
    rig.send_all(&io, &[(irq_to(4), payload(99)), (to(4), payload(100))]);

    assert_eq!(rig.counter(4, "vc1_discarded"), 48);
    assert_eq!(other.unread_packets(), 2);
    other.take_receive_lock();
    assert_eq!(other.receive().unwrap(), (irq_to(4), payload(99)));
    assert_eq!(other.receive().unwrap().1, payload(100));
    rig.send_all(&io, &[(to(4), payload(101))]);
    assert_eq!(other.receive().unwrap().1, payload(101));
}

/// Returns a machine, the I/O node's core, and a live core of a node whose reader has died with the
/// lock.
fn after_the_death_of_a_reader() -> (Rig, Client, Client) {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (dead, live) = (rig.attach(4, 0), rig.attach(4, 1));
    dead.take_receive_lock();
    rig.kill(&dead);
    rig.run();
    (rig, io, live)
}

#[test]
fn a_reader_that_took_and_freed_the_lock_ends_the_discarding() {
    let (mut rig, io, live) = after_the_death_of_a_reader();
    // The reader takes an acknowledgement and leaves the data for its other thread.
    rig.send_all(&io, &[(irq_to(4), payload(1)), (to(4), payload(2))]);
    live.take_receive_lock();
    assert_eq!(live.receive().unwrap(), (irq_to(4), payload(1)));
    live.free_receive_lock();
    rig.run();

    assert_eq!(live.receive().unwrap(), (to(4), payload(2)));
}

#[test]
fn packets_that_name_a_live_core_are_not_discarded_for_a_dead_reader() {
    let (mut rig, io, live) = after_the_death_of_a_reader();
    rig.send_all(&io, &[(to_core(1, false), payload(1)), (to_core(1, false), payload(2))]);

    assert_eq!(live.receive().unwrap(), (to_core(1, false), payload(1)));
    rig.run();
    assert_eq!(live.receive().unwrap(), (to_core(1, false), payload(2)));
}

#[test]
fn a_reset_of_an_attachment_shows_in_its_generation_and_spares_the_others() {
    let mut rig = Rig::psets(&[2]);
    let (io, first, second) = (rig.core(0), rig.attach(1, 0), rig.attach(1, 1));
    first.set_window(LOCK_SEND, 1);
    rig.send_all(&io, &[(to(1), payload(5))]);

    rig.machine.reset_attachment(first.function, AttachmentId(0)).unwrap();
    rig.run();

    assert_eq!(io.presence(1, 0), 3);
    assert_eq!(io.presence(1, 1), 1);
    assert_eq!(second.window(LOCK_SEND), 0);
    assert_eq!(second.receive().unwrap().1, payload(5));
}

#[test]
fn an_operators_reset_clears_a_blocked_node_and_shows_in_its_peers_mirrors() {
    let mut rig = Rig::psets(&[4]);
    let (io, compute) = (rig.core(0), rig.core(4));
    let packets: Vec<_> = (0..100).map(|number| (to(4), payload(number))).collect();
    rig.send_all(&io, &packets);

    rig.machine.reset_function(compute.function).unwrap();
    rig.run();

    assert_eq!(io.presence(4, 0), 3);
    assert_eq!(compute.mirror(mirror::NODE_ADDRESS), 4);

    // Packets on the links during the reset arrive in the empty FIFO.
    while compute.receive().is_some() {
        rig.run();
    }

    rig.send_all(&io, &[(to(4), payload(500))]);
    assert_eq!(compute.receive().unwrap().1, payload(500));
}

#[test]
fn short_lived_clients_at_a_blocked_tree_leave_a_bounded_number_of_packets() {
    let mut rig = Rig::psets(&[1]);
    let io = rig.core(0);
    let fill: Vec<_> = (0..100).map(|number| (to(0), payload(number))).collect();
    for _ in 0..50 {
        let client = rig.core(1);
        rig.send_all(&client, &fill);
        rig.kill(&client);
        rig.run();
    }

    // Two send FIFOs' worth of packets are kept, in addition to the receive FIFO and the link's
    // buffers.
    let mut received = 0;
    while io.receive().is_some() {
        received += 1;
        rig.run();
    }
    assert_eq!(received, 8 + 4 + 16);
    assert_eq!(io.presence(1, 0), 100);
}

/// Returns the header of a packet for a core of node 4.
fn to_core(core: u16, irq: bool) -> Header {
    Header::to_core(0, 4, core, irq)
}

#[test]
fn packets_for_a_dead_core_do_not_block_other_cores() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (dead, idle) = (rig.attach(4, 0), rig.attach(4, 1));
    let stream = |marked: bool| -> Vec<_> {
        (0..24).map(|number| (to_core(0, marked && number == 0), payload(number))).collect()
    };

    // The core dies with the beginning of its message at the front of the FIFO. The other core then
    // takes and frees the lock, and more packets arrive.
    dead.take_receive_lock();
    rig.send_all(&io, &stream(true));
    rig.kill(&dead);
    rig.run();
    idle.take_receive_lock();
    idle.free_receive_lock();
    assert_eq!(rig.send_all(&io, &stream(true)), 24);

    rig.send_all(&io, &[(to_core(1, true), payload(99)), (to_core(1, false), payload(100))]);

    assert_eq!(rig.counter(4, "vc1_discarded"), 48);
    assert_eq!(idle.receive().unwrap(), (to_core(1, true), payload(99)));
    assert_eq!(idle.receive().unwrap(), (to_core(1, false), payload(100)));
}

#[test]
fn packets_for_a_dead_core_are_discarded_once_a_live_cores_packets_before_them_are_taken() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (dead, live) = (rig.attach(4, 0), rig.attach(4, 1));

    let mut packets = vec![(to_core(1, true), payload(0))];
    packets.extend((1..4).map(|number| (to_core(0, number == 1), payload(number))));
    packets.push((to_core(1, false), payload(4)));
    rig.send_all(&io, &packets);
    rig.kill(&dead);
    rig.run();
    assert_eq!(live.unread_packets(), 5);

    // While a live core has the lock, the NIC does not touch the FIFO.
    live.take_receive_lock();
    assert_eq!(live.receive().unwrap(), (to_core(1, true), payload(0)));
    let end = rig.machine.now().after(10_000_000);
    while rig.machine.now() < end {
        rig.machine.step(64);
        rig.machine.advance(1_000_000);
    }

    assert_eq!(live.unread_packets(), 4);

    live.free_receive_lock();
    rig.machine.step(64);

    assert_eq!(live.receive().unwrap(), (to_core(1, false), payload(4)));
}

#[test]
fn a_lock_handed_to_a_dead_core_does_not_block_the_fifo() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (dead, live) = (rig.attach(4, 0), rig.attach(4, 1));
    rig.send_all(&io, &[(to_core(0, true), payload(0)), (to_core(1, true), payload(1))]);
    rig.kill(&dead);
    // A live core can hand the lock over before it sees that the other core has died.
    dead.take_receive_lock();

    rig.run();

    assert_eq!(live.window(LOCK_RECV), 0);
    assert_eq!(live.receive().unwrap(), (to_core(1, true), payload(1)));
}

#[test]
fn packets_for_a_core_reach_its_next_client() {
    let mut rig = Rig::psets(&[4]);
    let io = rig.core(0);
    let (dead, _other) = (rig.attach(4, 0), rig.attach(4, 1));
    rig.kill(&dead);
    rig.run();
    rig.send_all(&io, &[(to_core(0, true), payload(0))]);
    let next = rig.attach(4, 0);
    rig.send_all(&io, &[(to_core(0, true), payload(1))]);

    assert_eq!(next.receive().unwrap(), (to_core(0, true), payload(1)));
    assert_eq!(next.receive(), None);
}
