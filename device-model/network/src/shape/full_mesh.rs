//! Full meshes.

use super::{CableEnd, Cabling, MAX_PORTS, Shape, ShapeError, checked_nodes};

/// A network in which each node has a cable to each other node. A node's ports count the other
/// nodes in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FullMesh {
    nodes: u32,
}

impl FullMesh {
    /// Returns a full mesh of 1 to 256 nodes.
    ///
    /// # Errors
    /// [`ShapeError::Nodes`], [`ShapeError::Ports`].
    pub fn new(nodes: u32) -> Result<Self, ShapeError> {
        let nodes = checked_nodes(nodes.into())?;
        if nodes - 1 > MAX_PORTS {
            return Err(ShapeError::Ports { ports: u64::from(nodes) - 1 });
        }
        Ok(Self { nodes })
    }
}

/// Returns the port of `node` that leads to `other`, which is another node.
#[inline]
fn port(node: u32, other: u32) -> u8 {
    if other < node { other as u8 } else { (other - 1) as u8 }
}

impl Cabling for FullMesh {
    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn ports(&self) -> u8 {
        (self.nodes - 1) as u8
    }

    #[inline]
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        if node >= self.nodes || port >= self.ports() {
            return None;
        }

        // The ports skip the node itself.
        let other = if u32::from(port) < node { u32::from(port) } else { u32::from(port) + 1 };
        Some(CableEnd { node: other, port: self::port(other, node) })
    }
}

impl Shape for FullMesh {
    #[inline]
    fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let exist = from < self.nodes && to < self.nodes;
        exist.then(|| u32::from(from != to))
    }

    #[inline]
    fn port_towards(&self, node: u32, target: u32) -> Option<u8> {
        let leaves = node != target && node < self.nodes && target < self.nodes;
        leaves.then(|| port(node, target))
    }
}
