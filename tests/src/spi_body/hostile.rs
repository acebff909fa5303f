//! Descriptors for what belongs to others, and peers that die.

use std::sync::atomic::{AtomicBool, Ordering};

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_hwi::mu_packet::{Descriptor, channel, fifo_map};
use nicforge_spi::{
    Collective, CollectiveChannel, DirectPut, Error, Fault, Kernel, MemoryFifo, NO_BASE_ADDRESS, Options,
    Payload, PointToPoint, RemoteGet, Subgroup, direct_put, memory_fifo, remote_get,
};
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use super::{BASE, GETS, MACHINE, Node, RECEIVE, SEND, SHORT, SINK, SOURCE, pair};
use crate::{
    backing::{Rig, test_deadline},
    pattern::pattern,
};

/// Injects a descriptor, returns the fault by which it stops its FIFO, and restarts the FIFO.
fn fault_of(node: &mut Node, descriptor: &Descriptor) -> Fault {
    let number = node.inject(descriptor);
    let ended = node.subgroup.injection().wait_done(SEND, number, test_deadline(), None);
    let Err(Error::Stopped { fault, .. }) = ended else { panic!("{ended:?}") };
    node.subgroup.restart_injection(SEND).unwrap();
    fault
}

/// Injects a descriptor that the node's own unit accepts, and waits until the machine is at rest.
fn send_and_settle(rig: &dyn Rig, node: &mut Node, build: impl FnOnce(&Node) -> Descriptor) {
    let descriptor = build(node);
    node.send(&descriptor);
    rig.settle();
}

/// A user's descriptors cannot name channels and network FIFOs of the system.
#[body]
pub fn a_users_descriptor_does_not_use_the_systems_channels(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let to = remote.subgroup.position().destination();
    let system = memory_fifo(Payload::NONE, PointToPoint::system(to), &remote.fifo()).unwrap();
    assert_eq!(fault_of(&mut local, &system), Fault::Permission);

    let route = Collective { channel: CollectiveChannel::System, ..Collective::broadcast(0) };
    let collective = memory_fifo(Payload::NONE, route, &remote.fifo()).unwrap();
    assert_eq!(fault_of(&mut local, &collective), Fault::Permission);

    let mut mixed = memory_fifo(Payload::NONE, PointToPoint::dynamic(to), &remote.fifo()).unwrap();
    mixed.torus_fifo_map = fifo_map::SYSTEM;
    assert_eq!(fault_of(&mut local, &mixed), Fault::Permission);
    mixed.torus_fifo_map = fifo_map::TORUS;
    mixed.packet_header.set_channel(channel::SYSTEM);
    assert_eq!(fault_of(&mut local, &mixed), Fault::Permission);
}

/// A destination outside the network stops the FIFO, and no other one.
#[body]
pub fn a_destination_that_does_not_exist_stops_the_fifo(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    for coordinates in [[2, 0, 0, 0, 0], [0, 1, 0, 0, 0], [63; 5]] {
        let route = PointToPoint::dynamic(nicforge_spi::Destination::new(coordinates));
        let lost = memory_fifo(Payload::NONE, route, &remote.fifo()).unwrap();
        assert_eq!(fault_of(&mut local, &lost), Fault::Destination, "{coordinates:?}");
    }
}

/// A user's packets do not reach the system's FIFOs and base addresses.
#[body]
pub fn a_users_packets_do_not_reach_the_systems_resources(rig: &dyn Rig) {
    let kernel = Kernel::open(&rig.open("bgq1", "kernel")).unwrap();
    let mut system = kernel.system_subgroup(0, Options::default()).unwrap();
    system.open_reception(0, 4096).unwrap();
    let gets = nicforge_spi::InjectionAttributes { remote_get: true, ..Default::default() };
    system.open_injection(0, 16, gets).unwrap();
    let memory = system.memory(4096).unwrap();
    system.set_base_address(0, memory.iova()).unwrap();
    memory.write(0, &pattern(1, 4096)).unwrap();

    let (mut local, remote) = pair(rig);
    let route = local.ordered(&remote);
    let fifo = MemoryFifo { fifo: system.reception_id(0), ..MemoryFifo::default() };
    send_and_settle(rig, &mut local, |_| memory_fifo(Payload::NONE, route, &fifo).unwrap());

    let base = system.base_address_id(0);
    let counter = remote.counter(0);
    counter.set(1000);
    let put = DirectPut { payload_base: base, ..remote.target(64, &counter) };
    send_and_settle(rig, &mut local, |local| direct_put(local.payload(SOURCE, 64), route, &put).unwrap());
    let put = DirectPut { counter_base: base, ..remote.target(SINK, &counter) };
    send_and_settle(rig, &mut local, |local| direct_put(local.payload(SOURCE, 64), route, &put).unwrap());

    let get = RemoteGet { fifo: system.injection_id(0) };
    let target = local.target(SINK, &local.counter(0));
    let put_of_system = direct_put(Payload::memory(memory.iova(), 64), remote.ordered(&local), &target);
    local.write(1024, put_of_system.unwrap().as_bytes());
    local.write(SINK, &[0xaa; 64]);
    send_and_settle(rig, &mut local, |local| remote_get(local.payload(1024, 64), route, &get).unwrap());

    let mut bytes = vec![0; 4096];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern(1, 4096), "the system's memory has changed");
    assert_eq!(system.has_packet(0), Ok(false));
    assert_eq!(system.injection().injected(0), Ok(0));
    assert_eq!(local.read(SINK, 64), [0xaa; 64]);
}

/// Packets for FIFOs and base addresses that are not there have no effect on others.
#[body]
pub fn packets_for_absent_resources_are_dropped(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig);
    let route = local.ordered(&remote);
    let counter = remote.counter(0);
    counter.set(1000);

    // Subgroup 60 has 4 reception FIFOs, 8 base addresses and 8 injection FIFOs, none of them open.
    let closed_fifo = MemoryFifo { fifo: remote.subgroup.reception_id(0), ..MemoryFifo::default() };
    let missing_fifo = MemoryFifo { fifo: 4 * 60, ..MemoryFifo::default() };
    for target in [closed_fifo, missing_fifo] {
        send_and_settle(rig, &mut local, |_| memory_fifo(Payload::NONE, route, &target).unwrap());
    }

    for entry in [remote.subgroup.base_address_id(0), 8 * 60] {
        let put = DirectPut { payload_base: entry, ..remote.target(SINK, &counter) };
        send_and_settle(rig, &mut local, |local| direct_put(local.payload(SOURCE, 64), route, &put).unwrap());
    }
    for fifo in [remote.subgroup.injection_id(SEND), remote.subgroup.injection_id(7), 8 * 60] {
        let get = RemoteGet { fifo };
        send_and_settle(rig, &mut local, |local| remote_get(local.payload(SOURCE, 64), route, &get).unwrap());
    }
    let unmapped = DirectPut { offset: 0xf_0000_0000, ..remote.target(0, &counter) };
    send_and_settle(rig, &mut local, |local| {
        direct_put(local.payload(SOURCE, 64), route, &unmapped).unwrap()
    });

    assert_eq!(remote.subgroup.injection().injected(SEND), Ok(0));
    assert_eq!(remote.subgroup.has_packet(RECEIVE), Ok(false));

    // The path still works.
    local.write(SOURCE, &pattern(3, 64));
    counter.set(64);
    local.send(&direct_put(local.payload(SOURCE, 64), route, &remote.target(SINK, &counter)).unwrap());
    remote.wait(&counter);
    assert_eq!(remote.read(SINK, 64), pattern(3, 64));
    assert_eq!(remote.subgroup.base_address(0), Ok(NO_BASE_ADDRESS));
}

/// A descriptor that a remote get puts into a FIFO has the permissions of the FIFO's owner.
#[body]
pub fn a_remote_get_brings_no_permission(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig);
    let own_node = local.subgroup.position().destination();
    let system = memory_fifo(Payload::NONE, PointToPoint::system(own_node), &local.fifo()).unwrap();
    local.write(1024, system.as_bytes());
    let get = RemoteGet { fifo: remote.subgroup.injection_id(GETS) };
    local.send(&remote_get(local.payload(1024, 64), local.ordered(&remote), &get).unwrap());

    let device = local.subgroup.device().clone();
    let stopped = || remote.subgroup.injection().fault(GETS).unwrap().is_some();
    device.wait_until(test_deadline(), None, stopped).unwrap();
    assert_eq!(remote.subgroup.injection().fault(GETS), Ok(Some(Fault::Permission)));
    assert_eq!(local.subgroup.has_packet(RECEIVE), Ok(false));
}

/// A FIFO for remote gets can be restarted while a peer keeps sending descriptors that stop it.
#[body(not_through(in_process) = "time passes only in waits, which the sender's thread does not begin")]
pub fn a_get_fifo_restarts_while_bad_gets_arrive(rig: &dyn Rig) {
    const BATCH: usize = 8;

    let (mut attacker, mut victim) = pair(rig);
    let victims_node = victim.subgroup.position().destination();
    let bad = memory_fifo(Payload::NONE, PointToPoint::system(victims_node), &victim.fifo()).unwrap();
    attacker.write(1024, &bad.as_bytes().repeat(BATCH));
    let target = RemoteGet { fifo: victim.subgroup.injection_id(GETS) };
    let payload = attacker.payload(1024, 64 * BATCH as u64);
    let get = remote_get(payload, attacker.ordered(&victim), &target).unwrap();

    let is_over = AtomicBool::new(false);
    let restarted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let _ = attacker.subgroup.try_inject(SEND, &get);
            }
        });
        let restarts = rig.repetitions(100);
        let restarted = (0..restarts).try_for_each(|_| victim.subgroup.restart_injection(GETS));
        is_over.store(true, Ordering::Release);
        restarted
    });
    assert_eq!(restarted, Ok(()));
}

/// Random descriptors stop their FIFO, or are carried out. They change no memory of other
/// processes.
#[body]
pub fn random_descriptors_do_not_disturb_other_processes(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let bystander = Node::new(rig, 1, 1);
    bystander.write(0, &pattern(8, 4096));

    for seed in 0..u64::from(rig.repetitions(300)) {
        let bytes = pattern(seed, 64);
        let mut descriptor = <Descriptor as zerocopy::FromBytes>::read_from_bytes(&bytes).unwrap();
        // Every other one has fields that are nearly right.
        if seed.is_multiple_of(2) {
            descriptor =
                memory_fifo(local.payload(SOURCE, seed % 700), local.ordered(&remote), &remote.fifo())
                    .unwrap();
            let mut nearly = [0; 64];
            nearly.copy_from_slice(descriptor.as_bytes());
            nearly[(seed as usize / 2) % 64] ^= bytes[0] | 1;
            descriptor = <Descriptor as zerocopy::FromBytes>::read_from_bytes(&nearly).unwrap();
            descriptor.message_length &= 0xffff;
        }
        local.inject(&descriptor);
        rig.settle();
        local.subgroup.restart_injection(SEND).unwrap();
    }

    assert!(bystander.read(0, 4096) == pattern(8, 4096), "the bystander's memory has changed");
    let (mut local, counter) = (local, bystander.counter(1));
    local.write(SOURCE, &pattern(3, 64));
    counter.set(64);
    let target = bystander.target(SINK, &counter);
    let route = local.ordered(&bystander);
    drop(remote);
    local.send(&direct_put(local.payload(SOURCE, 64), route, &target).unwrap());
    bystander.wait(&counter);
    assert_eq!(bystander.subgroup.has_packet(RECEIVE), Ok(false));
}

/// A peer that dies with full FIFOs releases the network. Waits for its packets time out, and its
/// successor gets none of the packets that were for it.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_peer_that_dies_releases_the_network(rig: &dyn Rig) {
    let (mut local, remote) = (Node::with_sizes(rig, 0, 0, 400, 4096), Node::with_sizes(rig, 1, 0, 8, 576));
    let third = Node::new(rig, 1, 1);
    let (to, route) = (remote.fifo(), local.ordered(&remote));
    for _ in 0..300 {
        let message = memory_fifo(local.payload(SOURCE, 512), route, &to).unwrap();
        local.inject(&message);
    }
    let last = local.subgroup.injection().injected(SEND).unwrap();
    let stalled = local.subgroup.injection().wait_done(SEND, last, Deadline::after(SHORT), None);
    assert!(matches!(stalled, Err(Error::Driver(DriverError::Timeout { .. }))), "{stalled:?}");

    rig.evict("bgq1", "s0");
    local.subgroup.injection().wait_done(SEND, last, test_deadline(), None).unwrap();
    drop(remote);

    let counter = third.counter(0);
    counter.set(600);
    local.write(SOURCE, &pattern(4, 600));
    local.send(&direct_put(local.payload(SOURCE, 600), route, &third.target(SINK, &counter)).unwrap());
    third.wait(&counter);
    assert_eq!(third.read(SINK, 600), pattern(4, 600));
    assert_eq!(third.subgroup.has_packet(RECEIVE), Ok(false));

    let successor = Node::new(rig, 1, 0);
    rig.settle();
    assert_eq!(successor.subgroup.has_packet(RECEIVE), Ok(false));
    let late = local.subgroup.wait_packet(RECEIVE, Deadline::after(SHORT), None);
    assert!(matches!(late, Err(Error::Driver(DriverError::Timeout { .. }))), "{late:?}");
}

/// A sender that dies while it sends a long message leaves a working network.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_sender_that_dies_leaves_a_network_that_works(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let mut survivor = Node::new(rig, 0, 1);
    let counter = remote.counter(0);
    counter.set(1 << 40);
    for _ in 0..60 {
        let put = direct_put(
            local.payload(SOURCE, 64 << 10),
            local.ordered(&remote),
            &remote.target(SINK, &counter),
        );
        local.inject(&put.unwrap());
    }
    rig.evict("bgq0", "s0");
    drop(local);

    rig.settle();
    counter.set(64);
    survivor.write(SOURCE, &pattern(6, 64));
    survivor.send(
        &direct_put(survivor.payload(SOURCE, 64), survivor.ordered(&remote), &remote.target(SINK, &counter))
            .unwrap(),
    );
    remote.wait(&counter);
    assert_eq!(remote.read(SINK, 64), pattern(6, 64));

    let device = rig.open("bgq0", "s0");
    let reopened = Subgroup::open(&device, Options::default()).unwrap();
    assert_eq!(reopened.base_address(BASE), Ok(NO_BASE_ADDRESS));
}
