//! Device control registers of the Message Unit of Blue Gene/Q.
//!
//! Names are those of the public header `mu_dcr.h` of `bgq-driver`. An offset here is
//! 8 times the distance of the public number from 0xd00, and counts from
//! [`crate::mu::DEVICE_CONTROL`]. Only the kernel's attachment reaches the registers. All have
//! 64 bits.
//!
//! Four things differ from Blue Gene/Q:
//!
//! - Bit `i` of a register is `1 << i`. The public header counts from the highest bit.
//! - Reception FIFOs, remote gets and interrupts of a subgroup can also be enabled in the
//!   subgroup's own page ([`crate::mu::reg`]), so that a node works without a kernel.
//! - At power-on, the first range of users and of the system permits all addresses.
//! - The performance counters are at public number 0xee8, in a gap. The public
//!   header has them in another range.

use crate::{
    mu::{DEVICE_CONTROL, GROUPS},
    register::{Access, Field, Register, joined},
};

/// Injection FIFOs of group `n` whose free space raises an interrupt: register `n` of 17, bit `i`
/// for FIFO `32 n + i`.
pub const IMFIFO_THOLD_INT_EN: u64 = 0;
/// Injection FIFOs of the system: register `n` of 17, read-only. Group 16 has all bits.
pub const IMFIFO_SYSTEM: u64 = (0xd11 - 0xd00) * 8;
/// Injection FIFOs that remote gets may use: register `n` of 17.
pub const IMFIFO_RGET: u64 = (0xd22 - 0xd00) * 8;
/// Free space above which injection FIFOs raise their interrupts, in descriptors. A write sets it
/// for all subgroups.
pub const IMU_THOLD: u64 = (0xd33 - 0xd00) * 8;
/// Free space below which injection FIFOs for remote gets raise their interrupts, in chunks of
/// 32 bytes.
pub const RGET_THOLD: u64 = (0xd34 - 0xd00) * 8;
/// Reception FIFOs that take packets: register `n` of 17, bit `i` for FIFO `16 n + i`. An enabled
/// FIFO whose bit is cleared here stays disabled until the bit is set here, or the node is reset.
pub const RMFIFO_EN: u64 = (0xd35 - 0xd00) * 8;
/// Reception FIFOs whose free space raises an interrupt: register `n` of 17.
pub const RMFIFO_THOLD_INT_EN: u64 = (0xd46 - 0xd00) * 8;
/// Reception FIFOs whose packets raise interrupts: register `n` of 17.
pub const RMFIFO_PACKET_INT_EN: u64 = (0xd57 - 0xd00) * 8;
/// Reception FIFOs of the system: register `n` of 17, read-only. Group 16 has all bits.
pub const RMFIFO_SYSTEM: u64 = (0xd68 - 0xd00) * 8;
/// Free space below which reception FIFOs raise their interrupts, in chunks of 32 bytes. A write
/// sets it for all subgroups.
pub const RMU_THOLD: u64 = (0xd79 - 0xd00) * 8;
/// Subgroups 0 to 63 whose base addresses users can't use, read-only: none.
pub const RPUTBASE_SYSTEM0: u64 = (0xd7a - 0xd00) * 8;
/// Subgroups 64 to 67 whose base addresses users can't use, read-only: all.
pub const RPUTBASE_SYSTEM1: u64 = (0xd7b - 0xd00) * 8;
/// Barrier classes of the system, one bit for each.
pub const SYS_BARRIER: u64 = (0xd7c - 0xd00) * 8;
/// Barrier classes whose completion raises an interrupt, one bit for each; and three lines of
/// global interrupts a class that raise one, from [`GI_INT_EN_SHIFT`] on. Blue Gene/Q has the lines
/// alone.
pub const BARRIER_INT_EN: u64 = (0xd7d - 0xd00) * 8;
/// Lowest bit of the lines of class 0 in [`BARRIER_INT_EN`].
pub const GI_INT_EN_SHIFT: u32 = 16;
/// Lowest addresses of the users' ranges: bits 20 to 35.
pub const MIN_USR_ADDR_RANGE: u64 = (0xd80 - 0xd00) * 8;
/// Highest addresses of the users' ranges: bits 20 to 35. Lower bits count as ones.
pub const MAX_USR_ADDR_RANGE: u64 = (0xd94 - 0xd00) * 8;
/// Number of the users' ranges.
pub const USR_RANGES: usize = 20;
/// Lowest addresses of the system's ranges.
pub const MIN_SYS_ADDR_RANGE: u64 = (0xda8 - 0xd00) * 8;
/// Highest addresses of the system's ranges.
pub const MAX_SYS_ADDR_RANGE: u64 = (0xdb0 - 0xd00) * 8;
/// Number of the system's ranges.
pub const SYS_RANGES: usize = 8;
/// The users' ranges that can be read alone, one bit for each.
pub const USR_INJ_RANGE: u64 = (0xdb8 - 0xd00) * 8;
/// The system's ranges that can be read alone, one bit for each.
pub const SYS_INJ_RANGE: u64 = (0xdb9 - 0xd00) * 8;
/// Network injection FIFOs whose engines work, one bit for each. All do at power-on.
pub const IME_ENABLE: u64 = (0xdc7 - 0xd00) * 8;
/// Network reception FIFOs whose engines work, one bit for each. All do at power-on.
pub const RME_ENABLE: u64 = (0xdc8 - 0xd00) * 8;
/// Address of the last memory request that a range refused, with [`ERR_INFO_SYSTEM`].
pub const XM0_ERR_INFO: u64 = (0xe12 - 0xd00) * 8;
/// Offset of the last access that the slave port refused.
pub const XS_ERR_INFO: u64 = (0xe2d - 0xd00) * 8;
/// The last reception FIFO that was full.
pub const RMFIFO: u64 = (0xe3f - 0xd00) * 8;
/// The injection FIFO of the last descriptor with an error.
pub const MCSRAM_ERR_FIFO_ID: u64 = (0xe50 - 0xd00) * 8;
/// The last user's injection FIFO that named a FIFO of the system.
pub const IMFIFO: u64 = (0xe51 - 0xd00) * 8;
/// The reception FIFO of the last packet that it did not take.
pub const RMFIFO_ACCESS_ERROR_ID: u64 = (0xe6a - 0xd00) * 8;
/// The last injection FIFO that had no room for a remote get.
pub const ICSRAM_RGET_FIFO_FULL: u64 = (0xec3 - 0xd00) * 8;
/// The last injection FIFO that did not take a remote get.
pub const IMFIFO_ACCESS_ERROR_ID: u64 = (0xecc - 0xd00) * 8;
/// Performance counters ([`counter`]), which a write sets.
pub const UPC_MU_COUNTER: u64 = (0xee8 - 0xd00) * 8;

/// Bit of [`XM0_ERR_INFO`]: the request was the system's.
pub const ERR_INFO_SYSTEM: u64 = 1 << 37;

/// Registers of a set of errors, at these offsets after its first.
pub mod errors {
    /// Errors that have come. A write clears its bits.
    pub const STATE: u64 = 0x00;
    /// [`super::severity`] of errors 0 to 31: two bits for each.
    pub const CONTROL_LOW: u64 = 0x08;
    /// [`super::severity`] of errors 32 to 63.
    pub const CONTROL_HIGH: u64 = 0x10;
    /// A write causes the errors of its bits.
    pub const FORCE: u64 = 0x18;
    /// Errors of the first event since [`STATE`] was 0, read-only.
    pub const FIRST: u64 = 0x20;
    /// Errors of the machine-check group, read-only.
    pub const MACHINE_CHECK: u64 = 0x28;
    /// Errors of the critical group, read-only.
    pub const CRITICAL: u64 = 0x30;
    /// Errors of the non-critical group, read-only.
    pub const NONCRITICAL: u64 = 0x38;
    /// Bytes of the registers.
    pub const SIZE: u64 = 0x40;

    /// First registers of the sets.
    pub const MASTER_PORT0: u64 = (0xe0a - 0xd00) * 8;
    /// Accesses of software: `SLAVE_PORT_INTERRUPTS`.
    pub const SLAVE_PORT: u64 = (0xe25 - 0xd00) * 8;
    /// Accesses to registers of a subgroup: `MMREGS_INTERRUPTS`.
    pub const MMREGS: u64 = (0xe2e - 0xd00) * 8;
    /// Notifications: `FIFO_INTERRUPTS`.
    pub const FIFO: u64 = (0xe37 - 0xd00) * 8;
    /// Descriptors: `MCSRAM_INTERRUPTS`.
    pub const MCSRAM: u64 = (0xe48 - 0xd00) * 8;
    /// Reception FIFOs: `RCSRAM_INTERRUPTS`.
    pub const RCSRAM: u64 = (0xe62 - 0xd00) * 8;
    /// Direct puts: `RPUTSRAM_INTERRUPTS`.
    pub const RPUTSRAM: u64 = (0xe6b - 0xd00) * 8;
    /// Headers of packets from network reception FIFOs 0 to 7: `RME_INTERRUPTS0`.
    pub const RME0: u64 = (0xe8b - 0xd00) * 8;
    /// Headers of packets from network reception FIFOs 8 to 15: `RME_INTERRUPTS1`.
    pub const RME1: u64 = (0xe93 - 0xd00) * 8;
    /// Injection FIFOs: `ICSRAM_INTERRUPTS`.
    pub const ICSRAM: u64 = (0xebb - 0xd00) * 8;
    /// Remote gets: `MISC_INTERRUPTS`.
    pub const MISC: u64 = (0xec4 - 0xd00) * 8;
}

/// Severity of an error: two bits of a control register.
pub mod severity {
    /// The error raises no interrupt.
    pub const MASKED: u64 = 0;
    /// It raises [`crate::mu::vector::NON_CRITICAL`].
    pub const NONCRITICAL: u64 = 1;
    /// It raises [`crate::mu::vector::CRITICAL`].
    pub const CRITICAL: u64 = 2;
    /// It raises [`crate::mu::vector::MACHINE_CHECK`].
    pub const MACHINE_CHECK: u64 = 3;
}

/// Numbers of errors in their sets. The public sources define the others for the hardware's own
/// faults, which a model does not have.
pub mod error {
    /// [`super::errors::MASTER_PORT0`]: a write outside the ranges.
    pub const XM_WRITE_RANGE: u8 = 24;
    /// [`super::errors::MASTER_PORT0`]: a read outside the ranges.
    pub const XM_READ_RANGE: u8 = 25;
    /// [`super::errors::SLAVE_PORT`]: an access that has not 8 aligned bytes.
    pub const XS_SIZE: u8 = 22;
    /// [`super::errors::SLAVE_PORT`]: an access outside the registers.
    pub const XS_ADDRESS: u8 = 24;
    /// [`super::errors::MMREGS`]: a read of a register that can only be written.
    pub const MMREGS_READ: u8 = 9;
    /// [`super::errors::MMREGS`]: a write of a register that can only be read.
    pub const MMREGS_WRITE: u8 = 12;
    /// [`super::errors::MMREGS`]: a write of bits that do not exist.
    pub const MMREGS_RANGE: u8 = 16;
    /// [`super::errors::MMREGS`]: a user entered a barrier of the system, or one that the network
    /// does not have.
    pub const MMREGS_BARRIER: u8 = 18;
    /// [`super::errors::FIFO`]: a reception FIFO has no room for a packet.
    pub const RMFIFO_INSUFFICIENT_SPACE: u8 = 63;
    /// [`super::errors::MCSRAM`]: a get has an atomic payload address.
    pub const MCSRAM_GET_ATOMIC: u8 = 15;
    /// [`super::errors::MCSRAM`]: packets of more than 512 bytes.
    pub const MCSRAM_PACKET_SIZE: u8 = 16;
    /// [`super::errors::MCSRAM`]: the packets of a get hold parts of descriptors.
    pub const MCSRAM_GET_PACKET_SIZE: u8 = 18;
    /// [`super::errors::MCSRAM`]: the payload passes the end of the addresses.
    pub const MCSRAM_PAYLOAD_END: u8 = 20;
    /// [`super::errors::MCSRAM`]: the message of a get is not a multiple of 64 bytes.
    pub const MCSRAM_GET_LENGTH: u8 = 21;
    /// [`super::errors::MCSRAM`]: the message of an atomic payload has not 8 bytes.
    pub const MCSRAM_ATOMIC_LENGTH: u8 = 22;
    /// [`super::errors::MCSRAM`]: a put or a get without payload.
    pub const MCSRAM_NO_PAYLOAD: u8 = 23;
    /// [`super::errors::MCSRAM`]: a user's descriptor names a channel of the system.
    pub const MCSRAM_SYSTEM_CHANNEL: u8 = 24;
    /// [`super::errors::MCSRAM`]: the packet type is 3.
    pub const MCSRAM_PACKET_TYPE: u8 = 25;
    /// [`super::errors::MCSRAM`]: a user's descriptor names a network FIFO of the system.
    pub const MCSRAM_SYSTEM_FIFO: u8 = 26;
    /// [`super::errors::MCSRAM`]: the FIFO map is 0, or its FIFOs can't carry the packet.
    pub const MCSRAM_FIFO_MAP: u8 = 27;
    /// [`super::errors::MCSRAM`]: the virtual channel does not exist, or the network has no way.
    pub const MCSRAM_CHANNEL: u8 = 31;
    /// [`super::errors::MCSRAM`]: the put offset wraps.
    pub const MCSRAM_OFFSET: u8 = 32;
    /// [`super::errors::RCSRAM`]: a user's packet for a reception FIFO of the system.
    pub const RCSRAM_SYSTEM: u8 = 12;
    /// [`super::errors::RCSRAM`]: a packet for a reception FIFO that does not exist.
    pub const RCSRAM_INDEX: u8 = 13;
    /// [`super::errors::RCSRAM`]: a packet for a reception FIFO that is not enabled.
    pub const RCSRAM_DISABLED: u8 = 14;
    /// [`super::errors::RCSRAM`]: software wrote a pointer that is not possible.
    pub const RCSRAM_POINTER: u8 = 15;
    /// [`super::errors::RPUTSRAM`]: a user's put to an entry of the system, or to one that is not
    /// valid.
    pub const RPUTSRAM_SYSTEM_PAYLOAD: u8 = 8;
    /// [`super::errors::RPUTSRAM`]: the same for the counter.
    pub const RPUTSRAM_SYSTEM_COUNTER: u8 = 9;
    /// [`super::errors::RPUTSRAM`]: base address and offset pass the end of the addresses.
    pub const RPUTSRAM_OVERFLOW: u8 = 10;
    /// [`super::errors::RPUTSRAM`]: the payload passes the end of the addresses.
    pub const RPUTSRAM_CROSSING: u8 = 11;
    /// [`super::errors::RPUTSRAM`]: an atomic put has not 8 bytes.
    pub const RPUTSRAM_ATOMIC_LENGTH: u8 = 12;
    /// [`super::errors::RPUTSRAM`]: the counter's address is not atomic, or its operation does not
    /// add.
    pub const RPUTSRAM_COUNTER: u8 = 13;
    /// [`super::errors::ICSRAM`]: software wrote the free space.
    pub const ICSRAM_FREE_SPACE: u8 = 20;
    /// [`super::errors::ICSRAM`]: software wrote a pointer that is not aligned or outside the FIFO.
    pub const ICSRAM_ALIGNMENT: u8 = 21;
    /// [`super::errors::ICSRAM`]: software wrote a pointer beyond the addresses, or one of an
    /// enabled FIFO that only a disabled one has.
    pub const ICSRAM_RANGE: u8 = 22;
    /// [`super::errors::ICSRAM`]: an injection FIFO has no room for a remote get.
    pub const ICSRAM_GET_FULL: u8 = 23;
    /// [`super::errors::MISC`]: a user's remote get for an injection FIFO of the system, or for
    /// one that does not exist.
    pub const ICSRAM_SELECT_SYSTEM: u8 = 3;
    /// [`super::errors::MISC`]: a remote get for an injection FIFO that is not for them.
    pub const ICSRAM_SELECT_NO_GET: u8 = 4;
    /// [`super::errors::MISC`]: a remote get for an injection FIFO that is not enabled.
    pub const ICSRAM_SELECT_DISABLED: u8 = 5;

    /// Returns the number of the error of a packet's header in [`super::errors::RME0`] (network
    /// reception FIFOs 0 to 7) or [`super::errors::RME1`]. Each FIFO has six errors there.
    pub const fn rme_header(fifo: u8) -> u8 {
        if fifo < 8 { 6 * fifo + 5 } else { 6 * (fifo - 8) + 4 }
    }
}

/// Performance counters of the Message Unit.
pub mod counter {
    /// Descriptors done.
    pub const DESCRIPTORS: usize = 0;
    /// Packets injected.
    pub const PACKETS_SENT: usize = 1;
    /// Bytes of payload injected.
    pub const BYTES_SENT: usize = 2;
    /// Packets that the network could not take at once, because its FIFOs were full.
    pub const SEND_WAITS: usize = 3;
    /// Packets written to reception FIFOs.
    pub const FIFO_PACKETS: usize = 4;
    /// Packets of direct puts.
    pub const PUT_PACKETS: usize = 5;
    /// Packets of remote gets.
    pub const GET_PACKETS: usize = 6;
    /// Bytes of payload received.
    pub const BYTES_RECEIVED: usize = 7;
    /// Packets that had to wait for room in a FIFO of client memory.
    pub const RECEIVE_WAITS: usize = 8;
    /// Packets dropped because of an error or a subgroup without a client.
    pub const DROPPED: usize = 9;
    /// Faults of injection FIFOs.
    pub const FAULTS: usize = 10;
    /// Atomic operations on payloads and targets, without those on counters.
    pub const ATOMICS: usize = 11;
    /// Accesses to registers that were refused.
    pub const REFUSED: usize = 12;
    /// Bytes read by prefetch messages.
    pub const PREFETCHED: usize = 13;
    /// Number of counters.
    pub const COUNT: usize = 14;
}

const _: () = assert!(UPC_MU_COUNTER + 8 * counter::COUNT as u64 <= crate::mu::PAGE);

/// The declarations of a set of errors: its state, and [`errors::CONTROL_LOW`] and the registers
/// after it.
macro_rules! error_set {
    ($state:literal, $rest:literal, $first:expr, $fields:expr) => {
        [
            Register::rw64($state, 0, DEVICE_CONTROL + $first).access(Access::WriteOneClears).fields($fields),
            Register::rw64($rest, 0, DEVICE_CONTROL + $first + errors::CONTROL_LOW)
                .array(7, 8)
                .about("control (2), force, first, machine check, critical, non-critical"),
        ]
    };
}

// The fields of `errors::STATE` of each set, as far as the unit has these errors. A doc comment
// would be written into the C header.
mod error_fields {
    use super::error::*;
    use crate::register::Field;

    pub(super) const MASTER_PORT: &[Field] =
        &[Field::bit("WRITE_RANGE", XM_WRITE_RANGE), Field::bit("READ_RANGE", XM_READ_RANGE)];
    pub(super) const SLAVE_PORT: &[Field] = &[Field::bit("SIZE", XS_SIZE), Field::bit("ADDRESS", XS_ADDRESS)];
    pub(super) const MMREGS: &[Field] = &[
        Field::bit("READ", MMREGS_READ),
        Field::bit("WRITE", MMREGS_WRITE),
        Field::bit("RANGE", MMREGS_RANGE),
        Field::bit("BARRIER", MMREGS_BARRIER),
    ];
    pub(super) const FIFO: &[Field] = &[Field::bit("INSUFFICIENT_SPACE", RMFIFO_INSUFFICIENT_SPACE)];
    pub(super) const MCSRAM: &[Field] = &[
        Field::bit("GET_ATOMIC", MCSRAM_GET_ATOMIC),
        Field::bit("PACKET_SIZE", MCSRAM_PACKET_SIZE),
        Field::bit("GET_PACKET_SIZE", MCSRAM_GET_PACKET_SIZE),
        Field::bit("PAYLOAD_END", MCSRAM_PAYLOAD_END),
        Field::bit("GET_LENGTH", MCSRAM_GET_LENGTH),
        Field::bit("ATOMIC_LENGTH", MCSRAM_ATOMIC_LENGTH),
        Field::bit("NO_PAYLOAD", MCSRAM_NO_PAYLOAD),
        Field::bit("SYSTEM_CHANNEL", MCSRAM_SYSTEM_CHANNEL),
        Field::bit("PACKET_TYPE", MCSRAM_PACKET_TYPE),
        Field::bit("SYSTEM_FIFO", MCSRAM_SYSTEM_FIFO),
        Field::bit("FIFO_MAP", MCSRAM_FIFO_MAP),
        Field::bit("CHANNEL", MCSRAM_CHANNEL),
        Field::bit("OFFSET", MCSRAM_OFFSET),
    ];
    pub(super) const RCSRAM: &[Field] = &[
        Field::bit("SYSTEM", RCSRAM_SYSTEM),
        Field::bit("INDEX", RCSRAM_INDEX),
        Field::bit("DISABLED", RCSRAM_DISABLED),
        Field::bit("POINTER", RCSRAM_POINTER),
    ];
    pub(super) const RPUTSRAM: &[Field] = &[
        Field::bit("SYSTEM_PAYLOAD", RPUTSRAM_SYSTEM_PAYLOAD),
        Field::bit("SYSTEM_COUNTER", RPUTSRAM_SYSTEM_COUNTER),
        Field::bit("OVERFLOW", RPUTSRAM_OVERFLOW),
        Field::bit("CROSSING", RPUTSRAM_CROSSING),
        Field::bit("ATOMIC_LENGTH", RPUTSRAM_ATOMIC_LENGTH),
        Field::bit("COUNTER", RPUTSRAM_COUNTER),
    ];
    pub(super) const ICSRAM: &[Field] = &[
        Field::bit("FREE_SPACE", ICSRAM_FREE_SPACE),
        Field::bit("ALIGNMENT", ICSRAM_ALIGNMENT),
        Field::bit("RANGE", ICSRAM_RANGE),
        Field::bit("GET_FULL", ICSRAM_GET_FULL),
    ];
    pub(super) const MISC: &[Field] = &[
        Field::bit("SELECT_SYSTEM", ICSRAM_SELECT_SYSTEM),
        Field::bit("SELECT_NO_GET", ICSRAM_SELECT_NO_GET),
        Field::bit("SELECT_DISABLED", ICSRAM_SELECT_DISABLED),
    ];
}

/// Returns the declaration of a register for each group, of 17.
const fn of_groups(name: &'static str, offset: u64) -> Register {
    Register::rw64(name, 0, DEVICE_CONTROL + offset).array(GROUPS as u32, 8)
}

/// Returns the declaration of a single register.
const fn single(name: &'static str, offset: u64) -> Register {
    Register::rw64(name, 0, DEVICE_CONTROL + offset)
}

/// The declarations of the settings.
const SETTINGS: &[Register] = &[
    of_groups("IMFIFO_THOLD_INT_EN", IMFIFO_THOLD_INT_EN),
    of_groups("IMFIFO_SYSTEM", IMFIFO_SYSTEM).access(Access::ReadOnly),
    of_groups("IMFIFO_RGET", IMFIFO_RGET),
    single("IMU_THOLD", IMU_THOLD).about("threshold of injection FIFOs, in descriptors"),
    single("RGET_THOLD", RGET_THOLD).about("threshold of remote gets, in chunks"),
    of_groups("RMFIFO_EN", RMFIFO_EN),
    of_groups("RMFIFO_THOLD_INT_EN", RMFIFO_THOLD_INT_EN),
    of_groups("RMFIFO_PACKET_INT_EN", RMFIFO_PACKET_INT_EN),
    of_groups("RMFIFO_SYSTEM", RMFIFO_SYSTEM).access(Access::ReadOnly),
    single("RMU_THOLD", RMU_THOLD).about("threshold of reception FIFOs, in chunks"),
    single("RPUTBASE_SYSTEM", RPUTBASE_SYSTEM0).array(2, 8).access(Access::ReadOnly),
    single("SYS_BARRIER", SYS_BARRIER).about("barrier classes of the system, a bit each"),
    single("BARRIER_INT_EN", BARRIER_INT_EN)
        .fields(&[Field::bits("BARRIERS", 15, 0), Field::bits("LINES", 63, GI_INT_EN_SHIFT as u8)]),
    single("MIN_USR_ADDR_RANGE", MIN_USR_ADDR_RANGE).array(USR_RANGES as u32, 8),
    single("MAX_USR_ADDR_RANGE", MAX_USR_ADDR_RANGE).array(USR_RANGES as u32, 8),
    single("MIN_SYS_ADDR_RANGE", MIN_SYS_ADDR_RANGE).array(SYS_RANGES as u32, 8),
    single("MAX_SYS_ADDR_RANGE", MAX_SYS_ADDR_RANGE).array(SYS_RANGES as u32, 8),
    single("USR_INJ_RANGE", USR_INJ_RANGE).about("read-only ranges of users, a bit each"),
    single("SYS_INJ_RANGE", SYS_INJ_RANGE).about("read-only ranges of the system, a bit each"),
    single("IME_ENABLE", IME_ENABLE).about("injection engines that work, a bit each"),
    single("RME_ENABLE", RME_ENABLE).about("reception engines that work, a bit each"),
    single("XM0_ERR_INFO", XM0_ERR_INFO)
        .fields(&[Field::bits("ADDRESS", 35, 0), Field::mask("SYSTEM", ERR_INFO_SYSTEM)]),
    single("XS_ERR_INFO", XS_ERR_INFO).about("offset of the last refused access"),
    single("RMFIFO", RMFIFO).about("the last full reception FIFO"),
    single("MCSRAM_ERR_FIFO_ID", MCSRAM_ERR_FIFO_ID).about("FIFO of the last wrong descriptor"),
    single("IMFIFO", IMFIFO).about("the last user's FIFO that named one of the system"),
    single("RMFIFO_ACCESS_ERROR_ID", RMFIFO_ACCESS_ERROR_ID),
    single("ICSRAM_RGET_FIFO_FULL", ICSRAM_RGET_FIFO_FULL),
    single("IMFIFO_ACCESS_ERROR_ID", IMFIFO_ACCESS_ERROR_ID),
    single("UPC_MU_COUNTER", UPC_MU_COUNTER).array(counter::COUNT as u32, 8).about("performance counters"),
];

/// The declarations of the device control registers.
pub(crate) const REGISTER_MAP: [Register; SETTINGS.len() + 22] = joined(&[
    SETTINGS,
    &error_set!("MASTER_PORT_STATE", "MASTER_PORT", errors::MASTER_PORT0, error_fields::MASTER_PORT),
    &error_set!("SLAVE_PORT_STATE", "SLAVE_PORT", errors::SLAVE_PORT, error_fields::SLAVE_PORT),
    &error_set!("MMREGS_STATE", "MMREGS", errors::MMREGS, error_fields::MMREGS),
    &error_set!("FIFO_STATE", "FIFO", errors::FIFO, error_fields::FIFO),
    &error_set!("MCSRAM_STATE", "MCSRAM", errors::MCSRAM, error_fields::MCSRAM),
    &error_set!("RCSRAM_STATE", "RCSRAM", errors::RCSRAM, error_fields::RCSRAM),
    &error_set!("RPUTSRAM_STATE", "RPUTSRAM", errors::RPUTSRAM, error_fields::RPUTSRAM),
    &error_set!("RME0_STATE", "RME0", errors::RME0, &[]),
    &error_set!("RME1_STATE", "RME1", errors::RME1, &[]),
    &error_set!("ICSRAM_STATE", "ICSRAM", errors::ICSRAM, error_fields::ICSRAM),
    &error_set!("MISC_STATE", "MISC", errors::MISC, error_fields::MISC),
]);
