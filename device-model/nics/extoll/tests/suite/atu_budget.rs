//! Commands that read many mappings: how many are carried out in a pass, and in which order.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Client, Rig,
    posting::Posting,
    rma::{DATA_BASE, OPEN},
};
use nicforge_core::{
    dma::{DmaBacking, DmaPermission},
    machine::Access,
    time::Nanos,
};
use nicforge_hwi::{
    extoll::{RING_CELLS, error, mirror, reg},
    extoll_atu::{MAX_MAPPINGS, command as atu, page},
};
use nicforge_shm::SharedMemory;

/// Maximum number of visits in a pass: the budget, and one command that begins before it is used
/// up.
const MOST: u64 = 2 * MAX_MAPPINGS as u64 + 64;
/// Pages of the most expensive range. It has as many mappings as a region may have, with a hole in
/// front of the last one. So all are visited, nothing is registered, and the next attempt costs as
/// much.
const MOST_EXPENSIVE: u64 = MAX_MAPPINGS as u64 + 1;

/// Maps the most expensive range from 0 on; all pages are the same memory.
fn map_most_expensive(rig: &mut Rig, client: &Client) {
    let memory = SharedMemory::create("data", 4096).unwrap();
    for page in (0..MOST_EXPENSIVE).filter(|page| *page != MOST_EXPENSIVE - 2) {
        let backing = DmaBacking::Memory(memory.whole());
        let permission = DmaPermission::READ_WRITE;
        rig.machine
            .dma_map(client.function, client.attachment, page * 4096, 4096, permission, backing)
            .unwrap();
    }
}

fn visits(rig: &mut Rig) -> u64 {
    rig.counter(0, "command_visits")
}

/// Steps every function once, and advances time if there is nothing to do.
fn pass_once(rig: &mut Rig) {
    let _ = rig.machine.step(64);
    let next = rig.machine.fabric().next_event();
    if next != Nanos::NEVER {
        rig.machine.advance_to(next);
    }
}

/// Reads a register by a trapped access. Returns `None` while it waits.
fn try_read(rig: &mut Rig, client: &Client, offset: u64) -> Option<u64> {
    let mut data = [0; 8];
    let access = rig.machine.read(client.function, client.attachment, 0, offset, &mut data).unwrap();
    (access == Access::Done).then_some(u64::from_le_bytes(data))
}

/// Returns the record with a number. Of 16, three ask for the most expensive range, ten make no
/// sense, and three register a page.
fn record(number: u64) -> (u64, u64) {
    match number % 16 {
        0 | 5 | 10 => (atu::COMMAND, atu::REGISTER),
        13 => (atu::PAGES, 1),
        14 => (atu::COMMAND, atu::REGISTER),
        15 => (atu::PAGES, MOST_EXPENSIVE),
        _ => (atu::COMMAND, 0),
    }
}

#[test]
fn a_ring_full_of_expensive_commands_and_a_trapped_read_delay_no_other_client() {
    let mut rig = Rig::pair();
    let (greedy, other, third) = (rig.attach(0, 0), rig.attach(0, 1), rig.attach(0, 2));
    let mut receiver = rig.receiver(1, 0, 64);
    map_most_expensive(&mut rig, &greedy);
    let _memory = rig.map(&third, DATA_BASE, 4096);

    rig.write64(&greedy, atu::PAGES, MOST_EXPENSIVE);
    rig.write64(&third, atu::ADDRESS, DATA_BASE);
    rig.write64(&third, atu::PAGES, 1);

    let mut ring = Posting::of(&rig, &greedy);
    let records: Vec<_> = (0..u64::from(RING_CELLS)).map(record).collect();
    for (offset, value) in &records {
        ring.post(0, *offset, &value.to_le_bytes());
    }

    let (mut sent, mut received, mut passes) = (0, 0, 0_u64);
    // The number of passes in which the third client's command waited.
    let (mut third_is_served, mut waited) = (false, 0);

    let status = loop {
        let before = visits(&mut rig);
        let status = try_read(&mut rig, &greedy, atu::STATUS);
        let spent = visits(&mut rig);

        // Whatever the first client has posted, accesses of others are answered at once, without
        // spending visits for the first.
        assert_eq!(try_read(&mut rig, &other, reg::IDENTITY), Some(reg::IDENTITY_VALUE));
        assert!(rig.send(&other, (1, 0), 0, &[0; 8]));
        sent += 1;
        assert_eq!(visits(&mut rig), spent);

        if passes >= 10 && !third_is_served {
            let command = atu::REGISTER.to_le_bytes();
            let written =
                rig.machine.write(third.function, third.attachment, 0, atu::COMMAND, &command).unwrap();
            third_is_served = written == Access::Done;
            waited += u64::from(!third_is_served);
        }

        if status.is_some() {
            break status;
        }

        pass_once(&mut rig);
        passes += 1;
        assert!(visits(&mut rig) - before <= MOST, "pass {passes}");

        received += receiver.take_all().len();
        assert!(sent - received <= 8, "pass {passes}: {received} of {sent} messages");

        // The records carried out are the first ones posted, and have the results that they have
        // alone.
        let counters = rig.machine.attachment_counters(greedy.function, greedy.attachment).unwrap();
        let done = &records[..counters.posted_writes as usize];
        let pages = done.iter().filter(|record| record.0 == atu::PAGES).count() as u64;
        // A page is registered between two writes of the register `PAGES`.
        let registered = pages / 2 + u64::from(pages % 2 == 1 && done.last() == Some(&records[14]));
        let refused = done.len() as u64 - pages - registered;
        assert_eq!(greedy.mirror_word(mirror::ERRORS), refused);
        assert_eq!(rig.counter(0, "atu_entries"), registered + u64::from(third_is_served));
    };

    assert_eq!(status, Some(atu::DONE), "of the last command, which registers a page");
    let expensive = 3 * records.len() as u64 / 16;
    assert!(passes >= expensive, "{passes} passes for {expensive} commands, each of a pass's budget");
    assert!(third_is_served && (1..=3).contains(&waited), "another's command has waited for {waited} passes");
    assert_eq!(greedy.last_error(), (error::ATU, atu::COMMAND));
}

#[test]
fn a_registration_of_too_many_mappings_reads_none_of_them() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    map_most_expensive(&mut rig, &client);
    // Another page fills the hole: one mapping too many.
    let _memory = rig.map(&client, (MOST_EXPENSIVE - 2) * 4096, 4096);

    let before = visits(&mut rig);

    assert_eq!(rig.register(&client, 0, MOST_EXPENSIVE, page::SIZE_4K, OPEN), Err(atu::SCATTERED));
    assert_eq!(rig.register(&client, 0, MOST_EXPENSIVE + 1, page::SIZE_4K, OPEN), Err(atu::NOT_MAPPED));
    assert!(visits(&mut rig) - before <= 2);
}

#[test]
fn repeated_enabling_of_a_ring_is_within_the_budget() {
    let mut rig = Rig::pair();
    let (greedy, other) = (rig.attach(0, 0), rig.attach(0, 1));

    // The ring has 2048 slots, in pieces of 64 bytes.
    let lengths = vec![64; 4096];
    let _memory = rig.map_scattered(&greedy, crate::common::RING_BASE, &lengths);
    rig.write64(&greedy, reg::VELO_RING_BASE, crate::common::RING_BASE);
    rig.write64(&greedy, reg::VELO_RING_SLOTS, 2048);

    let mut ring = Posting::of(&rig, &greedy);
    for number in 0..u64::from(RING_CELLS) {
        ring.post(0, reg::VELO_RING_ENABLE, &(number & 1 ^ 1).to_le_bytes());
    }

    let mut passes = 0;
    loop {
        let before = visits(&mut rig);
        let enabled = try_read(&mut rig, &greedy, reg::VELO_RING_ENABLE);
        assert_eq!(try_read(&mut rig, &other, reg::IDENTITY), Some(reg::IDENTITY_VALUE));
        if enabled.is_some() {
            break;
        }

        pass_once(&mut rig);
        passes += 1;
        assert!(visits(&mut rig) - before <= MOST);
    }

    assert!(passes >= 4096 / 2 / 8, "{passes} passes for 2048 leases of 4096 mappings");
    assert_eq!(greedy.mirror_word(mirror::ERRORS), 0);
}
