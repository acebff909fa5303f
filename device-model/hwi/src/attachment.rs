//! What the core gives every attachment: a trapped *control page* and a *mirror* page.
//!
//! Where they are is said by [`crate::pci::AttachmentCapability`].

/// The most posted-write rings an attachment can have.
pub const MAX_RINGS: usize = 8;

/// Offsets in the control page (trapped, 32-bit accesses).
pub mod control {
    /// Write anything: the engine looks at this attachment's mapped memory soon. A client does this
    /// after a store when it sees [`super::mirror::SLEEPING`] set.
    pub const WAKE: u64 = 0x00;
    /// Write a ring's number: the ring is emptied and starts again at cell 0 with phase 1. Records
    /// in it are lost.
    pub const RING_RESET: u64 = 0x04;
    /// Write a ring's number, then read [`RING_STATE`]. Reading gives the number selected.
    pub const RING_SELECT: u64 = 0x08;
    /// Read: bits 30..0 the cell the engine reads next of the ring selected, bit 31 the phase it
    /// expects there.
    pub const RING_STATE: u64 = 0x0c;
    /// Read: the generation of this attachment, counted up whenever it gets a new tenant or is
    /// reset. Answered when all records posted before are carried out: reading it is a flush.
    pub const GENERATION: u64 = 0x10;
    /// Read: the attachment's number in its function (its PASID, as PCI would say).
    pub const ATTACHMENT: u64 = 0x14;
    /// Size of the page in bytes.
    pub const SIZE: u64 = 0x1000;
}

/// Offsets in the mirror page: mapped read-only, written by the engine and never read back by it.
///
/// Words of 32 bits unless said otherwise; each group of words that changes together has a cache
/// line of its own.
pub mod mirror {
    /// [`MAGIC_VALUE`].
    pub const MAGIC: u64 = 0x00;
    /// "NICF" in little-endian order.
    pub const MAGIC_VALUE: u32 = 0x4643_494e;
    /// As [`super::control::GENERATION`].
    pub const GENERATION: u64 = 0x04;
    /// Counts up at least every 100 ms as long as the engine lives (64-bit).
    pub const HEARTBEAT: u64 = 0x40;
    /// Not 0: the engine does not look at this attachment's mapped memory until
    /// [`super::control::WAKE`] is written.
    pub const SLEEPING: u64 = 0x80;
    /// Bits of [`super::mirror::FLAG_DEAD`] and so on.
    pub const FLAGS: u64 = 0x84;
    /// In [`FLAGS`]: this attachment was taken from its client (which truncated memory that was
    /// mapped, or by the operator). Its connection is shut: open it again.
    pub const FLAG_DEAD: u32 = 1 << 0;
    /// Cells consumed so far of ring 0, modulo 2^32. Ring `i` at `RING_HEAD + 64 * i`.
    pub const RING_HEAD: u64 = 0x100;
    /// Distance between the heads of two rings in bytes: a cache line.
    pub const RING_HEAD_STRIDE: u64 = 0x40;
    /// Size of the page in bytes.
    pub const SIZE: u64 = 0x1000;
}
