//! Processes of one card share a link: each gets its share, and none is declared lost because the
//! others fill the link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use nicforge_core::time::Nanos;
use nicforge_driver::{Deadline, Device};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;
use nicforge_velo::{Address, Config, Error, PeerLink, Port};

/// Two cards with a link that takes 64 packets in a pass.
const MACHINE: &str = "name = \"starved\"\n[[extoll]]\nmesh = 2\nvpids = 8\n";
/// The interval between passes of an engine that rarely gets the processor. The watchdog is 16
/// intervals.
const TICK: u64 = 40_000_000;
/// A time later than every event by the real clock.
const START: u64 = 1 << 50;
/// More messages than a link takes in a pass.
const WINDOW: u32 = 256;

/// Two processes, one of which sends messages to the other one.
struct Pair {
    sender: Port,
    receiver: Port,
    link: PeerLink,
    sent: u64,
    received: u64,
}

/// Opens a VPID of a node with more slots than messages arrive in a pass.
fn open_port(machine: &Arc<LocalMachine>, node: u32, vpid: u16) -> Port {
    let backing = machine.open_named(&format!("ex{node}"), &format!("vpid{vpid}")).unwrap();
    let config = Config { slots: Some(2048), window: WINDOW, ..Config::default() };
    Port::open(Device::from_backing(backing).unwrap(), config).unwrap()
}

/// Connects a process of node 0 to another one of `node`.
fn pair(machine: &Arc<LocalMachine>, vpid: u16, node: u32) -> Pair {
    let to = Address { node, vpid: vpid + 4 };
    let (mut sender, receiver) = (open_port(machine, 0, vpid), open_port(machine, to.node, to.vpid));
    let link = sender.connect(to, Deadline::never(), None).unwrap();
    Pair { sender, receiver, link, sent: 0, received: 0 }
}

impl Pair {
    /// Sends as many messages as there is credit for, and takes those that have arrived, which must
    /// be in order.
    fn send_and_receive(&mut self) {
        loop {
            match self.sender.send_nb(self.link, 0, &self.sent.to_le_bytes()) {
                Ok(()) => self.sent += 1,
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("after {} messages: {error}", self.sent),
            }
        }

        while let Some(message) = self.receiver.poll().unwrap() {
            assert_eq!(message.quadword(0), self.received);
            self.received += 1;
        }

        self.sender.progress().unwrap();
    }
}

/// Lets four pairs send continuously to `node`, and checks that none gets less than half of what
/// another one gets.
fn each_pair_gets_a_fair_share(node: u32) {
    let (machine, _) = build(&parse(MACHINE, "a test", &families()).unwrap()).unwrap();
    let machine = LocalMachine::new(machine);
    let mut pairs: Vec<_> = (0..4).map(|vpid| pair(&machine, vpid, node)).collect();
    let mut now = START;

    for _ in 0..400 {
        pairs.iter_mut().for_each(Pair::send_and_receive);
        machine.with(|machine| {
            now += TICK;
            machine.step(Nanos(now), 64);
        });
    }

    let received: Vec<_> = pairs.iter().map(|pair| pair.received).collect();
    let (minimum, maximum) = (received.iter().min().unwrap(), received.iter().max().unwrap());

    assert!(*minimum > 0 && 2 * minimum >= *maximum, "{received:?}");
}

#[test]
fn pairs_share_the_link_between_cards_fairly() {
    each_pair_gets_a_fair_share(1);
}

#[test]
fn pairs_share_the_loopback_of_a_card_fairly() {
    each_pair_gets_a_fair_share(0);
}
