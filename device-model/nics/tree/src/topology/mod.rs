//! Machines: nodes, the links between them, and the routes over the links.
//!
//! The network is a tree: connected, without cycles, three ports for each node. Point-to-point
//! routes follow from the links.
//!
//! A class route is a tree inside the network, with its own root. Packets go up to the root, turn
//! round and come down again. Turning round at different roots can make packets wait for each other
//! in a circle, so [`Topology::validate`] refuses sets of classes that can.

mod check;
mod links;
#[cfg(test)]
mod tests;

use nicforge_hwi::tree::{DEFAULT_FIFO_DEPTH, MAX_NODES};
use nicforge_network::{
    deadlock::{Cycle, DeadlockError},
    shape::{Cable, Cabling, ShapeError, Tree},
};
use thiserror::Error;

use self::links::ports_towards;
use crate::config::{ALL_BARRIERS, CLASSES, ClassRoute, Route, Routes, TreeConfig};

/// Class of all nodes of the machine, root node 0.
pub const CLASS_ALL: usize = 0;
/// Class of all compute nodes of the machine; I/O nodes only pass packets on.
pub const CLASS_COMPUTE: usize = 1;
/// Class of the nodes of each pset, root its I/O node.
pub const CLASS_PSET: usize = 2;
/// Class of the compute nodes of each pset.
pub const CLASS_PSET_COMPUTE: usize = 3;

/// A node of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNode {
    /// Number of the pset that the node belongs to.
    pub pset: u32,
    /// Address of the pset's I/O node.
    pub io_node: u32,
    /// Rank among the pset's compute nodes; `None` on the I/O node.
    pub pset_rank: Option<u32>,
    /// Compute nodes in the pset.
    pub pset_size: u32,
    /// Routes of the packets that arrive at this node.
    pub routes: Routes,
}

/// A link between two nodes' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyLink {
    /// Node address and port of one end.
    pub a: (u32, u8),
    /// Node address and port of the other end.
    pub b: (u32, u8),
}

/// A machine. The address of a node is its index in [`Topology::nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The nodes.
    pub nodes: Vec<TopologyNode>,
    /// The links.
    pub links: Vec<TopologyLink>,
}

/// Reasons why a topology is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// Too few or too many nodes.
    #[error("{nodes} nodes: a machine has 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: usize,
    },
    /// A link ends at a node that does not exist.
    #[error("a link ends at node {node}, which does not exist")]
    NoNode {
        /// The node.
        node: u32,
    },
    /// A link ends at a port that does not exist.
    #[error("a link ends at port {port} of node {node}; there are 0 to 2")]
    NoPort {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
    /// Two links share a port.
    #[error("two links end at port {port} of node {node}")]
    PortTaken {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
    /// The links make a cycle.
    #[error("the links make a cycle through node {node}; the network must be a tree")]
    Cycle {
        /// A node on it.
        node: u32,
    },
    /// No path leads to a node.
    #[error("node {node} can't be reached from node 0")]
    Unreachable {
        /// The node.
        node: u32,
    },
    /// A point-to-point route is not the way through the tree.
    #[error("node {node} routes packets for node {target} the wrong way")]
    WrongRoute {
        /// The node.
        node: u32,
        /// The target.
        target: u32,
    },
    /// A class goes up through a port whose other end does not expect it, through two ports, or
    /// through a port without a link.
    #[error("class {class} at node {node} does not fit the node at the other end of port {port}")]
    ClassMismatch {
        /// The class.
        class: usize,
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
    /// Packets of the classes in use could wait for each other in a circle.
    #[error(
        "the class routes can deadlock: packets leaving node {node} through port {port} can wait for themselves: {cycle}"
    )]
    Deadlock {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
        /// The whole cycle.
        cycle: Cycle,
    },
    /// A pset's shape is impossible.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The routes can't be checked.
    #[error(transparent)]
    Check(DeadlockError),
}

impl Topology {
    /// Returns a machine of psets: each has one I/O node and as many compute nodes as its entry of
    /// `compute_nodes` says. Addresses count through the psets: the I/O node first, then its
    /// compute nodes by rank.
    ///
    /// The compute nodes hang below their I/O node as a binary tree, port 0 upwards. The I/O node
    /// of a single pset has two branches (ports 1 and 2). With several psets, each I/O node has one
    /// branch (port 1). The I/O nodes form a chain (port 2 to port 0 of the next).
    ///
    /// The classes are [`CLASS_ALL`], [`CLASS_COMPUTE`], [`CLASS_PSET`] and [`CLASS_PSET_COMPUTE`].
    pub fn psets(compute_nodes: &[u32]) -> Result<Self, TopologyError> {
        let total = compute_nodes.iter().fold(0u64, |sum, &count| sum + u64::from(count) + 1);
        if total == 0 || total > u64::from(MAX_NODES) {
            return Err(TopologyError::Nodes { nodes: usize::try_from(total).unwrap_or(usize::MAX) });
        }

        let (mut nodes, mut links) = (Vec::new(), Vec::new());
        let is_only_pset = compute_nodes.len() == 1;
        let mut previous = None;

        for (pset, &size) in compute_nodes.iter().enumerate() {
            let io_node = nodes.len() as u32;
            for index in 0..=size {
                nodes.push(TopologyNode {
                    pset: pset as u32,
                    io_node,
                    pset_rank: index.checked_sub(1),
                    pset_size: size,
                    routes: Routes::default(),
                });
            }

            links.extend(pset_links(io_node, size, is_only_pset)?);

            if let Some(previous) = previous.replace(io_node) {
                links.push(TopologyLink { a: (previous, 2), b: (io_node, 0) });
            }
        }

        let mut topology = Self { nodes, links };
        topology.set_targets()?;
        topology.set_class(CLASS_ALL, 0, |_| true)?;
        topology.set_class(CLASS_COMPUTE, 0, |node| node.pset_rank.is_some())?;

        for address in 0..topology.nodes.len() as u32 {
            let node = &topology.nodes[address as usize];
            if node.pset_rank.is_none() {
                let pset = node.pset;
                topology.set_class_within(CLASS_PSET, address, pset, |_| true)?;
                topology
                    .set_class_within(CLASS_PSET_COMPUTE, address, pset, |node| node.pset_rank.is_some())?;
            }
        }

        topology.validate()?;
        Ok(topology)
    }

    /// Returns the configuration of a node's NIC; `None` if there is no such node.
    pub fn config(&self, address: u32) -> Option<TreeConfig> {
        let node = self.nodes.get(address as usize)?;
        Some(TreeConfig {
            node_address: address,
            nodes: self.nodes.len() as u32,
            io_node: node.io_node,
            pset_rank: node.pset_rank,
            pset_size: node.pset_size,
            send_depth: DEFAULT_FIFO_DEPTH,
            recv_depth: DEFAULT_FIFO_DEPTH,
            routes: node.routes.clone(),
            barriers: if node.pset_rank.is_some() { ALL_BARRIERS } else { 0 },
        })
    }

    /// Derives every node's point-to-point routes from the links.
    pub fn set_targets(&mut self) -> Result<(), TopologyError> {
        let wiring = self.wiring()?;

        for target in 0..wiring.nodes() {
            let towards = ports_towards(&wiring, target)?;
            for (node, port) in self.nodes.iter_mut().zip(towards) {
                node.routes.targets.resize(wiring.nodes() as usize, Route::None);
                node.routes.targets[target as usize] = port.map_or(Route::Local, Route::Port);
            }
        }
        Ok(())
    }

    /// Sets a class to the whole tree with `root`. The nodes for which `is_member` holds send and
    /// receive.
    pub fn set_class(
        &mut self,
        class: usize,
        root: u32,
        is_member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        self.set_class_of_nodes(class, root, |_| true, is_member)
    }

    /// Sets a class to the nodes of one pset, as a tree with `root`. Those for which `is_member`
    /// holds send and receive.
    fn set_class_within(
        &mut self,
        class: usize,
        root: u32,
        pset: u32,
        is_member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        self.set_class_of_nodes(class, root, |node| node.pset == pset, is_member)
    }

    /// Sets a class to the nodes for which `is_inside` holds, as a tree with `root`. Of these
    /// nodes, those for which `is_member` holds send and receive. The others only pass packets on.
    fn set_class_of_nodes(
        &mut self,
        class: usize,
        root: u32,
        is_inside: impl Fn(&TopologyNode) -> bool,
        is_member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        let wiring = self.wiring()?;
        if root >= wiring.nodes() || class >= CLASSES {
            return Err(TopologyError::NoNode { node: root });
        }

        let towards = ports_towards(&wiring, root)?;
        for (address, towards_root) in towards.into_iter().enumerate() {
            if !is_inside(&self.nodes[address]) {
                continue;
            }

            let up = if address == root as usize { None } else { towards_root };
            let mut children = 0;
            for (port, peer) in wiring.neighbours(address as u32) {
                if Some(port) != up && is_inside(&self.nodes[peer.node as usize]) {
                    children |= 1 << port;
                }
            }

            let takes_part = is_member(&self.nodes[address]);
            self.nodes[address].routes.classes[class] = ClassRoute::new(children, up, takes_part, takes_part);
        }
        Ok(())
    }
}

/// Returns the links of a pset, in the order of their compute nodes. `is_only_pset` says that the
/// machine has no other pset, so that the I/O node has two branches.
fn pset_links(io_node: u32, size: u32, is_only_pset: bool) -> Result<Vec<TopologyLink>, TopologyError> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if is_only_pset {
        return binary_tree(io_node, size + 1);
    }

    // The I/O node has one branch, below which the compute nodes are a tree of their own.
    let mut links = vec![TopologyLink { a: (io_node, 1), b: (io_node + 1, 0) }];
    links.extend(binary_tree(io_node + 1, size)?);
    Ok(links)
}

/// Returns the links of a binary tree whose addresses begin at `root`.
fn binary_tree(root: u32, nodes: u32) -> Result<Vec<TopologyLink>, TopologyError> {
    let link = |Cable { a, b }| TopologyLink { a: (root + a.node, a.port), b: (root + b.node, b.port) };
    Ok(Tree::new(nodes, 2)?.cables().map(link).collect())
}
