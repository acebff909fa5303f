//! Checks that a topology is a machine whose packets all arrive.

use std::collections::VecDeque;

use nicforge_hwi::tree::PORTS;

use super::{
    Topology, TopologyError,
    links::{Peers, ports_towards},
};
use crate::config::{CLASSES, Route};

impl Topology {
    /// Checks that links and routes make a machine whose packets all arrive.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let peers = self.peers()?;

        for target in 0..peers.len() as u32 {
            for (address, port) in ports_towards(&peers, target)?.into_iter().enumerate() {
                let route =
                    self.nodes[address].routes.targets.get(target as usize).copied().unwrap_or_default();
                if route != port.map_or(Route::Local, Route::Port) {
                    return Err(TopologyError::WrongRoute { node: address as u32, target });
                }
            }
        }

        self.check_classes(&peers)?;
        self.check_waiting(&peers)
    }

    /// Checks that both ends of each link agree which one is up, in each class.
    fn check_classes(&self, peers: &Peers) -> Result<(), TopologyError> {
        for address in 0..self.nodes.len() {
            for (class, port) in
                (0..CLASSES).flat_map(|class| (0..PORTS as u8).map(move |port| (class, port)))
            {
                if !self.class_fits(peers, class, address, port) {
                    return Err(TopologyError::ClassMismatch { class, node: address as u32, port });
                }
            }
        }
        Ok(())
    }

    /// Returns whether a node's route of a class fits the node at the other end of a port.
    fn class_fits(&self, peers: &Peers, class: usize, address: usize, port: u8) -> bool {
        let (route, bit) = (self.nodes[address].routes.classes[class], 1u8 << port);
        let (child, up) = (route.children() & bit != 0, route.up() & bit != 0);
        if up && (child || route.up() != bit) {
            return false;
        }

        let Some((peer, peer_port)) = peers[address][usize::from(port)] else { return !child && !up };
        let (theirs, bit) = (self.nodes[peer as usize].routes.classes[class], 1u8 << peer_port);
        child == (theirs.up() & bit != 0) && up == (theirs.children() & bit != 0)
    }

    /// Searches for cycles of waiting among the buffers of the links.
    ///
    /// Each direction of a link waits for those that its packets take next. Point-to-point packets
    /// never turn round; the packets of a class do so at its root.
    fn check_waiting(&self, peers: &Peers) -> Result<(), TopologyError> {
        let waits = self.waits(peers);
        let mut users = vec![0u32; waits.len()];
        for exit in waits.iter().flatten() {
            users[*exit] += 1;
        }

        // Remove each port that no other port waits for. The ports that are left have a cycle.
        let mut free: VecDeque<usize> = (0..waits.len()).filter(|&exit| users[exit] == 0).collect();
        while let Some(exit) = free.pop_front() {
            for &next in &waits[exit] {
                users[next] -= 1;
                if users[next] == 0 {
                    free.push_back(next);
                }
            }
        }

        match users.iter().position(|&users| users > 0) {
            Some(exit) => {
                Err(TopologyError::Deadlock { node: (exit / PORTS) as u32, port: (exit % PORTS) as u8 })
            }
            None => Ok(()),
        }
    }

    /// Returns, for each port of each node, the ports that it waits for: those through which its
    /// packets leave the next node. The ports of all nodes are numbered in a row.
    fn waits(&self, peers: &Peers) -> Vec<Vec<usize>> {
        let next_exits = |peer: &Option<(u32, u8)>| {
            let Some((node, entry)) = *peer else { return Vec::new() };
            let turns = self.nodes[node as usize]
                .routes
                .classes
                .iter()
                .any(|route| route.up() == 0 && route.children() & (1 << entry) != 0);

            (0..PORTS)
                .filter(|&exit| peers[node as usize][exit].is_some())
                .filter(|&exit| turns || exit != usize::from(entry))
                .map(|exit| node as usize * PORTS + exit)
                .collect()
        };

        peers.iter().flatten().map(next_exits).collect()
    }
}
