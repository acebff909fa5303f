//! Packets and descriptors of the Message Unit of Blue Gene/Q.
//!
//! Fields and their names are those of the public headers `MU_Descriptor.h`, `MU_PacketHeader.h`,
//! `MU_Pt2PtNetworkHeader.h`, `MU_CollectiveNetworkHeader.h` and `MU_MessageUnitHeader.h`. Words of
//! 2, 4 and 8 bytes are little-endian here ([`crate::mu`]).
//!
//! A packet has a header of [`HEADER`] bytes and 0 to 16 chunks of 32 bytes. Bytes 0 to 11 of the
//! header are the network's, and 12 to 31 the Message Unit's. The unit of the sender fills in the
//! size, the interrupt bit, the offsets, and the number of valid bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32 as Le32};

/// Bytes of a packet's header.
pub const HEADER: usize = 32;
/// Maximum number of bytes of a packet's payload.
pub const MAX_PAYLOAD: usize = 512;
/// Bytes of a chunk of payload.
pub const CHUNK: usize = 32;
/// Maximum number of bytes of a packet with its header.
pub const MAX_PACKET: usize = HEADER + MAX_PAYLOAD;
/// Trailing check bytes of a packet on a link.
pub const CHECK_BYTES: u32 = 8;
/// Number of class routes of a node, for collectives and for barriers.
pub const CLASSES: usize = 16;
/// Lines of global interrupts of a class: `BGQ_GI_CLASS_MAX_GI_PER_CLASSROUTE`.
pub const LINES: u8 = 3;
/// Dimensions of the torus: A, B, C, D, E.
pub const DIMENSIONS: usize = 5;
/// Port of the link to an I/O node. Port `2 d` leads up dimension `d`, and `2 d + 1` down.
pub const IO_PORT: u8 = 10;
/// Ports of a node.
pub const PORTS: u8 = 11;

/// First byte of a header: `Data_Packet_Type`.
pub mod kind {
    /// From one node to another.
    pub const POINT_TO_POINT: u8 = 0x55;
    /// Combined or broadcast by the nodes of a class route.
    pub const COLLECTIVE: u8 = 0x5a;
}

/// Use of a packet by the receiving unit: byte 8, bits 6 and 7.
pub mod packet_type {
    /// It goes into a reception memory FIFO.
    pub const FIFO: u8 = 0;
    /// Its payload is written to client memory, and a counter there is decremented.
    pub const PUT: u8 = 1;
    /// Its payload is descriptors, for an injection memory FIFO.
    pub const GET: u8 = 2;
    /// As [`GET`], with paced replies.
    pub const PACED_GET: u8 = 3;
}

/// Virtual channels: byte 3, bits 5 to 7.
pub mod channel {
    /// User packets that choose their way by load.
    pub const DYNAMIC: u8 = 0;
    /// User packets in dimension order, and the escape of dynamic ones.
    pub const DETERMINISTIC: u8 = 1;
    /// User packets of high priority.
    pub const HIGH_PRIORITY: u8 = 2;
    /// Packets of the system.
    pub const SYSTEM: u8 = 3;
    /// Collective packets of all nodes of a partition.
    pub const USER_COMM_WORLD: u8 = 4;
    /// Collective packets of a subset of the nodes.
    pub const USER_SUB_COMM: u8 = 5;
    /// Collective packets of the system.
    pub const SYSTEM_COLLECTIVE: u8 = 6;
}

/// Network injection FIFOs, as bits of [`Descriptor::torus_fifo_map`]:
/// `MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_*`.
pub mod fifo_map {
    /// A-. The bits of A+, B-, B+, ..., E+ follow below.
    pub const AM: u64 = 0x8000;
    /// E+.
    pub const EP: u64 = 0x0040;
    /// All ten for user packets on the torus.
    pub const TORUS: u64 = 0xffc0;
    /// First FIFO for user packets to the own node.
    pub const LOCAL0: u64 = 0x0020;
    /// Second FIFO for user packets to the own node.
    pub const LOCAL1: u64 = 0x0010;
    /// User packets of high priority.
    pub const PRIORITY: u64 = 0x0008;
    /// Packets of the system.
    pub const SYSTEM: u64 = 0x0004;
    /// Collective packets of users.
    pub const COLLECTIVE_USER: u64 = 0x0002;
    /// Collective packets of the system.
    pub const COLLECTIVE_SYSTEM: u64 = 0x0001;
    /// Number of network injection FIFOs. FIFO `i` has bit `i`.
    pub const COUNT: u32 = 16;
}

/// Network reception FIFOs. FIFOs 0 to 9 have the user packets of normal priority that came by that
/// port.
pub mod reception_fifo {
    /// User packets of the node to itself.
    pub const LOCAL: u8 = 10;
    /// User packets of high priority.
    pub const PRIORITY: u8 = 11;
    /// Packets of the system.
    pub const SYSTEM: u8 = 12;
    /// Collective packets of users.
    pub const COLLECTIVE_USER: u8 = 13;
    /// Collective packets of the system.
    pub const COLLECTIVE_SYSTEM: u8 = 14;
    /// Number of FIFOs.
    pub const COUNT: u8 = 15;
}

/// Bits of byte 2 of a point-to-point header. Bits 6 and 7 are hints of dimension E.
pub mod routing {
    /// The packet leaves the destination by the link to its I/O node.
    pub const TO_IO: u8 = 0x20;
    /// The port by which a packet of an I/O node reaches its compute node: 0 none, 3
    /// [`super::IO_PORT`].
    pub const FROM_IO: u8 = 0x18;
    /// The packet chooses its way by load.
    pub const DYNAMIC: u8 = 0x04;
    /// Each node on the line to the destination gets a copy.
    pub const DEPOSIT: u8 = 0x02;
    /// The receiver raises an interrupt: the unit sets it in the last packet of a message.
    pub const INTERRUPT: u8 = 0x01;
}

/// Bits of byte 3 of a point-to-point header, below the virtual channel.
pub mod route_control {
    /// Number of the zone masks of a dynamic packet.
    pub const ZONE: u8 = 0x18;
    /// Lowest bit of [`ZONE`].
    pub const ZONE_SHIFT: u32 = 3;
    /// A dynamic packet that has escaped stays on the deterministic channel.
    pub const STAY_ON_BUBBLE: u8 = 0x04;
}

/// Operations of collective packets: byte 1, bits 4 to 7. Bits 0 to 3 are the exponent `n` of a
/// word of `4 << n` bytes.
pub mod operation {
    /// Bitwise and.
    pub const AND: u8 = 0x0;
    /// Bitwise or.
    pub const OR: u8 = 0x1;
    /// Bitwise exclusive or.
    pub const XOR: u8 = 0x2;
    /// Sum of unsigned numbers.
    pub const UNSIGNED_ADD: u8 = 0x4;
    /// Smallest unsigned number.
    pub const UNSIGNED_MIN: u8 = 0x5;
    /// Largest unsigned number.
    pub const UNSIGNED_MAX: u8 = 0x6;
    /// Sum of signed numbers.
    pub const SIGNED_ADD: u8 = 0x8;
    /// Smallest signed number.
    pub const SIGNED_MIN: u8 = 0x9;
    /// Largest signed number.
    pub const SIGNED_MAX: u8 = 0xa;
    /// Sum of double-precision numbers.
    pub const FLOATING_ADD: u8 = 0xc;
    /// Smallest double-precision number.
    pub const FLOATING_MIN: u8 = 0xd;
    /// Largest double-precision number.
    pub const FLOATING_MAX: u8 = 0xe;
}

/// Kinds of collective packets: byte 3, bits 3 and 4.
pub mod collective_type {
    /// One node's packet goes to all.
    pub const BROADCAST: u8 = 0;
    /// The combined packet goes to all.
    pub const ALLREDUCE: u8 = 2;
    /// The combined packet goes to the destination.
    pub const REDUCE: u8 = 3;
}

/// Coordinates of a node: 6 bits for each dimension, E in the lowest ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Destination(pub Le32);

impl Destination {
    /// Returns the destination at these coordinates. Only the lowest 6 bits of each count.
    pub fn new(coordinates: [u8; DIMENSIONS]) -> Self {
        let word = coordinates.iter().fold(0, |word, &value| word << 6 | u32::from(value & 0x3f));
        Self(Le32::new(word))
    }

    /// Returns the coordinates.
    pub fn coordinates(self) -> [u8; DIMENSIONS] {
        let word = self.0.get();
        core::array::from_fn(|dimension| (word >> (6 * (DIMENSIONS - 1 - dimension))) as u8 & 0x3f)
    }
}

/// The Message Unit's part of a header. The meaning of its fields depends on the packet's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnitHeader {
    /// FIFO packets: bits 6 to 14 are the reception memory FIFO. Puts: bits 6 to 15 are the entry
    /// of the base address table for the payload, and bit 5 is set if the put is paced. Gets: bits
    /// 6 to 15 are the injection memory FIFO. Bits 0 to 4: the highest bits of the put offset.
    selector: [u8; 2],
    /// Lowest 32 bits of the put offset. The unit advances it by a packet's payload. In FIFO
    /// packets it thus counts the bytes in front of the packet.
    put_offset: [u8; 4],
    /// Puts: bits 0 to 9 are the entry of the base address table for the counter.
    counter_selector: [u8; 2],
    /// Puts: number of valid bytes of the payload, set by the unit.
    valid_bytes: [u8; 2],
    /// FIFO packets: the software's.
    pub unused: [u8; 2],
    /// Puts: offset of the counter.
    counter_offset: [u8; 8],
}

/// The header of a packet, and the template in a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PacketHeader {
    /// One of [`kind`].
    pub data_packet_type: u8,
    /// Point to point: hints A- in bit 7, A+ in bit 6, ..., D+ in bit 0; no hint lets the unit
    /// choose the shortest way. Collective: [`operation`] and the length of a word.
    pub byte1: u8,
    /// Point to point: hints E- in bit 7 and E+ in bit 6, and [`routing`]. Collective: the class
    /// route in bits 4 to 7, and [`routing::INTERRUPT`].
    pub byte2: u8,
    /// The [`channel`] in bits 5 to 7. Point to point: [`route_control`]. Collective: the
    /// [`collective_type`] in bits 3 and 4.
    pub byte3: u8,
    /// The destination. Of collective packets, only those of a reduction to one node have one.
    pub destination: Destination,
    /// The [`packet_type`] in bits 6 and 7, and the number of chunks of payload in bits 0 to 4.
    pub byte8: u8,
    /// Used by the hardware: zero in a descriptor.
    pub injection_info: [u8; 2],
    /// 4-byte words that the injection checksum skips.
    pub skip: u8,
    /// The Message Unit's part: [`UnitHeader`].
    pub unit: UnitHeader,
}

/// A descriptor of a message: 64 bytes in an injection memory FIFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Bit 0: the payload is only read, and nothing is sent.
    pub prefetch_only: u32,
    /// Bit 0: the last packet of a FIFO message raises an interrupt at the receiver.
    pub interrupt: u32,
    /// Address of the payload, at any alignment; or an atomic address ([`crate::mu::atomic`]), with
    /// 8 bytes of payload.
    pub pa_payload: u64,
    /// Bytes of the message. 0 is possible for FIFO packets alone.
    pub message_length: u64,
    /// Network injection FIFOs that the packets may use: bits of [`fifo_map`].
    pub torus_fifo_map: u64,
    /// Template of the packets' headers.
    pub packet_header: PacketHeader,
}

const _: () = assert!(size_of::<Descriptor>() == 64 && size_of::<PacketHeader>() == HEADER);

/// Highest put offset: 37 bits.
const MAX_PUT_OFFSET: u64 = (1 << 37) - 1;
/// Lowest bit of the number of a FIFO or table entry in a selector.
const NUMBER_SHIFT: u32 = 6;
/// Bit of a selector: the put is paced.
const PACED: u16 = 1 << 5;
/// Bits of a selector: the highest bits of the put offset.
const PUT_OFFSET_HIGH: u16 = 0x1f;
/// Bits of the number of a reception memory FIFO.
const RECEPTION_FIFO_MASK: u16 = 0x1ff;
/// Bits of an entry of the base address table.
const BASE_ADDRESS_MASK: u16 = 0x3ff;
/// Offset in [`UnitHeader`] of the bytes that belong to the software in a FIFO packet.
const SOFTWARE_BYTES: usize = 6;

impl UnitHeader {
    /// Returns the number in the selector: of a FIFO, or of an entry of the base address table.
    fn number(&self) -> u16 {
        u16::from_le_bytes(self.selector) >> NUMBER_SHIFT
    }

    /// Sets the number in the selector, and keeps the selector's lower bits.
    fn set_number(&mut self, number: u16) {
        let word = u16::from_le_bytes(self.selector) & (PACED | PUT_OFFSET_HIGH) | number << NUMBER_SHIFT;
        self.selector = word.to_le_bytes();
    }

    /// Returns the reception memory FIFO of a FIFO packet: `Rec_FIFO_Id`, 0 to 511.
    pub fn reception_fifo(&self) -> u16 {
        self.number() & RECEPTION_FIFO_MASK
    }

    /// Sets the reception memory FIFO of a FIFO packet.
    pub fn set_reception_fifo(&mut self, fifo: u16) {
        self.set_number(fifo & RECEPTION_FIFO_MASK);
    }

    /// Returns the entry for the payload of a put: `Rec_Payload_Base_Address_Id`, 0 to 1,023.
    pub fn payload_base_address(&self) -> u16 {
        self.number()
    }

    /// Sets the entry for the payload of a put.
    pub fn set_payload_base_address(&mut self, entry: u16) {
        self.set_number(entry);
    }

    /// Returns the injection memory FIFO of a get: `Rget_Inj_FIFO_Id`, 0 to 1,023.
    pub fn get_fifo(&self) -> u16 {
        self.number()
    }

    /// Sets the injection memory FIFO of a get.
    pub fn set_get_fifo(&mut self, fifo: u16) {
        self.set_number(fifo);
    }

    /// Returns whether a put is paced.
    pub fn is_paced(&self) -> bool {
        u16::from_le_bytes(self.selector) & PACED != 0
    }

    /// Sets whether a put is paced. In a FIFO packet the bit is the software's.
    pub fn set_paced(&mut self, paced: bool) {
        let bit = if paced { PACED } else { 0 };
        self.selector = (u16::from_le_bytes(self.selector) & !PACED | bit).to_le_bytes();
    }

    /// Returns the put offset, 37 bits.
    pub fn put_offset(&self) -> u64 {
        let high = u64::from(u16::from_le_bytes(self.selector) & PUT_OFFSET_HIGH);
        high << 32 | u64::from(u32::from_le_bytes(self.put_offset))
    }

    /// Sets the put offset. Only the lowest 37 bits count.
    pub fn set_put_offset(&mut self, offset: u64) {
        let high = ((offset & MAX_PUT_OFFSET) >> 32) as u16;
        self.selector = (u16::from_le_bytes(self.selector) & !PUT_OFFSET_HIGH | high).to_le_bytes();
        self.put_offset = (offset as u32).to_le_bytes();
    }

    /// Returns the entry for the counter of a put: `Rec_Counter_Base_Address_Id`, 0 to 1,023.
    pub fn counter_base_address(&self) -> u16 {
        u16::from_le_bytes(self.counter_selector) & BASE_ADDRESS_MASK
    }

    /// Sets the entry for the counter of a put.
    pub fn set_counter_base_address(&mut self, entry: u16) {
        self.counter_selector = (entry & BASE_ADDRESS_MASK).to_le_bytes();
    }

    /// Returns the number of valid bytes of a put.
    pub fn valid_bytes(&self) -> u16 {
        u16::from_le_bytes(self.valid_bytes)
    }

    /// Sets the number of valid bytes of a put.
    pub fn set_valid_bytes(&mut self, bytes: u16) {
        self.valid_bytes = bytes.to_le_bytes();
    }

    /// Returns the offset of the counter of a put.
    pub fn counter_offset(&self) -> u64 {
        u64::from_le_bytes(self.counter_offset)
    }

    /// Sets the offset of the counter of a put. It may be an atomic one.
    pub fn set_counter_offset(&mut self, offset: u64) {
        self.counter_offset = offset.to_le_bytes();
    }

    /// Returns the 14 bytes of a FIFO packet's header that belong to the software.
    pub fn software_bytes(&self) -> [u8; 14] {
        let mut bytes = [0; 14];
        bytes.copy_from_slice(&self.as_bytes()[SOFTWARE_BYTES..]);
        bytes
    }

    /// Sets the 14 bytes of a FIFO packet's header that belong to the software.
    pub fn set_software_bytes(&mut self, bytes: [u8; 14]) {
        self.as_mut_bytes()[SOFTWARE_BYTES..].copy_from_slice(&bytes);
    }
}

/// Hint bits of a packet for one dimension: the directions that its sender asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintBits {
    /// Towards lower coordinates.
    pub is_down: bool,
    /// Towards higher coordinates.
    pub is_up: bool,
}

impl PacketHeader {
    /// Returns the virtual channel: one of [`channel`], or 7, which does not exist.
    pub fn channel(&self) -> u8 {
        self.byte3 >> 5
    }

    /// Sets the virtual channel.
    pub fn set_channel(&mut self, channel: u8) {
        self.byte3 = self.byte3 & 0x1f | channel << 5;
    }

    /// Returns the [`packet_type`].
    pub fn packet_type(&self) -> u8 {
        self.byte8 >> 6
    }

    /// Sets the [`packet_type`].
    pub fn set_packet_type(&mut self, packet_type: u8) {
        self.byte8 = self.byte8 & 0x3f | packet_type << 6;
    }

    /// Returns the bytes of the payload: up to 31 chunks, of which 16 are possible.
    pub fn payload_bytes(&self) -> usize {
        usize::from(self.byte8 & 0x1f) * CHUNK
    }

    /// Sets the size of the payload to the chunks that hold these bytes.
    pub fn set_payload_bytes(&mut self, bytes: usize) {
        self.byte8 = self.byte8 & 0xe0 | bytes.div_ceil(CHUNK).min(0x1f) as u8;
    }

    /// Returns the zone of a dynamic packet.
    pub fn zone(&self) -> u8 {
        (self.byte3 & route_control::ZONE) >> route_control::ZONE_SHIFT
    }

    /// Returns the hint bits of a dimension.
    pub fn hints(&self, dimension: usize) -> HintBits {
        // A- is in bit 7 of byte 1, A+ in bit 6, and so on; E- and E+ are in byte 2.
        let (byte, down_bit) = match dimension {
            0..=3 => (self.byte1, 7 - 2 * dimension),
            _ => (self.byte2, 7),
        };
        HintBits { is_down: byte >> down_bit & 1 == 1, is_up: byte >> (down_bit - 1) & 1 == 1 }
    }

    /// Sets the hint bit of a dimension: that towards lower coordinates if `is_down`, or else that
    /// towards higher ones.
    pub fn set_hint(&mut self, dimension: usize, is_down: bool) {
        // The bits are those of `PacketHeader::hints`.
        let (byte, down_bit) = match dimension {
            0..=3 => (&mut self.byte1, 7 - 2 * dimension),
            _ => (&mut self.byte2, 7),
        };
        *byte |= 1 << (down_bit - usize::from(!is_down));
    }

    /// Returns the class route of a collective packet.
    pub fn class(&self) -> u8 {
        self.byte2 >> 4
    }

    /// Returns the [`operation`] of a collective packet.
    pub fn operation(&self) -> u8 {
        self.byte1 >> 4
    }

    /// Returns the bytes of a word of a collective packet.
    pub fn word_bytes(&self) -> usize {
        4 << (self.byte1 & 0xf)
    }

    /// Returns the [`collective_type`] of a collective packet.
    pub fn collective_type(&self) -> u8 {
        self.byte3 >> 3 & 0b11
    }
}
