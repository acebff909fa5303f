//! Headers of messages: the first packet of each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::INLINE;

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
    /// Bytes of data. In a negative acknowledgement: the sender's position in the queue.
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
    /// The sender wants no acknowledgement of flow control. With flow control, the message needs no
    /// stream then, and no message before it can be dropped.
    pub const IMPLICIT: u8 = 1 << 1;
    /// The sender's engine could not read the data of a message of at most [`super::INLINE`] bytes,
    /// and has replaced them by zeros.
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
    /// Stands for a message whose process has ended before it was sent (again). It has no data.
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
    /// Bits of [`crate::seastar::option`]: [`crate::seastar::option::ACK`] in a put.
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
