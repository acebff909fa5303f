//! Packets that are being copied to several targets.

use nicforge_core::fabric::Packet;
use nicforge_hwi::tree::VCS;

use super::route::{Source, Targets};

/// A packet that is being copied to several targets.
pub(super) struct HeldPacket {
    pub(super) packet: Packet,
    /// Targets that do not have the packet yet.
    pub(super) targets: Targets,
}

/// The packets that are being copied, at most one for each source and channel.
///
/// The mask of a channel has the bits of the sources that have such a packet, and no others.
#[derive(Default)]
pub(super) struct HeldPackets {
    packets: [[Option<HeldPacket>; Source::COUNT]; VCS],
    masks: [u8; VCS],
}

impl HeldPackets {
    /// Returns the sources that have a packet, one bit for each source.
    #[inline]
    pub(super) fn mask(&self, channel: usize) -> u8 {
        self.masks[channel]
    }

    /// Returns whether a source has a packet.
    #[inline]
    pub(super) fn has(&self, channel: usize, source: Source) -> bool {
        self.masks[channel] & source.bit() != 0
    }

    /// Keeps a packet of a source, which must have none.
    pub(super) fn put(&mut self, channel: usize, source: Source, held: HeldPacket) {
        self.packets[channel][source.index()] = Some(held);
        self.masks[channel] |= source.bit();
    }

    /// Takes the packet of a source.
    pub(super) fn take(&mut self, channel: usize, source: Source) -> Option<HeldPacket> {
        self.masks[channel] &= !source.bit();
        self.packets[channel][source.index()].take()
    }
}
