//! The directory of a card: which addresses the network has, and which of them have a tenant.

use nicforge_driver::Device;
use nicforge_hwi::extoll::{BAR_DIRECTORY, directory, mirror};
use nicforge_shm::Window;

use crate::{Address, Error, card::BAR_MIRROR, tenant::Tenant};

/// The addresses of a network, and the card's table of their generations.
///
/// Invariant: the table has a byte for each address of the `nodes` times `vpids` of the network.
pub(crate) struct Directory {
    nodes: u32,
    vpids: u32,
    generations: Window,
}

/// The index of an address in the card's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry(u64);

impl TableEntry {
    /// Returns the index of an address.
    #[inline]
    pub(crate) fn of(address: Address) -> Self {
        Self(u64::from(address.node) * directory::STRIDE + u64::from(address.vpid))
    }
}

impl Directory {
    /// Opens the directory of a card. Returns it, and the device's own address.
    pub(crate) fn open(device: &Device) -> Result<(Self, Address), Error> {
        let registers = device.bar(BAR_MIRROR)?;
        let (node, vpid) = (registers.read32(mirror::NODE)?, registers.read32(mirror::VPID)?);
        let (nodes, vpids) = (registers.read32(mirror::NODES)?, registers.read32(mirror::VPIDS)?);

        if vpid >= vpids || node >= nodes {
            let found = format!("attachment {vpid} of node {node} is the admin's");
            return Err(Error::WrongDevice { found });
        }

        let generations = device.bar(BAR_DIRECTORY)?.window(0, u64::from(nodes) * directory::STRIDE)?;
        Ok((Self { nodes, vpids, generations }, Address { node, vpid: vpid as u16 }))
    }

    /// Returns the number of nodes of the network.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of VPIDs of each node.
    pub(crate) fn vpids(&self) -> u32 {
        self.vpids
    }

    /// Returns the number of an address, by node, then VPID; `None` when the network has no such
    /// address.
    #[inline]
    pub(crate) fn index(&self, address: Address) -> Option<usize> {
        (address.node < self.nodes && u32::from(address.vpid) < self.vpids)
            .then(|| address.node as usize * self.vpids as usize + usize::from(address.vpid))
    }

    /// Returns the address that has a number.
    pub(crate) fn address_of(&self, index: usize) -> Address {
        let index = index as u32;
        Address { node: index / self.vpids, vpid: (index % self.vpids) as u16 }
    }

    /// Returns the node of the address that has a number.
    pub(crate) fn node_of(&self, index: usize) -> usize {
        index / self.vpids as usize
    }

    /// Returns the numbers of a node's addresses.
    pub(crate) fn indices_of(&self, node: usize) -> std::ops::Range<usize> {
        let vpids = self.vpids as usize;
        node * vpids..(node + 1) * vpids
    }

    /// Returns the generation that the table shows for an address.
    #[inline]
    pub(crate) fn generation(&self, address: Address) -> u8 {
        self.generation_at(TableEntry::of(address))
    }

    /// Returns the generation in an entry of the table.
    #[inline]
    pub(crate) fn generation_at(&self, TableEntry(entry): TableEntry) -> u8 {
        self.generations.load_u8_relaxed(entry).unwrap_or(0)
    }

    /// Returns the present tenant of an address, as far as this card knows.
    #[inline]
    pub(crate) fn tenant(&self, address: Address) -> Option<Tenant> {
        Tenant::of_generation(self.generation(address))
    }
}
