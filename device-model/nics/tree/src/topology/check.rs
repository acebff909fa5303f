//! Checks that a topology is a machine whose packets all arrive.

use nicforge_hwi::tree::PORTS;
use nicforge_network::{
    deadlock::{Channel, DeadlockError, NodeChannels, WaitGraph},
    shape::{CableEnd, Cabling, Wiring},
};

use super::{Topology, TopologyError, links::ports_towards};
use crate::config::{CLASSES, Route};

impl Topology {
    /// Checks that links and routes make a machine whose packets all arrive.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let wiring = self.wiring()?;

        for target in 0..wiring.nodes() {
            for (address, port) in ports_towards(&wiring, target)?.into_iter().enumerate() {
                let route =
                    self.nodes[address].routes.targets.get(target as usize).copied().unwrap_or_default();
                if route != port.map_or(Route::Local, Route::Port) {
                    return Err(TopologyError::WrongRoute { node: address as u32, target });
                }
            }
        }

        self.check_classes(&wiring)?;
        self.check_waiting(&wiring)
    }

    /// Checks that both ends of each link agree which one is up, in each class.
    fn check_classes(&self, wiring: &Wiring) -> Result<(), TopologyError> {
        for address in 0..self.nodes.len() {
            for (class, port) in
                (0..CLASSES).flat_map(|class| (0..PORTS as u8).map(move |port| (class, port)))
            {
                if !self.class_fits(wiring, class, address, port) {
                    return Err(TopologyError::ClassMismatch { class, node: address as u32, port });
                }
            }
        }
        Ok(())
    }

    /// Returns whether a node's route of a class fits the node at the other end of a port.
    fn class_fits(&self, wiring: &Wiring, class: usize, address: usize, port: u8) -> bool {
        let (route, bit) = (self.nodes[address].routes.classes[class], 1u8 << port);
        let (is_child, is_up) = (route.children() & bit != 0, route.up() & bit != 0);
        // A node has one parent, which is no child.
        if is_up && (is_child || route.up() != bit) {
            return false;
        }

        let Some(peer) = wiring.far_end(address as u32, port) else { return !is_child && !is_up };
        let (peer_route, peer_bit) = (self.nodes[peer.node as usize].routes.classes[class], 1u8 << peer.port);
        is_child == (peer_route.up() & peer_bit != 0) && is_up == (peer_route.children() & peer_bit != 0)
    }

    /// Searches for cycles of waiting among the buffers of the links.
    ///
    /// Each direction of a link waits for those that its packets take next. Point-to-point packets
    /// never turn round; the packets of a class do so at its root.
    fn check_waiting(&self, wiring: &Wiring) -> Result<(), TopologyError> {
        let mut graph = WaitGraph::new(wiring, NodeChannels { vcs: 1, fifos: 0 })?;

        for node in 0..wiring.nodes() {
            for (port, peer) in wiring.neighbours(node) {
                let from = channel(CableEnd { node, port });
                for exit in self.exits(wiring, peer) {
                    graph.add_wait(from, channel(exit))?;
                }
            }
        }

        Ok(graph.check()?)
    }

    /// Returns the ports of a node by which packets may leave that arrived at its port `entry`.
    fn exits(&self, wiring: &Wiring, entry: CableEnd) -> impl Iterator<Item = CableEnd> {
        let classes = &self.nodes[entry.node as usize].routes.classes;
        let turns = classes.iter().any(|route| route.up() == 0 && route.children() & (1 << entry.port) != 0);

        wiring
            .neighbours(entry.node)
            .filter(move |&(port, _)| turns || port != entry.port)
            .map(move |(port, _)| CableEnd { node: entry.node, port })
    }
}

/// Returns the channel of a link, as packets enter it at a port. The two virtual channels of a link
/// have the same routes, and a packet stays in its own.
fn channel(end: CableEnd) -> Channel {
    Channel::Link { node: end.node, port: end.port, vc: 0 }
}

impl From<DeadlockError> for TopologyError {
    fn from(error: DeadlockError) -> Self {
        match error {
            DeadlockError::Deadlock { cycle } => {
                let (node, port, _) = cycle.first_link().unwrap_or_default();
                Self::Deadlock { node, port, cycle }
            }
            other => Self::Check(other),
        }
    }
}
