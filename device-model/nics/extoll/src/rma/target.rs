//! Accesses of other VPIDs to this card's memory.

use std::{collections::HashMap, sync::Arc};

use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    part::{MTU, Part},
    requester::Unsent,
    side_queue::Handled,
    transfer::{Data, Lent, Role, Unreadable, Waiting, Wanted},
};
use crate::{
    card::Card,
    wire::{Class, Kind, Wire},
};

/// The puts of one requester for one target: the requester's node and VPID, and the target's VPID.
/// Parts of one command come before those of the next.
pub(crate) type Stream = (u32, u16, u16);
/// Puts of several parts that have begun.
pub(crate) type Streams = HashMap<Stream, PartialPut>;

/// A put of several parts, of which some have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialPut {
    /// The region of its first part.
    region: u64,
    /// The status so far.
    status: u8,
}

impl Card {
    /// Checks that a requester may read or write `rest` bytes of a VPID's memory. Returns the
    /// region's number, or the status of the refusal.
    fn allowed(&mut self, wire: Wire, address: u64, rest: u32, write: bool) -> Result<u64, u8> {
        let there = self.vpids.get(usize::from(wire.target_vpid)).is_some_and(|vpid| vpid.windows.is_some());
        if !there || wire.target_vpid >= self.config.vpids {
            return Err(status::NO_RECEIVER);
        }

        let itself = (wire.source, wire.source_vpid) == (self.config.node, wire.target_vpid);

        match self.atu.find(address, rest.into()) {
            Some((region, _)) if region.owner == wire.target_vpid && region.allows(itself, write) => {
                Ok(region.serial)
            }
            _ => {
                self.rma.refused += 1;
                Err(status::REMOTE_ADDRESS)
            }
        }
    }

    /// Handles a part of a put.
    pub(crate) fn put_arrived(
        &mut self,
        context: &mut Context<'_>,
        wire: Wire,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        waiting: &mut Waiting,
    ) -> Handled {
        if part.last && !self.switch.request_room(wire.source, Class::Response) {
            return Handled::NoRoom;
        }

        let stream = (wire.source, wire.source_vpid, wire.target_vpid);
        let whole = part.last && part.rest == part.total;

        // The first part of a put supersedes a put that its requester gave up half way.
        let partial = if part.at() == 0 { None } else { self.rma.streams.get(&stream).copied() };

        let address = part.address.wrapping_add(part.at().into());
        let mut region = partial.map_or(0, |partial| partial.region);

        let mut became = match partial {
            Some(partial) if partial.status != status::DONE => partial.status,
            _ => part.status,
        };

        if became == status::DONE {
            became = match self.allowed(wire, address, part.rest, true) {
                // The memory was registered anew since the first part.
                Ok(found) if partial.is_some_and(|partial| partial.region != found) => status::WITHDRAWN,
                Ok(found) => {
                    region = found;
                    let data = match &memory {
                        Some(memory) => Data::Memory(memory, part.data),
                        None if part.command == command::IMMEDIATE_PUT => Data::Word(part.data.to_le_bytes()),
                        None => Data::Missing,
                    };
                    let range = (address, part.rest.into());
                    match self.rma.move_in(context, &self.atu, range, &data, part.length, waiting) {
                        Some(became) => became,
                        None => return Handled::Slow,
                    }
                }
                // Earlier parts were written, so the memory was there.
                Err(status::REMOTE_ADDRESS | status::NO_RECEIVER) if partial.is_some() => status::WITHDRAWN,
                Err(refused) => refused,
            };
        }

        // The source's lease is returned before the answer tells its owner that the command has
        // ended.
        drop(memory);

        if !part.last {
            self.rma.streams.insert(stream, PartialPut { region, status: became });
            return Handled::Done;
        }

        if !whole {
            self.rma.streams.remove(&stream);
        }

        let answer = Part { status: became, last: true, length: 0, ..part };
        if let Err(Unsent::Later) = self.send_rma(
            context,
            Kind::Answer,
            (wire.source, wire.source_vpid),
            wire.target_vpid,
            &answer,
            None,
        ) {
            // There was room, so the pool is empty. The queue remembers that the data were written,
            // and they are not written again.
            if !whole {
                self.rma.streams.insert(stream, PartialPut { region, status: became });
            }
            return Handled::NoRoom;
        }

        let touched = region != 0 && matches!(became, status::DONE | status::WITHDRAWN);
        if touched && part.notify & notify::COMPLETER != 0 {
            let (node, vpid) = (wire.source, wire.source_vpid);
            let notification = Notification::new(
                notify::COMPLETER,
                became,
                part.command,
                node,
                vpid,
                part.total,
                part.address,
            );
            self.notify(context, AttachmentId(wire.target_vpid), notification);
        }
        Handled::Done
    }

    /// Handles a request for a part of a get. A part may lie in several pieces of memory, and an
    /// answer refers to one. A get that finds no room continues later, behind the pieces that were
    /// answered.
    pub(crate) fn get_arrived(
        &mut self,
        context: &mut Context<'_>,
        wire: Wire,
        part: Part,
        waiting: &mut Waiting,
    ) -> Handled {
        loop {
            if !self.switch.request_room(wire.source, Class::Response) {
                return Handled::NoRoom;
            }

            let done = waiting.done;
            let left = part.length.saturating_sub(done);
            let rest = part.rest.saturating_sub(done);
            let address = part.address.wrapping_add(u64::from(part.total - rest.min(part.total)));
            let mut answer = Part { length: left, rest, last: true, ..part };
            let mut memory = None;
            match self.allowed(wire, address, rest, false) {
                Ok(region) => {
                    answer.address = region;
                    match self.lend(context, wire, &part, (address, rest, left), waiting) {
                        Ok(Some(Lent { lease, offset, length, staged })) => {
                            memory = Some(lease);
                            (answer.data, answer.length, answer.last) = (offset, length, length == left);
                            answer.staged = staged;
                        }
                        Ok(None) => return Handled::Slow,
                        Err(Unreadable) => answer.status = status::WITHDRAWN,
                    }
                }
                Err(refused) => answer.status = refused,
            }

            let back = (wire.source, wire.source_vpid);
            match self.send_rma(context, Kind::Answer, back, wire.target_vpid, &answer, memory) {
                Err(Unsent::Later) => return Handled::NoRoom,
                Ok(()) if !answer.last => waiting.done += answer.length,
                Ok(()) | Err(Unsent::Never) => return Handled::Done,
            }
        }
    }

    /// Returns memory for a get's answer, or `Ok(None)` while a message for it is not answered.
    fn lend(
        &mut self,
        context: &mut Context<'_>,
        wire: Wire,
        part: &Part,
        (address, rest, left): (u64, u32, u32),
        waiting: &mut Waiting,
    ) -> Result<Option<Lent>, Unreadable> {
        let (region, offset) = self.atu.find(address, rest.into()).ok_or(Unreadable)?;
        let piece = region.piece(offset, left.min(MTU).into()).ok_or(Unreadable)?;

        // The length fits: it is at most MTU.
        let length = piece.length as u32;
        if let Some((lease, offset)) = piece.lease {
            return Ok(Some(Lent { lease: lease.clone(), offset, length, staged: false }));
        }

        let owner = AttachmentId(wire.target_vpid);
        let requester = (wire.source, wire.source_vpid);
        let at = part.total - rest.min(part.total);
        let wanted = Wanted { requester, id: part.id, at, iova: piece.iova, length };
        let client = self.rma.client(owner).ok_or(Unreadable)?;
        if let Some(lease) = client.answering.fetch(context, owner, Role::Answering, wanted)? {
            return Ok(Some(Lent { lease, offset: 0, length, staged: true }));
        }

        if waiting.wait(context.now()) && !client.unresponsive {
            return Ok(None);
        }
        client.unresponsive |= !waiting.hurried;
        client.answering.give_up(requester, part.id);
        Err(Unreadable)
    }

    /// Notifies the VPID that answered a get: the requester has all the data, or will not get them.
    pub(crate) fn get_ended(&mut self, context: &mut Context<'_>, wire: Wire, part: Part) {
        if !matches!(part.status, status::DONE | status::WITHDRAWN) {
            return;
        }

        let (node, vpid) = (wire.source, wire.source_vpid);

        let notification = Notification::new(
            notify::RESPONDER,
            part.status,
            command::GET,
            node,
            vpid,
            part.total,
            part.address,
        );
        self.notify(context, AttachmentId(wire.target_vpid), notification);
    }
}
