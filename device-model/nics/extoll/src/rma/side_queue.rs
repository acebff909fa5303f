//! Side queues: packets that wait for one client's memory leave the queues that all clients share.
//!
//! A packet whose data move by DMA messages moves to a side queue if its client has not answered
//! yet. Each client has one side queue for each class of traffic. All later RMA packets of the
//! class for the client follow it, so that order is kept. One client's side queue delays no other
//! client.
//!
//! A side queue is bounded by [`DEPTH`]. When it is full, packets for the client wait at the front
//! of shared queues. That time is charged to a [`Budget`](nicforge_kit::Budget) of the client and
//! to one of the card. When one of them is spent, the oldest packet of the side queue ends as
//! withdrawn and makes room.
//!
//! A packet in a side queue does not occupy another client's staging buffer: data in such a buffer
//! are copied to the side queue's own memory, for at most [`COPIES`] packets.

use std::{collections::VecDeque, sync::Arc};

use nicforge_core::{
    dma::{DmaLease, Term},
    ids::AttachmentId,
    time::Nanos,
};
use nicforge_kit::{Budget, budget, retry};
use nicforge_shm::SharedMemory;

use super::{Client, Rma, cost, part::Part, transfer::PacketProgress};
use crate::{
    attachment::Set,
    config::MAX_RMA_MTU,
    packet::{PacketHeader, TrafficClass},
    switch::Arrival,
    unit::UnitContext,
};

/// Maximum number of packets in a side queue.
const DEPTH: usize = 256;
/// Maximum number of packets with copied data in a side queue.
const COPIES: usize = 4;
/// Longest time between two checks of a side queue, in nanoseconds.
const LONGEST_RETRY: u64 = 1_000_000;
/// Classes that have side queues, in the order in which they are served.
pub(super) const CLASSES: [TrafficClass; 2] = [TrafficClass::Response, TrafficClass::Request];

/// Whether a packet may wait for its client after an attempt to handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The packet may wait, up to its time limit.
    MayWait,
    /// The packet ends as withdrawn instead of waiting.
    Last,
}

/// The outcome of an attempt to handle a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handled {
    /// The packet is finished.
    Done,
    /// The network has no room for its answer.
    NoRoom,
    /// The packet waits for a message that its client has not answered.
    WaitsForClient,
}

/// A packet that was taken out of a shared queue.
struct Entry {
    header: PacketHeader,
    part: Part,
    memory: Option<Arc<DmaLease>>,
    /// The slot of the side queue's memory that holds its data, if they were copied.
    copy: Option<usize>,
    /// The packet's progress.
    packet_progress: PacketProgress,
}

/// Packets of a class that wait for a client.
#[derive(Default)]
pub(super) struct SideQueue {
    entries: VecDeque<Entry>,
    /// Time of the next check of the first packet.
    next_check: Nanos,
    /// Whether the last check found that the client has not answered.
    waits_for_client: bool,
    /// Memory for copied data, created when it is first needed.
    memory: Option<SharedMemory>,
    /// The slots of that memory in use.
    used: [bool; COPIES],
}

impl SideQueue {
    /// Returns whether no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a packet can be added.
    fn has_room(&self, part: &Part) -> bool {
        self.entries.len() < DEPTH && (!part.staged || self.used.contains(&false))
    }

    /// Adds a packet at the end. The caller must have asked [`SideQueue::has_room`].
    fn push(
        &mut self,
        header: PacketHeader,
        mut part: Part,
        memory: Option<Arc<DmaLease>>,
        packet_progress: PacketProgress,
    ) {
        let (mut memory, mut copy) = (memory, None);
        if part.staged {
            // Without a copy the packet has no data, and its command ends as withdrawn.
            copy = memory.take().and_then(|buffer| self.copy(&buffer, &part));
            memory = copy.and_then(|slot| self.lease(slot));
            part.data = 0;
        }

        self.entries.push_back(Entry { header, part, memory, copy, packet_progress });
    }

    /// Copies the data of a packet from its sender's staging buffer to a free slot. Returns the
    /// slot.
    fn copy(&mut self, buffer: &DmaLease, part: &Part) -> Option<usize> {
        let slot = self.used.iter().position(|used| !used)?;
        if self.memory.is_none() {
            self.memory = SharedMemory::create("rma-aside", COPIES * MAX_RMA_MTU as usize).ok();
        }

        let length = u64::from(part.length.min(MAX_RMA_MTU));
        buffer.copy_to(part.data, &*self.lease(slot)?, 0, length).ok()?;
        self.used[slot] = true;
        Some(slot)
    }

    /// Returns a lease of a slot.
    fn lease(&self, slot: usize) -> Option<Arc<DmaLease>> {
        let slot_bytes = u64::from(MAX_RMA_MTU);
        let window = self.memory.as_ref()?.window(slot as u64 * slot_bytes, slot_bytes).ok()?;
        Some(Arc::new(DmaLease::new(window, Term::default())))
    }

    /// Removes the first packet and frees its slot.
    fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if let Some(used) = entry.copy.and_then(|slot| self.used.get_mut(slot)) {
            *used = false;
        }

        (self.next_check, self.waits_for_client) = (Nanos::ZERO, false);
    }

    /// Schedules a check of the first packet for the next step, because a message was answered.
    pub(super) fn retry_now(&mut self) {
        self.next_check = Nanos::ZERO;
    }
}

/// Returns the index of the side queue of a class. Completions never wait.
#[inline]
fn side_queue_index(class: TrafficClass) -> usize {
    usize::from(class == TrafficClass::Request)
}

/// The side queues of a card, as far as they concern all clients.
pub(super) struct SideQueues {
    /// Clients with packets in side queues.
    occupied: Set,
    /// The client whose side queues are served next.
    next_owner: AttachmentId,
    /// The time for which packets of all clients may hold shared queues.
    budget: Budget,
    /// Number of packets that ended early because a budget was spent.
    pub(super) over_budget: u64,
}

impl Default for SideQueues {
    fn default() -> Self {
        Self {
            occupied: Set::default(),
            next_owner: AttachmentId(0),
            budget: Budget::new(budget::CARD_NANOSECONDS),
            over_budget: 0,
        }
    }
}

impl Rma {
    /// Returns a client's side queue for a class.
    fn side_queue(&mut self, owner: AttachmentId, class: TrafficClass) -> Option<&mut SideQueue> {
        Some(&mut self.client(owner)?.side_queues[side_queue_index(class)])
    }

    /// Returns whether a packet has to follow earlier packets for its client to a side queue.
    #[inline]
    pub(super) fn must_follow_side_packets(&self, header: PacketHeader) -> bool {
        let class = header.kind.class();
        !self.side_queues.occupied.is_empty()
            && class != TrafficClass::Completion
            && self.has_side_packets(AttachmentId(header.target.vpid), side_queue_index(class))
    }

    /// Moves the packet at the front of a shared queue to a side queue. Returns the cost, or `None`
    /// if the packet has to stay where it is for now.
    #[cold]
    pub(super) fn move_to_side_queue(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        arrival: Arrival,
        part: Part,
        packet_progress: PacketProgress,
    ) -> Option<u32> {
        let (owner, class) = (AttachmentId(arrival.header.target.vpid), arrival.header.kind.class());
        if !self.make_room(unit, owner, class, &part) {
            return None;
        }

        let memory = {
            let mut ports = unit.context.ports();
            let mut packet = unit.parts.switch.take_packet(&mut ports, arrival)?;
            let memory = packet.memory.take();
            ports.recycle(packet);
            memory
        };

        let next_check = packet_progress.next_check(unit.context.now());
        let side_queue = self.side_queue(owner, class)?;
        if side_queue.is_empty() {
            (side_queue.next_check, side_queue.waits_for_client) = (next_check, true);
        }

        side_queue.push(arrival.header, part, memory, packet_progress);
        self.side_queues.occupied.add(owner);
        unit.context.wake_at(next_check);

        // The attempt to handle this packet, or the end of the packet that made room, may have
        // copied as many bytes as this one has.
        Some(cost(part.length, unit.parts.config.rma_mtu))
    }

    /// Returns whether a side queue has room for a packet. If the queue is full and a budget is
    /// spent, the oldest packet ends to make room.
    fn make_room(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        owner: AttachmentId,
        class: TrafficClass,
        part: &Part,
    ) -> bool {
        let now = unit.context.now();
        let Some(client) = self.client(owner) else { return false };

        let side_queue = &client.side_queues[side_queue_index(class)];
        if side_queue.has_room(part) {
            return true;
        }
        if !side_queue.waits_for_client {
            // The queue waits for room in the network and not for its client, so no budget is
            // charged.
            return false;
        }

        // Both budgets are charged with the time for which the packet holds a shared queue.
        let client_may_hold = client.budget.hold(now);
        let all_may_hold = self.side_queues.budget.hold(now);
        if client_may_hold && all_may_hold {
            unit.context.wake_at(now.after(retry::MEMORY_BUSY));
            return false;
        }

        self.side_queues.over_budget += 1;
        self.handle_first_side_packet(unit, owner, class, Attempt::Last);
        self.side_queue(owner, class).is_some_and(|side_queue| side_queue.has_room(part))
    }

    /// Returns whether packets wait in the side queue of any client.
    #[inline]
    pub(super) fn has_occupied_side_queue(&self) -> bool {
        !self.side_queues.occupied.is_empty()
    }

    /// Handles packets of side queues, one client after the other, for about `budget` units of
    /// work. Returns the work done.
    #[inline]
    pub(crate) fn serve_side_queues(&mut self, unit: &mut UnitContext<'_, '_>, budget: u32) -> u32 {
        if self.has_occupied_side_queue() { self.serve_waiting_side_queues(unit, budget) } else { 0 }
    }

    /// As [`Rma::serve_side_queues`], where packets wait.
    #[cold]
    fn serve_waiting_side_queues(&mut self, unit: &mut UnitContext<'_, '_>, budget: u32) -> u32 {
        let mut remaining = self.side_queues.occupied;
        let mut spent = 0;
        while spent < budget {
            let Some(owner) = remaining.in_turn(self.side_queues.next_owner) else { break };
            remaining.remove(owner);
            self.side_queues.next_owner = AttachmentId(owner.0 + 1);

            for class in CLASSES {
                while spent < budget
                    && let Some(cost) = self.handle_first_side_packet(unit, owner, class, Attempt::MayWait)
                {
                    spent += cost;
                }
            }

            let is_empty = |client: &mut Client| client.side_queues.iter().all(SideQueue::is_empty);
            if self.client(owner).is_none_or(is_empty) {
                self.side_queues.occupied.remove(owner);
            }
        }
        spent
    }

    /// Handles the first packet of a side queue. Returns the cost if the packet is finished, and
    /// `None` if it waits.
    fn handle_first_side_packet(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        owner: AttachmentId,
        class: TrafficClass,
        attempt: Attempt,
    ) -> Option<u32> {
        let now = unit.context.now();
        let is_last_attempt = attempt == Attempt::Last;
        let side_queue = self.side_queue(owner, class)?;
        let first = side_queue.entries.front()?;
        if !is_last_attempt && !retry::is_due(unit.context, side_queue.next_check) {
            return None;
        }

        let (header, part, memory) = (first.header, first.part, first.memory.clone());
        let mut packet_progress = first.packet_progress;
        packet_progress.is_last_attempt = is_last_attempt;
        let handled = self.handle(unit, header, part, memory, &mut packet_progress);
        packet_progress.is_last_attempt = false;
        let next_check =
            if handled == Handled::WaitsForClient { packet_progress.next_check(now) } else { Nanos::ZERO };

        let side_queue = self.side_queue(owner, class)?;
        if handled != Handled::Done {
            side_queue.next_check = next_check;
            side_queue.waits_for_client = handled == Handled::WaitsForClient;
            side_queue.entries.front_mut()?.packet_progress = packet_progress;
            // A packet that waits for room is tried in every step; the wake-up ensures that there
            // is a step.
            unit.context.wake_at(if next_check > now { next_check } else { now.after(LONGEST_RETRY) });
            return None;
        }

        side_queue.pop();
        self.client(owner)?.budget.release(now);
        self.side_queues.budget.release(now);
        Some(cost(part.length, unit.parts.config.rma_mtu))
    }
}

impl PacketProgress {
    /// Returns the time of the next check: after an eighth of the time for which the client has not
    /// answered, within bounds. The checks thus become less frequent.
    fn next_check(&self, now: Nanos) -> Nanos {
        let waited = self.waited(now);
        now.after((waited / 8).clamp(retry::MEMORY_BUSY, LONGEST_RETRY))
    }
}
