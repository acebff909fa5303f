//! The links of a topology as a graph.

use std::collections::VecDeque;

use nicforge_hwi::tree::{MAX_NODES, PORTS};

use super::{Topology, TopologyError};

/// The node and port at the other end of each node's ports; `None` for a port without a link.
pub(super) type Peers = Vec<[Option<(u32, u8)>; PORTS]>;

/// Returns each node's port on the way to `target`; `None` for the target itself.
pub(super) fn ports_towards(peers: &Peers, target: u32) -> Result<Vec<Option<u8>>, TopologyError> {
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

impl Topology {
    /// Returns the other end of each port, after a check that the links make a tree.
    pub(super) fn peers(&self) -> Result<Peers, TopologyError> {
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

        // Node 0 reaches every node, by one path.
        ports_towards(&peers, 0)?;
        Ok(peers)
    }
}
