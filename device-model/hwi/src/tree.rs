//! The Blue Gene tree (collective) network NIC: packet header, slot interface, interrupts.
//!
//! The *port* interface and the device control registers are in [`crate::tree_dcr`].
//!
//! A function is a node's NIC. Its attachments are the four cores, which share the *user* virtual
//! channel (VC 1), and the admin attachment, which owns the *system* virtual channel (VC 0,
//! CIOD's). Each attachment sees the windows of its own channel only, at the same offsets.
//!
//! | BAR | what | access |
//! | --- | --- | --- |
//! | 0 | ports and device control registers | trapped |
//! | 1 | posted-write ring, private to the attachment | mapped, read-write |
//! | 2 | attachment mirror, private | mapped, read-only |
//! | 3 | channel windows ([`window`]), shared by the attachments of a channel | mapped, read-write |
//! | 4 | channel mirror ([`mirror`]), shared by the attachments of a channel | mapped, read-only |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Cores of a node: attachments 0 to 3.
pub const CORES: u16 = 4;
/// Attachment number of the admin attachment.
pub const ATTACHMENT_ADMIN: u16 = 4;
/// Virtual channel of the system (CIOD).
pub const VC_SYSTEM: usize = 0;
/// Virtual channel open to user space.
pub const VC_USER: usize = 1;
/// Virtual channels.
pub const VCS: usize = 2;
/// Tree ports of a node at most (links to other nodes).
pub const PORTS: usize = 3;
/// Payload of every packet in bytes.
pub const PAYLOAD: usize = 256;
/// Depth of each send and receive FIFO in packets unless the machine says otherwise. A depth is a
/// power of two, so that a packet's slot follows from its 32-bit number also when that wraps.
pub const DEFAULT_FIFO_DEPTH: u32 = 8;
/// The deepest FIFO that the windows have room for.
pub const MAX_FIFO_DEPTH: u32 = 256;
/// Node addresses that a machine can use: 0 to 1023 (the header has room for 24 bits).
pub const MAX_NODES: u32 = 1024;
/// BAR of the channel windows.
pub const BAR_WINDOW: u8 = 3;
/// BAR of the channel mirror.
pub const BAR_MIRROR: u8 = 4;

/// Bytes from one slot to the next.
pub const SLOT: u64 = 320;
/// Offset of the slot's control word (64 bits, written last, with release order): bits 31..0 are
/// `n + 1` modulo 2^32 when the slot holds packet `n` of its FIFO, bits 63..32 the packet's
/// [`Header`]. Packet `n` lives in slot `n % depth`.
pub const SLOT_CONTROL: u64 = 0;
/// Offset of the payload in the slot; 64-byte aligned.
pub const SLOT_PAYLOAD: u64 = 64;

/// Offsets in BAR 3, which software writes.
pub mod window {
    /// Send slots, written by software and read by the NIC. A slot may be written when the packets
    /// sent so far less [`super::mirror::SEND_HEAD`] are fewer than [`super::mirror::SEND_DEPTH`].
    /// Cores take turns under a lock box.
    pub const SEND: u64 = 0x0;
    /// Packets put into the send slots so far (32-bit). For software's own use under its lock box:
    /// the NIC follows the control words of the slots. When its writer died it may be behind by the
    /// slots that were written already.
    pub const SEND_TAIL: u64 = 0x1_8000;
    /// Packets taken out of the receive slots so far (32-bit). Writing it frees slots; the NIC
    /// polls it. A value that is not between the last one and [`super::mirror::RECV_TAIL`] sets an
    /// error bit and is ignored.
    pub const RECV_HEAD: u64 = 0x1_8040;
    /// Lock boxes: [`LOCK_BOXES`] words of 32 bits, [`LOCK_STRIDE`] bytes apart. 0 is free. A core
    /// takes one by compare-and-swap from 0 to a value whose bits 15..0 are its attachment number +
    /// 1; bits 31..16 are its own. The NIC frees the boxes of an attachment that ends.
    pub const LOCK: u64 = 0x1_9000;
    /// Number of lock boxes.
    pub const LOCK_BOXES: u64 = 64;
    /// Bytes between two lock boxes.
    pub const LOCK_STRIDE: u64 = 64;
    /// The lock box that guards the receive FIFO by convention. When its owner dies, the NIC
    /// discards packets without the irq bit until it sees the box taken, or [`RECV_HEAD`] moved; so
    /// that a dead reader does not block the tree; but only while no irq-marked packet is in the
    /// receive FIFO, since what follows one may be for a reader that lives. Packets that name their
    /// core ([`super::Header::to_core`]) have no such rule: those for a core without a client go at
    /// once, marked or not, whoever has taken the box since.
    pub const LOCK_RECV: u64 = 0;
    /// The lock box that guards the send FIFO by convention.
    pub const LOCK_SEND: u64 = 1;
    /// Memory that the cores of the node share (the chip's SRAM); the NIC never looks at it.
    pub const SRAM: u64 = 0x1_a000;
    /// Bytes of [`SRAM`].
    pub const SRAM_SIZE: u64 = 0x4000;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x2_0000;
}

/// Offsets in BAR 4, which the NIC writes. Words of 32 bits.
pub mod mirror {
    /// This node's address, 0 to 1023.
    pub const NODE_ADDRESS: u64 = 0x00;
    /// The virtual channel of these windows.
    pub const CHANNEL: u64 = 0x04;
    /// Packets the send FIFO holds.
    pub const SEND_DEPTH: u64 = 0x08;
    /// Packets the receive FIFO holds.
    pub const RECV_DEPTH: u64 = 0x0c;
    /// Addresses in use in this machine: the entries of [`PRESENCE`] that mean something.
    pub const NODES: u64 = 0x10;
    /// Address of the I/O node of this node's pset.
    pub const IO_NODE: u64 = 0x14;
    /// This node's rank among the compute nodes of its pset; 0xffffffff on the I/O node.
    pub const PSET_RANK: u64 = 0x18;
    /// Number of compute nodes in the pset.
    pub const PSET_SIZE: u64 = 0x1c;
    /// Packets the NIC has taken out of the send slots so far.
    pub const SEND_HEAD: u64 = 0x40;
    /// Packets the NIC has put into the receive slots so far.
    pub const RECV_TAIL: u64 = 0x80;
    /// Packets with the irq bit among those in the receive slots.
    pub const RECV_IRQ: u64 = 0xc0;
    /// Status word in the format of the port's status register.
    pub const STATUS: u64 = 0x100;
    /// Error bits (reception exceptions in bits 15..0, injection exceptions in bits 31..16; see
    /// [`crate::tree_dcr`]).
    pub const ERROR: u64 = 0x104;
    /// Global interrupt network: see [`crate::tree_dcr`].
    pub const GLOBAL_INT: u64 = 0x140;
    /// Counts up whenever an entry of [`PRESENCE`] changes.
    pub const PRESENCE_CHANGES: u64 = 0x180;
    /// Presence, a word a node address: byte `c` is the generation of core `c` as this channel has
    /// heard of it, odd while the core is up. The news travels behind the packets the core sent:
    /// once a core is seen down, all that it sent over this channel is in the receive slots
    /// already.
    pub const PRESENCE: u64 = 0x1000;
    /// Receive slots, written by the NIC.
    pub const RECV: u64 = 0x4000;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x2_0000;
}

/// MSI-X vectors of an attachment. Each is raised when its condition becomes true while enabled,
/// and when it is enabled while its condition holds ([`crate::tree_dcr::REG_INT_ENABLE`]).
pub mod vector {
    /// An irq-marked packet is in the receive FIFO.
    pub const RECV_IRQ: u16 = 0;
    /// A watermark was passed.
    pub const WATERMARK: u16 = 1;
    /// An error bit is set.
    pub const ERROR: u16 = 2;
    /// A presence entry changed.
    pub const PRESENCE: u16 = 3;
    /// The global interrupt network fired.
    pub const GLOBAL_INT: u16 = 4;
    /// Number of vectors.
    pub const COUNT: u16 = 5;
}

/// ALU operations on packets that are combined (Blue Gene/L paper, section 2). All integers are
/// unsigned and big-endian within the operand, as the machine's processors store them.
pub mod opcode {
    /// No operand: an ordinary routed (broadcast) packet.
    pub const NONE: u32 = 0;
    /// Bitwise or.
    pub const OR: u32 = 1;
    /// Bitwise and.
    pub const AND: u32 = 2;
    /// Bitwise exclusive or.
    pub const XOR: u32 = 3;
    /// Unsigned maximum.
    pub const MAX: u32 = 5;
    /// Unsigned addition, carry out of the operand lost.
    pub const ADD: u32 = 6;
}

/// The 4-byte header of a packet.
///
/// Bits 31..28 class, 27 point-to-point, 26 irq; then point-to-point: 25..2 target address;
/// otherwise: 25..23 opcode, 22..16 operand size (16-bit words less one), 15..2 tag; always 1..0
/// checksum mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Header(pub u32);

/// In the target of a point-to-point packet: the node, whether a core is named, which.
const NODE: u32 = 0x1f_ffff;
const FOR_CORE: u32 = 1 << 23;
const CORE_SHIFT: u32 = 21;

impl Header {
    /// A point-to-point packet to node `target` (24 bits) by the routes of `class` (4 bits).
    pub const fn point_to_point(class: u32, target: u32, irq: bool) -> Self {
        Self(((class & 0xf) << 28) | (1 << 27) | ((irq as u32) << 26) | ((target & 0xff_ffff) << 2))
    }

    /// A point-to-point packet for core `core` (0 to 3) of node `node` (21 bits). It is received as
    /// any other; but when that core has no client the NIC of the node discards it, wherever in the
    /// receive FIFO it is, so that it is in nobody's way.
    pub const fn to_core(class: u32, node: u32, core: u16, irq: bool) -> Self {
        let target = (node & NODE) | FOR_CORE | ((core as u32 & 3) << CORE_SHIFT);
        Self::point_to_point(class, target, irq)
    }

    /// A packet that goes by class: combined with `opcode` over operands of `operand_words` 16-bit
    /// words (1 to 128) going up, broadcast going down. With [`opcode::NONE`] it is not combined.
    pub const fn collective(class: u32, opcode: u32, operand_words: u32, tag: u32, irq: bool) -> Self {
        Self(
            ((class & 0xf) << 28)
                | ((irq as u32) << 26)
                | ((opcode & 7) << 23)
                | ((operand_words.wrapping_sub(1) & 0x7f) << 16)
                | ((tag & 0x3fff) << 2),
        )
    }

    /// Class, 0 to 15.
    pub const fn class(self) -> u32 {
        self.0 >> 28
    }
    /// Whether this is a point-to-point packet.
    pub const fn is_point_to_point(self) -> bool {
        self.0 & (1 << 27) != 0
    }
    /// Whether the receiver asks for an interrupt.
    pub const fn irq(self) -> bool {
        self.0 & (1 << 26) != 0
    }
    /// Target of a point-to-point packet: bits 20..0 the address of the node; bit 23 is set when
    /// bits 22..21 name a core.
    pub const fn target(self) -> u32 {
        (self.0 >> 2) & 0xff_ffff
    }
    /// Address of the node that a point-to-point packet is for.
    pub const fn node(self) -> u32 {
        self.target() & NODE
    }
    /// The core that a point-to-point packet is for, if it names one.
    pub const fn core(self) -> Option<u16> {
        let named = self.is_point_to_point() && self.target() & FOR_CORE != 0;
        if named { Some(((self.target() >> CORE_SHIFT) & 3) as u16) } else { None }
    }
    /// Opcode of a collective packet.
    pub const fn opcode(self) -> u32 {
        (self.0 >> 23) & 7
    }
    /// Operand size of a collective packet in bytes, 2 to 256.
    pub const fn operand_bytes(self) -> usize {
        ((((self.0 >> 16) & 0x7f) + 1) * 2) as usize
    }
    /// Tag of a collective packet.
    pub const fn tag(self) -> u32 {
        (self.0 >> 2) & 0x3fff
    }
    /// Injection checksum mode.
    pub const fn checksum_mode(self) -> u32 {
        self.0 & 3
    }
}
