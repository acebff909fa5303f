//! The EXTOLL card (Fröning et al., "On Achieving High Message Rates"): register file, windows,
//! directory, errors.
//!
//! [`crate::extoll_velo`] has VELO's addresses and receive ring, [`crate::extoll_rma`] RMA's
//! descriptors and notifications, [`crate::extoll_atu`] the address translation.
//!
//! No public document describes the registers of the R1 prototype, so this layout is nicforge's
//! own. Names are those of the paper and of the public headers of its successor.
//!
//! A function is a card. Its attachments are the VPIDs (virtual process ids), 0 to one less than
//! their number ([`mirror::VPIDS`]). After them is the admin attachment, which has the kernel's
//! role. Each has its own page, so that the card knows the writer of each access.
//!
//! | BAR | contents | access |
//! | --- | --- | --- |
//! | 0 | register file ([`reg`]; after it the core's pages) | trapped, or posted through a ring |
//! | 1 | posted-write ring and windows ([`window`]), private | mapped, read-write |
//! | 2 | attachment mirror: core's page, then card's ([`mirror`]), private | mapped, read-only |
//! | 3 | VELO sends, 64-bit, 4 GiB ([`crate::extoll_velo::address`]) | posted or trapped |
//! | 5 | directory ([`directory`]), shared by the attachments of a card | mapped, read-only |

use crate::{
    extoll_atu,
    extoll_rma::COMMAND_BYTES,
    register::{Field, Register, joined},
};

/// Largest number of VPIDs of a card.
pub const MAX_VPIDS: u16 = 256;
/// Default number of VPIDs of a card; the machine's description can set another.
pub const DEFAULT_VPIDS: u16 = 16;
/// Largest number of nodes of a network: node ids are 11 bits wide.
pub const MAX_NODES: u32 = 2048;
/// Largest number of links of a card.
pub const LINKS: usize = 6;
/// BAR of VELO sends.
pub const BAR_VELO: u8 = 3;
/// BAR of the directory.
pub const BAR_DIRECTORY: u8 = 5;
/// Number of cells of an attachment's posted-write ring.
pub const RING_CELLS: u32 = 4096;
/// Size of the register file in bytes.
pub const REGISTERS: u64 = 0x8000;

/// MSI-X vectors of each attachment.
pub mod vector {
    /// The VELO receive ring was empty and has a message now.
    pub const VELO_RECEIVE: u16 = 0;
    /// The notification queue was empty and has a notification now.
    pub const RMA_NOTIFICATION: u16 = 1;
    /// An error was counted for this attachment ([`super::mirror::ERRORS`]).
    pub const ERROR: u16 = 2;
    /// Number of vectors.
    pub const COUNT: u16 = 3;
}

/// Offsets in BAR 0.
///
/// Registers are 64 bits wide and accessed whole, unless they say otherwise. An access of another
/// width or between registers counts as [`error::REGISTER_ACCESS`], reads as ones and has no
/// effect. Registers from [`reg::ADMIN`] on belong to the admin attachment. For other attachments
/// they count as [`error::NOT_PERMITTED`].
pub mod reg {
    /// Read: [`IDENTITY_VALUE`].
    pub const IDENTITY: u64 = 0x000;
    /// "EXTOLLR1" in little-endian order.
    pub const IDENTITY_VALUE: u64 = 0x3152_4c4c_4f54_5845;

    /// IOVA of the VELO receive ring, a multiple of 4096. Software writes it while the ring is
    /// disabled.
    pub const VELO_RING_BASE: u64 = 0x100;
    /// Number of slots of the VELO receive ring: a power of two, [`crate::extoll_velo::MIN_SLOTS`]
    /// to [`crate::extoll_velo::MAX_SLOTS`]. Software writes it while the ring is disabled.
    pub const VELO_RING_SLOTS: u64 = 0x108;
    /// 1 enables the ring: other attachments can send to this one, and every card's directory says
    /// so. 0 disables it: messages in flight to it are refused. A ring that is enabled again starts
    /// at slot 0, empty.
    ///
    /// Reads return the state. Enabling fails, and counts as [`super::error::RING`], if the ring is
    /// too small for the network or the card can't write its memory.
    pub const VELO_RING_ENABLE: u64 = 0x110;
    /// Read: number of VELO sends of this attachment that the card has finished: in flight, or
    /// dropped with an error. Torn sends do not count. A read tears a send of which only a part has
    /// arrived.
    ///
    /// Software that stores messages directly, instead of posting them, must read this register
    /// after each message, and store again a message that was not counted.
    pub const VELO_TAKEN: u64 = 0x118;
    /// IOVA of the notification queue, a multiple of 4096. Software writes it while the queue is
    /// disabled.
    pub const RMA_QUEUE_BASE: u64 = 0x180;
    /// Number of entries of the notification queue: a power of two,
    /// [`crate::extoll_rma::MIN_ENTRIES`] to [`crate::extoll_rma::MAX_ENTRIES`].
    pub const RMA_QUEUE_ENTRIES: u64 = 0x188;
    /// Enables the notification queue, as [`VELO_RING_ENABLE`] does the ring. RMA commands are
    /// refused while it is 0.
    pub const RMA_QUEUE_ENABLE: u64 = 0x190;
    /// Interrupt enable, one bit for each [`super::vector`]. Raising an interrupt disables it.
    /// Enabling one whose condition holds (unread messages, unread notifications) raises it at
    /// once.
    pub const INTERRUPT_ENABLE: u64 = 0x200;
    /// Write: enables the interrupts whose bits are 1, as [`INTERRUPT_ENABLE`] does, and leaves the
    /// others unchanged. Two programs that share one VPID thus need no coordination.
    pub const INTERRUPT_SET: u64 = 0x208;
    /// Write: disables the interrupts whose bits are 1, and leaves the others unchanged.
    pub const INTERRUPT_CLEAR: u64 = 0x210;

    /// Write: a descriptor of [`crate::extoll_rma::COMMAND_BYTES`] bytes in one write starts an RMA
    /// command.
    pub const RMA_COMMAND: u64 = 0x800;

    /// Address translation commands: see [`crate::extoll_atu::command`].
    pub const ATU: u64 = 0x1000;

    /// First register of the admin attachment.
    pub const ADMIN: u64 = 0x2000;
    /// Nanoseconds after which a VELO send that waits for credit, or for a stalled network, is
    /// dropped with [`super::error::WATCHDOG`]. 0 means never.
    pub const WATCHDOG: u64 = 0x2000;
    /// Default of [`WATCHDOG`]; the machine's description can set another.
    pub const WATCHDOG_DEFAULT: u64 = 500_000_000;
    /// Nanoseconds after which a silent target times out; 0 means never. A target is silent while
    /// it sends neither room for a part nor an answer. Then all of a VPID's commands for it end
    /// with [`crate::extoll_rma::status::TIMED_OUT`].
    pub const RMA_WATCHDOG: u64 = 0x2008;
    /// Default of [`RMA_WATCHDOG`]; the machine's description can set another.
    pub const RMA_WATCHDOG_DEFAULT: u64 = 2_000_000_000;
    /// A VPID to inspect. [`SELECTED_ERRORS`] then shows its errors.
    pub const SELECT_VPID: u64 = 0x2010;
    /// Read: number of errors of the selected VPID so far.
    pub const SELECTED_ERRORS: u64 = 0x2018;
    /// Write: resets the VPID of the number written, as if its client had requested it.
    pub const RESET_VPID: u64 = 0x2020;
    /// Read: link `n`'s state at `+ 8 n`: bit 0 up, bit 1 connected.
    pub const LINK_STATE: u64 = 0x2100;
    /// Read: number of packets that link `n` retransmitted, at `+ 8 n`.
    pub const LINK_RETRIES: u64 = 0x2140;
    /// Read: the route to node `n` at `+ 8 n`. Bits 3..0 are the port (15: none; 14: this card),
    /// bits 7..4 the lane on which a packet leaves, a virtual channel among those of its class.
    pub const ROUTE: u64 = 0x3000;
}

/// Offsets in BAR 1, which software writes.
pub mod window {
    /// Number of VELO messages taken out of the receive ring so far (64-bit). The card polls it,
    /// and frees slots independently of the posted-write ring. A value that decreases, or exceeds
    /// the number delivered, counts as [`super::error::READ_POINTER`] and is ignored.
    pub const VELO_READ_POINTER: u64 = 0x4_0000;
    /// Number of notifications taken out of the notification queue so far (64-bit). The same rules
    /// apply as for [`VELO_READ_POINTER`].
    pub const RMA_READ_POINTER: u64 = 0x4_0040;
    /// Size of the windows after the ring in bytes.
    pub const SIZE: u64 = 0x1000;
}

/// Offsets in BAR 2, which the card writes. Words have 64 bits unless they say otherwise. Words
/// that change together share a cache line.
pub mod mirror {
    /// This card's node id (32-bit).
    pub const NODE: u64 = 0x1000;
    /// This attachment's VPID (32-bit). The admin attachment's is the value of [`VPIDS`].
    pub const VPID: u64 = 0x1004;
    /// Number of nodes of the network (32-bit).
    pub const NODES: u64 = 0x1008;
    /// Number of VPIDs of each card (32-bit).
    pub const VPIDS: u64 = 0x100c;
    /// Number of starts of this VPID: one with each client and one after it, one after its own
    /// reset, and one after the admin's.
    pub const STARTS: u64 = 0x1010;
    /// Number of VELO messages that have left for the network so far.
    pub const VELO_SENT: u64 = 0x1040;
    /// Number of sends that had to wait for credit so far.
    pub const VELO_STALLS: u64 = 0x1048;
    /// Number of VELO messages written to the receive ring so far.
    pub const VELO_RECEIVED: u64 = 0x1080;
    /// Number of RMA commands taken so far.
    pub const RMA_COMMANDS: u64 = 0x10c0;
    /// Number of RMA commands that have ended, with or without an error.
    pub const RMA_COMPLETED: u64 = 0x10c8;
    /// Number of notifications written to the queue so far.
    pub const RMA_NOTIFICATIONS: u64 = 0x1100;
    /// Number of notifications lost because the queue was full.
    pub const RMA_OVERFLOWS: u64 = 0x1108;
    /// Number of errors counted for this attachment so far.
    pub const ERRORS: u64 = 0x1140;
    /// The last error: bits 7..0 are its code ([`super::error`]), bits 39..8 its location, such as
    /// a send's offset in BAR 3 or a register's offset.
    pub const LAST_ERROR: u64 = 0x1148;
    /// Number of sends whose target was absent.
    pub const VELO_UNDELIVERED: u64 = 0x1150;
    /// Size of the card's part in bytes.
    pub const SIZE: u64 = 0x1000;
}

/// The directory, BAR 5: the attachments that can receive messages.
pub mod directory {
    /// Distance of two nodes' entries in bytes. The byte of VPID `v` of node `n` is at `256 n + v`.
    /// It holds the VPID's generation that this card knows, odd while its VELO ring is enabled. A
    /// change travels after the messages that the VPID sent.
    pub const STRIDE: u64 = 256;
}

/// Error codes, as counted in [`mirror::ERRORS`].
pub mod error {
    /// A register access of a wrong width, or to an address without a register.
    pub const REGISTER_ACCESS: u8 = 1;
    /// An access to a register of the admin attachment.
    pub const NOT_PERMITTED: u8 = 2;
    /// A receive ring or notification queue that can't be enabled.
    pub const RING: u8 = 3;
    /// An invalid read pointer.
    pub const READ_POINTER: u8 = 4;
    /// A VELO send whose address names no length, crosses its message, or has a wrong width.
    pub const SEND_ADDRESS: u8 = 5;
    /// A VELO send that the processor split and did not complete, because another began or time ran
    /// out. Nothing of it was sent.
    pub const SEND_TORN: u8 = 6;
    /// The target of a VELO send or RMA command does not exist or has no client.
    pub const NO_RECEIVER: u8 = 7;
    /// A VELO send waited for credit, or for a stalled network, longer than the watchdog permits,
    /// and was dropped.
    pub const WATCHDOG: u8 = 8;
    /// The memory of the receive ring or notification queue can't be written any more. The ring or
    /// queue is disabled.
    pub const RING_MEMORY: u8 = 9;
    /// An invalid RMA command.
    pub const COMMAND: u8 = 10;
    /// An address translation command that is invalid or finds no free entries.
    pub const ATU: u8 = 11;
    /// A notification was lost, because the queue was full.
    pub const OVERFLOW: u8 = 12;
}

/// The interrupts of an attachment.
const VECTORS: &[Field] = &[
    Field::bit("VELO_RECEIVE", vector::VELO_RECEIVE as u8),
    Field::bit("RMA_NOTIFICATION", vector::RMA_NOTIFICATION as u8),
    Field::bit("ERROR", vector::ERROR as u8),
];

/// The declarations of the registers without those of the address translation.
const OWN: &[Register] = &[
    Register::ro64("IDENTITY", 0, reg::IDENTITY),
    Register::rw64("VELO_RING_BASE", 0, reg::VELO_RING_BASE).about("IOVA of the receive ring"),
    Register::rw64("VELO_RING_SLOTS", 0, reg::VELO_RING_SLOTS).about("slots of the receive ring"),
    Register::rw64("VELO_RING_ENABLE", 0, reg::VELO_RING_ENABLE).fields(&[Field::bit("ENABLE", 0)]),
    Register::ro64("VELO_TAKEN", 0, reg::VELO_TAKEN).about("sends that the card has finished"),
    Register::rw64("RMA_QUEUE_BASE", 0, reg::RMA_QUEUE_BASE).about("IOVA of the notification queue"),
    Register::rw64("RMA_QUEUE_ENTRIES", 0, reg::RMA_QUEUE_ENTRIES).about("entries of the queue"),
    Register::rw64("RMA_QUEUE_ENABLE", 0, reg::RMA_QUEUE_ENABLE).fields(&[Field::bit("ENABLE", 0)]),
    Register::rw64("INTERRUPT_ENABLE", 0, reg::INTERRUPT_ENABLE).fields(VECTORS),
    Register::wo64("INTERRUPT_SET", 0, reg::INTERRUPT_SET).fields(VECTORS),
    Register::wo64("INTERRUPT_CLEAR", 0, reg::INTERRUPT_CLEAR).fields(VECTORS),
    Register::wo64("RMA_COMMAND", 0, reg::RMA_COMMAND)
        .array(COMMAND_BYTES as u32 / 8, 8)
        .about("the quadwords of a descriptor"),
    Register::rw64("WATCHDOG", 0, reg::WATCHDOG).about("of VELO sends, in nanoseconds"),
    Register::rw64("RMA_WATCHDOG", 0, reg::RMA_WATCHDOG).about("of silent targets, in nanoseconds"),
    Register::rw64("SELECT_VPID", 0, reg::SELECT_VPID).about("VPID to inspect"),
    Register::ro64("SELECTED_ERRORS", 0, reg::SELECTED_ERRORS).about("errors of that VPID"),
    Register::wo64("RESET_VPID", 0, reg::RESET_VPID).about("resets a VPID"),
    Register::ro64("LINK_STATE", 0, reg::LINK_STATE)
        .array(LINKS as u32, 8)
        .fields(&[Field::bit("UP", 0), Field::bit("CONNECTED", 1)]),
    Register::ro64("LINK_RETRIES", 0, reg::LINK_RETRIES).array(LINKS as u32, 8).about("retransmissions"),
    Register::ro64("ROUTE", 0, reg::ROUTE).array(MAX_NODES, 8).fields(&[
        Field::bits("PORT", 3, 0).values(&[(0, "0"), (14, "own"), (15, "none")]),
        Field::bits("LANE", 7, 4),
    ]),
    Register::rw64("VELO_READ_POINTER", 1, window::VELO_READ_POINTER).about("messages taken"),
    Register::rw64("RMA_READ_POINTER", 1, window::RMA_READ_POINTER).about("notifications taken"),
    Register::ro32("NODE", 2, mirror::NODE),
    Register::ro32("VPID", 2, mirror::VPID),
    Register::ro32("NODES", 2, mirror::NODES),
    Register::ro32("VPIDS", 2, mirror::VPIDS),
    Register::ro64("STARTS", 2, mirror::STARTS).about("starts of this VPID"),
    Register::ro64("VELO_SENT", 2, mirror::VELO_SENT).about("messages that have left"),
    Register::ro64("VELO_STALLS", 2, mirror::VELO_STALLS).about("sends that waited for credit"),
    Register::ro64("VELO_RECEIVED", 2, mirror::VELO_RECEIVED).about("messages in the receive ring"),
    Register::ro64("RMA_COMMANDS", 2, mirror::RMA_COMMANDS).about("commands taken"),
    Register::ro64("RMA_COMPLETED", 2, mirror::RMA_COMPLETED).about("commands that have ended"),
    Register::ro64("RMA_NOTIFICATIONS", 2, mirror::RMA_NOTIFICATIONS).about("notifications written"),
    Register::ro64("RMA_OVERFLOWS", 2, mirror::RMA_OVERFLOWS).about("notifications lost"),
    Register::ro64("ERRORS", 2, mirror::ERRORS).about("errors so far"),
    Register::ro64("LAST_ERROR", 2, mirror::LAST_ERROR).fields(&[
        Field::bits("CODE", 7, 0).values(&[
            (error::REGISTER_ACCESS as u64, "register access"),
            (error::NOT_PERMITTED as u64, "not permitted"),
            (error::RING as u64, "ring"),
            (error::READ_POINTER as u64, "read pointer"),
            (error::SEND_ADDRESS as u64, "send address"),
            (error::SEND_TORN as u64, "send torn"),
            (error::NO_RECEIVER as u64, "no receiver"),
            (error::WATCHDOG as u64, "watchdog"),
            (error::RING_MEMORY as u64, "ring memory"),
            (error::COMMAND as u64, "command"),
            (error::ATU as u64, "ATU"),
            (error::OVERFLOW as u64, "overflow"),
        ]),
        Field::bits("AT", 39, 8),
    ]),
    Register::ro64("VELO_UNDELIVERED", 2, mirror::VELO_UNDELIVERED).about("sends to absent targets"),
];

/// The declarations of the registers. An address of a VELO send ([`BAR_VELO`]) names a receiver and
/// no register, and rings and directory are data: they are not among them.
pub static REGISTER_MAP: &[Register] =
    &joined::<{ OWN.len() + extoll_atu::REGISTER_MAP.len() }>(&[OWN, extoll_atu::REGISTER_MAP]);
