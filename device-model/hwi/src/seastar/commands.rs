//! Commands of processes, and results of commands.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::INLINE;

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
/// | [`PUT`] | `handle` (of the descriptor), message, `header_data`, `inline` | the room |
/// | [`GET`] | `handle` (of the descriptor), message | the room |
/// | [`POST`] | as entry and descriptor, `test_queue`, `test_number` | both handles |
/// | [`STATUS`] | `handle` (one of [`status`]) | its value |
///
/// The *room* is the number of puts and gets that will not be refused with
/// [`code::NO_SPACE`](super::code::NO_SPACE) after this one, whatever other processes do. A client
/// can post so many without waiting for their results.
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
