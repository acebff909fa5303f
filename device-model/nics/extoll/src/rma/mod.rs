//! RMA: puts, gets, immediate puts, and the notifications of them.
//!
//! | module | contents |
//! | --- | --- |
//! | `part` | the content of a packet: a part of a command |
//! | `commands` | the list of a VPID's commands |
//! | `requester` | the commands of this card's VPIDs, until they are sent |
//! | `answers` | the answers to these commands, and their ends |
//! | `watchdog` | the ends of commands without answers |
//! | `target` | accesses of others to this card's memory: puts are written, gets are answered |
//! | `transfer` | data movement, by one copy or by DMA messages |
//! | `side_queue` | side queues, for packets that wait for one client |
//! | `notify` | notification queues |
//! | `registers` | the registers of the unit |
//!
//! **Owns**: for each attachment, the commands in flight, the notification queue, and the staging
//! buffers and side queues of its memory. For the card, the puts that have begun, the progress of
//! packets that wait at the front of queues, and the watchdog.
//!
//! **In**: descriptors, RMA packets, answers to reads of client memory. **Out**: packets, data in
//! registered memory, notifications, errors and interrupts by the
//! [`UnitContext`](crate::unit::UnitContext).
//!
//! **Invariants.** A byte is moved only to or from a region that the ATU has at that time. Each
//! command ends exactly once. An attachment is in the set of sending ones while a command of its
//! list was not sent completely, and in the set of occupied ones while a side queue has packets.
//!
//! **Order.** All parts of a VPID's commands for one node take the same route and are handled in
//! the order in which they were sent. So do their answers. A put waits until the VPID's gets from
//! the same target have ended: a get's data are read when they are copied, which may be after the
//! get's request was handled, and the put must not change them before.
//!
//! **Ends.** Every command whose first part was sent ends by an answer, even if its VPID was reset.
//! A put that can't continue sends its end. After a reset of a VPID, its new commands wait for the
//! old ones, and no notifications of the old ones are written.
//!
//! Only the watchdog ends a command without an answer. A late answer to such a command finds no
//! command and is dropped. If a put ends half way, its target forgets it when the next put from the
//! same VPID begins.
//!
//! **Waiting.** A packet at the front of a queue of the network stays there while its answer has no
//! room, and the other queues continue. A packet that waits for memory accessed by DMA messages
//! moves to a side queue of that memory's client. If a client does not answer a message within
//! [`transfer::MAX_ANSWER_TIME`], the card stops waiting for it until it answers one.

mod answers;
mod commands;
mod notify;
mod part;
mod registers;
mod requester;
mod side_queue;
mod target;
mod transfer;
mod watchdog;

use std::sync::Arc;

use nicforge_core::{dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::extoll_rma::COMMAND_BYTES;
use nicforge_kit::{Budget, Server, budget};
use nicforge_shm::SharedU64;

pub(crate) use self::registers::Register;
use self::{
    commands::Commands,
    notify::Notifications,
    part::Part,
    side_queue::{Handled, SideQueue, SideQueues},
    target::PartialPuts,
    transfer::{PacketProgress, StagingBuffer},
    watchdog::Watchdog,
};
use crate::{
    attachment::Set,
    packet::{PacketHeader, PacketKind},
    per_client::PerClient,
    switch::{Arrival, QUEUES},
    unit::UnitContext,
};

/// Bytes that count as one unit of a step's budget, unless packets are smaller.
const BYTES_A_UNIT: u32 = 4096;

/// Returns the cost of a part of `bytes` bytes, in units of a step's budget. Packets carry at most
/// `mtu` bytes. A request for a part of a get costs as much as its answers.
#[inline]
fn cost(bytes: u32, mtu: u32) -> u32 {
    1 + bytes / BYTES_A_UNIT.min(mtu)
}

/// Returns the cycles of the core for which a DMA engine is busy with a packet: one for each word
/// of 32 bits of its descriptor and its data.
#[inline]
fn cycles(bytes: u32) -> u32 {
    const WORD: u32 = 4;
    (COMMAND_BYTES as u32 + bytes).div_ceil(WORD)
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
    /// Returns the sums of the counters of both.
    fn plus(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            completed: self.completed + other.completed,
            notifications: self.notifications + other.notifications,
            overflows: self.overflows + other.overflows,
        }
    }
}

/// RMA counters of a card, of all attachments and tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// The sums of the attachments' counters. Commands that a reset ended are not counted as
    /// completed.
    pub(crate) clients: Counts,
    /// Number of accesses to this card's memory that were refused.
    pub(crate) refused: u64,
    /// Number of commands that the watchdog has ended.
    pub(crate) timed_out: u64,
    /// Number of packets that ended early because a budget of [`budget`] was spent.
    pub(crate) over_budget: u64,
    /// Number of bytes moved to this card's memory.
    pub(crate) bytes: u64,
}

/// RMA state of an attachment.
struct Client {
    notifications: Notifications,
    counts: Counts,
    commands: Commands,
    /// Staging buffer for puts from this client's memory, where it is accessed by DMA messages.
    put_staging: StagingBuffer,
    /// Staging buffer for gets from this client's memory, where it is accessed by DMA messages.
    get_staging: StagingBuffer,
    /// Whether the client has let a message wait too long. The card does not wait for its next
    /// ones.
    unresponsive: bool,
    /// Packets that wait for this client's memory, by class.
    side_queues: [SideQueue; side_queue::CLASSES.len()],
    /// The time for which these packets may hold shared queues.
    budget: Budget,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            notifications: Notifications::default(),
            counts: Counts::default(),
            commands: Commands::default(),
            put_staging: StagingBuffer::default(),
            get_staging: StagingBuffer::default(),
            unresponsive: false,
            side_queues: Default::default(),
            budget: Budget::new(budget::CLIENT_NANOSECONDS),
        }
    }
}

/// A card's RMA unit.
pub(crate) struct Rma {
    /// State by attachment.
    clients: PerClient<Client>,
    /// Attachments with commands that are not sent completely.
    sending: Set,
    /// The attachment that sends next.
    next_vpid: AttachmentId,
    /// Puts of several parts for this card that have begun and not ended.
    partial_puts: PartialPuts,
    /// Progress of the first packet of each input queue ([`Arrival::queue`]).
    front_packets: [PacketProgress; QUEUES],
    side_queues: SideQueues,
    /// Buffer for writes to memory that is accessed by DMA messages.
    scratch: Box<[u8]>,
    /// Sums of the attachments' counters up to their last resets.
    before_resets: Counts,
    /// Number of accesses to this card's memory that were refused.
    refused: u64,
    /// Number of bytes moved to this card's memory.
    bytes: u64,
    /// The DMA engine that reads memory for packets.
    read_engine: Server,
    /// The DMA engine that writes the data of packets.
    write_engine: Server,
    watchdog: Watchdog,
}

impl Rma {
    /// Returns the unit of a card with this number of attachments.
    pub(crate) fn new(attachments: usize, watchdog: u64) -> Self {
        Self {
            clients: PerClient::new(attachments),
            sending: Set::default(),
            next_vpid: AttachmentId(0),
            partial_puts: PartialPuts::new(),
            front_packets: [PacketProgress::default(); QUEUES],
            side_queues: SideQueues::default(),
            scratch: Box::default(),
            before_resets: Counts::default(),
            refused: 0,
            bytes: 0,
            read_engine: Server::default(),
            write_engine: Server::default(),
            watchdog: Watchdog::new(watchdog),
        }
    }

    /// Allocates the state of an attachment whose client is about to attach.
    pub(crate) fn open(&mut self, attachment: AttachmentId) {
        self.clients.open(attachment);
    }

    /// Returns an attachment's state, if it has or had a client.
    #[inline]
    fn client(&mut self, attachment: AttachmentId) -> Option<&mut Client> {
        self.clients.get_mut(attachment)
    }

    /// Returns whether packets wait in a side queue of a client.
    fn has_side_packets(&self, attachment: AttachmentId, class: usize) -> bool {
        let client = self.clients.get(attachment);
        client.is_some_and(|client| client.side_queues.get(class).is_some_and(|queue| !queue.is_empty()))
    }

    /// Returns an attachment's counters, if it has or had a client.
    #[inline]
    pub(crate) fn counts(&self, attachment: AttachmentId) -> Option<&Counts> {
        self.clients.get(attachment).map(|client| &client.counts)
    }

    /// Returns the counters of the card.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            clients: self.clients.iter().fold(self.before_resets, |sum, client| sum.plus(client.counts)),
            refused: self.refused,
            timed_out: self.watchdog.ended,
            over_budget: self.side_queues.over_budget,
            bytes: self.bytes,
        }
    }

    /// Returns an attachment to the state of power-on, because of a reset or because its client
    /// comes or leaves. The client's memory is no longer accessed, and the commands so far end
    /// without notifications. The caller must have deregistered the client's regions.
    pub(crate) fn power_on(&mut self, attachment: AttachmentId, read_pointer: Option<SharedU64>) {
        let Some(client) = self.client(attachment) else { return };

        client.notifications.power_on(read_pointer);
        client.put_staging.abandon();
        client.get_staging.abandon();
        client.unresponsive = false;
        client.commands.orphan();

        let (counted, is_sending) = (std::mem::take(&mut client.counts), client.commands.is_sending());
        self.before_resets = self.before_resets.plus(counted);
        if is_sending {
            self.sending.add(attachment);
        } else {
            self.sending.remove(attachment);
        }
    }

    /// Returns the unit's own state to that of power-on, with this limit of the watchdog.
    pub(crate) fn reset_unit(&mut self, unit: &mut UnitContext<'_, '_>, watchdog: u64) {
        self.watchdog.set_limit(unit.context, watchdog);
    }

    /// Handles the RMA packet at the front of a queue. Returns its cost, or `None` if it has to
    /// stay there for now.
    #[inline]
    pub(crate) fn take_arrival(&mut self, unit: &mut UnitContext<'_, '_>, arrival: Arrival) -> Option<u32> {
        let header = arrival.header;
        let queue = arrival.queue();
        let (part, memory) = {
            let ports = unit.context.ports();
            let packet = unit.parts.switch.peek_packet(&ports, arrival)?;
            (Part::decode(packet.bytes()), packet.memory.clone())
        };

        if let Some(part) = part {
            let mut packet_progress = self.front_packets.get(queue).copied().unwrap_or_default();
            // A packet behind others of a side queue waits for the same client as they do.
            let handled = if self.must_follow_side_packets(header) {
                Handled::WaitsForClient
            } else {
                self.handle(unit, header, part, memory, &mut packet_progress)
            };

            let cost_of_move = match handled {
                Handled::WaitsForClient => self.move_to_side_queue(unit, arrival, part, packet_progress),
                Handled::Done | Handled::NoRoom => None,
            };
            let stays = handled != Handled::Done && cost_of_move.is_none();
            if let Some(progress) = self.front_packets.get_mut(queue) {
                *progress = if stays { packet_progress } else { PacketProgress::default() };
            }
            if handled != Handled::Done {
                return cost_of_move;
            }
        }

        // The packet is finished, or it is not one that a card sends. Either way it is dropped.
        let mut ports = unit.context.ports();
        if let Some(packet) = unit.parts.switch.take_packet(&mut ports, arrival) {
            ports.recycle(packet);
        }
        Some(cost(part.map_or(0, |part| part.length), unit.parts.config.rma_mtu))
    }

    /// Handles an RMA packet from an input queue or a side queue. `memory` is the memory that the
    /// packet refers to. `packet_progress` is the packet's progress in earlier attempts, and is
    /// updated.
    #[inline]
    fn handle(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        part: Part,
        memory: Option<Arc<DmaLease>>,
        packet_progress: &mut PacketProgress,
    ) -> Handled {
        // Both kinds of packet may carry data, which the writing DMA engine moves.
        let writes = matches!(header.kind, PacketKind::Put | PacketKind::Answer) && part.length > 0;
        if writes && !unit.request_idle(&self.write_engine) {
            return Handled::NoRoom;
        }

        let handled = match header.kind {
            PacketKind::Put => self.put_arrived(unit, header, part, memory, packet_progress),
            PacketKind::Get => self.get_arrived(unit, header, part, packet_progress),
            PacketKind::Answer => self.answer_arrived(unit, header, part, memory, packet_progress),
            // This is `PacketKind::GetEnd`: the card calls RMA for no other kinds.
            _ => {
                self.get_ended(unit, header, part);
                Handled::Done
            }
        };

        if writes && handled == Handled::Done {
            unit.begin_work(&mut self.write_engine, cycles(part.length));
        }
        handled
    }
}
