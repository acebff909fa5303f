//! Packets of the torus of Blue Gene/L.
//!
//! Fields and their names are those of the public header `BGL_TorusPktSPI.h` (BlueMatter).
//! [`crate::torus`] has the FIFOs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32 as Le32};

use crate::torus::{CHUNK, DIMENSIONS, HEADER, MAX_PAYLOAD};

/// Virtual channels of a packet: `_BGL_TORUS_PKT_VC_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// First channel of packets that choose their way by load.
    Dynamic0 = 0,
    /// Second channel of these packets.
    Dynamic1 = 1,
    /// Packets in dimension order, with the bubble rule; the escape of dynamic packets.
    BubbleNormal = 2,
    /// Packets of high priority, in dimension order, with the bubble rule.
    BubblePriority = 3,
}

/// Number of virtual channels of a link.
pub const CHANNELS: usize = 4;

/// Hint bits of a packet: the links that it may use. `_BGL_TORUS_PKT_HINT_*`.
pub mod hint {
    /// X+. The bits of X-, Y+, Y-, Z+ and Z- follow below.
    pub const XP: u8 = 0x20;
    /// All hint bits.
    pub const ALL: u8 = 0x3f;

    /// Returns the bit of the link at a port, 0 to 5.
    pub const fn of_port(port: u8) -> u8 {
        XP >> port
    }
}

/// The header of a packet: `T_BGL_TorusPktHdr`. The first two words are the hardware's; software
/// uses the last two as it likes.
///
/// | word | bits | field |
/// | --- | --- | --- |
/// | 0 | 31..25 | `CSum_Skip`: shorts at the start that the injection checksum leaves out |
/// | 0 | 24 | `Sk`: the checksum leaves out the packet |
/// | 0 | 23..18 | `Hint`: [`hint`] |
/// | 0 | 17 | `Dp`: each node on the line to the destination gets a copy |
/// | 0 | 16 | `Pid`: FIFO group of the destination |
/// | 0 | 15..13 | `Chunks`: chunks of the packet less one |
/// | 0 | 12..11 | `SW_Avail`: for software |
/// | 0 | 10 | `Dynamic`: the packet chooses its way by load |
/// | 0 | 9..8 | `VC`: [`Channel`] |
/// | 0 | 7..0 | `X` of the destination |
/// | 1 | 31..24, 23..16 | `Y` and `Z` of the destination |
/// | 1 | 15..0 | [life](crate::torus::presence) of the receiver; 0: any. A CRC on the chip |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PacketHeader {
    /// First word of the hardware: `hwh0`.
    pub hardware0: Le32,
    /// Second word of the hardware: `hwh1`.
    pub hardware1: Le32,
    /// Words of the software: `swh0`, `swh1`.
    pub software: [Le32; 2],
}

/// Bit of the first word: `Sk`.
const SKIP_CHECKSUM: u32 = 1 << 24;
/// Lowest bit of `CSum_Skip`.
const CHECKSUM_SKIP_SHIFT: u32 = 25;
/// Lowest bit of `Hint`.
const HINT_SHIFT: u32 = 18;
/// Bit of the first word: `Dp`.
const DEPOSIT: u32 = 1 << 17;
/// Lowest bit of `Pid`.
const GROUP_SHIFT: u32 = 16;
/// Lowest bit of `Chunks`.
const CHUNKS_SHIFT: u32 = 13;
/// Lowest bit of `SW_Avail`.
const SOFTWARE_SHIFT: u32 = 11;
/// Bit of the first word: `Dynamic`.
const DYNAMIC: u32 = 1 << 10;
/// Lowest bit of `VC`.
const CHANNEL_SHIFT: u32 = 8;
/// Lowest bits of the destination's Y and Z in the second word.
const YZ_SHIFTS: [u32; 2] = [24, 16];

impl PacketHeader {
    /// Returns the header of a dynamic packet for a core of the node at these coordinates. It has
    /// one chunk and no hint bits.
    pub fn to([x, y, z]: [u8; DIMENSIONS], core: u16) -> Self {
        let group = u32::from(core & 1) << GROUP_SHIFT;
        let [y_shift, z_shift] = YZ_SHIFTS;
        Self {
            hardware0: Le32::new(group | DYNAMIC | u32::from(x)),
            hardware1: Le32::new(u32::from(y) << y_shift | u32::from(z) << z_shift),
            software: [Le32::ZERO; 2],
        }
    }

    /// Returns the header with bits of the first word set to a field's value.
    const fn with_field(self, mask: u32, shift: u32, value: u32) -> Self {
        let word = self.hardware0.get() & !(mask << shift) | (value & mask) << shift;
        Self { hardware0: Le32::new(word), ..self }
    }

    /// Returns the header of a packet in dimension order, whose packets stay in order.
    #[must_use]
    pub const fn deterministic(self) -> Self {
        self.with_field(1, DYNAMIC.trailing_zeros(), 0).with_channel(Channel::BubbleNormal)
    }

    /// Returns the header of a packet of high priority, which is in dimension order.
    #[must_use]
    pub const fn high_priority(self) -> Self {
        self.with_field(1, DYNAMIC.trailing_zeros(), 0).with_channel(Channel::BubblePriority)
    }

    /// Returns the header of a packet of which each node on the line to the destination gets a
    /// copy. It is in dimension order.
    #[must_use]
    pub const fn deposit(self) -> Self {
        self.deterministic().with_field(1, DEPOSIT.trailing_zeros(), 1)
    }

    /// Returns the header with a virtual channel. The dynamic bit stays.
    #[must_use]
    pub const fn with_channel(self, channel: Channel) -> Self {
        self.with_field(0b11, CHANNEL_SHIFT, channel as u32)
    }

    /// Returns the header with these hint bits.
    #[must_use]
    pub const fn with_hints(self, hints: u8) -> Self {
        self.with_field(hint::ALL as u32, HINT_SHIFT, hints as u32)
    }

    /// Returns the header of a packet with `payload` bytes of payload, which are rounded up to
    /// whole chunks. More than [`MAX_PAYLOAD`] bytes count as so many.
    #[must_use]
    pub const fn with_payload(self, payload: usize) -> Self {
        let bytes = HEADER + if payload < MAX_PAYLOAD { payload } else { MAX_PAYLOAD };
        self.with_field(0b111, CHUNKS_SHIFT, bytes.div_ceil(CHUNK) as u32 - 1)
    }

    /// Returns the header with the two bits that are free for software.
    #[must_use]
    pub const fn with_software_bits(self, bits: u8) -> Self {
        self.with_field(0b11, SOFTWARE_SHIFT, bits as u32)
    }

    /// Returns the header with the checksum's rule: the shorts at the start to leave out, or `None`
    /// to leave out the packet.
    #[must_use]
    pub const fn with_checksum(self, skip: Option<u8>) -> Self {
        match skip {
            Some(shorts) => self.with_field(1, SKIP_CHECKSUM.trailing_zeros(), 0).with_field(
                0x7f,
                CHECKSUM_SKIP_SHIFT,
                shorts as u32,
            ),
            None => self.with_field(1, SKIP_CHECKSUM.trailing_zeros(), 1),
        }
    }

    /// Returns the header of a packet that is only for this life of the destination's core. The
    /// card of the destination drops it in any other. 0 stands for any life.
    #[must_use]
    pub const fn for_life(self, life: u16) -> Self {
        Self { hardware1: Le32::new(self.hardware1.get() & !0xffff | life as u32), ..self }
    }

    /// Returns the destination's coordinates.
    #[inline]
    pub const fn destination(self) -> [u8; DIMENSIONS] {
        let [y_shift, z_shift] = YZ_SHIFTS;
        let yz = self.hardware1.get();
        [self.hardware0.get() as u8, (yz >> y_shift) as u8, (yz >> z_shift) as u8]
    }

    /// Returns the FIFO group of the destination, 0 or 1.
    #[inline]
    pub const fn group(self) -> usize {
        (self.hardware0.get() >> GROUP_SHIFT & 1) as usize
    }

    /// Returns the number of chunks of the packet, 1 to 8.
    #[inline]
    pub const fn chunks(self) -> u32 {
        (self.hardware0.get() >> CHUNKS_SHIFT & 0b111) + 1
    }

    /// Returns the hint bits.
    #[inline]
    pub const fn hints(self) -> u8 {
        (self.hardware0.get() >> HINT_SHIFT) as u8 & hint::ALL
    }

    /// Returns whether the packet leaves copies.
    #[inline]
    pub const fn deposits(self) -> bool {
        self.hardware0.get() & DEPOSIT != 0
    }

    /// Returns whether the packet chooses its way by load.
    #[inline]
    pub const fn is_dynamic(self) -> bool {
        self.hardware0.get() & DYNAMIC != 0
    }

    /// Returns the virtual channel.
    #[inline]
    pub const fn channel(self) -> Channel {
        match self.hardware0.get() >> CHANNEL_SHIFT & 0b11 {
            0 => Channel::Dynamic0,
            1 => Channel::Dynamic1,
            2 => Channel::BubbleNormal,
            _ => Channel::BubblePriority,
        }
    }

    /// Returns the two bits that are free for software.
    #[inline]
    pub const fn software_bits(self) -> u8 {
        (self.hardware0.get() >> SOFTWARE_SHIFT) as u8 & 0b11
    }

    /// Returns the shorts at the start that the checksum leaves out; `None` if it leaves out the
    /// packet.
    pub const fn checksum_skip(self) -> Option<u8> {
        if self.hardware0.get() & SKIP_CHECKSUM != 0 {
            return None;
        }
        Some((self.hardware0.get() >> CHECKSUM_SKIP_SHIFT) as u8)
    }

    /// Returns the life of the destination's core that the packet is for; 0 stands for any.
    #[inline]
    pub const fn life(self) -> u16 {
        self.hardware1.get() as u16
    }
}

const _: () = assert!(size_of::<PacketHeader>() == HEADER);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_bits_of_the_public_header() {
        let header = PacketHeader::to([1, 2, 3], 1)
            .with_hints(hint::XP)
            .with_payload(240)
            .with_software_bits(0b10)
            .with_checksum(Some(8))
            .for_life(0x1235);
        assert_eq!(
            header.hardware0.get(),
            8 << 25 | 0x20 << 18 | 1 << 16 | 7 << 13 | 0b10 << 11 | 1 << 10 | 1
        );
        assert_eq!(header.hardware1.get(), 2 << 24 | 3 << 16 | 0x1235);

        assert_eq!((header.destination(), header.group(), header.chunks()), ([1, 2, 3], 1, 8));
        assert_eq!((header.hints(), header.software_bits(), header.life()), (hint::XP, 0b10, 0x1235));
        assert_eq!(header.checksum_skip(), Some(8));
        assert_eq!(header.with_checksum(None).checksum_skip(), None);
    }

    #[test]
    fn kinds_of_packets_have_their_channels() {
        let header = PacketHeader::to([0; 3], 0);
        assert!(header.is_dynamic() && header.channel() == Channel::Dynamic0);

        for (header, channel, deposits) in [
            (header.deterministic(), Channel::BubbleNormal, false),
            (header.high_priority(), Channel::BubblePriority, false),
            (header.deposit(), Channel::BubbleNormal, true),
        ] {
            assert_eq!(
                (header.is_dynamic(), header.channel(), header.deposits()),
                (false, channel, deposits)
            );
        }
    }

    #[test]
    fn payload_is_rounded_up_to_chunks() {
        let chunks = |payload| PacketHeader::default().with_payload(payload).chunks();
        assert_eq!([0, 16, 17, 48, 49, 239, 240, 241].map(chunks), [1, 1, 2, 2, 3, 8, 8, 8]);
    }
}
