//! How a message is cut into ends and body (paper, figure 5).
//!
//! The body is the middle of the message. It begins at an aligned address, has a multiple of 16
//! bytes, and is sent in place. The head before it and the tail behind it are the *ends*, less than
//! 16 bytes each. They are copied and sent together.

use std::ops::Range;

use nicforge_hwi::torus::{MAX_PAYLOAD, QUAD};

use super::wire::ANNOUNCEMENT;

/// The cut of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carving {
    /// Bytes of the message.
    length: usize,
    /// Bytes of the head, 0 to 15.
    head: usize,
}

impl Carving {
    /// Returns the cut of a message with a head of `head` bytes, at most its length.
    pub(super) fn new(length: usize, head: usize) -> Self {
        Self { length, head: head.min(QUAD - 1).min(length) }
    }

    /// Returns the number of bytes of the message.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of bytes of the head.
    pub(super) fn head(&self) -> usize {
        self.head
    }

    /// Returns the number of bytes of the body, a multiple of 16.
    pub(super) fn body(&self) -> usize {
        (self.length - self.head) / QUAD * QUAD
    }

    /// Returns the head's place in the message.
    pub(super) fn head_range(&self) -> Range<usize> {
        0..self.head
    }

    /// Returns the tail's place in the message.
    pub(super) fn tail_range(&self) -> Range<usize> {
        self.head + self.body()..self.length
    }

    /// Returns the number of bytes of the ends.
    pub(super) fn ends(&self) -> usize {
        self.length - self.body()
    }

    /// Returns the number of bytes that a `Lead` has before the body: the announcement and the
    /// ends, which are padded to quads.
    pub(super) fn lead_prefix(&self) -> usize {
        ANNOUNCEMENT + self.ends().next_multiple_of(QUAD)
    }

    /// Returns the place in the message of the part of the body in a packet. The packet has
    /// `prefix` bytes before it, and the part begins `quads` quads into the body. The part is empty
    /// at the body's end and beyond it.
    pub(super) fn part(&self, quads: u32, prefix: usize) -> Range<usize> {
        let body = self.body();
        let start = (quads as usize * QUAD).min(body);
        let len = (body - start).min(MAX_PAYLOAD - prefix);
        self.head + start..self.head + start + len
    }

    /// Returns the number of quads of the body up to the end of a part of it.
    pub(super) fn quads_until(&self, part: &Range<usize>) -> u32 {
        ((part.end - self.head) / QUAD) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn head_body_and_tail_are_the_message(length in 0usize..2000, head in 0usize..16) {
            let carving = Carving::new(length, head);
            let (head, tail) = (carving.head_range(), carving.tail_range());
            prop_assert_eq!(head.len() + carving.body() + tail.len(), length);
            prop_assert_eq!(carving.ends(), head.len() + tail.len());
            prop_assert!(tail.len() < QUAD && tail.end == length && carving.lead_prefix() <= 64);
        }

        #[test]
        fn parts_cover_the_body_once(length in 0usize..5000, head in 0usize..16, lead: bool) {
            let carving = Carving::new(length, head);
            let (mut at, mut quads, mut prefix) = (carving.head(), 0, if lead { carving.lead_prefix() } else { 0 });
            loop {
                let part = carving.part(quads, prefix);
                if part.is_empty() { break }
                prop_assert!(part.start == at && part.len() + prefix <= MAX_PAYLOAD);
                (at, quads, prefix) = (part.end, carving.quads_until(&part), 0);
            }
            prop_assert_eq!(at, carving.head() + carving.body());
        }
    }

    #[test]
    fn part_beyond_the_body_is_empty() {
        assert!(Carving::new(100, 4).part(u32::MAX, 0).is_empty());
    }
}
