//! Commands that read many mappings of a client's memory: how many of them a card carries out in a
//! pass, and in which order.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Client, Rig,
    posting::Posting,
    rma::{DATA_BASE, OPEN_TO_ALL},
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

/// Maximum number of visits of a card in a pass. A visit is a read of one mapping. The maximum is
/// the card's budget, and the visits of one command that begins before the budget is used up.
const MAX_VISITS_PER_PASS: u64 = 2 * MAX_MAPPINGS as u64 + 64;
/// Pages of the most expensive range. It has as many mappings as a region may have, with a hole in
/// front of the last one. So a command visits all of them and registers nothing, and the next
/// attempt costs as much.
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

/// Returns the number of mappings that commands have read on node 0's card.
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

/// Reads a register by a trapped access. Returns `None` while the card makes the client wait.
fn try_read(rig: &mut Rig, client: &Client, offset: u64) -> Option<u64> {
    let mut data = [0; 8];
    let access = rig.machine.read(client.function, client.attachment, 0, offset, &mut data).unwrap();
    (access == Access::Done).then_some(u64::from_le_bytes(data))
}

/// A posted write of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RegisterWrite {
    offset: u64,
    value: u64,
}

impl RegisterWrite {
    /// Returns the write with a number. Of 16 writes, three ask for the most expensive range, ten
    /// are invalid commands, and three register a page: `PAGES`, the command, and `PAGES` again.
    fn numbered(number: u64) -> Self {
        let (offset, value) = match number % 16 {
            0 | 5 | 10 => (atu::COMMAND, atu::REGISTER),
            13 => (atu::PAGES, 1),
            14 => (atu::COMMAND, atu::REGISTER),
            15 => (atu::PAGES, MOST_EXPENSIVE),
            _ => (atu::COMMAND, 0),
        };
        Self { offset, value }
    }
}

/// Maps the most expensive range for a client, and fills its posted-write ring with commands.
/// Returns the posted writes.
fn post_expensive_commands(rig: &mut Rig, client: &Client) -> Vec<RegisterWrite> {
    map_most_expensive(rig, client);
    rig.write64(client, atu::PAGES, MOST_EXPENSIVE);

    let mut ring = Posting::of(rig, client);
    let writes: Vec<_> = (0..u64::from(RING_CELLS)).map(RegisterWrite::numbered).collect();
    for write in &writes {
        ring.post(0, write.offset, &write.value.to_le_bytes());
    }
    writes
}

#[test]
fn expensive_commands_in_a_ring_delay_no_access_of_another_client() {
    let mut rig = Rig::pair();
    let (greedy, other) = (rig.attach(0, 0), rig.attach(0, 1));
    let mut receiver = rig.receiver(1, 0, 64);
    post_expensive_commands(&mut rig, &greedy);

    let (mut sent, mut received, mut passes) = (0, 0, 0_u64);
    while try_read(&mut rig, &greedy, atu::STATUS).is_none() {
        // Accesses of another client are answered at once, and carry out none of the commands.
        let before = visits(&mut rig);
        assert_eq!(try_read(&mut rig, &other, reg::IDENTITY), Some(reg::IDENTITY_VALUE));
        assert!(rig.send(&other, (1, 0), 0, &[0; 8]));
        sent += 1;
        assert_eq!(visits(&mut rig), before);

        pass_once(&mut rig);
        passes += 1;
        received += receiver.take_all().len();
        assert!(sent - received <= 8, "pass {passes}: {received} of {sent} messages");
    }
}

#[test]
fn a_command_of_another_client_waits_for_few_passes() {
    let mut rig = Rig::pair();
    let (greedy, other) = (rig.attach(0, 0), rig.attach(0, 1));
    let _memory = rig.map(&other, DATA_BASE, 4096);
    rig.write64(&other, atu::ADDRESS, DATA_BASE);
    rig.write64(&other, atu::PAGES, 1);
    post_expensive_commands(&mut rig, &greedy);

    for _ in 0..10 {
        assert_eq!(try_read(&mut rig, &greedy, atu::STATUS), None);
        pass_once(&mut rig);
    }

    let command = atu::REGISTER.to_le_bytes();
    let mut waited = 0;
    loop {
        assert_eq!(try_read(&mut rig, &greedy, atu::STATUS), None);
        let written = rig.machine.write(other.function, other.attachment, 0, atu::COMMAND, &command).unwrap();
        if written == Access::Done {
            break;
        }

        pass_once(&mut rig);
        waited += 1;
        assert!(waited <= 3, "the command has waited for {waited} passes");
    }

    assert!(waited > 0, "the commands in the ring are within the budget");
    assert_eq!(try_read(&mut rig, &other, atu::STATUS), Some(atu::DONE));
}

#[test]
fn expensive_commands_in_a_ring_are_carried_out_in_order_within_the_budget() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    let writes = post_expensive_commands(&mut rig, &client);

    let mut passes = 0_u64;
    let status = loop {
        let before = visits(&mut rig);
        if let Some(status) = try_read(&mut rig, &client, atu::STATUS) {
            break status;
        }

        pass_once(&mut rig);
        passes += 1;
        assert!(visits(&mut rig) - before <= MAX_VISITS_PER_PASS, "pass {passes}");

        // The writes carried out are the first ones posted, and have the results that they have
        // alone.
        let counters = rig.machine.attachment_counters(client.function, client.attachment).unwrap();
        let done = &writes[..counters.posted_writes as usize];
        let writes_of_pages = done.iter().filter(|write| write.offset == atu::PAGES).count() as u64;
        // A page is registered between two writes of the register `PAGES`.
        let is_between = writes_of_pages % 2 == 1 && done.last() == Some(&writes[14]);
        let registered = writes_of_pages / 2 + u64::from(is_between);
        let refused = done.len() as u64 - writes_of_pages - registered;
        assert_eq!(client.mirror_word(mirror::ERRORS), refused);
        assert_eq!(rig.counter(0, "atu_entries"), registered);
    };

    assert_eq!(status, atu::DONE, "of the last command, which registers a page");
    let expensive = 3 * writes.len() as u64 / 16;
    assert!(passes >= expensive, "{passes} passes for {expensive} commands, each of a pass's budget");
    assert_eq!(client.last_error(), (error::ATU, atu::COMMAND));
}

#[test]
fn a_registration_of_too_many_mappings_reads_none_of_them() {
    let mut rig = Rig::pair();
    let client = rig.attach(0, 0);
    map_most_expensive(&mut rig, &client);
    // Another page fills the hole: one mapping too many.
    let _memory = rig.map(&client, (MOST_EXPENSIVE - 2) * 4096, 4096);

    let before = visits(&mut rig);

    assert_eq!(rig.register(&client, 0, MOST_EXPENSIVE, page::SIZE_4K, OPEN_TO_ALL), Err(atu::SCATTERED));
    assert_eq!(
        rig.register(&client, 0, MOST_EXPENSIVE + 1, page::SIZE_4K, OPEN_TO_ALL),
        Err(atu::NOT_MAPPED)
    );
    assert!(visits(&mut rig) - before <= 2);
}

#[test]
fn repeated_enabling_of_a_scattered_ring_is_within_the_budget() {
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
        assert!(visits(&mut rig) - before <= MAX_VISITS_PER_PASS);
    }

    // Every second write enables the ring and reads 4096 mappings. Eight of these use up a budget.
    assert!(passes >= 4096 / 2 / 8, "{passes} passes for 2048 leases of 4096 mappings");
    assert_eq!(greedy.mirror_word(mirror::ERRORS), 0);
}
