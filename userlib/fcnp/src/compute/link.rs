//! The link of a compute core to a process on the I/O node.

use crate::tree::Generation;

/// The process that serves FCNP on the I/O node, and the generation by which it knows this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoNodeLink {
    /// Core of the I/O node that the process has, and the generation of that core.
    pub(super) core: u16,
    pub(super) generation: Generation,
    /// Generation of this core when the link was made.
    pub(super) own_generation: Generation,
    /// [`nicforge_driver::Device::resets`] when the link was made, modulo 256.
    pub(super) resets: u8,
}

impl IoNodeLink {
    /// Encodes the link in a word. The word is never 0, which encodes the absence of a link.
    pub(super) fn to_word(self) -> u32 {
        let core_and_one = self.core as u8 + 1;
        u32::from_le_bytes([core_and_one, self.generation.0, self.own_generation.0, self.resets])
    }

    /// Returns the link that a word of [`IoNodeLink::to_word`] encodes, or `None` for 0.
    pub(super) fn from_word(word: u32) -> Option<Self> {
        let [core_and_one, generation, own_generation, resets] = word.to_le_bytes();
        Some(Self {
            core: core_and_one.checked_sub(1)?.into(),
            generation: Generation(generation),
            own_generation: Generation(own_generation),
            resets,
        })
    }

    /// Returns whether both links have the same process on the I/O node.
    pub(super) fn has_peer_of(self, other: Self) -> bool {
        (self.core, self.generation) == (other.core, other.generation)
    }
}
