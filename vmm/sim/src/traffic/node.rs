//! A node of a network alone: a router, with a traffic generator as its device.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    spec::{FunctionSpec, Identity},
    time::Nanos,
};
use nicforge_network::router::{
    Router,
    policies::{TorusPolicy, TorusWord},
};

use super::{measure::Collector, pattern::Targets, random::Random};

/// Bytes at the begin of a packet's content that hold the time of its creation.
pub(super) const STAMP: usize = 8;
/// Picoseconds of a nanosecond.
const PICOSECONDS: f64 = 1000.0;

/// Packets of one node.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) targets: Targets,
    pub(super) random: Random,
    /// Mean time between two packets in picoseconds.
    pub(super) interval: f64,
    /// Content and framing of a packet in bytes.
    pub(super) bytes: usize,
    pub(super) framing: u32,
    /// Whether packets are adaptive, and in which zone.
    pub(super) adaptive_zone: Option<u8>,
    /// Time from which no packets are created.
    pub(super) end: Nanos,
}

impl Source {
    /// Returns the word of the next packet, or `None` if there are no more.
    fn next_word(&mut self) -> Option<TorusWord> {
        let word = self.targets.next(&mut self.random)?.ok()?;
        Some(match self.adaptive_zone {
            None => word,
            Some(zone) => word.adaptive().with_zone(zone),
        })
    }
}

/// A packet that has been created, or will be.
#[derive(Clone, Copy, Debug)]
struct Pending {
    word: TorusWord,
    /// Time of its creation in picoseconds.
    created: f64,
}

impl Pending {
    /// Returns the nanosecond from which the packet is there.
    fn time(&self) -> Nanos {
        Nanos((self.created / PICOSECONDS) as u64 + 1)
    }
}

/// The device.
pub(super) struct TrafficNode {
    router: Router<TorusPolicy>,
    fifos: u8,
    /// Injection FIFO that gets the next packet, if it has room.
    next_fifo: u8,
    source: Source,
    pending: Option<Pending>,
    collector: Arc<Collector>,
}

impl TrafficNode {
    pub(super) fn new(
        router: Router<TorusPolicy>,
        fifos: u8,
        mut source: Source,
        collector: Arc<Collector>,
    ) -> Self {
        let word = source.next_word();
        let created = source.random.interval(source.interval);
        let pending = word.map(|word| Pending { word, created });
        Self { router, fifos, next_fifo: 0, source, pending, collector }
    }

    /// Takes the packets that have arrived.
    fn receive(&mut self, ports: &mut Ports<'_>) {
        let now = ports.now();
        while let Some(packet) = self.router.take(0, now) {
            let stamp = packet.bytes().first_chunk::<STAMP>().copied().unwrap_or_default();
            let bytes = packet.len() as u64 + u64::from(packet.framing);
            self.collector.received(Nanos(u64::from_le_bytes(stamp)), now, bytes);
            ports.recycle(packet);
        }
    }

    /// Puts the packets that have been created into injection FIFOs with room. Returns the time of
    /// the next packet, or [`Nanos::NEVER`] if there are no more or one waits for room.
    fn inject(&mut self, ports: &mut Ports<'_>) -> Nanos {
        let now = ports.now();
        while let Some(pending) = self.pending {
            let time = pending.time();
            if time >= self.source.end {
                self.pending = None;
                break;
            }
            if time > now {
                return time;
            }

            if !self.inject_one(ports, pending.word, time) {
                return Nanos::NEVER;
            }
            self.collector.injected(time);

            let created = pending.created + self.source.random.interval(self.source.interval);
            self.pending = self.source.next_word().map(|word| Pending { word, created });
        }
        Nanos::NEVER
    }

    /// Puts a packet into an injection FIFO. Returns false if none has room.
    fn inject_one(&mut self, ports: &mut Ports<'_>, word: TorusWord, created: Nanos) -> bool {
        let now = ports.now();
        let needed = self.source.bytes as u32 + self.source.framing;
        let has_room = |fifo: u8| {
            let (bytes, packets) = self.router.injection_room(fifo, now);
            bytes >= needed && packets > 0
        };
        let fifos = (0..self.fifos).map(|offset| (self.next_fifo + offset) % self.fifos);
        let Some(fifo) = fifos.into_iter().find(|&fifo| has_room(fifo)) else { return false };
        let Ok(mut packet) = ports.new_packet(self.source.bytes) else { return false };

        if let Some(stamp) = packet.bytes_mut().first_chunk_mut::<STAMP>() {
            *stamp = created.0.to_le_bytes();
        }
        packet.header = word.0;
        packet.framing = self.source.framing;
        self.next_fifo = (fifo + 1) % self.fifos;

        match self.router.inject(fifo, packet, now) {
            Ok(()) => true,
            Err(refused) => {
                ports.recycle(refused.packet);
                false
            }
        }
    }
}

impl Device for TrafficNode {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(Identity {
            vendor: 0x1234,
            device: 0x7a1f,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 0,
        })
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut ports = context.ports();
        self.receive(&mut ports);
        let next = self.inject(&mut ports);
        let outcome = self.router.step(&mut ports, budget);

        // Room in an injection FIFO comes with an event of its link.
        context.wake_at(outcome.wake.min(next));
        if outcome.has_more || self.has_arrivals(context) { Progress::Busy } else { Progress::Idle }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.router.reset(&mut context.ports());
    }
}

impl TrafficNode {
    /// Returns whether the reception FIFO has a complete packet.
    fn has_arrivals(&self, context: &Context<'_>) -> bool {
        self.router.front(0, context.now()).is_some()
    }
}
