//! The ranks of a job, and their addresses.

use nicforge_driver::{Device, environment};
use nicforge_hwi::extoll::mirror;
use nicforge_matching::Rank;
use nicforge_velo::Address;

use crate::Error;

/// BAR of the mirror.
const BAR_MIRROR: u8 = 2;

/// The ranks of a parallel program, each a VPID of a card. All ranks must use the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    addresses: Vec<Address>,
}

/// The address of a device, and the size of its network.
pub(crate) struct NetworkPosition {
    pub(crate) address: Address,
    pub(crate) nodes: u32,
    pub(crate) vpids: u32,
}

impl NetworkPosition {
    /// Reads the mirror of a device.
    pub(crate) fn of(device: &Device) -> Result<Self, Error> {
        let mirror_bar = device.bar(BAR_MIRROR)?;
        Ok(Self {
            address: Address {
                node: mirror_bar.read32(mirror::NODE)?,
                vpid: mirror_bar.read32(mirror::VPID)? as u16,
            },
            nodes: mirror_bar.read32(mirror::NODES)?,
            vpids: mirror_bar.read32(mirror::VPIDS)?,
        })
    }
}

impl Job {
    /// Creates a job from the ranks' addresses, rank 0 first.
    pub fn new(addresses: Vec<Address>) -> Self {
        Self { addresses }
    }

    /// Creates a job of VPIDs 0 to `per_node` - 1 of nodes 0 to `nodes` - 1, node by node.
    pub fn of_nodes(nodes: u32, per_node: u16) -> Self {
        let of_node = |node| (0..per_node).map(move |vpid| Address { node, vpid });
        Self::new((0..nodes).flat_map(of_node).collect())
    }

    /// Returns the job of a program that `nicforge run` has started: a rank for each node of
    /// `device`'s network, at the first VPID. With `--per-core` it has a rank for each VPID, node
    /// by node.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn from_environment(device: &Device) -> Result<Self, Error> {
        let position = NetworkPosition::of(device)?;
        let per_node = if environment::core()?.is_some() { position.vpids as u16 } else { 1 };
        Ok(Self::of_nodes(position.nodes, per_node))
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// Returns the address of a rank.
    pub fn address(&self, rank: Rank) -> Option<Address> {
        self.addresses.get(rank as usize).copied()
    }

    /// Returns the rank at an address.
    pub fn rank(&self, address: Address) -> Option<Rank> {
        self.addresses.iter().position(|&other| other == address).map(|rank| rank as Rank)
    }

    /// Returns the greatest number of ranks on one node.
    pub(crate) fn max_ranks_per_node(&self) -> u32 {
        let mut nodes: Vec<u32> = self.addresses.iter().map(|address| address.node).collect();

        nodes.sort_unstable();
        nodes.chunk_by(|one, other| one == other).map(|same| same.len() as u32).max().unwrap_or(0)
    }

    /// Returns the rank at each address of a network.
    pub(crate) fn table(&self, position: &NetworkPosition) -> Result<RankTable, Error> {
        let (nodes, vpids) = (position.nodes, position.vpids);
        let mut table = vec![NO_RANK; nodes as usize * vpids as usize];

        for (rank, &address) in self.addresses.iter().enumerate() {
            let rank = rank as Rank;
            let exists = address.node < nodes && u32::from(address.vpid) < vpids;
            let index = address.node as usize * vpids as usize + usize::from(address.vpid);

            match table.get_mut(index).filter(|_| exists) {
                None => return Err(Error::NoSuchAddress { rank, address, nodes, vpids }),
                Some(entry) if *entry != NO_RANK => {
                    return Err(Error::SameAddress { first: *entry, second: rank, address });
                }
                Some(entry) => *entry = rank,
            }
        }
        Ok(RankTable { vpids, ranks: table })
    }
}

/// In place of a rank: no rank.
const NO_RANK: Rank = Rank::MAX;

/// The ranks of a job by their addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RankTable {
    vpids: u32,
    /// By node, then VPID; [`NO_RANK`] for an address without a rank.
    ranks: Vec<Rank>,
}

impl RankTable {
    /// Returns the rank at an address of the network.
    #[inline]
    pub(crate) fn at(&self, address: Address) -> Option<Rank> {
        let index = address.node as usize * self.vpids as usize + usize::from(address.vpid);
        self.ranks.get(index).copied().filter(|rank| *rank != NO_RANK)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn at(node: u32, vpid: u16) -> Address {
        Address { node, vpid }
    }

    #[test]
    fn ranks_and_addresses_map_to_each_other() {
        let job = Job::of_nodes(3, 2);
        assert_eq!((job.size(), job.max_ranks_per_node()), (6, 2));

        assert_eq!((job.address(3), job.rank(at(1, 1))), (Some(at(1, 1)), Some(3)));
        assert_eq!((job.address(6), job.rank(at(0, 2))), (None, None));

        let table = job.table(&NetworkPosition { address: at(0, 0), nodes: 3, vpids: 4 }).unwrap();
        assert_eq!(table.ranks, [0, 1, NO_RANK, NO_RANK, 2, 3, NO_RANK, NO_RANK, 4, 5, NO_RANK, NO_RANK]);
    }

    #[test]
    fn impossible_jobs_are_refused() {
        let position = NetworkPosition { address: at(0, 0), nodes: 2, vpids: 2 };
        let refused = Job::of_nodes(2, 3).table(&position);

        assert_eq!(refused, Err(Error::NoSuchAddress { rank: 2, address: at(0, 2), nodes: 2, vpids: 2 }));

        let refused = Job::new(vec![at(1, 0), at(0, 0), at(1, 0)]).table(&position);
        assert_eq!(refused, Err(Error::SameAddress { first: 0, second: 2, address: at(1, 0) }));
    }
}
