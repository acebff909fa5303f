//! Rows of a mailbox: the state of one rank for another.

/// Bytes of a row.
pub(crate) const ROW_BYTES: usize = 8 * ROW_WORDS;
/// Words of a row, its checksum included.
const ROW_WORDS: usize = 5;
/// Bytes from one row of a mailbox to the next.
pub(crate) const ROW_STRIDE: u64 = 64;
/// Bit of the fourth word: the rank closes its transport.
const LEAVING: u64 = 1 << 32;

/// A rank's state for another rank, as it puts it to the other one's mailbox. The row has five
/// little-endian words: the first three fields, the grant with the bit [`LEAVING`], and a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Number of the rank's session; not 0.
    pub(crate) session: u64,
    /// Address of the session number in the rank's memory.
    pub(crate) session_address: u64,
    /// The session of the other rank, as the rank knows it; or 0.
    pub(crate) echoed_session: u64,
    /// Total number of packets that the other rank may have sent since the beginning, modulo 2^32.
    pub(crate) grant: u32,
    /// Whether the rank closes its transport.
    pub(crate) is_leaving: bool,
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn spread(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns the number of the connection from a rank to another: a hash of their sessions.
pub(crate) fn connection(from: u64, to: u64) -> u32 {
    spread(spread(from) ^ to) as u32
}

impl Row {
    /// Returns the words without the checksum.
    fn words(&self) -> [u64; ROW_WORDS - 1] {
        let last = u64::from(self.grant) | if self.is_leaving { LEAVING } else { 0 };
        [self.session, self.session_address, self.echoed_session, last]
    }

    /// Returns the bytes of the row.
    pub(crate) fn to_bytes(self) -> [u8; ROW_BYTES] {
        let words = self.words();
        let mut bytes = [0; ROW_BYTES];
        for (out, word) in bytes.chunks_exact_mut(8).zip(words.into_iter().chain([checksum(&words)])) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the row of these bytes. Returns `None` when there is none, or only a part of it has
    /// been written.
    pub(crate) fn from_bytes(bytes: &[u8; ROW_BYTES]) -> Option<Self> {
        let mut words = [0; ROW_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }

        let [session, session_address, echoed_session, last, sum] = words;
        if session == 0 || sum != checksum(&[session, session_address, echoed_session, last]) {
            return None;
        }
        Some(Self {
            session,
            session_address,
            echoed_session,
            grant: last as u32,
            is_leaving: last & LEAVING != 0,
        })
    }
}

/// Returns the checksum of a row's other words.
fn checksum(words: &[u64; ROW_WORDS - 1]) -> u64 {
    // The start value, the golden ratio, keeps zeros from having the checksum 0.
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| spread(sum ^ word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_survives_its_bytes_and_a_part_of_one_does_not() {
        let old =
            Row { session: 5, session_address: 0x1000, echoed_session: 0, grant: 64, is_leaving: false };
        let new = Row { echoed_session: 9, grant: 96, is_leaving: true, ..old };
        assert_eq!(Row::from_bytes(&new.to_bytes()), Some(new));
        assert_eq!(Row::from_bytes(&[0; ROW_BYTES]), None);

        for cut in (8..ROW_BYTES).step_by(8) {
            let mut mixed = old.to_bytes();
            mixed[..cut].copy_from_slice(&new.to_bytes()[..cut]);
            let read = Row::from_bytes(&mixed);
            assert!(read.is_none_or(|row| row == old), "{cut} bytes: {read:?}");
        }
    }

    #[test]
    fn connections_differ_by_direction_and_session() {
        assert_ne!(connection(1, 2), connection(2, 1));
        assert_ne!(connection(1, 2), connection(1, 3));
    }
}
