//! The protocol's messages. Fields are little-endian; the kind is the transport's tag.
//!
//! | kind | message |
//! | --- | --- |
//! | [`FIRST`] | [`First`], then the first bytes of an eager message |
//! | [`MORE`] | at least one further byte of the eager message that this rank is sending |
//! | [`REQUEST`] | [`Rendezvous`]: a message that the receiver must fetch |
//! | [`FINISH`] | [`Finish`]: acknowledges that the message was fetched, or never will be |
//! | [`GRANT`] | [`Grant`]: the window that the addressee may use |
//! | [`FULL`] | [`Full`]: the window that the addressee has can't grow |
//! | [`BLOCKED`] | [`Blocked`]: a send to the addressee waits for a larger window |
//!
//! Between a [`FIRST`] and the last byte of its message a rank sends no other [`FIRST`] or
//! [`REQUEST`]. The other kinds may come between.
//!
//! # The window
//! Each message that must match costs its sender [`cost`] units of [`UNIT`] bytes. [`Grant::limit`]
//! is the total number of units that a rank may have sent to another since the beginning. Before
//! the first grant the limit is the window of the sender's own configuration. The receiver sends a
//! new grant when matched messages have used half of the window.
//!
//! The receiver grants more than its window while one of its receives waits and the sender may have
//! no window left: the message that the receive waits for can stand behind others that nothing
//! receives yet. When the receiver's pool for that is used up, it sends [`FULL`] with [`ASK`]. The
//! sender answers with [`BLOCKED`], at once or as soon as a send waits for the window. The receiver
//! then fails the receives that wait for the sender, and sends [`FULL`] with [`GIVE_UP`], on which
//! the sender fails the sends that wait.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::little_endian::{U32, U64},
};

/// The beginning of an eager message.
pub const FIRST: u8 = 1;
/// More data of an eager message.
pub const MORE: u8 = 2;
/// A rendezvous request.
pub const REQUEST: u8 = 3;
/// The acknowledgement of a rendezvous.
pub const FINISH: u8 = 4;
/// A window grant.
pub const GRANT: u8 = 5;
/// A window that can't grow.
pub const FULL: u8 = 6;
/// The answer to [`FULL`]: a send waits for the window.
pub const BLOCKED: u8 = 7;

/// Header of an eager message, in front of its first bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct First {
    /// Matching context.
    pub context: U32,
    /// Length of the message in bytes.
    pub size: U32,
    /// Tag.
    pub tag: U64,
}

/// A rendezvous request: announces a message that the receiver must fetch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rendezvous {
    /// Matching context.
    pub context: U32,
    /// Reserved; zero.
    pub reserved: U32,
    /// Tag.
    pub tag: U64,
    /// Length of the message in bytes.
    pub size: U64,
    /// The transport's key of the sender's memory; 0 when `size` is 0.
    pub key: U64,
    /// Offset of the message in that memory.
    pub offset: U64,
    /// The sender's handle of its request, which the receiver returns in [`Finish`].
    pub request: U64,
}

/// The acknowledgement of a rendezvous.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Finish {
    /// The value of [`Rendezvous::request`].
    pub request: U64,
    /// [`FETCHED`] or [`NOT_FETCHED`].
    pub status: U32,
    /// Reserved; zero.
    pub reserved: U32,
}

/// [`Finish::status`]: the receiver has fetched as much as it needs.
pub const FETCHED: u32 = 0;
/// [`Finish::status`]: the receiver could not fetch the message.
pub const NOT_FETCHED: u32 = 1;

/// A window grant.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Grant {
    /// Total number of units that the addressee may have sent. A value below an earlier one is
    /// ignored.
    pub limit: U64,
}

/// The addressee's window can't grow, although a receive may wait for a message beyond it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Full {
    /// The limit of the last grant. The answer returns it.
    pub limit: U64,
    /// Units of the window that unexpected messages of the addressee use.
    pub used: U64,
    /// [`ASK`] or [`GIVE_UP`].
    pub verdict: U32,
    /// Reserved; zero.
    pub reserved: U32,
}

/// [`Full::verdict`]: the addressee answers with [`BLOCKED`] when a send waits for the window.
pub const ASK: u32 = 0;
/// [`Full::verdict`]: the sends that wait for the window fail.
pub const GIVE_UP: u32 = 1;

/// A send to the addressee waits for a larger window.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Blocked {
    /// The value of [`Full::limit`].
    pub limit: U64,
}

/// Bytes of one unit of the window.
pub const UNIT: usize = 128;

/// The smallest message size that a transport must carry: that of the longest fixed message.
pub const LEAST_MESSAGE: usize = size_of::<Rendezvous>();

/// Returns the cost of a message in units of the window: one, and those that the `bytes` of an
/// eager message fill.
pub const fn cost(bytes: u64) -> u64 {
    1 + bytes.div_ceil(UNIT as u64)
}
