//! Machines: nodes, the links between them, and the routes over the links.
//!
//! The network is a tree: connected, without cycles, three ports for each node. Point-to-point
//! routes follow from the links.
//!
//! A class route is a tree inside the network, with its own root. Packets go up to the root, turn
//! round and come down again. Turning round at different roots can make packets wait for each other
//! in a circle, so [`Topology::validate`] refuses sets of classes that can.

use std::collections::VecDeque;

use nicforge_hwi::tree::{DEFAULT_FIFO_DEPTH, MAX_NODES, PORTS};
use thiserror::Error;

use crate::config::{CLASSES, ClassRoute, Route, Routes, TreeConfig};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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
        "the class routes can deadlock: packets leaving node {node} through port {port} can wait for themselves"
    )]
    Deadlock {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
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
        let alone = compute_nodes.len() == 1;
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

            for rank in 0..size {
                let (parent, port) = if alone {
                    (io_node + rank / 2, 1 + (rank % 2) as u8)
                } else if rank == 0 {
                    (io_node, 1)
                } else {
                    (io_node + 1 + (rank - 1) / 2, 1 + ((rank - 1) % 2) as u8)
                };
                links.push(TopologyLink { a: (parent, port), b: (io_node + 1 + rank, 0) });
            }

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
            barriers: if node.pset_rank.is_some() { 0xf } else { 0 },
        })
    }

    /// Derives every node's point-to-point routes from the links.
    pub fn set_targets(&mut self) -> Result<(), TopologyError> {
        let peers = self.peers()?;
        for target in 0..self.nodes.len() as u32 {
            let towards = towards(&peers, target)?;
            for (node, port) in self.nodes.iter_mut().zip(towards) {
                node.routes.targets.resize(peers.len(), Route::None);
                node.routes.targets[target as usize] = port.map_or(Route::Local, Route::Port);
            }
        }
        Ok(())
    }

    /// Sets a class to the whole tree with `root`. The nodes for which `member` holds send and
    /// receive.
    pub fn set_class(
        &mut self,
        class: usize,
        root: u32,
        member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        self.span(class, root, |_| true, member)
    }

    /// Sets a class to the nodes of one pset.
    fn set_class_within(
        &mut self,
        class: usize,
        root: u32,
        pset: u32,
        member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        self.span(class, root, |node| node.pset == pset, member)
    }

    /// Sets a class to the nodes for which `inside` holds.
    fn span(
        &mut self,
        class: usize,
        root: u32,
        inside: impl Fn(&TopologyNode) -> bool,
        member: impl Fn(&TopologyNode) -> bool,
    ) -> Result<(), TopologyError> {
        let peers = self.peers()?;
        if root as usize >= peers.len() || class >= CLASSES {
            return Err(TopologyError::NoNode { node: root });
        }

        let towards = towards(&peers, root)?;
        for address in 0..peers.len() {
            if !inside(&self.nodes[address]) {
                continue;
            }

            let up = if address == root as usize { None } else { towards[address] };
            let mut children = 0;
            for (port, peer) in peers[address].iter().enumerate() {
                if let Some((peer, _)) = *peer
                    && Some(port as u8) != up
                    && inside(&self.nodes[peer as usize])
                {
                    children |= 1 << port;
                }
            }

            let takes_part = member(&self.nodes[address]);
            self.nodes[address].routes.classes[class] = ClassRoute::new(children, up, takes_part, takes_part);
        }
        Ok(())
    }

    /// Checks that links and routes make a machine whose packets all arrive.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let peers = self.peers()?;
        for target in 0..peers.len() as u32 {
            for (address, port) in towards(&peers, target)?.into_iter().enumerate() {
                let route =
                    self.nodes[address].routes.targets.get(target as usize).copied().unwrap_or_default();
                if route != port.map_or(Route::Local, Route::Port) {
                    return Err(TopologyError::WrongRoute { node: address as u32, target });
                }
            }
        }

        self.validate_classes(&peers)?;
        self.validate_turns(&peers)
    }

    /// Checks that both ends of each link agree which one is up, in each class.
    fn validate_classes(&self, peers: &Peers) -> Result<(), TopologyError> {
        for (address, node) in self.nodes.iter().enumerate() {
            for (class, route) in node.routes.classes.iter().enumerate() {
                for port in 0..PORTS as u8 {
                    let mismatch = TopologyError::ClassMismatch { class, node: address as u32, port };
                    let bit = 1u8 << port;
                    let (child, up) = (route.children() & bit != 0, route.up() & bit != 0);
                    if up && (child || route.up() != bit) {
                        return Err(mismatch);
                    }

                    let Some((peer, peer_port)) = peers[address][usize::from(port)] else {
                        if child || up {
                            return Err(mismatch);
                        }
                        continue;
                    };

                    let theirs = self.nodes[peer as usize].routes.classes[class];
                    let peer_bit = 1u8 << peer_port;
                    if child != (theirs.up() & peer_bit != 0) || up != (theirs.children() & peer_bit != 0) {
                        return Err(mismatch);
                    }
                }
            }
        }
        Ok(())
    }

    /// Searches for cycles of waiting among the buffers of the links.
    ///
    /// Each direction of a link waits for those that its packets take next. Point-to-point packets
    /// never turn round; the packets of a class do so at its root.
    fn validate_turns(&self, peers: &Peers) -> Result<(), TopologyError> {
        let index = |node: usize, port: usize| node * PORTS + port;
        let count = peers.len() * PORTS;

        // `waits[x]` has the ports through which packets that left through port `x` leave the next
        // node.
        let mut waits = vec![0u8; count];
        for (address, ports) in peers.iter().enumerate() {
            for (port, peer) in ports.iter().enumerate() {
                let Some((peer, entry)) = *peer else { continue };
                let linked = (0..PORTS).filter(|&exit| peers[peer as usize][exit].is_some());
                let onward = linked.fold(0u8, |mask, exit| mask | 1 << exit) & !(1 << entry);
                let turns = self.nodes[peer as usize]
                    .routes
                    .classes
                    .iter()
                    .any(|route| route.up() == 0 && route.children() & (1 << entry) != 0);
                waits[index(address, port)] = onward | if turns { 1 << entry } else { 0 };
            }
        }

        // Remove each port that no other port waits for. What is left contains a cycle.
        let mut users = vec![0u32; count];
        let targets = |x: usize| {
            let next = peers[x / PORTS][x % PORTS];
            let mask = next.map_or(0, |_| waits[x]);
            (0..PORTS)
                .filter(move |exit| mask & (1 << exit) != 0)
                .filter_map(move |exit| next.map(|(peer, _)| index(peer as usize, exit)))
        };

        for x in 0..count {
            for target in targets(x) {
                users[target] += 1;
            }
        }

        let mut free: VecDeque<usize> = (0..count).filter(|&x| users[x] == 0).collect();
        let mut removed = 0;
        while let Some(x) = free.pop_front() {
            removed += 1;
            for target in targets(x) {
                users[target] -= 1;
                if users[target] == 0 {
                    free.push_back(target);
                }
            }
        }

        if removed < count
            && let Some(x) = (0..count).find(|&x| users[x] > 0)
        {
            return Err(TopologyError::Deadlock { node: (x / PORTS) as u32, port: (x % PORTS) as u8 });
        }
        Ok(())
    }

    /// Returns the other end of each port, after a check that the links make a tree.
    fn peers(&self) -> Result<Peers, TopologyError> {
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES as usize {
            return Err(TopologyError::Nodes { nodes: self.nodes.len() });
        }

        let mut peers: Peers = vec![[None; PORTS]; self.nodes.len()];
        for link in &self.links {
            for ((node, port), peer) in [(link.a, link.b), (link.b, link.a)] {
                if usize::from(port) >= PORTS {
                    return Err(TopologyError::NoPort { node, port });
                }
                let ports = peers.get_mut(node as usize).ok_or(TopologyError::NoNode { node })?;
                if ports[usize::from(port)].replace(peer).is_some() {
                    return Err(TopologyError::PortTaken { node, port });
                }
            }
        }

        towards(&peers, 0)?;
        Ok(peers)
    }
}

/// The node and port at the other end of each node's ports.
type Peers = Vec<[Option<(u32, u8)>; PORTS]>;

/// Returns each node's port on the way to `target`; `None` for the target itself.
fn towards(peers: &Peers, target: u32) -> Result<Vec<Option<u8>>, TopologyError> {
    let mut found: Vec<Option<Option<u8>>> = vec![None; peers.len()];
    let mut queue = VecDeque::from([target]);
    found[target as usize] = Some(None);

    while let Some(node) = queue.pop_front() {
        for (port, peer) in peers[node as usize].iter().enumerate() {
            let Some((peer, peer_port)) = *peer else { continue };
            if found[node as usize] == Some(Some(port as u8)) {
                continue;
            }

            if found[peer as usize].is_some() {
                return Err(TopologyError::Cycle { node: peer });
            }
            found[peer as usize] = Some(Some(peer_port));
            queue.push_back(peer);
        }
    }

    found
        .into_iter()
        .enumerate()
        .map(|(node, port)| port.ok_or(TopologyError::Unreachable { node: node as u32 }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pset_of_sixteen_is_a_binary_tree_below_its_io_node() {
        let topology = Topology::psets(&[16]).unwrap();

        assert_eq!(topology.nodes.len(), 17);
        assert_eq!(topology.links.len(), 16);
        assert_eq!(topology.nodes[0].pset_rank, None);
        assert_eq!(topology.nodes[16].pset_rank, Some(15));
        assert_eq!(topology.nodes[0].routes.targets[2], Route::Port(2));
        assert_eq!(topology.nodes[1].routes.targets[0], Route::Port(0));
        assert_eq!(topology.nodes[5].routes.targets[5], Route::Local);
    }

    #[test]
    fn several_psets_are_connected_and_keep_their_own_classes_apart() {
        let topology = Topology::psets(&[4, 4, 4]).unwrap();

        assert_eq!(topology.validate(), Ok(()));
        let second_io = &topology.nodes[5];
        assert_eq!(second_io.io_node, 5);
        assert_eq!(second_io.routes.classes[CLASS_PSET].up(), 0);
        assert_eq!(second_io.routes.classes[CLASS_PSET].children(), 0b010);
        assert_eq!(second_io.routes.classes[CLASS_ALL].up(), 0b001);
        assert_eq!(second_io.routes.classes[CLASS_ALL].children(), 0b110);
        assert!(!second_io.routes.classes[CLASS_COMPUTE].sends());
    }

    #[test]
    fn the_largest_machine_is_accepted_and_one_node_more_refused() {
        assert!(Topology::psets(&[63; 16]).is_ok());
        assert_eq!(Topology::psets(&[1024]), Err(TopologyError::Nodes { nodes: 1025 }));
    }

    #[test]
    fn a_cycle_is_refused() {
        let mut topology = Topology::psets(&[3]).unwrap();
        topology.links.push(TopologyLink { a: (2, 1), b: (3, 1) });

        assert!(matches!(topology.validate(), Err(TopologyError::Cycle { .. })));
    }

    #[test]
    fn a_missing_link_is_refused() {
        let mut topology = Topology::psets(&[3]).unwrap();
        topology.links.pop();

        assert_eq!(topology.validate(), Err(TopologyError::Unreachable { node: 3 }));
    }

    #[test]
    fn two_links_at_a_port_are_refused() {
        let mut topology = Topology::psets(&[2]).unwrap();
        topology.links.push(TopologyLink { a: (0, 1), b: (2, 1) });

        assert_eq!(topology.validate(), Err(TopologyError::PortTaken { node: 0, port: 1 }));
    }

    #[test]
    fn two_classes_with_different_roots_can_deadlock_and_are_refused() {
        let mut topology = Topology::psets(&[3]).unwrap();
        topology.set_class(4, 3, |_| true).unwrap();

        assert!(matches!(topology.validate(), Err(TopologyError::Deadlock { .. })));
    }

    #[test]
    fn a_class_that_its_neighbour_does_not_know_is_refused() {
        let mut topology = Topology::psets(&[3]).unwrap();
        topology.nodes[1].routes.classes[CLASS_ALL] = ClassRoute::default();

        assert!(matches!(topology.validate(), Err(TopologyError::ClassMismatch { class: CLASS_ALL, .. })));
    }

    #[test]
    fn a_route_the_wrong_way_is_refused() {
        let mut topology = Topology::psets(&[3]).unwrap();
        topology.nodes[0].routes.targets[3] = Route::Port(2);

        assert_eq!(topology.validate(), Err(TopologyError::WrongRoute { node: 0, target: 3 }));
    }
}
