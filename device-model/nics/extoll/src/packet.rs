//! Packets: their header, their classes of traffic, and the bytes that they take on a link.
//!
//! The fabric carries a packet's header along as a 64-bit word and does not interpret it. On a
//! link, header, checksum and framing take [`FRAMING`] bytes, which links count.
//!
//! # Bytes on a link
//!
//! A link carries these bytes for an MPI message of 8 bytes, by table I of the EXTOLL paper
//! (H. Fröning and others, *On Achieving High Message Rates*):
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
pub enum TrafficClass {
    /// VELO messages, puts, gets, announcements of rings.
    Request = 0,
    /// The data of gets, and the ends of puts. They share a class so that a requester sees ends in
    /// the order of its requests.
    Response = 1,
    /// Credit returns, and the ends of gets. A card always takes them.
    Completion = 2,
}

impl TrafficClass {
    /// All classes, in the order in which they are served: a class that frees resources goes before
    /// one that needs them.
    pub const ALL: [Self; 3] = [Self::Completion, Self::Response, Self::Request];
}

/// Number of lanes of a class: virtual channels for its packets in each direction of a link.
pub const LANES: usize = 2;
/// Number of virtual channels of a link.
pub const CHANNELS: usize = TrafficClass::ALL.len() * LANES;

/// Returns the number of the virtual channel of a class and lane.
#[inline]
pub const fn channel(class: TrafficClass, lane: u8) -> usize {
    class as usize * LANES + (lane as usize & 1)
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A VELO message; the content is the message.
    Velo = 0,
    /// A part of a put.
    Put = 1,
    /// A request for a part of a get.
    Get = 2,
    /// Data for a get, or the end of a put.
    Answer = 3,
    /// The end of a get, sent by the requester to the VPID that answered it.
    GetEnd = 4,
    /// VELO credit for the receiving card.
    CreditReturn = 5,
    /// An announcement that a VPID's ring was enabled or disabled.
    RingAnnouncement = 6,
    /// A request for announcements, from a card that was reset.
    AnnouncementRequest = 7,
}

impl PacketKind {
    /// Returns the class of this kind.
    #[inline]
    pub const fn class(self) -> TrafficClass {
        match self {
            // An announcement travels after the messages of the VPID that it is about.
            Self::Velo | Self::Put | Self::Get | Self::RingAnnouncement | Self::AnnouncementRequest => {
                TrafficClass::Request
            }
            Self::Answer => TrafficClass::Response,
            Self::GetEnd | Self::CreditReturn => TrafficClass::Completion,
        }
    }

    /// Returns whether this kind belongs to RMA.
    #[inline]
    pub const fn is_rma(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::Answer | Self::GetEnd)
    }

    /// Returns the kind whose number is in the lowest bits of `bits`.
    const fn from_bits(bits: u64) -> Self {
        match bits & KIND_MASK {
            0 => Self::Velo,
            1 => Self::Put,
            2 => Self::Get,
            3 => Self::Answer,
            4 => Self::GetEnd,
            5 => Self::CreditReturn,
            6 => Self::RingAnnouncement,
            _ => Self::AnnouncementRequest,
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

/// Mask of a node id, which is in the lowest bits for the target.
const NODE_MASK: u64 = 0x7ff;
/// Lowest bit of the source's node id.
const SOURCE_NODE_SHIFT: u32 = 11;
/// Mask of a VPID.
const VPID_MASK: u64 = 0xff;
/// Lowest bit of the target's VPID.
const TARGET_VPID_SHIFT: u32 = 22;
/// Lowest bit of the source's VPID.
const SOURCE_VPID_SHIFT: u32 = 30;
/// Mask of a tag.
const TAG_MASK: u64 = TAGS as u64 - 1;
/// Lowest bit of the tag.
const TAG_SHIFT: u32 = 38;
/// Mask of the number of quadwords less one.
const QUADWORDS_MASK: u64 = MAX_QUADWORDS as u64 - 1;
/// Lowest bit of the number of quadwords less one.
const QUADWORDS_SHIFT: u32 = 42;
/// Mask of the kind.
const KIND_MASK: u64 = 7;
/// Lowest bit of the kind.
const KIND_SHIFT: u32 = 45;
/// Lowest bit of the generation, which has 8 bits.
const GENERATION_SHIFT: u32 = 48;

/// A packet's header. [`PacketHeader::encode`] gives it the form in which the fabric carries it:
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
pub struct PacketHeader {
    /// The receiver.
    pub target: Endpoint,
    /// The sender.
    pub source: Endpoint,
    /// A VELO message's tag.
    pub tag: u8,
    /// A VELO message's length in quadwords, 1 to 8.
    pub quadwords: usize,
    /// The purpose of the packet.
    pub kind: PacketKind,
    /// The generation of the ring that the packet is about: the target VPID's ring for a message,
    /// the source VPID's ring for credit and announcements.
    pub generation: u8,
}

impl PacketHeader {
    /// Returns the header as 64 bits.
    #[inline]
    pub const fn encode(self) -> u64 {
        (self.target.node as u64 & NODE_MASK)
            | ((self.source.node as u64 & NODE_MASK) << SOURCE_NODE_SHIFT)
            | ((self.target.vpid as u64 & VPID_MASK) << TARGET_VPID_SHIFT)
            | ((self.source.vpid as u64 & VPID_MASK) << SOURCE_VPID_SHIFT)
            | ((self.tag as u64 & TAG_MASK) << TAG_SHIFT)
            | (((self.quadwords as u64).wrapping_sub(1) & QUADWORDS_MASK) << QUADWORDS_SHIFT)
            | ((self.kind as u64) << KIND_SHIFT)
            | ((self.generation as u64) << GENERATION_SHIFT)
    }

    /// Returns the header that these 64 bits encode.
    #[inline]
    pub const fn decode(bits: u64) -> Self {
        Self {
            target: Endpoint {
                node: (bits & NODE_MASK) as u32,
                vpid: ((bits >> TARGET_VPID_SHIFT) & VPID_MASK) as u16,
            },
            source: Endpoint {
                node: ((bits >> SOURCE_NODE_SHIFT) & NODE_MASK) as u32,
                vpid: ((bits >> SOURCE_VPID_SHIFT) & VPID_MASK) as u16,
            },
            tag: ((bits >> TAG_SHIFT) & TAG_MASK) as u8,
            quadwords: ((bits >> QUADWORDS_SHIFT) & QUADWORDS_MASK) as usize + 1,
            kind: PacketKind::from_bits(bits >> KIND_SHIFT),
            generation: (bits >> GENERATION_SHIFT) as u8,
        }
    }

    /// Returns whether an encoded header has this kind and target node.
    #[inline]
    pub const fn is_for(bits: u64, node: u32, kind: PacketKind) -> bool {
        bits & (NODE_MASK | KIND_MASK << KIND_SHIFT) == node as u64 | (kind as u64) << KIND_SHIFT
    }

    /// Returns the target node of an encoded header, the only field that a switch on the way reads.
    #[inline]
    pub const fn target_of(bits: u64) -> u32 {
        (bits & NODE_MASK) as u32
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
            let kind = PacketKind::from_bits(kind);
            let target = Endpoint { node: nodes.0, vpid: vpids.0 };
            let source = Endpoint { node: nodes.1, vpid: vpids.1 };
            let header = PacketHeader { target, source, tag, quadwords, kind, generation };

            prop_assert_eq!(PacketHeader::decode(header.encode()), header);
            prop_assert_eq!(PacketHeader::target_of(header.encode()), target.node);
            prop_assert!(PacketHeader::is_for(header.encode(), target.node, kind));
            prop_assert!(!PacketHeader::is_for(header.encode(), target.node ^ 1, kind));
            prop_assert!(!PacketHeader::is_for(header.encode(), target.node, PacketKind::from_bits(kind as u64 ^ 1)));
        }
    }

    #[test]
    fn no_two_channels_of_classes_and_lanes_are_the_same() {
        let mut channels: Vec<_> =
            TrafficClass::ALL.iter().flat_map(|&class| [0, 1].map(|lane| channel(class, lane))).collect();
        channels.sort_unstable();
        assert_eq!(channels, (0..CHANNELS).collect::<Vec<_>>());
    }
}
