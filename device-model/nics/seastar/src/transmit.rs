//! The transmit DMA engine: messages become packets.
//!
//! It has a queue for each channel. Control messages are single packets, and go first. Of the data
//! messages, one is in service at a time: the engine reads client memory piece by piece, and puts a
//! packet into the router when the host interface has delivered its data.
//!
//! A message in service is always sent whole. If its memory cannot be read, zeros take the place of
//! the data, and the last packet says so.

use std::collections::VecDeque;

use nicforge_core::{context::Context, fabric::Packet, ids::FunctionId, time::Nanos};
use nicforge_hwi::seastar::{HeaderPacket, PACKET};
use nicforge_kit::{Server, retry};
use nicforge_seastar_firmware::chip::{
    Event, MAX_TRANSMISSIONS_IN_EVENT, TransferStatus, Transmission, Transmissions, Transmit,
};
use zerocopy::IntoBytes;

use crate::{
    memory::Reader,
    parts::Parts,
    reference::ReferencedMemory,
    service::{Job, NextPacket, Service, pad},
    wire,
};

/// Number of this engine among the two of a node that read client memory.
const READER: u64 = 0;
/// Injection FIFO of the router for data messages.
pub(crate) const DATA_FIFO: u8 = 0;
/// Injection FIFO of the router for control messages and shutdown notices.
pub(crate) const CONTROL_FIFO: u8 = 1;

/// Maximum number of data messages in the queue. The firmware that comes with nicforge never has
/// more than [`chip::MAX_TRANSMISSIONS`].
///
/// [`chip::MAX_TRANSMISSIONS`]: nicforge_seastar_firmware::chip::MAX_TRANSMISSIONS
const MAX_DATA: usize = 4096;
/// Maximum number of control messages in the queue.
const MAX_CONTROL: usize = 1 << 16;
/// Delay in nanoseconds before the engine checks again whether packets still refer to client
/// memory. The node that recycles the last packet wakes this one, but a packet that is lost on its
/// way does not.
const DRAIN_RETRY: u64 = 100_000_000;
/// How long packets may refer to client memory after the last one was made, in nanoseconds. It is
/// the firmware's default time-out of a silent node.
const DRAIN_LIMIT: u64 = 10_000_000_000;

/// The engine.
pub(crate) struct Transmitter {
    /// Data messages that wait.
    data: VecDeque<Job>,
    /// Control messages that wait.
    control: VecDeque<ControlJob>,
    /// The data message in service.
    service: Option<Service>,
    /// A packet, and the time at which the host interface has delivered its data.
    staged: Option<(Packet, Nanos)>,
    /// Messages that have ended, with their status, until it is reported to the firmware.
    finished: VecDeque<(Transmission, TransferStatus)>,
    /// Messages all of whose packets are made, and whose packets still refer to client memory.
    draining: Vec<Draining>,
    /// The next node that gets a shutdown notice, while notices are being sent.
    shutdown_notice: Option<u32>,
    reader: Reader,
    /// The host interface, which reads the data of packets.
    host: Server,
    pub(crate) counters: SendCounters,
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounters {
    /// Data messages that were sent.
    pub(crate) messages: u64,
    /// Control messages that were sent.
    pub(crate) control: u64,
    /// Control messages that found the queue full.
    pub(crate) control_lost: u64,
    /// Packets that were sent, of all kinds.
    pub(crate) packets: u64,
    /// Bytes of data of the messages.
    pub(crate) bytes: u64,
    /// Messages whose memory could not be read.
    pub(crate) faults: u64,
}

/// A message all of whose packets are made, and whose packets refer to client memory.
struct Draining {
    name: Transmission,
    status: TransferStatus,
    referenced: ReferencedMemory,
    /// Time at which the last packet was made.
    since: Nanos,
}

impl Draining {
    /// Returns whether no packet refers to the memory any more, or the packets have waited for too
    /// long.
    #[inline]
    fn is_over(&self, now: Nanos) -> bool {
        !self.referenced.is_in_use() || now >= self.since.after(DRAIN_LIMIT)
    }
}

/// A control message.
struct ControlJob {
    packet: HeaderPacket,
    target: u32,
    /// This node's incarnation at the program's call.
    source_incarnation: u32,
    /// The target's incarnation for which the message is meant.
    target_incarnation: u32,
}

impl Transmitter {
    pub(crate) fn new() -> Self {
        Self {
            data: VecDeque::new(),
            control: VecDeque::new(),
            service: None,
            staged: None,
            finished: VecDeque::new(),
            draining: Vec::new(),
            shutdown_notice: None,
            reader: Reader::new(READER),
            host: Server::default(),
            counters: SendCounters::default(),
        }
    }

    /// Queues a data message. Returns false if the queue is full.
    pub(crate) fn queue_data(&mut self, message: Transmit, incarnation: u32, latest_tenant: u32) -> bool {
        let has_room = self.data.len() < MAX_DATA;
        if has_room {
            self.data.push_back(Job { message, incarnation, latest_tenant });
        }
        has_room
    }

    /// Queues a control message of one packet. If the queue is full, the message is lost: other
    /// nodes decide how many acknowledgements this one owes, and must not halt it by that. A node
    /// that misses one ends its message by a time-out.
    pub(crate) fn queue_control(&mut self, message: &Transmit, incarnation: u32) {
        if self.control.len() >= MAX_CONTROL {
            self.counters.control_lost += 1;
            return;
        }

        let Transmit { packet, target, target_incarnation, .. } = *message;
        self.control.push_back(ControlJob {
            packet,
            target,
            source_incarnation: incarnation,
            target_incarnation: target_incarnation.0,
        });
    }

    /// Ends the remaining data messages of this node's incarnation with [`TransferStatus::Cut`],
    /// and begins to send a shutdown notice to each other node.
    pub(crate) fn end_incarnation(&mut self, context: &mut Context<'_>) {
        let names = self.service.iter().map(Service::name);
        let names = names.chain(self.data.iter().map(|job| job.message.name));
        let names = names.chain(self.draining.iter().map(|message| message.name));
        self.finished.extend(names.map(|name| (name, TransferStatus::Cut)));

        self.drop_data(context);
        self.shutdown_notice = Some(0);
    }

    /// Ends a data message that is not sent, because the node has no incarnation.
    pub(crate) fn cut(&mut self, name: Transmission) {
        self.finished.push_back((name, TransferStatus::Cut));
    }

    /// Drops all messages and the reports of their ends, when the firmware stops.
    pub(crate) fn clear(&mut self, context: &mut Context<'_>) {
        self.drop_data(context);
        self.control.clear();
        self.finished.clear();
    }

    /// Drops all data messages. Their packets that are still in the network refer to leases
    /// that end here, and deliver zeros.
    fn drop_data(&mut self, context: &mut Context<'_>) {
        self.reader.cancel(context);
        self.data.clear();
        self.draining.clear();

        let body = self.service.take().and_then(Service::into_packet);
        let staged = self.staged.take().map(|(packet, _)| packet);
        for packet in body.into_iter().chain(staged) {
            context.ports().recycle(packet);
        }
    }

    /// Returns the reader, for answers to its reads.
    pub(crate) fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Returns the number of reads that ended early because a budget of waits was spent.
    pub(crate) fn over_budget(&self) -> u64 {
        self.reader.over_budget()
    }

    /// Returns the number of messages that wait or are in service.
    pub(crate) fn waiting(&self) -> u64 {
        let queued = self.data.len() + self.control.len() + self.draining.len();
        queued as u64 + u64::from(self.service.is_some())
    }

    /// Returns the time at which the engine needs a step, if no event causes one before.
    pub(crate) fn next_time(&self, now: Nanos) -> Nanos {
        let staged = self.staged.as_ref().map_or(Nanos::NEVER, |&(_, due)| due);
        if self.draining.is_empty() { staged } else { staged.min(now.after(DRAIN_RETRY)) }
    }

    /// Sends control messages and then data messages, at most about `budget` packets, and reports
    /// messages that have ended. Returns the number of packets.
    #[inline]
    pub(crate) fn step(&mut self, parts: &mut Parts, context: &mut Context<'_>, budget: u32) -> u32 {
        if self.has_drained(context.now()) {
            self.end_drained_messages(context.now());
        } else if self.is_idle(context.now()) {
            return 0;
        }

        let mut moved = self.send_control(parts, context, budget);
        let now = context.now();
        if !self.report_ends(parts, now) {
            return moved;
        }
        while moved < budget
            && (self.finished.len() < MAX_TRANSMISSIONS_IN_EVENT || self.report_ends(parts, now))
            && self.send_data(parts, context)
        {
            moved += 1;
        }
        self.report_ends(parts, now);
        moved
    }

    /// Returns whether a message has drained, whose end must be reported.
    #[inline]
    fn has_drained(&self, now: Nanos) -> bool {
        self.draining.iter().any(|message| message.is_over(now))
    }

    /// Returns whether the engine has nothing to do, or only waits for packets that refer to client
    /// memory.
    #[inline]
    pub(crate) fn is_idle(&self, now: Nanos) -> bool {
        self.data.is_empty()
            && self.control.is_empty()
            && self.finished.is_empty()
            && self.service.is_none()
            && self.staged.is_none()
            && self.shutdown_notice.is_none()
            && !self.has_drained(now)
    }

    /// Ends the messages to whose memory no packet refers any more, and those whose packets have
    /// waited for too long.
    fn end_drained_messages(&mut self, now: Nanos) {
        let Self { draining, finished, counters, .. } = self;
        draining.retain(|message| {
            let is_over = message.is_over(now);
            if is_over {
                let Draining { name, status, referenced, .. } = message;
                let is_in_use = referenced.is_in_use();
                // Packets that still refer to the memory lose it now. Others may have lost it
                // before, if its mapping has ended.
                let is_withdrawn = is_in_use || referenced.is_withdrawn();
                let status = if is_withdrawn { TransferStatus::MemoryFault } else { *status };
                counters.faults += u64::from(status == TransferStatus::MemoryFault);
                finished.push_back((*name, status));
            }
            !is_over
        });
    }

    /// Sends control messages, and then shutdown notices, while the router has room for them.
    /// Returns their number.
    fn send_control(&mut self, parts: &mut Parts, context: &mut Context<'_>, budget: u32) -> u32 {
        let now = context.now();
        let mut moved = 0;

        while moved < budget
            && self.prepare_control(parts)
            && parts.router.injection_room(CONTROL_FIFO, now).packets > 0
        {
            let bytes = if self.control.is_empty() { 0 } else { PACKET };
            let Ok(mut packet) = context.ports().new_packet(bytes) else {
                retry::when_starved(context);
                break;
            };

            self.fill_control(parts, &mut packet);
            pad(&mut packet, parts);
            self.inject(parts, context, CONTROL_FIFO, packet);
            moved += 1;
        }
        moved
    }

    /// Skips a shutdown notice to this node. Returns whether there is a control message, or a
    /// shutdown notice to another node.
    #[inline]
    fn prepare_control(&mut self, parts: &Parts) -> bool {
        if self.shutdown_notice == Some(parts.site.node) {
            self.next_shutdown_notice(parts);
        }
        !self.control.is_empty() || self.shutdown_notice.is_some()
    }

    /// Fills a packet with the next control message, or else makes it the next shutdown notice,
    /// which has no content.
    #[inline]
    fn fill_control(&mut self, parts: &Parts, packet: &mut Packet) {
        if let Some(job) = self.control.front_mut() {
            job.packet.trusted.source_node = parts.site.node;
            packet.bytes_mut().copy_from_slice(job.packet.as_bytes());
            packet.header =
                wire::header(job.target, wire::CONTROL, job.source_incarnation, job.target_incarnation);
            self.control.pop_front();
            self.counters.control += 1;
        } else if let Some(target) = self.shutdown_notice {
            packet.header = wire::shutdown_notice(target);
            self.next_shutdown_notice(parts);
        }
    }

    /// Goes on to the next node for a shutdown notice, or ends the notices after the last one.
    #[cold]
    fn next_shutdown_notice(&mut self, parts: &Parts) {
        self.shutdown_notice =
            self.shutdown_notice.map(|target| target + 1).filter(|&target| target < parts.site.nodes);
    }

    /// Reports the ends of messages to the firmware, several in an event. Returns whether all of
    /// them are reported.
    fn report_ends(&mut self, parts: &mut Parts, now: Nanos) -> bool {
        while let Some(&(first, status)) = self.finished.front() {
            let mut names = Transmissions::one(first);
            // The messages after it with the same status share its event.
            let alike = self.finished.iter().skip(1).take_while(|(_, other)| *other == status);
            alike.take(MAX_TRANSMISSIONS_IN_EVENT - 1).for_each(|(name, _)| names.push(*name));

            if !parts.firmware.send(now, Event::Transmitted { names, status }) {
                return false;
            }
            self.finished.drain(..names.names().len());
        }
        true
    }

    /// Makes and sends the next packet of data, or sends the staged one. Returns whether it has,
    /// and the caller may call again.
    fn send_data(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let now = context.now();
        if self.staged.is_some() {
            return self.send_staged(parts, context);
        }
        if parts.router.injection_room(DATA_FIFO, now).packets == 0 {
            return false;
        }

        if self.service.is_none() {
            match self.data.front() {
                Some(job) if job.is_one_packet() => return self.send_short(parts, context),
                Some(_) => self.begin_service(parts, context.function()),
                None => return false,
            }
        }
        let Some(service) = &mut self.service else { return false };
        match service.next_packet(parts, context, &mut self.reader) {
            NextPacket::Packet { packet, read, is_last } => {
                self.host.work(now, parts.site.options.host_clock(), read);
                if is_last {
                    self.end_service(now);
                }

                self.send_at(parts, context, packet, self.host.idle_at());
                true
            }
            NextPacket::Wait => false,
            NextPacket::Starved => {
                retry::when_starved(context);
                false
            }
        }
    }

    /// Sends the staged packet when its data have come through the host interface and the router
    /// has space.
    fn send_staged(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let now = context.now();
        let has_room = parts.router.injection_room(DATA_FIFO, now).packets > 0;
        let is_due = self.staged.as_ref().is_some_and(|&(_, due)| due <= now);
        if !is_due || !has_room {
            return false;
        }

        if let Some((packet, _)) = self.staged.take() {
            self.inject(parts, context, DATA_FIFO, packet);
        }
        true
    }

    /// Puts a packet into the router, which has room for it.
    fn inject(&mut self, parts: &mut Parts, context: &mut Context<'_>, fifo: u8, packet: Packet) {
        self.counters.packets += 1;
        if let Err(refused) = parts.router.inject(fifo, packet, context.now()) {
            context.ports().recycle(refused.packet);
        }
    }

    /// Sends the next message, whose header packet has all its data. Returns false, and asks for a
    /// retry, if the fabric's pool of packets is empty.
    fn send_short(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let Some(job) = self.data.front_mut() else { return false };
        let Ok(mut packet) = context.ports().new_packet(PACKET) else {
            retry::when_starved(context);
            return false;
        };

        job.fill_header(&mut packet, parts);
        self.counters.messages += 1;
        self.counters.bytes += u64::from(job.message.packet.trusted.length);
        // The packet holds all data, so that the message needs no memory any more.
        self.finished.push_back((job.message.name, TransferStatus::Complete));
        self.data.pop_front();
        self.send_at(parts, context, packet, self.host.idle_at());
        true
    }

    /// Sends a packet of data at once, or stages it until the host interface has delivered its
    /// data, at the time `due`.
    #[inline]
    fn send_at(&mut self, parts: &mut Parts, context: &mut Context<'_>, packet: Packet, due: Nanos) {
        if due > context.now() {
            self.staged = Some((packet, due));
        } else {
            self.inject(parts, context, DATA_FIFO, packet);
        }
    }

    /// Takes the next message into service.
    fn begin_service(&mut self, parts: &Parts, function: FunctionId) {
        self.service = self.data.pop_front().map(|job| Service::new(job, parts, function));
    }

    /// Ends the service of a message all of whose packets are made. Its end is reported when no
    /// packet refers to its memory any more.
    fn end_service(&mut self, now: Nanos) {
        let Some(service) = self.service.take() else { return };
        let status = service.status();
        self.counters.messages += 1;
        self.counters.bytes += u64::from(service.length());
        let name = service.name();
        if let Some(referenced) = service.into_referenced() {
            self.draining.push(Draining { name, status, referenced, since: now });
            return;
        }
        self.counters.faults += u64::from(status == TransferStatus::MemoryFault);
        self.finished.push_back((name, status));
    }
}

#[cfg(test)]
mod tests {
    use nicforge_seastar_firmware::chip::{Channel, Incarnation, Pieces};

    use super::*;

    #[test]
    fn control_messages_for_which_the_queue_has_no_room_are_lost_and_counted() {
        let message = Transmit {
            name: Transmission(0),
            target: 1,
            target_incarnation: Incarnation(1),
            channel: Channel::Control,
            packet: HeaderPacket::default(),
            pieces: Pieces::None,
        };
        let mut transmitter = Transmitter::new();
        (0..MAX_CONTROL + 2).for_each(|_| transmitter.queue_control(&message, 1));
        assert_eq!((transmitter.control.len(), transmitter.counters.control_lost), (MAX_CONTROL, 2));
    }
}
