//! The directory of all VPIDs of the network: whether each can be sent to, under which generation,
//! and with how much credit.
//!
//! A generation is odd while the VPID's receive ring is enabled. Credit belongs to one generation.
//!
//! A node's entries are allocated when its first ring is announced. Until then they count as the
//! default: generation 0, which is down.

use nicforge_hwi::extoll::directory::STRIDE;
use nicforge_shm::{MemoryError, SharedMemory, Window};

/// The directory's entry of one VPID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) generation: u8,
    /// Number of messages that this card may still send to the VPID.
    pub(crate) credit: u32,
}

impl Entry {
    /// Returns whether the VPID can be sent to.
    #[inline]
    pub(crate) fn is_up(self) -> bool {
        self.generation & 1 != 0
    }
}

/// A card's directory.
pub(crate) struct Directory {
    nodes: u32,
    vpids: u16,
    /// By node, the entries of its VPIDs. The list is empty until the first announcement of any
    /// node.
    entries: Vec<Option<Box<[Entry]>>>,
    /// The memory in which clients read the generations, while there are clients.
    client_memory: Option<Window>,
}

impl Directory {
    /// Returns the directory of a network in which no ring was announced yet.
    pub(crate) fn new(nodes: u32, vpids: u16) -> Self {
        Self { nodes, vpids, entries: Vec::new(), client_memory: None }
    }

    /// Returns the size in bytes of the memory in which clients read the generations.
    pub(crate) fn bytes(nodes: u32) -> u64 {
        (u64::from(nodes) * STRIDE).next_power_of_two().max(4096)
    }

    /// Returns a VPID's entry, if the VPID exists and its node has announced a ring.
    #[inline]
    pub(crate) fn entry(&mut self, node: u32, vpid: u16) -> Option<&mut Entry> {
        self.entries_of_node(node)?.get_mut(usize::from(vpid))
    }

    /// Returns the entries of a node's VPIDs, if the node has announced a ring.
    #[inline]
    pub(crate) fn entries_of_node(&mut self, node: u32) -> Option<&mut [Entry]> {
        self.entries.get_mut(node as usize)?.as_deref_mut()
    }

    /// Allocates the entries of a node, unless it has some.
    fn allocate_entries(&mut self, node: u32) {
        if self.entries.is_empty() {
            self.entries.resize_with(self.nodes as usize, || None);
        }

        if let Some(entries @ None) = self.entries.get_mut(node as usize) {
            *entries = Some(vec![Entry::default(); usize::from(self.vpids)].into_boxed_slice());
        }
    }

    /// Records that a VPID's ring was enabled, with credit, or disabled. An announcement of a
    /// generation that is known already is ignored, because part of its credit has been used.
    pub(crate) fn update(&mut self, node: u32, vpid: u16, entry: Entry) {
        // A node without entries counts as down already.
        if entry != Entry::default() {
            self.allocate_entries(node);
        }

        if let Some(known) = self.entry(node, vpid).filter(|known| known.generation != entry.generation) {
            *known = entry;
            // The offset is below the size that `bytes` returns.
            let _ = self.write_generation(node, vpid, entry.generation);
        }
    }

    /// Adds returned credit. Credit of an earlier generation is ignored.
    #[inline]
    pub(crate) fn add_credit(&mut self, node: u32, vpid: u16, generation: u8, credit: u32) {
        if let Some(entry) = self.entry(node, vpid).filter(|entry| entry.generation == generation) {
            entry.credit = entry.credit.saturating_add(credit);
        }
    }

    /// Writes a VPID's generation to the memory in which clients read it, if there is any.
    fn write_generation(&self, node: u32, vpid: u16, generation: u8) -> Result<(), MemoryError> {
        match &self.client_memory {
            Some(window) => window.store_u8_relaxed(u64::from(node) * STRIDE + u64::from(vpid), generation),
            None => Ok(()),
        }
    }

    /// Sets the memory in which clients read the generations, and writes all of them to it. `None`
    /// is for a card without clients.
    pub(crate) fn set_client_memory(&mut self, memory: Option<SharedMemory>) {
        let bytes = Self::bytes(self.nodes);
        self.client_memory = memory.and_then(|memory| memory.window(0, bytes).ok());

        for node in 0..self.nodes {
            for vpid in 0..self.vpids {
                let generation = self.entry(node, vpid).map_or(0, |entry| entry.generation);
                // The offset is below the size that `bytes` returns.
                let _ = self.write_generation(node, vpid, generation);
            }
        }
    }

    /// Clears all entries.
    pub(crate) fn clear(&mut self) {
        for node in 0..self.nodes {
            for vpid in 0..self.vpids {
                self.update(node, vpid, Entry::default());
            }
        }
    }
}
