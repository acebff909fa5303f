//! Checksums that a sender left to its device.
//!
//! The sender has put the sum of the pseudo-header into the checksum field, and names the first
//! byte to sum and the place of the field. TCP and UDP have such checksums (RFC 1071).

/// Bytes of a checksum field.
const FIELD_BYTES: usize = 2;

/// The place of a partial checksum: its field holds only the sum of the pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialChecksum {
    /// Offset in the frame of the first byte to sum.
    pub(crate) start: u16,
    /// Offset of the field after `start`.
    pub(crate) offset: u16,
}

/// Bit of a packet's header word: it has a partial checksum, with `start` in bits 16 to 31 and
/// `offset` in bits 0 to 15.
const PRESENT: u64 = 1 << 32;

impl PartialChecksum {
    /// Returns the offset of the field in the frame.
    fn field_offset(self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }

    /// Returns whether the field lies in a frame of `length` bytes.
    pub(crate) fn fits(self, length: usize) -> bool {
        self.field_offset() + FIELD_BYTES <= length
    }

    /// Returns the header word of a packet with this partial checksum, or with none.
    pub(crate) fn to_word(partial: Option<Self>) -> u64 {
        partial.map_or(0, |partial| PRESENT | u64::from(partial.start) << 16 | u64::from(partial.offset))
    }

    /// Returns the partial checksum of a frame of `length` bytes in a packet with this header word.
    /// A checksum outside the frame counts as none.
    pub(crate) fn from_word(word: u64, length: usize) -> Option<Self> {
        let partial = Self { start: (word >> 16) as u16, offset: word as u16 };
        (word & PRESENT != 0 && partial.fits(length)).then_some(partial)
    }

    /// Completes the checksum of a frame. The field holds a part of the sum and is summed, too. A
    /// frame that does not hold the field stays as it is.
    pub(crate) fn complete(self, frame: &mut [u8]) {
        let field = self.field_offset();
        let Some(summed) = frame.get(usize::from(self.start)..).filter(|_| self.fits(frame.len())) else {
            return;
        };

        // A sum of 0 is written as ones: a UDP checksum of 0 means that there is none.
        let checksum = match !sum(summed) {
            0 => u16::MAX,
            checksum => checksum,
        };
        frame[field..field + FIELD_BYTES].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns the ones' complement sum of the bytes' big-endian 16-bit words.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    let mut sum = words.map(|word| u64::from(word[0]) << 8 | u64::from(word[1])).sum::<u64>() + last;

    // Carries are added to the lower 16 bits.
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }

    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_has_its_sum() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[0xab]), 0xab00);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn a_sum_of_zero_is_written_as_ones() {
        let mut frame = [0xff, 0xff, 0, 0];
        PartialChecksum { start: 0, offset: 2 }.complete(&mut frame);

        assert_eq!(frame, [0xff; 4]);
    }

    proptest! {
        #[test]
        fn a_completed_frame_sums_to_ones(
            mut frame in prop::collection::vec(any::<u8>(), 2..300),
            start: prop::sample::Index,
            offset: prop::sample::Index,
        ) {
            let start = start.index(frame.len() - 1);
            // The field is at an even distance, as in every protocol that has one.
            let offset = offset.index(frame.len() - start - 1) & !1;
            let partial = PartialChecksum { start: start as u16, offset: offset as u16 };
            let original = frame.clone();

            // The field holds the sum of a pseudo-header, which is part of what is summed.
            let field = start + offset;
            let pseudo_header = u16::from_be_bytes([frame[field], frame[field + 1]]);
            partial.complete(&mut frame);

            let mut whole = frame[start..].to_vec();
            whole.resize(whole.len().next_multiple_of(2), 0);
            whole.extend(pseudo_header.to_be_bytes());
            prop_assert_eq!(sum(&whole), u16::MAX);
            frame[field..field + 2].copy_from_slice(&original[field..field + 2]);
            prop_assert_eq!(frame, original);
        }

        #[test]
        fn a_word_carries_a_checksum_that_fits(start: u16, offset: u16, length in 0..70_000usize) {
            let partial = PartialChecksum { start, offset };
            let carried = PartialChecksum::from_word(PartialChecksum::to_word(Some(partial)), length);

            prop_assert_eq!(carried, partial.fits(length).then_some(partial));
            prop_assert_eq!(PartialChecksum::from_word(PartialChecksum::to_word(None), length), None);
        }
    }
}
