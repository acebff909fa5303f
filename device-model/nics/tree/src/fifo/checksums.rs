//! The injection checksums of a channel, and its configuration register.

use nicforge_hwi::{
    tree::Header,
    tree_dcr::{checksum, vcfg},
};

use super::QUAD;

/// Mask of a watermark in the configuration register.
const WATERMARK_MASK: u32 = 7;
/// Fractions of a FIFO's depth in which a watermark counts.
const WATERMARK_STEPS: u32 = 8;
/// Number of 16-bit words that checksum mode 1 omits: the first quad.
const WORDS_OF_QUAD: usize = QUAD / 2;

/// A channel's configuration register: watermarks, and the payload that checksums omit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelConfig(u32);

impl ChannelConfig {
    /// Returns the register after a write of `value`.
    pub(crate) fn written(value: u32) -> Self {
        Self(value & vcfg::WRITABLE)
    }

    /// Returns the content of the register.
    pub(crate) fn value(self) -> u32 {
        self.0
    }

    /// Returns the receive watermark in packets, for a FIFO of `depth` packets.
    #[inline]
    pub(super) fn receive_watermark(self, depth: u32) -> u32 {
        ((self.0 >> vcfg::RWM_SHIFT) & WATERMARK_MASK) * depth / WATERMARK_STEPS
    }

    /// Returns the send watermark in packets, for a FIFO of `depth` packets.
    #[inline]
    pub(super) fn send_watermark(self, depth: u32) -> u32 {
        ((self.0 >> vcfg::IWM_SHIFT) & WATERMARK_MASK) * depth / WATERMARK_STEPS
    }

    /// Returns the number of 16-bit words at the start of the payload that checksum mode 2 omits.
    fn omitted_words(self) -> usize {
        ((self.0 >> vcfg::CSUMX_SHIFT) & 0xff) as usize
    }
}

/// The checksums of the packets that left a send FIFO, by [`checksum`]'s modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums {
    pub(crate) payload: u32,
    pub(crate) header: u32,
}

impl Checksums {
    /// Adds a packet, according to the checksum mode in its header.
    pub(super) fn add(&mut self, config: ChannelConfig, header: Header, payload: &[u8]) {
        let omitted = match header.checksum_mode() {
            checksum::NONE => return,
            checksum::SOME => WORDS_OF_QUAD,
            checksum::CFG => config.omitted_words(),
            _ => 0,
        };

        self.header = self.header.wrapping_add(header.0);
        for word in payload.as_chunks::<2>().0.iter().skip(omitted) {
            self.payload = self.payload.wrapping_add(u16::from_be_bytes(*word).into());
        }
    }
}
