//! The Message Unit of Blue Gene/Q: FIFOs, base address tables, and the registers of a subgroup.
//!
//! Names and offsets are those of the public headers `MU_Macros.h`, `MU_Fifo.h` and
//! `MU_Addressing.h` of `bgq-driver`; the paper is Chen et al., "The IBM Blue Gene/Q
//! Interconnection Network and Message Unit", SC 2011, section III. Three things differ:
//!
//! - Registers and words of memory are little-endian, as is usual on PCI. On Blue Gene/Q they are
//!   big-endian.
//! - An attachment is a subgroup. It sees only the page of its own subgroup, and a register of
//!   enables or interrupts has only the bits of its own FIFOs.
//! - A physical address is an address in the client memory of the subgroup that owns the FIFO or
//!   the entry of the base address table.
//!
//! | attachment | pages of [`PAGE`] bytes in BAR 0 |
//! | --- | --- |
//! | [`KERNEL`] | group 16 of the system, subgroups 0 to 3; then the device control registers |
//! | 1 + s | subgroup s of the 64 application subgroups |
//!
//! The mirror of an attachment has the pages of its subgroups at the same offsets. Software reads
//! pointers and counts there, without a trap. All accesses to registers have 8 bytes; the unit
//! rejects others.

use crate::{
    mu_dcr,
    mu_packet::CLASSES,
    nd_dcr,
    register::{Access, Field, Register, joined},
};

/// Number of groups. The last one is the system's.
pub const GROUPS: u16 = 17;
/// Subgroups of a group.
pub const SUBGROUPS_OF_GROUP: u16 = 4;
/// Number of subgroups.
pub const SUBGROUPS: u16 = GROUPS * SUBGROUPS_OF_GROUP;
/// Number of application subgroups, and of the first subgroup of the system.
pub const USER_SUBGROUPS: u16 = 64;
/// Number of the system's group.
pub const SYSTEM_GROUP: u16 = 16;
/// Injection memory FIFOs of a subgroup.
pub const INJECTION_FIFOS: u16 = 8;
/// Reception memory FIFOs of a subgroup.
pub const RECEPTION_FIFOS: u16 = 4;
/// Entries of the base address table of a subgroup.
pub const BASE_ADDRESSES: u16 = 8;
/// All injection memory FIFOs.
pub const ALL_INJECTION_FIFOS: u16 = SUBGROUPS * INJECTION_FIFOS;
/// All reception memory FIFOs.
pub const ALL_RECEPTION_FIFOS: u16 = SUBGROUPS * RECEPTION_FIFOS;
/// All entries of the base address table.
pub const ALL_BASE_ADDRESSES: u16 = SUBGROUPS * BASE_ADDRESSES;

/// Attachment of the system: group 16, and the device control registers.
pub const KERNEL: u16 = 0;
/// Attachment of the first application subgroup.
pub const FIRST_SUBGROUP: u16 = 1;
/// Bytes of a subgroup's page of registers.
pub const PAGE: u64 = 0x1000;
/// Offset of the device control registers, for [`KERNEL`] alone: those of the Message Unit
/// ([`crate::mu_dcr`]), and from [`PAGE`] bytes on those of the network.
pub const DEVICE_CONTROL: u64 = SUBGROUPS_OF_GROUP as u64 * PAGE;
/// Bytes of BAR 0.
pub const REGISTERS: u64 = 8 * PAGE;
/// Bytes of a mirror: the pages of the kernel's subgroups.
pub const MIRROR: u64 = SUBGROUPS_OF_GROUP as u64 * PAGE;

/// BAR of the registers.
pub const BAR_REGISTERS: u8 = 0;
/// BAR of the mirror.
pub const BAR_MIRROR: u8 = 2;
/// Offset of the pages in the mirror's BAR.
pub const MIRROR_BASE: u64 = 4096;
/// Cells of an attachment's ring of posted writes.
pub const RING_CELLS: u32 = 256;

/// Bits of an address. Higher bits of an address register are ignored by software and must be 0.
pub const ADDRESS_BITS: u32 = 36;
/// Bytes of a descriptor: `BGQ_MU_DESCRIPTOR_SIZE_IN_BYTES`.
pub const DESCRIPTOR: u64 = 64;
/// Bytes in which packets are counted in a reception memory FIFO, and its alignment.
pub const CHUNK: u64 = 32;
/// Smallest injection memory FIFO in bytes: `BGQ_MU_MIN_INJFIFO_SIZE_IN_BYTES`.
pub const MIN_INJECTION_FIFO: u64 = 2 * DESCRIPTOR;
/// Smallest injection memory FIFO for remote gets: `BGQ_MU_MIN_RGETFIFO_SIZE_IN_BYTES`.
pub const MIN_REMOTE_GET_FIFO: u64 = 512 + DESCRIPTOR;
/// Smallest reception memory FIFO in bytes: `BGQ_MU_MIN_RECFIFO_SIZE_IN_BYTES`.
pub const MIN_RECEPTION_FIFO: u64 = 544 + CHUNK;
/// Largest FIFO in bytes.
pub const MAX_FIFO: u64 = 1 << 26;
/// Value of an entry of the base address table that no put may use, as at power-on.
pub const NO_BASE_ADDRESS: u64 = u64::MAX;

/// Offsets in the page of a subgroup, in bytes.
pub mod reg {
    /// Bytes of a FIFO's registers.
    pub const FIFO: u64 = 0x40;
    /// Address of the first byte of the FIFO, a multiple of 64 (injection) or 32 (reception).
    pub const START: u64 = 0x00;
    /// Bytes of the FIFO less one.
    pub const SIZE_1: u64 = 0x08;
    /// Address of the head. The unit moves an injection FIFO's, and software a reception FIFO's.
    pub const HEAD: u64 = 0x10;
    /// Address of the tail. Software moves an injection FIFO's, and the unit a reception FIFO's.
    pub const TAIL: u64 = 0x18;
    /// Number of descriptors of an injection FIFO that are done, read-only.
    pub const DESCRIPTOR_COUNT: u64 = 0x20;
    /// Free space of a FIFO in bytes, read-only.
    pub const FREE_SPACE: u64 = 0x28;
    /// Why the unit has stopped the FIFO: one of [`super::fault`], read-only. Enabling the FIFO
    /// clears it. The public layout has a hole here.
    pub const FAULT: u64 = 0x30;

    /// Registers of injection FIFO 0 of the subgroup.
    pub const INJECTION: u64 = 0x000;
    /// Registers of reception FIFO 0 of the subgroup.
    pub const RECEPTION: u64 = 0x200;

    /// Injection FIFOs that are enabled, one bit for each; read-only.
    pub const IS_ENABLED: u64 = 0x300;
    /// Enables the injection FIFOs of the written bits.
    pub const ENABLE: u64 = 0x308;
    /// Disables the injection FIFOs of the written bits.
    pub const DISABLE: u64 = 0x310;
    /// Injection FIFOs of high priority, one bit for each.
    pub const HIGH_PRIORITY: u64 = 0x318;
    /// Interrupts that have come: bits of [`super::interrupt`]; read-only.
    pub const INTERRUPT_STATUS: u64 = 0x320;
    /// Clears the interrupts of the written bits.
    pub const CLEAR_INTERRUPT: u64 = 0x328;
    /// Interrupts that raise their [`super::vector`]: bits of [`super::interrupt`]. The device
    /// control registers have the same bits. On Blue Gene/Q they alone have them.
    pub const INTERRUPT_ENABLE: u64 = 0x330;
    /// Injection FIFOs that remote gets may use, one bit for each, as in
    /// [`crate::mu_dcr::IMFIFO_RGET`].
    pub const REMOTE_GET: u64 = 0x338;
    /// Reception FIFOs that take packets, one bit for each, as in [`crate::mu_dcr::RMFIFO_EN`].
    /// Enabling one with pointers that are not possible sets its [`FAULT`] instead. One that the
    /// kernel has disabled stays so.
    pub const RECEPTION_ENABLE: u64 = 0x340;
    /// Free space in bytes above which an injection FIFO raises its interrupt.
    pub const INJECTION_THRESHOLD: u64 = 0x348;
    /// Free space in bytes below which a reception FIFO raises its interrupt.
    pub const RECEPTION_THRESHOLD: u64 = 0x350;

    /// Entry 0 of the subgroup's base address table: an address, or one with an operation
    /// ([`super::atomic`]).
    pub const BASE_ADDRESS: u64 = 0x400;

    /// Barrier class 0: software writes 1 to enter the barrier. It reads 1 while this node has
    /// entered a barrier that is not complete. There are [`crate::mu_packet::CLASSES`].
    pub const BARRIER_CONTROL: u64 = 0x500;
    /// Barrier class 0: the number of its completed barriers; read-only.
    pub const BARRIER_STATUS: u64 = 0x580;

    /// Mirror alone: number of the node, and from bit 32 on the number of nodes.
    pub const NODE: u64 = 0x600;
    /// Mirror alone: coordinates of the node, as a [`crate::mu_packet::Destination`].
    pub const COORDINATES: u64 = 0x608;
    /// Mirror alone: highest coordinates of the network, as a [`crate::mu_packet::Destination`].
    pub const LAST_COORDINATES: u64 = 0x610;
    /// Mirror alone: number of starts of the subgroup, which a reset and a new client increment.
    pub const STARTS: u64 = 0x618;
    /// Mirror alone: number of packets for the subgroup that were dropped, for lack of an enabled
    /// FIFO, a base address, or memory.
    pub const DROPPED: u64 = 0x620;

    /// Class 0 of global interrupts: the lines that this node sets, of
    /// [`crate::mu_packet::LINES`]. The register is one for all subgroups. Blue Gene/Q has these
    /// bits in [`BARRIER_CONTROL`], and software builds barriers on them
    /// (`BGQ_MU_GI_CONTROL_OFFSET`).
    pub const GI_CONTROL: u64 = 0x680;
    /// Class 0: the lines that some node sets; read-only.
    pub const GI_STATUS: u64 = 0x700;
}

/// Bits of [`reg::INTERRUPT_STATUS`].
pub mod interrupt {
    /// Free space of injection FIFO 0 has risen above its threshold.
    pub const INJECTION_THRESHOLD: u64 = 1;
    /// Free space of reception FIFO 0 has fallen below its threshold.
    pub const RECEPTION_THRESHOLD: u64 = 1 << 8;
    /// The last packet of a message that asked for an interrupt is in reception FIFO 0.
    pub const PACKET: u64 = 1 << 12;
    /// All bits.
    pub const ALL: u64 = 0xffff;
}

/// Interrupt vectors of an attachment.
pub mod vector {
    /// A packet that asked for an interrupt: [`super::interrupt::PACKET`].
    pub const PACKET: u16 = 0;
    /// [`super::interrupt::INJECTION_THRESHOLD`].
    pub const INJECTION_THRESHOLD: u16 = 1;
    /// [`super::interrupt::RECEPTION_THRESHOLD`].
    pub const RECEPTION_THRESHOLD: u16 = 2;
    /// A barrier has completed.
    pub const BARRIER: u16 = 3;
    /// An error of the critical group, for the kernel.
    pub const CRITICAL: u16 = 4;
    /// An error of the non-critical group, for the kernel.
    pub const NON_CRITICAL: u16 = 5;
    /// An error of the machine-check group, for the kernel.
    pub const MACHINE_CHECK: u16 = 6;
    /// A line of global interrupts was set, for subgroups of classes that the kernel has enabled.
    pub const GLOBAL: u16 = 7;
    /// Number of vectors.
    pub const COUNT: u16 = 8;
}

/// Reasons why the unit stops a FIFO ([`reg::FAULT`]).
pub mod fault {
    /// None: the FIFO works.
    pub const NONE: u64 = 0;
    /// Start, size, head or tail are not possible: alignment, size, or outside the FIFO.
    pub const POINTERS: u64 = 1;
    /// The FIFO or a payload lies outside the ranges that the kernel permits, or in memory that
    /// only messages reach.
    pub const RANGE: u64 = 2;
    /// A field of the descriptor has no meaning: length, map, packet type or channel.
    pub const DESCRIPTOR: u64 = 3;
    /// A user's descriptor names a FIFO or a channel of the system.
    pub const PERMISSION: u64 = 4;
    /// The client memory of the FIFO or payload is not mapped.
    pub const UNMAPPED: u64 = 5;
    /// The destination does not exist, or the partition does not lead there.
    pub const DESTINATION: u64 = 6;
}

/// Atomic addresses: an operation in an address, `MUHWI_ATOMIC_*`.
pub mod atomic {
    /// Bit of an atomic address: `MUHWI_ATOMIC_ADDRESS_INDICATOR`.
    pub const INDICATOR: u64 = 1 << 36;
    /// Bits of the operation. The 8 bytes are at the address without them.
    pub const OPERATION: u64 = 0b111;
    /// Result of a bounded operation at its bound.
    pub const AT_BOUND: u64 = 1 << 63;

    /// Operations on the payload of a descriptor, which has 8 bytes.
    pub mod load {
        /// The value.
        pub const LOAD: u64 = 0;
        /// The value, which becomes 0.
        pub const CLEAR: u64 = 1;
        /// The value, which is incremented.
        pub const INCREMENT: u64 = 2;
        /// The value, which is decremented.
        pub const DECREMENT: u64 = 3;
        /// The value, which is incremented unless it equals the following 8 bytes. At the bound it
        /// is [`super::AT_BOUND`].
        pub const INCREMENT_BOUNDED: u64 = 4;
        /// The value, which is decremented unless it equals the 8 bytes before it.
        pub const DECREMENT_BOUNDED: u64 = 5;
        /// The value, which is incremented if it equals the following 8 bytes.
        pub const INCREMENT_IF_EQUAL: u64 = 6;
    }

    /// Operations on the target of a direct put of 8 bytes, or on its counter.
    pub mod store {
        /// The value is replaced.
        pub const STORE: u64 = 0;
        /// The value and the following one are replaced if they are equal.
        pub const TWIN: u64 = 1;
        /// The payload is added.
        pub const ADD: u64 = 2;
        /// The payload is added. Caches are notified only at 0; here it is the same as [`ADD`].
        pub const ADD_COHERENCE_ON_ZERO: u64 = 3;
        /// Bitwise or.
        pub const OR: u64 = 4;
        /// Bitwise exclusive or.
        pub const XOR: u64 = 5;
        /// The larger of two unsigned numbers.
        pub const MAX_UNSIGNED: u64 = 6;
        /// The larger of two numbers of a sign bit and 63 bits of absolute value.
        pub const MAX_SIGNED: u64 = 7;
    }
}

/// Returns the declaration of a register of each injection FIFO of a subgroup.
const fn injection(name: &'static str, offset: u64) -> Register {
    Register::rw64(name, 0, reg::INJECTION + offset).array(INJECTION_FIFOS as u32, reg::FIFO)
}

/// Returns the declaration of a register of each reception FIFO of a subgroup.
const fn reception(name: &'static str, offset: u64) -> Register {
    Register::rw64(name, 0, reg::RECEPTION + offset).array(RECEPTION_FIFOS as u32, reg::FIFO)
}

/// Returns the declaration of a register of each class.
const fn class(name: &'static str, offset: u64) -> Register {
    Register::rw64(name, 0, offset).array(CLASSES as u32, 8)
}

/// Reasons why a FIFO stands.
const FAULT: &[Field] = &[Field::bits("FAULT", 7, 0).values(&[
    (fault::NONE, "none"),
    (fault::POINTERS, "pointers"),
    (fault::RANGE, "range"),
    (fault::DESCRIPTOR, "descriptor"),
    (fault::PERMISSION, "permission"),
    (fault::UNMAPPED, "unmapped"),
    (fault::DESTINATION, "destination"),
])];
/// Interrupts of a subgroup: a bit for each FIFO.
const INTERRUPTS: &[Field] = &[
    Field::bits("INJECTION_THRESHOLD", 7, 0),
    Field::bits("RECEPTION_THRESHOLD", 11, 8),
    Field::bits("PACKET", 15, 12),
];

/// The declarations of the page of a subgroup, and of the words that its mirror alone has.
const PAGE_MAP: &[Register] = &[
    injection("INJ_START", reg::START),
    injection("INJ_SIZE_1", reg::SIZE_1),
    injection("INJ_HEAD", reg::HEAD),
    injection("INJ_TAIL", reg::TAIL),
    injection("INJ_DESCRIPTOR_COUNT", reg::DESCRIPTOR_COUNT).access(Access::ReadOnly),
    injection("INJ_FREE_SPACE", reg::FREE_SPACE).access(Access::ReadOnly),
    injection("INJ_FAULT", reg::FAULT).access(Access::ReadOnly).fields(FAULT),
    reception("REC_START", reg::START),
    reception("REC_SIZE_1", reg::SIZE_1),
    reception("REC_HEAD", reg::HEAD),
    reception("REC_TAIL", reg::TAIL),
    reception("REC_FREE_SPACE", reg::FREE_SPACE).access(Access::ReadOnly),
    reception("REC_FAULT", reg::FAULT).access(Access::ReadOnly).fields(FAULT),
    Register::ro64("IS_ENABLED", 0, reg::IS_ENABLED).about("enabled injection FIFOs, a bit each"),
    Register::wo64("ENABLE", 0, reg::ENABLE).about("enables injection FIFOs"),
    Register::wo64("DISABLE", 0, reg::DISABLE).about("disables injection FIFOs"),
    Register::rw64("HIGH_PRIORITY", 0, reg::HIGH_PRIORITY),
    Register::ro64("INTERRUPT_STATUS", 0, reg::INTERRUPT_STATUS).fields(INTERRUPTS),
    Register::wo64("CLEAR_INTERRUPT", 0, reg::CLEAR_INTERRUPT).fields(INTERRUPTS),
    Register::rw64("INTERRUPT_ENABLE", 0, reg::INTERRUPT_ENABLE).fields(INTERRUPTS),
    Register::rw64("REMOTE_GET", 0, reg::REMOTE_GET).about("injection FIFOs for remote gets"),
    Register::rw64("RECEPTION_ENABLE", 0, reg::RECEPTION_ENABLE),
    Register::rw64("INJECTION_THRESHOLD", 0, reg::INJECTION_THRESHOLD).about("in bytes"),
    Register::rw64("RECEPTION_THRESHOLD", 0, reg::RECEPTION_THRESHOLD).about("in bytes"),
    Register::rw64("BASE_ADDRESS", 0, reg::BASE_ADDRESS).array(BASE_ADDRESSES as u32, 8),
    class("BARRIER_CONTROL", reg::BARRIER_CONTROL).about("1 enters the barrier"),
    class("BARRIER_STATUS", reg::BARRIER_STATUS).access(Access::ReadOnly).about("completed barriers"),
    class("GI_CONTROL", reg::GI_CONTROL).about("lines that this node sets"),
    class("GI_STATUS", reg::GI_STATUS).access(Access::ReadOnly).about("lines that some node sets"),
    Register::ro64("NODE", BAR_MIRROR, MIRROR_BASE + reg::NODE)
        .fields(&[Field::bits("NODE", 31, 0), Field::bits("NODES", 63, 32)]),
    Register::ro64("COORDINATES", BAR_MIRROR, MIRROR_BASE + reg::COORDINATES),
    Register::ro64("LAST_COORDINATES", BAR_MIRROR, MIRROR_BASE + reg::LAST_COORDINATES),
    Register::ro64("STARTS", BAR_MIRROR, MIRROR_BASE + reg::STARTS),
    Register::ro64("DROPPED", BAR_MIRROR, MIRROR_BASE + reg::DROPPED).about("packets that were dropped"),
];

/// The declarations of the registers: the first page of an attachment, and the device control
/// registers that the kernel's has. The kernel's three other pages have the registers of the first
/// one, and the mirror has those of all pages again: they are not declared.
pub static REGISTER_MAP: &[Register] = &joined::<
    { PAGE_MAP.len() + mu_dcr::REGISTER_MAP.len() + nd_dcr::REGISTER_MAP.len() },
>(&[PAGE_MAP, &mu_dcr::REGISTER_MAP, nd_dcr::REGISTER_MAP]);
