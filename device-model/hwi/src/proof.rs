//! Registers of the proof devices: devices for demonstration and tests, which are examples of a
//! device and its driver.

/// *Slot FIFO*: a loop-back FIFO of 64-byte slots in mapped memory with back-pressure, and a port
/// to the same queue.
pub mod slot_fifo {
    use crate::register::{Access, Field, Register};

    /// Number of slots of each of the two FIFOs.
    pub const SLOTS: u64 = 16;
    /// Size of a slot in bytes: an 8-byte sequence word, then 56 bytes of data.
    pub const SLOT: u64 = 64;
    /// Size of a slot's data in bytes.
    pub const DATA: usize = 56;
    /// Number of 8-byte words of data in a slot.
    pub const WORDS: usize = DATA / 8;
    /// Capacity of the queue between the two FIFOs in messages.
    pub const QUEUE: usize = 16;
    /// Number of attachments of the card. Each has its own FIFO.
    pub const ATTACHMENTS: u16 = 4;
    /// BAR 0, read: number of messages that entered the queue so far, from slots and port (64-bit).
    pub const REG_TAKEN: u64 = 0x00;
    /// BAR 0, read: number of messages in the queue (32-bit).
    pub const REG_FILL: u64 = 0x08;
    /// BAR 0, read-write: bit 0 keeps messages in the queue (32-bit). The FIFOs then fill up, and
    /// the port can read the messages.
    pub const REG_HOLD: u64 = 0x0c;
    /// BAR 0, port: an 8-byte write pushes a word, and the seventh completes a message. An 8-byte
    /// read pops a word of the message at the head of the queue.
    pub const REG_PORT: u64 = 0x10;
    /// BAR 0: error bits. Writing 1 clears a bit.
    pub const REG_ERROR: u64 = 0x18;
    /// Error: a port write while the queue was full.
    pub const ERROR_FULL: u32 = 1 << 0;
    /// Error: a port read while the queue was empty.
    pub const ERROR_EMPTY: u32 = 1 << 1;
    /// Error: an access to the port that was not 8 bytes wide and aligned.
    pub const ERROR_WIDTH: u32 = 1 << 2;
    /// Error: a read pointer in [`WIN_HEAD`] below the last one, or above the number of messages
    /// delivered.
    pub const ERROR_POINTER: u32 = 1 << 3;
    /// MSI-X vector: the device put a message into the receive slots, and then found in
    /// [`WIN_HEAD`] that all earlier messages were taken. A client that stores [`WIN_HEAD`],
    /// executes a full fence, finds no message and then waits gets this interrupt for the next one.
    pub const VECTOR_RECEIVE: u16 = 0;
    /// MSI-X vector: an error bit became set. INTx is asserted while any bit is set.
    pub const VECTOR_ERROR: u16 = 1;
    /// Attachment windows (BAR 1): send slots. Slot `i` is at `i * SLOT`. Its sequence word is
    /// `n + 1` when it holds message `n`.
    pub const WIN_SEND: u64 = 0x1_0000;
    /// Attachment windows (BAR 1): number of messages that the client has taken from the receive
    /// slots (64-bit).
    pub const WIN_HEAD: u64 = 0x1_1000;
    /// Attachment mirror (BAR 2): number of messages that the device has taken from the send slots
    /// (64-bit).
    pub const MIRROR_TAKEN: u64 = 0x1000;
    /// Attachment mirror (BAR 2): receive slots, with the layout of the send slots.
    pub const MIRROR_RECEIVE: u64 = 0x2000;

    /// The declarations of the registers. The slots are data, and not among them.
    pub static REGISTER_MAP: &[Register] = &[
        Register::ro64("TAKEN", 0, REG_TAKEN).about("messages that entered the queue"),
        Register::ro32("FILL", 0, REG_FILL).about("messages in the queue"),
        Register::rw32("HOLD", 0, REG_HOLD).fields(&[Field::bit("HOLD", 0)]),
        Register::rw64("PORT", 0, REG_PORT).access(Access::Fifo).about("words of messages"),
        Register::rw32("ERROR", 0, REG_ERROR).access(Access::WriteOneClears).fields(&[
            Field::mask("FULL", ERROR_FULL as u64),
            Field::mask("EMPTY", ERROR_EMPTY as u64),
            Field::mask("WIDTH", ERROR_WIDTH as u64),
            Field::mask("POINTER", ERROR_POINTER as u64),
        ]),
        Register::rw64("HEAD", 1, WIN_HEAD).about("messages that the client has taken"),
        Register::ro64("MIRROR_TAKEN", 2, MIRROR_TAKEN).about("messages taken from the send slots"),
    ];
}

/// *DMA engine*: copies a scatter list within the client's memory and raises MSI-X.
pub mod dma_engine {
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    use crate::register::{Field, Register};

    /// BAR 0, read-write: IOVA of the scatter list, an array of [`Descriptor`] (64-bit, 8-byte
    /// aligned).
    pub const REG_LIST: u64 = 0x00;
    /// BAR 0, read-write: number of descriptors in the list, 1 to [`MAX_DESCRIPTORS`] (32-bit).
    pub const REG_COUNT: u64 = 0x08;
    /// BAR 0, write 1: starts the list (32-bit). Posted writes are allowed.
    pub const REG_START: u64 = 0x0c;
    /// BAR 0, read: status, [`STATUS_BUSY`] and so on (32-bit). The next start clears the errors.
    pub const REG_STATUS: u64 = 0x10;
    /// BAR 0, read: number of finished descriptors of the last list (32-bit).
    pub const REG_DONE: u64 = 0x14;
    /// Attachment mirror (BAR 2): number of starts that ended, with or without an error (64-bit).
    ///
    /// The device writes it after the next two words, and after data in mapped memory. Data that
    /// goes by DMA messages comes before the interrupt, but may come after this word.
    pub const MIRROR_ENDED: u64 = 0x1000;
    /// Attachment mirror (BAR 2): [`REG_STATUS`] when the last start ended (32-bit).
    pub const MIRROR_STATUS: u64 = 0x1008;
    /// Attachment mirror (BAR 2): [`REG_DONE`] when the last start ended (32-bit).
    pub const MIRROR_DONE: u64 = 0x100c;
    /// Number of attachments of the card. Each copies within its own memory.
    pub const ATTACHMENTS: u16 = 4;
    /// A list is in progress.
    pub const STATUS_BUSY: u32 = 1 << 0;
    /// The last list ended with a DMA error after [`REG_DONE`] descriptors.
    pub const STATUS_DMA_ERROR: u32 = 1 << 1;
    /// A start was refused, because its count or the list's alignment was invalid, or a list was in
    /// progress.
    pub const STATUS_BAD_START: u32 = 1 << 2;
    /// A descriptor was longer than [`MAX_LENGTH`], or its reserved field was not zero.
    pub const STATUS_BAD_DESCRIPTOR: u32 = 1 << 3;
    /// Largest number of descriptors of a list.
    pub const MAX_DESCRIPTORS: u32 = 256;
    /// Largest number of bytes of a descriptor.
    pub const MAX_LENGTH: u32 = 1 << 20;
    /// MSI-X vector: the list has ended without an error.
    pub const VECTOR_DONE: u16 = 0;
    /// MSI-X vector: the list has ended with an error, or its start was refused.
    pub const VECTOR_ERROR: u16 = 1;

    /// The fields of the status.
    const STATUS: &[Field] = &[
        Field::mask("BUSY", STATUS_BUSY as u64),
        Field::mask("DMA_ERROR", STATUS_DMA_ERROR as u64),
        Field::mask("BAD_START", STATUS_BAD_START as u64),
        Field::mask("BAD_DESCRIPTOR", STATUS_BAD_DESCRIPTOR as u64),
    ];

    /// The declarations of the registers.
    pub static REGISTER_MAP: &[Register] = &[
        Register::rw64("LIST", 0, REG_LIST).about("IOVA of the scatter list"),
        Register::rw32("COUNT", 0, REG_COUNT).about("descriptors in the list"),
        Register::wo32("START", 0, REG_START).about("1 starts the list"),
        Register::ro32("STATUS", 0, REG_STATUS).fields(STATUS),
        Register::ro32("DONE", 0, REG_DONE).about("finished descriptors"),
        Register::ro64("MIRROR_ENDED", 2, MIRROR_ENDED).about("starts that ended"),
        Register::ro32("MIRROR_STATUS", 2, MIRROR_STATUS).fields(STATUS),
        Register::ro32("MIRROR_DONE", 2, MIRROR_DONE).about("finished descriptors at the last end"),
    ];

    /// One copy within the client's memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    pub struct Descriptor {
        /// IOVA of the source.
        pub source: u64,
        /// IOVA of the destination.
        pub destination: u64,
        /// Length in bytes, 0 to [`MAX_LENGTH`].
        pub length: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// *Addressed send*: a store whose address names the message's target. It can stall for lack of
/// credit, as VELO's sends do.
pub mod addressed_send {
    use crate::register::Register;

    /// Number of attachments of the card.
    pub const ATTACHMENTS: u16 = 4;
    /// Number of the BAR to which messages are written.
    pub const SEND_BAR: u8 = 5;
    /// BAR 5, posted writes: bits 13..12 of the offset are the target attachment, bits 11..6 a tag,
    /// bits 5..0 zero. The data, 1 to [`MAX_MESSAGE`] bytes, is the message.
    pub const SEND_TARGET_SHIFT: u32 = 12;
    /// Lowest bit of the tag: see [`SEND_TARGET_SHIFT`].
    pub const SEND_TAG_SHIFT: u32 = 6;
    /// Number of tags.
    pub const TAGS: u64 = 64;
    /// Size of BAR 5.
    pub const SEND_WINDOW: u64 = 0x4000;
    /// Largest size of a message in bytes.
    pub const MAX_MESSAGE: usize = 48;
    /// Number of slots of the receive mailbox, and initial credits of its senders.
    pub const SLOTS: u64 = 8;
    /// Size of a mailbox slot in bytes: sequence word (8, `n + 1` for message `n`), source (2), tag
    /// (2), length (4), data (48).
    pub const SLOT: u64 = 64;
    /// In a slot: the attachment that sent the message (16-bit). The card supplies it, not the
    /// sender.
    pub const SLOT_SOURCE: u64 = 8;
    /// In a slot: the tag (16-bit).
    pub const SLOT_TAG: u64 = 10;
    /// In a slot: length of the data in bytes (32-bit).
    pub const SLOT_LENGTH: u64 = 12;
    /// In a slot: the data.
    pub const SLOT_DATA: u64 = 16;
    /// Attachment mirror (BAR 2): the mailbox.
    pub const MIRROR_MAILBOX: u64 = 0x1000;
    /// Attachment windows (BAR 1): number of messages taken out of the mailbox (64-bit). An
    /// increase returns credits.
    pub const WIN_HEAD: u64 = 0x1_0000;
    /// BAR 0, read: number of sends that waited for credit so far (64-bit).
    pub const REG_STALLS: u64 = 0x00;
    /// BAR 0, read: number of sends refused so far, because the length or address was invalid or
    /// the target had no client (64-bit).
    pub const REG_BAD: u64 = 0x08;
    /// BAR 0, read: bit `n` is set while attachment `n` has a client (32-bit).
    pub const REG_PRESENT: u64 = 0x10;
    /// MSI-X vector: the device put a message into the mailbox, and then found in [`WIN_HEAD`] that
    /// all earlier messages were taken. A client that stores [`WIN_HEAD`], executes a full fence,
    /// finds no message and then waits gets this interrupt for the next one.
    pub const VECTOR_RECEIVE: u16 = 0;

    /// The declarations of the registers. Addresses of [`SEND_BAR`] are targets and tags, and not
    /// among them.
    pub static REGISTER_MAP: &[Register] = &[
        Register::ro64("STALLS", 0, REG_STALLS).about("sends that waited for credit"),
        Register::ro64("BAD", 0, REG_BAD).about("sends that were refused"),
        Register::ro32("PRESENT", 0, REG_PRESENT).about("attachments with a client, a bit each"),
        Register::rw64("HEAD", 1, WIN_HEAD).about("messages taken out of the mailbox"),
    ];
}

/// *Checksum*: sums the bytes of client memory by a companion, and raises MSI-X.
pub mod checksum {
    use crate::register::{Field, Register};

    /// BAR 0, read-write: IOVA of the bytes (64-bit).
    pub const REG_ADDRESS: u64 = 0x00;
    /// BAR 0, read-write: number of bytes, 1 to [`MAX_LENGTH`] (32-bit).
    pub const REG_LENGTH: u64 = 0x08;
    /// BAR 0, write 1: starts a sum (32-bit). Posted writes are allowed.
    pub const REG_START: u64 = 0x0c;
    /// BAR 0, read: status, [`STATUS_BUSY`] and so on (32-bit). The next start clears the errors.
    pub const REG_STATUS: u64 = 0x10;
    /// BAR 0, read: epoch of the companion, which counts its starts; 0 before the first (32-bit).
    pub const REG_EPOCH: u64 = 0x14;
    /// BAR 0, read: the last sum (64-bit).
    pub const REG_SUM: u64 = 0x18;
    /// Attachment mirror (BAR 2): number of starts that ended, with or without an error (64-bit).
    /// The device writes it after the next word.
    pub const MIRROR_ENDED: u64 = 0x1000;
    /// Attachment mirror (BAR 2): the last sum (64-bit).
    pub const MIRROR_SUM: u64 = 0x1008;
    /// Number of attachments of the card.
    pub const ATTACHMENTS: u16 = 4;
    /// Maximum number of bytes of a sum.
    pub const MAX_LENGTH: u32 = 1 << 16;
    /// A sum is in progress.
    pub const STATUS_BUSY: u32 = 1 << 0;
    /// The bytes could not be read.
    pub const STATUS_DMA_ERROR: u32 = 1 << 1;
    /// A start was refused, because its length was invalid or a sum was in progress.
    pub const STATUS_BAD_START: u32 = 1 << 2;
    /// The companion is halted. A reset of the function restarts it.
    pub const STATUS_HALTED: u32 = 1 << 3;
    /// MSI-X vector: a sum has ended without an error.
    pub const VECTOR_DONE: u16 = 0;
    /// MSI-X vector: a sum has ended with an error, or its start was refused.
    pub const VECTOR_ERROR: u16 = 1;

    /// The declarations of the registers.
    pub static REGISTER_MAP: &[Register] = &[
        Register::rw64("ADDRESS", 0, REG_ADDRESS).about("IOVA of the bytes"),
        Register::rw32("LENGTH", 0, REG_LENGTH).about("number of bytes"),
        Register::wo32("START", 0, REG_START).about("1 starts a sum"),
        Register::ro32("STATUS", 0, REG_STATUS).fields(&[
            Field::mask("BUSY", STATUS_BUSY as u64),
            Field::mask("DMA_ERROR", STATUS_DMA_ERROR as u64),
            Field::mask("BAD_START", STATUS_BAD_START as u64),
            Field::mask("HALTED", STATUS_HALTED as u64),
        ]),
        Register::ro32("EPOCH", 0, REG_EPOCH).about("starts of the companion"),
        Register::ro64("SUM", 0, REG_SUM).about("the last sum"),
        Register::ro64("MIRROR_ENDED", 2, MIRROR_ENDED).about("starts that ended"),
        Register::ro64("MIRROR_SUM", 2, MIRROR_SUM).about("the last sum"),
    ];
}
