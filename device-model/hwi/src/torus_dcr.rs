//! Device control registers of the torus of Blue Gene/L.
//!
//! Numbers, names and bits are those of the public header `bl_torus.h`, where they follow
//! `DCR_TORUS`. Registers of the links' electrical side and of memory errors are left out: no event
//! of the model would set them. So is the register that resets units: the function's reset does
//! that. All registers have 32 bits, at [`crate::torus::reg::DCR`] plus 4 times the number. Each
//! attachment can read them, and [`crate::torus::KERNEL`] can write those that are read-write.

use crate::{
    register::{Field, Register},
    torus::PORTS,
};

/// The last coordinates of the machine: X in bits 31..24, Y in 23..16, Z in 15..8; read-only:
/// `DCR_TS_CTRL_NODES`.
pub const CTRL_NODES: u32 = 0x01;
/// The node's coordinates, in the same bits; read-only: `DCR_TS_CTRL_COORDS_NODE`.
pub const CTRL_COORDS_NODE: u32 = 0x02;
/// The coordinates of the neighbours by the X+, Y+ and Z+ links, in the same bits; read-only. A
/// dimension without such a link has the node's own coordinate: `DCR_TS_CTRL_COORDS_PLUS`.
pub const CTRL_COORDS_PLUS: u32 = 0x03;
/// The same by the X-, Y- and Z- links: `DCR_TS_CTRL_COORDS_MINUS`.
pub const CTRL_COORDS_MINUS: u32 = 0x04;
/// Hops up at which software chooses the way down, in the same bits; read-write. The card does not
/// use them: `DCR_TS_CTRL_HINT_PLUS`.
pub const CTRL_HINT_PLUS: u32 = 0x05;
/// Hops down at which software chooses the way up: `DCR_TS_CTRL_HINT_MINUS`.
pub const CTRL_HINT_MINUS: u32 = 0x06;
/// Watermarks of group 0 in chunks, five bits for each of [`watermark`]; read-write:
/// `DCR_TS_CTRL_WM_G0`.
pub const CTRL_WM_G0: u32 = 0x0d;
/// Watermarks of group 1: `DCR_TS_CTRL_WM_G1`.
pub const CTRL_WM_G1: u32 = 0x0e;
/// Free packets of buffer behind the link at the first of the six ports, a byte for each virtual
/// channel, channel 0 highest; read-only: `DCR_TS_STAT_SEND_TOK_XP`.
pub const STAT_SEND_TOK: u32 = 0x32 + 0x0c;
/// Checksum of the first injection FIFO; read-only. FIFOs 0 to 2 of group 0 come first, then those
/// of group 1, then the two for high priority: `DCR_TS_STAT_CKSUM_INJ_N0`.
pub const STAT_CKSUM_INJ: u32 = 0x32 + 0x1b;
/// Packets that the sender at the first of the six ports has repeated; a write clears it:
/// `DCR_TS_RE_SEND_RETRY_XP`.
pub const RE_SEND_RETRY: u32 = 0x6c + 0x08;
/// Packets with a wrong header, and writes to full FIFOs; a write clears it:
/// `DCR_TS_RE_BADHDR_FULLFIFO`.
pub const RE_BADHDR_FULLFIFO: u32 = 0x6c + 0x11;
/// Number of registers, with those that are left out.
pub const COUNT: u32 = 0x80;

/// Lowest bits of the watermarks in [`CTRL_WM_G0`]. A watermark has five bits.
pub mod watermark {
    /// Reception FIFOs 0 to 5: `_TS_CTRL_WM_G0_RN0`.
    pub const RECEPTION: u32 = 27;
    /// The reception FIFO for high priority: `_TS_CTRL_WM_G0_RP0`.
    pub const PRIORITY_RECEPTION: u32 = 22;
    /// The first of the four injection FIFOs. The others follow below: `_TS_CTRL_WM_G0_IN0`.
    pub const INJECTION: u32 = 17;
    /// Distance of two watermarks in bits.
    pub const BITS: u32 = 5;

    /// Returns a watermark in chunks.
    pub const fn chunks(word: u32, lowest_bit: u32) -> u32 {
        word >> lowest_bit & 0x1f
    }
}

/// Coordinates in a register.
pub(crate) const COORDINATES: &[Field] =
    &[Field::bits("X", 31, 24), Field::bits("Y", 23, 16), Field::bits("Z", 15, 8)];
/// The watermarks of a group.
const WATERMARKS: &[Field] = &[
    Field::bits("RN", 31, 27),
    Field::bits("RP", 26, 22),
    Field::bits("I0", 21, 17),
    Field::bits("I1", 16, 12),
    Field::bits("I2", 11, 7),
    Field::bits("IH", 6, 2),
];

/// Returns the offset of a device control register in BAR 0.
const fn dcr(number: u32) -> u64 {
    crate::torus::reg::DCR + 4 * number as u64
}

/// The declarations of the device control registers.
pub(crate) const REGISTER_MAP: &[Register] = &[
    Register::ro32("CTRL_NODES", 0, dcr(CTRL_NODES)).fields(COORDINATES).about("last coordinates"),
    Register::ro32("CTRL_COORDS_NODE", 0, dcr(CTRL_COORDS_NODE)).fields(COORDINATES),
    Register::ro32("CTRL_COORDS_PLUS", 0, dcr(CTRL_COORDS_PLUS)).fields(COORDINATES),
    Register::ro32("CTRL_COORDS_MINUS", 0, dcr(CTRL_COORDS_MINUS)).fields(COORDINATES),
    Register::rw32("CTRL_HINT_PLUS", 0, dcr(CTRL_HINT_PLUS)).fields(COORDINATES),
    Register::rw32("CTRL_HINT_MINUS", 0, dcr(CTRL_HINT_MINUS)).fields(COORDINATES),
    Register::rw32("CTRL_WM", 0, dcr(CTRL_WM_G0)).array(2, 4).fields(WATERMARKS).about("watermarks"),
    Register::ro32("STAT_SEND_TOK", 0, dcr(STAT_SEND_TOK)).array(PORTS as u32, 4).about("credits").fields(&[
        Field::bits("VC0", 31, 24),
        Field::bits("VC1", 23, 16),
        Field::bits("VC2", 15, 8),
        Field::bits("VC3", 7, 0),
    ]),
    Register::ro32("STAT_CKSUM_INJ", 0, dcr(STAT_CKSUM_INJ)).array(8, 4).about("injection checksums"),
    Register::rw32("RE_SEND_RETRY", 0, dcr(RE_SEND_RETRY))
        .array(PORTS as u32, 4)
        .about("retransmissions; a write clears them"),
    Register::rw32("RE_BADHDR_FULLFIFO", 0, dcr(RE_BADHDR_FULLFIFO))
        .about("errors of clients; a write clears them"),
];
