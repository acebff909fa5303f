//! Registrations of memory: permissions, lookup, quotas, and what ends a registration.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Rig,
    rma::{DATA_BASE, OPEN_TO_ALL},
};
use nicforge_core::{
    device::Ended,
    dma::{DmaBacking, DmaPermission},
};
use nicforge_hwi::{
    extoll::{error, mirror},
    extoll_atu::{MAX_MAPPINGS, command as atu, nla, page},
};
use nicforge_shm::SharedMemory;

#[test]
fn pages_of_every_size_get_addresses_that_encode_their_size() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    let _memory = rig.map(&client, 0, 4 << 20);

    for class in [page::SIZE_4K, page::SIZE_64K, page::SIZE_2M] {
        let first = rig.register(&client, 0, 2, class, 0).unwrap();
        assert_eq!(first, nla::of_entry(class, 0));
        let second = rig.register(&client, 0, 1, class, 0).unwrap();
        assert_eq!(second, nla::of_entry(class, 2));
    }

    assert_eq!(rig.counter(0, "atu_entries"), 9);
    assert_eq!(client.mirror_word(mirror::ERRORS), 0);
}

#[test]
fn a_freed_entry_is_not_granted_again_before_all_others_were() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    let _memory = rig.map(&client, 0, 1 << 20);

    let nlas: Vec<_> =
        [3, 2, 4].iter().map(|&pages| rig.register(&client, 0, pages, page::SIZE_4K, 0).unwrap()).collect();
    assert_eq!(rig.deregister(&client, nlas[1]), atu::DONE);

    assert_eq!(rig.register(&client, 0, 3, page::SIZE_4K, 0).unwrap(), nla::of_entry(0, 9));
    // An outdated address of the deregistered region leads nowhere, even after the same memory was
    // registered again.
    assert_eq!(rig.register(&client, 0, 2, page::SIZE_4K, 0).unwrap(), nla::of_entry(0, 12));

    assert_eq!(rig.deregister(&client, nlas[0]), atu::DONE);
    let successor = rig.attach(0, 1);
    let _memory = rig.map(&successor, 0, 1 << 20);
    assert_eq!(rig.register(&successor, 0, 3, page::SIZE_4K, 0).unwrap(), nla::of_entry(0, 14));
}

#[test]
fn invalid_commands_report_their_error_and_change_nothing() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    let other = rig.attach(0, 1);
    let _memory = rig.map(&client, DATA_BASE, 1 << 20);
    let nla = rig.register(&client, DATA_BASE, 16, page::SIZE_4K, 0).unwrap();

    let register = atu::REGISTER;
    // Each case is an address and a number of pages, a command, and its status.
    let cases = [
        // Addresses and numbers of pages that no memory has.
        ((DATA_BASE + 8, 1), register, atu::MALFORMED),
        ((DATA_BASE, 0), register, atu::MALFORMED),
        ((DATA_BASE, u64::MAX), register, atu::MALFORMED),
        ((0u64.wrapping_sub(4096), 2), register, atu::MALFORMED),
        // Unknown commands, and an unknown bit.
        ((DATA_BASE, 1), 0, atu::MALFORMED),
        ((DATA_BASE, 1), 3, atu::MALFORMED),
        ((DATA_BASE, 1), register | 1 << 20, atu::MALFORMED),
        // Memory that is not mapped, and too many pages of the largest size.
        ((DATA_BASE, 257), register, atu::NOT_MAPPED),
        ((0, 1), register, atu::NOT_MAPPED),
        ((DATA_BASE, 65), register | 3 << atu::CLASS_SHIFT, atu::MALFORMED),
        // Addresses at which no region begins.
        ((nla + 4096, 0), atu::DEREGISTER, atu::NOT_YOURS),
        ((nla + 8, 0), atu::DEREGISTER, atu::NOT_YOURS),
        ((u64::MAX, 0), atu::DEREGISTER, atu::NOT_YOURS),
        ((nla::of_entry(1, 0), 0), atu::DEREGISTER, atu::NOT_YOURS),
    ];

    for (errors, ((address, pages), command, status)) in (1..).zip(cases) {
        assert_eq!(rig.translate(&client, (0, address, pages), command), status, "case {errors}");
        rig.run();
        assert_eq!((client.mirror_word(mirror::ERRORS), client.last_error().0), (errors, error::ATU));
    }

    assert_eq!(rig.deregister(&other, nla), atu::NOT_YOURS, "another's");
    assert_eq!(rig.counter(0, "atu_entries"), 16);
    assert_eq!(rig.deregister(&client, nla), atu::DONE);
    assert_eq!(rig.deregister(&client, nla), atu::NOT_YOURS, "twice");
}

/// Number of entries of 64 KiB pages that are reserved for each of four VPIDs: an eighth.
const RESERVED: u64 = page::entries(page::SIZE_64K) as u64 / 8;

#[test]
fn a_vpid_cannot_take_entries_reserved_for_others() {
    let mut rig = Rig::pair();
    let clients = [0, 1, 2, 3].map(|vpid| rig.attach(0, vpid));
    for client in &clients {
        let _memory = rig.map(client, 0, 1 << 20);
    }
    let [greedy, others @ ..] = &clients;

    let nlas: Vec<_> =
        (0..5 * RESERVED / 16).map(|_| rig.register(greedy, 0, 16, page::SIZE_64K, 0).unwrap()).collect();

    assert_eq!(rig.register(greedy, 0, 1, page::SIZE_64K, 0), Err(atu::QUOTA));
    assert_eq!(rig.counter(0, "atu_refused"), 1);

    rig.register(greedy, 0, 1, page::SIZE_4K, 0).unwrap();
    for other in others {
        for _ in 0..RESERVED / 16 {
            rig.register(other, 0, 16, page::SIZE_64K, 0).unwrap();
        }
    }

    for client in &clients {
        assert_eq!(rig.register(client, 0, 1, page::SIZE_64K, 0), Err(atu::NO_ENTRIES), "the table is full");
    }
    assert_eq!(rig.counter(0, "atu_refused"), 5);

    // Entries that the first VPID frees are free for all.
    assert_eq!(rig.deregister(greedy, nlas[0]), atu::DONE);
    rig.register(&others[2], 0, 16, page::SIZE_64K, 0).unwrap();

    // Entries beyond a VPID's part are not reserved for it.
    rig.kill(greedy);
    assert_eq!(rig.register(&others[0], 0, 16, page::SIZE_64K, 0).map(|_| ()), Ok(()));
}

#[test]
fn a_registration_by_the_admin_counts_for_the_owner() {
    let mut rig = Rig::pair();
    let (admin, client) = (rig.admin(0), rig.attach(0, 1));
    let _memory = rig.map(&client, 0, 1 << 20);
    let register = atu::REGISTER | u64::from(page::SIZE_64K) << atu::CLASS_SHIFT;

    for _ in 0..5 * RESERVED / 16 {
        assert_eq!(rig.translate(&admin, (1, 0, 16), register), atu::DONE);
    }
    assert_eq!(rig.translate(&admin, (1, 0, 16), register), atu::QUOTA);
    assert_eq!(rig.register(&client, 0, 16, page::SIZE_64K, 0), Err(atu::QUOTA));
}

#[test]
fn a_region_has_a_bounded_number_of_mappings() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    // All mappings are of the same page.
    let memory = SharedMemory::create("data", 4096).unwrap();
    let maximum = u64::from(MAX_MAPPINGS);
    for page in 0..=maximum {
        let backing = DmaBacking::Memory(memory.whole());
        let permission = DmaPermission::READ_WRITE;
        rig.machine
            .dma_map(client.function, client.attachment, page * 4096, 4096, permission, backing)
            .unwrap();
    }

    assert_eq!(rig.register(&client, 0, maximum + 1, page::SIZE_4K, 0), Err(atu::SCATTERED));
    assert_eq!((rig.counter(0, "atu_entries"), rig.counter(0, "atu_refused")), (0, 0));

    // A card has 16 times as many mappings as a region may have. An eighth of them, that of two
    // regions, is reserved for each of the three other VPIDs. So ten regions are possible.
    let large = page::SIZE_2M;
    let pages = maximum >> (page::shift(large) - 12);
    let nlas: Vec<_> = (0..10).map(|_| rig.register(&client, 0, pages, large, 0).unwrap()).collect();
    assert_eq!(rig.register(&client, 0, 1, large, 0), Err(atu::QUOTA), "all mappings are in use");
    assert_eq!(rig.deregister(&client, nlas[3]), atu::DONE);
    rig.register(&client, 0, 1, large, 0).unwrap();
}

#[test]
fn the_admin_registers_and_deregisters_for_any_vpid() {
    let mut rig = Rig::pair();
    let admin = rig.admin(0);
    let client = rig.attach(0, 2);
    let _memory = rig.map(&client, DATA_BASE, 1 << 20);

    assert_eq!(rig.translate(&admin, (2, DATA_BASE, 4), atu::REGISTER | OPEN_TO_ALL), atu::DONE);
    let nla = rig.read64(&admin, atu::RESULT);
    assert_eq!(rig.translate(&admin, (3, DATA_BASE, 4), atu::REGISTER), atu::NO_OWNER, "no VPID owns it");
    assert_eq!(rig.translate(&admin, (4, DATA_BASE, 4), atu::REGISTER), atu::NO_OWNER, "the admin itself");

    assert_eq!(rig.translate(&admin, (0, nla, 0), atu::DEREGISTER), atu::DONE);
    let own = rig.register(&client, DATA_BASE, 1, page::SIZE_4K, 0).unwrap();
    assert_eq!(rig.translate(&admin, (0, own, 0), atu::DEREGISTER), atu::DONE);
}

#[test]
fn the_registrations_of_a_vpid_end_with_it() {
    let mut rig = Rig::pair();
    let admin = rig.admin(0);
    let (first, second) = (rig.attach(0, 0), rig.attach(0, 1));
    for client in [&first, &second] {
        let _memory = rig.map(client, DATA_BASE, 1 << 20);
        for class in [page::SIZE_4K, page::SIZE_64K] {
            rig.register(client, DATA_BASE, 4, class, OPEN_TO_ALL).unwrap();
            rig.register(client, DATA_BASE, 4, class, OPEN_TO_ALL).unwrap();
        }
    }

    rig.machine.detach(first.function, first.attachment, Ended::Closed).unwrap();
    assert_eq!(rig.counter(0, "atu_entries"), 16);
    rig.write64(&admin, nicforge_hwi::extoll::reg::RESET_VPID, 1);
    assert_eq!(rig.counter(0, "atu_entries"), 0);
}
