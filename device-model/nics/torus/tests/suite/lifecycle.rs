//! Clients that come, go and are reset.

use std::sync::atomic::Ordering;

use nicforge_hwi::torus::{mirror, presence, reg, shared};

use nicforge_torus::{Network, Options};

use crate::common::{Rig, payload};

#[test]
fn lives_show_who_has_software() {
    let mut rig = Rig::torus([2, 1, 1]);
    let watcher = rig.core(0, 0);
    assert_eq!((rig.life(&watcher, 1, 0), rig.life(&watcher, 1, 1)), (0, 0));

    let client = rig.core(1, 0);
    assert_eq!((rig.life(&watcher, 1, 0), client.mirrored(mirror::LIFE)), (1, 1));
    let changes = |rig: &mut Rig| watcher.id.read32(&mut rig.machine, 0, reg::PRESENCE_CHANGES);
    let before = changes(&mut rig);
    client.id.detach(&mut rig.machine);
    assert!(!presence::is_up(rig.life(&watcher, 1, 0)) && changes(&mut rig) != before);
    let client = rig.core(1, 0);
    assert_eq!((rig.life(&watcher, 1, 0), client.mirrored(mirror::LIFE)), (3, 3));
}

#[test]
fn each_machine_of_a_network_has_lives_of_its_own() {
    let network = Network::new([2, 1, 1], [true; 3], Options::default()).unwrap();
    let (mut first, mut second) = (Rig::of(network.clone()), Rig::of(network));
    let client = first.core(0, 0);
    assert_eq!((first.life(&client, 0, 0), client.mirrored(mirror::LIFE)), (1, 1));

    let watcher = second.core(1, 0);
    assert_eq!(second.life(&watcher, 0, 0), 0);
    let client = second.core(0, 0);
    assert_eq!((second.life(&watcher, 0, 0), client.mirrored(mirror::LIFE)), (1, 1));
    assert_eq!(second.life(&watcher, 1, 0), 1);
}

#[test]
fn a_packet_for_another_life_is_discarded() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    let header = rig.to(1);

    rig.send(&mut sender, header.for_life(1), &payload(1, 1));
    assert!(receiver.receive().is_some());
    rig.send(&mut sender, header.for_life(3), &payload(2, 1));
    assert_eq!((receiver.receive(), rig.counter(1, "discarded")), (None, 1));
    receiver.id.detach(&mut rig.machine);
    rig.send(&mut sender, header, &payload(3, 1));
    assert_eq!(rig.counter(1, "discarded"), 2);

    let successor = rig.core(1, 0);
    rig.send(&mut sender, header.for_life(1), &payload(4, 1));
    assert_eq!(successor.receive(), None);
    rig.send(&mut sender, header.for_life(3), &payload(5, 1));
    assert_eq!(successor.receive().map(|packet| packet.payload), Some(payload(5, 1)));
}

#[test]
fn a_receiver_that_ends_frees_those_behind_it() {
    let mut rig = Rig::torus([4, 1, 1]);
    let mut clients = rig.all_cores();
    // Packets for node 1, which takes nothing, fill the way to it.
    let (to_first, to_second) = (rig.to(1).deterministic(), rig.to(2).deterministic());
    let up = nicforge_hwi::torus::hint::of_port(0);
    while rig.try_send(&mut clients[0], 0, to_first, &payload(1, 8)) {
        rig.run();
    }
    assert!(rig.try_send(&mut clients[0], 1, to_second.with_hints(up), &payload(2, 1)));
    rig.run();
    assert_eq!(clients[2].receive(), None);

    let dead = clients.remove(1);
    dead.id.detach(&mut rig.machine);
    rig.run();
    assert_eq!(clients[1].receive().map(|packet| packet.payload), Some(payload(2, 1)));
}

#[test]
fn packets_of_a_client_that_has_ended_are_still_sent() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    let header = rig.to(1).deterministic();
    let mut sent = 0;
    while rig.try_send(&mut sender, 0, header, &payload(sent, 3)) {
        rig.run();
        sent += 1;
    }
    sender.id.detach(&mut rig.machine);
    // The next client's packets come after them.
    let mut successor = rig.core(0, 0);
    assert!(rig.try_send(&mut successor, 0, header, &payload(1000, 1)));

    let mut received = Vec::new();
    loop {
        rig.run();
        let taken = receiver.receive_all();
        if taken.is_empty() {
            break;
        }
        received.extend(taken.into_iter().map(|packet| packet.payload));
        receiver.id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
    }
    let expected: Vec<_> = (0..sent).map(|seed| payload(seed, 3)).chain([payload(1000, 1)]).collect();
    assert_eq!(received, expected);
}

#[test]
fn thousands_of_clients_that_leave_packets_do_not_pile_them_up() {
    let mut rig = Rig::torus([2, 1, 1]);
    let receiver = rig.core(1, 0);
    let header = rig.to(1).deterministic();
    for seed in 0..2000 {
        let mut sender = rig.core(0, 0);
        while rig.try_send(&mut sender, 0, header, &payload(seed, 1)) {
            rig.run();
        }
        sender.id.detach(&mut rig.machine);
    }
    assert!(rig.counter(0, "discarded") > 1000);
    receiver.id.detach(&mut rig.machine);
    rig.run();
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    rig.send(&mut sender, header, &payload(7, 8));
    assert_eq!(receiver.receive().map(|packet| packet.payload), Some(payload(7, 8)));
}

#[test]
fn a_reset_attachment_begins_a_new_life_with_empty_fifos() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    let header = rig.to(1);
    rig.send(&mut sender, header, &payload(1, 5));
    let lock = receiver.shared.u32(shared::LOCK + 64).unwrap();
    lock.store(1, Ordering::Release);

    rig.machine.reset_attachment(receiver.id.function, receiver.id.attachment).unwrap();
    rig.run();
    assert_eq!((receiver.receive(), lock.load(Ordering::Acquire)), (None, 0));
    assert_eq!((receiver.mirrored(mirror::LIFE), receiver.mirrored(mirror::NODE)), (3, 1));
    rig.send(&mut sender, header.for_life(1), &payload(2, 5));
    assert_eq!(receiver.receive(), None);
    rig.send(&mut sender, header.for_life(3), &payload(3, 5));
    assert_eq!(receiver.receive().map(|packet| packet.payload), Some(payload(3, 5)));
}

#[test]
fn a_reset_of_the_function_empties_everything() {
    let mut rig = Rig::torus([2, 1, 1]);
    let (mut sender, receiver) = (rig.core(0, 0), rig.core(1, 0));
    let header = rig.to(1).deterministic();
    while rig.try_send(&mut sender, 0, header, &payload(1, 8)) {
        rig.run();
    }
    receiver.shared.u32(shared::SRAM).unwrap().store(7, Ordering::Release);

    for function in rig.functions.clone() {
        rig.machine.reset_function(function).unwrap();
    }
    rig.run();
    sender.tails = [0; 4];
    while receiver.receive().is_some() {}
    assert_eq!(receiver.shared.u32(shared::SRAM).unwrap().load(Ordering::Acquire), 0);
    assert_eq!((sender.mirrored(mirror::LIFE), receiver.mirrored(mirror::LIFE)), (3, 3));
    rig.send(&mut sender, header, &payload(9, 2));
    assert!(receiver.receive_all().iter().any(|packet| packet.payload == payload(9, 2)));
}

#[test]
fn lock_boxes_of_a_core_that_ends_are_freed() {
    let mut rig = Rig::torus([1, 1, 1]);
    let (core0, core1) = (rig.core(0, 0), rig.core(0, 1));
    let lock = |number: u64| core1.shared.u32(shared::LOCK + number * shared::LOCK_STRIDE).unwrap();
    lock(0).store(1, Ordering::Release);
    lock(127).store(1, Ordering::Release);
    lock(5).store(2, Ordering::Release);

    core0.id.detach(&mut rig.machine);
    assert_eq!([0, 127, 5].map(|number| lock(number).load(Ordering::Acquire)), [0, 0, 2]);
}

/// Fills the way from core 0 of node 0 to node 1, which takes nothing, and ends the sender. Returns
/// the receiver and a third client.
fn end_behind_a_full_fifo(rig: &mut Rig) -> (crate::common::Client, crate::common::Client) {
    let (mut sender, receiver, watcher) = (rig.core(0, 0), rig.core(1, 0), rig.core(2, 0));
    let header = rig.to(1).deterministic();
    while rig.try_send(&mut sender, 0, header, &payload(1, 8)) {
        rig.run();
    }
    sender.id.detach(&mut rig.machine);
    rig.run();
    (receiver, watcher)
}

#[test]
fn an_end_is_shown_when_all_packets_have_arrived() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (receiver, watcher) = end_behind_a_full_fifo(&mut rig);
    let mut successor = rig.core(0, 0);
    let to_watcher = rig.to(2);
    assert!(rig.try_send(&mut successor, 0, to_watcher, &payload(5, 1)));
    rig.run();
    assert_eq!((rig.life(&watcher, 0, 0), watcher.receive()), (1, None));

    loop {
        receiver.id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
        rig.run();
        if receiver.receive_all().is_empty() {
            break;
        }
    }
    // The card of the successor looks again after a while.
    rig.machine.advance(1_000_000);
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 3);
    assert_eq!(watcher.receive().map(|packet| packet.payload), Some(payload(5, 1)));
}

#[test]
fn an_end_is_shown_after_a_second_if_a_receiver_takes_nothing() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (_receiver, watcher) = end_behind_a_full_fifo(&mut rig);
    assert_eq!(rig.life(&watcher, 0, 0), 1);
    rig.machine.advance(1_000_000_000);
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 2);
}

/// Takes what is in the reception FIFOs of a client until nothing more arrives.
fn take_everything(rig: &mut Rig, receiver: &crate::common::Client) {
    loop {
        receiver.id.write32(&mut rig.machine, 0, reg::HEADS_MOVED, 0);
        rig.run();
        if receiver.receive_all().is_empty() {
            break;
        }
    }
}

#[test]
fn a_reset_of_another_node_shows_no_end_too_early() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (mut sender, receiver, watcher) = (rig.core(0, 0), rig.core(1, 0), rig.core(2, 0));
    let header = rig.to(1).deterministic();
    // Four of them fill the memory. The fifth is on its way until the receiver takes one.
    for seed in 0..5 {
        rig.send(&mut sender, header, &payload(seed, 8));
    }
    rig.machine.reset_function(rig.functions[3]).unwrap();
    rig.run();

    sender.id.detach(&mut rig.machine);
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 1);
    take_everything(&mut rig, &receiver);
    assert_eq!(rig.life(&watcher, 0, 0), 2);
}

#[test]
fn a_reset_counts_the_packets_that_it_drops_and_no_others() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (receiver, watcher) = end_behind_a_full_fifo(&mut rig);

    // The reset drops what the sender had left on its node. Links keep their packets.
    rig.machine.reset_function(rig.functions[0]).unwrap();
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 1);
    rig.machine.reset_function(rig.functions[1]).unwrap();
    rig.run();
    take_everything(&mut rig, &receiver);
    assert_eq!(rig.life(&watcher, 0, 0), 2);
}

#[test]
fn a_reset_does_not_count_copies_of_deposit_packets() {
    let mut rig = Rig::torus([5, 1, 1]);
    let mut clients = rig.all_cores();
    let header = rig.to(2).deposit();
    // The fifth packet waits at its destination, and its copy at node 1.
    for seed in 0..5 {
        rig.send(&mut clients[0], header, &payload(seed, 8));
    }
    rig.machine.reset_function(rig.functions[1]).unwrap();
    rig.run();

    let sender = clients.remove(0);
    sender.id.detach(&mut rig.machine);
    rig.run();
    let [_, destination, watcher, _] = &clients[..] else { panic!("one client for each node") };
    assert_eq!(rig.life(watcher, 0, 0), 1);
    take_everything(&mut rig, destination);
    assert_eq!(rig.life(watcher, 0, 0), 2);
}

#[test]
fn a_reset_of_the_destination_ends_the_wait_for_its_packets() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (mut sender, _receiver, watcher) = (rig.core(0, 0), rig.core(1, 0), rig.core(2, 0));
    let header = rig.to(1).deterministic();
    for seed in 0..5 {
        rig.send(&mut sender, header, &payload(seed, 8));
    }
    sender.id.detach(&mut rig.machine);
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 1);
    rig.machine.reset_function(rig.functions[1]).unwrap();
    rig.run();
    assert_eq!(rig.life(&watcher, 0, 0), 2);
}

#[test]
fn restarts_do_not_put_off_the_moment_at_which_an_end_is_shown() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (_receiver, watcher) = end_behind_a_full_fifo(&mut rig);
    for _ in 0..10 {
        let successor = rig.core(0, 0);
        rig.machine.advance(300_000_000);
        rig.run();
        successor.id.detach(&mut rig.machine);
        rig.machine.advance(300_000_000);
        rig.run();
    }
    assert_ne!(rig.life(&watcher, 0, 0), 1);
}

#[test]
fn packets_of_a_life_that_was_never_shown_are_dropped_at_its_end() {
    let mut rig = Rig::torus([4, 1, 1]);
    let (_receiver, watcher) = end_behind_a_full_fifo(&mut rig);
    let mut successor = rig.core(0, 0);
    let (to_watcher, discarded) = (rig.to(2), rig.counter(0, "discarded"));
    for fifo in [1, 1, 2] {
        assert!(rig.try_send(&mut successor, fifo, to_watcher, &payload(5, 1)));
    }
    successor.id.detach(&mut rig.machine);
    rig.run();
    assert_eq!((rig.life(&watcher, 0, 0), watcher.receive()), (1, None));
    assert_eq!(rig.counter(0, "discarded"), discarded + 3);

    rig.machine.advance(1_000_000_000);
    rig.run();
    assert_eq!((rig.life(&watcher, 0, 0), watcher.receive()), (4, None));
}
