//! Sizes, BARs, registers, the mailbox and the mirror.

use crate::register::{Field, Register};

/// BAR of the mailbox.
pub const BAR_WINDOW: u8 = 1;
/// BAR of the results.
pub const BAR_MIRROR: u8 = 2;
/// Number of cells of an attachment's posted-write ring.
pub const RING_CELLS: u32 = 64;
/// Size of the registers in bytes.
pub const REGISTERS: u64 = 0x1000;

/// Attachment of the kernel: the trusted mailbox.
pub const KERNEL: u16 = 0;
/// Largest number of processes of a node. Process *p* has attachment *p* + 1.
pub const MAX_PROCESSES: u16 = 15;
/// Default number of processes of a node.
pub const DEFAULT_PROCESSES: u16 = 2;
/// Largest number of nodes of a network: the sequence numbers of 16,000 pairs take 64 KB.
pub const MAX_NODES: u32 = 16_000;
/// Largest number of links of a node: two in each of three dimensions.
pub const LINKS: usize = 6;

/// Bytes of scratch memory: mailboxes, pending messages and sequence numbers lie in it.
pub const SCRATCH: u32 = 384 << 10;
/// Number of concurrent message streams that the receiver tells apart.
pub const STREAMS: u16 = 256;
/// Bytes of a packet of the network.
pub const PACKET: usize = 64;
/// Maximum number of bytes of a message that its header packet carries. A longer message needs a
/// stream.
pub const INLINE: usize = 16;
/// Maximum number of messages in flight from a node to another one.
pub const MAX_IN_FLIGHT: u16 = 1024;
/// Maximum number of messages in flight of all processes of a node in host-based mode.
pub const KERNEL_MESSAGES: u16 = 64;
/// Maximum number of messages in flight of all processes of a node in NIC-based mode.
const PROCESS_MESSAGES: u16 = 128;

/// Returns the maximum number of messages in flight of each process in NIC-based mode, on a node
/// that can have `processes` processes: an equal share.
pub const fn process_messages(processes: u16) -> u16 {
    let shares = if processes == 0 { 1 } else { processes };
    PROCESS_MESSAGES / shares
}
/// Largest length of a message in bytes.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// MSI-X vectors of each attachment.
pub mod vector {
    /// The kernel's event queue has a new event. Processes get no interrupts.
    pub const EVENT: u16 = 0;
    /// Number of vectors.
    pub const COUNT: u16 = 1;
}

/// Offsets in BAR 0. Registers are 32 bits wide, and read only. Any other access reads as ones and
/// has no effect.
pub mod reg {
    /// Read: [`IDENTITY_VALUE`].
    pub const IDENTITY: u64 = 0x00;
    /// "STAR" in little-endian order.
    pub const IDENTITY_VALUE: u32 = 0x5241_5453;
}

/// Offsets in the mailbox, from the start of the device's windows.
pub mod window {
    /// Start of the device's windows in [`super::BAR_WINDOW`], after the posted-write ring.
    pub const BASE: u64 = 0x1_0000;
    /// Number of commands that the client has written, modulo 2^32 (32-bit).
    pub const COMMAND_TAIL: u64 = 0x000;
    /// Slots of commands.
    pub const COMMANDS: u64 = 0x1000;
    /// Size of the mailbox in bytes.
    pub const SIZE: u64 = COMMANDS + super::SLOTS as u64 * super::COMMAND_BYTES as u64;
}

/// Offsets in the device's part of the mirror. Words have 32 bits.
pub mod mirror {
    /// Start of the device's part in [`super::BAR_MIRROR`], after the core's page.
    pub const BASE: u64 = 0x1000;
    /// Number of this node.
    pub const NODE: u64 = 0x00;
    /// Number of nodes of the network.
    pub const NODES: u64 = 0x04;
    /// Number of the client's process; [`NO_PROCESS`] for the kernel.
    pub const PROCESS: u64 = 0x08;
    /// Value of [`PROCESS`] for the kernel.
    pub const NO_PROCESS: u32 = u32::MAX;
    /// State of the firmware: one of [`super::firmware`].
    pub const FIRMWARE: u64 = 0x0c;
    /// Epoch of the firmware: the number of its starts, from 1.
    pub const EPOCH: u64 = 0x10;
    /// Number of processes that the node can have.
    pub const PROCESSES: u64 = 0x14;
    /// Slots of results.
    pub const RESULTS: u64 = 0x1000;
    /// Size of the device's part of the mirror in bytes.
    pub const SIZE: u64 = RESULTS + super::SLOTS as u64 * super::RESULT_BYTES as u64;
}

/// States of the firmware ([`mirror::FIRMWARE`]).
pub mod firmware {
    /// It has not started, or starts.
    pub const DOWN: u32 = 0;
    /// It takes commands.
    pub const RUNNING: u32 = 1;
    /// It has panicked or hung. A reset of the function starts it again.
    pub const HALTED: u32 = 2;
}

/// Number of command slots, and of result slots, of a mailbox: a power of two.
pub const SLOTS: u32 = 64;
/// Size of a command in bytes.
pub const COMMAND_BYTES: usize = 128;
/// Size of a result in bytes.
pub const RESULT_BYTES: usize = 32;

/// The declarations of the registers. Commands, results and events are structures in memory, and
/// not among them.
pub static REGISTER_MAP: &[Register] = &[
    Register::ro32("IDENTITY", 0, reg::IDENTITY),
    Register::rw32("COMMAND_TAIL", BAR_WINDOW, window::BASE + window::COMMAND_TAIL)
        .about("commands that the client has written"),
    Register::ro32("NODE", BAR_MIRROR, mirror::BASE + mirror::NODE),
    Register::ro32("NODES", BAR_MIRROR, mirror::BASE + mirror::NODES),
    Register::ro32("PROCESS", BAR_MIRROR, mirror::BASE + mirror::PROCESS)
        .fields(&[Field::bits("PROCESS", 31, 0).values(&[(mirror::NO_PROCESS as u64, "kernel")])]),
    Register::ro32("FIRMWARE", BAR_MIRROR, mirror::BASE + mirror::FIRMWARE).fields(&[Field::bits(
        "STATE", 31, 0,
    )
    .values(&[
        (firmware::DOWN as u64, "down"),
        (firmware::RUNNING as u64, "running"),
        (firmware::HALTED as u64, "halted"),
    ])]),
    Register::ro32("EPOCH", BAR_MIRROR, mirror::BASE + mirror::EPOCH).about("starts of the firmware"),
    Register::ro32("PROCESSES", BAR_MIRROR, mirror::BASE + mirror::PROCESSES),
];
