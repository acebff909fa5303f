//! The commands of this card's VPIDs, until they are sent.
//!
//! A command enters its VPID's list, is sent in parts, and ends by answers (`answers`). Commands
//! start in the order in which they were written; a command that can't proceed lets those for other
//! targets pass. VPIDs send one part each, round-robin.

use std::sync::Arc;

use nicforge_core::{device::Write, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{error, reg},
    extoll_rma::{COMMAND_BYTES, Command, command, status},
};
use nicforge_kit::retry;

use super::{
    Rma,
    commands::{InFlightCommand, Owner, State, TargetSearch, WatchdogState},
    cycles,
    part::{Part, max_request_bytes},
    transfer::{PacketMemory, ReadKey, Role, Unreadable},
};
use crate::{
    atu::{Access, RegionSerial},
    failure::Failure,
    packet::{Endpoint, PacketKind, TrafficClass},
    topology::Route,
    unit::{UnitContext, Unsent},
};

/// Maximum number of requests of the largest size that a VPID's gets may have sent before their
/// data arrive.
const GET_WINDOW: u32 = 8;

/// The outcome of sending one part for a VPID.
pub(super) enum PartOutcome {
    /// A part was sent, or a command ended, at this cost.
    Advanced { cost: u32 },
    /// Nothing can be sent now.
    Blocked,
}

/// The kind of a part's packet, and its receiver.
#[derive(Clone, Copy)]
struct Destination {
    kind: PacketKind,
    target: Endpoint,
}

/// The data of a put's part.
enum PartData {
    /// The part can be sent. The memory is the one that the packet refers to; `None` if the packet
    /// carries a word or nothing.
    Ready(Option<Arc<DmaLease>>),
    /// A DMA message that reads the data is not answered yet.
    Pending,
}

impl Rma {
    /// Handles a write of the command register. It stalls while the VPID's list is full.
    pub(crate) fn write_command(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        data: &[u8],
    ) -> Write {
        let Ok(bytes) = <[u8; COMMAND_BYTES]>::try_from(data) else {
            return refuse(unit, attachment, error::REGISTER_ACCESS);
        };
        if unit.is_admin(attachment) {
            return refuse(unit, attachment, error::NOT_PERMITTED);
        }

        let Some(client) = self.client(attachment) else { return Write::Accepted };
        if !client.notifications.is_enabled() {
            return refuse(unit, attachment, error::COMMAND);
        }
        if client.commands.is_full() {
            return Write::Stalled;
        }

        let written: Command = zerocopy::transmute!(bytes);
        let valid = client.commands.push(&written, client.notifications.generation());
        client.counts.commands += 1;
        self.sending.add(attachment);
        self.watchdog.add(unit.context, attachment);
        unit.parts.attachments.mark_changed(attachment);

        if valid { Write::Accepted } else { refuse(unit, attachment, error::COMMAND) }
    }

    /// Returns whether a step has work of this unit: parts to send, packets in side queues, or a
    /// wake-up to request for the watchdog's next check.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.sending.is_empty() || self.has_occupied_side_queue() || self.is_watched()
    }

    /// Sends parts of commands, one for each VPID in turn, for about `budget` units of work.
    /// Returns the work done.
    #[inline]
    pub(crate) fn send(&mut self, unit: &mut UnitContext<'_, '_>, budget: u32) -> u32 {
        self.run_watchdog(unit);
        if self.sending.is_empty() { 0 } else { self.send_round_robin(unit, budget) }
    }

    /// As [`Rma::send`], if VPIDs have parts to send.
    fn send_round_robin(&mut self, unit: &mut UnitContext<'_, '_>, budget: u32) -> u32 {
        // VPIDs that may have a part that can be sent now.
        let mut candidates = self.sending;
        let mut next = self.next_vpid;
        let mut spent = 0;
        while spent < budget {
            let Some(attachment) = candidates.in_turn(next) else { break };
            next = AttachmentId(attachment.0 + 1);

            match self.send_part(unit, attachment) {
                PartOutcome::Advanced { cost } => {
                    spent += cost;
                    // A VPID that was blocked stays the next one.
                    self.next_vpid = next;
                }
                PartOutcome::Blocked => candidates.remove(attachment),
            }

            let Some(client) = self.client(attachment) else { break };
            if !client.commands.is_sending() {
                self.sending.remove(attachment);
                candidates.remove(attachment);
            }
        }
        spent
    }

    /// Sends a part of a VPID's first command that can proceed. Commands that are blocked let those
    /// for other targets pass.
    fn send_part(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId) -> PartOutcome {
        let Some(client) = self.client(attachment) else { return PartOutcome::Blocked };
        let (mut search, mut from) = (TargetSearch::default(), client.commands.sent);
        loop {
            let Some(client) = self.client(attachment) else { return PartOutcome::Blocked };
            let Some(index) = client.commands.next_to_send(&mut search, from) else {
                return PartOutcome::Blocked;
            };
            if let PartOutcome::Advanced { cost } = self.send_part_of(unit, attachment, index) {
                return PartOutcome::Advanced { cost };
            }
            from = index + 1;
        }
    }

    /// Sends a part of the command at `index` of a VPID's list.
    fn send_part_of(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
    ) -> PartOutcome {
        if let Some(outcome) = self.start_command(unit, attachment, index) {
            return outcome;
        }

        let Some(client) = self.client(attachment) else { return PartOutcome::Blocked };
        let commands = &client.commands;
        let Some(in_flight) = commands.list.get(index).cloned() else { return PartOutcome::Blocked };
        let part = in_flight.next_part(commands.id(index), unit.parts.config.rma_mtu);
        let outstanding_bytes = commands.outstanding_bytes;
        if !unit.parts.switch.request_idle_output(in_flight.request.target.node, TrafficClass::Request) {
            return PartOutcome::Blocked;
        }

        if in_flight.request.is_get() {
            self.request_part(unit, attachment, index, &in_flight, part, outstanding_bytes)
        } else {
            self.put_part(unit, attachment, index, &in_flight, part)
        }
    }

    /// Requests the next part of a get. `outstanding_bytes` are the bytes of the VPID's gets that
    /// were requested and have not arrived.
    fn request_part(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
        in_flight: &InFlightCommand,
        part: Part,
        outstanding_bytes: u32,
    ) -> PartOutcome {
        if in_flight.is_stopped() || part.rest == 0 {
            return self.finish_requests_of_get(unit, attachment, index);
        }
        let window = GET_WINDOW * max_request_bytes(unit.parts.config.rma_mtu);
        if outstanding_bytes > 0 && outstanding_bytes + part.length > window {
            return PartOutcome::Blocked;
        }

        let destination = Destination { kind: PacketKind::Get, target: in_flight.request.target };
        self.send_next(unit, attachment, index, destination, &part, None)
    }

    /// Sends the next part of a put. A put that can't continue sends its end.
    fn put_part(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
        in_flight: &InFlightCommand,
        mut part: Part,
    ) -> PartOutcome {
        if !unit.request_idle(&self.read_engine) {
            return PartOutcome::Blocked;
        }

        let memory = match self.fill_part(unit, attachment, in_flight, &mut part) {
            PartData::Ready(memory) => memory,
            PartData::Pending => {
                unit.context.wake_at(unit.context.now().after(retry::MEMORY_BUSY));
                return PartOutcome::Blocked;
            }
        };

        part.is_last = part.length == part.rest || part.status != status::DONE;
        let destination = Destination { kind: PacketKind::Put, target: in_flight.request.target };
        let outcome = self.send_next(unit, attachment, index, destination, &part, memory);
        if let PartOutcome::Advanced { .. } = outcome {
            unit.begin_work(&mut self.read_engine, cycles(part.length));
        }
        outcome
    }

    /// Sets the data of a put's part and its length, or the status with which the put ends.
    #[inline]
    fn fill_part(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        in_flight: &InFlightCommand,
        part: &mut Part,
    ) -> PartData {
        if in_flight.is_stopped() {
            part.length = 0;
            if in_flight.owner == Owner::Orphaned {
                part.status = status::WITHDRAWN;
            }
            return PartData::Ready(None);
        }

        if in_flight.request.command == command::IMMEDIATE_PUT {
            part.data = in_flight.request.source;
            return PartData::Ready(None);
        }

        match self.put_memory(unit, attachment, in_flight, part.id) {
            Ok(Some(found)) => {
                part.data = found.offset;
                part.length = found.length;
                part.staged = found.staged;
                PartData::Ready(Some(found.lease))
            }
            Ok(None) => PartData::Pending,
            Err(Unreadable) => {
                part.length = 0;
                part.status = status::WITHDRAWN;
                PartData::Ready(None)
            }
        }
    }

    /// Sends a part of the command at `index`, and records the progress of the command.
    #[inline]
    fn send_next(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
        Destination { kind, target }: Destination,
        part: &Part,
        memory: Option<Arc<DmaLease>>,
    ) -> PartOutcome {
        match part.send(unit, kind, target, attachment.0, memory) {
            Ok(()) => {}
            Err(Unsent::Starved | Unsent::Full) => return PartOutcome::Blocked,
            Err(Unsent::Unreachable) => {
                // Not reached: the route existed when the command started.
                self.end_command(unit, attachment, part.id, status::NO_RECEIVER);
                return PartOutcome::Advanced { cost: 1 };
            }
        }

        let Some(client) = self.client(attachment) else { return PartOutcome::Blocked };
        let commands = &mut client.commands;
        if let Some(in_flight) = commands.list.get_mut(index) {
            in_flight.progress.sent += part.length;
            in_flight.watchdog_state = WatchdogState::Progressed;
            if kind == PacketKind::Get {
                commands.outstanding_bytes += part.length;
            }
            in_flight.state =
                if part.is_last || in_flight.rest() == 0 { State::Sent } else { State::Sending };
        }

        commands.skip_sent_and_drop_ended();
        // The bytes are charged to the budget of the card that moves them, which is the receiver.
        PartOutcome::Advanced { cost: 1 }
    }

    /// Checks the command at `index` before its first part is sent. Returns the outcome if the
    /// command ends here or has to wait. Returns `None` if a part can be sent, and for a command
    /// that has started already.
    fn start_command(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
    ) -> Option<PartOutcome> {
        let commands = &mut self.client(attachment)?.commands;
        let in_flight = commands.list.get(index).filter(|in_flight| in_flight.state == State::New)?;
        let id = commands.id(index);

        if in_flight.owner == Owner::Orphaned {
            self.end_command(unit, attachment, id, status::WITHDRAWN);
            return Some(PartOutcome::Advanced { cost: 1 });
        }

        let checked = match in_flight.status {
            status::DONE => check_command(unit, attachment, in_flight),
            invalid => Err(invalid),
        };

        if commands.has_to_wait(index, checked.is_err()) {
            return Some(PartOutcome::Blocked);
        }

        match checked {
            Ok(region) => {
                let in_flight = commands.list.get_mut(index)?;
                in_flight.progress.region = region;
                in_flight.state = State::Sending;
                None
            }
            Err(status) => {
                self.end_command(unit, attachment, id, status);
                Some(PartOutcome::Advanced { cost: 1 })
            }
        }
    }

    /// Returns the memory with the data of a put's next part, or `Ok(None)` while a DMA message
    /// that reads the data is not answered.
    fn put_memory(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        in_flight: &InFlightCommand,
        id: u32,
    ) -> Result<Option<PacketMemory>, Unreadable> {
        let (sent, rest) = (in_flight.progress.sent, in_flight.rest());
        let address = in_flight.request.source + u64::from(sent);
        let (region, offset_in_region) = unit.parts.atu.find(address, rest.into()).ok_or(Unreadable)?;
        if Some(region.serial) != in_flight.progress.region {
            return Err(Unreadable);
        }

        let maximum = rest.min(unit.parts.config.rma_mtu);
        let piece = region.piece(offset_in_region, maximum.into()).ok_or(Unreadable)?;

        // The length fits: it is at most `maximum`.
        let length = piece.length as u32;
        if let Some((lease, offset)) = piece.lease {
            return Ok(Some(PacketMemory { lease: lease.clone(), offset, length, staged: false }));
        }

        let requester = Endpoint { node: unit.parts.config.node, vpid: attachment.0 };
        let read_key = ReadKey { requester, id, offset: sent, iova: piece.iova, length };
        let client = self.client(attachment).ok_or(Unreadable)?;
        let lease = client.put_staging.fetch(unit.context, attachment, Role::Put, read_key)?;
        Ok(lease.map(|lease| PacketMemory { lease, offset: 0, length, staged: true }))
    }
}

/// Counts an error of a write of the command register. Returns `Accepted`, so that the write is not
/// repeated.
#[cold]
fn refuse(unit: &mut UnitContext<'_, '_>, attachment: AttachmentId, code: u8) -> Write {
    unit.fail(attachment, Failure::of_register(code, reg::RMA_COMMAND));
    Write::Accepted
}

/// Checks the target, and the region of this card that the command reads or writes. Returns the
/// region, or `None` for an immediate put, which has none.
///
/// # Errors
/// The status with which the command ends.
fn check_command(
    unit: &UnitContext<'_, '_>,
    attachment: AttachmentId,
    in_flight: &InFlightCommand,
) -> Result<Option<RegionSerial>, u8> {
    let request = &in_flight.request;
    let Endpoint { node, vpid } = request.target;
    if node >= unit.parts.config.nodes
        || vpid >= unit.parts.config.vpids
        || unit.parts.switch.route(node) == Route::None
    {
        return Err(status::NO_RECEIVER);
    }

    let (address, access) = match request.command {
        command::IMMEDIATE_PUT => return Ok(None),
        command::GET => (request.destination, Access::Write),
        _ => (request.source, Access::Read),
    };
    match unit.parts.atu.find(address, request.length.into()) {
        Some((region, _)) if region.owner == attachment.0 && region.allows_owner(access) => {
            Ok(Some(region.serial))
        }
        _ => Err(status::LOCAL_ADDRESS),
    }
}
