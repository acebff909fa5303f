//! Messages of any length as VELO messages, whose lengths are multiples of 8 bytes.
//!
//! | VELO tag | message |
//! | --- | --- |
//! | 1 to 7 | the message with that tag, unchanged |
//! | 8 to 14 | the message with the tag less 8 (0 stands for 7), padded to a multiple of 8 |
//!
//! The last byte of a padded message is the number of padding bytes, 1 to 8. A message of full
//! length needs no padding, so every length up to [`MAX_MESSAGE`] fits.

use nicforge_velo::MAX_MESSAGE;

/// The highest tag of the matching layer; the lowest is 1.
pub(crate) const TAGS: u8 = 7;
/// Offset of the tag of a padded message.
const PADDED: u8 = 8;
/// The lengths of VELO messages are multiples of this, in bytes.
const QUADWORD: usize = 8;

/// A VELO message: its tag and its bytes.
pub(crate) struct Framed<'a> {
    pub(crate) tag: u8,
    pub(crate) bytes: &'a [u8],
}

/// Returns whether a message needs no padding.
#[inline]
pub(crate) fn needs_no_padding(tag: u8, message: &[u8]) -> bool {
    // One comparison checks both ends of a range: a value below it wraps to a large number.
    message.len().wrapping_sub(QUADWORD) <= MAX_MESSAGE - QUADWORD
        && message.len().is_multiple_of(QUADWORD)
        && tag.wrapping_sub(1) < TAGS
}

/// Pads a message of up to [`MAX_MESSAGE`] bytes with a tag of 1 to [`TAGS`]. Returns `None` when
/// the message needs no padding, or is invalid.
pub(crate) fn pad<'a>(tag: u8, message: &[u8], buffer: &'a mut [u8; MAX_MESSAGE]) -> Option<Framed<'a>> {
    let length = message.len();
    if length > MAX_MESSAGE || !(1..=TAGS).contains(&tag) || needs_no_padding(tag, message) {
        return None;
    }

    // The next multiple above the length, because there is one byte of padding at least.
    let padded = (length / QUADWORD + 1) * QUADWORD;
    buffer[..length].copy_from_slice(message);
    buffer[length..padded].fill(0);
    buffer[padded - 1] = (padded - length) as u8;
    Some(Framed { tag: PADDED + tag % TAGS, bytes: &buffer[..padded] })
}

/// Returns the tag and message of a VELO message; `None` for a message that no transport sends.
#[inline]
pub(crate) fn unframe(tag: u8, bytes: &[u8]) -> Option<(u8, &[u8])> {
    if (1..=TAGS).contains(&tag) {
        return Some((tag, bytes));
    }

    let padding = usize::from(*bytes.last()?);
    let tag = tag.checked_sub(PADDED).filter(|tag| *tag < TAGS)?;
    let length = bytes.len().checked_sub(padding).filter(|_| (1..=QUADWORD).contains(&padding))?;
    // `pad` stores the tag modulo `TAGS`, so that 0 stands for the highest tag.
    Some((if tag == 0 { TAGS } else { tag }, &bytes[..length]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_length_and_tag_survives_padding() {
        let data: Vec<u8> = (100..).take(MAX_MESSAGE).collect();
        for tag in 1..=TAGS {
            for length in 0..=MAX_MESSAGE {
                let mut buffer = [0xff; MAX_MESSAGE];
                let message = &data[..length];
                let framed = match needs_no_padding(tag, message) {
                    true => Framed { tag, bytes: message },
                    false => pad(tag, message, &mut buffer).unwrap(),
                };

                assert!(
                    framed.bytes.len().is_multiple_of(8) && (8..=MAX_MESSAGE).contains(&framed.bytes.len())
                );
                assert!((1..15).contains(&framed.tag));
                assert_eq!(unframe(framed.tag, framed.bytes), Some((tag, &data[..length])));
            }
        }

        let mut buffer = [0; MAX_MESSAGE];
        for (tag, length) in [(0, 0), (0, 8), (TAGS + 1, 8), (1, MAX_MESSAGE + 1), (1, MAX_MESSAGE + 8)] {
            assert!(!needs_no_padding(tag, &[0; 100][..length]), "{tag}, {length}");
            assert!(pad(tag, &[0; 100][..length], &mut buffer).is_none(), "{tag}, {length}");
        }
    }

    #[test]
    fn invalid_frames_are_refused() {
        // Tags that no message has.
        assert_eq!(unframe(0, &[1; 8]), None);
        assert_eq!(unframe(PADDED + TAGS, &[1; 8]), None);

        // Padded messages whose last byte is not a number of padding bytes, or is missing.
        assert_eq!(unframe(PADDED + 1, &[0; 8]), None);
        assert_eq!(unframe(PADDED + 1, &[9; 8]), None);
        assert_eq!(unframe(PADDED + 1, &[9; 16]), None);
        assert_eq!(unframe(PADDED + 1, &[]), None);
    }
}
