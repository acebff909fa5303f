//! Accesses of other VPIDs to this card's memory.

use std::{collections::HashMap, sync::Arc};

use nicforge_core::{dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    Rma, cycles,
    part::Part,
    side_queue::Handled,
    transfer::{Data, PacketMemory, ReadKey, Role, Unreadable, Waiting},
};
use crate::{
    unit::{UnitContext, Unsent},
    wire::{Class, Endpoint, Kind, Wire},
};

/// The puts of one requester for one VPID of this card. Parts of one command come before those of
/// the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    requester: Endpoint,
    target: u16,
}

/// Puts of several parts that have begun.
pub(super) type Streams = HashMap<Stream, PartialPut>;

/// A put of several parts, of which some have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPut {
    /// The region of its first part; `None` if that part was refused.
    region: Option<u64>,
    /// The status so far.
    status: u8,
    /// The generation of the target's notification queue when the first part arrived. A queue that
    /// was enabled later may belong to another client, and gets no notification of the put.
    queue_generation: u32,
}

/// Returns the number of the region in which all `rest` bytes at `address` of the target VPID's
/// memory lie, if the packet's sender may read or write them.
///
/// # Errors
/// The status with which the access is refused.
fn allowed(unit: &UnitContext<'_, '_>, wire: Wire, address: u64, rest: u32, write: bool) -> Result<u64, u8> {
    let owner = wire.target.vpid;
    if owner >= unit.parts.config.vpids || !unit.parts.attachments.is_present(AttachmentId(owner)) {
        return Err(status::NO_RECEIVER);
    }

    let is_own_memory = wire.source == Endpoint { node: unit.parts.config.node, vpid: owner };
    match unit.parts.atu.find(address, rest.into()) {
        Some((region, _)) if region.owner == owner && region.allows(is_own_memory, write) => {
            Ok(region.serial)
        }
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

    /// Checks an access as [`allowed`] does, and counts its refusal.
    fn check_access(
        &mut self,
        unit: &UnitContext<'_, '_>,
        wire: Wire,
        address: u64,
        rest: u32,
        write: bool,
    ) -> Result<u64, u8> {
        let allowed = allowed(unit, wire, address, rest, write);
        self.refused += u64::from(allowed == Err(status::REMOTE_ADDRESS));
        allowed
    }

    /// Handles a part of a put.
    pub(super) fn put_arrived(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        wire: Wire,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        waiting: &mut Waiting,
    ) -> Handled {
        if part.last && !unit.parts.switch.request_room(wire.source.node, Class::Response) {
            return Handled::NoRoom;
        }

        let stream = Stream { requester: wire.source, target: wire.target.vpid };
        let is_only_part = part.last && part.rest == part.total;

        // The first part of a put replaces a put that its requester gave up half way.
        let before = if part.at() == 0 { None } else { self.streams.get(&stream).copied() };
        let written = self.write_part(unit, wire, &part, before, memory.as_deref(), waiting);
        let Some(after) = written else { return Handled::Slow };

        // The requester's memory is free again before the answer tells it that the command has
        // ended.
        drop(memory);

        if !part.last {
            self.streams.insert(stream, after);
            return Handled::Done;
        }

        if !is_only_part {
            self.streams.remove(&stream);
        }

        let answer = Part { status: after.status, last: true, length: 0, ..part };
        let sent = answer.send(unit, Kind::Answer, wire.source, wire.target.vpid, None);
        if let Err(Unsent::Starved | Unsent::Full) = sent {
            // There was room, so the pool of packets is empty. `waiting` records that the data were
            // written, so the retry does not write them again.
            if !is_only_part {
                self.streams.insert(stream, after);
            }
            return Handled::NoRoom;
        }

        let is_same_queue = after.queue_generation == self.queue_generation(wire.target.vpid);
        let wrote_data = after.region.is_some() && matches!(after.status, status::DONE | status::WITHDRAWN);
        if wrote_data && is_same_queue && part.notify & notify::COMPLETER != 0 {
            let notification = notification(notify::COMPLETER, after.status, part.command, wire, &part);
            self.notify(unit, AttachmentId(wire.target.vpid), notification);
        }
        Handled::Done
    }

    /// Writes the data of a put's part, if the requester may. `before` is the state after the put's
    /// earlier parts. Returns the state after this one, or `None` if the data have to wait.
    #[inline]
    fn write_part(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        wire: Wire,
        part: &Part,
        before: Option<PartialPut>,
        memory: Option<&DmaLease>,
        waiting: &mut Waiting,
    ) -> Option<PartialPut> {
        let queue_generation = match before {
            Some(before) => before.queue_generation,
            None => *waiting.queue_generation.get_or_insert_with(|| self.queue_generation(wire.target.vpid)),
        };

        let region = before.and_then(|before| before.region);
        let status = match before {
            Some(before) if before.status != status::DONE => before.status,
            _ => part.status,
        };
        if status != status::DONE {
            return Some(PartialPut { region, status, queue_generation });
        }

        let address = part.address.wrapping_add(part.at().into());
        let found = match self.check_access(unit, wire, address, part.rest, true) {
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
        let status = self.move_in(unit, (address, part.rest.into()), &data, part.length, waiting)?;
        Some(PartialPut { region: Some(found), status, queue_generation })
    }

    /// Handles a request for a part of a get. The part may lie in several pieces of memory, and
    /// each answer refers to one of them. A request that finds no room for an answer continues
    /// later, after the pieces that were answered.
    pub(super) fn get_arrived(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        wire: Wire,
        part: Part,
        waiting: &mut Waiting,
    ) -> Handled {
        loop {
            let has_room = unit.parts.switch.request_room(wire.source.node, Class::Response);
            if !has_room || !unit.request_idle(&self.reading) {
                return Handled::NoRoom;
            }

            let done = waiting.done;
            let remaining = part.length.saturating_sub(done);
            let rest = part.rest.saturating_sub(done);
            let address = part.address.wrapping_add(u64::from(part.total - rest.min(part.total)));
            let queue_generation = self.queue_generation(wire.target.vpid);
            let mut answer = Part { length: remaining, rest, last: true, queue_generation, ..part };
            let mut memory = None;
            match self.check_access(unit, wire, address, rest, false) {
                Ok(region) => {
                    answer.address = region;
                    match self.answer_memory(unit, wire, &part, (address, rest, remaining), waiting) {
                        Ok(Some(PacketMemory { lease, offset, length, staged })) => {
                            memory = Some(lease);
                            (answer.data, answer.length, answer.last) = (offset, length, length == remaining);
                            answer.staged = staged;
                        }
                        Ok(None) => return Handled::Slow,
                        Err(Unreadable) => answer.status = status::WITHDRAWN,
                    }
                }
                Err(refused) => answer.status = refused,
            }

            // The packet's earlier attempts may have started a read of memory that is gone by now.
            if !answer.staged && waiting.has_waited() {
                self.give_up_read(&wire, &part);
            }

            let sent = answer.send(unit, Kind::Answer, wire.source, wire.target.vpid, memory);
            if sent.is_ok() {
                unit.work(&mut self.reading, cycles(answer.length));
            }
            match sent {
                Err(Unsent::Starved | Unsent::Full) => return Handled::NoRoom,
                Ok(()) if !answer.last => waiting.done += answer.length,
                Ok(()) | Err(Unsent::Unreachable) => return Handled::Done,
            }
        }
    }

    /// Returns the memory with the data of a get's next answer, or `Ok(None)` while a DMA message
    /// that reads the data is not answered. The range is the address of the answer's data, the
    /// bytes of the get from there on, and those of the requested part.
    fn answer_memory(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        wire: Wire,
        part: &Part,
        (address, rest, remaining): (u64, u32, u32),
        waiting: &mut Waiting,
    ) -> Result<Option<PacketMemory>, Unreadable> {
        let (region, offset) = unit.parts.atu.find(address, rest.into()).ok_or(Unreadable)?;
        let maximum = remaining.min(unit.parts.config.rma_mtu);
        let piece = region.piece(offset, maximum.into()).ok_or(Unreadable)?;

        // The length fits: it is at most `maximum`.
        let length = piece.length as u32;
        if let Some((lease, offset)) = piece.lease {
            return Ok(Some(PacketMemory { lease: lease.clone(), offset, length, staged: false }));
        }

        let owner = AttachmentId(wire.target.vpid);
        let requester = wire.source;
        let at = part.total - rest.min(part.total);
        let expected = ReadKey { requester, id: part.id, at, iova: piece.iova, length };
        let client = self.client(owner).ok_or(Unreadable)?;
        if let Some(lease) = client.answer_reads.fetch(unit.context, owner, Role::Get, expected)? {
            return Ok(Some(PacketMemory { lease, offset: 0, length, staged: true }));
        }

        if waiting.wait(unit.context.now()) && !client.unresponsive {
            return Ok(None);
        }
        client.unresponsive |= !waiting.is_last_attempt;
        client.answer_reads.drop_data(requester, part.id);
        Err(Unreadable)
    }

    /// Empties the staging buffer of a get's target, if it holds data for this get.
    #[cold]
    fn give_up_read(&mut self, wire: &Wire, part: &Part) {
        if let Some(client) = self.client(AttachmentId(wire.target.vpid)) {
            client.answer_reads.drop_data(wire.source, part.id);
        }
    }

    /// Notifies the VPID that answered a get: the requester has all the data, or will not get them.
    pub(super) fn get_ended(&mut self, unit: &mut UnitContext<'_, '_>, wire: Wire, part: Part) {
        let is_same_queue = part.queue_generation == self.queue_generation(wire.target.vpid);
        if !is_same_queue || !matches!(part.status, status::DONE | status::WITHDRAWN) {
            return;
        }

        let notification = notification(notify::RESPONDER, part.status, command::GET, wire, &part);
        self.notify(unit, AttachmentId(wire.target.vpid), notification);
    }
}

/// Returns the notification of a VPID about an access of another one, which has ended.
fn notification(role: u8, status: u8, command: u8, wire: Wire, part: &Part) -> Notification {
    let Endpoint { node, vpid } = wire.source;
    Notification::new(role, status, command, node, vpid, part.total, part.address)
}
