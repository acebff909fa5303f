//! A node of a network alone: a router with a traffic generator.

use std::sync::Arc;

use nicforge_core::time::Nanos;
use nicforge_network::{
    alone::{Node, NodeLinks, Parcel, Turn},
    router::{
        Links, Router,
        policies::{TorusPolicy, TorusWord},
    },
};

use super::{measure::Collector, pattern::Targets, random::Random};

/// Maximum number of packets that a router moves in a turn. If it has more to do, it has another
/// turn at the same time.
const BUDGET: u32 = 64;
/// Picoseconds of a nanosecond.
const PICOS_PER_NANO: f64 = 1000.0;
/// Number of the router's reception FIFO.
const RECEPTION: u8 = 0;

/// The generator of one node's packets.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) targets: Targets,
    pub(super) random: Random,
    /// Mean time between two packets in picoseconds.
    pub(super) interval_ps: f64,
    /// Bytes of a packet, with its framing.
    pub(super) bytes: u32,
    /// The zone of adaptive packets, or `None` for packets in dimension order.
    pub(super) adaptive_zone: Option<u8>,
    /// Time from which no packets are created.
    pub(super) end: Nanos,
}

impl Source {
    /// Returns the route word of the next packet, or `None` if there are no more.
    fn next_word(&mut self) -> Option<TorusWord> {
        let word = self.targets.next(&mut self.random)?.ok()?;
        Some(match self.adaptive_zone {
            None => word,
            Some(zone) => word.adaptive().with_zone(zone),
        })
    }
}

/// The next packet of a node. It has been created and waits for room, or will be created later.
#[derive(Clone, Copy, Debug)]
struct Pending {
    word: TorusWord,
    /// Time of its creation in picoseconds.
    created_ps: f64,
}

impl Pending {
    /// Returns the first nanosecond after the packet's creation.
    fn time(&self) -> Nanos {
        // A time that no `u64` has becomes the last one, by which each run has ended.
        Nanos(((self.created_ps / PICOS_PER_NANO) as u64).saturating_add(1))
    }
}

/// A router with a traffic generator. The tag of a packet is the time of its creation in
/// nanoseconds.
pub(super) struct TrafficNode {
    router: Router<TorusPolicy, Parcel>,
    /// Number of injection FIFOs.
    fifos: u8,
    /// Injection FIFO that gets the next packet, if it has room.
    next_fifo: u8,
    source: Source,
    pending: Option<Pending>,
    /// The counts of all nodes.
    collector: Arc<Collector>,
}

impl TrafficNode {
    /// Returns a node whose first packet is created a random time after time 0.
    pub(super) fn new(
        router: Router<TorusPolicy, Parcel>,
        fifos: u8,
        mut source: Source,
        collector: Arc<Collector>,
    ) -> Self {
        let word = source.next_word();
        let created_ps = source.random.interval(source.interval_ps);
        let pending = word.map(|word| Pending { word, created_ps });
        Self { router, fifos, next_fifo: 0, source, pending, collector }
    }

    /// Takes and counts the packets that have arrived.
    fn receive(&mut self, now: Nanos) {
        while let Some(parcel) = self.router.take(RECEPTION, now) {
            self.collector.count_received(Nanos(parcel.tag), now, parcel.bytes.into());
        }
    }

    /// Puts the packets that have been created into injection FIFOs with room. Returns the time of
    /// the next packet, or [`Nanos::NEVER`] if there are no more or one waits for room.
    fn inject(&mut self, now: Nanos) -> Nanos {
        while let Some(pending) = self.pending {
            let time = pending.time();
            if time >= self.source.end {
                self.pending = None;
                break;
            }
            if time > now {
                return time;
            }

            if !self.inject_one(now, pending.word, time) {
                return Nanos::NEVER;
            }
            self.collector.count_injected(time);

            let created_ps = pending.created_ps + self.source.random.interval(self.source.interval_ps);
            self.pending = self.source.next_word().map(|word| Pending { word, created_ps });
        }
        Nanos::NEVER
    }

    /// Puts a packet into the next injection FIFO with room. Returns false if none has room.
    fn inject_one(&mut self, now: Nanos, word: TorusWord, created: Nanos) -> bool {
        let bytes = self.source.bytes;
        let has_room = |fifo: u8| self.router.injection_room(fifo, now).fits(bytes);
        let fifos = (0..self.fifos).map(|offset| (self.next_fifo + offset) % self.fifos);
        let Some(fifo) = fifos.into_iter().find(|&fifo| has_room(fifo)) else { return false };

        self.next_fifo = (fifo + 1) % self.fifos;
        self.router.inject(fifo, Parcel::new(word.0, bytes, created.0), now).is_ok()
    }
}

impl Node for TrafficNode {
    fn turn(&mut self, links: &mut NodeLinks<'_>) -> Turn {
        let now = links.now();
        self.receive(now);
        let next = self.inject(now);
        let outcome = self.router.step(links, BUDGET);

        // A packet that waits for room in an injection FIFO needs no timer: when a packet leaves
        // the FIFO, an event of its link wakes the node.
        let has_arrivals = self.router.front(RECEPTION, now).is_some();
        Turn { wake: outcome.wake.min(next), has_more: outcome.has_more || has_arrivals }
    }

    fn arrive(&mut self, links: &mut NodeLinks<'_>, input: u8) -> bool {
        self.router.arrive(links, input)
    }

    #[inline(always)]
    fn prefetch(&self, arrived: u64, freed: u64) {
        self.router.prefetch(arrived, freed);
    }
}
