//! Registers, queues and bits of the virtio network device, as its driver sees them.
//!
//! Section numbers are those of *Virtual I/O Device (VIRTIO) Version 1.2*. All values are
//! little-endian.

pub use nicforge_virtio::registers::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// PCI device id of the network device without the registers of older drafts (4.1.2, 5.1.1).
pub const DEVICE_NET: u16 = DEVICE_BASE + 1;
/// PCI class "Ethernet controller".
pub const CLASS_ETHERNET: u32 = 0x02_00_00;

/// MSI-X vectors: configuration changes, and one for each queue.
pub const VECTORS: u16 = 3;

/// Feature bits (5.1.3 and 6).
pub mod feature {
    pub use nicforge_virtio::registers::feature::*;

    /// The device completes checksums of sent frames.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes received frames with a partial checksum.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The device says the network's MTU.
    pub const MTU: u64 = 1 << 3;
    /// The device has an address.
    pub const MAC: u64 = 1 << 5;
    /// The device shows whether its link is up.
    pub const STATUS: u64 = 1 << 16;

    /// All features that the device offers.
    pub const OFFERED: u64 = CSUM | GUEST_CSUM | MTU | MAC | STATUS | COMMON;
}

/// Maximum number of bytes of a buffer to send, header and frame (the largest of 5.1.6.3.1).
pub const MAX_SEND: u64 = 65_562;

/// Number of the queue with buffers for received frames (5.1.2).
pub const RECEIVE: usize = 0;
/// Number of the queue with frames to send (5.1.2).
pub const TRANSMIT: usize = 1;
/// Number of queues.
pub const QUEUES: usize = 2;

/// The network device's configuration (5.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceConfig {
    /// The device's address.
    pub mac: [u8; 6],
    /// [`LINK_UP`] or 0.
    pub status: [u8; 2],
    /// Always 1. The field has a meaning with several queue pairs only.
    pub max_queue_pairs: [u8; 2],
    /// The network's MTU in bytes.
    pub mtu: [u8; 2],
}

/// Bit of [`DeviceConfig::status`]: the link is up.
pub const LINK_UP: u16 = 1;

/// The header in front of each frame (5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHeader {
    /// [`NEEDS_CHECKSUM`] or 0.
    pub flags: u8,
    /// Kind of segmentation: [`NO_SEGMENTATION`].
    pub gso_type: u8,
    /// Bytes of the headers that segments repeat. Without segmentation it has no meaning.
    pub header_length: [u8; 2],
    /// Bytes of a segment. Without segmentation it has no meaning.
    pub segment_size: [u8; 2],
    /// Offset in the frame at which the checksummed bytes start.
    pub checksum_start: [u8; 2],
    /// Offset of the checksum after that.
    pub checksum_offset: [u8; 2],
    /// Buffers of the received frame, always 1 here.
    pub buffers: [u8; 2],
}

/// Flag of a [`FrameHeader`]: the checksum field holds a part of the sum, and the rest is left to
/// the receiver of the header.
pub const NEEDS_CHECKSUM: u8 = 1;
/// Value of [`FrameHeader::gso_type`]: the frame is not segmented.
pub const NO_SEGMENTATION: u8 = 0;
/// Bytes of a [`FrameHeader`].
pub const FRAME_HEADER: usize = size_of::<FrameHeader>();
