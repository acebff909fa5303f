//! A saturated torus: a machine whose nodes send packets to random nodes as fast as they can.
//!
//! - `shared.rs`: a node with the router that networks share;
//! - `bare.rs`: a node with the smallest router that a hop needs.
//!
//! Both have the routing in dimension order, two virtual channels as datelines, and an injection
//! queue that is never empty. [`saturated_torus`] is the only door to them.

mod bare;
mod shared;

use nicforge::failure::{ErrorContext, Failure};
use nicforge_core::{
    fabric::{Direction, LinkId, LinkSpec},
    ids::FunctionId,
    machine::Machine,
    spec::Identity,
};
use nicforge_network::shape::{Cabling, Dimension, Torus};

use self::{bare::BareRouter, shared::Nodes};

/// Bytes of a packet.
pub(super) const PACKET: usize = 256;
/// Packets of buffer of a virtual channel.
pub(super) const CREDITS: u32 = 8;
/// Virtual channels of a link. Packets change to the second one where a ring closes.
pub(super) const CHANNELS: usize = 2;
/// Bytes after which a packet is forwarded.
const HEAD: u32 = 32;
/// Delay of a link in nanoseconds.
const DELAY: u64 = 20;
/// Bandwidth of a link: a byte in half a nanosecond.
const BITS_PER_SECOND: u64 = 16_000_000_000;

const DIMENSIONS: usize = 3;
/// Ports of a node: up and down in each dimension.
const PORTS: usize = 2 * DIMENSIONS;
/// Identity of a node's device, which no client sees.
const IDENTITY: Identity =
    Identity { vendor: 0, device: 0, subsystem_vendor: 0, subsystem: 0, class: 0, revision: 0 };

/// A position in the torus.
type Position = [u8; DIMENSIONS];

/// The routers of a torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routers {
    /// Those that networks share (`nicforge-network`).
    Shared,
    /// The smallest that a hop needs.
    Bare,
}

/// A node's own sequence of random numbers (SplitMix64).
struct Random(u64);

impl Random {
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

/// Returns a machine whose nodes form a torus of these lengths, all of which send at once. The
/// destinations follow from `seed`.
///
/// # Errors
/// Returns an error when such a machine is impossible.
pub(super) fn saturated_torus(
    lengths: [u8; DIMENSIONS],
    routers: Routers,
    seed: u64,
) -> Result<Machine, Failure> {
    let dimensions = lengths.map(|length| Dimension::torus(length.into()));
    let torus = Torus::new(&dimensions).context(|| "the torus".into())?;
    let link = link();
    let shared = Nodes::new(&torus, &link)?;

    let mut machine = Machine::new();
    for node in 0..torus.nodes() {
        let random = Random::of_node(seed, node);
        let added = match routers {
            Routers::Shared => machine.add_function("router", Box::new(shared.node(node, random)?)),
            Routers::Bare => {
                let router = BareRouter::new(position(&torus, node), lengths, random);
                machine.add_function("router", Box::new(router))
            }
        };
        added.context(|| "a router".into())?;
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
        delay: DELAY,
        bits_per_second: BITS_PER_SECOND,
        cut_through: Some(HEAD),
        ..LinkSpec::new(CHANNELS, CREDITS, PACKET)
    }
}

/// Returns a node's position.
fn position(torus: &Torus, node: u32) -> Position {
    let mut position = Position::default();
    if let Some(coordinates) = torus.coordinates(node) {
        for (at, &coordinate) in position.iter_mut().zip(&*coordinates) {
            *at = coordinate as u8;
        }
    }
    position
}

/// Returns the number of packets that have been sent over links.
pub(super) fn hops(machine: &mut Machine) -> u64 {
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
