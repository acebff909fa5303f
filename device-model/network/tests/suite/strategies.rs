//! Random shapes.

use nicforge_network::shape::{Cable, CableEnd, Dimension, Torus, Wiring};
use proptest::prelude::*;

/// The largest number of nodes of a random torus.
const NODES: u32 = 64;

/// Tori of 1 to 5 dimensions and at most 64 nodes. Each dimension is a torus or a mesh.
pub(crate) fn torus() -> impl Strategy<Value = Torus> {
    proptest::collection::vec((1u32..=8, any::<bool>()), 1..=5).prop_map(|picks| {
        let mut nodes = 1;
        let dimensions: Vec<_> = picks
            .into_iter()
            .map(|(length, wraps)| {
                let length = length.min(NODES / nodes);
                nodes *= length;
                Dimension { length, wraps }
            })
            .collect();
        Torus::new(&dimensions).unwrap()
    })
}

/// Rings of 3 to 64 nodes.
pub(crate) fn ring() -> impl Strategy<Value = Torus> {
    (3..=NODES).prop_map(|nodes| Torus::new(&[Dimension::torus(nodes)]).unwrap())
}

/// Connected networks of 2 to 24 nodes with six ports each, and cables from a list.
pub(crate) fn wiring() -> impl Strategy<Value = Wiring> {
    let picks = proptest::collection::vec((any::<u32>(), any::<u32>()), 0..60);
    (2u32..24, picks).prop_map(|(nodes, picks)| {
        let mut used = vec![0u8; nodes as usize];
        let mut cables = Vec::new();

        // A tree in which each node has at most four cables keeps the network connected.
        let tree = (1..nodes).map(|node| (node, (node - 1) / 3));
        let more = picks.into_iter().map(|(a, b)| (a % nodes, b % nodes));
        for (a, b) in tree.chain(more) {
            if a != b && used[a as usize] < 6 && used[b as usize] < 6 {
                let end = |node: u32| CableEnd::new(node, used[node as usize]);
                cables.push(Cable { a: end(a), b: end(b) });
                used[a as usize] += 1;
                used[b as usize] += 1;
            }
        }

        Wiring::new(nodes, 6, cables).unwrap()
    })
}
