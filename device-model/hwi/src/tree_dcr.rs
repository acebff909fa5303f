//! The tree NIC's port interface, device control registers, barrier unit and interrupt registers
//! (BAR 0, trapped).
//!
//! Names and bit positions are those of the Blue Gene/P collective network, and of the Blue Gene/L
//! global interrupts. Registers are little-endian. Bits are numbered from the least significant
//! one, 0; IBM's manuals count from the other end.
//!
//! | offset | contents |
//! | --- | --- |
//! | 0x0000 | [`port`] of the accessing attachment's virtual channel |
//! | 0x1000 | device control registers, [`dcr`]`(number)` |
//! | 0x2000 | global interrupts, [`gi`] |
//! | 0x3000 | interrupts of the accessing attachment |
//!
//! An access to no register reads as ones, writes nothing, and sets an error bit of the
//! attachment's channel. The bit is `ALIGN` for a wrong width or alignment, and `ADDR` for an
//! address that does not exist or not in this direction. Reads set bits of [`REC_PRXF`], writes of
//! [`INJ_PIXF`]. Bits with a 0 stand for the processor port of cores 0 and 1 and of the admin
//! attachment. Bits with a 1 stand for that of cores 2 and 3.
//!
//! The slots of [`crate::tree`] have no alignment, address, underrun or overflow errors. The only
//! error that they can cause is an invalid receive read pointer ([`prx::PFU0`], [`prx::PFU1`]).

use crate::{
    register::{Access, Field, Register},
    tree::{PORTS, vector},
};

/// The port: a window of 0x60 bytes onto one virtual channel's FIFOs. A quad is 16 bytes. A 16-byte
/// access may be split into two of 8 bytes, lower half first.
///
/// Injection: one pushed header and 16 pushed quads, in any order, make a packet. Reception:
/// headers and payloads are popped independently. A packet's space is free when its header and all
/// its quads have been read. Headers are in host order, as [`crate::tree::Header`].
pub mod port {
    /// Data injection (write, 16 bytes): pushes a quad. If the FIFO is full, the quad is lost and
    /// [`super::pix::PFO0`] set.
    pub const DI: u64 = 0x00;
    /// Header injection (write, 4 bytes): pushes a header. If the FIFO is full, the header is lost
    /// and [`super::pix::HFO0`] set.
    pub const HI: u64 = 0x10;
    /// Data reception (read, 16 bytes): pops a quad. If the FIFO is empty, the read returns ones
    /// and sets [`super::prx::PFU0`].
    pub const DR: u64 = 0x20;
    /// Header reception (read, 4 bytes): pops a header. If the FIFO is empty, the read returns ones
    /// and sets [`super::prx::HFU0`].
    pub const HR: u64 = 0x30;
    /// Status of this virtual channel (read, 4 bytes): see [`super::status`].
    pub const SX: u64 = 0x40;
    /// Status of the other virtual channel (read, 4 bytes).
    pub const SO: u64 = 0x50;
    /// Size of the port in bytes.
    pub const SIZE: u64 = 0x60;
}

/// The status word of a virtual channel. A count that does not fit its field shows the field's
/// greatest value.
pub mod status {
    /// Bits 31..24: quads in the send FIFO.
    pub const IPY_SHIFT: u32 = 24;
    /// Bits 19..16: headers in the send FIFO.
    pub const IHD_SHIFT: u32 = 16;
    /// Bits 15..8: quads in the receive FIFO.
    pub const RPY_SHIFT: u32 = 8;
    /// Bit 4: a packet with the irq bit is in the receive FIFO.
    pub const IRQ: u32 = 1 << 4;
    /// Bits 3..0: headers in the receive FIFO.
    pub const RHD_SHIFT: u32 = 0;

    /// Returns the status word for a send FIFO with `send_quads` and `send_headers`, and a receive
    /// FIFO with `quads` and `headers`. `irq` says whether the receive FIFO has a packet with the
    /// irq bit.
    pub const fn word(send_quads: u32, send_headers: u32, quads: u32, irq: bool, headers: u32) -> u32 {
        (limit(send_quads, 0xff) << IPY_SHIFT)
            | (limit(send_headers, 0xf) << IHD_SHIFT)
            | (limit(quads, 0xff) << RPY_SHIFT)
            | if irq { IRQ } else { 0 }
            | (limit(headers, 0xf) << RHD_SHIFT)
    }

    /// Returns the smaller number. `u32::min` is not `const`.
    const fn limit(value: u32, maximum: u32) -> u32 {
        if value < maximum { value } else { maximum }
    }

    /// Returns the number of headers in the send FIFO.
    pub const fn send_headers(word: u32) -> u32 {
        (word >> IHD_SHIFT) & 0xf
    }
    /// Returns the number of quads in the send FIFO.
    pub const fn send_quads(word: u32) -> u32 {
        (word >> IPY_SHIFT) & 0xff
    }
    /// Returns the number of headers in the receive FIFO.
    pub const fn headers(word: u32) -> u32 {
        (word >> RHD_SHIFT) & 0xf
    }
    /// Returns the number of quads in the receive FIFO.
    pub const fn quads(word: u32) -> u32 {
        (word >> RPY_SHIFT) & 0xff
    }
}

/// First device control register. All are 32 bits wide. Every attachment can read them. Only the
/// admin attachment can write them; other writes are ignored and set `ADDR`.
pub const DCR_BASE: u64 = 0x1000;
/// Number of device control registers that have space.
pub const DCR_COUNT: u64 = 0x80;

/// Returns the offset in BAR 0 of device control register `number`, relative to the tree's first
/// (0xc00 on the chip).
pub const fn dcr(number: u64) -> u64 {
    DCR_BASE + 4 * number
}

/// Route descriptor register 0 of 8 (read, write). Register `n` describes classes `2n` (high half,
/// "LO") and `2n + 1` (low half, "HI") in the format of [`rdr`]. The two virtual channels share the
/// registers. Bits outside [`rdr::ACCEPT`] read as 0.
pub const CLASS_RDR0: u64 = 0x00;
/// Number of route descriptor registers.
pub const CLASS_RDR_COUNT: u64 = 8;

/// The 16 bits that describe a class at a node.
///
/// Packets go *up* from the sources to the target port. They are combined on the way if their
/// opcode says so, and turn round at the node whose route has no target port. Then they go *down*
/// from target ports to source ports. A node delivers a packet on its way down to its own receive
/// FIFO if the local target bit is set.
pub mod rdr {
    /// Source: port 0 (a child).
    pub const SRC0: u16 = 0x1000;
    /// Source: port 1.
    pub const SRC1: u16 = 0x2000;
    /// Source: port 2.
    pub const SRC2: u16 = 0x4000;
    /// Source: this node's send FIFO.
    pub const SRCL: u16 = 0x0002;
    /// Target: port 0 (the way up).
    pub const TGT0: u16 = 0x0100;
    /// Target: port 1.
    pub const TGT1: u16 = 0x0200;
    /// Target: port 2.
    pub const TGT2: u16 = 0x0400;
    /// Target: this node's receive FIFO.
    pub const TGTL: u16 = 0x0001;
    /// All defined bits.
    pub const ACCEPT: u16 = 0x7703;
}

/// General router configuration (read, write): [`rcfg`].
pub const ARB_RCFG: u64 = 0x10;
/// Bits of [`ARB_RCFG`].
pub mod rcfg {
    /// Disable source port `p`, virtual channel `c`: shifted to the right by `4 * p + c`.
    pub const SRC00: u32 = 1 << 31;
    /// Disable target port `p`, virtual channel `c`: shifted to the right by `4 * p + c`.
    pub const TGT00: u32 = 1 << 29;
    /// Manual mode: the router stops.
    pub const MAN: u32 = 1 << 1;
    /// Soft reset; reads as 0. It empties both channels' FIFOs and the router, and clears errors
    /// and checksums. Routes, watermarks and enables stay.
    pub const RST: u32 = 1 << 0;
    /// Bits that can be written.
    pub const WRITABLE: u32 = 0xfff0_0000 | MAN | RST;
}
/// General router status (read). Bits 31..28 and 27..24: a packet waits in port 2, 1, 0 or the send
/// FIFO, of virtual channel 0 and 1. Bits 23..20 and 19..16: port 2, 1, 0 or the receive FIFO has
/// no room, of virtual channel 0 and 1.
pub const ARB_RSTAT: u64 = 0x13;
/// Header of the packet that waits in port 0, virtual channel 0 (read; 0 if none). The registers
/// after it are for port 0 channel 1, port 1 and port 2. Those at +6 and +7 are for the send FIFO
/// of channel 0 and 1. The rest reads as 0.
pub const ARB_HD00: u64 = 0x14;
/// Number of these registers.
pub const ARB_HD_COUNT: u64 = 11;

/// Extended router status (read). Bits 31..28: the first packet in port 2, 1, 0 or the send FIFO of
/// virtual channel 0 has to wait. Bits 27..24: the same for channel 1.
pub const ARB_XSTAT: u64 = 0x1f;

/// FIFO pointers (read): 3 bits each, modulo 8, from bit 28 down in steps of 4. They are injection
/// payload and header of channel 0, then of channel 1, then reception payload and header of channel
/// 0, then of channel 1.
pub const GLOB_FPTR: u64 = 0x40;
/// Node address (read), 24 bits. The machine's description sets it.
pub const GLOB_NADDR: u64 = 0x41;
/// Configuration of virtual channel 0 (read, write): [`vcfg`]. The next register is channel 1's.
pub const GLOB_VCFG0: u64 = 0x42;
/// Configuration of virtual channel 1.
pub const GLOB_VCFG1: u64 = 0x43;
/// Bits of [`GLOB_VCFG0`].
pub mod vcfg {
    /// Bits 23..16: number of 16-bit words at the start of the payload that checksum mode 2 omits.
    pub const CSUMX_SHIFT: u32 = 16;
    /// Bits 10..8: receive watermark in eighths of the depth. [`super::prx::WM0`] holds while the
    /// receive FIFO has more packets than this.
    pub const RWM_SHIFT: u32 = 8;
    /// Bits 2..0: send watermark in eighths of the depth. [`super::pix::WM0`] holds while the send
    /// FIFO has this many packets or fewer.
    pub const IWM_SHIFT: u32 = 0;
    /// Bits that can be written.
    pub const WRITABLE: u32 = 0x00ff_0707;
}

/// Receive exception flags (read): [`prx`]. A read returns and clears the errors of the reader's
/// channel; a read by the admin attachment, those of both. The watermark bits show the present
/// state.
pub const REC_PRXF: u64 = 0x44;
/// Receive exception enable (read, write): errors and watermarks that can raise interrupts. All are
/// enabled at power-on.
pub const REC_PRXEN: u64 = 0x45;
/// Bits of [`REC_PRXF`] and [`REC_PRXEN`].
pub mod prx {
    /// Processor port 0: a read of a wrong width or alignment.
    pub const ALIGN0: u32 = 1 << 21;
    /// Processor port 1: the same.
    pub const ALIGN1: u32 = 1 << 20;
    /// Processor port 0: a read of an address without a readable register.
    pub const ADDR0: u32 = 1 << 19;
    /// Processor port 1: the same.
    pub const ADDR1: u32 = 1 << 18;
    /// Channel 0: payload read from an empty FIFO, or an invalid receive read pointer.
    pub const PFU0: u32 = 1 << 5;
    /// Channel 1: the same.
    pub const PFU1: u32 = 1 << 4;
    /// Channel 0: header read from an empty FIFO.
    pub const HFU0: u32 = 1 << 3;
    /// Channel 1: the same.
    pub const HFU1: u32 = 1 << 2;
    /// Channel 0: the receive FIFO is above its watermark.
    pub const WM0: u32 = 1 << 1;
    /// Channel 1: the same.
    pub const WM1: u32 = 1 << 0;
    /// Bits that this NIC can set.
    pub const ALL: u32 = 0x003c_003f;
}

/// Injection exception flags (read): [`pix`]. Reads work as those of [`REC_PRXF`].
pub const INJ_PIXF: u64 = 0x48;
/// Injection exception enable (read, write). At power-on all except the watermarks are enabled.
pub const INJ_PIXEN: u64 = 0x49;
/// Bits of [`INJ_PIXF`] and [`INJ_PIXEN`].
pub mod pix {
    /// Processor port 0: a write of a wrong width or alignment.
    pub const ALIGN0: u32 = 1 << 23;
    /// Processor port 1: the same.
    pub const ALIGN1: u32 = 1 << 22;
    /// Processor port 0: a write to an address without a writable register, or to a register that
    /// the writer does not own.
    pub const ADDR0: u32 = 1 << 21;
    /// Processor port 1: the same.
    pub const ADDR1: u32 = 1 << 20;
    /// Channel 0: payload written to a full FIFO.
    pub const PFO0: u32 = 1 << 6;
    /// Channel 1: the same.
    pub const PFO1: u32 = 1 << 5;
    /// Channel 0: header written to a full FIFO.
    pub const HFO0: u32 = 1 << 4;
    /// Channel 1: the same.
    pub const HFO1: u32 = 1 << 3;
    /// Channel 0: the send FIFO is at its watermark or below.
    pub const WM0: u32 = 1 << 2;
    /// Channel 1: the same.
    pub const WM1: u32 = 1 << 1;
    /// In [`super::INJ_PIXEN`]: enables the injection interface. While it is 0, no packet leaves
    /// the send FIFOs.
    pub const ENABLE: u32 = 1 << 0;
    /// Bits that this NIC can set.
    pub const ALL: u32 = 0x00f0_007e;
}

/// Payload checksum of channel 0's injected packets (read, write): the sum, modulo 2^32, of the
/// payloads' 16-bit big-endian words. The headers' checksum modes select the words. [`INJ_CSHD0`]
/// follows, and then the same two for channel 1.
pub const INJ_CSPY0: u64 = 0x4c;
/// Header checksum of channel 0's injected packets (read, write): the sum, modulo 2^32, of the
/// headers.
pub const INJ_CSHD0: u64 = 0x4d;
/// Payload checksum of channel 1's injected packets: see [`INJ_CSPY0`].
pub const INJ_CSPY1: u64 = 0x4e;
/// Header checksum of channel 1's injected packets: see [`INJ_CSHD0`].
pub const INJ_CSHD1: u64 = 0x4f;

/// Checksum modes of a packet's header ([`crate::tree::Header::checksum_mode`]).
pub mod checksum {
    /// Neither checksum includes the packet.
    pub const NONE: u32 = 0;
    /// Header, and the payload without its first quad.
    pub const SOME: u32 = 1;
    /// Header, and the payload without the number of 16-bit words in the channel's [`super::vcfg`].
    pub const CFG: u32 = 2;
    /// Header and payload.
    pub const ALL: u32 = 3;
}

/// Number of packets that port 0's sender retransmitted (read), for both channels together. Ports 1
/// and 2 follow in steps of 4.
pub const ERR_S0_RETRY: u64 = 0x62;

/// Returns the error word of the channel mirror ([`crate::tree::mirror::ERROR`]), watermarks
/// included.
///
/// | bits | content |
/// | --- | --- |
/// | 31..22 | bits 25..16 of [`pix`], the channel's injection exceptions |
/// | 21..16 | bits 6..1 of [`pix`] |
/// | 15..8 | bits 23..16 of [`prx`], the channel's receive exceptions |
/// | 5..0 | bits 5..0 of [`prx`] |
pub const fn error_word(prx: u32, pix: u32) -> u32 {
    let receive = ((prx >> 8) & 0xff00) | (prx & 0x3f);
    let inject = ((pix >> 10) & 0xffc0) | ((pix >> 1) & 0x3f);
    receive | (inject << 16)
}

/// The exceptions of a channel's error word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelExceptions {
    /// Receive exceptions: bits of [`prx`].
    pub receive: u32,
    /// Injection exceptions: bits of [`pix`].
    pub inject: u32,
}

/// Returns the exceptions of an error word.
pub const fn exceptions(error_word: u32) -> ChannelExceptions {
    let (receive, inject) = (error_word & 0xffff, error_word >> 16);
    ChannelExceptions {
        receive: ((receive & 0xff00) << 8) | (receive & 0x3f),
        inject: ((inject & 0xffc0) << 10) | ((inject & 0x3f) << 1),
    }
}

const _: () = {
    let decoded = exceptions(error_word(prx::ALL, pix::ALL));
    assert!(decoded.receive == prx::ALL && decoded.inject == pix::ALL);
};

/// The global interrupt (barrier) unit of a node, with 4 channels. All registers are 32 bits wide.
///
/// A channel is *direct* or *sticky*. A direct channel is a level that software drives; its state
/// is the OR over all nodes. A sticky channel is armed for AND, as a barrier, or for OR, as a
/// notification.
///
/// A node that takes part in a sticky channel fires. When all participants have fired (AND), or any
/// has (OR), the channel's interrupt bit is set at every participant. It stays set until it is
/// disarmed. The fired levels fall by themselves. Cores use channels 0 and 1, the admin attachment
/// all of them.
pub mod gi {
    /// Start of the unit in BAR 0.
    pub const BASE: u64 = 0x2000;
    /// Number of channels.
    pub const CHANNELS: u64 = 4;
    /// First channel of the system.
    pub const PRIVILEGED: u64 = 2;
    /// Read: the status word. Write at `16 * channel`: in direct mode, bit 0 is the level to drive.
    pub const STATE: u64 = 0x00;
    /// Write at `+ 16 * channel`: bit 0 says whether this node takes part. At power-on compute
    /// nodes do. Other nodes hold up no barrier and get no interrupt.
    pub const PARTICIPATE: u64 = 0x40;
    /// Write at `+ 16 * channel`: 1 fires, 0 disarms: it clears the sticky interrupt and withdraws
    /// the fired level. Posted writes are allowed.
    pub const STICKY: u64 = 0x80;
    /// Write at `+ 16 * channel`: type of the sticky mode in bit 0: 0 is OR, 1 is AND.
    pub const ARM_TYPE: u64 = 0xc0;
    /// Size of the unit.
    pub const SIZE: u64 = 0x100;

    /// Status: sticky mode of channel 0. The bit of channel `n` is shifted right by `n`. The other
    /// status bits have the same layout.
    pub const MODE: u32 = 1 << 31;
    /// Status: the sticky interrupt is set.
    pub const STICKY_INT: u32 = 1 << 27;
    /// Status: fired and not complete.
    pub const STICKY_ACTIVE: u32 = 1 << 23;
    /// Status: the type of the sticky mode is AND.
    pub const STICKY_TYPE: u32 = 1 << 19;
    /// Status: at least one node drives the channel high.
    pub const RECV_STATE: u32 = 1 << 11;
    /// Status: this node takes part.
    pub const PARTICIPATES: u32 = 1 << 7;
    /// Status: this node drives the channel high.
    pub const SEND_STATE: u32 = 1 << 3;
}

/// Interrupt enable of the accessing attachment (BAR 0, 32-bit, read-write, posted writes allowed).
/// Bit `v` enables vector `v` of [`crate::tree::vector`]. Software should write it just before it
/// waits. The write evaluates all conditions, including the receive read pointer, and raises each
/// enabled vector whose condition holds.
///
/// Afterwards an enabled vector is raised by these events:
///
/// - `RECV_IRQ`: an irq-marked packet enters the receive FIFO.
/// - `WATERMARK`: a watermark condition begins.
/// - `ERROR`: an error bit becomes set.
/// - `PRESENCE`: a presence entry changes.
/// - `GLOBAL_INT`: a channel's sticky interrupt becomes set.
pub const REG_INT_ENABLE: u64 = 0x3000;
/// Conditions that hold now, one bit for each vector (BAR 0, 32-bit, read). `PRESENCE` holds from a
/// change until it is raised.
pub const REG_INT_STATUS: u64 = 0x3004;
/// Size of these registers in BAR 0.
pub const REGISTERS: u64 = 0x4000;

/// Owner in a lock box (bits 15..0 of [`crate::tree::window::LOCK`]) while the NIC itself holds it.
/// The NIC does so for a few instructions, to discard packets of a dead reader.
pub const LOCK_OWNER_NIC: u32 = 0xffff;

/// The fields of [`REC_PRXF`] and [`REC_PRXEN`].
const PRX_FIELDS: &[Field] = &[
    Field::mask("ALIGN0", prx::ALIGN0 as u64),
    Field::mask("ALIGN1", prx::ALIGN1 as u64),
    Field::mask("ADDR0", prx::ADDR0 as u64),
    Field::mask("ADDR1", prx::ADDR1 as u64),
    Field::mask("PFU0", prx::PFU0 as u64),
    Field::mask("PFU1", prx::PFU1 as u64),
    Field::mask("HFU0", prx::HFU0 as u64),
    Field::mask("HFU1", prx::HFU1 as u64),
    Field::mask("WM0", prx::WM0 as u64),
    Field::mask("WM1", prx::WM1 as u64),
];
/// The fields of [`INJ_PIXF`] and [`INJ_PIXEN`].
const PIX_FIELDS: &[Field] = &[
    Field::mask("ALIGN0", pix::ALIGN0 as u64),
    Field::mask("ALIGN1", pix::ALIGN1 as u64),
    Field::mask("ADDR0", pix::ADDR0 as u64),
    Field::mask("ADDR1", pix::ADDR1 as u64),
    Field::mask("PFO0", pix::PFO0 as u64),
    Field::mask("PFO1", pix::PFO1 as u64),
    Field::mask("HFO0", pix::HFO0 as u64),
    Field::mask("HFO1", pix::HFO1 as u64),
    Field::mask("WM0", pix::WM0 as u64),
    Field::mask("WM1", pix::WM1 as u64),
    Field::mask("ENABLE", pix::ENABLE as u64),
];
/// The fields of the status word of a virtual channel.
pub(crate) const STATUS_FIELDS: &[Field] = &[
    Field::bits("IPY", 31, 24),
    Field::bits("IHD", 19, 16),
    Field::bits("RPY", 15, 8),
    Field::mask("IRQ", status::IRQ as u64),
    Field::bits("RHD", 3, 0),
];
/// The fields of the status word of the global interrupts: a bit for each channel, that of channel
/// 0 highest.
pub(crate) const GI_FIELDS: &[Field] = &[
    Field::bits("MODE", 31, 28),
    Field::bits("STICKY_INT", 27, 24),
    Field::bits("STICKY_ACTIVE", 23, 20),
    Field::bits("STICKY_TYPE", 19, 16),
    Field::bits("RECV_STATE", 11, 8),
    Field::bits("PARTICIPATES", 7, 4),
    Field::bits("SEND_STATE", 3, 0),
];
/// The vectors of an attachment.
const VECTOR_FIELDS: &[Field] = &[
    Field::bit("RECV_IRQ", vector::RECV_IRQ as u8),
    Field::bit("WATERMARK", vector::WATERMARK as u8),
    Field::bit("ERROR", vector::ERROR as u8),
    Field::bit("PRESENCE", vector::PRESENCE as u8),
    Field::bit("GLOBAL_INT", vector::GLOBAL_INT as u8),
];
/// The two classes of a route descriptor register. `SRC` and `TGT` have a bit for each port.
const ROUTE_FIELDS: &[Field] = &[
    Field::bits("LO_SRC", 30, 28),
    Field::bits("LO_TGT", 26, 24),
    Field::mask("LO_SRCL", (rdr::SRCL as u64) << 16),
    Field::mask("LO_TGTL", (rdr::TGTL as u64) << 16),
    Field::bits("HI_SRC", 14, 12),
    Field::bits("HI_TGT", 10, 8),
    Field::mask("HI_SRCL", rdr::SRCL as u64),
    Field::mask("HI_TGTL", rdr::TGTL as u64),
];

/// The declarations of the registers of BAR 0. A quad of the port is two registers of 8 bytes.
pub(crate) const REGISTER_MAP: &[Register] = &[
    Register::wo64("DI", 0, port::DI).array(2, 8).access(Access::Fifo).about("injects a quad"),
    Register::wo32("HI", 0, port::HI).access(Access::Fifo).about("injects a header"),
    Register::ro64("DR", 0, port::DR).array(2, 8).access(Access::Fifo).about("receives a quad"),
    Register::ro32("HR", 0, port::HR).access(Access::Fifo).about("receives a header"),
    Register::ro32("SX", 0, port::SX).fields(STATUS_FIELDS).about("status of the own channel"),
    Register::ro32("SO", 0, port::SO).fields(STATUS_FIELDS).about("status of the other channel"),
    Register::rw32("CLASS_RDR", 0, dcr(CLASS_RDR0)).array(CLASS_RDR_COUNT as u32, 4).fields(ROUTE_FIELDS),
    Register::rw32("ARB_RCFG", 0, dcr(ARB_RCFG)).about("router configuration").fields(&[
        Field::bit("SRC00", 31),
        Field::bit("SRC01", 30),
        Field::bit("TGT00", 29),
        Field::bit("TGT01", 28),
        Field::bit("SRC10", 27),
        Field::bit("SRC11", 26),
        Field::bit("TGT10", 25),
        Field::bit("TGT11", 24),
        Field::bit("SRC20", 23),
        Field::bit("SRC21", 22),
        Field::bit("TGT20", 21),
        Field::bit("TGT21", 20),
        Field::mask("MAN", rcfg::MAN as u64),
        Field::mask("RST", rcfg::RST as u64),
    ]),
    Register::ro32("ARB_RSTAT", 0, dcr(ARB_RSTAT)).about("router status").fields(&[
        Field::bits("WAITS0", 31, 28),
        Field::bits("WAITS1", 27, 24),
        Field::bits("FULL0", 23, 20),
        Field::bits("FULL1", 19, 16),
    ]),
    Register::ro32("ARB_HD", 0, dcr(ARB_HD00)).array(ARB_HD_COUNT as u32, 4).about("waiting headers"),
    Register::ro32("ARB_XSTAT", 0, dcr(ARB_XSTAT))
        .fields(&[Field::bits("BLOCKED0", 31, 28), Field::bits("BLOCKED1", 27, 24)]),
    Register::ro32("GLOB_FPTR", 0, dcr(GLOB_FPTR)).about("FIFO pointers").fields(&[
        Field::bits("INJ_PY0", 30, 28),
        Field::bits("INJ_HD0", 26, 24),
        Field::bits("INJ_PY1", 22, 20),
        Field::bits("INJ_HD1", 18, 16),
        Field::bits("REC_PY0", 14, 12),
        Field::bits("REC_HD0", 10, 8),
        Field::bits("REC_PY1", 6, 4),
        Field::bits("REC_HD1", 2, 0),
    ]),
    Register::ro32("GLOB_NADDR", 0, dcr(GLOB_NADDR)).about("node address"),
    Register::rw32("GLOB_VCFG", 0, dcr(GLOB_VCFG0)).array(2, 4).about("channel configuration").fields(&[
        Field::bits("CSUMX", 23, 16),
        Field::bits("RWM", 10, 8),
        Field::bits("IWM", 2, 0),
    ]),
    Register::ro32("REC_PRXF", 0, dcr(REC_PRXF)).access(Access::ReadClears).fields(PRX_FIELDS),
    Register::rw32("REC_PRXEN", 0, dcr(REC_PRXEN)).fields(PRX_FIELDS),
    Register::ro32("INJ_PIXF", 0, dcr(INJ_PIXF)).access(Access::ReadClears).fields(PIX_FIELDS),
    Register::rw32("INJ_PIXEN", 0, dcr(INJ_PIXEN)).fields(PIX_FIELDS),
    Register::rw32("INJ_CSPY", 0, dcr(INJ_CSPY0)).array(2, 8).about("payload checksums"),
    Register::rw32("INJ_CSHD", 0, dcr(INJ_CSHD0)).array(2, 8).about("header checksums"),
    Register::ro32("ERR_RETRY", 0, dcr(ERR_S0_RETRY)).array(PORTS as u32, 16).about("retransmissions"),
    Register::rw32("GI_STATE", 0, gi::BASE + gi::STATE)
        .array(gi::CHANNELS as u32, 16)
        .fields(GI_FIELDS)
        .about("read at 0: status; write: the level to drive"),
    Register::wo32("GI_PARTICIPATE", 0, gi::BASE + gi::PARTICIPATE).array(gi::CHANNELS as u32, 16),
    Register::wo32("GI_STICKY", 0, gi::BASE + gi::STICKY)
        .array(gi::CHANNELS as u32, 16)
        .about("1 fires, 0 disarms"),
    Register::wo32("GI_ARM_TYPE", 0, gi::BASE + gi::ARM_TYPE)
        .array(gi::CHANNELS as u32, 16)
        .fields(&[Field::bit("TYPE", 0).values(&[(0, "OR"), (1, "AND")])]),
    Register::rw32("INT_ENABLE", 0, REG_INT_ENABLE).fields(VECTOR_FIELDS),
    Register::ro32("INT_STATUS", 0, REG_INT_STATUS).fields(VECTOR_FIELDS),
];
