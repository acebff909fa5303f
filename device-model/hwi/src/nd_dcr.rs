//! Device control registers of the network of Blue Gene/Q.
//!
//! Names and fields are those of the public headers `nd_500_dcr.h` and `nd_rese_dcr.h` of
//! `bgq-driver`. Registers count from [`BASE`] in BAR 0, for the kernel's attachment alone. Each
//! has 8 bytes: the offset is 8 times the public number. A value has the bits that the public
//! macros give it; the comments here count bits from the least significant one.
//!
//! Three things differ from Blue Gene/Q:
//!
//! - Coordinates, rings and the order of dimensions belong to the machine, and are read-only.
//!   Routers that disagree on the order could deadlock.
//! - The registers of a port count from [`port`] in the order of this crate's ports: A+, A-, B+,
//!   ... The public order is A-, A+, B-, ...
//! - Only the registers here exist.

use crate::{
    mu::DEVICE_CONTROL,
    mu_packet::{DIMENSIONS, PORTS},
    register::{Access, Field, Register},
};

/// Offset of the network's registers in BAR 0.
pub const BASE: u64 = DEVICE_CONTROL + 0x1000;
/// Bytes of the network's registers.
pub const SIZE: u64 = 0x2900;

/// Rings in bits 49 to 53, with dimension A in the highest, read-only; and the
/// [`THROUGH_RATIO_SHIFT`].
pub const CTRL_INTERNAL: u64 = 8 * 0x02;
/// Lowest bit of the rings.
pub const IS_TORUS_SHIFT: u32 = 49;
/// Lowest of four bits `n`: an output sends `n + 1` packets from links between two injected ones.
pub const THROUGH_RATIO_SHIFT: u32 = 44;
/// A write clears the exceptions of its bits ([`NON_FATAL_ERR0`]); reads as 0.
pub const CTRL_CLEAR0: u64 = 8 * 0x03;
/// Own coordinates, 6 bits each with that of A in bits 56 to 61 and of E in 32 to 37; and the
/// highest ones of the network, with that of E in bits 0 to 5. Read-only.
pub const CTRL_COORDS: u64 = 8 * 0x04;
/// Order of the dimensions of deterministic packets: five sets of one dimension, the first one in
/// bits 20 to 24. Read-only.
pub const CTRL_DET_ORDER: u64 = 8 * 0x07;
/// Zones 0 and 1 of dynamic packets: five sets of dimensions each ([`zone_shift`]).
pub const CTRL_DYNAMIC_ZONE01: u64 = 8 * 0x08;
/// Zones 2 and 3.
pub const CTRL_DYNAMIC_ZONE23: u64 = 8 * 0x09;
/// Barrier classes 0 and 1; eight registers of two classes each.
pub const CTRL_GI_CLASS: u64 = 8 * 0x0b;
/// Class routes 0 and 1 of collectives; eight registers.
pub const CTRL_COLL_CLASS: u64 = 8 * 0x13;
/// Exceptions of [`NON_FATAL_ERR0`] that raise an interrupt of the network.
pub const NON_FATAL_ERR_ENABLE: u64 = 8 * 0x21;
/// Exceptions of collectives: bits of [`error`]. Read-only.
pub const NON_FATAL_ERR0: u64 = 8 * 0x29;
/// A write clears performance counters: five bits for each port, those of port 0 in bits 59 to 63.
/// The first four are the sender's counters, and the fifth both of the receiver. Reads as 0.
pub const CTRL_UPC_CLEAR: u64 = 8 * 0x52;
/// Performance counters that make no progress: bits as in [`CTRL_UPC_CLEAR`].
pub const CTRL_UPC_STOP: u64 = 8 * 0x53;

/// Bits of [`NON_FATAL_ERR0`].
pub mod error {
    /// A result in the reception FIFO of users had an integer overflow.
    pub const USER_OVERFLOW: u64 = 1 << (63 - 25);
    /// A result in the reception FIFO of users is not a number.
    pub const USER_NAN: u64 = 1 << (63 - 26);
    /// As [`USER_OVERFLOW`], in the FIFO of the system.
    pub const SYSTEM_OVERFLOW: u64 = 1 << (63 - 29);
    /// As [`USER_NAN`], in the FIFO of the system.
    pub const SYSTEM_NAN: u64 = 1 << (63 - 30);
    /// This node's ALU had a result that is not a number.
    pub const NAN: u64 = 1 << (63 - 33);
    /// This node's ALU had an overflow.
    pub const OVERFLOW: u64 = 1 << (63 - 34);
    /// Operands of this node differ in their operation, words or length.
    pub const MISMATCH: u64 = 1 << (63 - 35);
    /// All bits.
    pub const ALL: u64 = USER_OVERFLOW | USER_NAN | SYSTEM_OVERFLOW | SYSTEM_NAN | NAN | OVERFLOW | MISMATCH;
}

/// Offset of the registers of a port, for `port` below 11.
pub const fn port(port: u64) -> u64 {
    0x800 + 0x300 * port
}

/// Offsets from [`port`].
pub mod link {
    /// Virtual channels of the counters, as numbered in packet headers. A set has 7 bits, with
    /// channel 0 in the highest. Those of the sender are in bits 56 to 62, 48 to 54, 40 to 46 and
    /// 32 to 38, and those of the receiver in bits 24 to 30.
    pub const UPC_CTRL: u64 = 8 * 0x02;
    /// [`UPC_CTRL`] at power-on: user, system, collective of all nodes, collective of some nodes;
    /// and user packets at the receiver.
    pub const UPC_CTRL_RESET: u64 = 0x7008_0502_7000_0000;
    /// Transmissions that were repeated, read-only.
    pub const SE_RETRANS_CNT: u64 = 8 * 0x0a;
    /// Counter 0 of 6, read-only: chunks of 32 bytes sent by four sets of channels, packets
    /// received that have left the receiver's buffer, and the integral of packets that wait first
    /// in it, in cycles of 2 ns.
    pub const UPC: u64 = 8 * 0x14;
    /// Number of counters.
    pub const COUNTERS: usize = 6;
    /// CRC of the users' packets that have arrived by the link, read-only. At the end of a run it
    /// equals [`SE_LINK_CRC_USR`] at the other end, or the check codes have missed an error. Both
    /// are 0 on links without injected errors.
    pub const RE_LINK_CRC_USR: u64 = 8 * 0x27;
    /// As [`RE_LINK_CRC_USR`], of the system's packets.
    pub const RE_LINK_CRC_SYS: u64 = 8 * 0x28;
    /// CRC of the users' packets that were sent by the link, read-only.
    pub const SE_LINK_CRC_USR: u64 = 8 * 0x29;
    /// As [`SE_LINK_CRC_USR`], of the system's packets.
    pub const SE_LINK_CRC_SYS: u64 = 8 * 0x2a;
    /// Packets for which the far end has room, read-only: 10 bits for the dynamic channel from bit
    /// 20, and 4 bits each for those of deterministic, high-priority, system, collective and
    /// sub-communicator packets below.
    pub const SE_TOKENS: u64 = 8 * 0x3b;
}

/// Lowest bit of set `set` of a zone in its register, which holds an even and an odd zone. Each set
/// has five bits, and the first set is the highest one.
pub const fn zone_shift(is_odd: bool, set: u32) -> u32 {
    let shift_of_first = if is_odd { 20 } else { 52 };
    shift_of_first - 5 * set
}

/// Types of class routes: `BGQ_CLASS_INPUT_VC_*` of `classroute.h`, without their shift.
pub mod class_type {
    /// Packets of [`crate::mu_packet::channel::USER_COMM_WORLD`].
    pub const USER: u16 = 0;
    /// Packets of [`crate::mu_packet::channel::SYSTEM_COLLECTIVE`].
    pub const SYSTEM: u16 = 1;
    /// Packets of [`crate::mu_packet::channel::USER_SUB_COMM`].
    pub const SUB_COMM: u16 = 2;
    /// Lowest bit of the type in the input mask.
    pub const SHIFT: u32 = 12;
}

/// A class route: masks as in `classroute.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRoute {
    /// Links from which packets come up ([`class_link`]), [`LOCAL`], and for collectives the
    /// [`class_type`].
    pub input: u16,
    /// Link by which packets leave upwards; none at the root.
    pub output: u16,
}

/// `BGQ_CLASS_INPUT_LINK_LOCAL`: the node itself contributes.
pub const LOCAL: u16 = 1;
/// `BGQ_CLASS_LINK_IO`.
pub const CLASS_LINK_IO: u16 = 1 << 1;
/// Links and [`LOCAL`].
pub const LINKS: u16 = 0xfff;
/// Bits of [`ClassRoute::input`]: the links, and two bits of the [`class_type`].
const INPUT_MASK: u16 = 0x3fff;

/// Returns the bit of a torus port in the masks of class routes: `BGQ_CLASS_LINK_*`. Port `2 d`
/// leads up dimension `d`, and `2 d + 1` down.
pub const fn class_link(port: u8) -> u16 {
    // A- has bit 11, A+ bit 10, and so on down to E+ with bit 2.
    let dimension = port / 2;
    1 << (10 - 2 * dimension + port % 2)
}

impl ClassRoute {
    /// Returns the value of a class register for two classes, the first one in its high half.
    pub const fn register(of: [Self; 2]) -> u64 {
        of[0].half() << 32 | of[1].half()
    }

    /// Returns the 32 bits of this class in a class register.
    const fn half(self) -> u64 {
        (self.input as u64 & INPUT_MASK as u64) << 16 | self.output as u64 & LINKS as u64
    }

    /// Returns the two classes of a register.
    pub const fn of_register(value: u64) -> [Self; 2] {
        [Self::of_half(value >> 32), Self::of_half(value)]
    }

    /// Returns the class of 32 bits of a class register.
    const fn of_half(half: u64) -> Self {
        Self { input: (half >> 16) as u16 & INPUT_MASK, output: half as u16 & LINKS }
    }
}

/// Reverses the bits of a set of dimensions. Registers have A in the highest of the five bits, and
/// this crate's users have A in bit 0. The function converts each into the other.
pub const fn reversed_set(set: u8) -> u8 {
    // The reversal of a byte leaves the five bits at its top.
    set.reverse_bits() >> (8 - DIMENSIONS)
}

/// Distance of two ports' registers in bytes.
const PORT_STRIDE: u64 = port(1) - port(0);

/// Returns the declaration of a register for each port.
const fn of_ports(name: &'static str, offset: u64) -> Register {
    Register::ro64(name, 0, BASE + port(0) + offset).array(PORTS as u32, PORT_STRIDE)
}

/// Returns the declaration of a counter of each port, by its number.
const fn counter(name: &'static str, number: u64) -> Register {
    of_ports(name, link::UPC + 8 * number)
}

/// The fields of two zones: sets of dimensions.
const ZONES: &[Field] = &[Field::bits("EVEN", 56, 32), Field::bits("ODD", 24, 0)];
/// The fields of a register of two classes.
const CLASSES: &[Field] = &[
    Field::bits("EVEN_IN", 61, 48),
    Field::bits("EVEN_OUT", 43, 32),
    Field::bits("ODD_IN", 29, 16),
    Field::bits("ODD_OUT", 11, 0),
];
/// The fields of exceptions.
const ERRORS: &[Field] = &[
    Field::mask("USER_OVERFLOW", error::USER_OVERFLOW),
    Field::mask("USER_NAN", error::USER_NAN),
    Field::mask("SYSTEM_OVERFLOW", error::SYSTEM_OVERFLOW),
    Field::mask("SYSTEM_NAN", error::SYSTEM_NAN),
    Field::mask("NAN", error::NAN),
    Field::mask("OVERFLOW", error::OVERFLOW),
    Field::mask("MISMATCH", error::MISMATCH),
];

/// The declarations of the network's registers.
pub(crate) const REGISTER_MAP: &[Register] = &[
    Register::rw64("ND_INTERNAL", 0, BASE + CTRL_INTERNAL).fields(&[
        Field::bits("IS_TORUS", 53, IS_TORUS_SHIFT as u8),
        Field::bits("THROUGH_RATIO", 47, THROUGH_RATIO_SHIFT as u8),
    ]),
    Register::wo64("ND_CLEAR0", 0, BASE + CTRL_CLEAR0).fields(ERRORS),
    Register::ro64("ND_COORDS", 0, BASE + CTRL_COORDS).fields(&[
        Field::bits("A", 61, 56),
        Field::bits("B", 55, 50),
        Field::bits("C", 49, 44),
        Field::bits("D", 43, 38),
        Field::bits("E", 37, 32),
        Field::bits("LAST_A", 29, 24),
        Field::bits("LAST_B", 23, 18),
        Field::bits("LAST_C", 17, 12),
        Field::bits("LAST_D", 11, 6),
        Field::bits("LAST_E", 5, 0),
    ]),
    Register::ro64("ND_DET_ORDER", 0, BASE + CTRL_DET_ORDER),
    Register::rw64("ND_DYNAMIC_ZONE", 0, BASE + CTRL_DYNAMIC_ZONE01).array(2, 8).fields(ZONES),
    Register::rw64("ND_GI_CLASS", 0, BASE + CTRL_GI_CLASS).array(8, 8).fields(CLASSES),
    Register::rw64("ND_COLL_CLASS", 0, BASE + CTRL_COLL_CLASS).array(8, 8).fields(CLASSES),
    Register::rw64("ND_ERR_ENABLE", 0, BASE + NON_FATAL_ERR_ENABLE).fields(ERRORS),
    Register::ro64("ND_ERR0", 0, BASE + NON_FATAL_ERR0).fields(ERRORS),
    Register::wo64("ND_UPC_CLEAR", 0, BASE + CTRL_UPC_CLEAR),
    Register::rw64("ND_UPC_STOP", 0, BASE + CTRL_UPC_STOP),
    of_ports("ND_UPC_CTRL", link::UPC_CTRL).access(Access::ReadWrite),
    of_ports("ND_SE_RETRANS_CNT", link::SE_RETRANS_CNT),
    counter("ND_UPC_SENT0", 0),
    counter("ND_UPC_SENT1", 1),
    counter("ND_UPC_SENT2", 2),
    counter("ND_UPC_SENT3", 3),
    counter("ND_UPC_RECEIVED", 4),
    counter("ND_UPC_WAITED", 5),
    of_ports("ND_RE_LINK_CRC_USR", link::RE_LINK_CRC_USR),
    of_ports("ND_RE_LINK_CRC_SYS", link::RE_LINK_CRC_SYS),
    of_ports("ND_SE_LINK_CRC_USR", link::SE_LINK_CRC_USR),
    of_ports("ND_SE_LINK_CRC_SYS", link::SE_LINK_CRC_SYS),
    of_ports("ND_SE_TOKENS", link::SE_TOKENS).about("packets for which the far end has room"),
];
