//! The links of a topology as a graph.

use std::collections::VecDeque;

use nicforge_hwi::tree::{MAX_NODES, PORTS};
use nicforge_network::shape::{Cable, CableEnd, Cabling, Wiring, WiringError};

use super::{Topology, TopologyError, TopologyLink};

impl From<TopologyLink> for Cable {
    fn from(link: TopologyLink) -> Self {
        let end = |(node, port)| CableEnd { node, port };
        Self { a: end(link.a), b: end(link.b) }
    }
}

impl From<WiringError> for TopologyError {
    fn from(error: WiringError) -> Self {
        match error {
            WiringError::Nodes { nodes } => Self::Nodes { nodes: nodes as usize },
            WiringError::NoNode { node, .. } => Self::NoNode { node },
            WiringError::NoPort { node, port, .. } => Self::NoPort { node, port },
            WiringError::PortTaken { node, port } => Self::PortTaken { node, port },
        }
    }
}

/// Returns each node's port on the way to `target`; `None` for the target itself.
pub(super) fn ports_towards(wiring: &Wiring, target: u32) -> Result<Vec<Option<u8>>, TopologyError> {
    // The nodes found so far, each with its port on the way; the target itself has none.
    let mut found: Vec<Option<Option<u8>>> = vec![None; wiring.nodes() as usize];
    let mut queue = VecDeque::from([target]);
    found[target as usize] = Some(None);

    while let Some(node) = queue.pop_front() {
        for (port, peer) in wiring.neighbours(node) {
            // This is the link by which the search came to the node.
            if found[node as usize] == Some(Some(port)) {
                continue;
            }

            if found[peer.node as usize].is_some() {
                return Err(TopologyError::Cycle { node: peer.node });
            }
            found[peer.node as usize] = Some(Some(peer.port));
            queue.push_back(peer.node);
        }
    }

    found
        .into_iter()
        .enumerate()
        .map(|(node, port)| port.ok_or(TopologyError::Unreachable { node: node as u32 }))
        .collect()
}

impl Topology {
    /// Returns the network of the links, after a check that they make a tree.
    pub(super) fn wiring(&self) -> Result<Wiring, TopologyError> {
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES as usize {
            return Err(TopologyError::Nodes { nodes: self.nodes.len() });
        }

        let cables = self.links.iter().copied().map(Cable::from);
        let wiring = Wiring::new(self.nodes.len() as u32, PORTS as u8, cables)?;

        // Node 0 reaches every node, by one path.
        ports_towards(&wiring, 0)?;
        Ok(wiring)
    }
}
