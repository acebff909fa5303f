//! Clients that answer messages for their memory slowly: what that costs them, and what it costs others.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::VecDeque;

use common::{
    Rig, plain_link,
    rma::{OPEN, Peer},
};
use nicforge_core::{
    context::Outgoing,
    dma::{DmaBacking, DmaPermission},
    fabric::LinkSpec,
    machine::Next,
    time::Nanos,
};
use nicforge_extoll::{Topology, wire::CHANNELS};
use nicforge_hwi::{
    extoll_atu::page,
    extoll_rma::{Command, command, notify, status},
};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// Time between two turns of the machine.
const TICK: u64 = MILLISECOND / 2;
/// Time that one slow client may take from another client's commands in [`WINDOW`].
const HELD: u64 = 100 * MILLISECOND;
const WINDOW: u64 = 5 * SECOND;
/// IOVA and size of memory that is reached by messages.
const REMOTE_BASE: u64 = 0x10_0000_0000;
const BYTES: u64 = 1 << 20;
const DONE: (u8, u8) = (notify::REQUESTER, status::DONE);
const WITHDRAWN: (u8, u8) = (notify::REQUESTER, status::WITHDRAWN);

/// A client whose memory is reached by messages. It answers one message at a time, each `delay` after the last one.
struct Slow {
    peer: Peer,
    nla: u64,
    bytes: Vec<u8>,
    delay: u64,
    last: Nanos,
    waiting: VecDeque<Outgoing>,
}

impl Slow {
    fn new(rig: &mut Rig, node: u32, vpid: u16, delay: u64) -> Self {
        let peer = rig.unregistered_peer(node, vpid, 4096, 4096);
        let nla = Self::register(rig, &peer);
        let (bytes, waiting) = (vec![0; BYTES as usize], VecDeque::new());
        Self { peer, nla, bytes, delay, last: Nanos::ZERO, waiting }
    }

    fn register(rig: &mut Rig, peer: &Peer) -> u64 {
        let (function, who) = (peer.client.function, peer.client.who);
        let permission = DmaPermission::READ_WRITE;
        rig.machine.dma_map(function, who, REMOTE_BASE, BYTES, permission, DmaBacking::Remote).unwrap();
        rig.register(&peer.client, REMOTE_BASE, BYTES / 4096, page::SIZE_4K, OPEN).unwrap()
    }

    /// Takes a message, and answers the first one when it is time.
    fn turn(&mut self, rig: &mut Rig) {
        while rig.now >= self.last.after(self.delay)
            && let Some(message) = self.waiting.pop_front()
        {
            self.answer(rig, message);
            self.last = rig.now;
        }
    }

    fn answer(&mut self, rig: &mut Rig, message: Outgoing) {
        match message {
            Outgoing::DmaRead { id, function, attachment, iova, length } => {
                let at = (iova - REMOTE_BASE) as usize;
                let bytes = &self.bytes[at..at + length];
                rig.machine.dma_read_done(function, attachment, id, Ok(bytes)).unwrap();
            }
            Outgoing::DmaWrite { id, function, attachment, iova, data } => {
                let at = (iova - REMOTE_BASE) as usize;
                self.bytes[at..at + data.len()].copy_from_slice(&data);
                rig.machine.dma_write_done(function, attachment, id, Ok(())).unwrap();
            }
        }
    }

    fn is_for(&self, message: &Outgoing) -> bool {
        let (Outgoing::DmaRead { function, attachment, .. }
        | Outgoing::DmaWrite { function, attachment, .. }) = message;
        (*function, *attachment) == (self.peer.client.function, self.peer.client.who)
    }
}

/// Two cards, joined by a link with as many credits as a machine file gives it.
fn rig() -> Rig {
    let link = LinkSpec { credits: vec![32; CHANNELS], ..plain_link() };
    Rig::with(&Topology::full_mesh(2).unwrap(), 16, &link, |_| {})
}

/// Lets a tick pass, in which clients get their messages and answer what is due.
fn tick(rig: &mut Rig, slow: &mut [Slow]) {
    for _ in 0..1000 {
        let busy = rig.machine.step(rig.now, 64) == Next::Now;
        let mut came = false;
        while let Some(message) = rig.machine.pop_outgoing() {
            let owner = slow.iter_mut().find(|owner| owner.is_for(&message));
            owner.unwrap().waiting.push_back(message);
            came = true;
        }
        slow.iter_mut().for_each(|owner| owner.turn(rig));
        if !busy && !came {
            break;
        }
    }
    rig.now = rig.now.after(TICK);
}

/// A client that posts one command after the other, each when the last one has ended.
struct Innocent {
    peer: Peer,
    command: Command,
    since: Option<Nanos>,
    ended: u64,
    /// Nanoseconds that commands took beyond the few ticks of an idle card.
    held: u64,
    failed: Vec<(u8, u8)>,
}

impl Innocent {
    fn new(peer: Peer, command: Command) -> Self {
        Self { peer, command, since: None, ended: 0, held: 0, failed: Vec::new() }
    }

    fn turn(&mut self, rig: &mut Rig) {
        let Some(since) = self.since else {
            assert!(rig.post(&self.peer, self.command));
            self.since = Some(rig.now);
            return;
        };
        for told in self.peer.told() {
            self.failed.extend((told != DONE).then_some(told));
            self.held += (rig.now.0 - since.0).saturating_sub(2 * TICK);
            self.ended += 1;
            self.since = None;
        }
    }

    fn held_until(&self, now: Nanos) -> u64 {
        self.held + self.since.map_or(0, |since| (now.0 - since.0).saturating_sub(2 * TICK))
    }
}

/// Posts a command some times, as far as it is taken: more than a slow client takes.
fn flood(rig: &mut Rig, from: &mut Peer, command: Command) {
    from.take_all();
    let _ = (0..3).all(|_| rig.post(from, command));
}

/// The command of the clients that attack together.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Gets,
    Puts,
    /// Puts whose own memory is reached by messages, which are answered at once.
    StagedPuts,
}

/// Node 0's clients flood the memory of `owners` slow clients of node 1. Returns an innocent command's time in the queues, and its count.
fn beside(attack: Attack, owners: u16, delay: u64, window: u64) -> (u64, u64) {
    let mut rig = rig();
    let target = rig.peer(1, 0, 4096);
    let source = rig.peer(0, 0, 4096);
    let put = Command::new(1, 0, command::PUT, notify::REQUESTER, 8, source.nla, target.nla);
    let mut innocent = Innocent::new(source, put);
    let mut slow: Vec<_> = (1..=owners).map(|vpid| Slow::new(&mut rig, 1, vpid, delay)).collect();
    let mut helpers: Vec<_> = match attack {
        Attack::StagedPuts => Vec::new(),
        _ => (1..16).map(|vpid| rig.peer(0, vpid, 4096)).collect(),
    };
    if matches!(attack, Attack::StagedPuts) {
        slow.extend((1..16).map(|vpid| Slow::new(&mut rig, 0, vpid, 0)));
    }
    let targets: Vec<_> = (0..owners).map(|index| (index + 1, slow[usize::from(index)].nla)).collect();

    let start = rig.now;
    while rig.now < start.after(window) {
        let mut turn = 0;
        let mut next = |own: u64| {
            let (vpid, nla) = targets[turn % targets.len()];
            turn += 1;
            match attack {
                Attack::Gets => Command::new(1, vpid, command::GET, 0, 8, nla, own),
                _ => Command::new(1, vpid, command::PUT, 0, 8, own, nla),
            }
        };
        for helper in &mut helpers {
            let command = next(helper.nla);
            flood(&mut rig, helper, command);
        }
        for helper in slow.iter_mut().skip(owners.into()) {
            if matches!(attack, Attack::StagedPuts) {
                let command = next(helper.nla);
                flood(&mut rig, &mut helper.peer, command);
            }
        }
        innocent.turn(&mut rig);
        tick(&mut rig, &mut slow);
    }

    assert_eq!(innocent.failed, [], "{attack:?}");
    eprintln!(
        "{attack:?} {owners} {delay} {} {} {}",
        innocent.held_until(rig.now),
        innocent.ended,
        rig.counter(1, "rma_hurried")
    );
    (innocent.held_until(rig.now), innocent.ended)
}

#[test]
fn a_slow_owner_of_memory_holds_no_innocent_command_for_long() {
    for attack in [Attack::Gets, Attack::Puts, Attack::StagedPuts] {
        for delay in [60, 90] {
            let (held, ended) = beside(attack, 1, delay * MILLISECOND, WINDOW);
            assert!(held <= HELD, "{attack:?}, {delay} ms an answer: held for {held} ns, {ended} ended");
            assert!(ended >= 1000, "{attack:?}, {delay} ms an answer: {ended} ended");
        }
    }
}

#[test]
fn slow_owners_of_a_card_together_hold_no_innocent_command_for_long() {
    for attack in [Attack::Gets, Attack::Puts] {
        let (held, ended) = beside(attack, 3, 90 * MILLISECOND, WINDOW);
        assert!(held <= 2 * HELD, "{attack:?}: held for {held} ns, {ended} ended");
    }
}
