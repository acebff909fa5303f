//! The configuration of one NIC.

use nicforge_hwi::{
    tree::{DEFAULT_FIFO_DEPTH, MAX_FIFO_DEPTH, MAX_NODES, PORTS, VCS},
    tree_dcr::{gi, rdr},
};
use thiserror::Error;

/// Number of classes of the network.
pub const CLASSES: usize = 16;
/// All global interrupt channels, one bit for each channel.
pub(crate) const ALL_BARRIERS: u8 = (1 << gi::CHANNELS) - 1;
/// Mask of three bits, one for each port.
const PORT_MASK: u16 = (1 << PORTS) - 1;
/// Lowest bit of the ports to children in a route descriptor register, from [`rdr::SRC0`] on.
const CHILDREN_SHIFT: u32 = rdr::SRC0.trailing_zeros();
/// Lowest bit of the ports up in a route descriptor register, from [`rdr::TGT0`] on.
const UP_SHIFT: u32 = rdr::TGT0.trailing_zeros();

/// The next step of a point-to-point packet at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// The address does not exist.
    #[default]
    None,
    /// The packet is for this node.
    Local,
    /// The packet leaves through this port, 0 to 2.
    Port(u8),
}

/// A class at a node, as 16 bits of a route descriptor register ([`nicforge_hwi::tree_dcr::rdr`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRoute(pub u16);

impl ClassRoute {
    /// Returns a class's route at a node. `children` has one bit for each port to a child. `up` is
    /// the port to the parent; `None`, or a port that does not exist, makes the node the root. With
    /// `sends`, the node's packets enter the class. With `receives`, it gets those that come down.
    pub fn new(children: u8, up: Option<u8>, sends: bool, receives: bool) -> Self {
        let mut bits = (u16::from(children) & PORT_MASK) << CHILDREN_SHIFT;
        if let Some(up) = up.filter(|&up| usize::from(up) < PORTS) {
            bits |= rdr::TGT0 << up;
        }

        if sends {
            bits |= rdr::SRCL;
        }
        if receives {
            bits |= rdr::TGTL;
        }

        Self(bits)
    }

    /// Returns the ports to children, one bit for each port.
    #[inline]
    pub fn children(self) -> u8 {
        ((self.0 >> CHILDREN_SHIFT) & PORT_MASK) as u8
    }

    /// Returns the port up, one bit for each port; 0 at the root.
    #[inline]
    pub fn up(self) -> u8 {
        ((self.0 >> UP_SHIFT) & PORT_MASK) as u8
    }

    /// Returns whether this node's packets take part.
    #[inline]
    pub fn sends(self) -> bool {
        self.0 & rdr::SRCL != 0
    }

    /// Returns whether this node receives packets that come down.
    #[inline]
    pub fn receives(self) -> bool {
        self.0 & rdr::TGTL != 0
    }
}

/// The routes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Routes of point-to-point packets, by target address.
    pub targets: Vec<Route>,
    /// Routes of the classes, the same for both virtual channels.
    pub classes: [ClassRoute; CLASSES],
}

/// Configuration of a node's NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// Address of this node, 0 to [`MAX_NODES`] less one.
    pub node_address: u32,
    /// Number of addresses in use in the machine; every node's address is below it.
    pub nodes: u32,
    /// Address of the pset's I/O node.
    pub io_node: u32,
    /// Rank among the pset's compute nodes; `None` on the I/O node.
    pub pset_rank: Option<u32>,
    /// Compute nodes in the pset.
    pub pset_size: u32,
    /// Packets that each send FIFO holds: a power of two, at most [`MAX_FIFO_DEPTH`].
    pub send_depth: u32,
    /// Packets that each receive FIFO holds: a power of two, at most [`MAX_FIFO_DEPTH`].
    pub recv_depth: u32,
    /// Routes of the packets that arrive at this node.
    pub routes: Routes,
    /// Global interrupt channels that the node takes part in at power-on, one bit for each channel.
    pub barriers: u8,
}

impl TreeConfig {
    /// Returns a node without links. It is the only compute node of its own pset and can send to
    /// itself.
    pub fn alone() -> Self {
        let mut routes = Routes { targets: vec![Route::Local], ..Routes::default() };
        routes.classes[0] = ClassRoute::new(0, None, true, true);

        Self {
            node_address: 0,
            nodes: 1,
            io_node: 0,
            pset_rank: Some(0),
            pset_size: 1,
            send_depth: DEFAULT_FIFO_DEPTH,
            recv_depth: DEFAULT_FIFO_DEPTH,
            routes,
            barriers: ALL_BARRIERS,
        }
    }

    /// Checks addresses, FIFO depths and port numbers.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(ConfigError::Nodes { nodes: self.nodes });
        }
        if self.node_address >= self.nodes {
            return Err(ConfigError::Address { address: self.node_address, nodes: self.nodes });
        }

        for depth in [self.send_depth, self.recv_depth] {
            if !depth.is_power_of_two() || depth > MAX_FIFO_DEPTH {
                return Err(ConfigError::Depth { depth });
            }
        }

        for (address, route) in self.routes.targets.iter().enumerate() {
            if let Route::Port(port) = *route
                && usize::from(port) >= PORTS
            {
                return Err(ConfigError::Port { address, port });
            }
        }

        Ok(())
    }
}

/// Reasons why a [`TreeConfig`] is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Too few or too many nodes.
    #[error("{nodes} nodes: a machine has 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// The node's address is not below the number of nodes.
    #[error("node address {address} in a machine of {nodes} addresses")]
    Address {
        /// The address.
        address: u32,
        /// Addresses in use.
        nodes: u32,
    },
    /// A FIFO depth is no power of two, or too large.
    #[error("a FIFO of {depth} packets: a power of two, at most {MAX_FIFO_DEPTH}, is possible")]
    Depth {
        /// The depth.
        depth: u32,
    },
    /// A route leads to a port that does not exist.
    #[error("the route to node {address} goes through port {port}; there are 0 to 2")]
    Port {
        /// The target.
        address: usize,
        /// The port.
        port: u8,
    },
}

const _: () = assert!(VCS == 2);
