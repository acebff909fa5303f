//! Messages to other nodes: their send queues, the transmit DMA engine's share, back-off and
//! time-outs.

mod send_queues;

use alloc::{
    boxed::Box,
    collections::{BinaryHeap, VecDeque},
    vec,
    vec::Vec,
};
use core::cmp::Reverse;

use nicforge_hwi::seastar::{
    HeaderPacket, INLINE, MAX_IN_FLIGHT, MAX_PROCESSES, message, option, trusted_flag,
};

use self::send_queues::{SendQueue, WorkState};
use super::{
    Settings,
    pairs::Pairs,
    pending::{NONE, Owner, Pendings, Quota, Removed},
};
use crate::{
    chip::{Channel, Incarnation, MAX_TRANSMISSIONS, Pieces, TransferStatus, Transmission, Transmit},
    protocol::{Flight, Outcome, Reaction, Response, Sequence, Slot, WIRE_MODULUS},
    scratch::{NoSpace, Scratch},
};

/// Number of chains of the send queues' hash table: a power of two.
const CHAINS: usize = 64;
/// Time for which a sender waits, for each place in line that a negative acknowledgement names.
pub(super) const BACK_OFF_NS: u64 = 2_000;
/// Send queues that a poll looks at for a time-out.
const SCANNED: u16 = 8;
/// Parts of the time-out after which the send queues are looked at.
const SCANS: u64 = 4;

/// Numbers of messages of each quota.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quotas {
    pub(super) kernel: u16,
    pub(super) answers: u16,
    /// Answers that will follow when messages have been received.
    pub(super) reserved: u16,
    /// Messages of each process, and of those that had its number before.
    processes: [u16; MAX_PROCESSES as usize],
}

impl Quotas {
    /// Returns the number of messages of a quota, to change it.
    fn of(&mut self, quota: Quota) -> Option<&mut u16> {
        match quota {
            Quota::Kernel => Some(&mut self.kernel),
            Quota::Answer => Some(&mut self.answers),
            Quota::Process(process) => self.processes.get_mut(usize::from(process)),
        }
    }

    /// Returns the number of messages of a process, and of those that had its number before.
    pub(super) fn of_process(&self, process: u16) -> u16 {
        self.processes.get(usize::from(process)).copied().unwrap_or(u16::MAX)
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) node: u32,
    /// Its header. The sequence number is not set.
    pub(super) packet: HeaderPacket,
    pub(super) pieces: Pieces,
    pub(super) owner: Owner,
    pub(super) quota: Quota,
}

/// A message that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) owner: Owner,
    /// Kind of the message, as it was sent at last.
    pub(super) kind: u8,
    pub(super) outcome: Outcome,
    pub(super) has_fault: bool,
}

/// Result of a step of the outbox.
#[derive(Debug)]
pub(super) enum Work {
    /// This message has ended.
    Ended(Ended),
    /// This message to a node goes to the transmit DMA engine: see [`Outbox::transmission`].
    Transmit(Slot, u32),
    /// A send queue was looked at.
    Nothing,
}

/// All messages that are being sent.
pub(super) struct Outbox {
    pendings: Pendings,
    send_queues: Vec<Option<SendQueue>>,
    free: Vec<u16>,
    chains: Box<[u16]>,
    ready: VecDeque<u16>,
    stalled: VecDeque<u16>,
    paused: BinaryHeap<Reverse<(u64, u16)>>,
    pub(super) quotas: Quotas,
    /// The machine's choices: which messages are acknowledged, and the time-out.
    settings: Settings,
    /// Time of the next look for silent nodes.
    scan_at: Option<u64>,
    /// The next send queue that the look comes to.
    scan: Option<u16>,
    /// Upper half of the names of transmissions: it tells incarnations apart.
    generation: u16,
}

impl Outbox {
    /// Allocates the pools.
    pub(super) fn new(
        capacity: u16,
        settings: Settings,
        generation: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        // A send queue is in the queues at most once, and in the heap at most once.
        let each = size_of::<Option<SendQueue>>() + 3 * size_of::<u16>() + size_of::<Reverse<(u64, u16)>>();
        scratch.take(usize::from(capacity) * each + CHAINS * size_of::<u16>())?;

        let mut send_queues = Vec::with_capacity(usize::from(capacity));
        send_queues.resize_with(usize::from(capacity), || None);
        Ok(Self {
            pendings: Pendings::new(capacity, scratch)?,
            send_queues,
            free: (0..capacity).rev().collect(),
            chains: vec![NONE; CHAINS].into_boxed_slice(),
            ready: VecDeque::with_capacity(usize::from(capacity)),
            stalled: VecDeque::with_capacity(usize::from(capacity)),
            paused: BinaryHeap::with_capacity(usize::from(capacity)),
            quotas: Quotas::default(),
            settings,
            scan_at: None,
            scan: None,
            generation,
        })
    }

    /// Returns whether a message to a node finds room.
    pub(super) fn has_room(&self, node: u32) -> bool {
        let count = self
            .find(node)
            .and_then(|send_queue| self.send_queue(send_queue))
            .map_or(0, |send_queue| send_queue.sender.count());
        self.pendings.free() > 0 && count + 1 < MAX_IN_FLIGHT
    }

    /// Puts a message at the end of its send queue. Returns whether there was room.
    pub(super) fn submit(&mut self, pairs: &mut Pairs, message: Message, now: u64) -> bool {
        let Message { node, mut packet, pieces, owner, quota } = message;
        if !self.has_room(node) {
            return false;
        }
        let Some(index) = self.find(node).or_else(|| self.open(node, now)) else { return false };
        let Some((sequence, resynchronizes)) = pairs.take_number(node) else { return false };

        // Without flow control, no message waits for an acknowledgement or for another message.
        let Settings { flow_control, implicit_acknowledgements, .. } = self.settings;
        let is_long = flow_control && packet.trusted.length as usize > INLINE;
        let may_be_implicit = !flow_control || implicit_acknowledgements && can_be_implicit(&packet);
        packet.trusted.sequence = sequence.value();
        let flight = Flight::new(sequence, is_long);
        let Some(slot) = self.pendings.insert(flight, node, packet, pieces, (owner, quota)) else {
            return false;
        };
        if let Some(count) = self.quotas.of(quota) {
            *count += 1;
        }

        if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
            send_queue.sender.join(&mut self.pendings.to(node), slot, may_be_implicit, resynchronizes);
        }
        self.make_ready(index);
        true
    }

    /// Handles an acknowledgement of flow control. Returns its effect on the send queue.
    pub(super) fn respond(
        &mut self,
        node: u32,
        (response, place): (Response, u32),
        sequence: Sequence<WIRE_MODULUS>,
        now: u64,
    ) -> Reaction {
        let Some(index) = self.find(node) else { return Reaction::Ignored };
        let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return Reaction::Ignored;
        };
        send_queue.last_heard = now;

        let reaction = send_queue.sender.respond(&mut self.pendings.to(node), response, sequence);
        if reaction == Reaction::Repeat && send_queue.paused_until.is_none() {
            let time = now + u64::from(place) * BACK_OFF_NS;
            send_queue.paused_until = Some(time);
            self.paused.push(Reverse((time, index)));
        } else if reaction != Reaction::Ignored {
            self.make_ready(index);
        }
        reaction
    }

    /// Records that the transmit DMA engine has sent a message.
    pub(super) fn transmitted(&mut self, name: Transmission, status: TransferStatus, now: u64) {
        let slot = Slot(name.0 as u16);
        if name.0 >> 16 != u32::from(self.generation) {
            return;
        }
        let Some(pending) = self.pendings.get_mut(slot) else { return };
        pending.has_fault |= status != TransferStatus::Complete;
        let (node, is_implicit) = (pending.node, pending.is_implicit());

        let Some(index) = self.find(node) else { return };
        if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
            // The node could not answer before. An implicit message has no answer at all, so that
            // silence says nothing.
            if is_implicit || send_queue.sender.is_first(slot) {
                send_queue.last_heard = now;
            }
            send_queue.sender.transmitted(&mut self.pendings.to(node), slot);
        }
        self.make_ready(index);
    }

    /// Lets the next send queue that waits for the transmit DMA engine continue.
    pub(super) fn resume_stalled_queue(&mut self) {
        if let Some(index) = self.stalled.pop_front() {
            self.set_work_state(index, WorkState::Ready);
            self.ready.push_back(index);
        }
    }

    /// Fails all messages to a node.
    pub(super) fn fail_all(&mut self, node: u32) {
        if let Some(index) = self.find(node) {
            self.fail_send_queue(index);
        }
    }

    /// Detaches the messages of a process that has ended. Returns the number of messages looked at.
    pub(super) fn detach(&mut self, process: u16) -> usize {
        for pending in self.pendings.iter_mut() {
            let owner = match pending.owner {
                Owner::Operation { process, .. } | Owner::Acknowledgement { process } => Some(process),
                Owner::Gone | Owner::Kernel { .. } => None,
            };
            if owner == Some(process) {
                pending.owner = Owner::Gone;
            }
        }
        self.pendings.capacity()
    }

    /// Begins a scan for silent nodes, if it is due. [`Self::step`] ends the back-offs.
    pub(super) fn begin_due_scan(&mut self, now: u64) {
        if self.scan_at.is_some_and(|time| time <= now) {
            self.scan_at = None;
            self.scan = Some(0);
        }
    }

    /// Returns the time of the next scan or of the next end of a back-off.
    #[inline]
    pub(super) fn next_time(&self) -> Option<u64> {
        match (self.paused.peek(), self.scan_at) {
            (Some(Reverse((paused, _))), Some(scan)) => Some(scan.min(*paused)),
            (Some(Reverse((paused, _))), None) => Some(*paused),
            (None, scan) => scan,
        }
    }

    /// Returns whether [`Self::step`] or [`Self::look`] has work.
    pub(super) fn has_work(&self, now: u64) -> bool {
        let resumes = self.paused.peek().is_some_and(|Reverse((time, _))| *time <= now);
        !self.ready.is_empty() || self.scan.is_some() || resumes
    }

    /// Handles one send queue with work. `engine` is the number of messages in the transmit DMA
    /// engine.
    pub(super) fn step(&mut self, engine: u16, now: u64) -> Option<Work> {
        if let Some(Reverse((time, index))) = self.paused.peek().copied()
            && time <= now
        {
            self.paused.pop();
            if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
                send_queue.paused_until = None;
            }
            self.make_ready(index);
        }

        let index = self.ready.pop_front()?;
        let send_queue = self.send_queues.get_mut(usize::from(index))?.as_mut()?;
        send_queue.work_state = WorkState::Idle;
        let node = send_queue.node;

        if send_queue.sender.only_waits(&self.pendings.to(node)) {
            return Some(Work::Nothing);
        }
        if let Some((slot, outcome)) = send_queue.sender.leave(&mut self.pendings.to(node)) {
            self.make_ready(index);
            return Some(self.end(slot, outcome).map_or(Work::Nothing, Work::Ended));
        }
        if send_queue.sender.count() == 0 {
            if send_queue.paused_until.is_none() {
                self.close(index);
            }
            return Some(Work::Nothing);
        }
        if send_queue.paused_until.is_some() {
            return Some(Work::Nothing);
        }
        let Some(slot) = send_queue.sender.next(&self.pendings.to(node)) else { return Some(Work::Nothing) };

        if engine >= MAX_TRANSMISSIONS {
            send_queue.work_state = WorkState::Stalled;
            self.stalled.push_back(index);
            return Some(Work::Nothing);
        }
        send_queue.sender.start(&mut self.pendings.to(node), slot);
        self.make_ready(index);
        Some(Work::Transmit(slot, node))
    }

    /// Looks for send queues whose node was silent for the time-out, and fails them. Returns their
    /// nodes' number if there is one. At most [`SCANNED`] send queues are looked at.
    #[inline]
    pub(super) fn look(&mut self, now: u64) -> Option<u32> {
        let first = self.scan?;
        self.look_from(first, now)
    }

    /// Looks at the send queues from `first` on.
    #[cold]
    fn look_from(&mut self, first: u16, now: u64) -> Option<u32> {
        let count = self.send_queues.len() as u16;
        for index in first..count.min(first.saturating_add(SCANNED)) {
            let Some(Some(send_queue)) = self.send_queues.get(usize::from(index)) else { continue };
            let SendQueue { node, ref sender, last_heard, .. } = *send_queue;
            let is_late = last_heard + self.settings.timeout <= now;
            if is_late && sender.waits_for_answer(&self.pendings.to(node)) {
                self.fail_send_queue(index);
                self.scan = Some(index + 1);
                return Some(node);
            }
        }

        let next = first.saturating_add(SCANNED);
        self.scan = (next < count).then_some(next);
        if self.scan.is_none() && self.free.len() < self.send_queues.len() {
            self.scan_at = Some(now + self.settings.timeout / SCANS);
        }
        None
    }

    /// Returns the number of pending messages.
    pub(super) fn count(&self) -> usize {
        self.pendings.capacity() - self.pendings.free()
    }

    /// Takes a message that has left its send queue out of the pool.
    fn end(&mut self, slot: Slot, outcome: Outcome) -> Option<Ended> {
        let Removed { owner, quota, kind, has_fault } = self.pendings.remove(slot)?;
        if let Some(count) = self.quotas.of(quota) {
            *count = count.saturating_sub(1);
        }
        Some(Ended { owner, kind, outcome, has_fault })
    }

    /// Makes the transmission of a message that [`Outbox::step`] has returned.
    #[inline]
    pub(super) fn transmission(&mut self, slot: Slot, target_incarnation: Incarnation) -> Option<Transmit> {
        let pending = self.pendings.get_mut(slot)?;
        if pending.owner == Owner::Gone {
            pending.make_void();
        }
        pending.has_fault = false;

        let flight = pending.flight();
        let mut flags = 0;
        if flight.resynchronizes() {
            flags |= trusted_flag::RESYNCHRONIZE;
        }
        if flight.is_implicit() {
            flags |= trusted_flag::IMPLICIT;
        }
        pending.packet.trusted.flags = flags;
        Some(Transmit {
            name: Transmission(u32::from(self.generation) << 16 | u32::from(slot.0)),
            target: pending.node,
            target_incarnation,
            channel: Channel::Data,
            packet: pending.packet,
            pieces: pending.pieces,
        })
    }
}

/// Returns whether the receiver can always take a message: it may need no answer.
fn can_be_implicit(packet: &HeaderPacket) -> bool {
    match packet.trusted.kind {
        message::PUT => packet.message.options & option::ACK == 0,
        message::PORTALS_ACK => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_1024_messages_are_in_flight_to_a_node() {
        const CAPACITY: u16 = MAX_IN_FLIGHT + 16;
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(3, &mut scratch).unwrap();
        let mut outbox = Outbox::new(CAPACITY, Settings::default(), 1, &mut scratch).unwrap();
        let message = |node| Message {
            node,
            packet: HeaderPacket::default(),
            pieces: Pieces::None,
            owner: Owner::Gone,
            quota: Quota::Process(0),
        };

        let count = (0..CAPACITY).filter(|_| outbox.submit(&mut pairs, message(1), 0)).count();
        assert_eq!(count, usize::from(MAX_IN_FLIGHT) - 1);
        // Another node has its own limit.
        assert!(outbox.submit(&mut pairs, message(2), 0));

        // The end of one message makes room for one.
        let (ack, first) = ((Response::Ack, 0), Sequence::INITIAL);
        while !matches!(outbox.step(0, 0), Some(Work::Transmit(..))) {}
        outbox.transmitted(Transmission(1 << 16), TransferStatus::Complete, 0);
        assert_eq!(outbox.respond(1, ack, first, 0), Reaction::Ended);
        while !matches!(outbox.step(MAX_TRANSMISSIONS, 0), Some(Work::Ended(_))) {}
        assert!(outbox.submit(&mut pairs, message(1), 0));
        assert!(!outbox.submit(&mut pairs, message(1), 0));
    }

    #[test]
    fn a_send_queue_without_messages_serves_another_node_when_all_send_queues_are_open() {
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(4, &mut scratch).unwrap();
        let mut outbox = Outbox::new(2, Settings::default(), 1, &mut scratch).unwrap();
        let message = |node| Message {
            node,
            packet: HeaderPacket::default(),
            pieces: Pieces::None,
            owner: Owner::Gone,
            quota: Quota::Process(0),
        };
        assert!([1, 2].into_iter().all(|node| outbox.submit(&mut pairs, message(node), 0)));

        // The message to node 1 has ended, and no step has closed its send queue.
        outbox.fail_all(1);
        assert!(matches!(outbox.step(0, 0), Some(Work::Ended(_))));
        assert!(outbox.has_room(3) && outbox.submit(&mut pairs, message(3), 0));
        assert!(!outbox.has_room(1));

        let mut targets = Vec::new();
        while let Some(work) = outbox.step(0, 0) {
            if let Work::Transmit(_, target) = work {
                targets.push(target);
            }
        }
        assert_eq!(targets, [2, 3]);
    }
}
