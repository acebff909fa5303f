//! What travels in the transport's messages. Fields are little-endian; the kind is the transport's tag.
//!
//! | kind | message |
//! | --- | --- |
//! | [`FIRST`] | [`First`], then the first bytes of an eager message |
//! | [`MORE`] | further bytes of the eager message that this rank is sending; at least one |
//! | [`REQUEST`] | [`Rendezvous`]: a message that the receiver is to fetch |
//! | [`FINISH`] | [`Finish`]: it has been fetched, or never will be |
//! | [`GRANT`] | [`Grant`]: what this rank may send |
//!
//! Between a [`FIRST`] and the last of its bytes the same rank sends no other [`FIRST`] or [`REQUEST`]; the other kinds may come
//! between.
//!
//! # The window
//! Each message to match costs its sender [`cost`] units of [`UNIT`] bytes. A rank may have sent [`Grant::limit`] units in all to
//! another, from the beginning; before the first grant it is the window of its own configuration. The receiver grants again
//! when messages that cost half of the window have been matched.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::little_endian::{U32, U64},
};

/// The beginning of an eager message.
pub const FIRST: u8 = 1;
/// More of it.
pub const MORE: u8 = 2;
/// A message to fetch.
pub const REQUEST: u8 = 3;
/// The end of a rendezvous.
pub const FINISH: u8 = 4;
/// More window.
pub const GRANT: u8 = 5;

/// Header of an eager message, before its first bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct First {
    /// Matching context.
    pub context: U32,
    /// Bytes of the message.
    pub size: U32,
    /// Tag.
    pub tag: U64,
}

/// A message that the receiver is to fetch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rendezvous {
    /// Matching context.
    pub context: U32,
    /// Zero.
    pub reserved: U32,
    /// Tag.
    pub tag: U64,
    /// Bytes of the message.
    pub size: U64,
    /// The transport's key of the memory; 0 when `size` is 0.
    pub key: U64,
    /// Where the message begins in it.
    pub offset: U64,
    /// Comes back in [`Finish`].
    pub request: U64,
}

/// The end of a rendezvous.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Finish {
    /// From [`Rendezvous`].
    pub request: U64,
    /// [`FETCHED`] or [`NOT_FETCHED`].
    pub status: U32,
    /// Zero.
    pub reserved: U32,
}

/// [`Finish::status`]: the receiver has what it wanted of the message.
pub const FETCHED: u32 = 0;
/// [`Finish::status`]: the receiver could not fetch it.
pub const NOT_FETCHED: u32 = 1;

/// More window.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Grant {
    /// Units that the receiver of this may have sent in all. A smaller one than before is ignored.
    pub limit: U64,
}

/// Bytes of a unit of the window.
pub const UNIT: usize = 128;

/// The least that a transport's message must carry: the longest of the above.
pub const LEAST_MESSAGE: usize = size_of::<Rendezvous>();

/// Units of the window that a message takes: one, and those that an eager message's `bytes` fill.
pub const fn cost(bytes: u64) -> u64 {
    1 + bytes.div_ceil(UNIT as u64)
}
