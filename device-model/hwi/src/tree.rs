//! The Blue Gene tree (collective) network NIC: packet header, slot interface, interrupts.
//!
//! [`crate::tree_dcr`] has the *port* interface and the device control registers.
//!
//! A function is a node's NIC. Its attachments are the four cores and the admin attachment. The
//! cores share the *user* virtual channel (VC 1); the admin attachment owns the *system* virtual
//! channel (VC 0, used by CIOD). Each attachment sees only the windows of its own channel. Both
//! channels have them at the same offsets.
//!
//! | BAR | contents | access |
//! | --- | --- | --- |
//! | 0 | ports and device control registers | trapped |
//! | 1 | posted-write ring, private to the attachment | mapped, read-write |
//! | 2 | attachment mirror, private | mapped, read-only |
//! | 3 | channel windows ([`window`]), shared within a channel | mapped, read-write |
//! | 4 | channel mirror ([`mirror`]), shared within a channel | mapped, read-only |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    register::{Field, Register, joined},
    tree_dcr::{self, GI_FIELDS, STATUS_FIELDS},
};

/// Number of cores of a node: attachments 0 to 3.
pub const CORES: u16 = 4;
/// Attachment number of the admin attachment.
pub const ATTACHMENT_ADMIN: u16 = 4;
/// Virtual channel of the system (CIOD).
pub const VC_SYSTEM: usize = 0;
/// Virtual channel open to user space.
pub const VC_USER: usize = 1;
/// Number of virtual channels.
pub const VCS: usize = 2;
/// Largest number of tree ports of a node, which are links to other nodes.
pub const PORTS: usize = 3;
/// Payload of every packet in bytes.
pub const PAYLOAD: usize = 256;
/// Default depth of each send and receive FIFO in packets; the machine's description can set
/// another. A depth is a power of two, so that a packet's slot also follows from its 32-bit number
/// when that wraps.
pub const DEFAULT_FIFO_DEPTH: u32 = 8;
/// Largest depth of a FIFO, limited by the windows.
pub const MAX_FIFO_DEPTH: u32 = 256;
/// Number of node addresses of a machine: 0 to 1023. The header has room for 24 bits.
pub const MAX_NODES: u32 = 1024;
/// BAR of the channel windows.
pub const BAR_WINDOW: u8 = 3;
/// BAR of the channel mirror.
pub const BAR_MIRROR: u8 = 4;

/// Distance of two slots in bytes.
pub const SLOT: u64 = 320;
/// Offset of the slot's control word. It has 64 bits and is written last, with release order. Bits
/// 31..0 are `n + 1` modulo 2^32 when the slot holds packet `n` of its FIFO; bits 63..32 are the
/// packet's [`Header`]. Packet `n` lies in slot `n % depth`.
pub const SLOT_CONTROL: u64 = 0;
/// Offset of the payload in the slot, aligned to 64 bytes.
pub const SLOT_PAYLOAD: u64 = 64;

/// Offsets in BAR 3, which software writes.
pub mod window {
    /// Send slots, written by software and read by the NIC. A slot may be written while the number
    /// of packets sent, minus [`super::mirror::SEND_HEAD`], is less than
    /// [`super::mirror::SEND_DEPTH`]. Cores share the slots under a lock box.
    pub const SEND: u64 = 0x0;
    /// Number of packets put into the send slots so far (32-bit). It serves software alone, under
    /// its lock box: the NIC follows the control words of the slots. After the death of a writer it
    /// may not count the slots that were already written.
    pub const SEND_TAIL: u64 = 0x1_8000;
    /// Number of packets taken out of the receive slots so far (32-bit). Writing it frees slots;
    /// the NIC polls it. A value below the last one or above [`super::mirror::RECV_TAIL`] sets an
    /// error bit and is ignored.
    pub const RECV_HEAD: u64 = 0x1_8040;
    /// Lock boxes: [`LOCK_BOXES`] words of 32 bits, [`LOCK_STRIDE`] bytes apart. A value of 0 means
    /// free. A core takes a box by compare-and-swap from 0 to a value of its own. Bits 15..0 of
    /// that are its attachment number + 1; bits 31..16 are free for its use. The NIC frees the
    /// boxes of an attachment that ends.
    pub const LOCK: u64 = 0x1_9000;
    /// Number of lock boxes.
    pub const LOCK_BOXES: u64 = 64;
    /// Distance of two lock boxes in bytes.
    pub const LOCK_STRIDE: u64 = 64;
    /// The lock box that guards the receive FIFO by convention.
    ///
    /// When its owner dies, the NIC discards packets without the irq bit, so that a dead reader
    /// does not block the tree. It stops when the box is taken or [`RECV_HEAD`] moves. It discards
    /// only while no irq-marked packet is in the receive FIFO, since the packets after one may be
    /// for a live reader.
    ///
    /// Packets that name their core ([`super::Header::to_core`]) are exempt from this rule. Those
    /// that arrive for a core without a client are discarded on arrival, marked or not. Those that
    /// were in the FIFO before go when they are at its front and no live core has the box.
    pub const LOCK_RECV: u64 = 0;
    /// The lock box that guards the send FIFO by convention.
    pub const LOCK_SEND: u64 = 1;
    /// Memory that the cores of the node share (the chip's SRAM). The NIC does not read it.
    pub const SRAM: u64 = 0x1_a000;
    /// Size of [`SRAM`] in bytes.
    pub const SRAM_SIZE: u64 = 0x4000;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x2_0000;
}

/// Offsets in BAR 4, which the NIC writes. All words have 32 bits.
pub mod mirror {
    /// This node's address, 0 to 1023.
    pub const NODE_ADDRESS: u64 = 0x00;
    /// The virtual channel of these windows.
    pub const CHANNEL: u64 = 0x04;
    /// Capacity of the send FIFO in packets.
    pub const SEND_DEPTH: u64 = 0x08;
    /// Capacity of the receive FIFO in packets.
    pub const RECV_DEPTH: u64 = 0x0c;
    /// Number of node addresses in use, and thus of valid entries of [`PRESENCE`].
    pub const NODES: u64 = 0x10;
    /// Address of the I/O node of this node's pset.
    pub const IO_NODE: u64 = 0x14;
    /// This node's rank among the compute nodes of its pset, or 0xffffffff on the I/O node.
    pub const PSET_RANK: u64 = 0x18;
    /// Number of compute nodes in the pset.
    pub const PSET_SIZE: u64 = 0x1c;
    /// Number of packets that the NIC has taken out of the send slots so far.
    pub const SEND_HEAD: u64 = 0x40;
    /// Number of packets that the NIC has put into the receive slots so far.
    pub const RECV_TAIL: u64 = 0x80;
    /// Number of packets with the irq bit in the receive slots.
    pub const RECV_IRQ: u64 = 0xc0;
    /// Status word in the format of the port's status register.
    pub const STATUS: u64 = 0x100;
    /// Error bits: reception exceptions in bits 15..0, injection exceptions in bits 31..16 (see
    /// [`crate::tree_dcr`]).
    pub const ERROR: u64 = 0x104;
    /// Global interrupt network: see [`crate::tree_dcr`].
    pub const GLOBAL_INT: u64 = 0x140;
    /// Counter that increases whenever an entry of [`PRESENCE`] changes.
    pub const PRESENCE_CHANGES: u64 = 0x180;
    /// Presence: one word for each node address. Byte `c` is the generation of core `c` that this
    /// channel knows, odd while the core is up. A change of presence travels after the packets
    /// that the core sent. When a core shows as down, all its packets over this channel are already
    /// in the receive slots.
    pub const PRESENCE: u64 = 0x1000;
    /// Receive slots, written by the NIC.
    pub const RECV: u64 = 0x4000;
    /// Size of the BAR.
    pub const SIZE: u64 = 0x2_0000;
}

/// MSI-X vectors of an attachment. A vector is raised when its condition becomes true while the
/// vector is enabled. It is also raised when it is enabled while its condition holds
/// ([`crate::tree_dcr::REG_INT_ENABLE`]).
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
    /// No operand: an ordinary routed or broadcast packet.
    pub const NONE: u32 = 0;
    /// Bitwise or.
    pub const OR: u32 = 1;
    /// Bitwise and.
    pub const AND: u32 = 2;
    /// Bitwise exclusive or.
    pub const XOR: u32 = 3;
    /// Unsigned maximum.
    pub const MAX: u32 = 5;
    /// Unsigned addition. The carry out of the operand is lost.
    pub const ADD: u32 = 6;
}

/// The 4-byte header of a packet.
///
/// | bits | field |
/// | --- | --- |
/// | 31..28 | class |
/// | 27 | point-to-point |
/// | 26 | irq |
/// | 25..2 | point-to-point: target address |
/// | 25..23 | otherwise: opcode |
/// | 22..16 | otherwise: operand size in 16-bit words, minus 1 |
/// | 15..2 | otherwise: tag |
/// | 1..0 | checksum mode |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Header(pub u32);

/// Lowest bit of the class in a header.
const CLASS_SHIFT: u32 = 28;
/// Bit of a header: the packet is point-to-point.
const POINT_TO_POINT: u32 = 1 << 27;
/// Lowest bit of the irq bit in a header.
const IRQ_SHIFT: u32 = 26;
/// Lowest bit of the target of a point-to-point packet, and of the tag of another one.
const TARGET_SHIFT: u32 = 2;
/// Bits of the target, once shifted.
const TARGET_MASK: u32 = 0xff_ffff;
/// Lowest bit of the opcode of a packet that is not point-to-point.
const OPCODE_SHIFT: u32 = 23;
/// Lowest bit of the number of operand words, minus 1, of a packet that is not point-to-point.
const OPERAND_SHIFT: u32 = 16;
/// Bits of the number of operand words, minus 1, once shifted.
const OPERAND_MASK: u32 = 0x7f;
/// Bits of the tag, once shifted.
const TAG_MASK: u32 = 0x3fff;

/// Bits of the node's address in a point-to-point packet's target.
const NODE: u32 = 0x1f_ffff;
/// Bit of a point-to-point packet's target: the target names a core.
const FOR_CORE: u32 = 1 << 23;
/// Lowest bit of the core's number in a point-to-point packet's target.
const CORE_SHIFT: u32 = 21;

impl Header {
    /// Returns the header of a point-to-point packet to node `target` (24 bits), by the routes of
    /// `class` (4 bits).
    pub const fn point_to_point(class: u32, target: u32, irq: bool) -> Self {
        Self(
            ((class & 0xf) << CLASS_SHIFT)
                | POINT_TO_POINT
                | ((irq as u32) << IRQ_SHIFT)
                | ((target & TARGET_MASK) << TARGET_SHIFT),
        )
    }

    /// Returns the header of a point-to-point packet for core `core` (0 to 3) of node `node` (21
    /// bits). It is received like any other packet. If the core has no client, the node's NIC
    /// discards it on arrival, so that it blocks no other packet.
    pub const fn to_core(class: u32, node: u32, core: u16, irq: bool) -> Self {
        let target = (node & NODE) | FOR_CORE | ((core as u32 & 3) << CORE_SHIFT);
        Self::point_to_point(class, target, irq)
    }

    /// Returns the header of a packet that is routed by class: combined with `opcode` on the way
    /// up, broadcast on the way down. The operand has `operand_words` 16-bit words (1 to 128). A
    /// packet with [`opcode::NONE`] is not combined.
    pub const fn collective(class: u32, opcode: u32, operand_words: u32, tag: u32, irq: bool) -> Self {
        Self(
            ((class & 0xf) << CLASS_SHIFT)
                | ((irq as u32) << IRQ_SHIFT)
                | ((opcode & 7) << OPCODE_SHIFT)
                | ((operand_words.wrapping_sub(1) & OPERAND_MASK) << OPERAND_SHIFT)
                | ((tag & TAG_MASK) << TARGET_SHIFT),
        )
    }

    /// Returns the class, 0 to 15.
    pub const fn class(self) -> u32 {
        self.0 >> CLASS_SHIFT
    }
    /// Returns whether this is a point-to-point packet.
    pub const fn is_point_to_point(self) -> bool {
        self.0 & POINT_TO_POINT != 0
    }
    /// Returns whether the packet requests an interrupt at the receiver.
    pub const fn irq(self) -> bool {
        self.0 & (1 << IRQ_SHIFT) != 0
    }
    /// Returns the target of a point-to-point packet. Bits 20..0 are the address of the node. If
    /// bit 23 is set, bits 22..21 name a core.
    pub const fn target(self) -> u32 {
        (self.0 >> TARGET_SHIFT) & TARGET_MASK
    }
    /// Returns the address of the node that a point-to-point packet is for.
    pub const fn node(self) -> u32 {
        self.target() & NODE
    }
    /// Returns the core that a point-to-point packet is for, if it names one.
    pub const fn core(self) -> Option<u16> {
        let names_core = self.is_point_to_point() && self.target() & FOR_CORE != 0;
        if names_core { Some(((self.target() >> CORE_SHIFT) & 3) as u16) } else { None }
    }
    /// Returns the opcode of a collective packet.
    pub const fn opcode(self) -> u32 {
        (self.0 >> OPCODE_SHIFT) & 7
    }
    /// Returns the operand size of a collective packet in bytes, 2 to 256.
    pub const fn operand_bytes(self) -> usize {
        ((((self.0 >> OPERAND_SHIFT) & OPERAND_MASK) + 1) * 2) as usize
    }
    /// Returns the tag of a collective packet.
    pub const fn tag(self) -> u32 {
        (self.0 >> TARGET_SHIFT) & TAG_MASK
    }
    /// Returns the injection checksum mode.
    pub const fn checksum_mode(self) -> u32 {
        self.0 & 3
    }
}

/// The declarations of the words in mapped memory. Slots and SRAM are data, and not among them.
const WORDS: &[Register] = &[
    Register::rw32("SEND_TAIL", BAR_WINDOW, window::SEND_TAIL).about("packets put into the send slots"),
    Register::rw32("RECV_HEAD", BAR_WINDOW, window::RECV_HEAD).about("packets taken out of receive slots"),
    Register::rw32("LOCK", BAR_WINDOW, window::LOCK)
        .array(window::LOCK_BOXES as u32, window::LOCK_STRIDE)
        .fields(&[Field::bits("OWNER", 15, 0), Field::bits("USE", 31, 16)]),
    Register::ro32("NODE_ADDRESS", BAR_MIRROR, mirror::NODE_ADDRESS),
    Register::ro32("CHANNEL", BAR_MIRROR, mirror::CHANNEL).about("virtual channel"),
    Register::ro32("SEND_DEPTH", BAR_MIRROR, mirror::SEND_DEPTH),
    Register::ro32("RECV_DEPTH", BAR_MIRROR, mirror::RECV_DEPTH),
    Register::ro32("NODES", BAR_MIRROR, mirror::NODES),
    Register::ro32("IO_NODE", BAR_MIRROR, mirror::IO_NODE),
    Register::ro32("PSET_RANK", BAR_MIRROR, mirror::PSET_RANK),
    Register::ro32("PSET_SIZE", BAR_MIRROR, mirror::PSET_SIZE),
    Register::ro32("SEND_HEAD", BAR_MIRROR, mirror::SEND_HEAD).about("packets taken out of the send slots"),
    Register::ro32("RECV_TAIL", BAR_MIRROR, mirror::RECV_TAIL).about("packets put into the receive slots"),
    Register::ro32("RECV_IRQ", BAR_MIRROR, mirror::RECV_IRQ).about("packets with the irq bit"),
    Register::ro32("STATUS", BAR_MIRROR, mirror::STATUS).fields(STATUS_FIELDS),
    Register::ro32("ERROR", BAR_MIRROR, mirror::ERROR)
        .fields(&[Field::bits("INJECT", 31, 16), Field::bits("RECEIVE", 15, 0)]),
    Register::ro32("GLOBAL_INT", BAR_MIRROR, mirror::GLOBAL_INT).fields(GI_FIELDS),
    Register::ro32("PRESENCE_CHANGES", BAR_MIRROR, mirror::PRESENCE_CHANGES),
    Register::ro32("PRESENCE", BAR_MIRROR, mirror::PRESENCE).array(MAX_NODES, 4).fields(&[
        Field::bits("CORE3", 31, 24),
        Field::bits("CORE2", 23, 16),
        Field::bits("CORE1", 15, 8),
        Field::bits("CORE0", 7, 0),
    ]),
];

/// The declarations of all registers.
pub static REGISTER_MAP: &[Register] =
    &joined::<{ tree_dcr::REGISTER_MAP.len() + WORDS.len() }>(&[tree_dcr::REGISTER_MAP, WORDS]);
