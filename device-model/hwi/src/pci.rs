//! PCI identities and the vendor-specific capabilities of nicforge functions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::register::{Field, Register};

/// Vendor id of every nicforge function. At the time of writing, the PCI-SIG has not assigned it to
/// any member. A device that imitates an existing card uses that card's ids instead.
pub const VENDOR_ID: u16 = 0x1efc;

/// Device id of the Blue Gene tree NIC.
pub const DEVICE_TREE: u16 = 0xb601;
/// Device id of the proof device (for demonstration) "slot FIFO".
pub const DEVICE_SLOT_FIFO: u16 = 0x0001;
/// Device id of the proof device "DMA engine".
pub const DEVICE_DMA_ENGINE: u16 = 0x0002;
/// Device id of the proof device "addressed send".
pub const DEVICE_ADDRESSED_SEND: u16 = 0x0003;
/// Device id of the proof device that has a companion.
pub const DEVICE_CHECKSUM: u16 = 0x0004;

/// Vendor id of EXTOLL, which the card's model uses.
pub const VENDOR_EXTOLL: u16 = 0x1cad;
/// Device id of the EXTOLL card.
pub const DEVICE_EXTOLL: u16 = 0x0010;

/// Device id of the Cray SeaStar.
pub const DEVICE_SEASTAR: u16 = 0x5354;

/// Device id of the Message Unit and network of Blue Gene/Q.
pub const DEVICE_MU: u16 = 0xb609;

/// Device id of the torus of Blue Gene/L.
pub const DEVICE_TORUS: u16 = 0xb6a0;

/// PCI capability id "vendor specific".
pub const CAP_ID_VENDOR: u8 = 0x09;

/// Value of [`AttachmentCapability::kind`].
pub const CAP_KIND_ATTACHMENT: u8 = 0x01;
/// Value of [`AttachmentCapability::version`] for the layout described here.
pub const CAP_VERSION: u8 = 1;

/// The vendor-specific PCI capability that locates the core's additions to a function: the control
/// page, the attachment mirror and the posted-write rings. A function without it is a plain PCI
/// device, whose accesses are all trapped.
///
/// It has 28 bytes, dword aligned in configuration space like every capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachmentCapability {
    /// [`CAP_ID_VENDOR`].
    pub cap_id: u8,
    /// Offset of the next capability, 0 at the end.
    pub next: u8,
    /// Length of this capability in bytes.
    pub len: u8,
    /// [`CAP_KIND_ATTACHMENT`].
    pub kind: u8,
    /// [`CAP_VERSION`].
    pub version: u8,
    /// BAR of the control page ([`crate::attachment::control`]), trapped.
    pub control_bar: u8,
    /// BAR of the attachment mirror ([`crate::attachment::mirror`]), mapped read-only.
    pub mirror_bar: u8,
    /// BAR of the posted-write rings, mapped read-write. Meaningless when `ring_count` is 0.
    pub ring_bar: u8,
    /// Offset of the control page in its BAR, in bytes, a multiple of 4096.
    pub control_offset: u32,
    /// Offset of the mirror in its BAR, in bytes, a multiple of 4096.
    pub mirror_offset: u32,
    /// Offset of ring 0 in its BAR, in bytes, a multiple of 4096. Ring `i` starts
    /// `i * ring_cells * 64` bytes further.
    pub ring_offset: u32,
    /// Cells of 64 bytes in each ring: a power of two, at least 64.
    pub ring_cells: u32,
    /// Number of rings, at most [`crate::attachment::MAX_RINGS`].
    pub ring_count: u8,
    /// Log2 of the largest record's data in bytes (see [`crate::posted::MAX_DATA`]).
    pub max_data_log2: u8,
    /// Bit `i` is set if BAR `i` is memory from end to end. Loads and stores in it have no side
    /// effects, so that stores may be combined. A clear prefetchable bit does not mean otherwise:
    /// PCI Express has that bit only for 64-bit BARs.
    pub memory_bars: u8,
    /// Bit `i` is set if only the device writes BAR `i`, such as the BAR of the attachment mirror.
    /// Software maps it for loads alone. A store into it is lost. In a virtual machine that has it
    /// as read-only memory, a store ends the machine.
    pub mirrored_bars: u8,
}

const _: () = assert!(size_of::<AttachmentCapability>() == 28);

/// The declarations of an MSI-X table of the most vectors, with offsets in the table (PCI Local Bus
/// Specification 3.0, 6.8.2.6 to 6.8.2.9).
pub static MSIX_REGISTER_MAP: &[Register] = &[
    Register::rw32("MSIX_ADDRESS", 0, 0x0).array(2048, 16),
    Register::rw32("MSIX_UPPER_ADDRESS", 0, 0x4).array(2048, 16),
    Register::rw32("MSIX_DATA", 0, 0x8).array(2048, 16),
    Register::rw32("MSIX_CONTROL", 0, 0xc).array(2048, 16).fields(&[Field::bit("MASKED", 0)]),
];
