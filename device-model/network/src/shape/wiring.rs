//! Networks without a rule: cables from a list.

use thiserror::Error;

use super::{Cable, CableEnd, Cabling, MAX_NODES};

/// A network of any shape, built from a list of cables. It stores the far end of each port, which
/// takes 12 bytes for each port of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    nodes: u32,
    ports: u8,
    /// The far ends, by node and then port.
    far_ends: Vec<Option<CableEnd>>,
}

impl Wiring {
    /// Returns the network of these cables. A cable may join two ports of one node.
    ///
    /// # Errors
    /// Each [`WiringError`] is possible.
    pub fn new(nodes: u32, ports: u8, cables: impl IntoIterator<Item = Cable>) -> Result<Self, WiringError> {
        if nodes == 0 || nodes > MAX_NODES {
            return Err(WiringError::Nodes { nodes });
        }

        let mut wiring = Self { nodes, ports, far_ends: vec![None; nodes as usize * usize::from(ports)] };
        for cable in cables {
            wiring.connect(cable, cable.a, cable.b)?;
            wiring.connect(cable, cable.b, cable.a)?;
        }
        Ok(wiring)
    }

    /// Records the far end of one end of a cable.
    fn connect(&mut self, cable: Cable, end: CableEnd, far: CableEnd) -> Result<(), WiringError> {
        let CableEnd { node, port } = end;
        if port >= self.ports {
            return Err(WiringError::NoPort { cable, node, port, ports: self.ports });
        }
        if node >= self.nodes {
            return Err(WiringError::NoNode { cable, node, nodes: self.nodes });
        }

        let index = node as usize * usize::from(self.ports) + usize::from(port);
        match self.far_ends[index].replace(far) {
            None => Ok(()),
            Some(_) => Err(WiringError::PortTaken { node, port }),
        }
    }
}

impl Cabling for Wiring {
    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn ports(&self) -> u8 {
        self.ports
    }

    #[inline]
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        if port >= self.ports {
            return None;
        }
        let index = node as usize * usize::from(self.ports) + usize::from(port);
        self.far_ends.get(index).copied().flatten()
    }
}

/// Reasons why a list of cables is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WiringError {
    /// Too few or too many nodes.
    #[error("a network of {nodes} nodes: choose 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// A cable ends at a node that does not exist.
    #[error("a cable ends at node {node}: the network has nodes 0 to {nodes} less one")]
    NoNode {
        /// The cable.
        cable: Cable,
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// A cable ends at a port that does not exist.
    #[error("a cable ends at port {port} of node {node}: a node has ports 0 to {ports} less one")]
    NoPort {
        /// The cable.
        cable: Cable,
        /// The node.
        node: u32,
        /// The port.
        port: u8,
        /// Number of ports of a node.
        ports: u8,
    },
    /// Two cables end at one port.
    #[error("two cables end at port {port} of node {node}: move one to a free port")]
    PortTaken {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
}
