//! Shapes of networks: which nodes are neighbours, by which ports, and how far nodes are apart.
//!
//! A node is a number from 0. A port is a number from 0 at its node. A cable joins two ports. All
//! answers are computed from the numbers: a shape is a few words long, whatever its size, and no
//! look-up allocates. [`Wiring`] is the exception, for networks without a rule: it stores the far
//! end of each port.
//!
//! | shape | ports | neighbour by a port |
//! | --- | --- | --- |
//! | [`Torus`] | two for each dimension | port `2 d` leads up dimension `d`, port `2 d + 1` down |
//! | [`Tree`] | fan-out + 1 | port 0 leads to the parent, port `1 + i` to child `i` |
//! | [`Hypercube`] | one for each dimension | port `d` flips bit `d` of the node's number |
//! | [`FullMesh`] | nodes - 1 | the ports count the other nodes in their order |
//!
//! Node numbers or ports that do not exist have no neighbour, no distance and no route: the answer
//! is `None`.

mod full_mesh;
mod hypercube;
mod partition;
mod torus;
mod tree;
mod wiring;

use thiserror::Error;

pub use self::{
    full_mesh::FullMesh,
    hypercube::Hypercube,
    partition::{Partition, PartitionRule},
    torus::{Coordinates, Dimension, Direction, MAX_DIMENSIONS, Torus, Way},
    tree::Tree,
    wiring::{Wiring, WiringError},
};

/// The largest number of nodes of a shape: 2^17.
pub const MAX_NODES: u32 = 1 << 17;
/// The largest number of ports of a node.
pub const MAX_PORTS: u32 = u8::MAX as u32;

/// The place at which a cable ends: a port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CableEnd {
    /// The node, from 0.
    pub node: u32,
    /// The port of the node, from 0.
    pub port: u8,
}

impl CableEnd {
    /// Returns the end at a port of a node.
    #[inline]
    pub const fn new(node: u32, port: u8) -> Self {
        Self { node, port }
    }
}

/// A cable between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cable {
    /// One end.
    pub a: CableEnd,
    /// The other end.
    pub b: CableEnd,
}

/// The cables of a network.
pub trait Cabling {
    /// Returns the number of nodes. They are numbered from 0.
    fn nodes(&self) -> u32;

    /// Returns the number of ports of each node. They are numbered from 0; some may have no cable.
    fn ports(&self) -> u8;

    /// Returns the other end of the cable at a port; `None` if there is no cable, port or node.
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd>;

    /// Returns the ports of a node that have a cable, in order, with the other end of each.
    fn neighbours(&self, node: u32) -> impl Iterator<Item = (u8, CableEnd)> {
        (0..self.ports()).filter_map(move |port| Some((port, self.far_end(node, port)?)))
    }

    /// Returns each cable once. The order is that of the first ends, by node and then port. The
    /// first end is the lower one, unless the shape says otherwise.
    fn cables(&self) -> impl Iterator<Item = Cable> {
        ends(self).filter_map(move |a| {
            let b = self.far_end(a.node, a.port)?;
            (a < b).then_some(Cable { a, b })
        })
    }
}

/// Returns all ports of all nodes, in order.
fn ends(cabling: &(impl Cabling + ?Sized)) -> impl Iterator<Item = CableEnd> {
    let ports = cabling.ports();
    (0..cabling.nodes()).flat_map(move |node| (0..ports).map(move |port| CableEnd { node, port }))
}

/// A network whose distances and routes follow from its node numbers.
pub trait Shape: Cabling {
    /// Returns the number of cables on a shortest path; `None` if a node does not exist.
    fn distance(&self, from: u32, to: u32) -> Option<u32>;

    /// Returns the port by which a packet at `node` leaves for `target` on the shape's fixed path,
    /// which is a shortest one: dimension order in a torus, lowest bit first in a hypercube.
    /// Returns `None` at the target itself, and for nodes that do not exist.
    fn port_towards(&self, node: u32, target: u32) -> Option<u8>;
}

/// Reasons why a shape is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// Too few or too many nodes. The number is [`u64::MAX`] if it does not fit.
    #[error("a network of {nodes} nodes: choose 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: u64,
    },
    /// Too few or too many dimensions.
    #[error("{dimensions} dimensions: choose {min} to {max}")]
    Dimensions {
        /// Number of dimensions.
        dimensions: usize,
        /// The smallest number that is possible.
        min: usize,
        /// The largest number that is possible.
        max: usize,
    },
    /// More ports than a node can have.
    #[error("a node of this shape has {ports} ports: choose a shape with at most {MAX_PORTS}")]
    Ports {
        /// Number of ports.
        ports: u64,
    },
    /// A tree in which nodes have no children.
    #[error("a tree of {nodes} nodes with a fan-out of 0: choose a fan-out of at least 1")]
    FanOut {
        /// Number of nodes.
        nodes: u32,
    },
    /// A partition that does not lie inside its machine.
    #[error(
        "a partition from {origin} to {origin} + {length} in dimension {dimension}: choose at least 1 and stay within {limit}"
    )]
    Outside {
        /// The dimension.
        dimension: usize,
        /// The partition's first coordinate.
        origin: u32,
        /// The partition's length.
        length: u32,
        /// The machine's length.
        limit: u32,
    },
    /// A partition with another number of dimensions than its machine.
    #[error(
        "a partition of {dimensions} dimensions in a machine of {machine}: give one length and origin for each"
    )]
    PartitionDimensions {
        /// Number of dimensions of the partition.
        dimensions: usize,
        /// Number of dimensions of the machine.
        machine: usize,
    },
}

/// Checks that a number of nodes is in range, and returns it.
fn checked_nodes(nodes: u64) -> Result<u32, ShapeError> {
    match u32::try_from(nodes) {
        Ok(nodes @ 1..=MAX_NODES) => Ok(nodes),
        _ => Err(ShapeError::Nodes { nodes }),
    }
}
