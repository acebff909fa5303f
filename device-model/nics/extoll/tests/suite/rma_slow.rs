//! Clients that answer messages for their memory slowly: the effect on themselves and on others.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;

use crate::common::{
    Rig, plain_link,
    rma::{OPEN_TO_ALL, Peer},
};
use nicforge_core::{context::Outgoing, fabric::LinkSpec, machine::Next, time::Nanos};
use nicforge_extoll::{Topology, packet::CHANNELS};
use nicforge_hwi::{
    extoll_atu::page,
    extoll_rma::{Command, command, notify, status},
};
use nicforge_test_kit::{ClientMemory, take_messages};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// Time between two passes of the machine.
const TICK: u64 = MILLISECOND / 2;
/// Time between two passes of a test of staging buffers, which a card checks again after as long.
const FINE_TICK: u64 = TICK / 25;
/// Time for which a test runs.
const WINDOW: u64 = 5 * SECOND;
/// Time for which one slow client may hold another client's commands in [`WINDOW`].
const MAX_HELD: u64 = 100 * MILLISECOND;
/// Time for which all slow clients of a card together may hold them.
const MAX_HELD_BY_ALL: u64 = 150 * MILLISECOND;
/// IOVA of memory that is accessed by DMA messages.
const REMOTE_BASE: u64 = 0x10_0000_0000;
/// Bytes of such memory.
const BYTES: u64 = 1 << 20;
const DONE: (u8, u8) = (notify::REQUESTER, status::DONE);
const WITHDRAWN: (u8, u8) = (notify::REQUESTER, status::WITHDRAWN);

/// A client whose memory is accessed by DMA messages. It answers one message at a time, each
/// `delay` nanoseconds after the last one.
struct Slow {
    peer: Peer,
    nla: u64,
    memory: ClientMemory,
    delay: u64,
    /// Time of the last answer.
    last: Nanos,
    /// Messages that it has not answered.
    waiting: VecDeque<Outgoing>,
}

impl Slow {
    /// Attaches a client, and registers its memory for all VPIDs.
    fn new(rig: &mut Rig, node: u32, vpid: u16, delay: u64) -> Self {
        let peer = rig.unregistered_peer(node, vpid, 4096, 4096);
        let mut memory = ClientMemory::new(peer.client.id());
        memory.map_remote(&mut rig.machine, REMOTE_BASE, BYTES as usize);
        let nla = rig.register(&peer.client, REMOTE_BASE, BYTES / 4096, page::SIZE_4K, OPEN_TO_ALL).unwrap();
        Self { peer, nla, memory, delay, last: Nanos::ZERO, waiting: VecDeque::new() }
    }

    /// Answers the first messages that are due.
    fn poll(&mut self, rig: &mut Rig) {
        while rig.machine.now() >= self.last.after(self.delay)
            && let Some(message) = self.waiting.pop_front()
        {
            self.memory.answer_message(&mut rig.machine, &message);
            self.last = rig.machine.now();
        }
    }

    /// Returns whether a message is for this client.
    fn is_for(&self, message: &Outgoing) -> bool {
        let (Outgoing::DmaRead { function, attachment, .. }
        | Outgoing::DmaWrite { function, attachment, .. }) = message;
        (*function, *attachment) == (self.peer.client.function, self.peer.client.attachment)
    }
}

/// Returns two cards, joined by a link with as many credits as a machine file's default.
fn rig() -> Rig {
    let link = LinkSpec { credits: vec![32; CHANNELS], ..plain_link() };
    Rig::with(&Topology::full_mesh(2).unwrap(), 16, &link, |_| {})
}

/// Passes one tick, in which clients get their messages and answer those that are due.
fn tick(rig: &mut Rig, slow: &mut [Slow]) {
    pass(rig, slow, TICK);
}

/// As [`tick`], of `nanoseconds` nanoseconds.
fn pass(rig: &mut Rig, slow: &mut [Slow], nanoseconds: u64) {
    for _ in 0..1000 {
        let busy = rig.machine.step(64) == Next::Now;
        let mut has_messages = false;
        for message in take_messages(&mut rig.machine) {
            let owner = slow.iter_mut().find(|owner| owner.is_for(&message));
            owner.unwrap().waiting.push_back(message);
            has_messages = true;
        }
        slow.iter_mut().for_each(|owner| owner.poll(rig));
        if !busy && !has_messages {
            break;
        }
    }

    rig.machine.advance(nanoseconds);
}

/// A client that posts commands one after the other, each when the previous one has ended.
struct WellBehavedClient {
    peer: Peer,
    command: Command,
    /// The time at which the command in flight was posted.
    since: Option<Nanos>,
    /// Number of commands that have ended.
    ended: u64,
    /// Nanoseconds that commands took beyond the tick of an idle card.
    held: u64,
    /// Roles and statuses of failed commands.
    failed: Vec<(u8, u8)>,
}

impl WellBehavedClient {
    fn new(peer: Peer, command: Command) -> Self {
        Self { peer, command, since: None, ended: 0, held: 0, failed: Vec::new() }
    }

    /// Posts a command if none is in flight, and otherwise takes its notification if it has ended.
    fn poll(&mut self, rig: &mut Rig) {
        let Some(since) = self.since else {
            assert!(rig.post(&self.peer, self.command));
            self.since = Some(rig.machine.now());
            return;
        };
        for notified in self.peer.outcomes() {
            self.failed.extend((notified != DONE).then_some(notified));
            self.held += (rig.machine.now().0 - since.0).saturating_sub(TICK);
            self.ended += 1;
            self.since = None;
        }
    }

    /// Returns the time for which commands were held, the present one included.
    fn time_held(&self, now: Nanos) -> u64 {
        self.held + self.since.map_or(0, |since| (now.0 - since.0).saturating_sub(TICK))
    }
}

/// Posts a command up to twice, as far as the card takes it. In each pass that is more than a slow
/// client answers.
fn flood(rig: &mut Rig, from: &mut Peer, command: Command) {
    from.take_all();
    let _ = (0..2).all(|_| rig.post(from, command));
}

/// The commands by which clients of node 0 reach the memory of slow clients of node 1.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Gets,
    Puts,
    /// Puts from memory that is accessed by DMA messages, which are answered at once.
    StagedPuts,
}

impl Attack {
    /// Returns a command between 8 bytes of a slow client, by its VPID and address, and those at
    /// the address `own`.
    fn command(self, (vpid, nla): (u16, u64), own: u64) -> Command {
        match self {
            Self::Gets => Command::new(1, vpid, command::GET, 0, 8, nla, own),
            _ => Command::new(1, vpid, command::PUT, 0, 8, own, nla),
        }
    }
}

/// Floods the memory of `owners` slow clients for a window. Returns how long an innocent client's
/// commands were held, and how many have ended.
fn delay_by_slow_clients(attack: Attack, owners: u16, delay: u64) -> (u64, u64) {
    let mut rig = rig();
    let (target, source) = (rig.peer(1, 0, 4096), rig.peer(0, 0, 4096));
    let put = Command::new(1, 0, command::PUT, notify::REQUESTER, 8, source.nla, target.nla);
    let mut innocent = WellBehavedClient::new(source, put);

    let mut slow: Vec<_> = (1..=owners).map(|vpid| Slow::new(&mut rig, 1, vpid, delay)).collect();
    let targets: Vec<_> = slow.iter().map(|owner| (owner.peer.client.vpid, owner.nla)).collect();
    let mut helpers = Vec::new();
    match attack {
        Attack::StagedPuts => slow.extend((1..16).map(|vpid| Slow::new(&mut rig, 0, vpid, 0))),
        _ => helpers.extend((1..16).map(|vpid| rig.peer(0, vpid, 4096))),
    }

    let start = rig.machine.now();
    while rig.machine.now() < start.after(WINDOW) {
        let mut victims = targets.iter().cycle();
        for helper in &mut helpers {
            let command = attack.command(*victims.next().unwrap(), helper.nla);
            flood(&mut rig, helper, command);
        }
        for helper in slow.iter_mut().skip(owners.into()) {
            let command = attack.command(*victims.next().unwrap(), helper.nla);
            flood(&mut rig, &mut helper.peer, command);
        }
        innocent.poll(&mut rig);
        tick(&mut rig, &mut slow);
    }

    assert_eq!(innocent.failed, [], "{attack:?}");
    assert!(rig.counter(1, "rma_over_budget") > 0, "{attack:?}: the side queues were full");
    (innocent.time_held(rig.machine.now()), innocent.ended)
}

#[test]
fn a_slow_owner_of_memory_delays_commands_of_others_for_a_bounded_time() {
    let attacks = [Attack::Gets, Attack::Puts, Attack::StagedPuts];
    for (attack, delay) in attacks.map(|attack| (attack, 90)).into_iter().chain([(Attack::Gets, 60)]) {
        let (held, ended) = delay_by_slow_clients(attack, 1, delay * MILLISECOND);
        assert!(held <= MAX_HELD, "{attack:?}, {delay} ms an answer: held for {held} ns, {ended} ended");
        assert!(ended >= 4000, "{attack:?}, {delay} ms an answer: {ended} ended");
    }
}

#[test]
fn slow_owners_of_one_card_together_delay_commands_of_others_for_a_bounded_time() {
    for attack in [Attack::Gets, Attack::Puts] {
        let (held, ended) = delay_by_slow_clients(attack, 3, 90 * MILLISECOND);
        assert!(held <= MAX_HELD_BY_ALL, "{attack:?}: held for {held} ns, {ended} ended");
    }
}

#[test]
fn a_requester_with_slow_memory_blocks_neither_replies_nor_other_staging_buffers() {
    let mut rig = rig();
    let owner = Slow::new(&mut rig, 0, 1, 0);
    let (remote, local) = (rig.peer(0, 0, 4096), rig.peer(1, 0, 4096));
    let near = rig.peer(1, 1, 4096);
    // One innocent client reads memory of the owner, the other one mapped memory.
    let get = |(vpid, from), to| Command::new(0, vpid, command::GET, notify::REQUESTER, 8, from, to);
    let staged = get((1, owner.nla), local.nla);
    let mapped = get((0, remote.nla), near.nla);
    let mut innocents = [WellBehavedClient::new(local, staged), WellBehavedClient::new(near, mapped)];
    let mut slow: Vec<_> = (2..5).map(|vpid| Slow::new(&mut rig, 1, vpid, 90 * MILLISECOND)).collect();
    let address = owner.nla;
    slow.push(owner);

    let start = rig.machine.now();
    while rig.machine.now() < start.after(WINDOW) {
        for attacker in &mut slow[..3] {
            let command = get((1, address), attacker.nla);
            flood(&mut rig, &mut attacker.peer, command);
        }
        for _ in 0..TICK / FINE_TICK {
            innocents.iter_mut().for_each(|innocent| innocent.poll(&mut rig));
            pass(&mut rig, &mut slow, FINE_TICK);
        }
    }

    for innocent in &innocents {
        let held = innocent.time_held(rig.machine.now());
        assert_eq!(innocent.failed, []);
        assert!(held <= MAX_HELD_BY_ALL, "held for {held} ns, {} ended", innocent.ended);
    }
}

/// Runs until a client has notifications of `commands` commands, and returns the role and status of
/// each.
fn wait_for_notifications(
    rig: &mut Rig,
    slow: &mut [Slow],
    peer: &mut Peer,
    commands: usize,
) -> Vec<(u8, u8)> {
    let limit = rig.machine.now().after(60 * SECOND);
    let mut notified = peer.outcomes();

    while notified.len() < commands {
        assert!(rig.machine.now() < limit, "{} of {commands} have ended", notified.len());
        tick(rig, slow);
        notified.extend(peer.outcomes());
    }
    notified
}

#[test]
fn a_client_that_answers_at_once_is_served_as_if_nothing_were_bounded() {
    let mut rig = rig();
    let mut slow = [Slow::new(&mut rig, 1, 1, 0)];
    let nla = slow[0].nla;
    let mut peers: Vec<_> = (0..16).map(|vpid| rig.peer(0, vpid, BYTES)).collect();
    let length = (BYTES / 16) as u32;
    for (rank, peer) in (0..).zip(&peers) {
        peer.write(0, &vec![rank as u8 + 1; BYTES as usize]);
    }

    // Each client has its own part of the memory. Much more is in flight than a side queue holds.
    for round in 0..8 {
        for (rank, peer) in (0..).zip(&peers) {
            let remote = nla + rank * u64::from(length);
            let put = Command::new(1, 1, command::PUT, notify::REQUESTER, length, peer.nla, remote);
            let back = peer.nla + u64::from(length);
            let get = Command::new(1, 1, command::GET, notify::REQUESTER, length, remote, back);
            for _ in 0..8 {
                assert!(rig.post(peer, put) && rig.post(peer, get), "round {round}");
            }
        }
        for (rank, peer) in (0..).zip(&mut peers) {
            assert_eq!(wait_for_notifications(&mut rig, &mut slow, peer, 16), [DONE; 16], "round {round}");
            assert!(peer.read(length.into(), length as usize).iter().all(|&byte| byte == rank + 1));
        }
    }
    assert_eq!(rig.counter(1, "rma_over_budget"), 0);
    assert_eq!(rig.counter(1, "rma_completed") + rig.counter(0, "rma_completed"), 8 * 16 * 16);
}

#[test]
fn a_slow_client_without_neighbours_completes_every_transfer() {
    let mut rig = rig();
    let mut slow = [Slow::new(&mut rig, 1, 1, 90 * MILLISECOND)];
    let mut local = rig.peer(0, 0, BYTES);
    local.write(0, &vec![7; BYTES as usize]);

    for command in [command::PUT, command::GET] {
        // A piece takes 90 ms, so that these 16 take longer than a budget.
        let (source, destination) =
            if command == command::PUT { (local.nla, slow[0].nla) } else { (slow[0].nla, local.nla) };
        let command = Command::new(1, 1, command, notify::REQUESTER, BYTES as u32, source, destination);
        for _ in 0..3 {
            assert!(rig.post(&local, command));
            assert_eq!(wait_for_notifications(&mut rig, &mut slow, &mut local, 1), [DONE]);
        }
        // Puts are posted, so the client has yet to answer the last ones.
        while !slow[0].waiting.is_empty() {
            tick(&mut rig, &mut slow);
        }
    }
    assert!(slow[0].memory.read(REMOTE_BASE, BYTES as usize).iter().all(|&byte| byte == 7));
    assert_eq!(rig.counter(1, "rma_over_budget"), 0);
}

#[test]
fn an_unresponsive_client_is_served_again_when_it_answers_and_after_a_reset() {
    let mut rig = rig();
    let mut slow = [Slow::new(&mut rig, 1, 1, u64::MAX / 2)];
    let mut local = rig.peer(0, 0, BYTES);
    let get = |nla, to| Command::new(1, 1, command::GET, notify::REQUESTER, 8, nla, to);
    for round in 0..4 {
        // The client answers nothing, and all waiting commands end together.
        (slow[0].last, slow[0].delay) = (rig.machine.now(), 3600 * SECOND);
        let command = get(slow[0].nla, local.nla);
        assert!((0..8).all(|_| rig.post(&local, command)));
        let start = rig.machine.now();
        assert_eq!(
            wait_for_notifications(&mut rig, &mut slow, &mut local, 8),
            [WITHDRAWN; 8],
            "round {round}"
        );
        assert!(rig.machine.now().0 - start.0 <= 110 * MILLISECOND, "round {round}");

        if round % 2 == 0 {
            slow[0].delay = 0;
            tick(&mut rig, &mut slow);
        } else {
            slow[0].waiting.clear();
            reset(&mut rig, &mut slow[0]);
            slow[0].delay = 0;
        }
        let command = get(slow[0].nla, local.nla);
        assert!((0..8).all(|_| rig.post(&local, command)));
        assert_eq!(wait_for_notifications(&mut rig, &mut slow, &mut local, 8), [DONE; 8], "round {round}");
    }
}

/// Resets a client, which then registers its memory again.
fn reset(rig: &mut Rig, owner: &mut Slow) {
    let (function, attachment) = (owner.peer.client.function, owner.peer.client.attachment);
    rig.machine.reset_attachment(function, attachment).unwrap();
    rig.run();
    rig.enable_bus_master(function, attachment);
    let others = rig.register(&owner.peer.client, REMOTE_BASE, BYTES / 4096, page::SIZE_4K, OPEN_TO_ALL);
    owner.nla = others.unwrap();
}

#[test]
fn packets_in_a_side_queue_end_when_their_owner_does() {
    for deregistered in [true, false] {
        let mut rig = rig();
        let mut slow = [Slow::new(&mut rig, 1, 1, 3600 * SECOND)];
        slow[0].last = rig.machine.now();
        let mut local = rig.peer(0, 0, BYTES);
        let command = Command::new(1, 1, command::GET, notify::REQUESTER, 8, slow[0].nla, local.nla);
        assert!((0..8).all(|_| rig.post(&local, command)));
        (0..20).for_each(|_| tick(&mut rig, &mut slow));
        assert_eq!(local.outcomes(), []);

        let client = &slow[0].peer.client;
        if deregistered {
            rig.deregister(client, slow[0].nla);
        } else {
            rig.kill(client);
        }
        (0..4).for_each(|_| tick(&mut rig, &mut slow));
        let notified = local.outcomes();
        assert_eq!(notified.len(), 8);
        assert!(notified.iter().all(|notified| *notified != DONE), "{notified:?}");
        assert_eq!(rig.machine.fabric().packets_in_use(), 0);
    }
}

#[test]
fn a_get_that_ends_with_its_memory_leaves_the_staging_buffer_to_other_gets() {
    let mut rig = rig();
    let mut slow = [Slow::new(&mut rig, 1, 1, 3600 * SECOND)];
    slow[0].last = rig.machine.now();
    let mut local = rig.peer(0, 0, BYTES);
    let get = |nla, to| Command::new(1, 1, command::GET, notify::REQUESTER, 8, nla, to);

    // The card asks for the data of this get, and their memory is gone before the client answers.
    assert!(rig.post(&local, get(slow[0].nla, local.nla)));
    tick(&mut rig, &mut slow);
    assert_eq!(slow[0].waiting.len(), 1);
    rig.deregister(&slow[0].peer.client, slow[0].nla);
    let refused = (notify::REQUESTER, status::REMOTE_ADDRESS);
    assert_eq!(wait_for_notifications(&mut rig, &mut slow, &mut local, 1), [refused]);

    // The answer arrives later than the end of its get.
    slow[0].delay = 0;
    tick(&mut rig, &mut slow);

    let anew = rig.register(&slow[0].peer.client, REMOTE_BASE, BYTES / 4096, page::SIZE_4K, OPEN_TO_ALL);
    slow[0].nla = anew.unwrap();
    for _ in 0..3 {
        assert!(rig.post(&local, get(slow[0].nla, local.nla)));
        assert_eq!(wait_for_notifications(&mut rig, &mut slow, &mut local, 1), [DONE]);
    }
}

#[test]
fn a_get_that_is_refused_after_its_first_part_ends_as_withdrawn() {
    let mut rig = rig();
    let mut slow = [Slow::new(&mut rig, 1, 1, 90 * MILLISECOND)];
    slow[0].last = rig.machine.now();
    let mut local = rig.peer(0, 0, BYTES);
    let (from, to) = (slow[0].nla, local.nla);
    let get = Command::new(1, 1, command::GET, notify::REQUESTER, 131_072, from, to);
    assert!(rig.post(&local, get));

    // The client has answered one of two messages.
    let limit = rig.machine.now().after(SECOND);
    while rig.counter(0, "rma_bytes_written") == 0 {
        assert!(rig.machine.now() < limit);
        tick(&mut rig, &mut slow);
    }

    rig.deregister(&slow[0].peer.client, from);
    assert_eq!(wait_for_notifications(&mut rig, &mut slow, &mut local, 1), [WITHDRAWN]);
    assert_eq!(rig.counter(0, "rma_bytes_written"), 65_536);
}
