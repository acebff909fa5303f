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
    sharing::Sharing,
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
    sharing: Sharing,
    forwarded: u64,
    /// Packets that were taken of those from this card to itself, by class.
    looped: [u64; Class::ALL.len()],
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
            sharing: Sharing::default(),
            forwarded: 0,
            looped: [0; Class::ALL.len()],
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
                let vc = channel(class, lane);
                self.output(ports, port, vc, packet).map_err(|packet| {
                    self.sharing.want(port, vc);
                    Refused::Full(packet)
                })
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

    /// As [`Switch::send_to`], of a client: as long as clients leave what passes through its part of the way.
    ///
    /// # Errors
    /// [`Refused`], with the packet.
    pub fn send_for_client(
        &mut self,
        ports: &mut Ports<'_>,
        target: u32,
        class: Class,
        packet: Packet,
    ) -> Result<(), Refused> {
        let Route::Port { port, lane } = self.route(target) else {
            return self.send_to(ports, target, class, packet);
        };
        let vc = channel(class, lane);
        if self.sharing.allowance(port, vc, ports.credits(port, vc)) == 0 {
            return Err(Refused::Full(packet));
        }
        self.send_to(ports, target, class, packet)?;
        self.sharing.spend(port, vc, 1);
        Ok(())
    }

    /// Packets that clients may send in this turn by a way out, as [`Switch::way_out`] gives it, if it has the credits.
    #[inline]
    pub fn allowance(&mut self, ports: &Ports<'_>, (port, vc): (u8, usize)) -> u32 {
        self.sharing.allowance(port, vc, ports.credits(port, vc))
    }

    /// Clients have sent packets by a way out.
    #[inline]
    pub fn spend(&mut self, (port, vc): (u8, usize), packets: u32) {
        self.sharing.spend(port, vc, packets);
    }

    /// Something of a class waits here for the way to a node: what passes through leaves room.
    pub fn want(&mut self, target: u32, class: Class) {
        if let Route::Port { port, lane } = self.route(target) {
            self.sharing.want(port, channel(class, lane));
        }
    }

    /// Packets that have left by the first way to a node, port and virtual channel, whoever sent them. As long as it counts up, who waits there has
    /// its turn.
    pub fn departed(&self, ports: &Ports<'_>, target: u32, class: Class) -> u64 {
        match self.route(target) {
            Route::Port { port, lane } => ports.sent(port, channel(class, lane)).packets,
            Route::Local => self.looped[class as usize],
            Route::None => 0,
        }
    }

    /// Whether a packet of a class can be sent to a node now, at least into the queue; who asks is taken to wait if not. Where no route leads there is
    /// always room: what is sent there is refused for good.
    #[inline]
    pub fn has_room(&mut self, target: u32, class: Class) -> bool {
        self.waits_for_fewer(target, class, |waiting, most| waiting < most)
    }

    /// Whether nothing of a class waits on the way to a node; who asks is taken to wait if not. Bulk data are sent only then, so that the queue is there
    /// for small messages.
    #[inline]
    pub fn is_idle(&mut self, target: u32, class: Class) -> bool {
        self.waits_for_fewer(target, class, |waiting, _| waiting == 0)
    }

    #[inline]
    fn waits_for_fewer(&mut self, target: u32, class: Class, few: impl Fn(usize, usize) -> bool) -> bool {
        let goes = self.waiting(target, class).is_none_or(|(waiting, most)| few(waiting, most));
        if !goes {
            self.want(target, class);
        }
        goes
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

    /// Whether there is nothing that could be moved or taken: no packet waits here, or did in the last step.
    #[inline]
    pub fn is_quiet(&self, ports: &Ports<'_>) -> bool {
        let arrived = ports.arrivals().iter().take(CHANNELS).fold(0, |all, arrived| all | arrived);
        arrived == 0
            && self.queued == [0; CHANNELS]
            && !self.sharing.is_crowded()
            && self.loopback.iter().all(VecDeque::is_empty)
    }

    /// Moves what waits and what passes through, at most `budget` packets. Returns how many.
    pub fn step(&mut self, ports: &mut Ports<'_>, budget: u32) -> u32 {
        let mut moved = 0;
        self.sharing.begin_step();
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
        self.sharing.end_step();
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
            let only_direct = self.sharing.is_wanted(port, out);
            if queued >= OUTPUT_QUEUE || only_direct && (queued > 0 || ports.credits(port, out) == 0) {
                self.sharing.crowd(port, out);
                break;
            }
            let Some(packet) = ports.take(input, vc) else { break };
            if let Err(packet) = self.output(ports, port, out, packet) {
                // There was room in the queue.
                ports.recycle(packet);
            }
            self.sharing.pass(port, out);
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
            None => {
                self.looped[arrival.class as usize] += 1;
                self.loopback[arrival.class as usize].pop_front()
            }
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
