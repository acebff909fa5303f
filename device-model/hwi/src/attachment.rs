//! The pages that the core adds to every attachment: a trapped *control page* and a *mirror* page,
//! and for clients of a vfio-user server a *waiting* page.
//!
//! [`crate::pci::AttachmentCapability`] says where the first two are.

/// Largest number of posted-write rings of an attachment.
pub const MAX_RINGS: usize = 8;

/// Offsets in the control page (trapped, 32-bit accesses).
pub mod control {
    use crate::register::{Access, Field, Register};

    /// Write, any value: requests that the engine poll this attachment's mapped memory soon. A
    /// client writes it after a store if it finds [`super::mirror::SLEEPING`] set.
    pub const WAKE: u64 = 0x00;
    /// Write a ring's number: empties the ring and restarts it at cell 0 with phase 1. Records in
    /// it are lost.
    pub const RING_RESET: u64 = 0x04;
    /// Write a ring's number: selects the ring for [`RING_STATE`]. Read: the number selected.
    pub const RING_SELECT: u64 = 0x08;
    /// Read: state of the selected ring. Bits 30..0 are the cell that the engine reads next, bit 31
    /// the phase that it expects there.
    pub const RING_STATE: u64 = 0x0c;
    /// Read: the generation of this attachment, which increases with each new client and each
    /// reset. The answer comes after all records posted earlier are carried out: reading it is a
    /// flush.
    pub const GENERATION: u64 = 0x10;
    /// Read: the attachment's number in its function. PCI would call it a PASID.
    pub const ATTACHMENT: u64 = 0x14;
    /// Size of the page in bytes.
    pub const SIZE: u64 = 0x1000;

    /// The declarations of the registers, with offsets in the page.
    pub static REGISTER_MAP: &[Register] = &[
        Register::new("WAKE", 0, WAKE, 4, Access::WriteOnly),
        Register::new("RING_RESET", 0, RING_RESET, 4, Access::WriteOnly),
        Register::rw32("RING_SELECT", 0, RING_SELECT),
        Register::ro32("RING_STATE", 0, RING_STATE)
            .fields(&[Field::bits("CELL", 30, 0), Field::bit("PHASE", 31)]),
        Register::ro32("GENERATION", 0, GENERATION),
        Register::ro32("ATTACHMENT", 0, ATTACHMENT),
    ];
}

/// Offsets in the mirror page. Clients map it read-only; the engine writes it and never reads it
/// back.
///
/// Words have 32 bits unless stated otherwise. Each group of words that changes together has its
/// own cache line.
pub mod mirror {
    /// Holds [`MAGIC_VALUE`].
    pub const MAGIC: u64 = 0x00;
    /// "NICF" in little-endian order.
    pub const MAGIC_VALUE: u32 = 0x4643_494e;
    /// The generation, the same as [`super::control::GENERATION`].
    pub const GENERATION: u64 = 0x04;
    /// Heartbeat, which increases at least every 100 ms while the engine is alive (64-bit).
    pub const HEARTBEAT: u64 = 0x40;
    /// Not 0 while the engine does not poll this attachment's mapped memory. A write of
    /// [`super::control::WAKE`] ends that.
    pub const SLEEPING: u64 = 0x80;
    /// Flags: [`super::mirror::FLAG_DEAD`].
    pub const FLAGS: u64 = 0x84;
    /// In [`FLAGS`]: this attachment was taken from its client, because the client truncated mapped
    /// memory, or by the operator. The connection is closed, and the client may open a new one.
    pub const FLAG_DEAD: u32 = 1 << 0;
    /// Cells of ring 0 consumed so far, modulo 2^32. The word of ring `i` is at
    /// `RING_HEAD + 64 * i`.
    pub const RING_HEAD: u64 = 0x100;
    /// Distance between the heads of two rings in bytes: a cache line.
    pub const RING_HEAD_STRIDE: u64 = 0x40;
    /// Size of the page in bytes.
    pub const SIZE: u64 = 0x1000;
}

/// The waiting page, by which a client of a vfio-user server is woken. It is a VFIO region of its
/// own, beyond those of PCI, and so is the interrupt that wakes the client. A client that finds
/// nothing to do sets [`waiting::WAITING`], makes the engine's processor execute a barrier
/// (`membarrier`), looks once more, and blocks on the eventfd that it has bound to the interrupt.
pub mod waiting {
    /// Index of the page's VFIO region.
    pub const REGION: u32 = 9;
    /// Index of the VFIO interrupt that wakes the client. It has one vector.
    pub const IRQ: u32 = 5;
    /// Offset of a word that holds [`MAGIC_VALUE`].
    pub const MAGIC: u64 = 0x00;
    /// "NICW" in little-endian order.
    pub const MAGIC_VALUE: u32 = 0x5743_494e;
    /// Offset of the waiting word. The client sets it to 1 before it blocks. The engine clears it
    /// when it signals the interrupt.
    pub const WAITING: u64 = 0x40;
    /// Size of the page in bytes.
    pub const SIZE: u64 = 0x1000;
}
