//! Accesses of other VPIDs to this card's memory.

use std::{collections::HashMap, sync::Arc};

use nicforge_core::{dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    Rma, cycles,
    part::Part,
    side_queue::Handled,
    transfer::{Data, PacketMemory, PacketProgress, ReadKey, Role, Unreadable},
};
use crate::{
    atu::{Access, Region, RegionSerial},
    packet::{Endpoint, PacketHeader, PacketKind, TrafficClass},
    unit::{UnitContext, Unsent},
};

/// The requester and the target VPID of a put. Of all puts from one to the other, the parts of one
/// command come before those of the next, so that one of them at a time is partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PutStream {
    requester: Endpoint,
    target: u16,
}

/// The data of a get that are still to be answered.
#[derive(Clone, Copy)]
struct WantedData {
    /// Address of the first byte.
    address: u64,
    /// Offset of that byte in the get.
    offset: u32,
    /// Bytes of the get from there on.
    rest: u32,
    /// Bytes of the requested part from there on.
    maximum: u32,
}

/// Puts of several parts that have begun, at most one for each pair of requester and target.
pub(super) type PartialPuts = HashMap<PutStream, PartialPut>;

/// A put of several parts, of which some have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPut {
    /// The region of its first part; `None` if that part was refused.
    region: Option<RegionSerial>,
    /// The status so far.
    status: u8,
    /// The generation of the target's notification queue when the first part arrived. A queue that
    /// was enabled later may belong to another client, and gets no notification of the put.
    queue_generation: u32,
}

/// Returns the region in which all `rest` bytes at `address` of the target VPID's memory lie, if
/// the packet's sender has this access to it.
///
/// # Errors
/// The status with which the access is refused.
fn accessible_region(
    unit: &UnitContext<'_, '_>,
    header: PacketHeader,
    address: u64,
    rest: u32,
    access: Access,
) -> Result<RegionSerial, u8> {
    let owner = header.target.vpid;
    if owner >= unit.parts.config.vpids || !unit.parts.attachments.is_present(AttachmentId(owner)) {
        return Err(status::NO_RECEIVER);
    }

    let is_own_memory = header.source == Endpoint { node: unit.parts.config.node, vpid: owner };
    let is_allowed = |region: &Region| {
        let has_access =
            if is_own_memory { region.allows_owner(access) } else { region.allows_others(access) };
        region.owner == owner && has_access
    };

    match unit.parts.atu.find(address, rest.into()) {
        Some((region, _)) if is_allowed(region) => Ok(region.serial),
        _ => Err(status::REMOTE_ADDRESS),
    }
}

impl Rma {
    /// Returns the generation of a VPID's notification queue.
    #[inline]
    fn queue_generation(&self, vpid: u16) -> u32 {
        let client = self.clients.get(AttachmentId(vpid));
        client.map_or(0, |client| client.notifications.generation())
    }

    /// As [`accessible_region`]. Counts an access that is refused because of its address.
    fn check_access(
        &mut self,
        unit: &UnitContext<'_, '_>,
        header: PacketHeader,
        address: u64,
        rest: u32,
        access: Access,
    ) -> Result<RegionSerial, u8> {
        let region = accessible_region(unit, header, address, rest, access);
        self.refused += u64::from(region == Err(status::REMOTE_ADDRESS));
        region
    }

    /// Handles a part of a put: writes its data from `memory`, and after the last part answers the
    /// requester and notifies the target.
    pub(super) fn put_arrived(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        packet_progress: &mut PacketProgress,
    ) -> Handled {
        if part.is_last && !unit.parts.switch.request_room(header.source.node, TrafficClass::Response) {
            return Handled::NoRoom;
        }

        let stream = PutStream { requester: header.source, target: header.target.vpid };
        let is_only_part = part.is_last && part.rest == part.total;

        // The first part of a put replaces a put that its requester gave up half way.
        let before = if part.offset() == 0 { None } else { self.partial_puts.get(&stream).copied() };
        let written = self.write_part(unit, header, &part, before, memory.as_deref(), packet_progress);
        let Some(after) = written else { return Handled::WaitsForClient };

        // The requester's memory is free again before the requester gets the answer.
        drop(memory);

        if !part.is_last {
            self.partial_puts.insert(stream, after);
            return Handled::Done;
        }

        if !is_only_part {
            self.partial_puts.remove(&stream);
        }

        let answer = Part { status: after.status, is_last: true, length: 0, ..part };
        let sent = answer.send(unit, PacketKind::Answer, header.source, header.target.vpid, None);
        if let Err(Unsent::Starved | Unsent::Full) = sent {
            // The switch had room, so the pool of packets is empty. `packet_progress` records that
            // the data were written, so the retry does not write them again.
            if !is_only_part {
                self.partial_puts.insert(stream, after);
            }
            return Handled::NoRoom;
        }

        let is_same_queue = after.queue_generation == self.queue_generation(header.target.vpid);
        let wrote_data = after.region.is_some() && matches!(after.status, status::DONE | status::WITHDRAWN);
        if wrote_data && is_same_queue && part.notify & notify::COMPLETER != 0 {
            let notification = notification(notify::COMPLETER, after.status, part.command, header, &part);
            self.notify(unit, AttachmentId(header.target.vpid), notification);
        }
        Handled::Done
    }

    /// Writes the data of a put's part, if the requester may. `before` is the state after the put's
    /// earlier parts. Returns the state after this one, or `None` if the data have to wait.
    #[inline]
    fn write_part(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        part: &Part,
        before: Option<PartialPut>,
        memory: Option<&DmaLease>,
        packet_progress: &mut PacketProgress,
    ) -> Option<PartialPut> {
        let queue_generation = match before {
            Some(before) => before.queue_generation,
            None => *packet_progress
                .queue_generation
                .get_or_insert_with(|| self.queue_generation(header.target.vpid)),
        };

        let region = before.and_then(|before| before.region);
        let status = match before {
            Some(before) if before.status != status::DONE => before.status,
            _ => part.status,
        };
        if status != status::DONE {
            return Some(PartialPut { region, status, queue_generation });
        }

        let address = part.address.wrapping_add(part.offset().into());
        let found = match self.check_access(unit, header, address, part.rest, Access::Write) {
            Ok(found) => found,
            Err(refused) => {
                // If earlier parts were written, the memory was there and was withdrawn since.
                let status = if before.is_some() { status::WITHDRAWN } else { refused };
                return Some(PartialPut { region, status, queue_generation });
            }
        };

        if before.is_some_and(|before| before.region != Some(found)) {
            // The memory was registered again since the first part.
            return Some(PartialPut { region, status: status::WITHDRAWN, queue_generation });
        }

        let data = match memory {
            Some(memory) => Data::Memory(memory, part.data),
            None if part.command == command::IMMEDIATE_PUT => Data::Word(part.data.to_le_bytes()),
            None => Data::Missing,
        };
        let status = self.move_in(unit, address, part.rest.into(), &data, part.length, packet_progress)?;
        Some(PartialPut { region: Some(found), status, queue_generation })
    }

    /// Handles a request for a part of a get. The part may lie in several pieces of memory, and
    /// each answer refers to one of them. Where there is no room for an answer, a later call
    /// continues after the pieces that were answered.
    pub(super) fn get_arrived(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        part: Part,
        packet_progress: &mut PacketProgress,
    ) -> Handled {
        loop {
            let has_room = unit.parts.switch.request_room(header.source.node, TrafficClass::Response);
            if !has_room || !unit.request_idle(&self.read_engine) {
                return Handled::NoRoom;
            }

            // The answer continues after the bytes of the request that were answered before.
            let done = packet_progress.bytes_done;
            let unanswered = part.length.saturating_sub(done);
            let rest = part.rest.saturating_sub(done);
            let offset = part.total - rest.min(part.total);
            let address = part.address.wrapping_add(offset.into());
            let queue_generation = self.queue_generation(header.target.vpid);
            let mut answer = Part { length: unanswered, rest, is_last: true, queue_generation, ..part };
            let mut memory = None;
            match self.check_access(unit, header, address, rest, Access::Read) {
                Ok(region) => {
                    answer.address = region;
                    let wanted = WantedData { address, offset, rest, maximum: unanswered };
                    match self.answer_memory(unit, header, part.id, wanted, packet_progress) {
                        Ok(Some(found)) => {
                            answer.data = found.offset;
                            answer.length = found.length;
                            answer.is_last = found.length == unanswered;
                            answer.staged = found.staged;
                            memory = Some(found.lease);
                        }
                        Ok(None) => return Handled::WaitsForClient,
                        Err(Unreadable) => answer.status = status::WITHDRAWN,
                    }
                }
                Err(refused) => answer.status = refused,
            }

            // The packet's earlier attempts may have started a read of memory that is gone by now.
            if !answer.staged && packet_progress.has_waited() {
                self.give_up_read(&header, &part);
            }

            let sent = answer.send(unit, PacketKind::Answer, header.source, header.target.vpid, memory);
            if sent.is_ok() {
                unit.begin_work(&mut self.read_engine, cycles(answer.length));
            }
            match sent {
                Err(Unsent::Starved | Unsent::Full) => return Handled::NoRoom,
                Ok(()) if !answer.is_last => packet_progress.bytes_done += answer.length,
                Ok(()) | Err(Unsent::Unreachable) => return Handled::Done,
            }
        }
    }

    /// Returns the memory with the data of the next answer to the get number `id`, or `Ok(None)`
    /// while a DMA message that reads the data is not answered.
    fn answer_memory(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        id: u32,
        wanted: WantedData,
        packet_progress: &mut PacketProgress,
    ) -> Result<Option<PacketMemory>, Unreadable> {
        let found = unit.parts.atu.find(wanted.address, wanted.rest.into());
        let (region, offset_in_region) = found.ok_or(Unreadable)?;
        let maximum = wanted.maximum.min(unit.parts.config.rma_mtu);
        let piece = region.piece(offset_in_region, maximum.into()).ok_or(Unreadable)?;

        // The length fits: it is at most `maximum`.
        let length = piece.length as u32;
        if let Some((lease, offset)) = piece.lease {
            return Ok(Some(PacketMemory { lease: lease.clone(), offset, length, staged: false }));
        }

        let owner = AttachmentId(header.target.vpid);
        let requester = header.source;
        let read_key = ReadKey { requester, id, offset: wanted.offset, iova: piece.iova, length };
        let client = self.client(owner).ok_or(Unreadable)?;
        if let Some(lease) = client.get_staging.fetch(unit.context, owner, Role::Get, read_key)? {
            return Ok(Some(PacketMemory { lease, offset: 0, length, staged: true }));
        }

        if packet_progress.keep_waiting(unit.context.now()) && !client.unresponsive {
            return Ok(None);
        }
        client.unresponsive |= !packet_progress.is_last_attempt;
        client.get_staging.drop_data(requester, id);
        Err(Unreadable)
    }

    /// Empties the staging buffer of a get's target, if it holds data for this get.
    #[cold]
    fn give_up_read(&mut self, header: &PacketHeader, part: &Part) {
        if let Some(client) = self.client(AttachmentId(header.target.vpid)) {
            client.get_staging.drop_data(header.source, part.id);
        }
    }

    /// Notifies the VPID that answered a get: the requester has all the data, or will not get them.
    pub(super) fn get_ended(&mut self, unit: &mut UnitContext<'_, '_>, header: PacketHeader, part: Part) {
        let is_same_queue = part.queue_generation == self.queue_generation(header.target.vpid);
        if !is_same_queue || !matches!(part.status, status::DONE | status::WITHDRAWN) {
            return;
        }

        let notification = notification(notify::RESPONDER, part.status, command::GET, header, &part);
        self.notify(unit, AttachmentId(header.target.vpid), notification);
    }
}

/// Returns the notification of a target about an access that has ended. `header` and `part` are
/// those of the access's last packet.
fn notification(role: u8, status: u8, command: u8, header: PacketHeader, part: &Part) -> Notification {
    let Endpoint { node, vpid } = header.source;
    Notification::new(role, status, command, node, vpid, part.total, part.address)
}
