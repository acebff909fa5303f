//! What a card knows of all VPIDs of its network: whether they can be sent to, under which generation, and with how much credit.
//!
//! A generation is odd while the VPID's receive ring is enabled. Credit counts for the generation that it names.

use nicforge_hwi::extoll::directory::STRIDE;
use nicforge_shm::{MemoryError, SharedMemory, Window};

/// One VPID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) generation: u8,
    /// Messages that may be sent to it.
    pub(crate) credit: u32,
}

impl Entry {
    /// Whether it can be sent to.
    #[inline]
    pub(crate) fn is_up(self) -> bool {
        self.generation & 1 != 0
    }
}

/// The directory.
pub(crate) struct Directory {
    nodes: u32,
    vpids: u16,
    /// By node, then VPID.
    entries: Vec<Entry>,
    /// What clients see of it, while there are any.
    shown: Option<Window>,
}

impl Directory {
    pub(crate) fn new(nodes: u32, vpids: u16) -> Self {
        let entries = vec![Entry::default(); nodes as usize * usize::from(vpids)];
        Self { nodes, vpids, entries, shown: None }
    }

    /// Bytes that clients see.
    pub(crate) fn bytes(nodes: u32) -> u64 {
        (u64::from(nodes) * STRIDE).next_power_of_two().max(4096)
    }

    /// Where a VPID is in the directory, if it exists.
    #[inline]
    pub(crate) fn place(&self, node: u32, vpid: u16) -> Option<usize> {
        (node < self.nodes && vpid < self.vpids)
            .then(|| node as usize * usize::from(self.vpids) + usize::from(vpid))
    }

    /// A VPID, if it exists.
    #[inline]
    pub(crate) fn entry(&mut self, node: u32, vpid: u16) -> Option<&mut Entry> {
        self.at(self.place(node, vpid)?)
    }

    /// The VPID at a place.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> Option<&mut Entry> {
        self.entries.get_mut(place)
    }

    /// A VPID came, with credit, or went. What is known already is no news: its credit has been used in part.
    pub(crate) fn news(&mut self, node: u32, vpid: u16, entry: Entry) {
        if let Some(known) = self.entry(node, vpid).filter(|known| known.generation != entry.generation) {
            *known = entry;
            // Offsets below the size that `bytes` gives.
            let _ = self.show(node, vpid, entry.generation);
        }
    }

    /// Credit came back; void for an earlier generation.
    #[inline]
    pub(crate) fn credit(&mut self, node: u32, vpid: u16, generation: u8, credit: u32) {
        if let Some(entry) = self.entry(node, vpid).filter(|entry| entry.generation == generation) {
            entry.credit = entry.credit.saturating_add(credit);
        }
    }

    fn show(&self, node: u32, vpid: u16, generation: u8) -> Result<(), MemoryError> {
        match &self.shown {
            Some(window) => window.store_u8_relaxed(u64::from(node) * STRIDE + u64::from(vpid), generation),
            None => Ok(()),
        }
    }

    /// Clients see it in this memory from now on.
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

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        for node in 0..self.nodes {
            for vpid in 0..self.vpids {
                self.news(node, vpid, Entry::default());
            }
        }
    }
}
