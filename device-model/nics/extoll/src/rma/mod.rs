//! RMA: puts, gets, immediate puts, and the notifications of them.
//!
//! | module | contents |
//! | --- | --- |
//! | `part` | the content of a packet: a part of a command, at most [`part::MTU`] bytes of data |
//! | `commands` | the list of a VPID's commands |
//! | `requester` | the commands of this card's VPIDs, until they are sent |
//! | `answers` | the answers to these commands, and their ends |
//! | `watchdog` | the ends of commands without answers |
//! | `target` | accesses of others to this card's memory: puts are written, gets are answered |
//! | `transfer` | data movement, by one copy or by messages |
//! | `side_queue` | side queues, for packets that wait for one client |
//! | `budget` | the time for which clients with slow memory may hold shared queues |
//! | `notify` | notification queues |
//!
//! **Order.** All parts of a VPID's commands for one node travel one way and are handled in the
//! order in which they were sent. Answers come back the same way. A put waits until the VPID's gets
//! from the same target have ended. The reason is that a get's data are read when they are copied,
//! which is later than the request.
//!
//! **Ends.** Every command whose first part was sent ends by an answer, even if its VPID was reset.
//! A put that can't continue sends its end. A VPID's next tenant waits behind the commands that its
//! predecessor left and gets no notifications of them.
//!
//! Only the watchdog ends a command without an answer. A late answer to such a command finds no
//! command and is dropped. If a put is ended half way, its target forgets it when the next one
//! begins.
//!
//! **Waiting.** A packet at the front of a queue of the network stays there while its answer has no
//! room, and the other queues continue. A packet that waits for memory reached by messages moves to
//! a side queue of that memory's client. If a client does not answer a message within
//! [`transfer::PATIENCE`], the card stops waiting for it until it answers one.

mod answers;
mod budget;
pub(crate) mod commands;
pub(crate) mod notify;
pub(crate) mod part;
pub(crate) mod requester;
mod side_queue;
pub(crate) mod target;
pub(crate) mod transfer;
pub(crate) mod watchdog;

use std::{collections::HashMap, sync::Arc};

use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};

use self::{
    budget::Budget,
    commands::Commands,
    notify::{Queue, QueueRegisters},
    side_queue::{Handled, SideQueue},
    target::{Stream, Streams},
    transfer::{Stage, Waiting},
    watchdog::Watchdog,
};
use crate::{
    card::Card,
    set::Set,
    switch::{Arrival, QUEUES},
    wire::{Kind, Wire},
};

/// Bytes that count as one packet's worth of work.
const BYTES_A_UNIT: u32 = 4096;

/// Returns the cost of a part of `bytes` bytes, in units of a step's budget.
#[inline]
pub(crate) const fn cost(bytes: u32) -> u32 {
    1 + bytes / BYTES_A_UNIT
}

/// RMA counters of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) completed: u64,
    pub(crate) notifications: u64,
    pub(crate) overflows: u64,
}

impl Counts {
    /// Returns the sums of both counters.
    fn and(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            completed: self.completed + other.completed,
            notifications: self.notifications + other.notifications,
            overflows: self.overflows + other.overflows,
        }
    }
}

/// RMA state of an attachment.
pub(crate) struct Client {
    /// The notification queue's registers.
    pub(crate) registers: QueueRegisters,
    pub(crate) queue: Option<Queue>,
    /// Number of queues enabled and disabled so far. A command's notifications go only to the queue
    /// that was enabled when the command was written.
    pub(crate) tenancy: u32,
    /// The last invalid read pointer; it is reported once.
    pub(crate) bad_pointer: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) commands: Commands,
    /// Stage for puts from this client's memory, where it is reached by messages.
    pub(crate) asking: Stage,
    /// Stage for gets from this client's memory, where it is reached by messages.
    pub(crate) answering: Stage,
    /// Whether the client has let a message wait too long. The card does not wait for its next
    /// ones.
    pub(crate) unresponsive: bool,
    /// Packets that wait for this client's memory, by class.
    pub(crate) side_queues: [SideQueue; side_queue::CLASSES.len()],
    /// The time for which these packets may hold shared queues.
    pub(crate) budget: Budget,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            registers: QueueRegisters::default(),
            queue: None,
            tenancy: 0,
            bad_pointer: None,
            counts: Counts::default(),
            commands: Commands::default(),
            asking: Stage::default(),
            answering: Stage::default(),
            unresponsive: false,
            side_queues: Default::default(),
            budget: Budget::new(budget::OF_CLIENT),
        }
    }
}

/// A card's RMA unit.
pub(crate) struct Rma {
    /// State by attachment.
    clients: Vec<Client>,
    /// Attachments with commands that are not sent completely.
    pub(crate) sending: Set,
    /// The attachment that sends next.
    pub(crate) turn: u16,
    /// Puts for this card that have begun and not ended.
    pub(crate) streams: Streams,
    /// Progress of the first packet of each queue of the network.
    pub(crate) waiting: [Waiting; QUEUES],
    /// Clients with packets in side queues.
    pub(crate) with_side_packets: Set,
    /// The client whose side queues are served next.
    pub(crate) side_queue_turn: u16,
    /// The time for which packets of all clients may hold shared queues.
    pub(crate) budget: Budget,
    /// Packets that ended early because a budget was spent.
    pub(crate) hurried: u64,
    /// Buffer for writes to memory that is reached by messages.
    pub(crate) scratch: Box<[u8]>,
    /// Counters of earlier tenants.
    before: Counts,
    /// Number of accesses to this card's memory that were refused.
    pub(crate) refused: u64,
    /// Number of bytes moved to this card's memory.
    pub(crate) bytes: u64,
    pub(crate) watchdog: Watchdog,
}

impl Rma {
    pub(crate) fn new(attachments: usize, watchdog: u64) -> Self {
        Self {
            clients: (0..attachments).map(|_| Client::default()).collect(),
            sending: Set::default(),
            turn: 0,
            streams: HashMap::<Stream, _>::new(),
            waiting: [Waiting::default(); QUEUES],
            with_side_packets: Set::default(),
            side_queue_turn: 0,
            budget: Budget::new(budget::OF_CARD),
            hurried: 0,
            scratch: Box::default(),
            before: Counts::default(),
            refused: 0,
            bytes: 0,
            watchdog: Watchdog::new(watchdog),
        }
    }

    /// Returns an attachment's state, if the attachment exists.
    #[inline]
    pub(crate) fn client(&mut self, who: AttachmentId) -> Option<&mut Client> {
        self.clients.get_mut(usize::from(who.0))
    }

    /// Returns whether packets wait in a side queue of a client.
    pub(crate) fn has_side_packets(&self, who: AttachmentId, class: usize) -> bool {
        let client = self.clients.get(usize::from(who.0));
        client.is_some_and(|client| client.side_queues.get(class).is_some_and(|queue| !queue.is_empty()))
    }

    /// Returns an attachment's counters.
    pub(crate) fn counts(&self, who: AttachmentId) -> Counts {
        self.clients.get(usize::from(who.0)).map_or_else(Counts::default, |client| client.counts)
    }

    /// Returns the counters of all attachments, all tenants included. Commands that a reset ended
    /// are not counted as completed.
    pub(crate) fn totals(&self) -> Counts {
        self.clients.iter().fold(self.before, |sum, client| sum.and(client.counts))
    }
}

impl Card {
    /// Resets an attachment's RMA state when it is reset or its client has left. Its memory is no
    /// longer accessed, and its commands end without notifications.
    pub(crate) fn rma_power_on(&mut self, who: AttachmentId) {
        self.atu.deregister_all(who);
        let Some(client) = self.rma.client(who) else { return };

        client.registers = QueueRegisters::default();
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

    /// Handles the RMA packet at the front of a queue. Returns its cost, or `None` if it has to
    /// stay there for now.
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
            let handled = if self.follows_side_packets(wire) {
                Handled::Slow
            } else {
                self.rma_handle(context, wire, part, memory, &mut waiting)
            };

            let stays = match handled {
                Handled::Done => None,
                Handled::NoRoom => Some(None),
                Handled::Slow => Some(self.move_to_side_queue(context, arrival, part, waiting)),
            };
            let stayed = stays == Some(None);
            if let Some(progress) = self.rma.waiting.get_mut(queue) {
                *progress = if stayed { waiting } else { Waiting::default() };
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

    /// Handles an RMA packet from a queue of the network or a side queue.
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
