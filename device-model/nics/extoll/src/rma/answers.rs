//! Answers to the commands of this card's VPIDs, and the ends of these commands.

use std::sync::Arc;

use nicforge_core::{context::Context, device::AttachmentId, dma::DmaLease};
use nicforge_hwi::extoll_rma::{Notification, command, notify, status};

use super::{
    aside::Handled,
    commands::State,
    part::Part,
    requester::Turn,
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
        let Some(under) = client.commands.list.get_mut(index) else { return Turn::Blocked };

        under.state = State::Sent;
        let (answered, status) = (under.answered == under.sent, under.status);

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
        let Some(under) = client.commands.under(part.id).filter(|under| under.command == part.command) else {
            return Handled::Done;
        };

        if part.command != command::GET {
            let status = part.status;
            self.end_command(context, who, part.id, status);
            return Handled::Done;
        }

        let rest = under.length - under.answered.min(under.length);
        let over = part.length >= under.sent - under.answered
            && (under.state == State::Sent || part.status != status::DONE);
        let tell = under.notify & notify::RESPONDER != 0 && !under.orphan;
        if over && tell && !self.switch.has_room(wire.source, Class::Completion) {
            return Handled::NoRoom;
        }

        let mut status = if under.status == status::DONE { part.status } else { under.status };
        if status == status::DONE && *under.read.get_or_insert(part.address) != part.address {
            status = status::WITHDRAWN;
        }

        let (at, region, orphan) = (part.at(), under.region, under.orphan);
        let address = under.destination.wrapping_add(at.into());
        if orphan {
            status = status::WITHDRAWN;
        } else if status == status::DONE {
            let there =
                self.atu.find(address, part.rest.into()).is_some_and(|(found, _)| found.serial == region);
            let data = memory.as_ref().map_or(Data::Missing, |memory| Data::Memory(memory, part.place));
            let moved = if there {
                let place = (address, part.rest.into());
                self.rma.move_in(context, &self.atu, place, &data, part.length, waiting)
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

        let Some(under) = client.commands.under(part.id) else { return Handled::Done };
        under.answered += length;
        under.moved = true;
        under.status = status;

        let ended = under.answered == under.sent && (under.state == State::Sent || status != status::DONE);
        let (source, total) = (under.source, under.length);
        if ended {
            if tell {
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
        let Some(under) = client.commands.under(id) else { return };

        under.state = State::Ended;
        let get = under.command == command::GET;
        let told = !under.orphan && under.tenancy == client.tenancy;
        let under = under.clone();

        client.commands.gets -= u32::from(get);
        if get {
            // A get that is given up has no more data to expect.
            let coming = under.sent.saturating_sub(under.answered);
            client.commands.asked = client.commands.asked.saturating_sub(coming);
        }

        client.commands.tidy();
        if status != status::DONE {
            client.asking.give_up((node, who.0), id);
        }

        if under.orphan {
            return;
        }

        client.counts.completed += 1;
        self.show(who);

        if !told {
            return;
        }

        let tell = |role, address| {
            let (node, vpid) = under.target;
            Notification::new(role, status, under.command, node, vpid, under.length, address)
        };

        if status != status::DONE || under.notify & notify::REQUESTER != 0 {
            let own = if get { under.destination } else { under.source };
            self.notify(context, who, tell(notify::REQUESTER, own));
        }
        if get && status == status::DONE && under.notify & notify::COMPLETER != 0 {
            self.notify(context, who, tell(notify::COMPLETER, under.destination));
        }
    }
}
