//! The link of a compute core to a process on the I/O node.

use crate::tree::Generation;

/// The process that serves FCNP on the I/O node, and the generation by which it knows this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoNodeLink {
    /// Core of the I/O node that the process has, and the generation of that core.
    pub(super) core: u16,
    pub(super) generation: Generation,
    /// Generation of this core when the link was made.
    pub(super) own: Generation,
    /// [`nicforge_driver::Device::resets`] when the link was made, modulo 256.
    pub(super) resets: u8,
}

impl IoNodeLink {
    /// Encodes the link in a word. The word is never 0, which encodes the absence of a link.
    pub(super) fn to_word(self) -> u32 {
        let [generation, own] = [self.generation.0, self.own.0].map(u32::from);
        (u32::from(self.core) + 1) | generation << 8 | own << 16 | u32::from(self.resets) << 24
    }

    pub(super) fn from_word(word: u32) -> Option<Self> {
        let [core, generation, own, resets] = word.to_le_bytes();
        let core = u16::from(core.checked_sub(1)?);
        Some(Self { core, generation: Generation(generation), own: Generation(own), resets })
    }

    /// Returns whether both links have the same process on the I/O node.
    pub(super) fn has_peer_of(self, other: Self) -> bool {
        (self.core, self.generation) == (other.core, other.generation)
    }
}
