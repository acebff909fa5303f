//! The tree NIC's port interface, device control registers, barrier unit and interrupt registers
//! (BAR 0, trapped).
//!
//! Names and bit positions are those of the Blue Gene/P collective network, and of the Blue Gene/L
//! global interrupts. Registers are little-endian; bits are numbered from the least significant
//! one, 0 (IBM's manuals count from the other end).
//!
//! | offset | what |
//! | --- | --- |
//! | 0x0000 | [`port`] of the accessing attachment's virtual channel |
//! | 0x1000 | device control registers, [`dcr`]`(number)` |
//! | 0x2000 | global interrupts, [`gi`] |
//! | 0x3000 | interrupts of the accessing attachment |
//!
//! An access that no register takes reads as ones, writes nothing, and sets an error bit of the
//! attachment's channel: `ALIGN` for a wrong width or alignment, `ADDR` for an address that does
//! not exist or does not go that way. Reads set bits of [`REC_PRXF`], writes of [`INJ_PIXF`]. The
//! bits with a 0 stand for the processor port of cores 0 and 1 and of the admin attachment, those
//! with a 1 for that of cores 2 and 3.
//!
//! The slots of [`crate::tree`] know no alignment, address, under-run or overflow of accesses: the
//! only error they can cause is a bad receive read pointer ([`prx::PFU0`], [`prx::PFU1`]).

/// The port: a window of 0x60 bytes onto one virtual channel's FIFOs. A quad is 16 bytes; a 16-byte
/// access may come as two of 8 bytes, lower half first.
///
/// Injection: a header pushed and 16 quads pushed, in any order, make a packet. Reception: headers
/// and payloads are popped on their own; a packet's room is free when its header and all its quads
/// have been read. Headers are in host order, as [`crate::tree::Header`].
pub mod port {
    /// Data injection (write, 16 bytes): pushes a quad. Full: the quad is lost and
    /// [`super::pix::PFO0`] set.
    pub const DI: u64 = 0x00;
    /// Header injection (write, 4 bytes). Full: the header is lost and [`super::pix::HFO0`] set.
    pub const HI: u64 = 0x10;
    /// Data reception (read, 16 bytes): pops a quad. Empty: reads as ones, sets
    /// [`super::prx::PFU0`].
    pub const DR: u64 = 0x20;
    /// Header reception (read, 4 bytes): pops a header. Empty: reads as ones, sets
    /// [`super::prx::HFU0`].
    pub const HR: u64 = 0x30;
    /// Status of this virtual channel (read, 4 bytes): see [`super::status`].
    pub const SX: u64 = 0x40;
    /// Status of the other virtual channel (read, 4 bytes).
    pub const SO: u64 = 0x50;
    /// Size of the port in bytes.
    pub const SIZE: u64 = 0x60;
}

/// The status word of a virtual channel. A count that does not fit shows its greatest value.
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

    /// The word for these counts.
    pub const fn word(send_quads: u32, send_headers: u32, quads: u32, irq: bool, headers: u32) -> u32 {
        (limit(send_quads, 0xff) << IPY_SHIFT)
            | (limit(send_headers, 0xf) << IHD_SHIFT)
            | (limit(quads, 0xff) << RPY_SHIFT)
            | if irq { IRQ } else { 0 }
            | (limit(headers, 0xf) << RHD_SHIFT)
    }

    const fn limit(value: u32, most: u32) -> u32 {
        if value < most { value } else { most }
    }

    /// Headers in the send FIFO.
    pub const fn send_headers(word: u32) -> u32 {
        (word >> IHD_SHIFT) & 0xf
    }
    /// Quads in the send FIFO.
    pub const fn send_quads(word: u32) -> u32 {
        (word >> IPY_SHIFT) & 0xff
    }
    /// Headers in the receive FIFO.
    pub const fn headers(word: u32) -> u32 {
        (word >> RHD_SHIFT) & 0xf
    }
    /// Quads in the receive FIFO.
    pub const fn quads(word: u32) -> u32 {
        (word >> RPY_SHIFT) & 0xff
    }
}

/// First device control register. All are 32 bits wide. Every attachment reads them; only the admin
/// attachment's writes count, others are ignored and set `ADDR`.
pub const DCR_BASE: u64 = 0x1000;
/// Device control registers there are room for.
pub const DCR_COUNT: u64 = 0x80;

/// Offset in BAR 0 of the device control register `number` (relative to the tree's first, 0xc00 on
/// the chip).
pub const fn dcr(number: u64) -> u64 {
    DCR_BASE + 4 * number
}

/// Route descriptor register 0 of 8 (read, write): classes `2n` (high half, "LO") and `2n + 1` (low
/// half, "HI"), each as [`rdr`] says; the two virtual channels share it. Bits outside
/// [`rdr::ACCEPT`] read as 0.
pub const CLASS_RDR0: u64 = 0x00;
/// Number of route descriptor registers.
pub const CLASS_RDR_COUNT: u64 = 8;

/// The 16 bits that describe a class at a node.
///
/// Packets go *up* from the sources to the target port, are combined on the way if their opcode
/// says so, turn round at the node whose route has no target port, and go *down* from target ports
/// to source ports. A node delivers what comes down to its own receive FIFO if the local target bit
/// is set.
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
    /// Every bit with a meaning.
    pub const ACCEPT: u16 = 0x7703;
}

/// General router configuration (read, write): [`rcfg`].
pub const ARB_RCFG: u64 = 0x10;
/// Bits of [`ARB_RCFG`].
pub mod rcfg {
    /// Disable source port `p`, virtual channel `c`: shift by `4 * p + c` to the right.
    pub const SRC00: u32 = 1 << 31;
    /// Disable target port `p`, virtual channel `c`: shift by `4 * p + c` to the right.
    pub const TGT00: u32 = 1 << 29;
    /// Manual mode: the router stands still.
    pub const MAN: u32 = 1 << 1;
    /// Soft reset, reads as 0: both channels' FIFOs and the router are emptied, errors and
    /// checksums cleared. Routes, watermarks and enables stay.
    pub const RST: u32 = 1 << 0;
    /// Bits that can be written.
    pub const WRITABLE: u32 = 0xfff0_0000 | MAN | RST;
}
/// General router status (read): bits 31..28 and 27..24 a packet waits in port 2, 1, 0, the send
/// FIFO of virtual channel 0 and 1; bits 23..20 and 19..16 port 2, 1, 0, the receive FIFO has no
/// room, of virtual channel 0 and 1.
pub const ARB_RSTAT: u64 = 0x13;
/// Header of the packet that waits in port 0, virtual channel 0 (read; 0 if none). Then port 0
/// channel 1, port 1, port 2, and at +6 and +7 the send FIFO of channel 0 and 1; the rest reads as
/// 0.
pub const ARB_HD00: u64 = 0x14;
/// Number of these registers.
pub const ARB_HD_COUNT: u64 = 11;

/// Extended router status (read): bits 31..28 the packet that is first in port 2, 1, 0, the send
/// FIFO of virtual channel 0 has to wait; bits 27..24 the same of channel 1.
pub const ARB_XSTAT: u64 = 0x1f;

/// FIFO pointers (read): 3 bits each, modulo 8, from bit 28 down in steps of 4: injection payload
/// and header of channel 0, of channel 1; reception payload and header of channel 0, of channel 1.
pub const GLOB_FPTR: u64 = 0x40;
/// Node address (read), 24 bits. The machine gives it.
pub const GLOB_NADDR: u64 = 0x41;
/// Configuration of virtual channel 0 (read, write): [`vcfg`]. Channel 1 is the next one.
pub const GLOB_VCFG0: u64 = 0x42;
/// Configuration of virtual channel 1.
pub const GLOB_VCFG1: u64 = 0x43;
/// Bits of [`GLOB_VCFG0`].
pub mod vcfg {
    /// Bits 23..16: 16-bit words at the start of the payload that checksum mode 2 leaves out.
    pub const CSUMX_SHIFT: u32 = 16;
    /// Bits 10..8: receive watermark: [`super::prx::WM0`] holds while more packets than this are in
    /// the receive FIFO, in eighths of its depth.
    pub const RWM_SHIFT: u32 = 8;
    /// Bits 2..0: send watermark: [`super::pix::WM0`] holds while this many packets or fewer are in
    /// the send FIFO, in eighths of its depth.
    pub const IWM_SHIFT: u32 = 0;
    /// Bits that can be written.
    pub const WRITABLE: u32 = 0x00ff_0707;
}

/// Receive exception flags (read): [`prx`]. Reading gives and clears the errors of the reader's
/// channel; the admin's reading those of both. The watermark bits show the present state.
pub const REC_PRXF: u64 = 0x44;
/// Receive exception enable (read, write): errors and watermarks that can raise interrupts. All at
/// power-on.
pub const REC_PRXEN: u64 = 0x45;
/// Bits of [`REC_PRXF`] and [`REC_PRXEN`].
pub mod prx {
    /// Processor port 0: a read of a bad width or alignment.
    pub const ALIGN0: u32 = 1 << 21;
    /// Processor port 1: the same.
    pub const ALIGN1: u32 = 1 << 20;
    /// Processor port 0: a read of an address without a readable register.
    pub const ADDR0: u32 = 1 << 19;
    /// Processor port 1: the same.
    pub const ADDR1: u32 = 1 << 18;
    /// Channel 0: payload read from an empty FIFO, or a bad receive read pointer.
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

/// Injection exception flags (read): [`pix`]. As [`REC_PRXF`].
pub const INJ_PIXF: u64 = 0x48;
/// Injection exception enable (read, write). At power-on all but the watermarks.
pub const INJ_PIXEN: u64 = 0x49;
/// Bits of [`INJ_PIXF`] and [`INJ_PIXEN`].
pub mod pix {
    /// Processor port 0: a write of a bad width or alignment.
    pub const ALIGN0: u32 = 1 << 23;
    /// Processor port 1: the same.
    pub const ALIGN1: u32 = 1 << 22;
    /// Processor port 0: a write to an address without a writable register, or one that is not the
    /// writer's.
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
    /// In [`super::INJ_PIXEN`]: the injection interface works. While it is 0 nothing leaves the
    /// send FIFOs.
    pub const ENABLE: u32 = 1 << 0;
    /// Bits that this NIC can set.
    pub const ALL: u32 = 0x00f0_007e;
}

/// Payload checksum of what channel 0 has injected (read, write): the sum, modulo 2^32, of the
/// payloads' 16-bit big-endian words that the headers' checksum modes include. Then [`INJ_CSHD0`],
/// and the same for channel 1.
pub const INJ_CSPY0: u64 = 0x4c;
/// Header checksum of what channel 0 has injected (read, write): the sum, modulo 2^32, of the
/// headers.
pub const INJ_CSHD0: u64 = 0x4d;
/// As [`INJ_CSPY0`], of channel 1.
pub const INJ_CSPY1: u64 = 0x4e;
/// As [`INJ_CSHD0`], of channel 1.
pub const INJ_CSHD1: u64 = 0x4f;

/// Checksum modes of a packet's header ([`crate::tree::Header::checksum_mode`]).
pub mod checksum {
    /// In neither checksum.
    pub const NONE: u32 = 0;
    /// Header, and payload without its first quad.
    pub const SOME: u32 = 1;
    /// Header, and payload without as many 16-bit words as the channel's [`super::vcfg`] says.
    pub const CFG: u32 = 2;
    /// Header and payload.
    pub const ALL: u32 = 3;
}

/// Packets that port 0's sender transmitted again (read), both channels together. Ports 1 and 2
/// follow in steps of 4.
pub const ERR_S0_RETRY: u64 = 0x62;

/// The error word of the channel mirror ([`crate::tree::mirror::ERROR`]): the channel's receive
/// exceptions in bits 15..0 (bits 23..16 of [`prx`] in 15..8, bits 5..0 in 5..0), its injection
/// exceptions in bits 31..16 (bits 25..16 of [`pix`] in 31..22, bits 6..1 in 21..16). Watermarks
/// included.
pub const fn error_word(prx: u32, pix: u32) -> u32 {
    let receive = ((prx >> 8) & 0xff00) | (prx & 0x3f);
    let inject = ((pix >> 10) & 0xffc0) | ((pix >> 1) & 0x3f);
    receive | (inject << 16)
}

/// The exception flags ([`prx`], [`pix`]) of an error word.
pub const fn exceptions(error_word: u32) -> (u32, u32) {
    let (receive, inject) = (error_word & 0xffff, error_word >> 16);
    (((receive & 0xff00) << 8) | (receive & 0x3f), ((inject & 0xffc0) << 10) | ((inject & 0x3f) << 1))
}

const _: () = {
    let (prx, pix) = exceptions(error_word(prx::ALL, pix::ALL));
    assert!(prx == prx::ALL && pix == pix::ALL);
};

/// The global interrupt (barrier) unit, one a node. 4 channels; all registers are 32 bits wide.
///
/// A channel is *direct* (a level that software drives; its state is the OR over all nodes) or
/// *sticky*: armed for AND it makes a barrier, for OR a notification. A node that takes part fires;
/// when all of them have fired (AND), or any has (OR), the interrupt bit of the channel sticks at
/// every participant until it is disarmed, and what was fired is low again by itself. Cores use
/// channels 0 and 1, the admin attachment all.
pub mod gi {
    /// Start of the unit in BAR 0.
    pub const BASE: u64 = 0x2000;
    /// Channels.
    pub const CHANNELS: u64 = 4;
    /// First channel that is the system's.
    pub const PRIVILEGED: u64 = 2;
    /// Read: the status word. Write at `16 * channel`: direct mode, bit 0 is the level driven.
    pub const STATE: u64 = 0x00;
    /// Write at `+ 16 * channel`: bit 0 says whether this node takes part. At power-on compute
    /// nodes do. Nodes that take no part hold up no barrier and get no interrupt.
    pub const PARTICIPATE: u64 = 0x40;
    /// Write at `+ 16 * channel`: 1 fires, 0 disarms (clears the sticky interrupt and withdraws
    /// what was fired). Posted writes welcome.
    pub const STICKY: u64 = 0x80;
    /// Write at `+ 16 * channel`: sticky mode, bit 0: 0 OR, 1 AND.
    pub const ARM_TYPE: u64 = 0xc0;
    /// Size of the unit.
    pub const SIZE: u64 = 0x100;

    /// Status: sticky mode. Bit of channel `n`: shift right by `n`; so the others.
    pub const MODE: u32 = 1 << 31;
    /// Status: the sticky interrupt is set.
    pub const STICKY_INT: u32 = 1 << 27;
    /// Status: fired, and not complete yet.
    pub const STICKY_ACTIVE: u32 = 1 << 23;
    /// Status: sticky AND.
    pub const STICKY_TYPE: u32 = 1 << 19;
    /// Status: somebody drives the channel high.
    pub const RECV_STATE: u32 = 1 << 11;
    /// Status: this node takes part.
    pub const PARTICIPATES: u32 = 1 << 7;
    /// Status: this node drives the channel high.
    pub const SEND_STATE: u32 = 1 << 3;
}

/// Interrupt enable of the accessing attachment (BAR 0, 32-bit, read-write, posted writes welcome):
/// bit `v` enables vector `v` of [`crate::tree::vector`]. Write it just before waiting: the write
/// looks at all conditions afresh, the receive read pointer included, and raises each vector that
/// it leaves enabled and whose condition holds.
///
/// Then `RECV_IRQ` is raised whenever an irq-marked packet enters the receive FIFO, `WATERMARK`
/// when a watermark condition begins, `ERROR` when an error bit is set that was not, `PRESENCE`
/// when a presence entry changes, `GLOBAL_INT` when a channel's sticky interrupt is set.
pub const REG_INT_ENABLE: u64 = 0x3000;
/// Conditions that hold now, a bit a vector (BAR 0, 32-bit, read). `PRESENCE` holds from a change
/// until it was raised.
pub const REG_INT_STATUS: u64 = 0x3004;
/// Size of these registers in BAR 0.
pub const REGISTERS: u64 = 0x4000;

/// Owner in a lock box (bits 15..0 of [`crate::tree::window::LOCK`]) while the NIC itself holds it,
/// for the time of a few instructions, to discard packets of a dead reader.
pub const LOCK_OWNER_NIC: u32 = 0xffff;
