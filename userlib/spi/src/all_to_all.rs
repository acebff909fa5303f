//! All-to-all: each node sends a block to each other node, in a random order of its own.

use nicforge_driver::{Cancel, Deadline};

use crate::{DirectPut, Error, Payload, Place, Subgroup, descriptor::direct_put};

/// The other nodes of a network, in an order that differs from node to node.
///
/// Nodes that all send in the same order meet at the same destination. The paper gives no order,
/// and Kumar et al. (ICPP 2008) randomize it on Blue Gene/L.
#[derive(Clone, Debug)]
pub struct RandomOrder(Vec<u32>);

impl RandomOrder {
    /// Returns an order of all nodes but this one. The same seed gives the same orders.
    pub fn new(place: &Place, seed: u64) -> Self {
        let own = place.rank();
        let mut ranks: Vec<_> = (0..place.nodes()).filter(|rank| *rank != own).collect();
        let mut random = SplitMix(seed ^ (u64::from(own) << 32 | 0x5eed));

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
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Returns a number below `end`, each about as often.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Blocks of an all-to-all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Address of the blocks to be sent, by the number of the node that gets each.
    pub source: u64,
    /// Bytes of a block, at least 1.
    pub bytes: u64,
    /// Where the blocks go, the same at all nodes: after `offset`, by the number of the node that
    /// sends each.
    pub target: DirectPut,
}

impl Subgroup {
    /// Sends a block to each node of an order, by direct puts with dynamic routing, through the
    /// given injection FIFOs in turn. Waits until the unit has read all blocks.
    ///
    /// A node has received everything when its counter, which it sets to `(nodes - 1) * bytes`
    /// before anyone sends, is 0: [`Subgroup::wait_counter`].
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
        let place = self.place();
        let own = u64::from(place.rank()) * blocks.bytes;
        let target = DirectPut { offset: blocks.target.offset.saturating_add(own), ..blocks.target };

        for (&rank, &fifo) in order.ranks().iter().zip(fifos.iter().cycle()) {
            let to = place.coordinates(rank).unwrap_or(place.own);
            let source = blocks.source.saturating_add(u64::from(rank) * blocks.bytes);
            let put = direct_put(Payload::memory(source, blocks.bytes), place.dynamic(to), &target)?;
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

    fn place(own: [u8; 5]) -> Place {
        Place { shape: [2, 3, 2, 1, 2], own }
    }

    #[test]
    fn an_order_has_each_other_node_once() {
        let here = place([1, 2, 0, 0, 1]);
        let mut ranks = RandomOrder::new(&here, 7).ranks().to_vec();
        ranks.sort_unstable();
        let others: Vec<_> = (0..24).filter(|rank| *rank != here.rank()).collect();
        assert_eq!(ranks, others);
    }

    #[test]
    fn orders_differ_by_node_and_seed_and_repeat() {
        let first = RandomOrder::new(&place([0; 5]), 1);
        assert_eq!(first.ranks(), RandomOrder::new(&place([0; 5]), 1).ranks());
        assert_ne!(first.ranks(), RandomOrder::new(&place([0; 5]), 2).ranks());
        assert_ne!(first.ranks()[..20], RandomOrder::new(&place([1, 0, 0, 0, 0]), 1).ranks()[..20]);
    }

    #[test]
    fn a_node_alone_has_nobody_to_send_to() {
        let alone = Place { shape: [1; 5], own: [0; 5] };
        assert!(RandomOrder::new(&alone, 0).ranks().is_empty());
    }
}
