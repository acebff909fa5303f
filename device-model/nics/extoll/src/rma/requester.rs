//! The commands of this card's VPIDs.
//!
//! A command is taken into its VPID's list, sent in parts, and ends by answers. Commands are started in the order in which they were written; one that
//! can't go on lets those for other targets pass. VPIDs send a part in turn.

use std::{collections::VecDeque, sync::Arc};

use nicforge_core::{
    context::Context,
    device::{AttachmentId, Write},
    dma::DmaLease,
};
use nicforge_hwi::{
    extoll::{error, reg},
    extoll_rma::{
        COMMAND_BYTES, Command, MAX_COMMANDS, MAX_IMMEDIATE, MAX_LENGTH, Notification, command, notify,
        status,
    },
};

use super::{
    part::{self, MTU, Part},
    transfer::{Data, RETRY, Role, Unreadable, Wanted},
};
use crate::{
    card::{Card, STARVED_RETRY},
    switch::{Arrival, Refused},
    topology::Route,
    wire::{Class, FRAMING, Kind, Wire},
};

/// Bytes that a VPID's gets have asked for and not got, at most.
const GET_WINDOW: u32 = 8 * MTU;
/// Commands that are looked at for one that can go on.
const LOOK_AHEAD: usize = 8;

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was sent.
    New,
    /// Parts of it were, and more are to come.
    Sending,
    /// All of it was; it ends by answers.
    Sent,
    /// It has ended.
    Ended,
}

/// A command under way.
#[derive(Clone, Debug)]
struct Under {
    target: (u32, u16),
    command: u8,
    notify: u8,
    status: u8,
    state: State,
    /// Its VPID was reset: nobody is told, and nothing more of it is sent.
    orphan: bool,
    length: u32,
    /// Bytes that were sent, or asked for; bytes of a get that were answered.
    sent: u32,
    answered: u32,
    source: u64,
    destination: u64,
    /// The queue that its notifications are for.
    tenancy: u32,
    /// The region at this card: a put's source, a get's destination. 0: not looked up.
    region: u64,
    /// The region that a get reads, as the first answer says.
    read: Option<u64>,
}

/// A VPID's commands, in the order in which they were written.
#[derive(Default)]
pub(crate) struct Commands {
    list: VecDeque<Under>,
    /// The number of the first one.
    first: u32,
    /// How many at the front were sent as a whole.
    sent: usize,
    /// Gets that have not ended.
    gets: u32,
    /// Bytes that they have asked for and not got.
    asked: u32,
}

impl Commands {
    /// Whether there are commands that were not sent as a whole.
    pub(crate) fn is_sending(&self) -> bool {
        self.sent < self.list.len()
    }

    /// The VPID was reset.
    pub(crate) fn orphan(&mut self) {
        for under in &mut self.list {
            under.orphan = true;
        }
    }

    fn under(&mut self, id: u32) -> Option<&mut Under> {
        self.list.get_mut(id.wrapping_sub(self.first) as usize).filter(|under| under.state != State::Ended)
    }

    fn id(&self, index: usize) -> u32 {
        // At most MAX_COMMANDS.
        self.first.wrapping_add(index as u32)
    }

    /// Whether a command before this one, for the same target, keeps it from starting: if it failed, any; if it is a put, a get.
    fn has_to_wait(&self, index: usize, failed: bool) -> bool {
        let Some(this) = self.list.get(index) else { return true };
        if !failed && (this.command == command::GET || self.gets == 0) {
            return false;
        }
        self.list.iter().take(index).any(|before| {
            before.state != State::Ended
                && before.target == this.target
                && (failed || before.command == command::GET)
        })
    }

    /// Moves past what was sent as a whole, and drops what has ended at the front.
    fn tidy(&mut self) {
        while self.list.get(self.sent).is_some_and(|under| matches!(under.state, State::Sent | State::Ended))
        {
            self.sent += 1;
        }
        while self.list.front().is_some_and(|under| under.state == State::Ended) {
            self.list.pop_front();
            self.first = self.first.wrapping_add(1);
            self.sent = self.sent.saturating_sub(1);
        }
    }
}

/// What a VPID's turn came to.
enum Turn {
    /// A part was sent, or a command ended, at this cost.
    Went(u32),
    /// Nothing can be sent now.
    Blocked,
}

impl Card {
    /// A write of the command register.
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
        let commands = &mut client.commands;
        if commands.list.len() >= MAX_COMMANDS {
            return Write::Stalled;
        }
        if commands.list.capacity() == 0 {
            commands.list.reserve_exact(MAX_COMMANDS);
        }
        let written: Command = zerocopy::transmute!(bytes);
        let sound = check(&written);
        commands.list.push_back(Under {
            target: (written.node(), written.vpid()),
            command: written.command(),
            notify: written.notify(),
            status: if sound { status::DONE } else { status::COMMAND },
            state: State::New,
            orphan: false,
            length: if sound { written.length() } else { 0 },
            sent: 0,
            answered: 0,
            source: written.source,
            destination: written.destination,
            tenancy: client.tenancy,
            region: 0,
            read: None,
        });
        commands.gets += u32::from(written.command() == command::GET);
        client.counts.commands += 1;
        self.rma.sending.add(who.0);
        self.show(who);
        if !sound {
            self.fail(context, who, error::COMMAND, reg::RMA_COMMAND);
        }
        Write::Accepted
    }

    /// Sends parts of commands, a VPID in turn, for about `budget` packets' worth of work. Returns how much it was.
    pub(crate) fn rma_send(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let mut waiting = self.rma.sending;
        let mut next = self.rma.turn;
        let mut spent = 0;
        while spent < budget {
            let Some(who) = waiting.next(next) else { break };
            next = who + 1;
            match self.send_part(context, AttachmentId(who)) {
                Turn::Went(cost) => {
                    spent += cost;
                    // Who was only looked at has not had its turn.
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

    /// Sends a part of the first command of a VPID that can go on.
    fn send_part(&mut self, context: &mut Context<'_>, who: AttachmentId) -> Turn {
        let Some(commands) = self.rma.client(who).map(|client| &client.commands) else {
            return Turn::Blocked;
        };
        let (start, end) = (commands.sent, commands.list.len().min(commands.sent + LOOK_AHEAD));
        for index in start..end {
            let Some(commands) = self.rma.client(who).map(|client| &client.commands) else { break };
            let open = |under: &Under| matches!(under.state, State::New | State::Sending);
            let Some(this) = commands.list.get(index).filter(|under| open(under)) else { continue };
            let behind = |before: &Under| open(before) && before.target == this.target;
            if commands.list.range(start..index).any(behind) {
                continue;
            }
            if let Turn::Went(cost) = self.send_part_of(context, who, index) {
                return Turn::Went(cost);
            }
        }
        Turn::Blocked
    }

    fn send_part_of(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Turn {
        if let Some(turn) = self.start(context, who, index) {
            return turn;
        }
        let Some(commands) = self.rma.client(who).map(|client| &client.commands) else {
            return Turn::Blocked;
        };
        let Some(under) = commands.list.get(index).cloned() else { return Turn::Blocked };
        let (id, asked) = (commands.id(index), commands.asked);
        if !self.switch.is_idle(under.target.0, Class::Request) {
            return Turn::Blocked;
        }
        let rest = under.length - under.sent;
        let mut part = Part {
            id,
            command: under.command,
            notify: under.notify,
            status: under.status,
            last: false,
            length: rest.min(MTU),
            rest,
            total: under.length,
            address: under.destination,
            place: 0,
        };
        let mut memory = None;
        let stopped = under.orphan || under.status != status::DONE;
        if under.command == command::GET {
            if stopped || rest == 0 {
                return self.get_sent(context, who, index);
            }
            part.address = under.source;
            if asked > 0 && asked + part.length > GET_WINDOW {
                return Turn::Blocked;
            }
        } else if stopped {
            part.length = 0;
            part.status = if under.orphan { status::WITHDRAWN } else { under.status };
        } else if under.command == command::IMMEDIATE_PUT {
            part.place = under.source;
        } else {
            match self.source(context, who, &under, id, rest) {
                Ok(Some((lease, place, length))) => {
                    memory = Some(lease);
                    (part.place, part.length) = (place, length);
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
        part.last = under.command != command::GET && (part.length == rest || part.status != status::DONE);
        let kind = if under.command == command::GET { Kind::Get } else { Kind::Put };
        match self.send_rma(context, kind, under.target, who.0, &part, memory) {
            Ok(()) => {}
            Err(Unsent::Later) => return Turn::Blocked,
            Err(Unsent::Never) => {
                // A route that was there when the command started is there still.
                self.end_command(context, who, id, status::NO_RECEIVER);
                return Turn::Went(1);
            }
        }
        let Some(client) = self.rma.client(who) else { return Turn::Blocked };
        let commands = &mut client.commands;
        if let Some(under) = commands.list.get_mut(index) {
            under.sent += part.length;
            if under.command == command::GET {
                commands.asked += part.length;
            }
            under.state = if part.last || under.sent == under.length { State::Sent } else { State::Sending };
        }
        commands.tidy();
        // The bytes are moved, and counted, where they arrive.
        Turn::Went(1)
    }

    /// Looks at a command that nothing was sent of. What it came to when it ends here, or has to wait.
    fn start(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Option<Turn> {
        let commands = &self.rma.client(who)?.commands;
        let under = commands.list.get(index).filter(|under| under.state == State::New)?;
        let id = commands.id(index);
        if under.orphan {
            self.end_command(context, who, id, status::WITHDRAWN);
            return Some(Turn::Went(1));
        }
        let (status, region) = match under.status {
            status::DONE => {
                let under = under.clone();
                self.judge(who, &under)
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
        if let Some(under) = commands.list.get_mut(index) {
            under.region = region;
            under.state = State::Sending;
        }
        None
    }

    /// Whether a command can be done as far as this card can tell, and the region of this card that it needs.
    fn judge(&self, who: AttachmentId, under: &Under) -> (u8, u64) {
        let (node, vpid) = under.target;
        if node >= self.config.nodes || vpid >= self.config.vpids || self.switch.route(node) == Route::None {
            return (status::NO_RECEIVER, 0);
        }
        let (address, write) = match under.command {
            command::IMMEDIATE_PUT => return (status::DONE, 0),
            command::GET => (under.destination, true),
            _ => (under.source, false),
        };
        match self.atu.find(address, under.length.into()) {
            Some((region, _)) if region.owner == who.0 && region.allows(true, write) => {
                (status::DONE, region.serial)
            }
            _ => (status::LOCAL_ADDRESS, 0),
        }
    }

    /// The data of a put's next part: memory, where in it, how much. `Ok(None)`: later.
    fn source(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        under: &Under,
        id: u32,
        rest: u32,
    ) -> Result<Option<(Arc<DmaLease>, u64, u32)>, Unreadable> {
        let (region, offset) =
            self.atu.find(under.source + u64::from(under.sent), rest.into()).ok_or(Unreadable)?;
        if region.serial != under.region {
            return Err(Unreadable);
        }
        let piece = region.piece(offset, rest.min(MTU).into()).ok_or(Unreadable)?;
        // At most MTU.
        let length = piece.length as u32;
        if let Some((lease, place)) = piece.lease {
            return Ok(Some((lease.clone(), place, length)));
        }
        let wanted =
            Wanted { requester: (self.config.node, who.0), id, at: under.sent, iova: piece.iova, length };
        let client = self.rma.client(who).ok_or(Unreadable)?;
        let lease = client.asking.fetch(context, who, Role::Asking, wanted)?;
        Ok(lease.map(|lease| (lease, 0, length)))
    }

    /// All of a get that will be asked for was: it ends when that is answered.
    fn get_sent(&mut self, context: &mut Context<'_>, who: AttachmentId, index: usize) -> Turn {
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

    /// Sends an RMA packet.
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
        // The link carries the data, whatever this machine does.
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

    /// An answer for a command of this card. False when it has to wait.
    pub(crate) fn answer_arrived(
        &mut self,
        context: &mut Context<'_>,
        arrival: Arrival,
        part: Part,
        memory: Option<Arc<DmaLease>>,
    ) -> bool {
        let who = AttachmentId(arrival.wire.target_vpid);
        let Some(client) = self.rma.client(who) else { return true };
        let Some(under) = client.commands.under(part.id).filter(|under| under.command == part.command) else {
            return true;
        };
        if part.command != command::GET {
            let status = part.status;
            self.end_command(context, who, part.id, status);
            return true;
        }
        let rest = under.length - under.answered.min(under.length);
        let over = part.length >= under.sent - under.answered
            && (under.state == State::Sent || part.status != status::DONE);
        let tell = under.notify & notify::RESPONDER != 0 && !under.orphan;
        if over && tell && !self.switch.has_room(arrival.wire.source, Class::Completion) {
            return false;
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
                let (place, queue) = ((address, part.rest.into()), arrival.queue());
                self.rma.move_in(context, &self.atu, place, &data, part.length, queue)
            } else {
                Some(status::WITHDRAWN)
            };
            match moved {
                Some(became) => status = became,
                None => return false,
            }
        }
        drop(memory);
        let Some(client) = self.rma.client(who) else { return true };
        let length = part.length.min(rest);
        client.commands.asked = client.commands.asked.saturating_sub(length);
        let Some(under) = client.commands.under(part.id) else { return true };
        under.answered += length;
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
                // There is room, as was seen above; and it is for the other side's information only.
                let _ = self.send_rma(
                    context,
                    Kind::Ended,
                    (arrival.wire.source, arrival.wire.source_vpid),
                    who.0,
                    &about,
                    None,
                );
            }
            self.end_command(context, who, part.id, status);
        }
        true
    }

    /// A command has ended, and its VPID is told.
    fn end_command(&mut self, context: &mut Context<'_>, who: AttachmentId, id: u32, status: u8) {
        let node = self.config.node;
        let Some(client) = self.rma.client(who) else { return };
        let Some(under) = client.commands.under(id) else { return };
        under.state = State::Ended;
        let get = under.command == command::GET;
        let told = !under.orphan && under.tenancy == client.tenancy;
        let under = under.clone();
        client.commands.gets -= u32::from(get);
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

/// Why a packet was not sent.
pub(crate) enum Unsent {
    /// There is no room or no packet now.
    Later,
    /// No route leads there.
    Never,
}

/// Whether a descriptor makes sense by itself.
fn check(written: &Command) -> bool {
    let most = match written.command() {
        command::PUT | command::GET => MAX_LENGTH,
        command::IMMEDIATE_PUT => MAX_IMMEDIATE,
        _ => return false,
    };
    written.head & Command::RESERVED == 0 && (1..=most).contains(&written.length())
}
