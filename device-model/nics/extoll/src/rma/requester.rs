//! The commands of this card's VPIDs, until they are sent.
//!
//! A command enters its VPID's list, is sent in parts, and ends by answers (`answers`). Commands
//! start in the order in which they were written; a command that can't proceed lets those for other
//! targets pass. VPIDs send one part in turn.

use std::sync::Arc;

use nicforge_core::{context::Context, device::Write, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{error, reg},
    extoll_rma::{COMMAND_BYTES, Command, command, status},
};

use super::{
    commands::{Ahead, InFlightCommand, State},
    part::{self, MTU, Part},
    transfer::{Lent, RETRY, Role, Unreadable, Wanted},
};
use crate::{
    card::{Card, STARVED_RETRY},
    switch::Refused,
    topology::Route,
    wire::{Class, FRAMING, Kind, Wire},
};

/// Bytes that a VPID's gets may have requested and not received.
const GET_WINDOW: u32 = 8 * MTU;

/// The outcome of a VPID's turn.
pub(crate) enum Turn {
    /// A part was sent, or a command ended, at this cost.
    Went(u32),
    /// Nothing can be sent now.
    Blocked,
}

impl Card {
    /// Handles a write of the command register. It stalls while the VPID's list is full.
    pub(crate) fn rma_command(&mut self, context: &mut Context<'_>, who: AttachmentId, data: &[u8]) -> Write {
        let admin = self.admin();
        let Ok(bytes) = <[u8; COMMAND_BYTES]>::try_from(data) else {
            self.fail(context, who, error::REGISTER_ACCESS, reg::RMA_COMMAND);
            return Write::Accepted;
        };

        if who == admin {
            self.fail(context, who, error::NOT_PERMITTED, reg::RMA_COMMAND);
            return Write::Accepted;
        }

        let Some(client) = self.rma.client(who) else { return Write::Accepted };
        if client.queue.is_none() {
            self.fail(context, who, error::COMMAND, reg::RMA_COMMAND);
            return Write::Accepted;
        }
        if client.commands.is_full() {
            return Write::Stalled;
        }

        let written: Command = zerocopy::transmute!(bytes);
        let sound = client.commands.push(&written, client.tenancy);
        client.counts.commands += 1;
        self.rma.sending.add(who.0);
        self.rma.watchdog.add(context, who);
        self.show(who);

        if !sound {
            self.fail(context, who, error::COMMAND, reg::RMA_COMMAND);
        }
        Write::Accepted
    }

    /// Sends parts of commands, one for each VPID in turn, for about `budget` units of work.
    /// Returns the work done.
    pub(crate) fn rma_send(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        self.run_rma_watchdog(context);
        if self.rma.sending.is_empty() {
            return 0;
        }

        let mut waiting = self.rma.sending;
        let mut next = self.rma.turn;
        let mut spent = 0;
        while spent < budget {
            let Some(who) = waiting.next(next) else { break };
            next = who + 1;

            match self.send_part(context, AttachmentId(who)) {
                Turn::Went(cost) => {
                    spent += cost;
                    // A VPID that was blocked keeps its turn.
                    self.rma.turn = next;
                }
                Turn::Blocked => waiting.remove(who),
            }

            let Some(client) = self.rma.client(AttachmentId(who)) else { break };
            if !client.commands.is_sending() {
                self.rma.sending.remove(who);
                waiting.remove(who);
            }
        }
        spent
    }

    /// Sends a part of a VPID's first command that can proceed.
    fn send_part(&mut self, context: &mut Context<'_>, who: AttachmentId) -> Turn {
        let Some(client) = self.rma.client(who) else { return Turn::Blocked };
        let (mut ahead, mut from) = (Ahead::default(), client.commands.sent);
        loop {
            let Some(client) = self.rma.client(who) else { return Turn::Blocked };
            let Some(index) = client.commands.next_ahead(&mut ahead, from) else { return Turn::Blocked };
            if let Turn::Went(cost) = self.send_part_of(context, who, index) {
                return Turn::Went(cost);
            }
            from = index + 1;
        }
    }

    /// Sends a part of one command.
    fn send_part_of(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Turn {
        if let Some(turn) = self.start(context, who, index) {
            return turn;
        }

        let Some(commands) = self.rma.client(who).map(|client| &client.commands) else {
            return Turn::Blocked;
        };
        let Some(in_flight) = commands.list.get(index).cloned() else { return Turn::Blocked };
        let (id, asked) = (commands.id(index), commands.asked);
        if !self.switch.request_idle_way(in_flight.target.0, Class::Request) {
            return Turn::Blocked;
        }

        let rest = in_flight.length - in_flight.sent;
        let mut part = Part {
            id,
            command: in_flight.command,
            notify: in_flight.notify,
            status: in_flight.status,
            last: false,
            staged: false,
            length: rest.min(MTU),
            rest,
            total: in_flight.length,
            address: in_flight.destination,
            data: 0,
        };

        let mut memory = None;
        let stopped = in_flight.orphan || in_flight.status != status::DONE;
        if in_flight.command == command::GET {
            if stopped || rest == 0 {
                return self.get_sent(context, who, index);
            }
            part.address = in_flight.source;
            if asked > 0 && asked + part.length > GET_WINDOW {
                return Turn::Blocked;
            }
        } else if stopped {
            part.length = 0;
            part.status = if in_flight.orphan { status::WITHDRAWN } else { in_flight.status };
        } else if in_flight.command == command::IMMEDIATE_PUT {
            part.data = in_flight.source;
        } else {
            match self.source(context, who, &in_flight, id, rest) {
                Ok(Some(Lent { lease, offset, length, staged })) => {
                    memory = Some(lease);
                    (part.data, part.length, part.staged) = (offset, length, staged);
                }
                Ok(None) => {
                    context.wake_at(context.now().after(RETRY));
                    return Turn::Blocked;
                }
                Err(Unreadable) => {
                    part.length = 0;
                    part.status = status::WITHDRAWN;
                }
            }
        }

        part.last = in_flight.command != command::GET && (part.length == rest || part.status != status::DONE);
        let kind = if in_flight.command == command::GET { Kind::Get } else { Kind::Put };
        match self.send_rma(context, kind, in_flight.target, who.0, &part, memory) {
            Ok(()) => {}
            Err(Unsent::Later) => return Turn::Blocked,
            Err(Unsent::Never) => {
                // Not reached: the route existed when the command started.
                self.end_command(context, who, id, status::NO_RECEIVER);
                return Turn::Went(1);
            }
        }

        let Some(client) = self.rma.client(who) else { return Turn::Blocked };
        let commands = &mut client.commands;
        if let Some(in_flight) = commands.list.get_mut(index) {
            in_flight.sent += part.length;
            in_flight.moved = true;
            if in_flight.command == command::GET {
                commands.asked += part.length;
            }
            in_flight.state =
                if part.last || in_flight.sent == in_flight.length { State::Sent } else { State::Sending };
        }
        commands.tidy();
        // The bytes count for the budget of the card that moves them.
        Turn::Went(1)
    }

    /// Starts a command of which no part was sent. Returns the outcome of the turn if the command
    /// ends here or has to wait, and `None` if a part can be sent.
    fn start(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Option<Turn> {
        let commands = &self.rma.client(who)?.commands;
        let in_flight = commands.list.get(index).filter(|in_flight| in_flight.state == State::New)?;
        let id = commands.id(index);

        if in_flight.orphan {
            self.end_command(context, who, id, status::WITHDRAWN);
            return Some(Turn::Went(1));
        }

        let (status, region) = match in_flight.status {
            status::DONE => {
                let in_flight = in_flight.clone();
                self.judge(who, &in_flight)
            }
            bad => (bad, 0),
        };

        let commands = &mut self.rma.client(who)?.commands;
        if commands.has_to_wait(index, status != status::DONE) {
            return Some(Turn::Blocked);
        }
        if status != status::DONE {
            self.end_command(context, who, id, status);
            return Some(Turn::Went(1));
        }

        if let Some(in_flight) = commands.list.get_mut(index) {
            in_flight.region = region;
            in_flight.state = State::Sending;
        }
        None
    }

    /// Checks a command as far as this card can. Returns its status, and the number of the region
    /// of this card that it needs.
    fn judge(&self, who: AttachmentId, in_flight: &InFlightCommand) -> (u8, u64) {
        let (node, vpid) = in_flight.target;
        if node >= self.config.nodes || vpid >= self.config.vpids || self.switch.route(node) == Route::None {
            return (status::NO_RECEIVER, 0);
        }

        let (address, write) = match in_flight.command {
            command::IMMEDIATE_PUT => return (status::DONE, 0),
            command::GET => (in_flight.destination, true),
            _ => (in_flight.source, false),
        };
        match self.atu.find(address, in_flight.length.into()) {
            Some((region, _)) if region.owner == who.0 && region.allows(true, write) => {
                (status::DONE, region.serial)
            }
            _ => (status::LOCAL_ADDRESS, 0),
        }
    }

    /// Returns the data of a put's next part, or `Ok(None)` while a message for it is not answered.
    fn source(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        in_flight: &InFlightCommand,
        id: u32,
        rest: u32,
    ) -> Result<Option<Lent>, Unreadable> {
        let (region, offset) =
            self.atu.find(in_flight.source + u64::from(in_flight.sent), rest.into()).ok_or(Unreadable)?;
        if region.serial != in_flight.region {
            return Err(Unreadable);
        }

        let piece = region.piece(offset, rest.min(MTU).into()).ok_or(Unreadable)?;

        // The length fits: it is at most MTU.
        let length = piece.length as u32;
        if let Some((lease, offset)) = piece.lease {
            return Ok(Some(Lent { lease: lease.clone(), offset, length, staged: false }));
        }

        let wanted =
            Wanted { requester: (self.config.node, who.0), id, at: in_flight.sent, iova: piece.iova, length };
        let client = self.rma.client(who).ok_or(Unreadable)?;
        let lease = client.asking.fetch(context, who, Role::Asking, wanted)?;
        Ok(lease.map(|lease| Lent { lease, offset: 0, length, staged: true }))
    }

    /// Sends an RMA packet. A packet that refers to memory takes the link's time for its data.
    pub(crate) fn send_rma(
        &mut self,
        context: &mut Context<'_>,
        kind: Kind,
        target: (u32, u16),
        source_vpid: u16,
        part: &Part,
        memory: Option<Arc<DmaLease>>,
    ) -> Result<(), Unsent> {
        let wire = Wire {
            target: target.0,
            source: self.config.node,
            target_vpid: target.1,
            source_vpid,
            tag: 0,
            quadwords: 1,
            kind,
            generation: 0,
        };

        let mut ports = context.ports();
        let Some(mut packet) = ports.new_packet(part::BYTES) else {
            context.wake_at(context.now().after(STARVED_RETRY));
            return Err(Unsent::Later);
        };

        packet.header = wire.encode();
        // The link carries the data, although this machine does not move them with the packet.
        let data = if memory.is_some() { part.length } else { 0 };
        packet.framing = FRAMING + data;
        packet.memory = memory;
        part.encode(packet.bytes_mut());

        match self.switch.send(&mut ports, packet) {
            Ok(()) => Ok(()),
            Err(Refused::Full(packet)) => {
                ports.recycle(packet);
                Err(Unsent::Later)
            }
            Err(Refused::NoRoute(packet)) => {
                ports.recycle(packet);
                Err(Unsent::Never)
            }
        }
    }
}

/// Reasons why a packet was not sent.
pub(crate) enum Unsent {
    /// The network has no room, or the pool has no packet, at this time.
    Later,
    /// No route leads to the target.
    Never,
}
