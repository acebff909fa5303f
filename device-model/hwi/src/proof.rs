//! Registers of the three proof devices, which show how to write a device and its driver.

/// *Slot FIFO*: a loop-back FIFO of 64-byte slots in mapped memory with back-pressure, and a port
/// on the same queue.
pub mod slot_fifo {
    /// Slots in each of the two FIFOs.
    pub const SLOTS: u64 = 16;
    /// Bytes in a slot: an 8-byte sequence word, then 56 bytes of data.
    pub const SLOT: u64 = 64;
    /// Data bytes in a slot.
    pub const DATA: usize = 56;
    /// 8-byte words of data in a slot.
    pub const WORDS: usize = DATA / 8;
    /// Messages that the queue between the two FIFOs holds.
    pub const QUEUE: usize = 16;
    /// Attachments of the card; each has a FIFO of its own.
    pub const ATTACHMENTS: u16 = 4;
    /// BAR 0, read: messages that entered the queue so far, from slots and port (64-bit).
    pub const REG_TAKEN: u64 = 0x00;
    /// BAR 0, read: messages waiting in the queue (32-bit).
    pub const REG_FILL: u64 = 0x08;
    /// BAR 0, read-write: bit 0 keeps messages in the queue (32-bit), which fills the FIFOs up and
    /// lets the port read them.
    pub const REG_HOLD: u64 = 0x0c;
    /// BAR 0, port: 8-byte words pushed one by one; the seventh makes a message. An 8-byte read
    /// pops a word of the message at the head of the queue.
    pub const REG_PORT: u64 = 0x10;
    /// BAR 0, read, write 1 to clear: error bits.
    pub const REG_ERROR: u64 = 0x18;
    /// Error: a port write while the queue was full.
    pub const ERROR_FULL: u32 = 1 << 0;
    /// Error: a port read while the queue was empty.
    pub const ERROR_EMPTY: u32 = 1 << 1;
    /// Error: an access to the port that was not 8 bytes wide and aligned.
    pub const ERROR_WIDTH: u32 = 1 << 2;
    /// Error: a read pointer in [`WIN_HEAD`] that is not between the last one and the messages
    /// delivered.
    pub const ERROR_POINTER: u32 = 1 << 3;
    /// MSI-X vector: a message was put into the receive slots, and [`WIN_HEAD`] says after that
    /// that all before were taken. A client that stores [`WIN_HEAD`], makes a full fence, finds no
    /// message and then waits is told of the next one.
    pub const VECTOR_RECEIVE: u16 = 0;
    /// MSI-X vector: an error bit was set that was not set before. INTx is asserted as long as one
    /// is set.
    pub const VECTOR_ERROR: u16 = 1;
    /// Attachment windows (BAR 1): send slots. Slot `i` at `i * SLOT`; its sequence word is `n + 1`
    /// when it holds message `n`.
    pub const WIN_SEND: u64 = 0x1_0000;
    /// Attachment windows (BAR 1): count of messages that the client has taken out of the receive
    /// slots (64-bit).
    pub const WIN_HEAD: u64 = 0x1_1000;
    /// Attachment mirror (BAR 2): count of messages that the device has taken out of the send slots
    /// (64-bit).
    pub const MIRROR_TAKEN: u64 = 0x1000;
    /// Attachment mirror (BAR 2): receive slots, as the send slots.
    pub const MIRROR_RECEIVE: u64 = 0x2000;
}

/// *DMA engine*: copies a scatter list within the client's memory and raises MSI-X.
pub mod dma_engine {
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    /// BAR 0, read-write: IOVA of the scatter list, an array of [`Descriptor`] (64-bit, 8-byte
    /// aligned).
    pub const REG_LIST: u64 = 0x00;
    /// BAR 0, read-write: descriptors in the list, 1 to [`MAX_DESCRIPTORS`] (32-bit).
    pub const REG_COUNT: u64 = 0x08;
    /// BAR 0, write 1: start (32-bit). Posted writes welcome.
    pub const REG_START: u64 = 0x0c;
    /// BAR 0, read: [`STATUS_BUSY`] and so on (32-bit). The next start clears the errors.
    pub const REG_STATUS: u64 = 0x10;
    /// BAR 0, read: descriptors done of the last list (32-bit).
    pub const REG_DONE: u64 = 0x14;
    /// Attachment mirror (BAR 2): starts that ended, well or not (64-bit). Written after the two
    /// words behind it, and after the data that went to mapped memory; data that goes by messages
    /// comes before the interrupt, but may come after this word.
    pub const MIRROR_ENDED: u64 = 0x1000;
    /// Attachment mirror (BAR 2): [`REG_STATUS`] when the last start ended (32-bit).
    pub const MIRROR_STATUS: u64 = 0x1008;
    /// Attachment mirror (BAR 2): [`REG_DONE`] when the last start ended (32-bit).
    pub const MIRROR_DONE: u64 = 0x100c;
    /// Attachments of the card; each copies within its own memory.
    pub const ATTACHMENTS: u16 = 4;
    /// A list is being worked on.
    pub const STATUS_BUSY: u32 = 1 << 0;
    /// The last list ended with a DMA error; [`REG_DONE`] descriptors were copied.
    pub const STATUS_DMA_ERROR: u32 = 1 << 1;
    /// A start with a bad count or a misaligned list, or while busy, was refused.
    pub const STATUS_BAD_START: u32 = 1 << 2;
    /// A descriptor was longer than [`MAX_LENGTH`], or its reserved field was not zero.
    pub const STATUS_BAD_DESCRIPTOR: u32 = 1 << 3;
    /// The most descriptors in a list.
    pub const MAX_DESCRIPTORS: u32 = 256;
    /// The most bytes a descriptor copies.
    pub const MAX_LENGTH: u32 = 1 << 20;
    /// MSI-X vector: the list is done.
    pub const VECTOR_DONE: u16 = 0;
    /// MSI-X vector: the start ended with an error.
    pub const VECTOR_ERROR: u16 = 1;

    /// One copy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    pub struct Descriptor {
        /// IOVA read from.
        pub source: u64,
        /// IOVA written to.
        pub destination: u64,
        /// Bytes, 0 to [`MAX_LENGTH`].
        pub length: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// *Addressed send*: a store whose address says where the message goes, and which can stall for
/// want of credits (as VELO's does).
pub mod addressed_send {
    /// Attachments of the card.
    pub const ATTACHMENTS: u16 = 4;
    /// The BAR that messages are written to.
    pub const SEND_BAR: u8 = 5;
    /// BAR 5, posted writes: bits 13..12 of the offset are the target attachment, 11..6 a tag, 5..0
    /// zero. The data, 1 to [`MAX_MESSAGE`] bytes, is the message.
    pub const SEND_TARGET_SHIFT: u32 = 12;
    /// See [`SEND_TARGET_SHIFT`].
    pub const SEND_TAG_SHIFT: u32 = 6;
    /// Tags there are.
    pub const TAGS: u64 = 64;
    /// Size of BAR 5.
    pub const SEND_WINDOW: u64 = 0x4000;
    /// Bytes in a message at most.
    pub const MAX_MESSAGE: usize = 48;
    /// Slots of the receive mailbox; also the credits a sender to it finds at first.
    pub const SLOTS: u64 = 8;
    /// Bytes in a mailbox slot: sequence word (8, `n + 1` for message `n`), source (2), tag (2),
    /// length (4), data (48).
    pub const SLOT: u64 = 64;
    /// In a slot: the attachment that sent the message (16-bit), as the card knows it.
    pub const SLOT_SOURCE: u64 = 8;
    /// In a slot: the tag (16-bit).
    pub const SLOT_TAG: u64 = 10;
    /// In a slot: bytes of data (32-bit).
    pub const SLOT_LENGTH: u64 = 12;
    /// In a slot: the data.
    pub const SLOT_DATA: u64 = 16;
    /// Attachment mirror (BAR 2): the mailbox.
    pub const MIRROR_MAILBOX: u64 = 0x1000;
    /// Attachment windows (BAR 1): messages taken out of the mailbox (64-bit). This is what returns
    /// credits.
    pub const WIN_HEAD: u64 = 0x1_0000;
    /// BAR 0, read: sends that waited for credits so far (64-bit).
    pub const REG_STALLS: u64 = 0x00;
    /// BAR 0, read: sends refused because their length or address was bad, or because nobody has
    /// the target (64-bit).
    pub const REG_BAD: u64 = 0x08;
    /// BAR 0, read: bit `n` is set while somebody has attachment `n` (32-bit).
    pub const REG_PRESENT: u64 = 0x10;
    /// MSI-X vector: a message was put into the mailbox, and [`WIN_HEAD`] says after that that all
    /// before were taken. A client that stores [`WIN_HEAD`], makes a full fence, finds no message
    /// and then waits is told of the next one.
    pub const VECTOR_RECEIVE: u16 = 0;
}
