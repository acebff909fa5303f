//! The directory of all VPIDs of the network: whether each can be sent to, under which generation,
//! and with how much credit.
//!
//! A generation is odd while the VPID's receive ring is enabled. Credit belongs to one generation.

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
    /// Entries by node, then VPID.
    entries: Vec<Entry>,
    /// The memory in which clients see the generations, while there are clients.
    shown: Option<Window>,
}

impl Directory {
    pub(crate) fn new(nodes: u32, vpids: u16) -> Self {
        let entries = vec![Entry::default(); nodes as usize * usize::from(vpids)];
        Self { nodes, vpids, entries, shown: None }
    }

    /// Returns the size of the memory that clients see, in bytes.
    pub(crate) fn bytes(nodes: u32) -> u64 {
        (u64::from(nodes) * STRIDE).next_power_of_two().max(4096)
    }

    /// Returns the index of a VPID's entry, if the VPID exists.
    #[inline]
    pub(crate) fn index(&self, node: u32, vpid: u16) -> Option<usize> {
        (node < self.nodes && vpid < self.vpids)
            .then(|| node as usize * usize::from(self.vpids) + usize::from(vpid))
    }

    /// Returns a VPID's entry, if the VPID exists.
    #[inline]
    pub(crate) fn entry(&mut self, node: u32, vpid: u16) -> Option<&mut Entry> {
        self.at(self.index(node, vpid)?)
    }

    /// Returns the entry at an index.
    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    /// Notes that a VPID's ring was enabled, with credit, or disabled. A generation that is known
    /// already changes nothing, because part of its credit has been used.
    pub(crate) fn update(&mut self, node: u32, vpid: u16, entry: Entry) {
        if let Some(known) = self.entry(node, vpid).filter(|known| known.generation != entry.generation) {
            *known = entry;
            // The offset is below the size that `bytes` returns.
            let _ = self.show(node, vpid, entry.generation);
        }
    }

    /// Adds returned credit. Credit of an earlier generation is void.
    #[inline]
    pub(crate) fn add_credit(&mut self, node: u32, vpid: u16, generation: u8, credit: u32) {
        if let Some(entry) = self.entry(node, vpid).filter(|entry| entry.generation == generation) {
            entry.credit = entry.credit.saturating_add(credit);
        }
    }

    /// Shows a VPID's generation to the clients.
    fn show(&self, node: u32, vpid: u16, generation: u8) -> Result<(), MemoryError> {
        match &self.shown {
            Some(window) => window.store_u8_relaxed(u64::from(node) * STRIDE + u64::from(vpid), generation),
            None => Ok(()),
        }
    }

    /// Shows the directory in this memory from now on.
    pub(crate) fn show_in(&mut self, memory: Option<SharedMemory>) {
        let bytes = Self::bytes(self.nodes);
        self.shown = memory.and_then(|memory| memory.window(0, bytes).ok());

        for node in 0..self.nodes {
            for vpid in 0..self.vpids {
                let generation = self.entry(node, vpid).map_or(0, |entry| entry.generation);
                let _ = self.show(node, vpid, generation);
            }
        }
    }

    /// Clears all entries.
    pub(crate) fn forget(&mut self) {
        for node in 0..self.nodes {
            for vpid in 0..self.vpids {
                self.update(node, vpid, Entry::default());
            }
        }
    }
}
