//! An Ethernet: the virtio network device, which Linux drives with its own driver, and a learning
//! switch.
//!
//! In: accesses to the device's registers, its queues in client memory, frames from the fabric.
//! Out: frames to the fabric, filled buffers, interrupts. May touch: core, family, hwi, kit,
//! virtio.
//!
//! | module | contents |
//! | --- | --- |
//! | [`registers`] | the registers and bits that a driver needs |
//! | [`mac`] | Ethernet addresses |
//! | `checksum` | checksums that the sender left to the device |
//! | `header` | the header in front of each frame in client memory |
//! | [`nic`] | the device: frames between its queues and its port |
//! | [`switch`] | the switch |
//! | [`family`] | the tables of machine files |
//!
//! A frame is one packet of the fabric, without the frame check sequence. The place of a checksum
//! that its sender left partial travels in
//! [`Contents::header`](nicforge_core::fabric::Contents::header).
//!
//! Source of all registers and rules: *Virtual I/O Device (VIRTIO) Version 1.2*, whose sections are
//! named at each item.
#![forbid(unsafe_code)]

mod checksum;
pub mod family;
mod header;
pub mod mac;
pub mod nic;
pub mod registers;
pub mod switch;

pub use self::{
    family::{Ethernets, kinds},
    mac::MacAddress,
    nic::{NicConfig, NicConfigError, VirtioNet},
    switch::{Switch, SwitchConfig, SwitchConfigError},
};

/// Bytes on the wire beside a frame: preamble, frame check sequence and gap (IEEE 802.3, 4.4).
pub const ETHERNET_FRAMING: u32 = 8 + 4 + 12;
/// Bytes of the header of an Ethernet frame: two addresses and the type.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of a VLAN tag, which a frame of the largest size may have in addition.
pub const VLAN_TAG: usize = 4;
/// The virtual channel of all frames.
pub const CHANNEL: usize = 0;

/// Returns the bytes of the longest frame on a network of this MTU.
pub const fn max_frame(mtu: u16) -> usize {
    mtu as usize + ETHERNET_HEADER + VLAN_TAG
}
