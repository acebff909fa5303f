//! VELO, the Virtualized Engine for Low Overhead. A message is one burst of stores, and its header
//! is the address.
//!
//! A message of 1 to 8 quadwords is written to BAR 3 at [`address`]`::encode`. The offset has these
//! fields:
//!
//! | bits | field |
//! | --- | --- |
//! | 31..21 | target node |
//! | 20..13 | target VPID |
//! | 12..9 | tag |
//! | 8..6 | quadwords minus 1 |
//! | 5..0 | position in the message in bytes, a multiple of 8; 0 for a message in one piece |
//!
//! The address does not name the sender: the card knows it from the attachment. A processor may
//! split a burst. The card joins pieces of 8 bytes or more that follow each other from position 0
//! on. It sends a message as a whole when its last quadword has come, or not at all.
//! [`crate::extoll::reg::VELO_TAKEN`] tells whether it was sent: a read of it comes after all
//! stores.
//!
//! Messages from one VPID to another arrive in order. A burst through the posted-write ring is one
//! record of the whole message.

/// Largest number of quadwords of a message.
pub const MAX_QUADWORDS: usize = 8;
/// Largest size of a message in bytes.
pub const MAX_MESSAGE: usize = 64;
/// Number of tags.
pub const TAGS: u8 = 16;
/// Smallest number of slots of a receive ring.
pub const MIN_SLOTS: u64 = 64;
/// Largest number of slots of a receive ring.
pub const MAX_SLOTS: u64 = 1 << 16;
/// Size of a slot of the receive ring in bytes.
pub const SLOT: u64 = 128;
/// In a slot: the header ([`header`]). It is not 0 when the slot holds a message. Software zeroes
/// it when it has taken the message, before it advances
/// [`crate::extoll::window::VELO_READ_POINTER`]. The card writes it last, with release order.
pub const SLOT_HEADER: u64 = 0;
/// In a slot: the message.
pub const SLOT_DATA: u64 = 8;

/// The fields that the address of a send and the header of a received message have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFields {
    /// Node of the target in an address, and of the sender in a header.
    pub node: u32,
    /// VPID of the target in an address, and of the sender in a header.
    pub vpid: u16,
    /// Tag.
    pub tag: u8,
    /// Number of quadwords. A header in memory that software has changed may hold any up to 15.
    pub quadwords: usize,
}

/// Bits of a node's number in an address and in a header.
const NODE_MASK: u64 = 0x7ff;
/// Bits of a VPID, once shifted.
const VPID_MASK: u64 = 0xff;
/// Bits of a tag, once shifted.
const TAG_MASK: u64 = 0xf;

/// Offsets in BAR 3.
pub mod address {
    use super::{MessageFields, NODE_MASK, TAG_MASK, VPID_MASK};

    /// Lowest bit of the number of quadwords minus 1 (3 bits).
    pub const QUADWORDS_SHIFT: u32 = 6;
    /// Lowest bit of the tag (4 bits).
    pub const TAG_SHIFT: u32 = 9;
    /// Lowest bit of the target VPID (8 bits).
    pub const VPID_SHIFT: u32 = 13;
    /// Lowest bit of the target node (11 bits).
    pub const NODE_SHIFT: u32 = 21;
    /// Bits of the number of quadwords minus 1, once shifted.
    const QUADWORDS_MASK: u64 = 7;
    /// Size of the BAR.
    pub const APERTURE: u64 = 1 << 32;

    /// Returns the offset to which a message of `quadwords` (1 to 8) with a tag is written, for
    /// VPID `vpid` of node `node`. Excess bits of each argument are cut off.
    #[inline]
    pub const fn encode(node: u32, vpid: u16, tag: u8, quadwords: usize) -> u64 {
        ((node as u64 & NODE_MASK) << NODE_SHIFT)
            | ((vpid as u64 & VPID_MASK) << VPID_SHIFT)
            | ((tag as u64 & TAG_MASK) << TAG_SHIFT)
            | (((quadwords as u64).wrapping_sub(1) & QUADWORDS_MASK) << QUADWORDS_SHIFT)
    }

    /// Returns the fields of an offset.
    #[inline]
    pub const fn decode(offset: u64) -> MessageFields {
        MessageFields {
            node: ((offset >> NODE_SHIFT) & NODE_MASK) as u32,
            vpid: ((offset >> VPID_SHIFT) & VPID_MASK) as u16,
            tag: ((offset >> TAG_SHIFT) & TAG_MASK) as u8,
            quadwords: ((offset >> QUADWORDS_SHIFT) & QUADWORDS_MASK) as usize + 1,
        }
    }
}

/// The first quadword of a filled slot.
///
/// | bits | field |
/// | --- | --- |
/// | 63 | 1 |
/// | 26..23 | quadwords, 1 to 8 |
/// | 22..19 | tag |
/// | 18..11 | source VPID |
/// | 10..0 | source node |
pub mod header {
    use super::{MessageFields, NODE_MASK, TAG_MASK, VPID_MASK};

    /// Set in every header.
    pub const VALID: u64 = 1 << 63;
    /// Lowest bit of the source VPID.
    pub const VPID_SHIFT: u32 = 11;
    /// Lowest bit of the tag.
    pub const TAG_SHIFT: u32 = 19;
    /// Lowest bit of the number of quadwords.
    pub const QUADWORDS_SHIFT: u32 = 23;
    /// Bits of the number of quadwords, once shifted.
    const QUADWORDS_MASK: u64 = 0xf;

    /// Returns the header of a message of `quadwords` with a tag from VPID `vpid` of node `node`.
    #[inline]
    pub const fn encode(node: u32, vpid: u16, tag: u8, quadwords: usize) -> u64 {
        VALID
            | (node as u64 & NODE_MASK)
            | ((vpid as u64 & VPID_MASK) << VPID_SHIFT)
            | ((tag as u64 & TAG_MASK) << TAG_SHIFT)
            | ((quadwords as u64 & QUADWORDS_MASK) << QUADWORDS_SHIFT)
    }

    /// Returns the fields of a header, or `None` for an empty slot.
    #[inline]
    pub const fn decode(header: u64) -> Option<MessageFields> {
        if header & VALID == 0 {
            return None;
        }

        Some(MessageFields {
            node: (header & NODE_MASK) as u32,
            vpid: ((header >> VPID_SHIFT) & VPID_MASK) as u16,
            tag: ((header >> TAG_SHIFT) & TAG_MASK) as u8,
            quadwords: ((header >> QUADWORDS_SHIFT) & QUADWORDS_MASK) as usize,
        })
    }
}
