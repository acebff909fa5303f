//! The torus of Blue Gene/L: packet header, FIFOs in mapped memory, the trapped port.
//!
//! Names and offsets of the port, the packet header and the registers are those of the public
//! headers `BGL_TorusPktSPI.h` and `bl_torus.h` (BlueMatter); the papers are Almási et al., "MPI on
//! BlueGene/L", 2003, and Adiga et al., "Blue Gene/L torus interconnection network", IBM J. Res. &
//! Dev. 49 (2/3), 2005. [`crate::torus_dcr`] has the device control registers.
//!
//! A function is the torus side of a node. A node has two cores, and each owns one of the two FIFO
//! groups. Words are little-endian, as is usual on PCI. Their bits have the values that they have
//! on the chip, where bit 0 of a manual is the highest bit of a word.
//!
//! | BAR | contents | access | belongs to |
//! | --- | --- | --- | --- |
//! | 0 | the port, device control registers, interrupts, presence | trapped | the attachment |
//! | 1 | posted-write ring | mapped, read-write | the attachment |
//! | 2 | attachment mirror | mapped, read-only | the attachment |
//! | 3 | injection FIFOs, heads of the reception FIFOs ([`window`]) | mapped, read-write | the attachment |
//! | 4 | reception FIFOs, status ([`mirror`]) | mapped, read-only | the attachment |
//! | 5 | SRAM and lock boxes of the node ([`shared`]) | mapped, read-write | both cores |
//!
//! The chip has the port alone. A load from mapped memory can't pop a FIFO, so the same FIFOs are
//! also memory: software writes a packet into an injection FIFO and moves its tail, reads a packet
//! from a reception FIFO and moves its head.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32 as Le32};

/// Number of cores of a node, and of FIFO groups. Attachment `n` is core `n`, and owns group `n`.
pub const CORES: u16 = 2;
/// Attachment of the kernel, which alone may write device control registers.
pub const KERNEL: u16 = 2;
/// Dimensions of the torus: X, Y, Z.
pub const DIMENSIONS: usize = 3;
/// Ports of a node, which are links: X+, X-, Y+, Y-, Z+, Z-.
pub const PORTS: u8 = 6;
/// Maximum number of nodes of a machine. The real one has 65,536 ([`presence`] has one word for
/// each node).
pub const MAX_NODES: u32 = 4096;

/// Bytes of a chunk, in which packets and FIFOs are counted: `_BGL_TORUS_SIZEOF_CHUNK`.
pub const CHUNK: usize = 32;
/// Maximum number of chunks of a packet: `_BGL_TORUS_PKT_MAX_CHUNKS`.
pub const MAX_CHUNKS: usize = 8;
/// Maximum number of bytes of a packet.
pub const MAX_PACKET: usize = CHUNK * MAX_CHUNKS;
/// Bytes of a packet's header.
pub const HEADER: usize = 16;
/// Maximum number of bytes of a packet's payload.
pub const MAX_PAYLOAD: usize = MAX_PACKET - HEADER;
/// Bytes of a quad word, the unit of accesses to the port.
pub const QUAD: usize = 16;
/// Bytes that a link carries behind each packet. On the chip they are a CRC of 24 bits, and a byte
/// that says whether the packet is valid (Adiga et al., "Packets"). Here they name the sender.
pub const TRAILER: usize = 4;
/// Chunks of a FIFO: `_BGL_TORUS_RECEPTION_FIFO_CHUNKS`, and the real depth of injection FIFOs.
pub const FIFO_CHUNKS: u32 = 32;
/// Chunks that software may take for the depth of an injection FIFO: `_BGL_TORUS_FIFO_CHUNKS`. A
/// status that was read may not count a packet that has been written since.
pub const SAFE_CHUNKS: u32 = 24;
/// Bytes of a FIFO.
pub const FIFO: u64 = FIFO_CHUNKS as u64 * CHUNK as u64;
/// Injection FIFOs of a group.
pub const INJECTION_FIFOS: usize = 4;
/// The injection FIFO for packets of high priority. FIFOs 0 to 2 are for all others.
pub const PRIORITY_INJECTION: usize = 3;
/// Reception FIFOs of a group. FIFOs 0 to 5 have the packets that came by that port.
pub const RECEPTION_FIFOS: usize = 7;
/// The reception FIFO for packets of high priority.
pub const PRIORITY_RECEPTION: usize = 6;

/// BAR of the injection FIFOs.
pub const BAR_WINDOW: u8 = 3;
/// BAR of the reception FIFOs.
pub const BAR_MIRROR: u8 = 4;
/// BAR of the memory that both cores share.
pub const BAR_SHARED: u8 = 5;
/// Cells of an attachment's ring of posted writes.
pub const RING_CELLS: u32 = 64;

/// Offsets in BAR 0 of the port to the FIFOs of the attachment's group, and of registers. The port
/// takes accesses of 16 bytes, or two of 8 bytes in ascending order.
pub mod reg {
    /// First of six reception FIFOs, [`super::FIFO`] bytes apart: `TSx_R0`. A read pops a quad.
    pub const R0: u64 = 0x0000;
    /// Reception FIFO for high priority: `TSx_RH`.
    pub const RH: u64 = 0x2000;
    /// First of three injection FIFOs, [`INJECTION`] bytes apart: `TSx_I0`. A write pushes a quad.
    pub const I0: u64 = 0x3000;
    /// Injection FIFO for high priority: `TSx_IH`.
    pub const IH: u64 = 0x6000;
    /// Distance of two injection FIFOs in bytes.
    pub const INJECTION: u64 = 0x1000;
    /// Status of the attachment's group, as [`super::Status`]: `TSx_Sx`.
    pub const STATUS: u64 = 0x7000;
    /// Status of the other group: `TSx_SO`.
    pub const OTHER_STATUS: u64 = 0x7010;
    /// Device control registers of 32 bits, at `4 * number` from here on.
    pub const DCR: u64 = 0x8000;
    /// Tails of the four injection FIFOs: the number of chunks that software has put into the FIFO,
    /// modulo 2^32; 32 bits. Written by posted or trapped writes.
    pub const INJECTION_TAIL: u64 = 0x9000;
    /// A posted write of any value: software has moved heads of reception FIFOs.
    pub const HEADS_MOVED: u64 = 0x9010;
    /// Enabled interrupts, a bit for each of [`super::vector`]; 32 bits. An interrupt whose
    /// condition holds already is raised by the write.
    pub const INTERRUPT_ENABLE: u64 = 0x9014;
    /// Interrupts whose condition holds; 32 bits, read-only.
    pub const INTERRUPT_STATUS: u64 = 0x9018;
    /// Number of changes of [`PRESENCE`], modulo 2^32; 32 bits, read-only.
    pub const PRESENCE_CHANGES: u64 = 0x901c;
    /// One word of 32 bits for each node, X fastest: [`super::presence`].
    pub const PRESENCE: u64 = 0xc000;
    /// Size of the registers in bytes.
    pub const SIZE: u64 = PRESENCE + 4 * super::MAX_NODES as u64;
}

/// The words of [`reg::PRESENCE`]. Bits 15..0 are the life of core 0 of the node, and bits 31..16
/// that of core 1. A life is odd while the core has software. It advances when software comes or
/// goes, and by two when it is reset. Life 0 never comes back: 0xffff is followed by 2.
///
/// A change is shown when all packets that the core sent in its former life are in the reception
/// FIFOs of their destinations, or after a second. Until then, new software of the core sends
/// nothing.
///
/// The hardware has no presence. Here processes can die.
pub mod presence {
    /// Returns a core's life in a word.
    pub const fn life(word: u32, core: u16) -> u16 {
        (word >> (16 * (core as u32 & 1))) as u16
    }

    /// Returns whether a core of this life has software.
    pub const fn is_up(life: u16) -> bool {
        life & 1 == 1
    }
}

/// Offsets in BAR 3, which software writes.
pub mod window {
    /// The four injection FIFOs, [`super::FIFO`] bytes each: rings of chunks. Chunk `n` lies at
    /// `n % FIFO_CHUNKS`; a packet may go on at the start of its ring.
    ///
    /// Software may put a packet into a FIFO if [`super::reg::INJECTION_TAIL`], less
    /// [`super::mirror::INJECTION_HEAD`], leaves room for it.
    pub const INJECTION: u64 = 0x0;
    /// Heads of the seven reception FIFOs, [`HEAD_STRIDE`] bytes apart: the number of chunks that
    /// software has taken, modulo 2^32; 32 bits. A value below the last one, or beyond the tail,
    /// counts as an error and frees nothing.
    pub const RECEPTION_HEAD: u64 = 0x1000;
    /// Distance of two heads in bytes.
    pub const HEAD_STRIDE: u64 = 64;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x2000;
}

/// Offsets in BAR 4, which the card writes. Words have 32 bits.
pub mod mirror {
    /// The seven reception FIFOs, [`super::FIFO`] bytes each: rings of chunks as
    /// [`super::window::INJECTION`].
    pub const RECEPTION: u64 = 0x0;
    /// Tails of the seven reception FIFOs: the number of chunks that have been put into the FIFO,
    /// modulo 2^32. A tail moves by whole packets.
    pub const RECEPTION_TAIL: u64 = 0x2000;
    /// Heads of the four injection FIFOs: the number of chunks that the card has taken, modulo
    /// 2^32.
    pub const INJECTION_HEAD: u64 = 0x2040;
    /// Packets that were dropped from the group's injection FIFOs, and wrong tails and heads.
    pub const ERRORS: u64 = 0x2050;
    /// Number of this node, X fastest.
    pub const NODE: u64 = 0x2080;
    /// The node's coordinates: X in bits 31..24, Y in 23..16, Z in 15..8.
    pub const COORDINATES: u64 = 0x2084;
    /// The last coordinates of the machine, in the same bits.
    pub const LAST: u64 = 0x2088;
    /// Dimensions that are tori: bit 0 for X, 1 for Y, 2 for Z.
    pub const WRAPS: u64 = 0x208c;
    /// FIFO group of the attachment.
    pub const GROUP: u64 = 0x2090;
    /// The core's own life, as in [`super::presence`].
    pub const LIFE: u64 = 0x2094;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x4000;
}

/// Offsets in BAR 5, which both cores of the node write. The card only frees lock boxes.
pub mod shared {
    /// Memory of the node: the chip's shared SRAM.
    pub const SRAM: u64 = 0x0;
    /// Size of [`SRAM`] in bytes.
    pub const SRAM_SIZE: u64 = 0x2000;
    /// Lock boxes, [`LOCK_STRIDE`] bytes apart: words of 32 bits, 0 if free. A core takes a box by
    /// compare-and-swap from 0 to its attachment number plus 1. The card frees the boxes of a core
    /// whose software ends.
    pub const LOCK: u64 = 0x2000;
    /// Number of lock boxes for users (`bl_lockbox.h`).
    pub const LOCKS: u64 = 128;
    /// Distance of two lock boxes in bytes.
    pub const LOCK_STRIDE: u64 = 64;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x4000;
}

/// MSI-X vectors of an attachment.
pub mod vector {
    /// A reception FIFO of the group has more chunks than its watermark.
    pub const RECEPTION: u16 = 0;
    /// An injection FIFO of the group has fewer chunks than its watermark.
    pub const INJECTION: u16 = 1;
    /// [`super::mirror::ERRORS`] has changed.
    pub const ERROR: u16 = 2;
    /// Number of vectors.
    pub const COUNT: u16 = 3;
}

/// Chunks in each FIFO of a group, as a quad of the port: `T_TS_Stat`.
///
/// A status that was read is old: it does not count what software has written since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Status {
    /// Reception FIFOs, `r0` to `rH`.
    pub reception: [u8; RECEPTION_FIFOS],
    /// Injection FIFOs, `i0` to `iH`.
    pub injection: [u8; INJECTION_FIFOS],
    /// Always 0.
    pub pad: [u8; 5],
}

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
/// | 1 | 15..0 | life of the destination's core ([`presence`]), or 0 for any. Reserved on the chip |
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

const _: () = {
    assert!(size_of::<PacketHeader>() == HEADER && size_of::<Status>() == QUAD);
    assert!(reg::SIZE == 0x1_0000 && reg::I0 + 3 * reg::INJECTION == reg::IH);
    assert!(window::RECEPTION_HEAD == INJECTION_FIFOS as u64 * FIFO);
    assert!(RECEPTION_FIFOS as u64 * FIFO <= mirror::RECEPTION_TAIL);
    assert!(shared::LOCK + shared::LOCKS * shared::LOCK_STRIDE == shared::SIZE);
};

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
