//! Patterns of traffic: the targets of each node.

use nicforge_network::{
    router::policies::{TorusWord, WordError},
    shape::{Cabling, Torus},
};
use serde::Serialize;

use super::random::{Permutation, Random};

/// A pattern of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Pattern {
    /// Each packet goes to a random other node.
    Uniform,
    /// Each node goes through all other nodes in a random order of its own, again and again, with
    /// another order each time.
    PermutationWalk,
    /// Each node sends to its neighbours in turn, in the order of its ports.
    NearestNeighbour,
    /// Each node sends a number of packets to each other node, in random orders, and then no more.
    /// The measurement ends when all have arrived.
    AllToAll {
        /// Packets from each node to each other node.
        packets: u32,
    },
    /// Each node sends to the node half a ring away in the longest dimension, so that each packet
    /// crosses the middle of the network.
    Bisection,
    /// A share of the packets goes to one node, and the rest to random other nodes.
    HotSpot {
        /// The node.
        node: u32,
        /// The share in percent.
        percent: u8,
    },
}

/// The targets of one node.
#[derive(Debug)]
pub(super) struct Targets {
    pattern: Pattern,
    torus: Torus,
    node: u32,
    /// Position in the present order, or among the ports.
    position: u32,
    /// Number of orders that have begun.
    rounds: u32,
    /// The present order of the other nodes, as distances between their numbers and this node's,
    /// less one.
    order: Permutation,
}

impl Targets {
    pub(super) fn new(pattern: Pattern, torus: Torus, node: u32, random: &mut Random) -> Self {
        let others = torus.nodes() - 1;
        Self { pattern, torus, node, position: 0, rounds: 1, order: Permutation::new(others.max(1), random) }
    }

    /// Returns the route word of the next packet, or `None` if the node sends no more.
    pub(super) fn next(&mut self, random: &mut Random) -> Option<Result<TorusWord, WordError>> {
        // One bit for each dimension: where both directions are equally short, a packet takes a
        // random one.
        let ties = random.next() as u8;
        let target = match self.pattern {
            Pattern::Uniform => self.random_other_node(random),
            Pattern::PermutationWalk => self.next_in_order(u32::MAX, random)?,
            Pattern::AllToAll { packets } => self.next_in_order(packets, random)?,
            Pattern::NearestNeighbour => return self.next_neighbour_word(),
            Pattern::Bisection => self.opposite()?,
            Pattern::HotSpot { node, percent } => {
                let is_hot = random.below(100) < u32::from(percent) && node != self.node;
                if is_hot { node } else { self.random_other_node(random) }
            }
        };
        Some(TorusWord::between(&self.torus, self.node, target, ties))
    }

    /// Returns a random other node.
    fn random_other_node(&self, random: &mut Random) -> u32 {
        let nodes = self.torus.nodes();
        (self.node + 1 + random.below(nodes - 1)) % nodes
    }

    /// Returns the next node in this node's order of the others. Begins another order at its end.
    /// Returns `None` after `rounds` orders.
    fn next_in_order(&mut self, rounds: u32, random: &mut Random) -> Option<u32> {
        let nodes = self.torus.nodes();
        if self.position == nodes - 1 {
            if self.rounds == rounds {
                return None;
            }
            self.order = Permutation::new(nodes - 1, random);
            self.position = 0;
            self.rounds = self.rounds.saturating_add(1);
        }

        let step = self.order.at(self.position);
        self.position += 1;
        Some((self.node + 1 + step) % nodes)
    }

    /// Returns the route word of a packet to the next neighbour, by the port that leads there.
    fn next_neighbour_word(&mut self) -> Option<Result<TorusWord, WordError>> {
        let ports = u32::from(self.torus.ports());
        for _ in 0..ports {
            let port = self.position as u8;
            self.position = (self.position + 1) % ports;

            if let Some(far) = self.torus.far_end(self.node, port)
                && far.node != self.node
            {
                // In a ring of two nodes, both directions are equally short.
                let ties = if port % 2 == 1 { u8::MAX } else { 0 };
                return Some(TorusWord::between(&self.torus, self.node, far.node, ties));
            }
        }
        None
    }

    /// Returns the node half a ring away in the longest dimension.
    fn opposite(&self) -> Option<u32> {
        let dimensions = self.torus.dimensions().iter().enumerate();
        let (longest, dimension) = dimensions.max_by_key(|(_, dimension)| dimension.length)?;
        let mut coordinates = self.torus.coordinates(self.node)?.to_vec();
        coordinates[longest] = (coordinates[longest] + dimension.length / 2) % dimension.length;
        self.torus.node(&coordinates)
    }
}
