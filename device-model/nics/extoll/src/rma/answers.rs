//! Answers to the commands of this card's VPIDs, and the ends of these commands.

use std::sync::Arc;

use nicforge_core::{dma::DmaLease, ids::AttachmentId, warning::Warning};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    Rma,
    commands::{InFlightCommand, Owner, State, WatchdogState},
    part::Part,
    requester::PartOutcome,
    side_queue::Handled,
    transfer::{Data, PacketProgress},
};
use crate::{
    atu::RegionSerial,
    packet::{Endpoint, PacketHeader, PacketKind, TrafficClass},
    unit::UnitContext,
};

/// A get that its last answer has ended.
struct EndedGet {
    /// Address of the get's source at its target.
    source: u64,
    /// Bytes of the get.
    total: u32,
}

impl Rma {
    /// Records that the get at `index` of a VPID's list has sent all its requests. The get ends at
    /// once if all of them are answered. Otherwise it waits for the answers, and the next command
    /// may send.
    pub(super) fn finish_requests_of_get(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        index: usize,
    ) -> PartOutcome {
        let Some(client) = self.client(attachment) else { return PartOutcome::Blocked };
        let id = client.commands.id(index);
        let Some(in_flight) = client.commands.list.get_mut(index) else { return PartOutcome::Blocked };

        in_flight.state = State::Sent;
        let status = in_flight.status;

        if in_flight.outstanding() == 0 {
            self.end_command(unit, attachment, id, status);
        } else {
            client.commands.skip_sent_and_drop_ended();
        }
        PartOutcome::Advanced { cost: 1 }
    }

    /// Handles an answer to a command of this card: ends a put, or moves the data of a get and ends
    /// the get with its last answer. `memory` holds the data.
    pub(super) fn answer_arrived(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        packet_progress: &mut PacketProgress,
    ) -> Handled {
        let attachment = AttachmentId(header.target.vpid);
        let Some(client) = self.client(attachment) else { return Handled::Done };
        let in_flight = client.commands.in_flight(part.id);
        let Some(in_flight) = in_flight.filter(|in_flight| in_flight.request.command == part.command) else {
            return Handled::Done;
        };

        if part.command != command::GET {
            self.end_command(unit, attachment, part.id, part.status);
            return Handled::Done;
        }

        let notify_responder = notifies_responder(in_flight);
        if notify_responder
            && ends_get(in_flight, part.length, part.status)
            && !unit.parts.switch.request_room(header.source.node, TrafficClass::Completion)
        {
            return Handled::NoRoom;
        }

        let mut status = in_flight.status_with(&part);
        let queue_generation = *in_flight.progress.responder_queue.get_or_insert(part.queue_generation);
        if status == status::DONE {
            let region = in_flight.progress.region;
            let address = in_flight.request.destination.wrapping_add(part.offset().into());
            match self.take_data(unit, region, address, &part, memory.as_deref(), packet_progress) {
                Some(ended_with) => status = ended_with,
                None => return Handled::WaitsForClient,
            }
        }

        // The sender's memory is free again before the command ends.
        drop(memory);
        let Some(EndedGet { source, total }) = self.count_answer(attachment, &part, status) else {
            return Handled::Done;
        };

        if notify_responder {
            let end_of_get = Part {
                id: part.id,
                command: command::GET,
                status,
                total,
                queue_generation,
                address: source,
                ..Part::default()
            };
            // A failure is ignored: there is room, as seen above, and the packet only leads to a
            // notification of the responder.
            let _ = end_of_get.send(unit, PacketKind::GetEnd, header.source, attachment.0, None);
        }
        self.end_command(unit, attachment, part.id, status);
        Handled::Done
    }

    /// Moves the data of a get's answer to `address` in `region`, the region of this card in which
    /// the get's destination lies. Returns the status of the get, or `None` if the data have to
    /// wait.
    fn take_data(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        region: Option<RegionSerial>,
        address: u64,
        part: &Part,
        memory: Option<&DmaLease>,
        packet_progress: &mut PacketProgress,
    ) -> Option<u8> {
        // The memory may have been registered again since the get started.
        let found = unit.parts.atu.find(address, part.rest.into());
        if found.is_none_or(|(present, _)| Some(present.serial) != region) {
            return Some(status::WITHDRAWN);
        }

        let data = memory.map_or(Data::Missing, |memory| Data::Memory(memory, part.data));
        self.move_in(unit, address, part.rest.into(), &data, part.length, packet_progress)
    }

    /// Records that a part of a get was answered, and the get's status. Returns the get if this
    /// answer ends it.
    fn count_answer(&mut self, attachment: AttachmentId, part: &Part, status: u8) -> Option<EndedGet> {
        let commands = &mut self.client(attachment)?.commands;
        let in_flight = commands.in_flight(part.id)?;

        let total = in_flight.request.length;
        let length = part.length.min(total.saturating_sub(in_flight.progress.answered));
        // No bytes are outstanding after this answer, and no more will be requested.
        let ended =
            in_flight.outstanding() == length && (in_flight.state == State::Sent || status != status::DONE);

        in_flight.progress.answered += length;
        in_flight.watchdog_state = WatchdogState::Progressed;
        in_flight.status = status;

        let source = in_flight.request.source;
        commands.outstanding_bytes = commands.outstanding_bytes.saturating_sub(length);
        ended.then_some(EndedGet { source, total })
    }

    /// Ends a VPID's command number `id` with a status, and notifies the VPID. An orphaned command
    /// ends without a notification, and so does one whose notification queue was disabled since.
    pub(super) fn end_command(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        id: u32,
        status: u8,
    ) {
        let requester = Endpoint { node: unit.parts.config.node, vpid: attachment.0 };
        let Some(client) = self.client(attachment) else { return };
        let Some(in_flight) = client.commands.in_flight(id) else { return };

        in_flight.state = State::Ended;
        let (request, owner, outstanding) = (in_flight.request, in_flight.owner, in_flight.outstanding());
        let is_get = request.is_get();

        client.commands.gets -= u32::from(is_get);
        if is_get {
            // A get that is given up has no more data to expect.
            client.commands.outstanding_bytes = client.commands.outstanding_bytes.saturating_sub(outstanding);
        }

        client.commands.skip_sent_and_drop_ended();
        if status != status::DONE {
            client.put_staging.drop_data(requester, id);
        }

        let Owner::SameClient { queue_generation } = owner else { return };
        client.counts.completed += 1;
        unit.parts.attachments.mark_changed(attachment);
        if status != status::DONE {
            let address = if is_get { request.source } else { request.destination };
            unit.context.warn(attachment, Warning::failed(rule(status)).value(address));
        }

        if queue_generation != client.notifications.generation() {
            return;
        }

        let notification = |role, address| {
            let Endpoint { node, vpid } = request.target;
            Notification::new(role, status, request.command, node, vpid, request.length, address)
        };

        if status != status::DONE || request.notify & notify::REQUESTER != 0 {
            let own_address = if is_get { request.destination } else { request.source };
            self.notify(unit, attachment, notification(notify::REQUESTER, own_address));
        }
        if is_get && status == status::DONE && request.notify & notify::COMPLETER != 0 {
            self.notify(unit, attachment, notification(notify::COMPLETER, request.destination));
        }
    }
}

/// Returns the rule that a status other than [`status::DONE`] stands for. The warning's value is
/// the address at the target.
#[cold]
fn rule(status: u8) -> &'static &'static str {
    match status {
        status::LOCAL_ADDRESS => &"a command's own address is registered for the access",
        status::REMOTE_ADDRESS => {
            &"a command's address at the target is registered, by that VPID, for the access"
        }
        status::NO_RECEIVER => &"a command's target exists and has a client",
        status::WITHDRAWN => &"memory of a command stays registered and mapped while it runs",
        status::COMMAND => &"an RMA command has defined bits only, and a length that the command allows",
        _ => &"a command's target answers before the watchdog's limit",
    }
}

/// Returns whether the VPID that answers a get is notified of its end.
fn notifies_responder(in_flight: &InFlightCommand) -> bool {
    in_flight.request.notify & notify::RESPONDER != 0 && in_flight.owner != Owner::Orphaned
}

/// Returns whether an answer of `length` bytes with this status can be a get's last one.
fn ends_get(in_flight: &InFlightCommand, length: u32, status: u8) -> bool {
    length >= in_flight.outstanding() && (in_flight.state == State::Sent || status != status::DONE)
}
