//! Answers to the commands of this card's VPIDs, and the ends of these commands.

use std::sync::Arc;

use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    commands::State,
    part::Part,
    requester::Turn,
    side_queue::Handled,
    transfer::{Data, Waiting},
};
use crate::{
    card::Card,
    wire::{Class, Kind, Wire},
};

impl Card {
    /// Notes that a get has requested all that it will request. It ends when all of that is
    /// answered.
    pub(crate) fn get_sent(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Turn {
        let Some(client) = self.rma.client(who) else { return Turn::Blocked };
        let id = client.commands.id(index);
        let Some(in_flight) = client.commands.list.get_mut(index) else { return Turn::Blocked };

        in_flight.state = State::Sent;
        let (answered, status) = (in_flight.answered == in_flight.sent, in_flight.status);

        if answered {
            self.end_command(context, who, id, status);
        } else {
            client.commands.tidy();
        }
        Turn::Went(1)
    }

    /// Handles an answer for a command of this card.
    pub(crate) fn answer_arrived(
        &mut self,
        context: &mut Context<'_>,
        wire: Wire,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        waiting: &mut Waiting,
    ) -> Handled {
        let who = AttachmentId(wire.target_vpid);
        let Some(client) = self.rma.client(who) else { return Handled::Done };
        let Some(in_flight) =
            client.commands.in_flight(part.id).filter(|in_flight| in_flight.command == part.command)
        else {
            return Handled::Done;
        };

        if part.command != command::GET {
            let status = part.status;
            self.end_command(context, who, part.id, status);
            return Handled::Done;
        }

        let rest = in_flight.length - in_flight.answered.min(in_flight.length);
        let over = part.length >= in_flight.sent - in_flight.answered
            && (in_flight.state == State::Sent || part.status != status::DONE);
        let notify_responder = in_flight.notify & notify::RESPONDER != 0 && !in_flight.orphan;
        if over && notify_responder && !self.switch.request_room(wire.source, Class::Completion) {
            return Handled::NoRoom;
        }

        let mut status = if in_flight.status == status::DONE { part.status } else { in_flight.status };
        if status == status::DONE && *in_flight.read.get_or_insert(part.address) != part.address {
            status = status::WITHDRAWN;
        }

        let (at, region, orphan) = (part.at(), in_flight.region, in_flight.orphan);
        let address = in_flight.destination.wrapping_add(at.into());
        if orphan {
            status = status::WITHDRAWN;
        } else if status == status::DONE {
            let there =
                self.atu.find(address, part.rest.into()).is_some_and(|(found, _)| found.serial == region);
            let data = memory.as_ref().map_or(Data::Missing, |memory| Data::Memory(memory, part.data));
            let moved = if there {
                let range = (address, part.rest.into());
                self.rma.move_in(context, &self.atu, range, &data, part.length, waiting)
            } else {
                Some(status::WITHDRAWN)
            };
            match moved {
                Some(became) => status = became,
                None => return Handled::Slow,
            }
        }

        // The lease returns to its owner before the command ends.
        drop(memory);
        let Some(client) = self.rma.client(who) else { return Handled::Done };
        let length = part.length.min(rest);
        client.commands.asked = client.commands.asked.saturating_sub(length);

        let Some(in_flight) = client.commands.in_flight(part.id) else { return Handled::Done };
        in_flight.answered += length;
        in_flight.moved = true;
        in_flight.status = status;

        let ended = in_flight.answered == in_flight.sent
            && (in_flight.state == State::Sent || status != status::DONE);
        let (source, total) = (in_flight.source, in_flight.length);
        if ended {
            if notify_responder {
                let about = Part {
                    id: part.id,
                    command: command::GET,
                    status,
                    total,
                    address: source,

                    ..Part::default()
                };
                // A failure is ignored: there is room, as seen above, and the packet only informs
                // the other side.
                let _ =
                    self.send_rma(context, Kind::Ended, (wire.source, wire.source_vpid), who.0, &about, None);
            }
            self.end_command(context, who, part.id, status);
        }
        Handled::Done
    }

    /// Ends a command and notifies its VPID.
    pub(crate) fn end_command(&mut self, context: &mut Context<'_>, who: AttachmentId, id: u32, status: u8) {
        let node = self.config.node;
        let Some(client) = self.rma.client(who) else { return };
        let Some(in_flight) = client.commands.in_flight(id) else { return };

        in_flight.state = State::Ended;
        let get = in_flight.command == command::GET;
        let notifies = !in_flight.orphan && in_flight.tenancy == client.tenancy;
        let in_flight = in_flight.clone();

        client.commands.gets -= u32::from(get);
        if get {
            // A get that is given up has no more data to expect.
            let coming = in_flight.sent.saturating_sub(in_flight.answered);
            client.commands.asked = client.commands.asked.saturating_sub(coming);
        }

        client.commands.tidy();
        if status != status::DONE {
            client.asking.give_up((node, who.0), id);
        }

        if in_flight.orphan {
            return;
        }

        client.counts.completed += 1;
        self.show(who);

        if !notifies {
            return;
        }

        let notification = |role, address| {
            let (node, vpid) = in_flight.target;
            Notification::new(role, status, in_flight.command, node, vpid, in_flight.length, address)
        };

        if status != status::DONE || in_flight.notify & notify::REQUESTER != 0 {
            let own = if get { in_flight.destination } else { in_flight.source };
            self.notify(context, who, notification(notify::REQUESTER, own));
        }
        if get && status == status::DONE && in_flight.notify & notify::COMPLETER != 0 {
            self.notify(context, who, notification(notify::COMPLETER, in_flight.destination));
        }
    }
}
