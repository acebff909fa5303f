//! Class routes: the tree of a collective or a barrier, as each of its nodes sees it.

use nicforge_hwi::mu_packet::DIMENSIONS;

use crate::{Coordinates, Error};

/// Links of a class route: `BGQ_CLASS_LINK_*`.
pub mod link {
    /// A-. The bits of A+, B-, B+, ..., E+ follow below.
    pub const AM: u16 = 1 << 11;
    /// E+.
    pub const EP: u16 = 1 << 2;
    /// The link to an I/O node.
    pub const IO: u16 = 1 << 1;
    /// As an input: the node's own contribution.
    pub const LOCAL: u16 = 1 << 0;

    /// Returns the bit of the link that leads along a dimension, 0 for A: down if `is_down`, else
    /// up.
    pub const fn of(dimension: usize, is_down: bool) -> u16 {
        AM >> (2 * dimension + !is_down as usize)
    }
}

/// A node's part of a class route: `ClassRoute_t`. Packets go *up* to the root, where they are
/// combined, and the result goes *down* to all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRoute {
    /// Links by which packets on the way up come: bits of [`link`].
    pub input: u16,
    /// The link by which the combined packet goes up. The root has none.
    pub output: u16,
}

/// A box of nodes and the root of its tree, the same at all nodes of a class route.
///
/// The tree goes to the root dimension by dimension, A first, and never leaves the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Box5 {
    /// First corner.
    pub first: Coordinates,
    /// Last corner.
    pub last: Coordinates,
    /// Root of the tree.
    pub root: Coordinates,
}

impl Box5 {
    /// Returns the box of all nodes of a network, with the root in the middle, where the tree is
    /// shallowest.
    pub fn whole(shape: Coordinates) -> Self {
        let last = shape.map(|length| length.saturating_sub(1));
        Self { first: [0; DIMENSIONS], last, root: last.map(|last| last / 2) }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        let lengths = self.first.iter().zip(&self.last);
        lengths.map(|(first, last)| u32::from(last.saturating_sub(*first)) + 1).product()
    }

    /// Returns a node's part of the class route. If `contributes` is false, the node forwards the
    /// contributions of other nodes without one of its own. The public name is
    /// `MUSPI_BuildNodeClassRoute`.
    ///
    /// # Errors
    /// [`Error::ClassRoute`] when the box is empty, or the node or the root is outside.
    pub fn route(&self, node: Coordinates, contributes: bool) -> Result<ClassRoute, Error> {
        let Self { first, last, root } = *self;
        let refusal = |what| Error::ClassRoute { what, node, first, last, root };
        let contains = |position: Coordinates| {
            (0..DIMENSIONS)
                .all(|dimension| (first[dimension]..=last[dimension]).contains(&position[dimension]))
        };
        if first.iter().zip(&last).any(|(first, last)| first > last) {
            return Err(refusal("the box is empty"));
        }
        if !contains(root) {
            return Err(refusal("the root is outside"));
        }
        if !contains(node) {
            return Err(refusal("the node is outside"));
        }

        let mut route = ClassRoute { input: if contributes { link::LOCAL } else { 0 }, output: 0 };
        for dimension in 0..DIMENSIONS {
            let (at, to) = (node[dimension], root[dimension]);

            // In all dimensions before this one, the node is where the root is. So it is on the way
            // of the nodes behind it in this dimension, seen from the root.
            if at <= to && at > first[dimension] {
                route.input |= link::of(dimension, true);
            }
            if at >= to && at < last[dimension] {
                route.input |= link::of(dimension, false);
            }

            // A node that is not where the root is goes along this dimension, and is on no other
            // way.
            if at != to {
                route.output = link::of(dimension, to < at);
                break;
            }
        }
        Ok(route)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const BOX: Box5 = Box5 { first: [1, 0, 0, 2, 0], last: [3, 2, 0, 4, 1], root: [2, 1, 0, 4, 0] };

    fn nodes(of: &Box5) -> Vec<Coordinates> {
        let mut nodes = vec![of.first];
        for dimension in 0..DIMENSIONS {
            nodes = nodes
                .into_iter()
                .flat_map(|node| {
                    (of.first[dimension]..=of.last[dimension]).map(move |at| {
                        let mut node = node;
                        node[dimension] = at;
                        node
                    })
                })
                .collect();
        }
        nodes
    }

    fn neighbour(node: Coordinates, bit: u16) -> (Coordinates, u16) {
        let position = (link::AM / bit).trailing_zeros() as usize;
        let (dimension, is_down) = (position / 2, position.is_multiple_of(2));
        let mut to = node;
        to[dimension] = if is_down { to[dimension] - 1 } else { to[dimension] + 1 };
        (to, link::of(dimension, !is_down))
    }

    #[test]
    fn links_have_the_public_bits() {
        let bits: Vec<_> = (0..5).flat_map(|d| [link::of(d, true), link::of(d, false)]).collect();
        assert_eq!(bits, [0x800, 0x400, 0x200, 0x100, 0x80, 0x40, 0x20, 0x10, 0x8, 0x4]);
    }

    #[test]
    fn outputs_and_inputs_of_neighbours_belong_together() {
        let routes: HashMap<_, _> =
            nodes(&BOX).into_iter().map(|node| (node, BOX.route(node, true).unwrap())).collect();
        assert_eq!(routes.len() as u32, BOX.nodes());

        let mut edges = 0;
        for (&node, route) in &routes {
            if route.output == 0 {
                assert_eq!(node, BOX.root);
                continue;
            }
            assert_eq!(route.output.count_ones(), 1);
            let (parent, back) = neighbour(node, route.output);
            assert!(routes[&parent].input & back != 0, "{node:?} to {parent:?}");
            edges += 1;
        }
        let inputs: u32 = routes.values().map(|route| (route.input & !link::LOCAL).count_ones()).sum();
        assert_eq!((edges, inputs), (BOX.nodes() - 1, BOX.nodes() - 1));
    }

    #[test]
    fn each_node_reaches_the_root() {
        for node in nodes(&BOX) {
            let (mut at, mut hops) = (node, 0);
            while at != BOX.root {
                at = neighbour(at, BOX.route(at, true).unwrap().output).0;
                hops += 1;
                assert!(hops < 20, "{node:?} goes round");
            }
        }
    }

    #[test]
    fn a_root_or_a_node_outside_is_an_error() {
        assert!(BOX.route([0; 5], true).is_err());
        assert!(Box5 { root: [0; 5], ..BOX }.route(BOX.first, true).is_err());
        assert!(Box5 { first: [4, 0, 0, 2, 0], ..BOX }.route([4, 0, 0, 2, 0], true).is_err());
    }

    #[test]
    fn a_single_node_has_only_its_own_contribution() {
        let single = Box5::whole([1; 5]);
        assert_eq!(single.route([0; 5], true), Ok(ClassRoute { input: link::LOCAL, output: 0 }));
    }
}
