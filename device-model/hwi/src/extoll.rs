//! The EXTOLL card (Fröning et al., "On Achieving High Message Rates"): register file, windows, who
//! is who.
//!
//! VELO's addresses and receive ring are in [`crate::extoll_velo`], RMA's descriptors and
//! notifications in [`crate::extoll_rma`], address translation in [`crate::extoll_atu`].
//!
//! Nothing public describes the registers of the R1 prototype, so this layout is nicforge's own;
//! names are those of the paper and of the public headers of its successor.
//!
//! A function is a card. Its attachments are the VPIDs (virtual process ids), 0 to one less than
//! the card's number of them ([`mirror::VPIDS`]), and behind them the admin attachment, which has
//! the kernel's role. Each has a page of its own, so the card knows who writes without being told.
//!
//! | BAR | what | access |
//! | --- | --- | --- |
//! | 0 | register file ([`reg`]; behind it the core's pages) | trapped, or posted through a ring |
//! | 1 | posted-write ring and windows ([`window`]), private to the attachment | mapped, read-write |
//! | 2 | attachment mirror: the core's page, then the card's ([`mirror`]), private | mapped, read-only |
//! | 3 | VELO sends, 64-bit, 4 GiB ([`crate::extoll_velo::address`]) | posted through a ring, or trapped |
//! | 5 | directory ([`directory`]), shared by the attachments of a card | mapped, read-only |

/// VPIDs of a card at most.
pub const MAX_VPIDS: u16 = 256;
/// VPIDs of a card unless the machine says otherwise.
pub const DEFAULT_VPIDS: u16 = 16;
/// Nodes of a network at most: node ids are 11 bits wide.
pub const MAX_NODES: u32 = 2048;
/// Links of a card at most.
pub const LINKS: usize = 6;
/// BAR of VELO sends.
pub const BAR_VELO: u8 = 3;
/// BAR of the directory.
pub const BAR_DIRECTORY: u8 = 5;
/// Cells of an attachment's posted-write ring.
pub const RING_CELLS: u32 = 4096;
/// Bytes of the register file.
pub const REGISTERS: u64 = 0x8000;

/// MSI-X vectors of each attachment.
pub mod vector {
    /// The VELO receive ring was empty and is not any more.
    pub const VELO_RECEIVE: u16 = 0;
    /// The notification queue was empty and is not any more.
    pub const RMA_NOTIFICATION: u16 = 1;
    /// An error was counted for this attachment ([`super::mirror::ERRORS`]).
    pub const ERROR: u16 = 2;
    /// How many there are.
    pub const COUNT: u16 = 3;
}

/// Offsets in BAR 0. Registers are 64 bits wide and are accessed whole, unless they say otherwise;
/// another width or a place between them counts as [`error::REGISTER_ACCESS`], reads as ones and
/// does nothing. Those from [`reg::ADMIN`] on belong to the admin attachment: for another they
/// count as [`error::NOT_PERMITTED`].
pub mod reg {
    /// Read: [`IDENTITY_VALUE`].
    pub const IDENTITY: u64 = 0x000;
    /// "EXTOLLR1" in little-endian order.
    pub const IDENTITY_VALUE: u64 = 0x3152_4c4c_4f54_5845;

    /// IOVA of the VELO receive ring, a multiple of 4096. Written while the ring is disabled.
    pub const VELO_RING_BASE: u64 = 0x100;
    /// Slots of it: a power of two, [`crate::extoll_velo::MIN_SLOTS`] to
    /// [`crate::extoll_velo::MAX_SLOTS`]. Written while it is disabled.
    pub const VELO_RING_SLOTS: u64 = 0x108;
    /// 1 enables the ring: the attachment can be sent to, and the directory of every card says so.
    /// 0 disables it: what is under way to it is refused. Enabled again it starts at slot 0, empty.
    /// Reads as what it is; enabling a ring that is too small for the network or whose memory the
    /// card can't write counts as [`super::error::RING`] and leaves it disabled.
    pub const VELO_RING_ENABLE: u64 = 0x110;
    /// Read: VELO sends of this attachment that the card is done with: on their way, or given up
    /// with an error. One that is torn is not among them; one of which only some has come is torn
    /// by the read. Who stores messages instead of posting them reads it after each, and stores
    /// again what is not counted.
    pub const VELO_TAKEN: u64 = 0x118;
    /// IOVA of the notification queue, a multiple of 4096. Written while it is disabled.
    pub const RMA_QUEUE_BASE: u64 = 0x180;
    /// Entries of it: a power of two, [`crate::extoll_rma::MIN_ENTRIES`] to
    /// [`crate::extoll_rma::MAX_ENTRIES`].
    pub const RMA_QUEUE_ENTRIES: u64 = 0x188;
    /// As [`VELO_RING_ENABLE`]. RMA commands are refused while it is 0.
    pub const RMA_QUEUE_ENABLE: u64 = 0x190;
    /// Interrupts that may be raised, a bit a [`super::vector`]. One that is raised is disabled by
    /// that. Enabling one whose condition holds (unread messages, unread notifications) raises it
    /// at once.
    pub const INTERRUPT_ENABLE: u64 = 0x200;
    /// Write: the interrupts whose bits are 1 are enabled, as by [`INTERRUPT_ENABLE`], and the
    /// others stay what they are. So two programs that have one VPID need not know of each other.
    pub const INTERRUPT_SET: u64 = 0x208;
    /// Write: the interrupts whose bits are 1 are disabled, and the others stay what they are.
    pub const INTERRUPT_CLEAR: u64 = 0x210;

    /// Write a descriptor of [`crate::extoll_rma::COMMAND_BYTES`] bytes in one write: an RMA
    /// command begins.
    pub const RMA_COMMAND: u64 = 0x800;

    /// Address translation commands: see [`crate::extoll_atu::command`].
    pub const ATU: u64 = 0x1000;

    /// From here on: the admin attachment's.
    pub const ADMIN: u64 = 0x2000;
    /// Nanoseconds after which a VELO send that waits for credit, or for a network that stands
    /// still, is given up with [`super::error::WATCHDOG`]; 0: never.
    pub const WATCHDOG: u64 = 0x2000;
    /// Unless the machine says otherwise.
    pub const WATCHDOG_DEFAULT: u64 = 500_000_000;
    /// Nanoseconds for which nothing comes from the target of RMA commands, neither room for a part
    /// nor an answer, after which all of a VPID's commands for it end with
    /// [`crate::extoll_rma::status::TIMED_OUT`]; 0: never.
    pub const RMA_WATCHDOG: u64 = 0x2008;
    /// Unless the machine says otherwise.
    pub const RMA_WATCHDOG_DEFAULT: u64 = 2_000_000_000;
    /// A VPID to look at; its enabling and errors are then in [`SELECTED_ERRORS`].
    pub const SELECT_VPID: u64 = 0x2010;
    /// Read: errors of the selected VPID so far.
    pub const SELECTED_ERRORS: u64 = 0x2018;
    /// Write a VPID: it is reset, as if its client had asked.
    pub const RESET_VPID: u64 = 0x2020;
    /// Read: link `n`'s state at `+ 8 n`: bit 0 up, bit 1 plugged in.
    pub const LINK_STATE: u64 = 0x2100;
    /// Read: packets that link `n` had to send again, at `+ 8 n`.
    pub const LINK_RETRIES: u64 = 0x2140;
    /// Read: the route to node `n` at `+ 8 n`: bits 3..0 the port (15: none; 14: this card), bits
    /// 7..4 the virtual channel a packet leaves on.
    pub const ROUTE: u64 = 0x3000;
}

/// Offsets in BAR 1, which software writes.
pub mod window {
    /// VELO messages taken out of the receive ring so far (64-bit). The card polls it: it frees
    /// slots, whatever waits in the posted-write ring. A value that goes back, or beyond what was
    /// delivered, counts as [`super::error::READ_POINTER`] and is ignored.
    pub const VELO_READ_POINTER: u64 = 0x4_0000;
    /// Notifications taken out of the notification queue so far (64-bit). As above.
    pub const RMA_READ_POINTER: u64 = 0x4_0040;
    /// Bytes of the windows behind the ring.
    pub const SIZE: u64 = 0x1000;
}

/// Offsets in BAR 2, which the card writes. Words of 64 bits unless they say otherwise; those that
/// change together share a cache line.
pub mod mirror {
    /// This card's node id (32-bit).
    pub const NODE: u64 = 0x1000;
    /// This attachment's VPID; the admin's number is [`VPIDS`] (32-bit).
    pub const VPID: u64 = 0x1004;
    /// Nodes of the network (32-bit).
    pub const NODES: u64 = 0x1008;
    /// VPIDs of each card (32-bit).
    pub const VPIDS: u64 = 0x100c;
    /// Times that this VPID has started anew: with a new client, by its own reset, or by the
    /// admin's.
    pub const STARTS: u64 = 0x1010;
    /// VELO messages that have left for the network so far.
    pub const VELO_SENT: u64 = 0x1040;
    /// Sends that had to wait for credit so far.
    pub const VELO_STALLS: u64 = 0x1048;
    /// VELO messages written to the receive ring so far.
    pub const VELO_RECEIVED: u64 = 0x1080;
    /// RMA commands taken so far.
    pub const RMA_COMMANDS: u64 = 0x10c0;
    /// RMA commands that have ended, well or not.
    pub const RMA_COMPLETED: u64 = 0x10c8;
    /// Notifications written to the queue so far.
    pub const RMA_NOTIFICATIONS: u64 = 0x1100;
    /// Notifications lost because the queue was full.
    pub const RMA_OVERFLOWS: u64 = 0x1108;
    /// Errors counted for this attachment so far.
    pub const ERRORS: u64 = 0x1140;
    /// The last of them: bits 7..0 its code ([`super::error`]), bits 39..8 what it is about (a
    /// send's offset in BAR 3, a register's offset).
    pub const LAST_ERROR: u64 = 0x1148;
    /// Times that the addressee of a send was not there.
    pub const VELO_UNDELIVERED: u64 = 0x1150;
    /// Bytes of the card's part.
    pub const SIZE: u64 = 0x1000;
}

/// The directory, BAR 5: who can be sent to.
pub mod directory {
    /// A byte for VPID `v` of node `n` at `256 n + v`: its generation as this card has heard, odd
    /// while its VELO ring is enabled. The news travels behind what that VPID sent.
    pub const STRIDE: u64 = 256;
}

/// What can go wrong, as counted in [`mirror::ERRORS`].
pub mod error {
    /// A register access of a wrong width, or where there is none.
    pub const REGISTER_ACCESS: u8 = 1;
    /// A register of the admin attachment.
    pub const NOT_PERMITTED: u8 = 2;
    /// A receive ring or notification queue that can't be enabled.
    pub const RING: u8 = 3;
    /// A read pointer that makes no sense.
    pub const READ_POINTER: u8 = 4;
    /// A VELO send whose address names no length, crosses its message, or has a wrong width.
    pub const SEND_ADDRESS: u8 = 5;
    /// A VELO send that the processor split and never completed: another began, or time ran out.
    /// Nothing of it was sent.
    pub const SEND_TORN: u8 = 6;
    /// The addressee of a VELO send or RMA command does not exist, or nobody has it.
    pub const NO_RECEIVER: u8 = 7;
    /// A VELO send waited for credit, or for a network that stands still, longer than the watchdog
    /// allows and was dropped.
    pub const WATCHDOG: u8 = 8;
    /// The receive ring's or notification queue's memory can't be written any more; it is disabled.
    pub const RING_MEMORY: u8 = 9;
    /// An RMA command that makes no sense.
    pub const COMMAND: u8 = 10;
    /// An address translation command that makes no sense, or for which there are no entries left.
    pub const ATU: u8 = 11;
    /// A notification was lost: the queue was full.
    pub const OVERFLOW: u8 = 12;
}
