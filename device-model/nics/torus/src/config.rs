//! Networks: their shape and options, and what their nodes share.

use std::sync::Arc;

use nicforge_core::fabric::LinkSpec;
use nicforge_hwi::torus::{CHANNELS, DIMENSIONS, MAX_NODES, MAX_PACKET, TRAILER};
use nicforge_network::{
    deadlock::DeadlockError,
    router::{RouterError, RouterPlan, policies::PolicyError},
    shape::{Cable, Cabling, Dimension, ShapeError, Torus},
};
use thiserror::Error;

use crate::{
    lives::{Lives, SharedLives},
    policy::{self, NodePolicy},
};

/// Packets of buffer at the receiving end of each virtual channel of a link: 1 KB, as on the
/// machine.
pub const CREDITS: u32 = 4;
/// Maximum number of nodes in a dimension.
pub const MAX_LENGTH: u32 = 256;
/// Bytes of the longest packet on a link.
pub const MAX_ON_LINK: usize = MAX_PACKET + TRAILER;

/// Options of a network.
#[derive(Clone, Debug)]
pub struct Options {
    /// Links. The number of virtual channels and the longest packet are the network's own.
    pub link: LinkSpec,
}

impl Default for Options {
    fn default() -> Self {
        Self { link: LinkSpec::new(CHANNELS, CREDITS, MAX_ON_LINK) }
    }
}

impl Options {
    /// Returns whether the links have a bandwidth.
    pub fn is_timed(&self) -> bool {
        self.link.bits_per_second > 0
    }

    /// Returns the number of packets between an injection FIFO in memory and the router. On links
    /// without a bandwidth it is larger, because more packets at a time save steps of the router.
    pub(crate) fn staged(&self) -> u16 {
        if self.is_timed() { 1 } else { 8 }
    }
}

/// Reasons why a network or a node is refused.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The shape does not exist.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A dimension is too long.
    #[error("dimension {dimension} has {length} nodes: choose at most {MAX_LENGTH}")]
    Dimension {
        /// The dimension, 0 for X.
        dimension: usize,
        /// Its nodes.
        length: u32,
    },
    /// Too many nodes.
    #[error("a torus of {nodes} nodes: choose 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: u64,
    },
    /// The node does not exist.
    #[error("there is no node {node}: the torus has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// The policy of a node is not possible.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The routes can deadlock.
    #[error(transparent)]
    Deadlock(#[from] DeadlockError),
    /// The router is not possible.
    #[error(transparent)]
    Router(#[from] RouterError),
}

/// A torus of nodes: its shape, its routes, and what its devices share.
///
/// Several machines can have devices of one network. A machine has one device of each node, so that
/// the second device that is made of a node begins the next machine.
#[derive(Clone, Debug)]
pub struct Network {
    torus: Torus,
    options: Arc<Options>,
    policy: NodePolicy,
    plan: RouterPlan,
    lives: Arc<SharedLives>,
}

impl Network {
    /// Returns a network with these lengths of the dimensions X, Y and Z. A dimension of more than
    /// one node is closed to rings if `wraps` says so; one of two nodes then has two cables between
    /// them.
    ///
    /// # Errors
    /// [`NetworkError`] names the value that does not fit. Routes that could deadlock are refused.
    pub fn new(
        lengths: [u32; DIMENSIONS],
        wraps: [bool; DIMENSIONS],
        options: Options,
    ) -> Result<Self, NetworkError> {
        if let Some(dimension) = lengths.iter().position(|&length| length > MAX_LENGTH) {
            return Err(NetworkError::Dimension { dimension, length: lengths[dimension] });
        }
        let nodes = lengths.iter().map(|&length| u64::from(length)).product();
        if nodes > u64::from(MAX_NODES) {
            return Err(NetworkError::Nodes { nodes });
        }

        let dimension = |index: usize| {
            let length = lengths[index];
            Dimension { length, wraps: wraps[index] && length > 1 }
        };
        let torus = Torus::new(&[0, 1, 2].map(dimension))?;
        policy::check_deadlock(&torus)?;

        let mut options = options;
        options.link.max_packet = MAX_ON_LINK;
        options.link.credits.resize(CHANNELS, CREDITS);
        Ok(Self {
            torus,
            policy: NodePolicy::new(&torus)?,
            plan: RouterPlan::new(&policy::router_spec(&options))?,
            lives: Arc::new(SharedLives::new(torus.nodes())),
            options: Arc::new(options),
        })
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.torus.nodes()
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Torus {
        &self.torus
    }

    /// Returns the options. Those of links are complete.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the cables between the nodes.
    pub fn cables(&self) -> impl Iterator<Item = Cable> + '_ {
        self.torus.cables()
    }

    /// Returns what the device of a node needs.
    pub(crate) fn node(&self, node: u32) -> Result<Site, NetworkError> {
        let nodes = self.nodes();
        let coordinates = self.torus.coordinates(node).ok_or(NetworkError::NoNode { node, nodes })?;
        let mut place = [0; DIMENSIONS];
        for (own, &coordinate) in place.iter_mut().zip(coordinates.iter()) {
            *own = coordinate as u8;
        }

        Ok(Site {
            node,
            place,
            torus: self.torus,
            policy: self.policy.at(node)?,
            plan: self.plan.clone(),
            lives: self.lives.of_node(node),
        })
    }
}

/// A node of a network, and what its device needs of the network.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) node: u32,
    /// The node's coordinates.
    pub(crate) place: [u8; DIMENSIONS],
    pub(crate) torus: Torus,
    pub(crate) policy: NodePolicy,
    pub(crate) plan: RouterPlan,
    pub(crate) lives: Lives,
}

impl Site {
    /// Returns coordinates as registers have them: X in bits 31..24, Y in 23..16, Z in 15..8.
    pub(crate) fn pack([x, y, z]: [u8; DIMENSIONS]) -> u32 {
        u32::from_be_bytes([x, y, z, 0])
    }

    /// Returns the last coordinates of the torus.
    pub(crate) fn last(&self) -> [u8; DIMENSIONS] {
        let lengths = self.torus.dimensions().iter().map(|dimension| dimension.length);
        let mut last = [0; DIMENSIONS];
        for (last, length) in last.iter_mut().zip(lengths) {
            *last = (length - 1) as u8;
        }
        last
    }

    /// Returns the dimensions that are closed to rings, bit 0 for X.
    pub(crate) fn wraps(&self) -> u32 {
        let dimensions = self.torus.dimensions().iter().enumerate();
        dimensions.fold(0, |bits, (index, dimension)| bits | u32::from(dimension.wraps) << index)
    }

    /// Returns the coordinates of the neighbours by the links up, or by those down. A dimension
    /// without such a link has the node's own coordinate.
    pub(crate) fn neighbours(&self, is_down: bool) -> [u8; DIMENSIONS] {
        let mut coordinates = self.place;
        for (dimension, coordinate) in coordinates.iter_mut().enumerate() {
            let port = 2 * dimension as u8 + u8::from(is_down);
            let neighbour = self.torus.far_end(self.node, port);
            let far = neighbour.and_then(|end| Some(self.torus.coordinates(end.node)?[dimension]));
            *coordinate = far.map_or(*coordinate, |far| far as u8);
        }
        coordinates
    }
}
