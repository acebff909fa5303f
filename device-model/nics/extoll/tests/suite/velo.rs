//! VELO from one client's stores to another's receive ring.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Message, RING_BASE, Rig, cut_through_link, plain_link};
use nicforge_core::{machine::Access, time::Nanos};
use nicforge_extoll::Topology;
use nicforge_hwi::{
    extoll::{error, mirror, reg, vector},
    extoll_velo::{MAX_MESSAGE, SLOT, address},
};
use nicforge_test_kit::LogLines;

/// Returns bytes that depend on `seed` and their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| (seed * 31 + index) as u8).collect()
}

#[test]
fn messages_of_every_length_and_tag_arrive_whole_with_their_source() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 2);
    let mut receiver = rig.receiver(1, 3, 64);

    for quadwords in 1..=MAX_MESSAGE / 8 {
        for tag in 0..16 {
            let bytes = pattern(tag.into(), quadwords * 8);
            assert!(rig.send(&sender, (1, 3), tag, &bytes));
            rig.run();
            assert_eq!(receiver.take(), Some(Message { from: (0, 2), tag, bytes }));
            receiver.store_read_pointer();
        }
    }

    rig.run();
    assert_eq!(sender.mirror_word(mirror::VELO_SENT), 128);
    assert_eq!(receiver.mirror_word(mirror::VELO_RECEIVED), 128);
    assert_eq!(sender.mirror_word(mirror::ERRORS), 0);
}

#[test]
fn a_card_sends_to_its_other_vpids_and_a_vpid_to_itself() {
    let mut rig = Rig::pair();
    let mut first = rig.receiver(0, 0, 64);
    let mut second = rig.receiver(0, 1, 64);

    assert!(rig.send(&first, (0, 1), 1, &[1; 8]) && rig.send(&first, (0, 0), 2, &[2; 8]));
    rig.run();
    assert_eq!(second.take_all()[0].from, (0, 0));
    assert_eq!(first.take_all(), [Message { from: (0, 0), tag: 2, bytes: vec![2; 8] }]);
}

#[test]
fn messages_cross_every_topology_in_order() {
    let shapes = [
        Topology::torus(&[3, 3]).unwrap(),
        Topology::torus(&[2, 2, 2]).unwrap(),
        Topology::hypercube(3).unwrap(),
        Topology::full_mesh(5).unwrap(),
    ];
    let links = [plain_link(), cut_through_link(4)];
    for (topology, link) in shapes.iter().flat_map(|shape| links.iter().map(move |link| (shape, link))) {
        let mut rig = Rig::with(topology, 1, link, |_| {});
        let nodes = topology.nodes();
        let mut clients: Vec<_> = (0..nodes).map(|node| rig.receiver(node, 0, 1024)).collect();

        for round in 0..20u64 {
            for client in &clients {
                for target in 0..nodes {
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&round.to_le_bytes());
                    while !rig.send(client, (target, 0), 0, &bytes) {
                        rig.run();
                    }
                }
            }
        }
        rig.run();

        for client in &mut clients {
            let messages = client.take_all();
            assert_eq!(messages.len() as u32, 20 * nodes);
            let mut next = vec![0; nodes as usize];
            for message in messages {
                let round = u64::from_le_bytes(*message.bytes.first_chunk().unwrap());
                let expected = &mut next[message.from.0 as usize];
                assert_eq!(round, *expected);
                *expected += 1;
            }
        }
    }
}

#[test]
fn a_receiver_that_never_reads_stalls_only_its_senders() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let bystander = rig.attach(0, 1);
    let mut unresponsive = rig.receiver(1, 0, 64);
    let mut awake = rig.receiver(1, 1, 64);

    let mut sent = 0;

    while rig.send(&sender, (1, 0), 0, &[7; 8]) {
        rig.run();
        sent += 1;
        assert!(sent <= 64, "more than the ring holds");
    }

    assert_eq!(sent, 32, "the ring's slots are shared by two nodes");

    for _ in 0..200 {
        assert!(rig.send(&bystander, (1, 1), 0, &[1; 8]));
        rig.run();
        assert_eq!(awake.take_all().len(), 1);
        rig.run();
    }

    assert_eq!(sender.mirror_word(mirror::VELO_STALLS), 1);

    // The receiver reads again, and the send that waited succeeds when it is retried.
    assert_eq!(unresponsive.take_all().len(), 32);
    rig.run();
    assert!(rig.send(&sender, (1, 0), 0, &[7; 8]));
    rig.run();
    assert_eq!(unresponsive.take_all().len(), 1);
}

#[test]
fn the_watchdog_ends_a_stall_with_an_error() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let _unresponsive = rig.receiver(1, 0, 64);
    for _ in 0..32 {
        assert!(rig.send(&sender, (1, 0), 0, &[7; 8]));
        rig.run();
    }

    assert!(!rig.send(&sender, (1, 0), 0, &[7; 8]));

    // While a card was not driven, its neighbours had no time to make room, so that time does not
    // count.
    rig.advance_and_run(10 * reg::WATCHDOG_DEFAULT);

    let slice = reg::WATCHDOG_DEFAULT / 16;
    for _ in 0..15 {
        assert!(!rig.send(&sender, (1, 0), 0, &[7; 8]));
        rig.advance_and_run(slice);
    }

    assert!(rig.send(&sender, (1, 0), 0, &[7; 8]), "the card accepts the store and drops the message");
    rig.run();
    assert_eq!(sender.last_error().0, error::WATCHDOG);
    assert_eq!(rig.counter(0, "watchdogs"), 1);
    assert_eq!(rig.counter(1, "velo_received"), 32);
}

#[test]
fn a_split_burst_is_completed_and_a_torn_one_never_delivered() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let mut receiver = rig.receiver(1, 0, 64);
    let base = address::encode(1, 0, 5, 4);
    let bytes = pattern(9, 32);

    for piece in (0..32).step_by(8) {
        assert_eq!(rig.store(&sender, base + piece as u64, &bytes[piece..piece + 8]), Access::Done);
    }
    rig.run();

    assert_eq!(receiver.take_all(), [Message { from: (0, 0), tag: 5, bytes: bytes.clone() }]);

    // One half of a message, then another message.
    let _ = rig.store(&sender, base, &bytes[..16]);
    assert!(rig.send(&sender, (1, 0), 6, &[6; 8]));
    rig.run();
    assert_eq!(receiver.take_all(), [Message { from: (0, 0), tag: 6, bytes: vec![6; 8] }]);
    assert_eq!(sender.last_error().0, error::SEND_TORN);

    // One half of a message, and nothing more.
    let _ = rig.store(&sender, base, &bytes[..16]);
    rig.advance_and_run(1_000_000_000);
    assert_eq!(rig.counter(0, "velo_torn"), 2);
    assert!(receiver.take().is_none());
}

/// A message whose last piece waits for credit is complete, however long it waits.
#[test]
fn a_split_burst_that_waits_for_credit_is_not_torn() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let mut receiver = rig.receiver(1, 0, 64);

    while rig.send(&sender, (1, 0), 0, &[7; 8]) {
        rig.run();
    }
    for _ in 0..16 {
        rig.advance_and_run(reg::WATCHDOG_DEFAULT / 16);
        let _ = rig.send(&sender, (1, 0), 0, &[7; 8]);
    }

    let (base, bytes) = (address::encode(1, 0, 5, 2), pattern(3, 16));
    assert_eq!(rig.store(&sender, base, &bytes[..8]), Access::Done);
    for _ in 0..10 {
        assert_eq!(rig.store(&sender, base + 8, &bytes[8..]), Access::Stalled);
        rig.advance_and_run(reg::WATCHDOG_DEFAULT / 16);
    }

    assert_eq!(receiver.take_all().len(), 32);
    rig.machine.wake(receiver.function);
    rig.run();
    assert_eq!(rig.store(&sender, base + 8, &bytes[8..]), Access::Done);

    rig.run();
    assert_eq!(receiver.take_all(), [Message { from: (0, 0), tag: 5, bytes }]);
    assert_eq!(rig.counter(0, "velo_torn"), 0);
}

#[test]
fn the_card_counts_the_sends_that_it_has_finished() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let _receiver = rig.receiver(1, 0, 64);
    let base = address::encode(1, 0, 5, 4);

    assert!(rig.send(&sender, (1, 0), 0, &[1; 64]));
    assert_eq!(rig.read64(&sender, reg::VELO_TAKEN), 1);

    // Pieces arrive in the wrong order. The read reports the message as torn, and a later piece of
    // it does not begin a message.
    for (offset, bytes) in [(16, 16), (0, 16)] {
        let _ = rig.store(&sender, base + offset, &vec![2; bytes]);
        assert_eq!(rig.read64(&sender, reg::VELO_TAKEN), 1);
    }
    let _ = rig.store(&sender, base + 16, &[2; 16]);
    assert_eq!((rig.read64(&sender, reg::VELO_TAKEN), rig.counter(0, "velo_torn")), (1, 1));

    // Pieces arrive in order.
    for offset in [0, 16] {
        let _ = rig.store(&sender, base + offset, &[2; 16]);
    }
    assert_eq!((rig.read64(&sender, reg::VELO_TAKEN), rig.counter(0, "velo_torn")), (2, 1));

    // A message without a receiver also counts as finished.
    assert!(rig.send(&sender, (1, 1), 0, &[1; 8]));
    assert_eq!(rig.read64(&sender, reg::VELO_TAKEN), 3);

    while rig.send(&sender, (1, 0), 0, &[1; 8]) {
        rig.run();
    }

    let taken = rig.read64(&sender, reg::VELO_TAKEN);

    while !rig.send(&sender, (1, 0), 0, &[1; 8]) {
        rig.advance_and_run(reg::WATCHDOG_DEFAULT / 16);
    }
    assert_eq!(rig.counter(0, "watchdogs"), 1);
    assert_eq!(rig.read64(&sender, reg::VELO_TAKEN), taken + 1, "a dropped message counts as finished");

    rig.write64(&sender, reg::VELO_TAKEN, 0);
    rig.run();
    assert_eq!(sender.last_error().0, error::REGISTER_ACCESS, "the register can't be written");
}

#[test]
fn an_access_between_registers_is_a_register_error_in_the_admin_range_too() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);

    for (offset, code) in [(reg::WATCHDOG, error::NOT_PERMITTED), (reg::WATCHDOG + 4, error::REGISTER_ACCESS)]
    {
        let before = client.mirror_word(mirror::ERRORS);

        let _ = rig.read64(&client, offset);
        rig.run();
        assert_eq!((client.mirror_word(mirror::ERRORS), client.last_error().0), (before + 1, code));

        rig.write64(&client, offset, 1);
        rig.run();
        assert_eq!((client.mirror_word(mirror::ERRORS), client.last_error().0), (before + 2, code));
    }
}

#[test]
fn a_send_without_a_receiver_is_an_error_and_no_stall() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);

    for (target, errors) in [((1, 0), 1), ((1, 200), 2), ((2, 0), 3), ((2047, 255), 4)] {
        assert!(rig.send(&sender, target, 0, &[0; 8]));
        rig.run();
        assert_eq!(sender.mirror_word(mirror::ERRORS), errors);
        assert_eq!(sender.last_error().0, error::NO_RECEIVER);
    }
}

#[test]
fn a_new_owner_of_a_vpid_sees_nothing_of_the_old_one() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let first = rig.receiver(1, 0, 64);
    assert_eq!(sender.generation(1, 0), 1);

    // The message is in flight when the owner dies.
    assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
    rig.machine.detach(first.function, first.attachment, nicforge_core::device::Ended::Closed).unwrap();
    rig.run();
    assert_eq!(sender.generation(1, 0), 2);

    let mut second = rig.receiver(1, 0, 64);
    assert_eq!(sender.generation(1, 0), 3);
    assert!(second.take().is_none());

    assert!(rig.send(&sender, (1, 0), 0, &[2; 8]));
    rig.run();
    assert_eq!(second.take_all(), [Message { from: (0, 0), tag: 0, bytes: vec![2; 8] }]);
    assert!(first.ring.unwrap().0.window(0, 8).unwrap().load_u64_acquire(0).unwrap() == 0);
}

/// A client that sees on its own card that its ring is enabled can send at once. The announcement
/// travels ahead of its messages, however many nodes there are.
#[test]
fn the_announcement_of_a_ring_travels_ahead_of_its_owners_messages() {
    let topology = Topology::torus(&[4, 4, 4]).unwrap();
    let mut rig = Rig::new(&topology, 1);
    let last = topology.nodes() - 1;
    let mut receiver = rig.receiver(last, 0, 64);
    let mut sender = rig.attach(0, 0);
    let ring = rig.map(&sender, RING_BASE, 64 * SLOT);
    sender.ring = Some((ring, 64));

    for (register, value) in
        [(reg::VELO_RING_BASE, RING_BASE), (reg::VELO_RING_SLOTS, 64), (reg::VELO_RING_ENABLE, 1)]
    {
        rig.write64(&sender, register, value);
    }

    let step = |rig: &mut Rig| {
        let _ = rig.machine.step(64);
        let next = rig.machine.fabric().next_event();
        if next != Nanos::NEVER {
            rig.machine.advance_to(next);
        }
    };

    for _ in 0..1000 {
        if sender.generation(0, 0) != 0 {
            break;
        }
        step(&mut rig);
    }

    assert!(rig.send(&sender, (last, 0), 1, &[1; 8]));
    let message = (0..1000).find_map(|_| {
        step(&mut rig);
        receiver.take()
    });

    assert_eq!(message.map(|message| message.from), Some((0, 0)));
    assert_eq!(receiver.generation(0, 0), 1, "the message came before the announcement");
}

/// A card's counters include all clients that have used it.
#[test]
fn counters_of_a_card_do_not_go_backwards_with_a_new_client() {
    let mut rig = Rig::pair();
    let _receiver = rig.receiver(1, 0, 64);
    for round in 1..=3 {
        let sender = rig.attach(0, 0);
        assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
        rig.run();
        assert_eq!((rig.counter(0, "velo_sent"), sender.mirror_word(mirror::VELO_SENT)), (round, 1));
        rig.kill(&sender);
        assert_eq!(rig.counter(0, "velo_sent"), round);
    }
}

#[test]
fn an_interrupt_comes_once_for_each_time_it_is_enabled() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let mut receiver = rig.receiver(1, 0, 64);
    let counts = rig.interrupts(&receiver);
    let received = usize::from(vector::VELO_RECEIVE);

    rig.write64(&receiver, reg::INTERRUPT_ENABLE, 1 << vector::VELO_RECEIVE);

    for _ in 0..3 {
        assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
    }
    rig.run();

    assert_eq!(counts[received].get(), 1);

    // Unread messages raise the interrupt as soon as it is enabled again.
    rig.write64(&receiver, reg::INTERRUPT_ENABLE, 1 << vector::VELO_RECEIVE);
    assert_eq!(counts[received].get(), 2);
    assert_eq!(receiver.take_all().len(), 3);

    rig.write64(&receiver, reg::INTERRUPT_ENABLE, 1 << vector::VELO_RECEIVE);
    assert_eq!(counts[received].get(), 2);
}

#[test]
fn an_interrupt_is_enabled_and_disabled_without_the_others() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let receiver = rig.receiver(1, 0, 64);
    let counts = rig.interrupts(&receiver);
    let [received, notified, failed] =
        [vector::VELO_RECEIVE, vector::RMA_NOTIFICATION, vector::ERROR].map(|vector| 1 << vector);

    rig.write64(&receiver, reg::INTERRUPT_SET, notified);
    rig.write64(&receiver, reg::INTERRUPT_SET, received | failed);
    assert_eq!(rig.read64(&receiver, reg::INTERRUPT_ENABLE), received | notified | failed);

    rig.write64(&receiver, reg::INTERRUPT_CLEAR, received | 1 << 40);
    assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
    rig.run();
    assert_eq!(rig.read64(&receiver, reg::INTERRUPT_ENABLE), notified | failed);

    // An unread message is in the ring.
    rig.write64(&receiver, reg::INTERRUPT_SET, received);
    assert_eq!(rig.read64(&receiver, reg::INTERRUPT_ENABLE), notified | failed);
    assert_eq!([0, 1, 2].map(|vector| counts[vector].get()), [1, 0, 0]);
    assert_eq!(receiver.mirror_word(mirror::ERRORS), 0);
}

#[test]
fn a_ring_whose_memory_is_unmapped_is_disabled_with_an_error() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let receiver = rig.receiver(1, 0, 64);
    rig.machine.dma_unmap_all(receiver.function, receiver.attachment).unwrap();

    assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
    rig.run();

    assert_eq!(receiver.last_error().0, error::RING_MEMORY);
    assert_eq!(rig.read64(&receiver, reg::VELO_RING_ENABLE), 0);
    assert!(sender.generation(1, 0).is_multiple_of(2));
}

#[test]
fn a_ring_wraps_many_times() {
    check_order_around_the_ring(100_000);
}

#[test]
#[ignore = "64 million messages: about a minute"]
fn a_ring_wraps_a_million_times() {
    check_order_around_the_ring(64 * 1_000_000);
}

/// Sends messages through a ring of 64 slots, and asserts that they arrive in order.
fn check_order_around_the_ring(messages: u64) {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let mut receiver = rig.receiver(1, 0, 64);
    let (mut sent, mut received) = (0u64, 0u64);

    while received < messages {
        while rig.send(&sender, (1, 0), 0, &sent.to_le_bytes()) {
            sent += 1;
        }
        rig.run();
        for message in receiver.take_all() {
            assert_eq!(message.bytes, received.to_le_bytes());
            received += 1;
        }
        rig.run();
    }
}

#[test]
fn a_card_that_is_reset_gets_the_announcements_of_all_rings_again() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);

    let mut receiver = rig.receiver(1, 0, 64);
    for _ in 0..10 {
        assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
    }
    rig.run();

    rig.machine.reset_function(sender.function).unwrap();
    rig.run();

    assert_eq!(sender.generation(1, 0), 1);
    let mut sent = 0;
    while rig.send(&sender, (1, 0), 0, &[1; 8]) {
        rig.run();
        sent += 1;
    }

    assert_eq!(sent, 32 - 10, "ten of the slots have unread messages");
    assert_eq!(receiver.take_all().len(), 32);
}

#[test]
fn bad_command_logs_its_node_attachment_register_value_and_rule() {
    let mut rig = Rig::pair();
    let client = rig.attach(1, 2);

    let lines = LogLines::of(|| {
        rig.write64(&client, reg::WATCHDOG, 5);
        assert!(rig.send(&client, (0, 3), 0, &[0; 8]));
        rig.run();
    });

    let watchdog = format!("BAR0+{:#x}", reg::WATCHDOG);
    let send = format!("BAR3+{:#x}", address::encode(0, 3, 0, 1));
    let expected = [
        format!(
            "refused node=node1 attachment=vpid2 register={watchdog} value=0x5 \
             rule=this register, or this use of it, is another attachment's"
        ),
        format!(
            "dropped node=node1 attachment=vpid2 register={send} \
             rule=the target exists, has a client, and has enabled its ring"
        ),
    ];
    assert_eq!(lines, expected);
}
