//! A saturated torus: nodes that send packets to random nodes as fast as they can, in dimension
//! order, over two virtual channels as datelines.
//!
//! - `node.rs`: a node, with the router that networks share.
//!
//! [`Traffic::new`] makes them, either as a network without a machine or as devices of a machine.
//! Both carry the same packets at the same times.

mod node;

use nicforge::failure::{ErrorContext, Failure};
use nicforge_core::{
    fabric::{Direction, LinkId, LinkSpec, Packet},
    ids::FunctionId,
    machine::{Machine, TurnLimits},
    spec::Identity,
    time::Nanos,
};
use nicforge_network::{
    alone::{Network, Parcel},
    shape::{Cabling, Dimension, Torus},
};

use self::node::{Node, Nodes};

/// Bytes of a packet.
pub(super) const PACKET_BYTES: usize = 256;
/// Packets that the buffer of a virtual channel holds.
pub(super) const CREDITS: u32 = 8;
/// Virtual channels of a link. Packets change to the second one where a ring closes.
pub(super) const CHANNELS: usize = 2;
/// Bytes of a packet after which a router forwards it.
const HEAD_BYTES: u32 = 32;
/// Delay of a link in nanoseconds.
const DELAY_NS: u64 = 20;
/// Bandwidth of a link: a byte in half a nanosecond.
const BITS_PER_SECOND: u64 = 16_000_000_000;

/// Dimensions of the torus.
const DIMENSIONS: usize = 3;
/// Identity of a node's device, which no client sees.
const IDENTITY: Identity =
    Identity { vendor: 0, device: 0, subsystem_vendor: 0, subsystem: 0, class: 0, revision: 0 };

/// The code that runs the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A network without a machine: links in tables, and direct calls
    /// ([`nicforge_network::alone`]).
    Alone,
    /// A machine, whose devices the nodes are.
    Machine,
}

/// A torus with its traffic.
pub(super) enum Traffic {
    /// A network without a machine.
    Alone(Box<Network<Node<Parcel>>>),
    /// A machine.
    Machine(Box<Machine>),
}

/// A node's own sequence of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    /// Returns the sequence of a node.
    fn of_node(seed: u64, node: u32) -> Self {
        Self(seed ^ (u64::from(node) << 32))
    }

    /// Returns the next number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Traffic {
    /// Returns a torus of these lengths, whose nodes all send at once. The destinations follow from
    /// `seed`.
    ///
    /// # Errors
    /// Returns an error when such a torus is impossible.
    pub(super) fn new(lengths: [u8; DIMENSIONS], driver: Driver, seed: u64) -> Result<Self, Failure> {
        let dimensions = lengths.map(|length| Dimension::torus(length.into()));
        let torus = Torus::new(&dimensions).context(|| "the torus".into())?;
        let link = link();
        let nodes = Nodes::new(&torus, &link)?;

        match driver {
            Driver::Alone => {
                let nodes: Result<_, _> = (0..torus.nodes()).map(|node| nodes.node(node, seed)).collect();
                let network = Network::new(&torus, &link, nodes?).context(|| "the network".into())?;
                Ok(Self::Alone(Box::new(network)))
            }
            Driver::Machine => machine(&torus, &link, &nodes, seed).map(Box::new).map(Self::Machine),
        }
    }

    /// Returns the present time.
    pub(super) fn now(&self) -> Nanos {
        match self {
            Self::Alone(network) => network.now(),
            Self::Machine(machine) => machine.now(),
        }
    }

    /// Runs until a time, in nanoseconds.
    pub(super) fn run_until(&mut self, time: u64) -> Result<(), Failure> {
        match self {
            Self::Alone(network) => network.run_until(Nanos(time)).context(|| "the network".into()),
            Self::Machine(machine) => {
                machine.run_until(Nanos(time), TurnLimits::default()).context(|| "the machine".into())
            }
        }
    }

    /// Returns the number of packets that have been sent over links.
    pub(super) fn hops(&mut self) -> u64 {
        match self {
            Self::Alone(network) => network.hops(),
            Self::Machine(machine) => hops(machine),
        }
    }
}

/// Returns a machine whose devices are the nodes of a torus.
fn machine(torus: &Torus, link: &LinkSpec, nodes: &Nodes, seed: u64) -> Result<Machine, Failure> {
    let mut machine = Machine::new();
    for node in 0..torus.nodes() {
        let device = Box::new(nodes.node::<Packet>(node, seed)?);
        machine.add_function("router", device).context(|| "a router".into())?;
    }

    for cable in torus.cables() {
        let [a, b] = [cable.a, cable.b].map(|end| (FunctionId(end.node), end.port));
        machine.fabric().connect(a, b, link.clone()).context(|| "a link".into())?;
    }
    for node in 0..torus.nodes() {
        machine.wake(FunctionId(node));
    }

    Ok(machine)
}

/// Returns the links of the torus.
fn link() -> LinkSpec {
    LinkSpec {
        delay: DELAY_NS,
        bits_per_second: BITS_PER_SECOND,
        cut_through: Some(HEAD_BYTES),
        ..LinkSpec::new(CHANNELS, CREDITS, PACKET_BYTES)
    }
}

/// Returns the number of packets that have been sent over a machine's links.
fn hops(machine: &mut Machine) -> u64 {
    let fabric = machine.fabric();
    let mut hops = 0;
    for link in (0..fabric.links()).map(LinkId) {
        for direction in [Direction::Forward, Direction::Backward] {
            let stats = (0..CHANNELS).filter_map(|channel| fabric.link_stats(link, direction, channel).ok());
            hops += stats.map(|stats| stats.packets).sum::<u64>();
        }
    }
    hops
}
