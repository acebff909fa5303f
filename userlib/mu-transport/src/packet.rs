//! The software bytes of memory-FIFO packets: sender, tag and length of a message.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 | dispatch id, [`DISPATCH`] |
//! | 1 to 3 | rank of the sender |
//! | 4 | tag of the matching layer |
//! | 5, 6 | length of the message in bytes |
//! | 7 to 10 | number of the sender's connection to the receiver |
//! | 11 to 13 | zeros |
//!
//! Numbers are little-endian.

use nicforge_matching::Rank;
use nicforge_spi::SOFTWARE_BYTES;

/// The dispatch id of messages.
pub(crate) const DISPATCH: u8 = 1;
/// Ranks are below this.
pub(crate) const MAX_RANKS: u32 = 1 << 24;

/// The description of a message that its packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The sender.
    pub(crate) rank: Rank,
    /// Tag of the matching layer.
    pub(crate) tag: u8,
    /// Bytes of the message.
    pub(crate) length: u16,
    /// Number of the connection from the sender's process to the receiver's.
    pub(crate) connection: u32,
}

impl Header {
    /// Returns the software bytes after the dispatch id.
    #[inline]
    pub(crate) fn to_software(self) -> [u8; SOFTWARE_BYTES - 1] {
        let [r0, r1, r2, _] = self.rank.to_le_bytes();
        let [l0, l1] = self.length.to_le_bytes();
        let [c0, c1, c2, c3] = self.connection.to_le_bytes();
        [r0, r1, r2, self.tag, l0, l1, c0, c1, c2, c3, 0, 0, 0]
    }

    /// Returns the header in the software bytes of a packet; `None` if no transport has sent it.
    #[inline]
    pub(crate) fn from_software(bytes: &[u8; SOFTWARE_BYTES]) -> Option<Self> {
        let [dispatch, r0, r1, r2, tag, l0, l1, c0, c1, c2, c3, 0, 0, 0] = *bytes else { return None };
        (dispatch == DISPATCH).then_some(Self {
            rank: Rank::from_le_bytes([r0, r1, r2, 0]),
            tag,
            length: u16::from_le_bytes([l0, l1]),
            connection: u32::from_le_bytes([c0, c1, c2, c3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_software_bytes_and_others_are_refused() {
        let header = Header { rank: 0xab_cdef, tag: 7, length: 512, connection: 0x1234_5678 };
        let mut bytes = [DISPATCH; SOFTWARE_BYTES];
        bytes[1..].copy_from_slice(&header.to_software());
        assert_eq!(Header::from_software(&bytes), Some(header));

        assert_eq!(Header::from_software(&[0; SOFTWARE_BYTES]), None);
        bytes[13] = 1;
        assert_eq!(Header::from_software(&bytes), None);
    }
}
