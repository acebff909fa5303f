//! One card's switch: from six links and the host to six links and the host.
//!
//! In: packets of this card ([`Switch::send`]) and those that have arrived at the links. Out: packets on links, and what is for this card
//! ([`Switch::arrived`], [`Switch::take`]). It looks at the target node of a header and at nothing else. Who sends or takes many in a row asks
//! for the way only ([`Switch::way_out`], [`Switch::take_run`]).
//!
//! A packet that cannot leave waits in the queue of its output port and virtual channel, [`OUTPUT_QUEUE`] packets long, so that it does not stand
//! in the way of those behind it that leave elsewhere (a variant of virtual output queuing, paper section III.A). When that queue is full it stays in
//! its input buffer, and the link's credits stop who sends. The order between two nodes is kept: they use one way, and a queue is left before
//! its inputs.

use std::collections::VecDeque;

use nicforge_core::fabric::{Arrivals, Packet, Ports};
use nicforge_hwi::extoll::LINKS;

use crate::{
    topology::Route,
    wire::{CHANNELS, Class, LANES, Wire, channel},
};

/// Packets that wait for an output port and virtual channel at most.
pub const OUTPUT_QUEUE: usize = 8;
/// Packets of a class from this card to itself that wait at most.
pub const LOOPBACK_QUEUE: usize = 16;

/// Why a packet was not taken.
#[derive(Debug)]
pub enum Refused {
    /// There is no room now; the switch's step may make some.
    Full(Packet),
    /// No route leads to its target.
    NoRoute(Packet),
}

/// Where a packet for this card waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// `None`: it came from this card itself.
    input: Option<(u8, u8)>,
    class: Class,
    /// What it is.
    pub wire: Wire,
}

impl Arrival {
    /// The input it waits at: a link, or [`LINKS`] for this card itself.
    #[inline]
    pub fn source(self) -> u8 {
        self.input.map_or(LINKS as u8, |(input, _)| input)
    }

    /// The queue that it is in front of, among all for this card: 0 to [`QUEUES`], less one.
    #[inline]
    pub fn queue(self) -> usize {
        let (source, lane) = self.input.map_or((LINKS, 0), |(input, lane)| (usize::from(input), lane));
        (self.class as usize * (LINKS + 1) + source) * LANES + usize::from(lane)
    }
}

/// Queues at which packets for a card arrive.
pub const QUEUES: usize = Class::ALL.len() * (LINKS + 1) * LANES;

/// A card's switch.
pub struct Switch {
    node: u32,
    routes: Vec<Route>,
    /// By port, then virtual channel.
    output: [[VecDeque<Packet>; CHANNELS]; LINKS],
    /// Output queues that are not empty, a bit a port, by virtual channel.
    queued: [u8; CHANNELS],
    /// By class.
    loopback: [VecDeque<Packet>; Class::ALL.len()],
    /// The input that is looked at first: it goes round.
    first: u8,
    /// The input whose packets for this card are looked at first; [`LINKS`] is the card itself.
    next_source: u8,
    forwarded: u64,
}

impl Switch {
    /// A switch with a table, an entry a node.
    pub fn new(node: u32, routes: Vec<Route>) -> Self {
        Self {
            node,
            routes,
            output: std::array::from_fn(|_| std::array::from_fn(|_| VecDeque::with_capacity(OUTPUT_QUEUE))),
            queued: [0; CHANNELS],
            loopback: std::array::from_fn(|_| VecDeque::with_capacity(LOOPBACK_QUEUE)),
            first: 0,
            next_source: 0,
            forwarded: 0,
        }
    }

    /// The route to a node.
    #[inline]
    pub fn route(&self, target: u32) -> Route {
        self.routes.get(target as usize).copied().unwrap_or_default()
    }

    /// Packets that only passed through so far.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Sends a packet of this card, whose header is a [`Wire`].
    ///
    /// # Errors
    /// [`Refused`], with the packet.
    #[inline]
    pub fn send(&mut self, ports: &mut Ports<'_>, packet: Packet) -> Result<(), Refused> {
        let wire = Wire::decode(packet.header);
        self.send_to(ports, wire.target, wire.kind.class(), packet)
    }

    /// As [`Switch::send`], for who knows what the header says.
    ///
    /// # Errors
    /// [`Refused`], with the packet.
    #[inline]
    pub fn send_to(
        &mut self,
        ports: &mut Ports<'_>,
        target: u32,
        class: Class,
        packet: Packet,
    ) -> Result<(), Refused> {
        match self.route(target) {
            Route::Port { port, lane } => {
                self.output(ports, port, channel(class, lane), packet).map_err(Refused::Full)
            }
            Route::Local => {
                let queue = &mut self.loopback[class as usize];
                if queue.len() >= LOOPBACK_QUEUE {
                    return Err(Refused::Full(packet));
                }
                queue.push_back(packet);
                Ok(())
            }
            Route::None => Err(Refused::NoRoute(packet)),
        }
    }

    /// Whether a packet of a class can be sent to a node now, at least into the queue. Where no route leads there is always room: what is sent
    /// there is refused for good.
    #[inline]
    pub fn has_room(&self, target: u32, class: Class) -> bool {
        self.waiting(target, class).is_none_or(|(waiting, most)| waiting < most)
    }

    /// Whether nothing of a class waits on the way to a node. Bulk data are sent only then, so that the queue is there for small messages.
    #[inline]
    pub fn is_idle(&self, target: u32, class: Class) -> bool {
        self.waiting(target, class).is_none_or(|(waiting, _)| waiting == 0)
    }

    /// Packets that wait in the first queue on the way to a node, and how many can.
    #[inline]
    fn waiting(&self, target: u32, class: Class) -> Option<(usize, usize)> {
        match self.route(target) {
            Route::Port { port, lane } => {
                Some((self.output[usize::from(port)][channel(class, lane)].len(), OUTPUT_QUEUE))
            }
            Route::Local => Some((self.loopback[class as usize].len(), LOOPBACK_QUEUE)),
            Route::None => None,
        }
    }

    /// The number of the way to a node: its port, or [`LINKS`] for this card itself. `None` where no route leads.
    #[inline]
    pub fn way_index(&self, target: u32) -> Option<usize> {
        match self.route(target) {
            Route::Port { port, .. } => Some(port.into()),
            Route::Local => Some(LINKS),
            Route::None => None,
        }
    }

    /// Where a packet to a node leaves at once, if it has a credit: the port and the virtual channel. `None` when it does not leave by a port, or
    /// others wait for it.
    #[inline]
    pub fn way_out(&self, target: u32, class: Class) -> Option<(u8, usize)> {
        let Route::Port { port, lane } = self.route(target) else { return None };
        let vc = channel(class, lane);
        (self.queued[vc] & (1 << port) == 0).then_some((port, vc))
    }

    /// Puts a packet out of a port, or in its queue.
    #[inline]
    fn output(&mut self, ports: &mut Ports<'_>, port: u8, vc: usize, packet: Packet) -> Result<(), Packet> {
        if self.queued[vc] & (1 << port) != 0 {
            return self.queue(port, vc, packet);
        }
        match ports.send(port, vc, packet) {
            Ok(()) => Ok(()),
            Err(packet) => self.queue(port, vc, packet),
        }
    }

    /// Puts a packet in the queue of a port.
    fn queue(&mut self, port: u8, vc: usize, packet: Packet) -> Result<(), Packet> {
        let queue = &mut self.output[usize::from(port)][vc];
        if queue.len() >= OUTPUT_QUEUE {
            return Err(packet);
        }
        queue.push_back(packet);
        self.queued[vc] |= 1 << port;
        Ok(())
    }

    /// Whether there is nothing that could be moved or taken: no packet waits here.
    #[inline]
    pub fn is_quiet(&self, ports: &Ports<'_>) -> bool {
        let arrived = ports.arrivals().iter().take(CHANNELS).fold(0, |all, arrived| all | arrived);
        arrived == 0 && self.queued == [0; CHANNELS] && self.loopback.iter().all(VecDeque::is_empty)
    }

    /// Moves what waits and what passes through, at most `budget` packets. Returns how many.
    pub fn step(&mut self, ports: &mut Ports<'_>, budget: u32) -> u32 {
        let mut moved = 0;
        for vc in 0..CHANNELS {
            if self.queued[vc] != 0 {
                moved += self.drain(ports, vc);
            }
        }
        for vc in 0..CHANNELS {
            let mut arrived = ports.arrived(vc) & ((1 << LINKS) - 1);
            while arrived != 0 {
                // Those from the first one on, then the others.
                let ahead = arrived & (u64::MAX << self.first);
                let input = if ahead != 0 { ahead } else { arrived }.trailing_zeros() as u8;
                arrived &= !(1 << input);
                moved += self.pass(ports, input, vc, budget.saturating_sub(moved));
            }
        }
        self.first = if usize::from(self.first) + 1 == LINKS { 0 } else { self.first + 1 };
        moved
    }

    /// Sends what waits in the output queues of a virtual channel, as far as there are credits.
    fn drain(&mut self, ports: &mut Ports<'_>, vc: usize) -> u32 {
        let mut moved = 0;
        for port in 0..LINKS as u8 {
            let queue = &mut self.output[usize::from(port)][vc];
            while ports.credits(port, vc) > 0
                && let Some(packet) = queue.pop_front()
            {
                match ports.send(port, vc, packet) {
                    Ok(()) => moved += 1,
                    Err(packet) => {
                        queue.push_front(packet);
                        break;
                    }
                }
            }
            if queue.is_empty() {
                self.queued[vc] &= !(1 << port);
            }
        }
        moved
    }

    /// Sends on what arrived at an input and is for others, until one is for this card or has to wait.
    fn pass(&mut self, ports: &mut Ports<'_>, input: u8, vc: usize, budget: u32) -> u32 {
        let mut moved = 0;
        while moved < budget {
            let Some(target) = ports.peek(input, vc).map(|packet| Wire::target_of(packet.header)) else {
                break;
            };
            if target == self.node {
                break;
            }
            let Route::Port { port, lane } = self.route(target) else {
                // No card with a checked table sends such a packet.
                if let Some(packet) = ports.take(input, vc) {
                    ports.recycle(packet);
                }
                continue;
            };
            // The class stays, the lane may change.
            let out = vc / LANES * LANES + usize::from(lane);
            let queued = self.output[usize::from(port)][out].len();
            if queued >= OUTPUT_QUEUE {
                break;
            }
            let Some(packet) = ports.take(input, vc) else { break };
            if let Err(packet) = self.output(ports, port, out, packet) {
                // There was room in the queue.
                ports.recycle(packet);
            }
            moved += 1;
        }
        self.forwarded += u64::from(moved);
        moved
    }

    /// The next packet of a class for this card, if there is one. It stays where it is, and its buffer with it, until [`Switch::take`]. Inputs, and
    /// this card itself, take turns; those of which a bit is set in `skip` ([`Arrival::source`]) are left out.
    #[inline]
    pub fn arrived(&mut self, ports: &Ports<'_>, class: Class, skip: u64) -> Option<Arrival> {
        let waiting = ports.arrived(channel(class, 0)) | ports.arrived(channel(class, 1));
        let own = u64::from(!self.loopback[class as usize].is_empty()) << LINKS;
        let mut sources = (waiting | own) & !skip;
        while sources != 0 {
            // Those from the next one on first.
            let ahead = sources & (u64::MAX << self.next_source);
            let source = if ahead != 0 { ahead } else { sources }.trailing_zeros() as u8;
            sources &= !(1 << source);
            if let Some(arrival) = self.arrived_from(ports, class, source) {
                return Some(arrival);
            }
        }
        None
    }

    #[inline]
    fn arrived_from(&self, ports: &Ports<'_>, class: Class, source: u8) -> Option<Arrival> {
        if usize::from(source) == LINKS {
            let header = self.loopback[class as usize].front()?.header;
            return Some(Arrival { input: None, class, wire: Wire::decode(header) });
        }
        (0..LANES as u8).find_map(|lane| {
            let header = ports.peek(source, channel(class, lane))?.header;
            let here = Wire::target_of(header) == self.node;
            here.then(|| Arrival { input: Some((source, lane)), class, wire: Wire::decode(header) })
        })
    }

    /// The packet of an arrival, to be looked at.
    #[inline]
    pub fn peek<'a>(&'a self, ports: &'a Ports<'_>, arrival: Arrival) -> Option<&'a Packet> {
        match arrival.input {
            None => self.loopback[arrival.class as usize].front(),
            Some((input, lane)) => ports.peek(input, channel(arrival.class, lane)),
        }
    }

    /// The packet of an arrival.
    #[inline]
    pub fn take(&mut self, ports: &mut Ports<'_>, arrival: Arrival) -> Option<Packet> {
        let source = arrival.input.map_or(LINKS as u8, |(input, _)| input);
        self.next_source = (source + 1) % (LINKS as u8 + 1);
        match arrival.input {
            None => self.loopback[arrival.class as usize].pop_front(),
            Some((input, lane)) => ports.take(input, channel(arrival.class, lane)),
        }
    }

    /// The packets of the link and lane of an arrival, from it on, at most `limit`: those that come in a row are taken without looking at
    /// everybody else each time. `None` of what came from this card itself.
    #[inline]
    pub fn take_run<'a>(
        &mut self,
        ports: &'a mut Ports<'_>,
        arrival: Arrival,
        limit: u32,
    ) -> Option<Arrivals<'a>> {
        let (input, lane) = arrival.input?;
        self.next_source = (input + 1) % (LINKS as u8 + 1);
        ports.take_run(input, channel(arrival.class, lane), limit)
    }
}
