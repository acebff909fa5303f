//! Descriptors from the structures of the public headers. The library's builders check the fields.
//!
//! Some fields of these structures hold several values in their bits, at the places that the bits
//! have in a packet's header.

use nicforge_hwi::{
    mu::atomic,
    mu_packet::{channel, collective_type, packet_type},
};
use nicforge_spi::{
    Collective, CollectiveChannel, CollectiveKind, Descriptor, Destination, DirectPut, Load, MemoryFifo,
    MessageRoute, Operation, Payload, PointToPoint, Reduction, RemoteGet, Routing, direct_put, memory_fifo,
    remote_get,
};

use super::{
    failure::{descriptor_failure, invalid},
    types::{
        MUHWI_Destination_t, MUSPI_BaseDescriptorInfoFields_t, MUSPI_CollectiveDescriptorInfoFields_t,
        MUSPI_DirectPutDescriptorInfoFields_t, MUSPI_MemoryFIFODescriptorInfoFields_t,
        MUSPI_Pt2PtDescriptorInfoFields_t, MUSPI_RemoteGetDescriptorInfoFields_t,
    },
};
use crate::support::Failure;

/// Bit of an address that stands for an atomic operation.
const ATOMIC: u64 = atomic::INDICATOR;
/// Bits of such an address with the number of the operation.
const ATOMIC_OPERATION: u64 = atomic::OPERATION;
/// Number of software bytes of a memory-FIFO packet after the first one, which is the number of the
/// function that receives it.
const SOFTWARE_BYTES_AFTER_DISPATCH: usize = nicforge_spi::SOFTWARE_BYTES - 1;

/// The public information on a message's route.
pub(super) enum Route<'a> {
    PointToPoint(&'a MUSPI_Pt2PtDescriptorInfoFields_t),
    Collective(&'a MUSPI_CollectiveDescriptorInfoFields_t),
}

/// The public information on a message's target.
pub(super) enum Target<'a> {
    MemoryFifo(&'a MUSPI_MemoryFIFODescriptorInfoFields_t),
    DirectPut(&'a MUSPI_DirectPutDescriptorInfoFields_t),
    RemoteGet(&'a MUSPI_RemoteGetDescriptorInfoFields_t),
}

/// Returns the descriptor of a message.
pub(super) fn build(
    base: &MUSPI_BaseDescriptorInfoFields_t,
    route: &Route<'_>,
    target: &Target<'_>,
) -> Result<Descriptor, Failure> {
    let payload = payload(base)?;
    let message_route = match route {
        Route::PointToPoint(fields) => point_to_point(base, fields)?.into(),
        Route::Collective(fields) => MessageRoute::from(collective(base, fields)?),
    };

    let built = match target {
        Target::MemoryFifo(fields) => memory_fifo(payload, message_route, &fifo_target(fields)),
        Target::DirectPut(fields) => direct_put(payload, message_route, &put_target(fields)),
        Target::RemoteGet(fields) => remote_get(payload, message_route, &get_target(fields)?),
    };
    let mut descriptor = built.map_err(descriptor_failure)?;

    // The builders of the library do not take these fields.
    descriptor.prefetch_only = base.Pre_Fetch_Only & 1;
    let header = &mut descriptor.packet_header;
    match route {
        // The hints and the bits of channel and zone stand in the header as they do in the fields.
        Route::PointToPoint(fields) => {
            header.byte1 = fields.Hints_ABCD;
            header.byte2 = fields.Misc1;
            header.byte3 = fields.Misc2;
            header.skip = skip(fields.Skip)?;
        }
        Route::Collective(fields) => header.skip = skip(fields.Skip)?,
    }
    if let Target::MemoryFifo(fields) = target {
        // The header of a memory-FIFO packet has the software's bit where that of a put has the
        // pacing bit.
        header.unit.set_paced(fields.SoftwareBit & 1 == 1);
    }
    Ok(descriptor)
}

/// Returns the number of words that the injection checksum skips, as a field of 8 bits.
fn skip(value: u16) -> Result<u8, Failure> {
    u8::try_from(value).map_err(|_| invalid(format!("Skip is {value}: it is 255 at most")))
}

/// Returns the payload of a message: memory, or a word that an atomic operation loads.
fn payload(base: &MUSPI_BaseDescriptorInfoFields_t) -> Result<Payload, Failure> {
    let (address, length) = (base.Payload_Address, base.Message_Length);
    if address & ATOMIC == 0 {
        return Ok(Payload::memory(address, length));
    }

    if length != 8 {
        return Err(invalid(format!("an atomic payload of {length} bytes: it has 8")));
    }
    let operation = match address & ATOMIC_OPERATION {
        0 => Load::Load,
        1 => Load::Clear,
        2 => Load::Increment,
        3 => Load::Decrement,
        4 => Load::IncrementBounded,
        5 => Load::DecrementBounded,
        6 => Load::IncrementIfEqual,
        other => return Err(invalid(format!("there is no atomic load {other}"))),
    };
    Ok(Payload::Load { address: address & !(ATOMIC | ATOMIC_OPERATION), operation })
}

/// Returns the library's type for a destination.
fn destination(node: MUHWI_Destination_t) -> Destination {
    Destination(node.Destination.into())
}

/// Returns the library's route of a point-to-point message.
fn point_to_point(
    base: &MUSPI_BaseDescriptorInfoFields_t,
    fields: &MUSPI_Pt2PtDescriptorInfoFields_t,
) -> Result<PointToPoint, Failure> {
    // `Misc2` holds the virtual channel in bits 5 to 7, and the zone of dynamic routing in bits 3
    // and 4.
    let routing = match fields.Misc2 >> 5 {
        channel::DYNAMIC => Routing::Dynamic { zone: fields.Misc2 >> 3 & 3 },
        channel::DETERMINISTIC => Routing::Deterministic,
        channel::HIGH_PRIORITY => Routing::HighPriority,
        channel::SYSTEM => Routing::System,
        other => return Err(invalid(format!("point-to-point packets have no virtual channel {other}"))),
    };

    let route = PointToPoint::dynamic(destination(base.Dest));
    Ok(PointToPoint { routing, fifo_map: base.Torus_FIFO_Map, ..route })
}

/// Returns the library's route of a collective message.
fn collective(
    base: &MUSPI_BaseDescriptorInfoFields_t,
    fields: &MUSPI_CollectiveDescriptorInfoFields_t,
) -> Result<Collective, Failure> {
    // `Misc` holds the virtual channel in bits 5 to 7, and the collective type in bits 3 and 4.
    let kind = match fields.Misc >> 3 & 3 {
        collective_type::BROADCAST => CollectiveKind::Broadcast,
        collective_type::ALLREDUCE => CollectiveKind::Allreduce(reduction(fields)?),
        collective_type::REDUCE => CollectiveKind::Reduce(reduction(fields)?, destination(base.Dest)),
        other => return Err(invalid(format!("there is no collective type {other}"))),
    };
    let channel = match fields.Misc >> 5 {
        channel::USER_COMM_WORLD => CollectiveChannel::CommWorld,
        channel::USER_SUB_COMM => CollectiveChannel::SubComm,
        channel::SYSTEM_COLLECTIVE => CollectiveChannel::System,
        other => return Err(invalid(format!("collective packets have no virtual channel {other}"))),
    };
    Ok(Collective { class: fields.Class_Route, kind, channel })
}

/// Returns the operation of a collective message and the size of its words.
fn reduction(fields: &MUSPI_CollectiveDescriptorInfoFields_t) -> Result<Reduction, Failure> {
    let operations = [
        Operation::And,
        Operation::Or,
        Operation::Xor,
        Operation::UnsignedAdd,
        Operation::UnsignedMin,
        Operation::UnsignedMax,
        Operation::SignedAdd,
        Operation::SignedMin,
        Operation::SignedMax,
        Operation::FloatingAdd,
        Operation::FloatingMin,
        Operation::FloatingMax,
    ];

    // `Op_Code` holds the operation in its upper four bits.
    let operation = operations.into_iter().find(|operation| (*operation as u8) << 4 == fields.Op_Code);
    let operation =
        operation.ok_or_else(|| invalid(format!("there is no operation {:#04x}", fields.Op_Code)))?;
    Ok(Reduction { operation, word: fields.Word_Length })
}

/// Returns the library's target of a memory-FIFO message.
fn fifo_target(fields: &MUSPI_MemoryFIFODescriptorInfoFields_t) -> MemoryFifo {
    let mut software = [0; SOFTWARE_BYTES_AFTER_DISPATCH];
    software.copy_from_slice(&fields.SoftwareBytes[1..]);
    MemoryFifo {
        fifo: fields.Rec_FIFO_Id,
        dispatch: fields.SoftwareBytes[0],
        software,
        put_offset: fields.Rec_Put_Offset,
        interrupt: fields.Interrupt & 1 == 1,
    }
}

/// Returns the library's target of a direct put.
fn put_target(fields: &MUSPI_DirectPutDescriptorInfoFields_t) -> DirectPut {
    DirectPut {
        payload_base: fields.Rec_Payload_Base_Address_Id,
        offset: fields.Rec_Payload_Offset,
        counter_base: fields.Rec_Counter_Base_Address_Id,
        counter_offset: fields.Rec_Counter_Offset,
        paced: fields.Pacing & 1 == 1,
    }
}

/// Returns the library's target of a remote get.
fn get_target(fields: &MUSPI_RemoteGetDescriptorInfoFields_t) -> Result<RemoteGet, Failure> {
    // `Type` holds the packet type in its upper two bits.
    match fields.Type >> 6 {
        packet_type::GET => Ok(RemoteGet { fifo: fields.Rget_Inj_FIFO_Id }),
        packet_type::PACED_GET => Err(invalid("the unit has no paced remote gets")),
        other => Err(invalid(format!("a remote get has no packet type {other}"))),
    }
}
