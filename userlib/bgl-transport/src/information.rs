//! The match information of the message layer's messages.

use nicforge_bgl::message::MatchInformation;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message of the matching layer.
    Message = 1,
    /// A get: the data are a [`Question`].
    Get = 2,
    /// The data of a get.
    Data = 3,
    /// The answer to a get for memory that is not registered. It has no data.
    Refusal = 4,
}

/// The match information of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Information {
    /// One of [`Kind`], or another value from outside the job.
    pub(crate) kind: u8,
    /// Tag of a message of the matching layer.
    pub(crate) tag: u8,
    /// The life of the receiver that the message is for.
    pub(crate) life: U16,
    /// Number of a get at the rank that asks.
    pub(crate) get: U32,
    /// Reserved; zero.
    pub(crate) reserved: U32,
    /// Bytes that are asked for.
    pub(crate) length: U32,
}

/// The memory that a get asks for: the data of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Question {
    /// Key of the memory.
    pub(crate) key: U64,
    /// Offset in the memory.
    pub(crate) offset: U64,
}

impl Information {
    /// Returns the information of a message for a life of its receiver.
    pub(crate) fn new(kind: Kind, life: u16) -> Self {
        let zero = U32::ZERO;
        Self { kind: kind as u8, tag: 0, life: life.into(), get: zero, reserved: zero, length: zero }
    }

    /// Returns the information of the bytes that a message carries.
    pub(crate) fn of_bytes(bytes: MatchInformation) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// Returns the bytes that a message carries.
    pub(crate) fn to_bytes(self) -> MatchInformation {
        zerocopy::transmute!(self)
    }

    /// Returns the kind, if it exists.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Some(match self.kind {
            1 => Kind::Message,
            2 => Kind::Get,
            3 => Kind::Data,
            4 => Kind::Refusal,
            _ => return None,
        })
    }
}
