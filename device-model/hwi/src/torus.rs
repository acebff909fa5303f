//! The torus of Blue Gene/L: packet header, FIFOs in mapped memory, the trapped port.
//!
//! Names and offsets of the port, the packet header and the registers are those of the public
//! headers `BGL_TorusPktSPI.h` and `bl_torus.h` (BlueMatter); the papers are Almási et al., "MPI on
//! BlueGene/L", 2003, and Adiga et al., "Blue Gene/L torus interconnection network", IBM J. Res. &
//! Dev. 49 (2/3), 2005. [`crate::torus_packet`] has packets, and [`crate::torus_dcr`] the device
//! control registers.
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
//! | 3 | injection FIFOs, heads of the others ([`window`]) | mapped, read-write | the attachment |
//! | 4 | reception FIFOs, status ([`mirror`]) | mapped, read-only | the attachment |
//! | 5 | SRAM and lock boxes of the node ([`shared`]) | mapped, read-write | both cores |
//!
//! The chip has the port alone. A load from mapped memory can't pop a FIFO, so the same FIFOs are
//! also memory: software writes a packet into an injection FIFO and moves its tail, reads a packet
//! from a reception FIFO and moves its head.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use crate::torus_packet::{CHANNELS, Channel, PacketHeader, hint};
use crate::{
    register::{Access, Field, Register, joined},
    torus_dcr,
};

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

const _: () = {
    assert!(size_of::<Status>() == QUAD);
    assert!(reg::SIZE == 0x1_0000 && reg::I0 + 3 * reg::INJECTION == reg::IH);
    assert!(window::RECEPTION_HEAD == INJECTION_FIFOS as u64 * FIFO);
    assert!(RECEPTION_FIFOS as u64 * FIFO <= mirror::RECEPTION_TAIL);
    assert!(shared::LOCK + shared::LOCKS * shared::LOCK_STRIDE == shared::SIZE);
};

/// The fields of the two halves of a [`Status`]: chunks in each FIFO.
const STATUS_LOW: &[Field] = &[
    Field::bits("R0", 7, 0),
    Field::bits("R1", 15, 8),
    Field::bits("R2", 23, 16),
    Field::bits("R3", 31, 24),
    Field::bits("R4", 39, 32),
    Field::bits("R5", 47, 40),
    Field::bits("RH", 55, 48),
    Field::bits("I0", 63, 56),
];
/// The upper half: see [`STATUS_LOW`].
const STATUS_HIGH: &[Field] = &[Field::bits("I1", 7, 0), Field::bits("I2", 15, 8), Field::bits("IH", 23, 16)];
/// Interrupts of an attachment.
const VECTORS: &[Field] = &[
    Field::bit("RECEPTION", vector::RECEPTION as u8),
    Field::bit("INJECTION", vector::INJECTION as u8),
    Field::bit("ERROR", vector::ERROR as u8),
];
/// The lives of a node's cores.
const LIVES: &[Field] = &[Field::bits("CORE0", 15, 0), Field::bits("CORE1", 31, 16)];

/// Returns the declaration of the port to a FIFO of `bytes`. A quad is two registers of 8 bytes.
const fn fifo_port(name: &'static str, offset: u64, bytes: u64) -> Register {
    Register::new(name, 0, offset, 8, Access::Fifo).array((bytes / 8) as u32, 8)
}

/// The declarations of the port, of the other registers of BAR 0, and of the words in mapped
/// memory. FIFOs and SRAM are data, and not among them.
const OWN: &[Register] = &[
    fifo_port("R0", reg::R0, FIFO),
    fifo_port("R1", reg::R0 + FIFO, FIFO),
    fifo_port("R2", reg::R0 + 2 * FIFO, FIFO),
    fifo_port("R3", reg::R0 + 3 * FIFO, FIFO),
    fifo_port("R4", reg::R0 + 4 * FIFO, FIFO),
    fifo_port("R5", reg::R0 + 5 * FIFO, FIFO),
    fifo_port("RH", reg::RH, FIFO),
    fifo_port("I0", reg::I0, reg::INJECTION),
    fifo_port("I1", reg::I0 + reg::INJECTION, reg::INJECTION),
    fifo_port("I2", reg::I0 + 2 * reg::INJECTION, reg::INJECTION),
    fifo_port("IH", reg::IH, reg::INJECTION),
    Register::ro64("STATUS", 0, reg::STATUS).fields(STATUS_LOW).about("chunks in the own FIFOs"),
    Register::ro64("STATUS_HIGH", 0, reg::STATUS + 8).fields(STATUS_HIGH),
    Register::ro64("OTHER_STATUS", 0, reg::OTHER_STATUS).fields(STATUS_LOW).about("of the other group"),
    Register::ro64("OTHER_STATUS_HIGH", 0, reg::OTHER_STATUS + 8).fields(STATUS_HIGH),
    Register::rw32("INJECTION_TAIL", 0, reg::INJECTION_TAIL).array(INJECTION_FIFOS as u32, 4),
    Register::wo32("HEADS_MOVED", 0, reg::HEADS_MOVED).about("heads of reception FIFOs have moved"),
    Register::rw32("INTERRUPT_ENABLE", 0, reg::INTERRUPT_ENABLE).fields(VECTORS),
    Register::ro32("INTERRUPT_STATUS", 0, reg::INTERRUPT_STATUS).fields(VECTORS),
    Register::ro32("PRESENCE_CHANGES", 0, reg::PRESENCE_CHANGES),
    Register::ro32("PRESENCE", 0, reg::PRESENCE).array(MAX_NODES, 4).fields(LIVES),
    Register::rw32("RECEPTION_HEAD", BAR_WINDOW, window::RECEPTION_HEAD)
        .array(RECEPTION_FIFOS as u32, window::HEAD_STRIDE)
        .about("chunks that software has taken"),
    Register::ro32("RECEPTION_TAIL", BAR_MIRROR, mirror::RECEPTION_TAIL)
        .array(RECEPTION_FIFOS as u32, 4)
        .about("chunks that have arrived"),
    Register::ro32("INJECTION_HEAD", BAR_MIRROR, mirror::INJECTION_HEAD)
        .array(INJECTION_FIFOS as u32, 4)
        .about("chunks that the card has taken"),
    Register::ro32("ERRORS", BAR_MIRROR, mirror::ERRORS).about("dropped packets, wrong tails and heads"),
    Register::ro32("NODE", BAR_MIRROR, mirror::NODE),
    Register::ro32("COORDINATES", BAR_MIRROR, mirror::COORDINATES).fields(torus_dcr::COORDINATES),
    Register::ro32("LAST", BAR_MIRROR, mirror::LAST).fields(torus_dcr::COORDINATES),
    Register::ro32("WRAPS", BAR_MIRROR, mirror::WRAPS).about("dimensions that are tori, a bit each"),
    Register::ro32("GROUP", BAR_MIRROR, mirror::GROUP).about("FIFO group of the attachment"),
    Register::ro32("LIFE", BAR_MIRROR, mirror::LIFE).about("the core's own life"),
    Register::rw32("LOCK", BAR_SHARED, shared::LOCK).array(shared::LOCKS as u32, shared::LOCK_STRIDE),
];

/// The declarations of all registers.
pub static REGISTER_MAP: &[Register] =
    &joined::<{ torus_dcr::REGISTER_MAP.len() + OWN.len() }>(&[torus_dcr::REGISTER_MAP, OWN]);
