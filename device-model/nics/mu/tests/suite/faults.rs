//! Descriptors and FIFOs that are not possible: each stops its FIFO, and no other.

use std::sync::atomic::Ordering;

use nicforge_core::dma::DmaPermission;
use nicforge_hwi::{
    mu::{DESCRIPTOR, atomic, fault, reg},
    mu_dcr::{MCSRAM_ERR_FIFO_ID, XM0_ERR_INFO, error, errors},
    mu_packet::{Descriptor, Destination, channel, fifo_map},
};

use nicforge_shm::SharedMemory;
use nicforge_test_kit::Testbed;

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };

/// Sends a descriptor that must stop its FIFO, and checks that another subgroup goes on.
fn check(name: &str, descriptor: &Descriptor, fault: u64) {
    let (mut rig, mut users) = Rig::pair();
    let mut other = rig.user(0, 1);
    users[0].inject(&mut rig.bed, 2, descriptor);
    users[0].inject(&mut rig.bed, 2, &WAY.fifo(0, PAYLOAD, 8));
    rig.settle();

    assert_eq!((users[0].fault(2), users[0].done(2)), (fault, 0), "{name}");
    assert_eq!(users[0].shown(reg::IS_ENABLED), 0x7f & !(1 << 2), "{name}");
    assert_eq!(rig.counter(0, "faults"), 1);
    assert_eq!(rig.counter(0, "packets_sent"), 0, "{name}");

    other.inject(&mut rig.bed, 2, &WAY.fifo(0, PAYLOAD, 8));
    users[0].inject(&mut rig.bed, 3, &WAY.fifo(0, PAYLOAD, 8));
    rig.until(|_| users[1].packets(0).0.len() == 2);
    assert_eq!((other.done(2), users[0].done(3)), (1, 1));

    // Software mends the descriptor, and enables the FIFO again.
    users[0].set(&mut rig.bed, reg::DISABLE, 1 << 2);
    let head = users[0].shown_injection(2, reg::HEAD);
    users[0].set(&mut rig.bed, reg::INJECTION + 2 * reg::FIFO + reg::HEAD, head + DESCRIPTOR);
    users[0].set(&mut rig.bed, reg::ENABLE, 1 << 2);
    rig.until(|_| users[0].done(2) == 1);
    assert_eq!(users[0].fault(2), fault::NONE);
}

fn changed(descriptor: Descriptor, change: impl FnOnce(&mut Descriptor)) -> Descriptor {
    let mut changed = descriptor;
    change(&mut changed);
    changed
}

#[test]
fn lengths_that_are_not_possible_stop_the_fifo() {
    for (name, descriptor) in [
        ("put of nothing", WAY.put(0, 0, 0, PAYLOAD, 0)),
        ("get of nothing", WAY.get(6, PAYLOAD, 0)),
        ("get of half a descriptor", WAY.get(6, PAYLOAD, 96)),
        ("payload behind the addresses", WAY.fifo(0, (1 << 36) - 8, 16)),
        ("longest message", changed(WAY.fifo(0, 0, 8), |it| it.message_length = u64::MAX)),
        ("put beyond the offsets", WAY.put(0, (1 << 36) - 8, 0, PAYLOAD, 16)),
        ("atomic payload of 9 bytes", WAY.fifo(0, PAYLOAD | atomic::INDICATOR, 9)),
        ("atomic descriptors", WAY.get(6, PAYLOAD | atomic::INDICATOR, 64)),
        ("address with other bits", WAY.fifo(0, PAYLOAD | 1 << 40, 8)),
        ("prefetch of nothing", changed(WAY.fifo(0, PAYLOAD, 0), |it| it.prefetch_only = 1)),
    ] {
        check(name, &descriptor, fault::DESCRIPTOR);
    }
}

#[test]
fn headers_without_meaning_stop_the_fifo() {
    let fifo = WAY.fifo(0, PAYLOAD, 8);
    for (name, descriptor) in [
        ("packet type 3", changed(fifo, |it| it.packet_header.set_packet_type(3))),
        ("544 bytes a packet", changed(fifo, |it| it.packet_header.set_payload_bytes(544))),
        ("no map", changed(fifo, |it| it.torus_fifo_map = 0)),
        ("map of no FIFO", changed(fifo, |it| it.torus_fifo_map = 1 << 16)),
        ("local map for another node", changed(fifo, |it| it.torus_fifo_map = fifo_map::LOCAL0)),
        ("channel 7", changed(fifo, |it| it.packet_header.set_channel(7))),
        ("no kind", changed(fifo, |it| it.packet_header.data_packet_type = 0)),
        (
            "parts of descriptors",
            changed(WAY.get(6, PAYLOAD, 64), |it| it.packet_header.set_payload_bytes(96)),
        ),
    ] {
        check(name, &descriptor, fault::DESCRIPTOR);
    }
}

#[test]
fn destinations_outside_the_network_stop_the_fifo() {
    for to in [[2, 0, 0, 0, 0], [0, 1, 0, 0, 0], [63; 5]] {
        let descriptor =
            changed(WAY.fifo(0, PAYLOAD, 8), |it| it.packet_header.destination = Destination::new(to));
        check("destination", &descriptor, fault::DESTINATION);
    }
}

#[test]
fn what_belongs_to_the_system_stops_a_users_fifo() {
    let fifo = WAY.fifo(0, PAYLOAD, 8);
    for (name, descriptor) in [
        ("network FIFO", changed(fifo, |it| it.torus_fifo_map |= fifo_map::SYSTEM)),
        ("collective FIFO", changed(fifo, |it| it.torus_fifo_map = fifo_map::COLLECTIVE_SYSTEM)),
        ("channel", changed(fifo, |it| it.packet_header.set_channel(channel::SYSTEM))),
        ("collective channel", changed(fifo, |it| it.packet_header.set_channel(channel::SYSTEM_COLLECTIVE))),
    ] {
        check(name, &descriptor, fault::PERMISSION);
    }
}

#[test]
fn payload_that_is_not_mapped_stops_the_fifo() {
    check("payload", &WAY.fifo(0, 0x1000, 8), fault::UNMAPPED);
    check("prefetch", &changed(WAY.fifo(0, 0x1000, 8), |it| it.prefetch_only = 1), fault::UNMAPPED);
    check("atomic", &WAY.fifo(0, atomic::INDICATOR | 0x1000, 8), fault::UNMAPPED);
}

#[test]
fn payload_that_ends_in_the_middle_stops_the_fifo_behind_the_packets_that_were_sent() {
    let (mut rig, mut users) = Rig::pair();
    let end = PAYLOAD + 0x40_0000;
    users[1].write64(COUNTERS, 4096);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, end - 1024, 4096));
    rig.settle();

    assert_eq!((users[0].fault(0), users[0].done(0)), (fault::UNMAPPED, 0));
    assert_eq!(users[1].read64(COUNTERS), 3072, "two packets arrived");
}

#[test]
fn memory_that_only_messages_reach_is_out_of_range() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(0);
    users[0].client.map_remote(&mut rig.bed, 0x8000_0000, 0x1_0000);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, 0x8000_0000, 8));
    rig.settle();

    assert_eq!(users[0].fault(0), fault::RANGE);
    assert_eq!(kernel.control(&mut rig.bed, XM0_ERR_INFO), 0x8000_0000);
    let state = kernel.control(&mut rig.bed, errors::MASTER_PORT0);
    assert_eq!(state, 1 << error::XM_READ_RANGE);
}

/// Sets up FIFO 2 in a place, and returns its fault and whether it is enabled.
fn enable_at(rig: &mut Rig, user: &mut User, start: u64, bytes: u64) -> (u64, bool) {
    user.set(&mut rig.bed, reg::DISABLE, 1 << 2);
    user.set_injection(&mut rig.bed, 2, start, bytes);
    user.set(&mut rig.bed, reg::ENABLE, 1 << 2);
    rig.settle();
    (user.fault(2), user.shown(reg::IS_ENABLED) & 1 << 2 != 0)
}

#[test]
fn fifos_with_pointers_that_are_not_possible_are_not_enabled() {
    let (mut rig, [mut user, _]) = Rig::pair();
    for (start, bytes) in [(DATA, 64), (DATA + 32, 128), (DATA, 160), (DATA, 1 << 27), ((1 << 36) - 64, 128)]
    {
        assert_eq!(
            enable_at(&mut rig, &mut user, start, bytes),
            (fault::POINTERS, false),
            "{start:#x} {bytes}"
        );
    }
    assert_eq!(enable_at(&mut rig, &mut user, DATA, 128), (fault::NONE, true));
}

#[test]
fn a_tail_outside_the_fifo_stops_it() {
    for wrong in [0, PAYLOAD, DATA + 32, DATA + 128, u64::MAX, 1 << 36] {
        let (mut rig, [mut user, _]) = Rig::pair();
        assert_eq!(enable_at(&mut rig, &mut user, DATA, 128), (fault::NONE, true));
        user.post(&mut rig.bed, reg::INJECTION + 2 * reg::FIFO + reg::TAIL, wrong);
        rig.settle();
        assert_eq!(user.fault(2), fault::POINTERS, "{wrong:#x}");
        assert_eq!(user.shown(reg::IS_ENABLED), 0x7f & !(1 << 2));
    }
}

#[test]
fn a_fifo_in_memory_that_is_not_mapped_stops_at_its_first_descriptor() {
    let (mut rig, [mut user, _]) = Rig::pair();
    assert_eq!(enable_at(&mut rig, &mut user, 0x1000, 128), (fault::NONE, true));
    user.post(&mut rig.bed, reg::INJECTION + 2 * reg::FIFO + reg::TAIL, 0x1040);
    rig.settle();
    assert_eq!(user.fault(2), fault::UNMAPPED);
}

#[test]
fn a_reception_fifo_in_memory_that_can_t_be_written_stops() {
    let (mut rig, mut users) = Rig::pair();
    users[1].client.map_for(&mut rig.bed, 0x4000_0000, 0x1000, DmaPermission::READ);
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0);
    users[1].set_reception(&mut rig.bed, 1, 0x4000_0000, 0x1000);
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0xf);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(1, PAYLOAD, 8));
    rig.settle();

    assert_eq!(users[1].shown_reception(1, reg::FAULT), fault::UNMAPPED);
    assert_eq!(users[1].shown(reg::RECEPTION_ENABLE), 0b1101);
    assert_eq!(users[1].shown(reg::DROPPED), 1);
}

#[test]
fn memory_that_is_unmapped_is_not_reached_again_and_other_memory_at_its_address_is() {
    const PLACE: u64 = 0x4000_0000;
    const BYTES: u64 = 0x1000;
    const PACKET: u64 = 32 + 64;
    let (mut rig, mut users) = Rig::pair();
    let message = WAY.fifo(1, PLACE, 64);
    let read = |memory: &SharedMemory, at| {
        let mut bytes = [0; 64];
        memory.read(at, &mut bytes).unwrap();
        bytes
    };

    let mut former = Vec::new();
    for round in 0..3 {
        let memory = [0, 1].map(|node: usize| users[node].client.map(&mut rig.bed, PLACE, BYTES as usize));
        memory[0].write(0, &pattern(round, 64)).unwrap();
        users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0);
        users[1].set_reception(&mut rig.bed, 1, PLACE, BYTES);
        users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0xf);

        // Several packets, so that the unit comes to keep views of both memories.
        for _ in 0..8 {
            users[0].inject(&mut rig.bed, 1, &message);
        }
        rig.settle();
        assert_eq!(read(&memory[1], 7 * PACKET + 32), *pattern(round, 64), "round {round}");
        assert!(former.iter().all(|memory| read(memory, 32) == [0; 64]), "round {round}");

        for user in &users {
            let client = user.client;
            rig.bed.dma_unmap(client.function, client.attachment, PLACE, BYTES).unwrap();
        }
        // The unit has dropped its views, so that the files do not count against the clients.
        assert!(memory.iter().all(|memory| !memory.has_other_handles()), "round {round}");
        memory.iter().for_each(|memory| memory.zero(0, BYTES).unwrap());
        former.extend(memory);
    }

    users[0].inject(&mut rig.bed, 1, &message);
    rig.settle();
    assert_eq!(users[0].fault(1), fault::UNMAPPED);
}

/// Lets puts to this subgroup write data at an address, and subtract from the word 0x800 behind it.
fn set_target(bed: &mut Testbed, user: &User, address: u64) {
    user.set(bed, reg::BASE_ADDRESS, address);
    user.set(bed, reg::BASE_ADDRESS + 8, atomic::INDICATOR | atomic::store::ADD | (address + 0x800));
}

#[test]
fn puts_do_not_reach_memory_that_is_unmapped_but_other_memory_at_its_address() {
    const PLACE: u64 = 0x4000_0000;
    const BYTES: u64 = 0x1000;
    let (mut rig, mut users) = Rig::pair();
    set_target(&mut rig.bed, &users[1], PLACE);
    let put = WAY.put(0, 0, 0, PAYLOAD, 8);
    let word = |memory: &SharedMemory, at| memory.u64(at).unwrap().load(Ordering::Acquire);

    let mut former = Vec::new();
    for round in 1..4 {
        let memory = users[1].client.map(&mut rig.bed, PLACE, BYTES as usize);
        memory.write(0x800, &100_u64.to_le_bytes()).unwrap();
        users[0].write64(PAYLOAD, round);

        // Several puts, so that the unit comes to keep views of data and counter.
        for _ in 0..8 {
            users[0].inject(&mut rig.bed, 1, &put);
        }
        rig.settle();
        assert_eq!((word(&memory, 0), word(&memory, 0x800)), (round, 100 - 8 * 8), "round {round}");
        assert!(former.iter().all(|memory| word(memory, 0) + word(memory, 0x800) == 0), "round {round}");

        let client = users[1].client;
        rig.bed.dma_unmap(client.function, client.attachment, PLACE, BYTES).unwrap();
        assert!(!memory.has_other_handles(), "round {round}");
        memory.zero(0, BYTES).unwrap();
        former.push(memory);
    }

    users[0].inject(&mut rig.bed, 1, &put);
    rig.settle();
    assert_eq!(users[1].shown(reg::DROPPED), 1);
}

#[test]
fn a_counter_must_be_in_memory_that_can_be_read() {
    const PLACE: u64 = 0x4000_0000;
    let (mut rig, mut users) = Rig::pair();
    users[1].client.map_for(&mut rig.bed, PLACE, 0x1000, DmaPermission::WRITE);
    set_target(&mut rig.bed, &users[1], PLACE);

    for puts in 1..4 {
        users[0].inject(&mut rig.bed, 1, &WAY.put(0, 0, 0, PAYLOAD, 8));
        rig.settle();
        assert_eq!(users[1].shown(reg::DROPPED), puts);
    }
}

#[test]
fn a_tail_that_is_refused_for_its_width_hides_no_later_one() {
    let (mut rig, mut users) = Rig::pair();
    for length in [4, 16, 512] {
        users[0].post_bytes(reg::INJECTION + reg::FIFO + reg::TAIL, &vec![0; length]);
        users[0].inject(&mut rig.bed, 1, &WAY.fifo(1, PAYLOAD, 64));
        rig.settle();
        assert_eq!(users[1].take(&mut rig.bed, 1).len(), 1, "after {length} bytes");
    }
}

#[test]
fn errors_name_the_fifo_to_the_kernel() {
    let (mut rig, _) = Rig::pair();
    let kernel = rig.kernel(0);
    let mut other = rig.user(0, 3);
    other.inject(&mut rig.bed, 5, &WAY.put(0, 0, 0, PAYLOAD, 0));
    rig.settle();

    assert_eq!(kernel.control(&mut rig.bed, MCSRAM_ERR_FIFO_ID), 3 * 8 + 5);
    let state = kernel.control(&mut rig.bed, errors::MCSRAM);
    assert_eq!(state, 1 << error::MCSRAM_NO_PAYLOAD);
}
