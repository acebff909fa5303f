//! Match bits of messages.
//!
//! | bits | content |
//! | --- | --- |
//! | 63 to 62 | the protocol |
//! | 61 to 48 | the context |
//! | 47 to 32 | the rank of the source |
//! | 31 to 8 | the tag |
//! | 7 to 0 | the number of the send in its peer's window |
//!
//! A posted receive compares context, source and tag. The memory of unexpected messages compares
//! the protocol alone. The number comes back in Portals' acknowledgement, which has no other part
//! that names one of several messages from the same descriptor.

use nicforge_matching::{Envelope, Rank, Selector};
use nicforge_portals::Criteria;

/// Number of bits of a send's number in the window of its receiver.
pub(crate) const NUMBER_BITS: u32 = 8;
/// Number of bits of a tag.
pub const TAG_BITS: u32 = 24;
/// Number of bits of a rank.
const RANK_BITS: u32 = 16;
/// Number of bits of a context.
pub const CONTEXT_BITS: u32 = 14;

const TAG_SHIFT: u32 = NUMBER_BITS;
const RANK_SHIFT: u32 = TAG_SHIFT + TAG_BITS;
const CONTEXT_SHIFT: u32 = RANK_SHIFT + RANK_BITS;
const PROTOCOL_SHIFT: u32 = CONTEXT_SHIFT + CONTEXT_BITS;

/// The bits that name the protocol.
const PROTOCOL: u64 = u64::MAX << PROTOCOL_SHIFT;

/// The handling of a message that arrives before its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Its data go into memory for unexpected messages. Used for short and medium messages.
    Eager = 1,
    /// Its data are dropped, and fetched later. Used for long messages.
    Long = 2,
}

/// Returns a mask of the lowest bits.
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Returns whether the match bits have room for a tag.
pub(crate) fn is_tag(tag: u64) -> bool {
    tag <= mask(TAG_BITS)
}

/// Returns whether the match bits have room for a context.
pub(crate) fn is_context(context: u32) -> bool {
    u64::from(context) <= mask(CONTEXT_BITS)
}

/// Returns the match bits of a message from rank `source`. `number` is its number in the window of
/// messages to its receiver.
pub(crate) fn of_message(protocol: Protocol, source: Rank, to: Envelope, number: u8) -> u64 {
    (protocol as u64) << PROTOCOL_SHIFT
        | u64::from(to.context) << CONTEXT_SHIFT
        | u64::from(source) << RANK_SHIFT
        | to.tag << TAG_SHIFT
        | u64::from(number)
}

/// Returns the source, the context and the tag in match bits.
pub(crate) fn envelope(bits: u64) -> Envelope {
    let field = |shift: u32, count: u32| bits >> shift & mask(count);
    Envelope {
        peer: field(RANK_SHIFT, RANK_BITS) as Rank,
        context: field(CONTEXT_SHIFT, CONTEXT_BITS) as u32,
        tag: field(TAG_SHIFT, TAG_BITS),
    }
}

/// Returns the number of the send in match bits.
pub(crate) fn number(bits: u64) -> u8 {
    bits as u8
}

/// Returns the criteria of a receive, for any initiator.
pub(crate) fn of_selector(selector: &Selector) -> Criteria {
    let source = selector.source.unwrap_or(0);
    let any_source = if selector.source.is_none() { mask(RANK_BITS) << RANK_SHIFT } else { 0 };
    let ignored_tag = (selector.ignore & mask(TAG_BITS)) << TAG_SHIFT;
    let to = Envelope { peer: 0, context: selector.context, tag: selector.tag & mask(TAG_BITS) };

    Criteria {
        match_bits: of_message(Protocol::Eager, source, to, 0),
        ignore_bits: PROTOCOL | any_source | ignored_tag | mask(NUMBER_BITS),
        ..Criteria::bits(0)
    }
}

/// Returns the criteria of all messages of a protocol.
pub(crate) fn of_protocol(protocol: Protocol) -> Criteria {
    Criteria { ignore_bits: !PROTOCOL, ..Criteria::bits((protocol as u64) << PROTOCOL_SHIFT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(criteria: &Criteria, bits: u64) -> bool {
        (criteria.match_bits ^ bits) & !criteria.ignore_bits == 0
    }

    #[test]
    fn match_bits_hold_the_largest_values() {
        let to = Envelope::new(7, mask(CONTEXT_BITS) as u32, mask(TAG_BITS));
        let bits = of_message(Protocol::Long, 0xffff, to, 255);

        assert_eq!(envelope(bits), Envelope { peer: 0xffff, ..to });
        assert_eq!(number(bits), 255);
        assert!(!is_tag(to.tag + 1) && !is_context(to.context + 1));
        assert!(is_tag(to.tag) && is_context(to.context));
    }

    #[test]
    fn criteria_accept_the_messages_that_the_selector_accepts() {
        let selectors = [
            Selector::exact(3, 5, 9),
            Selector::any_source(5, 9),
            Selector::any_tag(3, 5),
            Selector::any(5),
            Selector::exact(3, 5, 0b1001).ignoring(0b1000),
        ];

        for selector in selectors {
            let criteria = of_selector(&selector);
            for (peer, context, tag) in [(3, 5, 9), (4, 5, 9), (3, 6, 9), (3, 5, 8), (3, 5, 1), (4, 5, 1)] {
                for (protocol, number) in [(Protocol::Eager, 0), (Protocol::Long, 200)] {
                    let envelope = Envelope::new(peer, context, tag);
                    let bits = of_message(protocol, peer, envelope, number);
                    assert_eq!(
                        takes(&criteria, bits),
                        selector.matches(&envelope),
                        "{selector:?} {envelope:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn memory_takes_the_messages_of_its_protocol() {
        let of = |protocol| of_message(protocol, 1, Envelope::new(2, 3, 4), 5);

        assert!(takes(&of_protocol(Protocol::Eager), of(Protocol::Eager)));
        assert!(!takes(&of_protocol(Protocol::Eager), of(Protocol::Long)));
        assert!(!takes(&of_protocol(Protocol::Long), of(Protocol::Eager)));
    }
}
