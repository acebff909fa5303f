//! The numbers and addresses that name things of a machine.
//!
//! All other modules of the crate use this one, and it uses none of them. Attachments, devices,
//! contexts, the fabric and the machine can thus name the same things without naming each other.

/// Number of an attachment within its function. PCI calls it a PASID; the papers call it a VPID, a
/// core, or a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u16);

/// Number of a function within its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// Location of an access in a function's BARs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Number of the BAR, 0 to 5.
    pub bar: u8,
    /// Offset in the BAR in bytes.
    pub offset: u64,
}

/// Number that the device chooses for a DMA read. [`crate::device::Device::dma_done`] returns it
/// with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaToken(pub u64);
