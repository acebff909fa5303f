//! All-to-all: each node sends a block to each other node, in a random order of its own.

use nicforge_driver::{Cancel, Deadline};

use crate::{DirectPut, Error, NodePosition, Payload, Subgroup, descriptor::direct_put};

/// The other nodes of a network, in an order that differs from node to node.
///
/// Nodes that all send in the same order meet at the same destination. The paper gives no order,
/// and Kumar et al. (ICPP 2008) randomize it on Blue Gene/L.
#[derive(Clone, Debug)]
pub struct RandomOrder(Vec<u32>);

impl RandomOrder {
    /// Returns the ranks of all nodes but this one in a random order, which `seed` determines.
    pub fn new(position: &NodePosition, seed: u64) -> Self {
        let own_rank = position.rank();
        let mut ranks: Vec<_> = (0..position.nodes()).filter(|rank| *rank != own_rank).collect();
        // The constant keeps the seed of rank 0 apart from `seed`.
        let mut random = SplitMix(seed ^ (u64::from(own_rank) << 32 | 0x5eed));

        // Fisher and Yates's shuffle.
        for last in (1..ranks.len()).rev() {
            ranks.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self(ranks)
    }

    /// Returns the nodes' numbers.
    pub fn ranks(&self) -> &[u32] {
        &self.0
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    /// Returns the next number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Returns a number below `end`. All of them are about equally frequent.
    fn below(&mut self, end: u64) -> u64 {
        // The number is a fraction of 2^64, which scales `end`.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// The blocks that a node sends in an all-to-all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Address of the blocks to be sent. They lie behind each other, in the order of the nodes that
    /// get them.
    pub source: u64,
    /// Bytes of a block, at least 1.
    pub bytes: u64,
    /// The target of the blocks, the same at all nodes: they lie behind each other from `offset`
    /// on, in the order of the nodes that send them.
    pub target: DirectPut,
}

impl Subgroup {
    /// Sends a block to each node of an order, by direct puts with dynamic routing, through the
    /// given injection FIFOs in turn. Waits until the unit has read all blocks.
    ///
    /// A node has received everything when its counter, which it sets to `(nodes - 1) * bytes`
    /// before any node sends, is 0: [`Subgroup::wait_counter`].
    ///
    /// # Errors
    /// [`crate::DescriptorError`] for blocks that are not possible; as [`Subgroup::inject`].
    pub fn all_to_all(
        &mut self,
        fifos: &[u8],
        order: &RandomOrder,
        blocks: &Blocks,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let position = self.position();
        let own_offset = u64::from(position.rank()) * blocks.bytes;
        let target = DirectPut { offset: blocks.target.offset.saturating_add(own_offset), ..blocks.target };

        for (&rank, &fifo) in order.ranks().iter().zip(fifos.iter().cycle()) {
            let to = position.coordinates(rank).unwrap_or(position.own);
            let source = blocks.source.saturating_add(u64::from(rank) * blocks.bytes);
            let put = direct_put(Payload::memory(source, blocks.bytes), position.dynamic(to), &target)?;
            self.inject(fifo, &put, deadline, cancel)?;
        }

        for &fifo in fifos {
            let last = self.injection().injected(fifo)?;
            self.injection().wait_done(fifo, last, deadline, cancel)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(own: [u8; 5]) -> NodePosition {
        NodePosition { shape: [2, 3, 2, 1, 2], own }
    }

    #[test]
    fn an_order_has_each_other_node_once() {
        let position_of_node = position([1, 2, 0, 0, 1]);
        let mut ranks = RandomOrder::new(&position_of_node, 7).ranks().to_vec();
        ranks.sort_unstable();
        let others: Vec<_> = (0..24).filter(|rank| *rank != position_of_node.rank()).collect();
        assert_eq!(ranks, others);
    }

    #[test]
    fn orders_differ_by_node_and_seed_and_repeat() {
        let first = RandomOrder::new(&position([0; 5]), 1);
        assert_eq!(first.ranks(), RandomOrder::new(&position([0; 5]), 1).ranks());
        assert_ne!(first.ranks(), RandomOrder::new(&position([0; 5]), 2).ranks());
        assert_ne!(first.ranks()[..20], RandomOrder::new(&position([1, 0, 0, 0, 0]), 1).ranks()[..20]);
    }

    #[test]
    fn the_only_node_of_a_network_has_an_empty_order() {
        let only_node = NodePosition { shape: [1; 5], own: [0; 5] };
        assert!(RandomOrder::new(&only_node, 0).ranks().is_empty());
    }
}
