//! The header in front of each frame in client memory (5.1.6).

use crate::{
    checksum::PartialChecksum,
    registers::{FrameHeader, NEEDS_CHECKSUM, NO_SEGMENTATION, feature},
};

/// Reason why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHeader;

impl FrameHeader {
    /// Returns the partial checksum of a frame of `length` bytes to send, for a driver that
    /// accepted `features`.
    ///
    /// # Errors
    /// [`BadHeader`] if the header asks for segmentation, which the device does not offer, or the
    /// checksum lies outside the frame.
    pub(crate) fn partial_checksum(
        &self,
        features: u64,
        length: usize,
    ) -> Result<Option<PartialChecksum>, BadHeader> {
        if self.gso_type != NO_SEGMENTATION {
            return Err(BadHeader);
        }
        if self.flags & NEEDS_CHECKSUM == 0 || features & feature::CSUM == 0 {
            return Ok(None);
        }

        let partial = PartialChecksum {
            start: u16::from_le_bytes(self.checksum_start),
            offset: u16::from_le_bytes(self.checksum_offset),
        };

        if partial.fits(length) { Ok(Some(partial)) } else { Err(BadHeader) }
    }

    /// Returns the header of a received frame, whose checksum is complete unless it is `partial`.
    pub(crate) fn received(partial: Option<PartialChecksum>) -> Self {
        let without_partial = Self { buffers: 1_u16.to_le_bytes(), ..Self::default() };
        partial.map_or(without_partial, |partial| Self {
            flags: NEEDS_CHECKSUM,
            checksum_start: partial.start.to_le_bytes(),
            checksum_offset: partial.offset.to_le_bytes(),
            ..without_partial
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIAL: PartialChecksum = PartialChecksum { start: 34, offset: 16 };

    #[test]
    fn partial_checksum_survives_the_header_and_must_fit_the_frame() {
        let header = FrameHeader::received(Some(PARTIAL));

        assert_eq!(header.partial_checksum(feature::CSUM, 60), Ok(Some(PARTIAL)));
        assert_eq!(header.partial_checksum(feature::CSUM, 51), Err(BadHeader));
        assert_eq!(header.partial_checksum(0, 60), Ok(None));
        assert_eq!(FrameHeader::received(None).partial_checksum(feature::CSUM, 60), Ok(None));
    }

    #[test]
    fn a_frame_for_segmentation_is_refused() {
        let header = FrameHeader { gso_type: 1, ..FrameHeader::received(None) };

        assert_eq!(header.partial_checksum(feature::OFFERED, 60), Err(BadHeader));
    }
}
