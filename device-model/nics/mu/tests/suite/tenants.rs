//! Clients that leave and come: nothing of one reaches the next, and no other client is disturbed.

use nicforge_core::{ids::AttachmentId, machine::Machine};
use nicforge_hwi::{
    mu::{FIRST_SUBGROUP, NO_BASE_ADDRESS, fault, reg},
    mu_dcr::IME_ENABLE,
    mu_packet::Descriptor,
};
use nicforge_mu::Options;
use zerocopy::IntoBytes;

use crate::common::{COUNTERS, DATA, PAYLOAD, RECEPTION_BYTES, Rig, User, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };
const LONG: usize = 1 << 20;

/// Sends a long put from subgroup 0 of node 0 to node 1, and stops in its middle.
fn begin() -> (Rig, [User; 2]) {
    let (mut rig, mut users) = Rig::pair();
    users[0].write(PAYLOAD, &pattern(1, LONG));
    users[1].write64(COUNTERS, LONG as u64);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, LONG));
    rig.until(|_| users[1].read64(COUNTERS) < LONG as u64);
    assert!(users[1].read64(COUNTERS) > 0, "the message is in its middle");
    (rig, users)
}

#[test]
fn a_sender_that_leaves_sends_nothing_more_and_its_successor_nothing_of_it() {
    let (mut rig, [sender, receiver]) = begin();
    sender.client.detach(&mut rig.bed);
    rig.settle();
    let left = receiver.read64(COUNTERS);
    assert!(left > 0);

    let next = rig.user(0, 0);
    next.write(PAYLOAD, &vec![0xcc; LONG]);
    rig.settle();
    assert_eq!(receiver.read64(COUNTERS), left);
    assert_eq!((next.done(0), next.fault(0)), (0, fault::NONE));
    assert!(
        receiver.read(DATA, LONG).iter().zip(pattern(1, LONG)).all(|(&read, sent)| read == 0 || read == sent)
    );
}

#[test]
fn packets_for_a_client_that_has_left_are_dropped_and_counted() {
    let (mut rig, [mut sender, receiver]) = begin();
    receiver.client.detach(&mut rig.bed);
    rig.until(|_| sender.done(0) == 1);
    rig.settle();
    // Those of the message in service were for the client that has left.
    assert_eq!(rig.counter(1, "unclaimed"), 0);
    assert_eq!(rig.counter(1, "stale"), rig.counter(1, "dropped"));
    assert!(rig.counter(1, "stale") > 0);

    sender.inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 600));
    rig.until(|rig| rig.counter(1, "unclaimed") == 2);
}

#[test]
fn the_next_client_gets_no_packet_of_the_former_one() {
    let (mut rig, [mut sender, receiver]) = begin();
    receiver.client.detach(&mut rig.bed);
    // It sets up the same entries and FIFOs at once, while packets are still on their way.
    let next = rig.user(1, 0);
    next.write64(COUNTERS, LONG as u64);
    rig.until(|_| sender.done(0) == 1);
    rig.settle();

    assert!(next.read(DATA, LONG).iter().all(|&byte| byte == 0));
    assert_eq!(next.read64(COUNTERS), LONG as u64);
    assert!(rig.counter(1, "stale") > 0);

    // It gets the messages that begin from then on.
    sender.inject(&mut rig.bed, 0, &WAY.put(0, 0, 1, PAYLOAD, 512));
    rig.until(|_| next.read(DATA, 512) == pattern(1, LONG)[..512]);
}

/// Returns descriptors as the payload of a get.
fn payload_of(descriptors: &[Descriptor]) -> Vec<u8> {
    descriptors.iter().flat_map(|descriptor| descriptor.as_bytes().to_vec()).collect()
}

#[test]
fn gets_of_a_former_client_do_not_change_its_successors_memory() {
    const GETS: u64 = 4;
    const PUTS: u64 = 4;
    const BYTES: u64 = 64;

    // The engines of node 1 are off, so that the descriptors wait in its FIFO.
    let (mut rig, [mut former, mut target]) = Rig::pair();
    let kernel = rig.kernel(1);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0);
    target.write(PAYLOAD, &pattern(3, BYTES as usize));
    let back = Way { from: 1, to: 0 };
    let puts: Vec<_> = (0..PUTS).map(|put| back.put(0, put * BYTES, 0, PAYLOAD, BYTES as usize)).collect();
    former.write(PAYLOAD, &payload_of(&puts));
    for _ in 0..GETS {
        let mut get = WAY.get(6, PAYLOAD, 64 * PUTS as usize);
        get.torus_fifo_map = 0x8000;
        former.inject(&mut rig.bed, 0, &get);
    }
    rig.until(|rig| rig.counter(1, "get_packets") == GETS);

    former.client.detach(&mut rig.bed);
    let next = rig.user(0, 0);
    next.write64(COUNTERS, GETS * PUTS * BYTES);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0xffff);
    rig.until(|_| target.done(6) == GETS * PUTS);
    rig.settle();
    assert!(next.read(DATA, (PUTS * BYTES) as usize).iter().all(|&byte| byte == 0));
    assert_eq!(next.read64(COUNTERS), GETS * PUTS * BYTES);
    assert_eq!(rig.counter(0, "stale"), GETS * PUTS);

    // The owner of a FIFO for gets can put descriptors there too. They are for the present client.
    target.set(&mut rig.bed, reg::REMOTE_GET, 1 << 5);
    target.inject(&mut rig.bed, 5, &puts[0]);
    rig.until(|_| next.read(DATA, BYTES as usize) == pattern(3, BYTES as usize));
}

#[test]
fn gets_of_a_client_reach_it_in_spite_of_an_earlier_one() {
    let (mut rig, [former, mut target]) = Rig::pair();
    former.client.detach(&mut rig.bed);
    let mut user = rig.user(0, 0);
    target.write(PAYLOAD, &pattern(4, 5000));
    user.write64(COUNTERS, 5000);
    user.write(PAYLOAD, &payload_of(&[Way { from: 1, to: 0 }.put(0, 0, 0, PAYLOAD, 5000)]));
    user.inject(&mut rig.bed, 0, &WAY.get(6, PAYLOAD, 64));
    rig.until(|_| user.read64(COUNTERS) == 0);
    assert!(user.read(DATA, 5000) == pattern(4, 5000));

    // A put that the target sends by itself arrives as well.
    user.write64(COUNTERS, 8);
    target.inject(&mut rig.bed, 0, &Way { from: 1, to: 0 }.put(0, 0, 0, PAYLOAD, 8));
    rig.until(|_| user.read64(COUNTERS) == 0);
}

#[test]
fn packets_that_waited_for_a_client_are_gone_with_it() {
    let (mut rig, mut users) = Rig::pair();
    let length = 3 * RECEPTION_BYTES as usize;
    let mut message = WAY.fifo(3, PAYLOAD, length);
    message.torus_fifo_map = 0x8000;
    users[0].inject(&mut rig.bed, 0, &message);
    rig.settle();
    assert_eq!(users[0].done(0), 0);

    users[1].client.detach(&mut rig.bed);
    rig.until(|_| users[0].done(0) == 1);
    rig.settle();
    let next = rig.user(1, 0);
    rig.settle();
    assert!(next.packets(3).0.is_empty());
    assert!(rig.counter(1, "stale") > 0);
}

#[test]
fn packets_that_waited_do_not_reach_a_client_that_comes_at_once() {
    let (mut rig, mut users) = Rig::pair();
    let mut message = WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize);
    message.torus_fifo_map = 0x8000;
    users[0].inject(&mut rig.bed, 0, &message);
    rig.settle();
    users[0].set(&mut rig.bed, reg::DISABLE, 1);

    let old = std::mem::replace(&mut users[1], {
        let function = rig.functions[1];
        let attachment = AttachmentId(FIRST_SUBGROUP);
        let machine: &mut Machine = &mut rig.bed;
        machine.detach(function, attachment, nicforge_core::device::Ended::Closed).unwrap();
        User::attach(&mut rig.bed, function, 0)
    });
    rig.settle();
    assert!(users[1].packets(3).0.is_empty(), "packets of the former client");
    assert!(rig.counter(1, "dropped") > 0);
    let _ = old;
}

#[test]
fn a_put_of_another_subgroup_arrives_while_clients_leave() {
    let (mut rig, users) = begin();
    let mut others = [0, 1].map(|node| rig.user(node, 1));
    others[1].write64(COUNTERS, LONG as u64);
    others[0].write(PAYLOAD, &pattern(2, LONG));
    others[0].inject(&mut rig.bed, 0, &WAY.put(1, 0, 0, PAYLOAD, LONG));
    for user in &users {
        user.client.detach(&mut rig.bed);
    }

    rig.until(|_| others[1].read64(COUNTERS) == 0);
    assert!(others[1].read(DATA, LONG) == pattern(2, LONG));
}

#[test]
fn a_reset_stops_the_clients_messages() {
    let (mut rig, [sender, receiver]) = begin();
    rig.bed.reset_attachment(sender.client.function, sender.client.attachment).unwrap();
    rig.settle();
    assert!(receiver.read64(COUNTERS) > 0);

    // The client goes on with a clean state.
    let mut sender = restart(&mut rig, sender);
    receiver.write64(COUNTERS, 8);
    sender.inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, 8));
    rig.settle();
    assert_eq!((sender.fault(0), receiver.read64(COUNTERS)), (0, 0));
}

fn restart(rig: &mut Rig, mut user: User) -> User {
    user.client.enable_bus_master(&mut rig.bed);
    user.restart_ring();
    user.set_up(&mut rig.bed);
    user
}

#[test]
fn a_function_reset_cleans_the_card() {
    let (mut rig, [sender, receiver]) = begin();
    let kernel = rig.kernel(0);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0);
    for node in 0..2 {
        let function = rig.functions[node];
        rig.bed.reset_function(function).unwrap();
    }
    rig.settle();
    for user in [&sender, &receiver] {
        assert_eq!(user.shown(reg::IS_ENABLED), 0);
        assert_eq!(user.get(&mut rig.bed, reg::BASE_ADDRESS), NO_BASE_ADDRESS);
    }
    assert_eq!(kernel.control(&mut rig.bed, IME_ENABLE), 0xffff);

    let mut sender = restart(&mut rig, sender);
    let receiver = restart(&mut rig, receiver);
    receiver.write64(COUNTERS, 8);
    sender.inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, 8));
    rig.until(|_| receiver.read64(COUNTERS) == 0);
}

#[test]
fn all_subgroups_of_a_node_work_beside_each_other() {
    let mut rig = Rig::new(&[2], Options { subgroups: 64, ..Options::default() });
    let mut senders: Vec<_> = (0..64).map(|subgroup| rig.user(0, subgroup)).collect();
    let receivers: Vec<_> = (0..64).map(|subgroup| rig.user(1, 63 - subgroup)).collect();
    for (index, (sender, receiver)) in senders.iter_mut().zip(&receivers).enumerate() {
        sender.write(PAYLOAD, &pattern(index, 5000));
        receiver.write64(COUNTERS, 5000);
        sender.inject(&mut rig.bed, 0, &WAY.put(receiver.subgroup, 0, 0, PAYLOAD, 5000));
    }

    rig.until(|_| receivers.iter().all(|receiver| receiver.read64(COUNTERS) == 0));
    for (index, receiver) in receivers.iter().enumerate() {
        assert!(receiver.read(DATA, 5000) == pattern(index, 5000), "{index}");
    }
}
