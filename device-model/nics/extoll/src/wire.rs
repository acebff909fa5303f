//! The header of a packet.
//!
//! The fabric carries a packet's header along as a 64-bit word and does not interpret it. On the
//! wire, header, checksum and framing take [`FRAMING`] bytes, which links count.
//!
//! # Bytes on a link
//!
//! The paper's Table I lists what a link carries for an MPI message of 8 bytes:
//!
//! | bytes | what | where it is here |
//! | --- | --- | --- |
//! | 32 | network protocol: framing, header with target, source and tag, checksum | [`PROTOCOL`] |
//! | 8 | gap between two packets, which the switching units leave | [`GAP`] |
//! | 0 | gap that the network interface leaves | |
//! | 16 | MPI protocol: communicator, size, tag | content: the matching library's header |
//! | 8 | payload | content |
//!
//! Together they are 64 bytes; the paper derives 64.14 from the measured rate. A VELO message of
//! 8 bytes without an MPI header takes 48.

use nicforge_hwi::extoll_velo::{MAX_QUADWORDS, TAGS};

/// Bytes of network protocol of a packet: framing, header and checksum (the paper's Table I).
pub const PROTOCOL: u32 = 32;
/// Bytes for which the switching units leave a link idle after a packet (the paper's Table I).
pub const GAP: u32 = 8;
/// Bytes that a packet takes on a link in addition to its content.
pub const FRAMING: u32 = PROTOCOL + GAP;

/// Classes of traffic. Each class has virtual channels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// VELO messages, puts, gets, announcements of rings.
    Request = 0,
    /// The data of gets, and the ends of puts. They share a class so that a requester sees ends in
    /// the order of its requests.
    Response = 1,
    /// Credit returns, and the ends of gets. A card always takes them.
    Completion = 2,
}

impl Class {
    /// All classes, in the order in which they are served: a class that frees resources goes before
    /// one that needs them.
    pub const ALL: [Self; 3] = [Self::Completion, Self::Response, Self::Request];
}

/// Number of lanes of a class: virtual channels for its packets in each direction of a link.
pub const LANES: usize = 2;
/// Number of virtual channels of a link.
pub const CHANNELS: usize = Class::ALL.len() * LANES;

/// Returns the number of the virtual channel of a class and lane.
#[inline]
pub const fn channel(class: Class, lane: u8) -> usize {
    class as usize * LANES + (lane as usize & 1)
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A VELO message; the content is the message.
    Velo = 0,
    /// A part of a put.
    Put = 1,
    /// A request for a part of a get.
    Get = 2,
    /// Data for a get, or the end of a put.
    Answer = 3,
    /// The end of a get, sent by the requester to the VPID that answered it.
    Ended = 4,
    /// VELO credit for the receiving card.
    Credit = 5,
    /// An announcement that a VPID's ring was enabled or disabled.
    Directory = 6,
    /// A request for announcements, from a card that was reset.
    Hello = 7,
}

impl Kind {
    /// Returns the class of this kind.
    #[inline]
    pub const fn class(self) -> Class {
        match self {
            // An announcement travels after the messages of the VPID that it is about.
            Self::Velo | Self::Put | Self::Get | Self::Directory | Self::Hello => Class::Request,
            Self::Answer => Class::Response,
            Self::Ended | Self::Credit => Class::Completion,
        }
    }

    /// Returns whether this kind belongs to RMA.
    #[inline]
    pub const fn is_rma(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::Answer | Self::Ended)
    }

    /// Returns the kind with this number.
    const fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Velo,
            1 => Self::Put,
            2 => Self::Get,
            3 => Self::Answer,
            4 => Self::Ended,
            5 => Self::Credit,
            6 => Self::Directory,
            _ => Self::Hello,
        }
    }
}

/// One end of a packet's way: a VPID of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The node's id.
    pub node: u32,
    /// The VPID at that node.
    pub vpid: u16,
}

/// A packet's header.
///
/// | bits | field |
/// | --- | --- |
/// | 10..0 | target node |
/// | 21..11 | source node |
/// | 29..22 | target VPID |
/// | 37..30 | source VPID |
/// | 41..38 | tag |
/// | 44..42 | quadwords less one |
/// | 47..45 | kind |
/// | 55..48 | generation of a receive ring |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The receiver.
    pub target: Endpoint,
    /// The sender.
    pub source: Endpoint,
    /// A VELO message's tag.
    pub tag: u8,
    /// A VELO message's length in quadwords, 1 to 8.
    pub quadwords: usize,
    /// The purpose of the packet.
    pub kind: Kind,
    /// The generation of the ring that the packet is about: the target VPID's ring for a message,
    /// the source VPID's ring for credit and announcements.
    pub generation: u8,
}

impl Wire {
    /// Returns the header as 64 bits.
    #[inline]
    pub const fn encode(self) -> u64 {
        (self.target.node as u64 & 0x7ff)
            | ((self.source.node as u64 & 0x7ff) << 11)
            | ((self.target.vpid as u64 & 0xff) << 22)
            | ((self.source.vpid as u64 & 0xff) << 30)
            | ((self.tag as u64 & (TAGS as u64 - 1)) << 38)
            | (((self.quadwords as u64).wrapping_sub(1) & (MAX_QUADWORDS as u64 - 1)) << 42)
            | ((self.kind as u64) << 45)
            | ((self.generation as u64) << 48)
    }

    /// Returns the header that these 64 bits encode.
    #[inline]
    pub const fn decode(bits: u64) -> Self {
        Self {
            target: Endpoint { node: (bits & 0x7ff) as u32, vpid: ((bits >> 22) & 0xff) as u16 },
            source: Endpoint { node: ((bits >> 11) & 0x7ff) as u32, vpid: ((bits >> 30) & 0xff) as u16 },
            tag: ((bits >> 38) & 0xf) as u8,
            quadwords: ((bits >> 42) & 7) as usize + 1,
            kind: Kind::from_bits(bits >> 45),
            generation: (bits >> 48) as u8,
        }
    }

    /// Returns whether an encoded header has this kind and target node.
    #[inline]
    pub const fn is_for(bits: u64, node: u32, kind: Kind) -> bool {
        bits & (0x7ff | 7 << 45) == node as u64 | (kind as u64) << 45
    }

    /// Returns the target node of an encoded header, the only field that a switch on the way reads.
    #[inline]
    pub const fn target_of(bits: u64) -> u32 {
        (bits & 0x7ff) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn header_round_trips(nodes in (0u32..2048, 0u32..2048), vpids in (0u16..256, 0u16..256),
            tag in 0u8..16, quadwords in 1usize..=8, kind in 0u64..8, generation: u8) {
            let kind = Kind::from_bits(kind);
            let target = Endpoint { node: nodes.0, vpid: vpids.0 };
            let source = Endpoint { node: nodes.1, vpid: vpids.1 };
            let wire = Wire { target, source, tag, quadwords, kind, generation };

            prop_assert_eq!(Wire::decode(wire.encode()), wire);
            prop_assert_eq!(Wire::target_of(wire.encode()), target.node);
            prop_assert!(Wire::is_for(wire.encode(), target.node, kind));
            prop_assert!(!Wire::is_for(wire.encode(), target.node ^ 1, kind));
            prop_assert!(!Wire::is_for(wire.encode(), target.node, Kind::from_bits(kind as u64 ^ 1)));
        }
    }

    #[test]
    fn no_two_channels_of_classes_and_lanes_are_the_same() {
        let mut channels: Vec<_> =
            Class::ALL.iter().flat_map(|&class| [0, 1].map(|lane| channel(class, lane))).collect();
        channels.sort_unstable();
        assert_eq!(channels, (0..CHANNELS).collect::<Vec<_>>());
    }
}
