//! The ranks of a job, and their addresses.

use std::fmt;

use nicforge_hwi::mu::USER_SUBGROUPS;
use nicforge_matching::Rank;
use nicforge_spi::NodePosition;

use crate::Error;

/// Address of a rank in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankAddress {
    /// Number of the node ([`NodePosition::rank`]).
    pub node: u32,
    /// Application subgroup of the node, 0 to 63.
    pub subgroup: u16,
}

impl fmt::Display for RankAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subgroup {} of node {}", self.subgroup, self.node)
    }
}

/// The ranks of a parallel program, each a subgroup of a node. All ranks must use the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    addresses: Vec<RankAddress>,
}

impl Job {
    /// Creates a job from the ranks' addresses, rank 0 first.
    pub fn new(addresses: Vec<RankAddress>) -> Self {
        Self { addresses }
    }

    /// Creates a job of subgroups 0 to `per_node` - 1 of nodes 0 to `nodes` - 1, node by node.
    pub fn of_nodes(nodes: u32, per_node: u16) -> Self {
        let of_node = |node| (0..per_node).map(move |subgroup| RankAddress { node, subgroup });
        Self::new((0..nodes).flat_map(of_node).collect())
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// Returns the address of a rank.
    pub fn address(&self, rank: Rank) -> Option<RankAddress> {
        self.addresses.get(rank as usize).copied()
    }

    /// Returns the rank at an address.
    pub fn rank(&self, address: RankAddress) -> Option<Rank> {
        self.addresses.iter().position(|&other| other == address).map(|rank| rank as Rank)
    }

    /// Returns the addresses of the ranks, rank 0 first.
    pub(crate) fn addresses(&self) -> &[RankAddress] {
        &self.addresses
    }

    /// Checks that all addresses exist in a network, and no two ranks have the same.
    pub(crate) fn check(&self, position: &NodePosition) -> Result<(), Error> {
        let nodes = position.nodes();
        let mut sorted = Vec::with_capacity(self.addresses.len());

        for (rank, &address) in (0..).zip(&self.addresses) {
            if address.node >= nodes || address.subgroup >= USER_SUBGROUPS {
                return Err(Error::NoSuchAddress { rank, address, nodes });
            }
            sorted.push((address, rank));
        }

        // Equal addresses are neighbours after sorting.
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(Error::SameAddress { first: pair[0].1, second: pair[1].1, address: pair[0].0 }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: NodePosition = NodePosition { shape: [2, 1, 1, 1, 1], own: [0; 5] };

    fn at(node: u32, subgroup: u16) -> RankAddress {
        RankAddress { node, subgroup }
    }

    #[test]
    fn ranks_and_addresses_map_to_each_other() {
        let job = Job::of_nodes(3, 2);
        assert_eq!(job.size(), 6);
        assert_eq!((job.address(3), job.rank(at(1, 1))), (Some(at(1, 1)), Some(3)));
        assert_eq!((job.address(6), job.rank(at(0, 2))), (None, None));
    }

    #[test]
    fn impossible_jobs_are_refused() {
        assert_eq!(Job::of_nodes(2, 64).check(&PLACE), Ok(()));
        let refused = Job::of_nodes(3, 1).check(&PLACE);
        assert_eq!(refused, Err(Error::NoSuchAddress { rank: 2, address: at(2, 0), nodes: 2 }));

        let refused = Job::new(vec![at(1, 0), at(0, 0), at(1, 0)]).check(&PLACE);
        assert_eq!(refused, Err(Error::SameAddress { first: 0, second: 2, address: at(1, 0) }));
    }
}
