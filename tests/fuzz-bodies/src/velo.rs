//! VELO's library against a hostile peer.
//!
//! The peer sends connection messages of any tenant with any number, unrequested answers, and more
//! data than it has credit for. It may read or not, and ends at any point. Another peer on another
//! card is not affected: its messages arrive all, once and in order, throughout.

use std::{sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Device};
use nicforge_machine::in_process::LocalMachine;
use nicforge_velo::{Address, CONTROL_TAG, Config, Error, Filter, MAX_MESSAGE, PeerLink, Port, Waiting};

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 100;
/// Number of messages in a row.
const FLOOD: u32 = 100;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of calls that depend on the hostile peer's answers.
const SHORT: Duration = Duration::from_millis(2);
/// Number of messages that must pass both ways at the end.
const LAST: u64 = 200;
/// The kind of a control message that connects.
const CONNECT: u8 = 1;
/// The kind of a control message that grants credit.
const GRANT_OF_CREDIT: u64 = 2;

/// The port that the hostile one attacks.
const VICTIM: Address = Address { node: 0, vpid: 0 };
/// The victim's other peer.
const WELL_BEHAVED: Address = Address { node: 0, vpid: 1 };
/// The hostile port is alone on its node: ports of one node share slots, and this one sends more
/// messages than it has credit for.
const HOSTILE: Address = Address { node: 1, vpid: 0 };

/// Opens the port with an address.
fn open(machine: &Arc<LocalMachine>, address: Address, config: Config) -> Port {
    let names = (format!("ex{}", address.node), format!("vpid{}", address.vpid));
    let device = Device::from_backing(machine.open_named(&names.0, &names.1).unwrap()).unwrap();
    Port::open(device, config).unwrap()
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = world::local("name = \"velo\"\n[[extoll]]\nmesh = 2\nvpids = 2\nwatchdog_ms = 1\n");
    let config = Config {
        slots: input.pick(&[None, Some(64)]),
        window: input.pick(&[64, 1, 2, 3, u32::MAX]),
        kept: input.pick(&[None, Some(1), Some(8)]),
        waiting: input.pick(&[Waiting::Polling, Waiting::Interrupt]),
        poll_phase: Duration::ZERO,
        ..Config::default()
    };

    let mut world = World::new(&machine, config);
    let mut hostile = Hostile::new(&machine);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        match input.below(16) {
            0..=5 => hostile.send_hostile(&mut input, 1),
            6 => {
                let times = input.below(FLOOD);
                hostile.send_hostile(&mut input, times);
            }
            7 => hostile.read(),
            8 if input.below(4) == 0 => {
                drop(hostile);
                hostile = Hostile::new(&machine);
            }
            8 | 9 => world.connect_or_disconnect(&mut input),
            10 => world.send_to_hostile_vpid(&mut input),
            11 => world.receive(&mut input),
            12 => world.victim.progress().unwrap(),
            13 => {
                let outsider = input.below(4) == 0;
                world.victim.admit(|address| address != HOSTILE || !outsider);
            }
            _ => world.exchange([u64::MAX; 2]),
        }

        machine.settle(input.below(8));
    }

    drop(hostile);
    world.finish();
}

/// The two ports that follow the protocol.
struct World {
    machine: Arc<LocalMachine>,
    victim: Port,
    friend: Port,
    /// The friend's link to the victim, and the victim's link to the friend.
    links: [PeerLink; 2],
    /// The victim's link to the hostile port.
    to_hostile: Option<PeerLink>,
    /// Messages sent on each of `links`, and received from it.
    sent: [u64; 2],
    received: [u64; 2],
}

impl World {
    /// Opens both ports, the victim's with `config`, and connects them.
    fn new(machine: &Arc<LocalMachine>, config: Config) -> Self {
        let mut victim = open(machine, VICTIM, config);
        let mut friend = open(machine, WELL_BEHAVED, Config::default());
        let links = [connect(machine, &mut friend, &mut victim), connect(machine, &mut victim, &mut friend)];

        Self {
            machine: machine.clone(),
            victim,
            friend,
            links,
            to_hostile: None,
            sent: [0; 2],
            received: [0; 2],
        }
    }

    /// Connects the victim to the hostile port, or disconnects it.
    fn connect_or_disconnect(&mut self, input: &mut Input<'_>) {
        match self.to_hostile.take() {
            Some(link) if input.flag() => self.victim.disconnect(link).unwrap(),
            link => {
                let connected = self.victim.connect(HOSTILE, Deadline::after(SHORT), None);
                assert!(
                    matches!(
                        connected,
                        Ok(_) | Err(Error::Timeout { .. } | Error::Device { .. } | Error::PeerGone { .. })
                    ),
                    "{connected:?}"
                );
                self.to_hostile = connected.ok().or(link);
            }
        }
    }

    /// Sends messages of the victim to the hostile port until it refuses one.
    fn send_to_hostile_vpid(&mut self, input: &mut Input<'_>) {
        let Some(link) = self.to_hostile else { return };
        for _ in 0..input.below(FLOOD) {
            // There is credit if the hostile port grants it.
            if self.victim.send_nb(link, 1, &[1; 8]).is_err() {
                break;
            }
        }
    }

    /// Lets the victim wait for a message of some kind.
    fn receive(&mut self, input: &mut Input<'_>) {
        let filter = match input.below(4) {
            0 => Filter::ANY,
            1 => Filter::from(HOSTILE),
            2 => Filter::from(WELL_BEHAVED),
            _ => Filter { tag: Some(input.below(16) as u8), ..Filter::ANY },
        };

        match self.victim.recv(filter, Deadline::after(SHORT), None) {
            Ok(message) => self.record_message(&message),
            Err(
                Error::Timeout { .. }
                | Error::KeptFull { .. }
                | Error::Device { .. }
                | Error::PeerGone { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Counts a message that the victim has received, if it is the friend's.
    fn record_message(&mut self, message: &nicforge_velo::Message) {
        if message.from == WELL_BEHAVED {
            assert_eq!(message.quadword(0), self.received[0], "the friend's messages come in order");
            self.received[0] += 1;
        } else {
            assert_eq!(message.from, HOSTILE);
        }
    }

    /// Sends one message each way, if there is credit and fewer than `maximum` were sent, and takes
    /// arrived ones.
    fn exchange(&mut self, maximum: [u64; 2]) {
        let [to_victim, to_friend] = self.links;
        let directions = [(&mut self.friend, to_victim), (&mut self.victim, to_friend)];

        for (((port, link), sent), maximum) in directions.into_iter().zip(&mut self.sent).zip(maximum) {
            if *sent >= maximum {
                continue;
            }
            match port.send_nb(link, 0, &sent.to_le_bytes()) {
                Ok(()) => *sent += 1,
                // A device error says that messages were lost: those of the victim to the hostile
                // port may have been.
                Err(Error::WouldBlock | Error::Device { .. } | Error::PeerGone { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }

        while let Some(message) = self.friend.poll().unwrap() {
            if message.from == VICTIM {
                assert_eq!(message.quadword(0), self.received[1], "the victim's messages come in order");
                self.received[1] += 1;
            }
        }

        while let Some(message) = self.victim.poll().unwrap() {
            self.record_message(&message);
        }
    }

    /// Checks that all messages pass, after the end of the hostile port.
    fn finish(mut self) {
        let deadline = Deadline::after(LIMIT);
        let maximum = self.sent.map(|sent| sent + LAST);

        while self.received != maximum {
            assert!(!deadline.has_passed(), "{:?} sent, {:?} received", self.sent, self.received);
            self.exchange(maximum);
            self.machine.settle(8);
        }

        assert_eq!(self.friend.check(), Ok(()));
    }
}

/// Connects one port to another and waits for credit.
fn connect(machine: &Arc<LocalMachine>, from: &mut Port, to: &mut Port) -> PeerLink {
    let link = from.connect(to.address(), Deadline::after(LIMIT), None).unwrap();
    let deadline = Deadline::after(LIMIT);

    while from.credits(link) == Some(0) {
        assert!(!deadline.has_passed(), "no credit");
        machine.settle(8);
        to.progress().unwrap();
        from.progress().unwrap();
    }

    link
}

/// A port that keeps no account of credits.
struct Hostile {
    port: Port,
    /// Links to the victim, its friend, and itself.
    links: [PeerLink; 3],
    /// The tenants of these three.
    tenants: [u8; 3],
    /// The numbers of their last known connections to this port. The first one is 1.
    connections: [u8; 3],
}

impl Hostile {
    /// Opens the port, and connects it to both others and to itself.
    fn new(machine: &Arc<LocalMachine>) -> Self {
        let config = Config { flow_control: false, slots: Some(64), ..Config::default() };
        let mut port = open(machine, HOSTILE, config);
        let peer = [VICTIM, WELL_BEHAVED, HOSTILE];
        let links = peer.map(|address| port.connect(address, Deadline::after(LIMIT), None).unwrap());
        let tenants = peer.map(|address| port.tenant_of(address));
        Self { port, links, tenants, connections: [1; 3] }
    }

    /// Sends a control message or any other one `times` times, mostly to the victim.
    fn send_hostile(&mut self, input: &mut Input<'_>, times: u32) {
        let peer = input.pick(&[0, 0, 0, 0, 0, 0, 1, 2]);
        let is_control = input.below(4) > 0;
        let message = if is_control { self.control(input, peer) } else { any_message(input) };
        let tag = if is_control { CONTROL_TAG } else { input.below(16) as u8 };

        for _ in 0..times {
            // A message lost in a full ring is an acceptable case.
            let _ = self.port.send_nb(self.links[peer], tag, &message);
        }
    }

    /// Returns a control message, mostly with the tenants that the library's protocol asks for.
    fn control(&self, input: &mut Input<'_>, peer: usize) -> Vec<u8> {
        let kind = input.pick(&[1, 1, 2, 3, 0, 255]);
        let mostly = |tenant: u8, input: &mut Input<'_>| if input.below(4) > 0 { tenant } else { input.u8() };

        // A grant of credit names its receiver where the other messages name the sender.
        let named = if kind == GRANT_OF_CREDIT { self.tenants[peer] } else { self.tenants[2] };
        let named = mostly(named, input);
        let target = mostly(self.tenants[peer], input);
        let number = match input.below(4) {
            0..=1 => 64,
            _ => input.number32(),
        };
        let connection = self.connections[peer];
        let word = kind
            | u64::from(named) << 8
            | u64::from(target) << 16
            | u64::from(connection) << 24
            | u64::from(number) << 32;
        let mut message = word.to_le_bytes().to_vec();

        if input.below(8) == 0 {
            message.extend(any_message(input));
            message.truncate(MAX_MESSAGE);
        }

        message
    }

    /// Takes all messages that have arrived, and notes the numbers of connections.
    fn read(&mut self) {
        while let Some(message) = self.port.poll().unwrap() {
            let sender = [VICTIM, WELL_BEHAVED, HOSTILE].iter().position(|peer| *peer == message.from);
            let word = message.quadword(0);
            if message.tag == CONTROL_TAG
                && word as u8 == CONNECT
                && let Some(sender) = sender
            {
                self.connections[sender] = (word >> 24) as u8;
            }
        }
    }
}

/// Returns a message of any words that fits into a packet.
fn any_message(input: &mut Input<'_>) -> Vec<u8> {
    let mut message = vec![0; 8 * (1 + input.below(8) as usize)];
    let bytes = input.bytes(message.len());
    message[..bytes.len()].copy_from_slice(bytes);
    message
}
