//! RMA: puts, gets, immediate puts, and who is told of them.
//!
//! - `part`: what is in a packet: a part of a command, at most [`part::MTU`] bytes of data;
//! - `commands`: the list of a VPID's commands;
//! - `requester`: those of this card's VPIDs are taken and sent, in order, a part of each VPID in turn;
//! - `answers`: what comes back for them, and how they end;
//! - `watchdog`: how they end when nothing comes back;
//! - `target`: what others ask of this card's memory: puts are written, gets are answered;
//! - `transfer`: where bytes move: the one copy from memory to memory, or by messages to a client whose memory can't be mapped;
//! - `aside`: side queues, for packets that wait for one client;
//! - `budget`: the time for which clients with slow memory may hold shared queues;
//! - `notify`: notification queues.
//!
//! **Order.** Parts of one VPID for one node travel one way and are handled in the order in which they were sent; answers come back the same way. A put
//! waits until the VPID's gets from the same target have ended, because a get's data are read when they are copied, which is later than when it was asked
//! for.
//!
//! **Ends.** Every command whose first part was sent ends by an answer, whatever has happened to its VPID: a put that can't go on sends its end. A VPID's
//! next tenant waits behind what its predecessor left, and is not told of it. Only the watchdog ends a command without one: its late answers find no
//! command, and a put that it ends half way is forgotten by its target when the next one begins.
//!
//! **Waiting.** A packet in front of a queue of the network for whose answer there is no room stays
//! there, and the other queues go on. A packet that waits for memory reached by messages moves to a
//! side queue of that memory's client. A client that does not answer a message within
//! [`transfer::PATIENCE`] is not waited for until it answers one.

mod answers;
mod aside;
mod budget;
pub(crate) mod commands;
pub(crate) mod notify;
pub(crate) mod part;
pub(crate) mod requester;
pub(crate) mod target;
pub(crate) mod transfer;
pub(crate) mod watchdog;

use std::{collections::HashMap, sync::Arc};

use nicforge_core::{context::Context, device::AttachmentId, dma::DmaLease};

use self::{
    aside::{Aside, Handled},
    budget::Budget,
    commands::Commands,
    notify::{Place, Queue},
    target::{Stream, Streams},
    transfer::{Stage, Waiting},
    watchdog::Watch,
};
use crate::{
    card::Card,
    set::Set,
    switch::{Arrival, QUEUES},
    wire::{Kind, Wire},
};

/// Bytes that count as one packet's worth of work.
const BYTES_A_UNIT: u32 = 4096;

/// What a part of so many bytes costs of a step's budget.
#[inline]
pub(crate) const fn cost(bytes: u32) -> u32 {
    1 + bytes / BYTES_A_UNIT
}

/// What RMA counts for an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) completed: u64,
    pub(crate) notifications: u64,
    pub(crate) overflows: u64,
}

impl Counts {
    fn and(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            completed: self.completed + other.completed,
            notifications: self.notifications + other.notifications,
            overflows: self.overflows + other.overflows,
        }
    }
}

/// What an attachment has of RMA.
pub(crate) struct Client {
    pub(crate) place: Place,
    pub(crate) queue: Option<Queue>,
    /// Counts up with every queue: a command's notifications are for the queue that was there when it was written.
    pub(crate) tenancy: u32,
    /// A read pointer that makes no sense and was said to.
    pub(crate) bad_pointer: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) commands: Commands,
    /// Memory that is reached by messages: read for a put, and for a get's answer.
    pub(crate) asking: Stage,
    pub(crate) answering: Stage,
    /// The client lets messages wait; the next ones are not waited for.
    pub(crate) unresponsive: bool,
    /// Packets that wait for this client's memory, by class.
    pub(crate) aside: [Aside; aside::CLASSES.len()],
    /// The time for which they may hold shared queues.
    pub(crate) budget: Budget,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            place: Place::default(),
            queue: None,
            tenancy: 0,
            bad_pointer: None,
            counts: Counts::default(),
            commands: Commands::default(),
            asking: Stage::default(),
            answering: Stage::default(),
            unresponsive: false,
            aside: Default::default(),
            budget: Budget::new(budget::OF_CLIENT),
        }
    }
}

/// A card's RMA unit.
pub(crate) struct Rma {
    /// By attachment.
    clients: Vec<Client>,
    /// Those with commands that were not sent as a whole, and whose turn it is.
    pub(crate) sending: Set,
    pub(crate) turn: u16,
    /// Puts for this card of which parts have come.
    pub(crate) streams: Streams,
    /// By queue of the network: how much of the packet in front is done.
    pub(crate) waiting: [Waiting; QUEUES],
    /// Clients with packets in side queues, and the one that is looked at next.
    pub(crate) with_aside: Set,
    pub(crate) aside_turn: u16,
    /// The time for which packets of all clients may hold shared queues.
    pub(crate) budget: Budget,
    /// Packets that ended early because a budget was spent.
    pub(crate) hurried: u64,
    /// For memory that is reached by messages.
    pub(crate) scratch: Box<[u8]>,
    /// What attachments have counted before they started anew.
    before: Counts,
    /// Accesses to this card's memory that were refused.
    pub(crate) refused: u64,
    /// Bytes moved to this card's memory.
    pub(crate) bytes: u64,
    pub(crate) watch: Watch,
}

impl Rma {
    pub(crate) fn new(attachments: usize, watchdog: u64) -> Self {
        Self {
            clients: (0..attachments).map(|_| Client::default()).collect(),
            sending: Set::default(),
            turn: 0,
            streams: HashMap::<Stream, _>::new(),
            waiting: [Waiting::default(); QUEUES],
            with_aside: Set::default(),
            aside_turn: 0,
            budget: Budget::new(budget::OF_CARD),
            hurried: 0,
            scratch: Box::default(),
            before: Counts::default(),
            refused: 0,
            bytes: 0,
            watch: Watch::new(watchdog),
        }
    }

    #[inline]
    pub(crate) fn client(&mut self, who: AttachmentId) -> Option<&mut Client> {
        self.clients.get_mut(usize::from(who.0))
    }

    /// Whether packets wait in a side queue of a client.
    pub(crate) fn has_aside(&self, who: AttachmentId, class: usize) -> bool {
        let client = self.clients.get(usize::from(who.0));
        client.is_some_and(|client| client.aside.get(class).is_some_and(|aside| !aside.is_empty()))
    }

    /// What an attachment counts.
    pub(crate) fn counts(&self, who: AttachmentId) -> Counts {
        self.clients.get(usize::from(who.0)).map_or_else(Counts::default, |client| client.counts)
    }

    /// Commands taken, commands ended and notifications lost, of all attachments and all their tenants. What was under way when one started anew has
    /// ended uncounted.
    pub(crate) fn totals(&self) -> Counts {
        self.clients.iter().fold(self.before, |sum, client| sum.and(client.counts))
    }
}

impl Card {
    /// An attachment starts anew, or its client is gone: its memory is not touched any more, its commands end, and nobody is told.
    pub(crate) fn rma_power_on(&mut self, who: AttachmentId) {
        self.atu.deregister_all(who);
        let Some(client) = self.rma.client(who) else { return };
        client.place = Place::default();
        client.queue = None;
        client.tenancy = client.tenancy.wrapping_add(1);
        client.bad_pointer = None;
        let counted = std::mem::take(&mut client.counts);
        client.asking.abandon();
        client.answering.abandon();
        client.unresponsive = false;
        client.commands.orphan();
        if client.commands.is_sending() {
            self.rma.sending.add(who.0);
        } else {
            self.rma.sending.remove(who.0);
        }
        self.rma.before = self.rma.before.and(counted);
    }

    /// Handles the RMA packet in front of a queue. Returns its cost, or `None` when it has to stay
    /// there for now.
    #[inline]
    pub(crate) fn rma_arrived(&mut self, context: &mut Context<'_>, arrival: Arrival) -> Option<u32> {
        let wire = arrival.wire;
        let queue = arrival.queue();
        let (part, memory) = {
            let ports = context.ports();
            let packet = self.switch.peek(&ports, arrival)?;
            (part::Part::decode(packet.bytes()), packet.memory.clone())
        };

        if let Some(part) = part {
            let mut waiting = self.rma.waiting.get(queue).copied().unwrap_or_default();
            let handled = if self.follows_others(wire) {
                Handled::Slow
            } else {
                self.rma_handle(context, wire, part, memory, &mut waiting)
            };

            let stays = match handled {
                Handled::Done => None,
                Handled::NoRoom => Some(None),
                Handled::Slow => Some(self.step_aside(context, arrival, part, waiting)),
            };
            let stayed = stays == Some(None);
            if let Some(place) = self.rma.waiting.get_mut(queue) {
                *place = if stayed { waiting } else { Waiting::default() };
            }
            if let Some(cost) = stays {
                return cost;
            }
        }

        let mut ports = context.ports();
        if let Some(packet) = self.switch.take(&mut ports, arrival) {
            ports.recycle(packet);
        }
        Some(cost(part.map_or(0, |part| part.length)))
    }

    /// Handles an RMA packet, whichever queue it is in.
    #[inline]
    pub(crate) fn rma_handle(
        &mut self,
        context: &mut Context<'_>,
        wire: Wire,
        part: part::Part,
        memory: Option<Arc<DmaLease>>,
        waiting: &mut Waiting,
    ) -> Handled {
        match wire.kind {
            Kind::Put => self.put_arrived(context, wire, part, memory, waiting),
            Kind::Get => self.get_arrived(context, wire, part, waiting),
            Kind::Answer => self.answer_arrived(context, wire, part, memory, waiting),
            _ => {
                self.get_ended(context, wire, part);
                Handled::Done
            }
        }
    }
}
