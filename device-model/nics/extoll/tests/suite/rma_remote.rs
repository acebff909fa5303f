//! RMA with memory that is accessed only by DMA messages to the client.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;

use crate::common::{
    Rig,
    rma::{OPEN_TO_ALL, Peer},
};
use nicforge_core::{context::Outgoing, machine::Next};
use nicforge_hwi::{
    extoll::reg,
    extoll_atu::page,
    extoll_rma::{Command, command, notify, status},
};
use nicforge_test_kit::{ClientMemory, take_messages};

/// Notifications for all roles of a command.
const ALL: u8 = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;
const DONE: u8 = status::DONE;
/// Bytes of each client's memory.
const BYTES: u64 = 1 << 20;
/// Bytes of the first of two mappings of the memory that is accessed by DMA messages. A transfer
/// across their border is split.
const FIRST_MAPPING: u64 = 9 * 4096;
/// Entries of the notification queue of a client with such memory, and bytes of its mapped memory,
/// which it does not use.
const ENTRIES: u64 = 64;
const UNUSED_BYTES: u64 = 4096;
/// Offset of a transfer in the mapped memory, and in the memory that is accessed by DMA messages.
const MAPPED_OFFSET: u64 = 5;
const REMOTE_OFFSET: u64 = 7;
/// IOVA of the memory that is accessed by DMA messages.
const REMOTE_BASE: u64 = 0x10_0000_0000;

/// A client whose memory is accessed by DMA messages.
struct Remote {
    peer: Peer,
    memory: ClientMemory,
    nla: u64,
}

impl Remote {
    /// Attaches a client, and registers its memory for all VPIDs.
    fn new(rig: &mut Rig, node: u32, vpid: u16) -> Self {
        let peer = rig.unregistered_peer(node, vpid, UNUSED_BYTES, ENTRIES);
        let mut memory = ClientMemory::new(peer.client.id());
        for (at, length) in [(0, FIRST_MAPPING), (FIRST_MAPPING, BYTES - FIRST_MAPPING)] {
            memory.map_remote(&mut rig.machine, REMOTE_BASE + at, length as usize);
        }

        let nla = rig.register(&peer.client, REMOTE_BASE, BYTES / 4096, page::SIZE_4K, OPEN_TO_ALL).unwrap();
        Self { peer, memory, nla }
    }

    /// Answers messages and runs the machine until nothing moves.
    fn run(&mut self, rig: &mut Rig) {
        let mut waiting = VecDeque::new();
        let mut idle_rounds = 0;
        while idle_rounds < 3 {
            let busy = rig.machine.step(64) == Next::Now;
            waiting.extend(take_messages(&mut rig.machine));

            let Some(message) = waiting.pop_front() else {
                idle_rounds += u32::from(!busy);
                // Retries depend on time, so time advances.
                rig.machine.advance(if busy { 0 } else { 50_000 });
                continue;
            };

            idle_rounds = 0;
            self.memory.answer_message(&mut rig.machine, &message);
        }
    }

    /// Returns bytes of the remote memory.
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        self.memory.read(REMOTE_BASE + offset, length)
    }

    /// Stores bytes into the remote memory.
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(REMOTE_BASE + offset, bytes);
    }
}

/// Steps the machine until nothing moves, and returns the DMA messages to the client, unanswered.
fn run_without_answers(rig: &mut Rig) -> Vec<Outgoing> {
    let mut messages = Vec::new();
    loop {
        let next = rig.machine.step(64);
        let before = messages.len();
        messages.extend(take_messages(&mut rig.machine));
        if next != Next::Now && messages.len() == before {
            return messages;
        }
    }
}

/// Returns bytes that depend on `seed` and their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| ((index ^ index >> 8).wrapping_mul(31) + seed) as u8).collect()
}

/// Returns a put from `from` to the remote memory.
fn put_to(remote: &Remote, from: &Peer, length: u32) -> Command {
    let (node, vpid) = (remote.peer.client.node, remote.peer.client.vpid);
    let (source, destination) = (from.nla + MAPPED_OFFSET, remote.nla + REMOTE_OFFSET);
    Command::new(node, vpid, command::PUT, ALL, length, source, destination)
}

/// Returns a get from the remote memory to `to`.
fn get_from(remote: &Remote, to: &Peer, length: u32) -> Command {
    let (node, vpid) = (remote.peer.client.node, remote.peer.client.vpid);
    let (source, destination) = (remote.nla + REMOTE_OFFSET, to.nla + MAPPED_OFFSET);
    Command::new(node, vpid, command::GET, ALL, length, source, destination)
}

#[test]
fn puts_and_gets_of_others_reach_remote_memory() {
    let mut rig = Rig::pair();
    let mut here = rig.peer(0, 0, BYTES);
    let mut remote = Remote::new(&mut rig, 1, 1);

    for length in [1, 4096, 65_536, 300_000] {
        let bytes = pattern(length.into(), length as usize);
        here.write(MAPPED_OFFSET, &bytes);
        assert!(rig.post(&here, put_to(&remote, &here, length)));
        remote.run(&mut rig);
        assert!(remote.read(REMOTE_OFFSET, length as usize) == bytes);
        assert_eq!(here.outcomes(), [(notify::REQUESTER, DONE)]);
        assert_eq!(remote.peer.outcomes(), [(notify::COMPLETER, DONE)]);

        here.write(MAPPED_OFFSET, &vec![0; length as usize]);
        assert!(rig.post(&here, get_from(&remote, &here, length)));
        remote.run(&mut rig);
        assert!(here.read(MAPPED_OFFSET, length as usize) == bytes);
        assert_eq!(here.outcomes(), [(notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]);
        assert_eq!(remote.peer.outcomes(), [(notify::RESPONDER, DONE)]);
    }

    // An immediate put across the border of the two mappings.
    let at = FIRST_MAPPING - 4;
    let put = Command::new(1, 1, command::IMMEDIATE_PUT, 0, 8, 0x1122, remote.nla + at);
    assert!(rig.post(&here, put));
    remote.run(&mut rig);
    assert_eq!(remote.read(at, 8), 0x1122u64.to_le_bytes());
}

#[test]
fn puts_and_gets_work_with_dma_messages_to_the_requesters_memory() {
    let mut rig = Rig::pair();
    let target = rig.peer(1, 0, BYTES);
    let mut remote = Remote::new(&mut rig, 0, 1);
    let bytes = pattern(1, 300_000);
    remote.write(9, &bytes);

    let commands = [
        Command::new(1, 0, command::PUT, notify::REQUESTER, 300_000, remote.nla + 9, target.nla + 1),
        Command::new(1, 0, command::GET, notify::COMPLETER, 300_000, target.nla + 1, remote.nla + 400_000),
        Command::new(1, 0, command::PUT, 0, 300_000, remote.nla + 400_000, target.nla + 500_000),
    ];

    for command in commands {
        assert!(rig.post(&remote.peer, command));
    }

    remote.run(&mut rig);
    assert!(target.read(1, 300_000) == bytes && remote.read(400_000, 300_000) == bytes);
    assert!(target.read(500_000, 300_000) == bytes);
    assert_eq!(remote.peer.outcomes(), [(notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]);
}

#[test]
fn an_unresponsive_client_delays_others_once_for_a_bounded_time() {
    let mut rig = Rig::pair();
    let mut local = rig.peer(0, 0, BYTES);
    let mut remote = Remote::new(&mut rig, 1, 1);
    let other = rig.peer(1, 2, BYTES);
    let mut unanswered = Vec::new();

    for round in 0..10 {
        assert!(rig.post(&local, get_from(&remote, &local, 100)));
        assert!(rig.put(&local, &other, (0, round * 8, 8), 0));

        let start = rig.machine.now();
        while local.outcomes().is_empty() {
            assert!(rig.machine.now().0 - start.0 < 1_000_000_000, "round {round}");
            unanswered.extend(run_without_answers(&mut rig));
            rig.machine.advance(50_000);
        }

        // The client has some time for its first answer. After that it counts as unresponsive, and
        // commands for its memory end soon.
        let waited = rig.machine.now().0 - start.0;
        assert!(waited <= if round == 0 { 110_000_000 } else { 4_000_000 }, "round {round}: {waited} ns");
    }

    assert_eq!(rig.counter(0, "rma_completed"), 20);

    // The client answers at last, and is served again.
    for message in unanswered {
        remote.memory.answer_message(&mut rig.machine, &message);
    }

    remote.run(&mut rig);
    assert!(rig.post(&local, get_from(&remote, &local, 100)));
    remote.run(&mut rig);
    assert_eq!(local.outcomes(), [(notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]);
}

#[test]
fn watchdog_ends_a_put_whose_requester_does_not_answer_dma_reads() {
    let mut rig = Rig::pair();
    let target = rig.peer(1, 0, BYTES);
    let mut remote = Remote::new(&mut rig, 0, 1);
    remote.write(0, &[9; BYTES as usize]);
    let put = Command::new(1, 0, command::PUT, 0, 100, remote.nla, target.nla);
    assert!(rig.post(&remote.peer, put));

    let mut unanswered = run_without_answers(&mut rig);
    let start = rig.machine.now();

    let notified = loop {
        let notified = remote.peer.outcomes();
        if !notified.is_empty() {
            break notified;
        }
        assert!(rig.machine.now().0 - start.0 < 2 * reg::RMA_WATCHDOG_DEFAULT);
        rig.machine.advance(reg::RMA_WATCHDOG_DEFAULT / 64);
        unanswered.extend(run_without_answers(&mut rig));
    };

    assert_eq!(notified, [(notify::REQUESTER, status::TIMED_OUT)]);
    // The late answers are dropped, and the next put is carried out.
    for message in unanswered {
        remote.memory.answer_message(&mut rig.machine, &message);
    }
    remote.run(&mut rig);

    assert_eq!(target.read(0, 100), [0; 100]);
    assert!(rig.post(&remote.peer, put));
    remote.run(&mut rig);
    assert_eq!(target.read(0, 100), [9; 100]);
}

#[test]
fn a_get_ends_and_writes_nothing_when_its_memory_is_deregistered_while_messages_are_in_flight() {
    let mut rig = Rig::pair();
    let mut here = rig.peer(0, 0, BYTES);
    let mut remote = Remote::new(&mut rig, 1, 1);
    assert!(rig.post(&here, get_from(&remote, &here, 100_000)));

    let message = loop {
        let _ = rig.machine.step(64);
        if let Some(message) = rig.machine.pop_outgoing() {
            break message;
        }
    };

    rig.deregister(&remote.peer.client, remote.nla);
    remote.write(0, &[9; BYTES as usize]);
    remote.memory.answer_message(&mut rig.machine, &message);
    remote.run(&mut rig);

    assert!(here.read(0, 100_100).iter().all(|&byte| byte == 0));
    let notified = here.outcomes();
    assert!(
        notified == [(notify::REQUESTER, status::REMOTE_ADDRESS)]
            || notified == [(notify::REQUESTER, status::WITHDRAWN)],
        "{notified:?}"
    );
}
