//! Complete trees with a fan-out.

use super::{Cable, CableEnd, Cabling, MAX_PORTS, Shape, ShapeError, checked_nodes};

/// A tree whose nodes have up to `fan_out` children each, filled level by level.
///
/// Node 0 is the root. The children of node `n` are `fan_out n + 1` and the nodes that follow. Port
/// 0 leads to the parent, port `1 + i` to child `i`. Cables come in the order of the children, and
/// their first end is at the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    nodes: u32,
    fan_out: u32,
}

impl Tree {
    /// Returns a tree of this size and fan-out. A fan-out of 1 is a chain.
    ///
    /// # Errors
    /// [`ShapeError::Nodes`], [`ShapeError::FanOut`], [`ShapeError::Ports`].
    pub fn new(nodes: u32, fan_out: u32) -> Result<Self, ShapeError> {
        let nodes = checked_nodes(nodes.into())?;
        if fan_out == 0 {
            return Err(ShapeError::FanOut { nodes });
        }
        if fan_out >= MAX_PORTS {
            return Err(ShapeError::Ports { ports: u64::from(fan_out) + 1 });
        }

        Ok(Self { nodes, fan_out })
    }

    /// Returns the largest number of children of a node.
    #[inline]
    pub fn fan_out(&self) -> u32 {
        self.fan_out
    }

    /// Returns the end above a node: its parent, and the parent's port to it. Returns `None` for
    /// the root and for nodes that do not exist.
    #[inline]
    pub fn parent(&self, node: u32) -> Option<CableEnd> {
        // Children are numbered from 1 on, `fan_out` for each parent.
        let child_index = node.checked_sub(1).filter(|_| node < self.nodes)?;
        Some(CableEnd { node: child_index / self.fan_out, port: 1 + (child_index % self.fan_out) as u8 })
    }
}

impl Cabling for Tree {
    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn ports(&self) -> u8 {
        (self.fan_out + 1) as u8
    }

    #[inline]
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        if node >= self.nodes || port >= self.ports() {
            return None;
        }
        if port == 0 {
            return self.parent(node);
        }

        let child = u64::from(self.fan_out) * u64::from(node) + u64::from(port);
        let child = u32::try_from(child).ok().filter(|&child| child < self.nodes)?;
        Some(CableEnd { node: child, port: 0 })
    }

    fn cables(&self) -> impl Iterator<Item = Cable> {
        (1..self.nodes)
            .filter_map(move |node| Some(Cable { a: self.parent(node)?, b: CableEnd { node, port: 0 } }))
    }
}

/// The look-ups take time in the tree's depth; in a chain they take none.
impl Shape for Tree {
    #[inline]
    fn distance(&self, from: u32, to: u32) -> Option<u32> {
        if from >= self.nodes || to >= self.nodes {
            return None;
        }
        if self.fan_out == 1 {
            return Some(from.abs_diff(to));
        }

        // A parent has a lower number than its child, so the node with the higher number is not
        // above the other: the path leads through its parent.
        let (mut low, mut high, mut hops) = (from.min(to), from.max(to), 0);
        while low != high {
            high = (high - 1) / self.fan_out;
            hops += 1;
            (low, high) = (low.min(high), low.max(high));
        }
        Some(hops)
    }

    #[inline]
    fn port_towards(&self, node: u32, target: u32) -> Option<u8> {
        if node == target || node >= self.nodes || target >= self.nodes {
            return None;
        }
        if self.fan_out == 1 {
            return Some(u8::from(target > node));
        }

        // Climbs from the target. If the path reaches the node, it leaves by the port of a child.
        let mut below = target;
        while below > node {
            let child_index = below - 1;
            if child_index / self.fan_out == node {
                return Some(1 + (child_index % self.fan_out) as u8);
            }
            below = child_index / self.fan_out;
        }
        Some(0)
    }
}
