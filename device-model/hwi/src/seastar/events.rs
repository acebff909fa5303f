//! Events of processes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
    /// [`super::Command::user_pointer`] of the descriptor.
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
