//! Messages to other nodes: their send queues, the transmit DMA engine's share, back-off and
//! time-outs.

mod send_queues;
mod steps;

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
    pairs::{MessageNumber, Pairs},
    pending::{NONE, Owner, Pending, Pendings, Quota, Removed},
};
use crate::{
    chip::{Channel, Incarnation, MAX_TRANSMISSIONS, Pieces, TransferStatus, Transmission, Transmit},
    protocol::{Flight, Outcome, Reaction, Response, Sequence, Slot, WIRE_MODULUS},
    scratch::{NoSpace, Scratch},
};

/// Number of chains of the send queues' hash table: a power of two.
const CHAINS: usize = 64;
/// Time in nanoseconds for which a send queue pauses, for each place in line that a negative
/// acknowledgement names.
pub(super) const BACK_OFF_NS: u64 = 2_000;
/// Maximum number of send queues that a poll checks for a time-out.
const SCANNED_PER_POLL: u16 = 8;
/// Number of scans of all send queues in the time of the time-out.
const SCANS_PER_TIMEOUT: u64 = 4;

/// Number of messages in the pool of each quota.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quotas {
    pub(super) kernel: u16,
    pub(super) answers: u16,
    /// Answers that will be sent when messages have been received: space for them is kept free.
    pub(super) reserved: u16,
    /// Messages of each process, and of those that had its number before.
    processes: [u16; MAX_PROCESSES as usize],
}

impl Quotas {
    /// Returns the count of a quota, to change it.
    fn count_mut(&mut self, quota: Quota) -> Option<&mut u16> {
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
    /// Its header. [`Outbox::submit`] sets the sequence number.
    pub(super) packet: HeaderPacket,
    pub(super) pieces: Pieces,
    pub(super) owner: Owner,
    pub(super) quota: Quota,
}

/// A message that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) owner: Owner,
    /// Kind of the message as it was last sent: [`message::VOID`] if its process had ended by then.
    pub(super) kind: u8,
    pub(super) outcome: Outcome,
    /// Its memory could not be read.
    pub(super) has_fault: bool,
}

/// Result of a step of the outbox.
#[derive(Debug)]
pub(super) enum Work {
    /// This message has ended.
    Ended(Ended),
    /// This message must go to the transmit DMA engine: see [`Outbox::make_transmission`]. `target`
    /// is its target node.
    Transmit { slot: Slot, target: u32 },
    /// A send queue was handled, and the caller has nothing to do for it.
    Nothing,
}

/// All messages that are being sent.
pub(super) struct Outbox {
    pendings: Pendings,
    /// Send queues of the nodes with messages in flight. The other fields name one by its index
    /// here.
    send_queues: Vec<Option<SendQueue>>,
    /// Indices of the send queues that are not open.
    free: Vec<u16>,
    /// Hash table of the open send queues by node: the first of each chain.
    chains: Box<[u16]>,
    /// Send queues with work.
    ready: VecDeque<u16>,
    /// Send queues that wait for room in the transmit DMA engine.
    stalled: VecDeque<u16>,
    /// Send queues in a back-off, with its end.
    paused: BinaryHeap<Reverse<(u64, u16)>>,
    pub(super) quotas: Quotas,
    /// Settings: which messages are acknowledged, and the time-out.
    settings: Settings,
    /// Time at which the next scan for silent nodes begins.
    scan_at: Option<u64>,
    /// The next send queue of the scan in progress.
    scan: Option<u16>,
    /// Upper half of the names of transmissions, by which those of earlier incarnations are told
    /// from those of this one.
    generation: u16,
}

impl Outbox {
    /// Allocates the pools for `capacity` messages, each of which may go to another node.
    pub(super) fn new(
        capacity: u16,
        settings: Settings,
        generation: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        // Each send queue may have its index in three lists, and an entry in the heap.
        let bytes_each =
            size_of::<Option<SendQueue>>() + 3 * size_of::<u16>() + size_of::<Reverse<(u64, u16)>>();
        scratch.take(usize::from(capacity) * bytes_each + CHAINS * size_of::<u16>())?;

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

    /// Returns whether the pool and the send queue of a node have room for one more message.
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
        let Some(MessageNumber { sequence, resynchronizes }) = pairs.take_number(node) else { return false };

        // Without flow control, no message waits for an acknowledgement or for another message.
        let Settings { flow_control, implicit_acknowledgements, .. } = self.settings;
        let is_long = flow_control && packet.trusted.length as usize > INLINE;
        let may_be_implicit = !flow_control || implicit_acknowledgements && can_be_implicit(&packet);
        packet.trusted.sequence = sequence.value();
        let flight = Flight::new(sequence, is_long);
        let Some(slot) = self.pendings.insert(flight, node, packet, pieces, owner, quota) else {
            return false;
        };
        if let Some(count) = self.quotas.count_mut(quota) {
            *count += 1;
        }

        if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
            send_queue.sender.push(&mut self.pendings.to(node), slot, may_be_implicit, resynchronizes);
        }
        self.make_ready(index);
        true
    }

    /// Handles an acknowledgement of flow control from a node. Returns its effect on the send
    /// queue.
    ///
    /// A negative acknowledgement names this node's place in line among those that the receiver has
    /// refused. The send queue pauses until those in front should have been served.
    pub(super) fn respond(
        &mut self,
        node: u32,
        response: Response,
        place_in_line: u32,
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
            let resumes_at = now + u64::from(place_in_line) * BACK_OFF_NS;
            send_queue.paused_until = Some(resumes_at);
            self.paused.push(Reverse((resumes_at, index)));
        } else if reaction != Reaction::Ignored {
            self.make_ready(index);
        }
        reaction
    }

    /// Records that the transmit DMA engine has finished a message, unless it is one of an earlier
    /// incarnation.
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
            // The node is not silent: before now, it had no message to answer. An implicit message
            // is never answered.
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

    /// Takes the messages of a process that has ended from it. Those that the kernel sends for the
    /// process stay the kernel's, which still awaits their ends. Returns the number of entries of
    /// the pool that were visited.
    pub(super) fn detach(&mut self, process: u16) -> usize {
        let of_process = |pending: &&mut Pending| pending.packet.trusted.source_process == process;
        for pending in self.pendings.iter_mut().filter(of_process) {
            pending.process_has_ended = true;
            if !matches!(pending.owner, Owner::Kernel { .. }) {
                pending.owner = Owner::Gone;
            }
        }
        self.pendings.capacity()
    }

    /// Begins a scan for silent nodes, if it is due. [`Self::find_silent_node`] makes the scan.
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

    /// Returns whether [`Self::step`] or [`Self::find_silent_node`] has work. `in_engine` is the
    /// number of messages in the transmit DMA engine.
    pub(super) fn has_work(&self, in_engine: u16, now: u64) -> bool {
        let is_pause_over = self.paused.peek().is_some_and(|Reverse((time, _))| *time <= now);
        let may_resume = !self.stalled.is_empty() && in_engine < MAX_TRANSMISSIONS;
        !self.ready.is_empty() || self.scan.is_some() || is_pause_over || may_resume
    }

    /// Continues the scan in progress by at most [`SCANNED_PER_POLL`] send queues. If the node of
    /// one was silent for the time-out, fails its messages and returns the node.
    #[inline]
    pub(super) fn find_silent_node(&mut self, now: u64) -> Option<u32> {
        let first = self.scan?;
        self.scan_from(first, now)
    }

    /// Scans send queues from `first` on.
    #[cold]
    fn scan_from(&mut self, first: u16, now: u64) -> Option<u32> {
        let count = self.send_queues.len() as u16;
        for index in first..count.min(first.saturating_add(SCANNED_PER_POLL)) {
            let Some(Some(send_queue)) = self.send_queues.get(usize::from(index)) else { continue };
            let SendQueue { node, ref sender, last_heard, .. } = *send_queue;
            let is_late = last_heard + self.settings.timeout <= now;
            if is_late && sender.waits_for_answer(&self.pendings.to(node)) {
                self.fail_send_queue(index);
                self.scan = Some(index + 1);
                return Some(node);
            }
        }

        // The scan goes on in the next poll, or has seen all send queues.
        let next = first.saturating_add(SCANNED_PER_POLL);
        self.scan = (next < count).then_some(next);
        if self.scan.is_none() && self.free.len() < self.send_queues.len() {
            self.scan_at = Some(now + self.settings.timeout / SCANS_PER_TIMEOUT);
        }
        None
    }

    /// Returns the number of pending messages.
    pub(super) fn count(&self) -> usize {
        self.pendings.capacity() - self.pendings.free()
    }

    /// Takes a message that has left its send queue out of the pool.
    fn remove(&mut self, slot: Slot, outcome: Outcome) -> Option<Ended> {
        let Removed { owner, quota, kind, has_fault } = self.pendings.remove(slot)?;
        if let Some(count) = self.quotas.count_mut(quota) {
            *count = count.saturating_sub(1);
        }
        Some(Ended { owner, kind, outcome, has_fault })
    }

    /// Makes the transmission of a message that [`Outbox::step`] has returned. It carries no data
    /// if the message's process has ended, which counts as a fault.
    #[inline]
    pub(super) fn make_transmission(
        &mut self,
        slot: Slot,
        target_incarnation: Incarnation,
    ) -> Option<Transmit> {
        let pending = self.pendings.get_mut(slot)?;
        pending.has_fault = pending.process_has_ended;
        if pending.process_has_ended {
            pending.make_void();
        }

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

/// Returns whether a message may be implicit: the receiver needs no space for an answer to it, so
/// that it does not refuse the message for want of it.
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

    fn message(node: u32) -> Message {
        let (owner, quota) = (Owner::Gone, Quota::Process(0));
        Message { node, packet: HeaderPacket::default(), pieces: Pieces::None, owner, quota }
    }

    #[test]
    fn fewer_than_1024_messages_are_in_flight_to_a_node() {
        const CAPACITY: u16 = MAX_IN_FLIGHT + 16;
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(3, &mut scratch).unwrap();
        let mut outbox = Outbox::new(CAPACITY, Settings::default(), 1, &mut scratch).unwrap();

        let count = (0..CAPACITY).filter(|_| outbox.submit(&mut pairs, message(1), 0)).count();
        assert_eq!(count, usize::from(MAX_IN_FLIGHT) - 1);
        // Another node has its own limit.
        assert!(outbox.submit(&mut pairs, message(2), 0));

        // The end of one message makes room for one.
        let (ack, first) = (Response::Ack, Sequence::INITIAL);
        while !matches!(outbox.step(0, 0, true), Some(Work::Transmit { .. })) {}
        outbox.transmitted(Transmission(1 << 16), TransferStatus::Complete, 0);
        assert_eq!(outbox.respond(1, ack, 0, first, 0), Reaction::Ended);
        while !matches!(outbox.step(MAX_TRANSMISSIONS, 0, true), Some(Work::Ended(_))) {}
        assert!(outbox.submit(&mut pairs, message(1), 0));
        assert!(!outbox.submit(&mut pairs, message(1), 0));
    }

    #[test]
    fn a_send_queue_that_waits_is_idle_until_its_message_is_answered() {
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(3, &mut scratch).unwrap();
        let mut outbox = Outbox::new(2, Settings::default(), 1, &mut scratch).unwrap();
        assert!(outbox.submit(&mut pairs, message(1), 0));

        // The first step of a poll transmits, and leaves a second one nothing to do.
        assert!(matches!(outbox.step(0, 0, false), Some(Work::Transmit { .. })));
        assert!(outbox.step(0, 0, false).is_none() && !outbox.has_work(0, 0));

        outbox.transmitted(Transmission(1 << 16), TransferStatus::Complete, 0);
        assert_eq!(outbox.respond(1, Response::Ack, 0, Sequence::INITIAL, 0), Reaction::Ended);
        assert!(matches!(outbox.step(0, 0, false), Some(Work::Ended(_))));
    }

    #[test]
    fn send_queues_that_wait_for_the_engine_are_resumed_behind_those_that_fail() {
        const LAST: u32 = 2 * MAX_TRANSMISSIONS as u32 + 1;
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(LAST + 1, &mut scratch).unwrap();
        let mut outbox = Outbox::new(LAST as u16, Settings::default(), 1, &mut scratch).unwrap();
        assert!((1..=LAST).all(|node| outbox.submit(&mut pairs, message(node), 0)));

        // The engine is full, and the nodes of as many messages behind it fail.
        let mut slots = Vec::new();
        while outbox.has_work(slots.len() as u16, 0) {
            if let Some(Work::Transmit { slot, .. }) = outbox.step(slots.len() as u16, 0, false) {
                slots.push(slot);
            }
        }
        assert_eq!(slots.len(), usize::from(MAX_TRANSMISSIONS));
        (MAX_TRANSMISSIONS + 1..2 * MAX_TRANSMISSIONS + 1).for_each(|node| outbox.fail_all(node.into()));
        for slot in slots {
            outbox.transmitted(Transmission(1 << 16 | u32::from(slot.0)), TransferStatus::Complete, 0);
            outbox.resume_stalled_queue();
        }

        let mut targets = Vec::new();
        while outbox.has_work(0, 0) {
            if let Some(Work::Transmit { target, .. }) = outbox.step(0, 0, false) {
                targets.push(target);
            }
        }
        assert_eq!(targets, [LAST]);
    }

    #[test]
    fn a_send_queue_without_messages_serves_another_node_when_all_send_queues_are_open() {
        let mut scratch = Scratch::new();
        let mut pairs = Pairs::new(4, &mut scratch).unwrap();
        let mut outbox = Outbox::new(2, Settings::default(), 1, &mut scratch).unwrap();
        assert!([1, 2].into_iter().all(|node| outbox.submit(&mut pairs, message(node), 0)));

        // The message to node 1 has ended, and no step has closed its send queue.
        outbox.fail_all(1);
        assert!(matches!(outbox.step(0, 0, true), Some(Work::Ended(_))));
        assert!(outbox.has_room(3) && outbox.submit(&mut pairs, message(3), 0));
        assert!(!outbox.has_room(1));

        let mut targets = Vec::new();
        while let Some(work) = outbox.step(0, 0, true) {
            if let Work::Transmit { target, .. } = work {
                targets.push(target);
            }
        }
        assert_eq!(targets, [2, 3]);
    }
}
