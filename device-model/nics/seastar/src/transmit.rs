//! The transmit DMA engine: messages become packets.
//!
//! It has a queue for each channel. Control messages are single packets, and go first. Of the data
//! messages, one is in service at a time: the engine reads client memory piece by piece, and puts a
//! packet into the router when the host interface has delivered its data.
//!
//! A message in service is always sent whole. If its memory cannot be read, zeros take the place of
//! the data, and the last packet says so.

use std::collections::VecDeque;

use nicforge_core::{context::Context, fabric::Packet, time::Nanos};
use nicforge_hwi::seastar::HeaderPacket;
use nicforge_kit::{Clock, Server, retry};
use nicforge_seastar_firmware::chip::{DataEnd, Event, Transmission, Transmit};
use zerocopy::IntoBytes;

use crate::{
    memory::Reader,
    parts::Parts,
    service::{Job, Made, Service, pad},
    wire,
};

/// Injection FIFOs of the router.
pub(crate) const DATA_FIFO: u8 = 0;
pub(crate) const CONTROL_FIFO: u8 = 1;

/// Most data messages in the queue; [`chip::MAX_TRANSMISSIONS`] suffices for the firmware.
///
/// [`chip::MAX_TRANSMISSIONS`]: nicforge_seastar_firmware::chip::MAX_TRANSMISSIONS
const MAX_DATA: usize = 4096;
/// Most control messages in the queue.
const MAX_CONTROL: usize = 1 << 16;

/// The engine.
pub(crate) struct Transmitter {
    data: VecDeque<Job>,
    control: VecDeque<ControlJob>,
    service: Option<Service>,
    /// A packet whose data come through the host interface until this time.
    staged: Option<(Packet, Nanos)>,
    /// Messages that have ended, and whose ends the firmware has not seen.
    finished: VecDeque<(Transmission, DataEnd)>,
    /// The next node that gets a farewell, if some get one.
    farewell: Option<u32>,
    reader: Reader,
    host: Server,
    pub(crate) counters: SendCounters,
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounters {
    pub(crate) messages: u64,
    pub(crate) control: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) faults: u64,
}

/// A control message.
struct ControlJob {
    packet: HeaderPacket,
    target: u32,
    /// Lives of the sender and of the target.
    lives: (u32, u32),
}

impl Transmitter {
    pub(crate) fn new() -> Self {
        Self {
            data: VecDeque::new(),
            control: VecDeque::new(),
            service: None,
            staged: None,
            finished: VecDeque::new(),
            farewell: None,
            reader: Reader::new(0),
            host: Server::default(),
            counters: SendCounters::default(),
        }
    }

    /// Queues a data message. Returns false if there are too many.
    pub(crate) fn queue_data(&mut self, message: Transmit, life: u32, seen: u32) -> bool {
        let has_room = self.data.len() < MAX_DATA;
        if has_room {
            self.data.push_back(Job { message, life, seen });
        }
        has_room
    }

    /// Queues a control message of one packet. Returns false if there are too many.
    pub(crate) fn queue_control(&mut self, message: &Transmit, life: u32) -> bool {
        let has_room = self.control.len() < MAX_CONTROL;
        if has_room {
            let Transmit { packet, target, target_life, .. } = *message;
            self.control.push_back(ControlJob { packet, target, lives: (life, target_life.0) });
        }
        has_room
    }

    /// Ends what remains of the data messages of a life, and says farewell to the other nodes.
    pub(crate) fn end_life(&mut self, context: &mut Context<'_>) {
        let names = self.service.iter().map(Service::name);
        let names = names.chain(self.data.iter().map(|job| job.message.name));
        self.finished.extend(names.map(|name| (name, DataEnd::Cut)));

        self.drop_data(context);
        self.farewell = Some(0);
    }

    /// Notes a data message that a node without a life would send.
    pub(crate) fn refuse(&mut self, name: Transmission) {
        self.finished.push_back((name, DataEnd::Cut));
    }

    /// Drops all messages, at the end of the firmware's life.
    pub(crate) fn clear(&mut self, context: &mut Context<'_>) {
        self.drop_data(context);
        self.control.clear();
        self.finished.clear();
    }

    /// Drops all data messages.
    fn drop_data(&mut self, context: &mut Context<'_>) {
        self.reader.cancel(context);
        self.data.clear();

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

    /// Returns the number of messages that wait or are in service.
    pub(crate) fn waiting(&self) -> u64 {
        (self.data.len() + self.control.len()) as u64 + u64::from(self.service.is_some())
    }

    /// Returns the time at which the engine goes on by itself.
    pub(crate) fn next_time(&self) -> Nanos {
        self.staged.as_ref().map_or(Nanos::NEVER, |&(_, due)| due)
    }

    /// Sends packets, at most about `budget`. Returns their number.
    pub(crate) fn step(&mut self, parts: &mut Parts, context: &mut Context<'_>, budget: u32) -> u32 {
        let mut moved = self.send_control(parts, context, budget);
        while moved < budget && self.send_data(parts, context) {
            moved += 1;
        }
        moved
    }

    /// Sends control messages, and then farewells, while they have room.
    fn send_control(&mut self, parts: &mut Parts, context: &mut Context<'_>, budget: u32) -> u32 {
        let now = context.now();
        let mut moved = 0;

        while moved < budget && parts.router.injection_room(CONTROL_FIFO, now).1 > 0 {
            let Some((word, header, target)) = self.next_control(parts) else { break };
            if header.is_none() && target == parts.site.node {
                continue;
            }

            let bytes = header.as_ref().map_or(&[][..], |header| header.as_bytes());
            let Ok(mut packet) = context.ports().new_packet(bytes.len()) else {
                self.put_back_control(word, header, target);
                retry::when_starved(context);
                break;
            };
            packet.bytes_mut().copy_from_slice(bytes);
            packet.header = word;
            pad(&mut packet, parts);
            self.inject(parts, context, CONTROL_FIFO, packet);
            moved += 1;
        }
        moved
    }

    /// Takes the next control message as its route word, its content and its target; a farewell has
    /// no content.
    fn next_control(&mut self, parts: &Parts) -> Option<(u64, Option<HeaderPacket>, u32)> {
        if let Some(ControlJob { mut packet, target, lives }) = self.control.pop_front() {
            packet.trusted.source_node = parts.site.node;
            self.counters.control += 1;
            return Some((wire::header(target, wire::CONTROL, lives.0, lives.1), Some(packet), target));
        }

        let target = self.farewell?;
        let next = target + 1;
        self.farewell = (next < parts.site.nodes).then_some(next);
        Some((wire::farewell(target), None, target))
    }

    /// Puts a control message back that could not be sent.
    #[cold]
    fn put_back_control(&mut self, word: u64, header: Option<HeaderPacket>, target: u32) {
        match (header, wire::decode(word)) {
            (Some(packet), Some(wire::Kind::Header { source_life, target_life, .. })) => {
                let lives = (source_life.bits(), target_life.bits());
                self.control.push_front(ControlJob { packet, target, lives });
                self.counters.control -= 1;
            }
            _ => self.farewell = Some(target),
        }
    }

    /// Makes and sends the next packet of data, or reports the end of a message. Returns whether it
    /// has done something, and may do more.
    fn send_data(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let now = context.now();
        while let Some(&(name, end)) = self.finished.front() {
            if !parts.firmware.send(now, Event::Transmitted { name, end }) {
                return false;
            }
            self.finished.pop_front();
        }

        if self.staged.is_some() {
            return self.send_staged(parts, context);
        }
        if parts.router.injection_room(DATA_FIFO, now).1 == 0 {
            return false;
        }

        if self.service.is_none() && !self.begin(parts) {
            return false;
        }
        let Some(service) = &mut self.service else { return false };
        match service.make(parts, context, &mut self.reader) {
            Made::Packet { packet, read, is_last } => {
                self.host.work(now, Clock::of_mhz(parts.site.options.host_rate), read);
                if is_last {
                    self.finish();
                }

                let due = self.host.idle_at();
                if due > now {
                    self.staged = Some((packet, due));
                } else {
                    self.inject(parts, context, DATA_FIFO, packet);
                }
                true
            }
            Made::Wait => false,
            Made::Starved => {
                retry::when_starved(context);
                false
            }
        }
    }

    /// Sends the staged packet when its data are there and it has room.
    fn send_staged(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let now = context.now();
        let has_room = parts.router.injection_room(DATA_FIFO, now).1 > 0;
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

    /// Begins the next message. Returns whether there is one.
    fn begin(&mut self, parts: &Parts) -> bool {
        self.service = self.data.pop_front().map(|job| Service::new(job, parts));
        self.service.is_some()
    }

    /// Ends the message in service, all of whose packets are made.
    fn finish(&mut self) {
        let Some(service) = self.service.take() else { return };
        let end = service.end();
        self.counters.messages += 1;
        self.counters.bytes += u64::from(service.length());
        self.counters.faults += u64::from(end == DataEnd::MemoryFault);
        self.finished.push_back((service.name(), end));
    }
}
