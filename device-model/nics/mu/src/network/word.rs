//! The route word of packets from one node to another.

use nicforge_hwi::mu_packet::channel;
use nicforge_network::router::policies::TorusWord;

/// Classes of packets, in [`TorusWord::class`].
pub(crate) mod class {
    /// User packets of normal priority.
    pub(crate) const USER: u8 = 0;
    /// User packets of high priority.
    pub(crate) const HIGH_PRIORITY: u8 = 1;
    /// Packets of the system.
    pub(crate) const SYSTEM: u8 = 2;
}

/// The packet stays on the deterministic channel once it has escaped to it.
const STAY: u16 = 1 << 0;
/// The packet leaves its destination by the I/O link.
const TO_IO: u16 = 1 << 1;
/// The packet takes the loop cable at the port in bits 4 to 7.
const LOOP: u16 = 1 << 2;
/// The packet of an I/O node leaves by the port in bits 4 to 7.
const FROM_IO: u16 = 1 << 3;
/// Lowest bit of a port.
const PORT: u32 = 4;

/// A [`TorusWord`] with the options of Blue Gene/Q's packets in its free bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteWord(pub(crate) TorusWord);

impl RouteWord {
    /// Returns the word of a packet.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(TorusWord(bits))
    }

    /// Returns the word with further free bits set.
    fn with(self, bits: u16) -> Self {
        Self(self.0.with_free_bits(self.0.free_bits() | bits))
    }

    /// Returns whether a free bit is set.
    fn has(self, bit: u16) -> bool {
        self.0.free_bits() & bit != 0
    }

    /// Returns the port in the free bits.
    fn port(self) -> u8 {
        (self.0.free_bits() >> PORT) as u8 & 0xf
    }

    /// Returns the word of a packet that stays on the deterministic channel once it has escaped.
    pub(crate) fn staying(self) -> Self {
        self.with(STAY)
    }

    /// Returns whether the packet stays on the deterministic channel once it has escaped.
    pub(crate) fn stays(self) -> bool {
        self.has(STAY)
    }

    /// Returns the word of a packet for the I/O node of its destination.
    pub(crate) fn to_io(self) -> Self {
        self.with(TO_IO)
    }

    /// Returns whether the packet is for the I/O node of its destination.
    pub(crate) fn is_to_io(self) -> bool {
        self.has(TO_IO)
    }

    /// Returns the word of a packet that takes the loop cable at a port.
    pub(crate) fn by_loop(self, port: u8) -> Self {
        self.with(LOOP | u16::from(port) << PORT)
    }

    /// Returns the port of the loop cable that the packet takes.
    pub(crate) fn loop_port(self) -> Option<u8> {
        self.has(LOOP).then_some(self.port())
    }

    /// Returns the word of a packet that leaves its I/O node by a port.
    pub(crate) fn by_exit(self, port: u8) -> Self {
        self.with(FROM_IO | u16::from(port) << PORT)
    }

    /// Returns the port by which the packet leaves its I/O node.
    pub(crate) fn exit_port(self) -> Option<u8> {
        self.has(FROM_IO).then_some(self.port())
    }

    /// Returns the virtual channel on which the packet goes in dimension order.
    pub(crate) fn fixed_vc(self) -> u8 {
        match self.0.class() as u8 {
            class::HIGH_PRIORITY => channel::HIGH_PRIORITY,
            class::SYSTEM => channel::SYSTEM,
            _ => channel::DETERMINISTIC,
        }
    }
}
