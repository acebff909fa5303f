//! The Cray SeaStar (Brightwell et al., "SeaStar Interconnect: Balanced Bandwidth for Scalable
//! Performance", IEEE Micro 2006): mailboxes, commands, results, events, message headers.
//!
//! The public sources of the SeaStar's drivers show no opcodes of its mailboxes, so this layout is
//! nicforge's own. Names are those of the paper and of Portals 3.3.
//!
//! A function is a node's SeaStar. Attachment 0, `kernel`, has the *trusted* mailbox. Each of the
//! others has the *untrusted* mailbox of a process.
//!
//! | BAR | contents | access |
//! | --- | --- | --- |
//! | 0 | registers ([`reg`]; behind them the core's pages) | trapped |
//! | 1 | posted-write ring, mailbox ([`window`]), private | mapped, read-write |
//! | 2 | attachment mirror: core's page, then results ([`mirror`]), private | mapped, read-only |
//!
//! # A mailbox
//!
//! The client writes a command into slot *number modulo [`SLOTS`]* of its mailbox, stores the
//! number of commands so far to [`window::COMMAND_TAIL`], and rings the doorbell. The firmware
//! copies the command once, carries it out, and answers with a [`CommandResult`] in the result slot
//! of the same number. The result also frees the command's slot.
//!
//! Completions of messages are [`Event`]s in a queue in the client's memory, which the firmware
//! writes by DMA.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
/// Most bytes of a message that its header packet carries. A longer message needs a stream.
pub const INLINE: usize = 16;
/// Most messages in flight from a node to another one.
pub const MAX_IN_FLIGHT: u16 = 1024;
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
    /// Start of the device's windows in [`super::BAR_WINDOW`], behind the posted-write ring.
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
    /// Start of the device's part in [`super::BAR_MIRROR`], behind the core's page.
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
    /// Number of the firmware's life, from 1.
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

/// The trusted part of a message's header. The firmware makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TrustedHeader {
    /// Node that sends it.
    pub source_node: u32,
    /// Process that sends it.
    pub source_process: u16,
    /// Process that gets it.
    pub target_process: u16,
    /// Bytes of data. In a negative acknowledgement: the sender's place in line.
    pub length: u32,
    /// Sequence number. In an acknowledgement: that of the acknowledged message.
    pub sequence: u16,
    /// One of [`message`].
    pub kind: u8,
    /// Bits of [`trusted_flag`].
    pub flags: u8,
}

/// Bits of [`TrustedHeader::flags`].
pub mod trusted_flag {
    /// All messages before this one have ended at the sender: the receiver expects none of them.
    pub const RESYNCHRONIZE: u8 = 1 << 0;
    /// The sender wants no acknowledgement of flow control: the message needs no stream, and no
    /// message before it can be dropped.
    pub const IMPLICIT: u8 = 1 << 1;
    /// The sender's engine could not read the data of a message of at most [`super::INLINE`] bytes,
    /// and has put zeros in their place.
    pub const INLINE_FAULT: u8 = 1 << 7;
}

/// Kinds of messages.
pub mod message {
    /// A put, with its data.
    pub const PUT: u8 = 1;
    /// A get.
    pub const GET: u8 = 2;
    /// The data that answer a get.
    pub const REPLY: u8 = 3;
    /// Portals' acknowledgement of a put.
    pub const PORTALS_ACK: u8 = 4;
    /// The place of a message whose process has ended before it was sent (again). It has no data.
    pub const VOID: u8 = 5;
    /// First of the kinds that belong to flow control. They use the virtual channel of control
    /// messages, and are not acknowledged.
    pub const FIRST_CONTROL: u8 = 16;
    /// Flow control: the message was taken.
    pub const ACK: u8 = 16;
    /// Flow control: the message was dropped, and must be sent again.
    pub const NACK: u8 = 17;
    /// Flow control: the node has not booted. This message and all before it fail.
    pub const PREBOOT_ACK: u8 = 18;
    /// Flow control: the message was taken as the first since the node booted. All before it fail.
    pub const FIRST_POSTBOOT_ACK: u8 = 19;
}

/// The part of a message's header that a process determines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MessageHeader {
    /// Match bits.
    pub match_bits: u64,
    /// Data for the target's event. In a get: the bytes that it asks for. In a Portals
    /// acknowledgement: the bytes that were moved, and in the upper 32 bits those that were asked.
    pub header_data: u64,
    /// Offset at the target. In a reply or a Portals acknowledgement: the offset that was used.
    pub offset: u64,
    /// Handle of the initiator's operation, which a reply or an acknowledgement returns.
    pub operation: u32,
    /// Portal.
    pub portal: u8,
    /// Access control entry.
    pub access: u8,
    /// Bits of [`option`]: [`option::ACK`] in a put.
    pub options: u16,
}

/// The first packet of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeaderPacket {
    /// The trusted part.
    pub trusted: TrustedHeader,
    /// The process's part.
    pub message: MessageHeader,
    /// The data of a message of at most [`INLINE`] bytes.
    pub inline: [u8; INLINE],
}

/// Kinds of commands of an untrusted mailbox ([`Command::kind`]).
///
/// The table names the fields that each one uses, besides `kind`. All others must be zero. Three
/// groups of fields occur together:
///
/// - *criteria*: `node`, `process`, `match_bits`, `ignore_bits`, `options`;
/// - *memory*: `queue`, `start`, `length`, `threshold`, `max_size`, `options`, `user_pointer`;
/// - *message*: `local_offset`, `length`, `node`, `process`, `portal`, `access`, `match_bits`,
///   `offset`, `options`.
///
/// | kind | fields | result value |
/// | --- | --- | --- |
/// | [`ALLOCATE_QUEUE`] | `start`, `length` (events) | the queue |
/// | [`FREE_QUEUE`] | `handle` | |
/// | [`ATTACH_ENTRY`] | `portal`, criteria | the entry |
/// | [`INSERT_ENTRY`] | `handle` (of the base entry), criteria | the entry |
/// | [`UNLINK_ENTRY`] | `handle` | |
/// | [`ATTACH_DESCRIPTOR`] | `handle` (of the entry), memory | the descriptor |
/// | [`BIND_DESCRIPTOR`] | memory | the descriptor |
/// | [`UNLINK_DESCRIPTOR`] | `handle` | |
/// | [`UPDATE_DESCRIPTOR`] | as [`ATTACH_DESCRIPTOR`], `test_queue`, `test_number` | 1 if updated |
/// | [`SET_ACCESS`] | `access`, `node`, `process`, `portal` | |
/// | [`PUT`] | `handle` (of the descriptor), message, `header_data`, `inline` | |
/// | [`GET`] | `handle` (of the descriptor), message | |
/// | [`POST`] | as entry and descriptor, `test_queue`, `test_number` | both handles |
/// | [`STATUS`] | `handle` (one of [`status`]) | its value |
///
/// An update changes nothing, and its value is 0, if the tested queue had an event or the
/// descriptor is in use. A post has the fields of [`INSERT_ENTRY`], or with `handle` [`NO_HANDLE`]
/// those of [`ATTACH_ENTRY`], and those of [`ATTACH_DESCRIPTOR`]. Its values are the entry, and in
/// `extra` the descriptor. Both are [`NO_HANDLE`], and nothing has changed, if the tested queue had
/// an event.
///
/// [`ALLOCATE_QUEUE`]: command::ALLOCATE_QUEUE
/// [`FREE_QUEUE`]: command::FREE_QUEUE
/// [`ATTACH_ENTRY`]: command::ATTACH_ENTRY
/// [`INSERT_ENTRY`]: command::INSERT_ENTRY
/// [`UNLINK_ENTRY`]: command::UNLINK_ENTRY
/// [`ATTACH_DESCRIPTOR`]: command::ATTACH_DESCRIPTOR
/// [`BIND_DESCRIPTOR`]: command::BIND_DESCRIPTOR
/// [`UNLINK_DESCRIPTOR`]: command::UNLINK_DESCRIPTOR
/// [`UPDATE_DESCRIPTOR`]: command::UPDATE_DESCRIPTOR
/// [`SET_ACCESS`]: command::SET_ACCESS
/// [`PUT`]: command::PUT
/// [`GET`]: command::GET
/// [`POST`]: command::POST
/// [`STATUS`]: command::STATUS
pub mod command {
    /// `PtlEQAlloc`.
    pub const ALLOCATE_QUEUE: u16 = 1;
    /// `PtlEQFree`.
    pub const FREE_QUEUE: u16 = 2;
    /// `PtlMEAttach`.
    pub const ATTACH_ENTRY: u16 = 3;
    /// `PtlMEInsert`.
    pub const INSERT_ENTRY: u16 = 4;
    /// `PtlMEUnlink`.
    pub const UNLINK_ENTRY: u16 = 5;
    /// `PtlMDAttach`.
    pub const ATTACH_DESCRIPTOR: u16 = 6;
    /// `PtlMDBind`.
    pub const BIND_DESCRIPTOR: u16 = 7;
    /// `PtlMDUnlink`.
    pub const UNLINK_DESCRIPTOR: u16 = 8;
    /// `PtlMDUpdate`.
    pub const UPDATE_DESCRIPTOR: u16 = 9;
    /// `PtlACEntry`.
    pub const SET_ACCESS: u16 = 10;
    /// `PtlPut` and `PtlPutRegion`.
    pub const PUT: u16 = 11;
    /// `PtlGet` and `PtlGetRegion`.
    pub const GET: u16 = 12;
    /// `PtlPost`: insert an entry, attach a descriptor and update it, in one command.
    pub const POST: u16 = 13;
    /// `PtlNIStatus`.
    pub const STATUS: u16 = 14;
}

/// Bits of [`Command::options`].
pub mod option {
    /// Entry: new entries go in front of the base (`PTL_INS_BEFORE`), or to the head of the list.
    pub const BEFORE: u16 = 1 << 0;
    /// Entry or descriptor: it is unlinked automatically (`PTL_UNLINK`).
    pub const UNLINK: u16 = 1 << 1;
    /// Descriptor: it takes puts.
    pub const OP_PUT: u16 = 1 << 2;
    /// Descriptor: it answers gets.
    pub const OP_GET: u16 = 1 << 3;
    /// Descriptor: the initiator's offset counts (`PTL_MD_MANAGE_REMOTE`).
    pub const MANAGE_REMOTE: u16 = 1 << 4;
    /// Descriptor: a longer message is truncated (`PTL_MD_TRUNCATE`). Without it, the message does
    /// not match.
    pub const TRUNCATE: u16 = 1 << 5;
    /// Descriptor: no acknowledgement is sent (`PTL_MD_ACK_DISABLE`).
    pub const ACK_DISABLE: u16 = 1 << 6;
    /// Descriptor: no events of starts (`PTL_MD_EVENT_START_DISABLE`).
    pub const START_DISABLE: u16 = 1 << 7;
    /// Descriptor: no events of ends (`PTL_MD_EVENT_END_DISABLE`).
    pub const END_DISABLE: u16 = 1 << 8;
    /// Descriptor: it is used up when fewer than `max_size` bytes are left (`PTL_MD_MAX_SIZE`).
    pub const MAX_SIZE: u16 = 1 << 9;
    /// Put: an acknowledgement is wanted (`PTL_ACK_REQ`).
    pub const ACK: u16 = 1 << 10;
    /// Put: the data are in [`super::Command::inline`].
    pub const INLINE: u16 = 1 << 11;
    /// Post: the entry is unlinked automatically. There, [`UNLINK`] is the descriptor's alone.
    pub const UNLINK_ENTRY: u16 = 1 << 12;
}

/// Status registers of an interface ([`command::STATUS`]).
pub mod status {
    /// Messages that no descriptor took (`PTL_SR_DROP_COUNT`).
    pub const DROP_COUNT: u32 = 0;
    /// Messages that access control refused (`PTL_SR_PERMISSIONS_VIOLATIONS`).
    pub const PERMISSION_VIOLATIONS: u32 = 1;
}

/// A threshold that never counts down (`PTL_MD_THRESH_INF`).
pub const THRESHOLD_INFINITE: i32 = -1;
/// No handle: no queue, no base entry.
pub const NO_HANDLE: u32 = u32::MAX;
/// Any node, in a match entry or an access control entry (`PTL_NID_ANY`).
pub const ANY_NODE: u32 = u32::MAX;
/// Any process (`PTL_PID_ANY`).
pub const ANY_PROCESS: u16 = u16::MAX;
/// Any portal, in an access control entry (`PTL_PT_INDEX_ANY`).
pub const ANY_PORTAL: u8 = u8::MAX;
/// Number of portals of a process.
pub const PORTALS: u8 = 64;
/// Number of access control entries of a process. Entry 0 permits everything at first.
pub const ACCESS_ENTRIES: u8 = 8;
/// Largest number of events of a queue: a power of two.
pub const MAX_EVENTS: u64 = 1 << 16;
/// Largest number of events of the kernel's queue: a power of two.
pub const MAX_KERNEL_EVENTS: u32 = 1 << 15;

/// A command of an untrusted mailbox. [`command`] says which fields each kind uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// One of [`command`].
    pub kind: u16,
    /// Bits of [`option`].
    pub options: u16,
    /// The object that the command concerns.
    pub handle: u32,
    /// Event queue of a descriptor, or [`NO_HANDLE`].
    pub queue: u32,
    /// Queue that must be empty for an update, or [`NO_HANDLE`].
    pub test_queue: u32,
    /// Start of memory of the process, as its device address.
    pub start: u64,
    /// Bytes of that memory, of the message, or events of a queue.
    pub length: u64,
    /// Match bits.
    pub match_bits: u64,
    /// Bits that do not count in the comparison.
    pub ignore_bits: u64,
    /// Offset at the target.
    pub offset: u64,
    /// Offset in the local descriptor.
    pub local_offset: u64,
    /// Data that the target's event shows.
    pub header_data: u64,
    /// Value that events of the descriptor show.
    pub user_pointer: u64,
    /// Bytes below which a descriptor is used up.
    pub max_size: u64,
    /// Number of operations of a descriptor, or [`THRESHOLD_INFINITE`].
    pub threshold: i32,
    /// The other node, or [`ANY_NODE`].
    pub node: u32,
    /// The process there, or [`ANY_PROCESS`].
    pub process: u16,
    /// Portal, 0 to [`PORTALS`] - 1.
    pub portal: u8,
    /// Access control entry, 0 to [`ACCESS_ENTRIES`] - 1.
    pub access: u8,
    /// Number of events that the process has taken from `test_queue`, modulo 2^32. The queue is
    /// empty if it has no others, and no operation in progress will write one to it.
    pub test_number: u32,
    /// Zero.
    pub reserved: [u32; 2],
    /// Data of a put of at most [`INLINE`] bytes.
    pub inline: [u8; INLINE],
}

/// Kinds of commands of the trusted mailbox ([`KernelCommand::kind`]).
///
/// | kind | fields | result value |
/// | --- | --- | --- |
/// | [`BOOT`] | `list` (address of the event queue), `length` (its events) | |
/// | [`START_PROCESS`] | `process`, `count`, `pieces` (its address map), `flags` | |
/// | [`MAP`] | `process`, `count`, `pieces` (more of its address map) | |
/// | [`STOP_PROCESS`] | `process` | |
/// | [`SEND`] | `token`, `process`, `node`, `target`, `message`, `length`, `header`, pieces | |
/// | [`RECEIVE`] | `token` (of the new message), `length`, pieces | |
/// | [`TAKE`] | none: it reports `taken`, as each command does | |
///
/// Pieces are `count` entries of `pieces`, or of the list at `list` in the kernel's memory if there
/// are more than [`PIECES`].
///
/// [`BOOT`]: kernel_command::BOOT
/// [`START_PROCESS`]: kernel_command::START_PROCESS
/// [`MAP`]: kernel_command::MAP
/// [`STOP_PROCESS`]: kernel_command::STOP_PROCESS
/// [`SEND`]: kernel_command::SEND
/// [`RECEIVE`]: kernel_command::RECEIVE
/// [`TAKE`]: kernel_command::TAKE
pub mod kernel_command {
    /// Boots the node: from now on it takes messages, and events go to the kernel's queue.
    pub const BOOT: u16 = 1;
    /// Lets a process use the network, in NIC-based or host-based mode.
    pub const START_PROCESS: u16 = 2;
    /// Adds ranges to the address map of a process in NIC-based mode.
    pub const MAP: u16 = 3;
    /// Ends a process. Its messages fail.
    pub const STOP_PROCESS: u16 = 4;
    /// Sends a message of a process in host-based mode.
    pub const SEND: u16 = 5;
    /// Says where a message to a process in host-based mode goes. Bytes beyond `length` are
    /// discarded; with `length` 0, all of them.
    pub const RECEIVE: u16 = 6;
    /// Reports how many events the kernel has taken.
    pub const TAKE: u16 = 7;
}

/// Bits of [`KernelCommand::flags`].
pub mod kernel_flag {
    /// The process is in host-based mode: the kernel matches its messages.
    pub const HOST_BASED: u8 = 1 << 0;
    /// The process, in NIC-based mode, begins anew with the same address map when its client has
    /// detached. So programs without a kernel can use it, one after the other.
    pub const PERMANENT: u8 = 1 << 1;
}

/// Number of pieces in a command of the trusted mailbox.
pub const PIECES: usize = 4;
/// Most pieces of a message in host-based mode.
pub const MAX_PIECES: usize = 1024;
/// Most ranges of a process's address map.
pub const MAX_RANGES: usize = 16;

/// A contiguous piece of a client's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Piece {
    /// Device address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Attachment whose memory it is.
    pub attachment: u16,
    /// Zero.
    pub reserved: u16,
}

/// A command of the trusted mailbox. [`kernel_command`] says which fields each kind uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelCommand {
    /// One of [`kernel_command`].
    pub kind: u16,
    /// Bits of [`kernel_flag`].
    pub flags: u8,
    /// Kind of a message that is sent: one of [`message`] before [`message::FIRST_CONTROL`].
    pub message: u8,
    /// Process of this node.
    pub process: u16,
    /// Process of the target node.
    pub target: u16,
    /// Name of a message: the kernel's for one that it sends, the firmware's for one that arrived.
    pub token: u32,
    /// Number of pieces.
    pub count: u16,
    /// Number of events that the kernel has taken from its queue, modulo 2^16. Each command has it.
    /// A message whose event would not fit into the queue is not accepted.
    pub taken: u16,
    /// Address of a list of [`Piece`]s, or of the event queue, in the kernel's memory.
    pub list: u64,
    /// Target node.
    pub node: u32,
    /// Bytes of the message, or events of the queue.
    pub length: u32,
    /// Header of the message.
    pub header: MessageHeader,
    /// Pieces of memory.
    pub pieces: [Piece; PIECES],
}

/// Result of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandResult {
    /// Result of the command: see [`command`].
    pub value: u64,
    /// Second result.
    pub extra: u64,
    /// One of [`code`].
    pub code: u32,
    /// Zero.
    pub reserved: [u32; 2],
    /// Number of the command plus 1, modulo 2^32. It is written last.
    pub number: u32,
}

/// Codes of results. Names are those of Portals 3.3 without `PTL_`.
pub mod code {
    /// The command was carried out.
    pub const OK: u32 = 0;
    /// No memory on the SeaStar, or no free slot of a table.
    pub const NO_SPACE: u32 = 1;
    /// An argument is out of range.
    pub const SEGMENT_VIOLATION: u32 = 2;
    /// The portal does not exist.
    pub const PORTAL_INVALID: u32 = 3;
    /// The access control entry does not exist.
    pub const ACCESS_INVALID: u32 = 4;
    /// The match entry does not exist.
    pub const ENTRY_INVALID: u32 = 5;
    /// The match entry is in use: it has a descriptor, or one with operations in progress.
    pub const ENTRY_IN_USE: u32 = 6;
    /// The descriptor does not exist.
    pub const DESCRIPTOR_INVALID: u32 = 7;
    /// The descriptor has operations in flight.
    pub const DESCRIPTOR_IN_USE: u32 = 8;
    /// The descriptor's values make no sense.
    pub const DESCRIPTOR_ILLEGAL: u32 = 9;
    /// The event queue does not exist.
    pub const QUEUE_INVALID: u32 = 10;
    /// The event queue is in use.
    pub const QUEUE_IN_USE: u32 = 11;
    /// The target process does not exist.
    pub const PROCESS_INVALID: u32 = 12;
    /// The interface is not initialised: the kernel has not started this process.
    pub const NO_INTERFACE: u32 = 13;
    /// The kind of command does not exist, or a field that must be zero is not.
    pub const COMMAND_INVALID: u32 = 14;
    /// The message is not known.
    pub const TOKEN_INVALID: u32 = 15;
    /// The status register does not exist.
    pub const STATUS_INVALID: u32 = 16;
}

/// An event of a process: one slot of an event queue in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// Match bits of the message.
    pub match_bits: u64,
    /// Data of the message's header.
    pub header_data: u64,
    /// Offset in the descriptor.
    pub offset: u64,
    /// [`Command::user_pointer`] of the descriptor.
    pub user_pointer: u64,
    /// Length that the initiator asked for.
    pub requested: u32,
    /// Length that was moved.
    pub moved: u32,
    /// The other node.
    pub node: u32,
    /// The process there.
    pub process: u16,
    /// Portal.
    pub portal: u8,
    /// One of [`event`].
    pub kind: u8,
    /// The descriptor.
    pub descriptor: u32,
    /// 0, or one of [`failure`].
    pub failure: u16,
    /// Bit 0: the descriptor was unlinked automatically by this operation.
    pub flags: u16,
    /// The same value in the events of one operation.
    pub link: u32,
    /// Number of this event in its queue plus 1, modulo 2^32. It is written last.
    pub number: u32,
}

/// Kinds of events, in the order of Portals 3.3.
pub mod event {
    /// A get arrives.
    pub const GET_START: u8 = 0;
    /// A get was answered.
    pub const GET_END: u8 = 1;
    /// A put arrives.
    pub const PUT_START: u8 = 2;
    /// A put is in memory.
    pub const PUT_END: u8 = 3;
    /// The reply to a get arrives.
    pub const REPLY_START: u8 = 4;
    /// The reply to a get is in memory.
    pub const REPLY_END: u8 = 5;
    /// The sending of a message begins.
    pub const SEND_START: u8 = 6;
    /// A message was sent and accepted.
    pub const SEND_END: u8 = 7;
    /// The target has acknowledged a put.
    pub const ACK: u8 = 8;
    /// A descriptor was unlinked automatically.
    pub const UNLINK: u8 = 9;
}

/// Reasons why an operation failed ([`Event::failure`]).
pub mod failure {
    /// The target node is off, restarts, or was restarted.
    pub const NODE: u16 = 1;
    /// The data did not arrive as they were sent, or the sender stopped in the middle.
    pub const DATA: u16 = 2;
    /// Memory of the process could not be read or written.
    pub const MEMORY: u16 = 3;
}

/// An event of the kernel: one slot of the queue in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelEvent {
    /// Header packet of a new message.
    pub packet: HeaderPacket,
    /// The message: the firmware's name for a new one, the kernel's for one that it sent.
    pub token: u32,
    /// Bytes that were moved.
    pub moved: u32,
    /// 0, or one of [`failure`].
    pub failure: u16,
    /// One of [`kernel_event`].
    pub kind: u16,
    /// Zero.
    pub reserved: [u32; 12],
    /// Number of this event plus 1, modulo 2^32. It is written last.
    pub number: u32,
}

/// Kinds of events of the kernel.
pub mod kernel_event {
    /// A message for a process in host-based mode has arrived. If it carries more than
    /// [`super::INLINE`] bytes, the kernel must answer with [`super::kernel_command::RECEIVE`].
    pub const MESSAGE: u16 = 1;
    /// The data of a message are in memory, or were discarded.
    pub const RECEIVED: u16 = 2;
    /// A message was sent and accepted, or has failed.
    pub const SENT: u16 = 3;
    /// The life of another node has ended, after all that it sent before. `token` is the node. Gets
    /// that wait for its replies fail.
    pub const NODE_DOWN: u16 = 4;
}

const _: () = assert!(size_of::<Command>() == COMMAND_BYTES);
const _: () = assert!(size_of::<KernelCommand>() == COMMAND_BYTES);
const _: () = assert!(size_of::<CommandResult>() == RESULT_BYTES);
const _: () = assert!(size_of::<Event>() == 64);
const _: () = assert!(size_of::<KernelEvent>() == 128);
const _: () = assert!(size_of::<HeaderPacket>() == PACKET);
