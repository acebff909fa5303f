//! Builders of descriptors: every kind of message, point to point and collective.
//!
//! A builder puts together the payload, the way through the network and the target, and checks what
//! the unit would check. The unit also checks what only it knows: permissions, ranges and the shape
//! of the partition.

mod route;

use nicforge_hwi::{
    mu::{ALL_BASE_ADDRESSES, ALL_INJECTION_FIFOS, ALL_RECEPTION_FIFOS, DESCRIPTOR},
    mu_packet::{Descriptor, Destination, MAX_PAYLOAD, PacketHeader, packet_type},
};

pub use self::route::{
    Collective, CollectiveChannel, CollectiveKind, Hint, MessageRoute, Operation, PointToPoint, Reduction,
    Routing,
};

use crate::{
    DescriptorError, Load,
    address::{check_range, load_address},
};

/// Highest put offset: 37 bits.
const MAX_PUT_OFFSET: u64 = (1 << 37) - 1;
/// Bytes of an atomic payload.
const ATOMIC_BYTES: u64 = 8;
/// Software bytes of a memory-FIFO packet, the dispatch id among them.
pub const SOFTWARE_BYTES: usize = 14;

/// Payload of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Memory of the subgroup that owns the injection FIFO, at any alignment.
    Memory {
        /// Address for the unit.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The result of an atomic operation on 8 bytes.
    Load {
        /// Address for the unit, a multiple of 8.
        address: u64,
        /// The operation.
        operation: Load,
    },
}

impl Payload {
    /// No payload: packets of a header alone.
    pub const NONE: Self = Self::Memory { address: 0, length: 0 };

    /// Returns a payload in memory.
    pub const fn memory(address: u64, length: u64) -> Self {
        Self::Memory { address, length }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match *self {
            Self::Memory { length, .. } => length,
            Self::Load { .. } => ATOMIC_BYTES,
        }
    }

    /// Returns whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address as a descriptor has it.
    #[inline]
    fn address(&self) -> Result<u64, DescriptorError> {
        match *self {
            Self::Memory { address, length } => check_range(address, length).map(|()| address),
            Self::Load { address, operation } => load_address(address, operation),
        }
    }
}

/// Target of a memory-FIFO message: a reception FIFO, which software empties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFifo {
    /// Number of the reception FIFO in its node, 0 to 271: `Rec_FIFO_Id`.
    pub fifo: u16,
    /// Number of the function that handles the packets.
    pub dispatch: u8,
    /// Software bytes 1 to 13, which each packet carries.
    pub software: [u8; SOFTWARE_BYTES - 1],
    /// Put offset of the first packet. That of a later one is larger by the bytes in front of it.
    pub put_offset: u64,
    /// The last packet raises an interrupt.
    pub interrupt: bool,
}

/// Target of a direct put: memory and a counter, each by an entry of the base address table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectPut {
    /// Entry for the payload, 0 to 543: `Rec_Payload_Base_Address_Id`.
    pub payload_base: u16,
    /// Offset of the first byte, or an atomic offset ([`crate::store_offset`]) for 8 bytes.
    pub offset: u64,
    /// Entry for the counter, 0 to 543: `Rec_Counter_Base_Address_Id`.
    pub counter_base: u16,
    /// Offset of the counter, from [`crate::Counter::offset`] or [`crate::store_offset`].
    pub counter_offset: u64,
    /// The put is paced.
    pub paced: bool,
}

/// Target of a remote get: an injection FIFO, into which the payload's descriptors go. The unit
/// refuses paced gets (`MUHWI_PACKET_TYPE_PACED_GET`), so that there are none here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteGet {
    /// Number of the injection FIFO in its node, 0 to 543: `Rget_Inj_FIFO_Id`.
    pub fifo: u16,
}

/// Returns a descriptor with the fields that all kinds of messages have: payload and route.
#[inline]
fn base_descriptor(payload: &Payload, route: &MessageRoute) -> Result<Descriptor, DescriptorError> {
    let mut descriptor = Descriptor {
        pa_payload: payload.address()?,
        message_length: payload.len(),
        packet_header: PacketHeader::default(),
        ..Descriptor::default()
    };

    match route {
        MessageRoute::PointToPoint(route) => route.write(&mut descriptor)?,
        MessageRoute::Collective(route) => route.write(&mut descriptor)?,
    }
    // The unit cuts the message into packets of this size.
    descriptor.packet_header.set_payload_bytes(MAX_PAYLOAD);
    Ok(descriptor)
}

/// Checks the number of a memory FIFO against the number of FIFOs of its kind.
fn check_fifo(kind: &'static str, fifo: u16, count: u16) -> Result<(), DescriptorError> {
    if fifo < count { Ok(()) } else { Err(DescriptorError::Fifo { kind, fifo, last: count - 1 }) }
}

/// Checks the number of an entry of the base address table.
fn check_entry(entry: u16) -> Result<(), DescriptorError> {
    let last = ALL_BASE_ADDRESSES - 1;
    if entry <= last { Ok(()) } else { Err(DescriptorError::BaseAddress { entry, last }) }
}

/// Checks that a put offset has 37 bits at most.
fn check_put_offset(offset: u64) -> Result<(), DescriptorError> {
    if offset <= MAX_PUT_OFFSET { Ok(()) } else { Err(DescriptorError::PutOffset { offset }) }
}

/// Returns the descriptor of a memory-FIFO message of any length. Its public names are
/// `MUSPI_Pt2PtMemoryFIFODescriptor` and `MUSPI_CollectiveMemoryFIFODescriptor`.
///
/// # Errors
/// [`DescriptorError`], for the field that has no meaning.
#[inline]
pub fn memory_fifo(
    payload: Payload,
    route: impl Into<MessageRoute>,
    target: &MemoryFifo,
) -> Result<Descriptor, DescriptorError> {
    let mut descriptor = base_descriptor(&payload, &route.into())?;
    check_fifo("reception", target.fifo, ALL_RECEPTION_FIFOS)?;
    check_put_offset(target.put_offset)?;

    let mut software = [0; SOFTWARE_BYTES];
    software[0] = target.dispatch;
    software[1..].copy_from_slice(&target.software);

    descriptor.interrupt = target.interrupt.into();
    let header = &mut descriptor.packet_header;
    header.set_packet_type(packet_type::FIFO);
    header.unit.set_reception_fifo(target.fifo);
    header.unit.set_put_offset(target.put_offset);
    header.unit.set_software_bytes(software);
    Ok(descriptor)
}

/// Returns the descriptor of a direct put of 1 byte or more. Its public names are
/// `MUSPI_Pt2PtDirectPutDescriptor` and `MUSPI_CollectiveDirectPutDescriptor`.
///
/// # Errors
/// [`DescriptorError`], for the field that has no meaning.
#[inline]
pub fn direct_put(
    payload: Payload,
    route: impl Into<MessageRoute>,
    target: &DirectPut,
) -> Result<Descriptor, DescriptorError> {
    if payload.is_empty() {
        let possible = "1 byte or more are possible";
        return Err(DescriptorError::Length { kind: "direct put", length: 0, possible });
    }

    let mut descriptor = base_descriptor(&payload, &route.into())?;
    check_entry(target.payload_base)?;
    check_entry(target.counter_base)?;
    check_put_offset(target.offset)?;

    let header = &mut descriptor.packet_header;
    header.set_packet_type(packet_type::PUT);
    header.unit.set_payload_base_address(target.payload_base);
    header.unit.set_put_offset(target.offset);
    header.unit.set_counter_base_address(target.counter_base);
    header.unit.set_counter_offset(target.counter_offset);
    header.unit.set_paced(target.paced);
    Ok(descriptor)
}

/// Returns the descriptor of a remote get. Its payload is one or more descriptors, which the
/// target's unit carries out. The public names are `MUSPI_Pt2PtRemoteGetDescriptor` and
/// `MUSPI_CollectiveRemoteGetDescriptor`.
///
/// # Errors
/// [`DescriptorError`], for the field that has no meaning.
pub fn remote_get(
    payload: Payload,
    route: impl Into<MessageRoute>,
    target: &RemoteGet,
) -> Result<Descriptor, DescriptorError> {
    let length = payload.len();
    let is_load = matches!(payload, Payload::Load { .. });
    if is_load || length == 0 || !length.is_multiple_of(DESCRIPTOR) {
        let possible = "descriptors of 64 bytes, at least one, are possible";
        return Err(DescriptorError::Length { kind: "remote get", length, possible });
    }

    let mut descriptor = base_descriptor(&payload, &route.into())?;
    check_fifo("injection", target.fifo, ALL_INJECTION_FIFOS)?;

    let header = &mut descriptor.packet_header;
    header.set_packet_type(packet_type::GET);
    header.unit.set_get_fifo(target.fifo);
    Ok(descriptor)
}

/// Returns the descriptor of a copy in the memory of a node: a direct put through a local FIFO.
///
/// # Errors
/// [`DescriptorError`], for the field that has no meaning.
pub fn local_copy(
    own_node: Destination,
    payload: Payload,
    target: &DirectPut,
) -> Result<Descriptor, DescriptorError> {
    direct_put(payload, PointToPoint::local(own_node, false), target)
}

/// Returns the descriptor of a prefetch: the unit reads the memory, and sends nothing. The public
/// name is `MUSPI_SetPrefetchOnly`.
///
/// # Errors
/// [`DescriptorError`], for the field that has no meaning.
pub fn prefetch(own_node: Destination, address: u64, length: u64) -> Result<Descriptor, DescriptorError> {
    let route = PointToPoint::local(own_node, false);
    let mut descriptor = memory_fifo(Payload::memory(address, length), route, &MemoryFifo::default())?;
    descriptor.prefetch_only = 1;
    Ok(descriptor)
}

#[cfg(test)]
mod tests;
