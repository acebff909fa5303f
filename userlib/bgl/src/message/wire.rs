//! The packets of the message layer.
//!
//! The software header has the two words that the hardware header leaves:
//!
//! | word | bits | field |
//! | --- | --- | --- |
//! | 0 | 12..0 | rank of the sender |
//! | 0 | 16..13 | [`Kind`] |
//! | 0 | 31..17 | [`MessageId`] |
//! | 1 | 23..0 | body packets: offset in the body, in quads. Others: [`Control`] |
//! | 1 | 31..24 | bits 8..1 of the sender's life |
//!
//! The payload follows. Numbers are little-endian, and parts begin at multiples of 16 bytes:
//!
//! | kind | payload |
//! | --- | --- |
//! | `Single` | match information, up to 224 bytes of data |
//! | `Lead` | match information, [`Details`], the ends, the first bytes of the body |
//! | `Repeat` | match information, [`Details`], up to 208 bytes of the body |
//! | `Eager` | up to 240 bytes of the body |
//! | `Request` | match information, [`Details`] |
//! | `Acknowledge` | [`Acknowledgement`] |
//! | `Data` | up to 240 bytes of the body |
//! | `Ends` | the ends of the message |
//! | `Credit` | [`Oldest`] |
//! | `Marker` | nothing; the id is that of the sender's next message |
//! | `MarkerAcknowledge` | nothing; the id is that of the marker |
//!
//! `Single` to `Request` are *unsolicited*: each uses up a credit of the sender. `Data` and `Ends`
//! go to memory that the receiver has agreed to by `Acknowledge`.

use std::num::NonZeroU16;

use nicforge_hwi::torus::{MAX_PAYLOAD, QUAD};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use crate::packet::{RANK_BITS, Rank};

/// Number of bytes of the match information, which the layer carries from `postsend` to `recvnew`
/// and does not read.
pub const INFORMATION: usize = QUAD;
/// The match information of a message.
pub type MatchInformation = [u8; INFORMATION];

/// Maximum number of bytes of a message: the body's offset has 24 bits.
pub const MAX_MESSAGE: usize = QUAD << OFFSET_BITS;
/// Maximum number of bytes of a message in one packet.
pub const MAX_SINGLE: usize = MAX_PAYLOAD - INFORMATION;
/// Bytes in front of the ends in a `Lead`, and of the body in a `Repeat`.
pub const ANNOUNCEMENT: usize = INFORMATION + size_of::<Details>();
/// Number of credits that a sender has at each receiver. A credit is a place for an unsolicited
/// packet, or for a message in progress.
pub const WINDOW: u8 = 32;

/// Bits of an offset in the body.
const OFFSET_BITS: u32 = 24;
/// Lowest bit of the kind.
const KIND_SHIFT: u32 = RANK_BITS;
/// Lowest bit of the message id.
const ID_SHIFT: u32 = 17;
/// Lowest bit of the sender's life.
const LIFE_SHIFT: u32 = 24;

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A whole message: the one-packet eager protocol.
    Single = 1,
    /// The first packet of a message of the eager or the mid-size protocol.
    Lead = 2,
    /// A packet of the mid-size protocol that repeats the match information.
    Repeat = 3,
    /// A further packet of the eager protocol.
    Eager = 4,
    /// The request of the rendezvous protocol.
    Request = 5,
    /// The receiver has memory for the message.
    Acknowledge = 6,
    /// A part of the body that the receiver waits for.
    Data = 7,
    /// The ends of a message of the rendezvous protocol.
    Ends = 8,
    /// The receiver has freed places.
    Credit = 9,
    /// The sender begins no more messages.
    Marker = 10,
    /// All messages before a marker are complete.
    MarkerAcknowledge = 11,
}

impl Kind {
    /// Returns the kind with a number.
    const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Single,
            2 => Self::Lead,
            3 => Self::Repeat,
            4 => Self::Eager,
            5 => Self::Request,
            6 => Self::Acknowledge,
            7 => Self::Data,
            8 => Self::Ends,
            9 => Self::Credit,
            10 => Self::Marker,
            11 => Self::MarkerAcknowledge,
            _ => return None,
        })
    }

    /// Returns whether a packet of this kind uses up a credit.
    pub const fn is_unsolicited(self) -> bool {
        matches!(self, Self::Single | Self::Lead | Self::Repeat | Self::Eager | Self::Request)
    }
}

/// Number of a message in the order of its sender's messages to one receiver, modulo 2^15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(
    /// The number plus 1, so that an `Option` takes no more memory.
    NonZeroU16,
);

impl MessageId {
    /// Number of ids.
    pub const COUNT: u16 = 1 << 15;

    /// Returns the id with a number, modulo [`MessageId::COUNT`].
    pub const fn new(number: u16) -> Self {
        match NonZeroU16::new(number % Self::COUNT + 1) {
            Some(successor) => Self(successor),
            None => Self(NonZeroU16::MIN),
        }
    }

    /// Returns the next id.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.number() + 1)
    }

    /// Returns how many ids this one is after another.
    pub const fn distance_from(self, earlier: Self) -> u16 {
        self.number().wrapping_sub(earlier.number()) % Self::COUNT
    }

    /// Returns the id's number.
    pub const fn number(self) -> u16 {
        self.0.get() - 1
    }
}

/// Returns the bits of a life that packets carry. A life in use is odd, so its lowest bit says
/// nothing.
pub const fn life_bits(life: u16) -> u8 {
    (life >> 1) as u8
}

/// A software header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareHeader {
    /// The kind of the packet.
    pub kind: Kind,
    /// The sender.
    pub source: Rank,
    /// [`life_bits`] of the sender.
    pub life: u8,
    /// The message to which the packet belongs.
    pub id: MessageId,
    /// The offset in the body, or [`Control`]: 24 bits.
    pub field: u32,
}

impl SoftwareHeader {
    /// Encodes the header as the two words for software.
    #[inline]
    pub const fn encode(self) -> [U32; 2] {
        let word0 = (self.source.0 as u32 % (1 << RANK_BITS))
            | ((self.kind as u32) << KIND_SHIFT)
            | ((self.id.number() as u32) << ID_SHIFT);
        let word1 = (self.field % (1 << OFFSET_BITS)) | ((self.life as u32) << LIFE_SHIFT);
        [U32::new(word0), U32::new(word1)]
    }

    /// Decodes the two words for software. Returns `None` for an unknown kind.
    #[inline]
    pub const fn decode(words: [U32; 2]) -> Option<Self> {
        let (word0, word1) = (words[0].get(), words[1].get());
        let Some(kind) = Kind::from_number(word0 >> KIND_SHIFT & 0xf) else { return None };
        Some(Self {
            kind,
            source: Rank((word0 % (1 << RANK_BITS)) as u16),
            life: (word1 >> LIFE_SHIFT) as u8,
            id: MessageId::new((word0 >> ID_SHIFT) as u16),
            field: word1 % (1 << OFFSET_BITS),
        })
    }
}

/// The field of packets that carry no part of a body, or the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Bytes of the message in a `Single`; 0 elsewhere.
    pub length: u8,
    /// Number of places that the sender of this packet has freed as a receiver, modulo 2^16.
    pub freed: u16,
}

impl Control {
    /// Encodes the control information as a header's field.
    pub const fn encode(self) -> u32 {
        self.length as u32 | (self.freed as u32) << 8
    }

    /// Decodes a header's field.
    pub const fn decode(field: u32) -> Self {
        Self { length: field as u8, freed: (field >> 8) as u16 }
    }
}

/// The protocols of messages with more than one packet, as a [`Details`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// All packets are unsolicited.
    Eager = 0,
    /// Only the first packets are unsolicited, and they repeat the match information.
    MidSize = 1,
    /// Only the request is unsolicited.
    Rendezvous = 2,
}

/// The description of a message, beside its match information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Details {
    /// Bytes of the message.
    pub length: U32,
    /// Bytes of the message before its body, 0 to 15. The receiver chooses them in a rendezvous.
    pub head: u8,
    /// Number of a [`Protocol`].
    pub protocol: u8,
    /// Always 0.
    pub reserved: [u8; 10],
}

impl Details {
    /// Returns the details of a message.
    pub fn new(length: usize, head: usize, protocol: Protocol) -> Self {
        Self {
            length: U32::new(length as u32),
            head: head as u8,
            protocol: protocol as u8,
            reserved: [0; 10],
        }
    }

    /// Returns the protocol, if its number is valid.
    pub const fn protocol(&self) -> Option<Protocol> {
        match self.protocol {
            0 => Some(Protocol::Eager),
            1 => Some(Protocol::MidSize),
            2 => Some(Protocol::Rendezvous),
            _ => None,
        }
    }
}

/// The payload of an `Acknowledge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Acknowledgement {
    /// Bytes of the message that the receiver wants in a rendezvous.
    pub wanted: U32,
    /// Bytes of the message before its body in a rendezvous, 0 to 15: the alignment phase of the
    /// receiver's memory.
    pub head: u8,
    /// Always 0.
    pub reserved: [u8; 11],
}

/// The payload of a `Credit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Oldest {
    /// The first [`MessageId`] that is not complete at the receiver.
    pub id: U16,
    /// Always 0.
    pub reserved: [u8; 14],
}

const _: () = {
    assert!(ID_SHIFT == KIND_SHIFT + 4 && ID_SHIFT + 15 == 32 && LIFE_SHIFT == OFFSET_BITS);
    assert!(size_of::<Details>() == QUAD && size_of::<Acknowledgement>() == QUAD);
    assert!(size_of::<Oldest>() == QUAD && MAX_SINGLE <= u8::MAX as usize);
    assert!(WINDOW <= 64, "counts of freed places that were overtaken must be far from new ones");
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decode_returns_the_encoded_header(
            kind in 1u32..=11, source in 0u16..8192, life: u8, id in 0u16..MessageId::COUNT, field in 0u32..1 << 24,
        ) {
            let kind = Kind::from_number(kind).unwrap();
            let header = SoftwareHeader { kind, source: Rank(source), life, id: MessageId::new(id), field };
            prop_assert_eq!(SoftwareHeader::decode(header.encode()), Some(header));
        }

        #[test]
        fn any_words_decode_to_a_header_that_encodes_them(word0: u32, word1: u32) {
            let words = [U32::new(word0), U32::new(word1)];
            if let Some(header) = SoftwareHeader::decode(words) {
                prop_assert_eq!(header.encode(), words);
            }
        }
    }

    #[test]
    fn ids_wrap_around() {
        let last = MessageId::new(MessageId::COUNT - 1);
        assert_eq!((last.next().number(), last.next().distance_from(last)), (0, 1));
        assert_eq!(last.distance_from(last.next()), MessageId::COUNT - 1);
    }

    #[test]
    fn control_information_fits_the_field() {
        let control = Control { length: 224, freed: 0xabcd };
        assert_eq!((control.encode(), Control::decode(control.encode())), (0xab_cde0, control));
    }
}
