//! Commands and events of the kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{HeaderPacket, MessageHeader};

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
/// | [`REFUSE`] | `node` | |
/// | [`ADMIT`] | `node` | |
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
/// [`REFUSE`]: kernel_command::REFUSE
/// [`ADMIT`]: kernel_command::ADMIT
pub mod kernel_command {
    /// Boots the node: from now on it takes messages, and events go to the kernel's queue.
    pub const BOOT: u16 = 1;
    /// Permits a process to use the network, in NIC-based or host-based mode.
    pub const START_PROCESS: u16 = 2;
    /// Adds ranges to the address map of a process in NIC-based mode.
    pub const MAP: u16 = 3;
    /// Ends a process. Its messages that are sent later carry no data.
    pub const STOP_PROCESS: u16 = 4;
    /// Sends a message of a process in host-based mode.
    pub const SEND: u16 = 5;
    /// Says where a message to a process in host-based mode goes. Bytes beyond `length` are
    /// discarded; with `length` 0, all of them.
    pub const RECEIVE: u16 = 6;
    /// Reports how many events the kernel has taken.
    pub const TAKE: u16 = 7;
    /// Refuses puts and gets of a node to processes in host-based mode until [`ADMIT`]: the node
    /// sends them again. Replies and acknowledgements of the node are still taken. Messages that
    /// were taken before are still reported.
    pub const REFUSE: u16 = 8;
    /// Takes puts and gets of a node again.
    pub const ADMIT: u16 = 9;
}

/// Bits of [`KernelCommand::flags`].
pub mod kernel_flag {
    /// The process is in host-based mode: the kernel matches its messages.
    pub const HOST_BASED: u8 = 1 << 0;
    /// The process, in NIC-based mode, starts again with the same address map when its client has
    /// detached. So programs without a kernel can use it, one after the other.
    pub const PERMANENT: u8 = 1 << 1;
}

/// Number of pieces in a command of the trusted mailbox.
pub const PIECES: usize = 4;
/// Maximum number of pieces of a message in host-based mode.
pub const MAX_PIECES: usize = 1024;
/// Maximum number of ranges of a process's address map.
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
    /// Kind of a message that is sent: one of [`super::message`] before
    /// [`super::message::FIRST_CONTROL`].
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
    /// Target node, or the node that is refused or admitted.
    pub node: u32,
    /// Bytes of the message, or events of the queue.
    pub length: u32,
    /// Header of the message.
    pub header: MessageHeader,
    /// Pieces of memory.
    pub pieces: [Piece; PIECES],
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
    /// 0, or one of [`super::failure`].
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
    /// [`crate::seastar::INLINE`] bytes, the kernel answers with
    /// [`super::kernel_command::RECEIVE`].
    pub const MESSAGE: u16 = 1;
    /// The data of a message are in memory, or were discarded.
    pub const RECEIVED: u16 = 2;
    /// A message was sent and accepted, or has failed.
    pub const SENT: u16 = 3;
    /// The epoch of another node has ended, or the node is silent. `token` is the node. Gets that
    /// wait for its replies fail.
    pub const NODE_DOWN: u16 = 4;
}
