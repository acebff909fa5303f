//! Packets of the network, and their route word.
//!
//! A message is a header packet and, if it has more than [`INLINE`] bytes, packets of data. All
//! packets of a message take the same path, so they stay in order, and the packets of one source
//! never mix with each other. Only the header packet thus names the incarnations of both ends; the
//! packets after it belong to it.
//!
//! | bits of the route word | contents |
//! | --- | --- |
//! | 0 to 23 | target |
//! | 24, 25 | class: 0 for data, 1 for control messages |
//! | 26, 27 | kind of packet |
//! | 28 to 45 | header packet: lowest bits of the source's incarnation |
//! | 46 to 63 | header packet: lowest bits of the target's incarnation |
//! | 28 to 51 | other packets: source |
//! | 52 | last packet of a message |
//! | 53 | last packet: the sender could not read all of its memory |
//!
//! An incarnation of 0 stands for a node without an incarnation.
//!
//! [`INLINE`]: nicforge_hwi::seastar::INLINE

use nicforge_network::router::policies::TableWord;

/// Number of virtual channels of a link: a pair for each class, so that packets can change from one
/// to the other at a ring's dateline.
pub(crate) const CHANNELS: usize = 4;
/// First virtual channel of each class. Only classes 0 and 1 are used.
pub(crate) const FIRST_VCS: [u8; 4] = [0, 2, 0, 0];

/// Class of data packets.
pub(crate) const DATA: u8 = 0;
/// Class of control packets.
pub(crate) const CONTROL: u8 = 1;

/// Bytes of the end-to-end check at the end of a message.
pub(crate) const CHECK: usize = 4;

/// Position of the kind of packet.
const KIND: u32 = 26;
// Kinds of packets.
const HEADER: u64 = 0;
const BODY: u64 = 1;
const SHUTDOWN_NOTICE: u64 = 2;

/// Number of bits of an incarnation in the route word of a header packet.
const INCARNATION_BITS: u32 = 18;
const INCARNATION_MASK: u32 = (1 << INCARNATION_BITS) - 1;
/// Positions of the incarnations in the route word of a header packet.
const SOURCE_INCARNATION: u32 = 28;
const TARGET_INCARNATION: u32 = SOURCE_INCARNATION + INCARNATION_BITS;

/// Position of the source in the route word of a packet of data, and the flags after it.
const SOURCE: u32 = 28;
const SOURCE_MASK: u64 = 0xff_ffff;
const LAST: u64 = 1 << 52;
const CORRUPT: u64 = 1 << 53;

/// A packet, as its route word describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first packet of a message.
    Header(HeaderWord),
    /// Data of a message.
    Body(BodyWord),
    /// An incarnation of the sender has ended. The packet only wakes its target, whose device then
    /// sees the change in the network's table of incarnations.
    ShutdownNotice,
}

/// The fields of the route word of a header packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderWord {
    /// The message is a control message.
    pub(crate) is_control: bool,
    /// The sender's incarnation.
    pub(crate) source_incarnation: ShortIncarnation,
    /// The target's incarnation for which the message is meant.
    pub(crate) target_incarnation: ShortIncarnation,
}

/// The fields of the route word of a packet of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyWord {
    /// The sender's node.
    pub(crate) source: u32,
    /// The packet is the last one of its message.
    pub(crate) is_last: bool,
    /// The packet is the last one, and the sender could not read all of its memory.
    pub(crate) is_corrupt: bool,
}

/// The lowest bits of the number of an incarnation; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortIncarnation(u32);

impl ShortIncarnation {
    /// Returns the lowest bits of an incarnation.
    #[inline]
    pub(crate) fn of(incarnation: u32) -> Self {
        Self(incarnation & INCARNATION_MASK)
    }
}

/// Returns the route word of a header packet.
#[inline]
pub(crate) fn header(target: u32, class: u8, source_incarnation: u32, target_incarnation: u32) -> u64 {
    let source_incarnation = ShortIncarnation::of(source_incarnation).0;
    let target_incarnation = ShortIncarnation::of(target_incarnation).0;
    TableWord::new(target, class).0
        | HEADER << KIND
        | u64::from(source_incarnation) << SOURCE_INCARNATION
        | u64::from(target_incarnation) << TARGET_INCARNATION
}

/// Returns the route word of a packet of data that is not the last one.
#[inline]
pub(crate) fn body(target: u32, source: u32) -> u64 {
    TableWord::new(target, DATA).0 | BODY << KIND | u64::from(source) << SOURCE
}

/// Returns the route word of the last packet of data.
#[inline]
pub(crate) fn last_body(target: u32, source: u32, is_corrupt: bool) -> u64 {
    body(target, source) | LAST | if is_corrupt { CORRUPT } else { 0 }
}

/// Returns the route word of the packet that says that an incarnation has ended.
pub(crate) fn shutdown_notice(target: u32) -> u64 {
    TableWord::new(target, CONTROL).0 | SHUTDOWN_NOTICE << KIND
}

/// Decodes a route word. Returns `None` for a word that no SeaStar sends.
#[inline]
pub(crate) fn decode(word: u64) -> Option<Kind> {
    let incarnation = |shift: u32| ShortIncarnation::of((word >> shift) as u32);
    match word >> KIND & 0b11 {
        HEADER => Some(Kind::Header(HeaderWord {
            is_control: TableWord(word).class() == CONTROL,
            source_incarnation: incarnation(SOURCE_INCARNATION),
            target_incarnation: incarnation(TARGET_INCARNATION),
        })),
        BODY => Some(Kind::Body(BodyWord {
            source: (word >> SOURCE & SOURCE_MASK) as u32,
            is_last: word & LAST != 0,
            is_corrupt: word & CORRUPT != 0,
        })),
        SHUTDOWN_NOTICE => Some(Kind::ShutdownNotice),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_words_are_decoded_as_they_were_encoded() {
        let word = header(15_999, CONTROL, 0x2_ffff, 7);
        assert_eq!((TableWord(word).target(), TableWord(word).class()), (15_999, CONTROL));
        let kind = Kind::Header(HeaderWord {
            is_control: true,
            source_incarnation: ShortIncarnation::of(0x2_ffff),
            target_incarnation: ShortIncarnation::of(7),
        });
        assert_eq!(decode(word), Some(kind));

        let kind = |is_last, is_corrupt| Some(Kind::Body(BodyWord { source: 15_998, is_last, is_corrupt }));
        assert_eq!(decode(body(1, 15_998)), kind(false, false));
        assert_eq!(decode(last_body(1, 15_998, false)), kind(true, false));
        assert_eq!(decode(last_body(1, 15_998, true)), kind(true, true));
        assert_eq!(decode(shutdown_notice(3)), Some(Kind::ShutdownNotice));
    }

    #[test]
    fn word_without_meaning_is_refused() {
        assert_eq!(decode(3 << KIND), None);
    }
}
