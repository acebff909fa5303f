//! A card's switch, from six links and the host to six links and the host.
//!
//! In: packets of this card ([`Switch::send`]) and packets that have arrived at the links. Out:
//! packets on links, and packets for this card ([`Switch::next_arrival`], [`Switch::take_packet`]).
//! Of a transit packet's header, the switch reads only the target node. A caller that sends many
//! packets to one target asks for the output channel once ([`Switch::output_channel`]). A caller
//! that receives many packets takes them together ([`Switch::take_run`]).
//!
//! A packet that can't leave waits in the queue of its output port and virtual channel, which holds
//! [`OUTPUT_QUEUE`] packets. There it does not block packets that leave elsewhere (a variant of
//! virtual output queuing, paper section III.A). When that queue is full, the packet stays in its
//! input buffer, and the link's credits stop the sender.
//!
//! A transit packet whose output is free leaves at once, over links that cut through when its head
//! has arrived. A packet without a free output stays in its input buffer until all of it is there.
//!
//! Packets between two nodes stay in order: they take one way, and a queue is emptied before its
//! inputs.

use std::{collections::VecDeque, sync::Arc};

use nicforge_core::fabric::{Arrivals, Packet, PortChannel, Ports};
use nicforge_hwi::extoll::LINKS;
use nicforge_kit::in_turn;

pub use crate::arrival::{Arrival, QUEUES};
use crate::{
    sharing::Sharing,
    topology::Route,
    wire::{CHANNELS, Class, LANES, Wire, channel},
};

/// Maximum number of packets that wait for an output port and virtual channel.
pub const OUTPUT_QUEUE: usize = 8;
/// Maximum number of packets of a class that wait from this card to itself.
pub const LOOPBACK_QUEUE: usize = 16;

/// Reasons why a packet was not taken; each returns the packet.
#[derive(Debug)]
pub enum Refused {
    /// There is no room now. A later step may make room.
    Full(Packet),
    /// No route leads to its target.
    NoRoute(Packet),
}

/// A card's switch.
pub struct Switch {
    node: u32,
    routes: Arc<[Route]>,
    /// Output queues by port, then virtual channel.
    output: [[VecDeque<Packet>; CHANNELS]; LINKS],
    /// Output queues that are not empty: for each virtual channel, one bit for each port.
    queued: [u8; CHANNELS],
    /// Packets from this card to itself, by class.
    loopback: [VecDeque<Packet>; Class::ALL.len()],
    /// The input whose transit packets are moved first; it advances by one in each step.
    first_input: u8,
    /// The input whose packets for this card are taken first; [`LINKS`] is the card itself.
    next_source: u8,
    sharing: Sharing,
    /// Transit packets moved so far.
    forwarded: u64,
    /// Packets taken from this card's own queues so far, by class.
    looped: [u64; Class::ALL.len()],
}

impl Switch {
    /// Builds a switch with a routing table of one entry for each node.
    pub fn new(node: u32, routes: Arc<[Route]>) -> Self {
        Self {
            node,
            routes,
            output: std::array::from_fn(|_| std::array::from_fn(|_| VecDeque::new())),
            queued: [0; CHANNELS],
            loopback: std::array::from_fn(|_| VecDeque::new()),
            first_input: 0,
            next_source: 0,
            sharing: Sharing::default(),
            forwarded: 0,
            looped: [0; Class::ALL.len()],
        }
    }

    /// Returns the route to a node.
    #[inline]
    pub fn route(&self, target: u32) -> Route {
        self.routes.get(target as usize).copied().unwrap_or_default()
    }

    /// Returns the number of packets that have passed through so far.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Sends a packet of this card. Its header is an encoded [`Wire`].
    ///
    /// # Errors
    /// [`Refused`], with the packet.
    #[inline]
    pub fn send(&mut self, ports: &mut Ports<'_>, packet: Packet) -> Result<(), Refused> {
        let wire = Wire::decode(packet.header);
        self.send_to(ports, wire.target.node, wire.kind.class(), packet)
    }

    /// As [`Switch::send`], for a caller that knows the target and class.
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
                    self.sharing.note_waiting_send(port, vc);
                    Refused::Full(packet)
                })
            }
            Route::Local => self.loop_back(class, packet).map_err(Refused::Full),
            Route::None => Err(Refused::NoRoute(packet)),
        }
    }

    /// Queues a packet for this card itself.
    fn loop_back(&mut self, class: Class, packet: Packet) -> Result<(), Packet> {
        let queue = &mut self.loopback[class as usize];
        if queue.len() >= LOOPBACK_QUEUE {
            return Err(packet);
        }

        // The first packet allocates, and none after it.
        queue.reserve_exact(LOOPBACK_QUEUE - queue.len());
        queue.push_back(packet);
        Ok(())
    }

    /// As [`Switch::send_to`], for a client's packet. It is refused if clients have used up their
    /// allowance for the output channel.
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

    /// Returns the number of packets that clients may send in this pass by an output channel from
    /// [`Switch::output_channel`]. The output channel's credits bound them further.
    #[inline]
    pub fn allowance(&mut self, ports: &Ports<'_>, (port, vc): (u8, usize)) -> u32 {
        self.sharing.allowance(port, vc, ports.credits(port, vc))
    }

    /// Records that clients have sent packets by an output channel.
    #[inline]
    pub fn spend(&mut self, (port, vc): (u8, usize), packets: u32) {
        self.sharing.spend(port, vc, packets);
    }

    /// Records that this card has a packet of a class for a node that must wait. Transit packets
    /// then leave room for it.
    pub fn note_waiting_send(&mut self, target: u32, class: Class) {
        if let Route::Port { port, lane } = self.route(target) {
            self.sharing.note_waiting_send(port, channel(class, lane));
        }
    }

    /// Returns the number of packets, of any sender, that have left by this card's output channel
    /// toward a node. While the number grows, a packet that waits for the channel will be served.
    pub fn departed(&self, ports: &Ports<'_>, target: u32, class: Class) -> u64 {
        match self.route(target) {
            Route::Port { port, lane } => ports.sent(port, channel(class, lane)).packets,
            Route::Local => self.looped[class as usize],
            Route::None => 0,
        }
    }

    /// Requests room for a packet of a class to a node. Returns whether the packet can be sent now,
    /// at least into the queue. If not, the caller counts as waiting for the output channel, and
    /// transit packets leave room. Without a route there is always room, because sending will fail
    /// for good.
    #[inline]
    pub fn request_room(&mut self, target: u32, class: Class) -> bool {
        self.request_output(target, class, |waiting, maximum| waiting < maximum)
    }

    /// Requests an output channel without waiting packets for a class. Returns whether no packet
    /// waits on it now. If not, the caller counts as waiting for the output channel. Bulk data are
    /// sent only by an output channel with an empty queue, so that the queue has room for small
    /// messages.
    #[inline]
    pub fn request_idle_output(&mut self, target: u32, class: Class) -> bool {
        self.request_output(target, class, |waiting, _| waiting == 0)
    }

    /// Returns whether a packet may be sent now: `is_short_enough` accepts the length of the output
    /// channel's queue, and its bound. If not, the output channel records that a packet waits for
    /// it.
    #[inline]
    fn request_output(
        &mut self,
        target: u32,
        class: Class,
        is_short_enough: impl Fn(usize, usize) -> bool,
    ) -> bool {
        let queue = self.queue_length_and_bound(target, class);
        let may_send = queue.is_none_or(|(length, bound)| is_short_enough(length, bound));
        if !may_send {
            self.note_waiting_send(target, class);
        }
        may_send
    }

    /// Returns the length and the bound of this card's queue toward a node, or `None` without a
    /// route.
    #[inline]
    fn queue_length_and_bound(&self, target: u32, class: Class) -> Option<(usize, usize)> {
        match self.route(target) {
            Route::Port { port, lane } => {
                Some((self.output[usize::from(port)][channel(class, lane)].len(), OUTPUT_QUEUE))
            }
            Route::Local => Some((self.loopback[class as usize].len(), LOOPBACK_QUEUE)),
            Route::None => None,
        }
    }

    /// Returns the port and virtual channel by which a packet to a node leaves at once, if the
    /// channel has a credit. Returns `None` if no port leads to the node, or if other packets wait
    /// for the output channel.
    #[inline]
    pub fn output_channel(&self, target: u32, class: Class) -> Option<(u8, usize)> {
        let Route::Port { port, lane } = self.route(target) else { return None };
        let vc = channel(class, lane);
        (self.queued[vc] & (1 << port) == 0).then_some((port, vc))
    }

    /// Sends a packet by an output channel, or puts it into the channel's queue. Returns the packet
    /// if the queue is full.
    #[inline]
    fn output(&mut self, ports: &mut Ports<'_>, port: u8, vc: usize, packet: Packet) -> Result<(), Packet> {
        if self.queued[vc] & (1 << port) != 0 {
            return self.queue(port, vc, packet);
        }
        match ports.send(port, vc, packet) {
            Ok(()) => Ok(()),
            Err(unsent) => self.queue(port, vc, unsent.packet),
        }
    }

    /// Puts a packet into the queue of an output channel. Returns the packet if the queue is full.
    fn queue(&mut self, port: u8, vc: usize, packet: Packet) -> Result<(), Packet> {
        let queue = &mut self.output[usize::from(port)][vc];
        if queue.len() >= OUTPUT_QUEUE {
            return Err(packet);
        }

        // The first packet allocates, and none after it.
        queue.reserve_exact(OUTPUT_QUEUE - queue.len());
        queue.push_back(packet);
        self.queued[vc] |= 1 << port;
        Ok(())
    }

    /// Returns whether there is no packet to move or to take, and none had to wait in the last
    /// step.
    #[inline]
    pub fn is_idle(&self, ports: &Ports<'_>) -> bool {
        !ports.has_arrivals(CHANNELS)
            && self.queued == [0; CHANNELS]
            && !self.sharing.has_waiting_transit()
            && self.loopback.iter().all(VecDeque::is_empty)
    }

    /// Moves queued packets and at most `budget` transit packets. Returns the number moved.
    pub fn step(&mut self, ports: &mut Ports<'_>, budget: u32) -> u32 {
        let mut moved = 0;
        self.sharing.begin_step();

        for vc in 0..CHANNELS {
            if self.queued[vc] != 0 {
                moved += self.drain(ports, vc);
            }
        }

        for vc in 0..CHANNELS {
            let mut arrived = (ports.arrived(vc) | ports.heads(vc)) & ((1 << LINKS) - 1);
            while let Some(input) = in_turn(arrived, self.first_input) {
                arrived &= !(1 << input);
                moved += self.pass(ports, input, vc, budget.saturating_sub(moved));
            }
        }

        self.sharing.end_step();
        self.first_input = if usize::from(self.first_input) + 1 == LINKS { 0 } else { self.first_input + 1 };
        moved
    }

    /// Sends the packets in the output queues of a virtual channel as far as there are credits.
    /// Returns their number.
    fn drain(&mut self, ports: &mut Ports<'_>, vc: usize) -> u32 {
        let mut moved = 0;
        for port in 0..LINKS as u8 {
            let queue = &mut self.output[usize::from(port)][vc];
            while ports.credits(port, vc) > 0
                && let Some(packet) = queue.pop_front()
            {
                match ports.send(port, vc, packet) {
                    Ok(()) => moved += 1,
                    Err(unsent) => {
                        queue.push_front(unsent.packet);
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

    /// Moves the first transit packets of an input, at most `budget`, until one is for this card or
    /// has to wait. Returns their number.
    fn pass(&mut self, ports: &mut Ports<'_>, input: u8, vc: usize, budget: u32) -> u32 {
        let mut moved = 0;
        while moved < budget {
            let head = ports.peek_head(input, vc);
            let Some(target) = head.map(|packet| Wire::target_of(packet.header)) else { break };
            if target == self.node {
                break;
            }

            let Route::Port { port, lane } = self.route(target) else {
                // Not reached with tables that were checked; the packet is dropped.
                let Some(packet) = ports.take(input, vc) else { break };
                ports.recycle(packet);
                continue;
            };

            // The class stays, the lane may change.
            let out = vc / LANES * LANES + usize::from(lane);
            let maximum = budget - moved;
            let passed = match self.pass_directly(ports, (input, vc), (port, out), target, maximum) {
                0 => self.pass_to_queue(ports, (input, vc), (port, out)),
                passed => passed,
            };

            if passed == 0 {
                self.sharing.note_waiting_transit(port, out);
                break;
            }
            self.sharing.note_forwarded(port, out);
            moved += passed;
        }

        self.forwarded += u64::from(moved);
        moved
    }

    /// Forwards the first packets of an input that go to one target, at most `maximum`, if no other
    /// packet waits for the output channel. Returns their number.
    fn pass_directly(
        &self,
        ports: &mut Ports<'_>,
        (input, vc): (u8, usize),
        (port, out): (u8, usize),
        target: u32,
        maximum: u32,
    ) -> u32 {
        if self.queued[out] & (1 << port) != 0 {
            return 0;
        }

        let (from, to) = (PortChannel { port: input, channel: vc }, PortChannel { port, channel: out });
        let has_target = |packet: &Packet| Wire::target_of(packet.header) == target;
        ports.forward_row_between(from, maximum, |_| Some((to, has_target))).map_or(0, |row| row.moved)
    }

    /// Moves the first packet of an input to the queue of its output channel, if all of it has
    /// arrived and it may wait there. Returns the number of packets moved, 0 or 1.
    fn pass_to_queue(
        &mut self,
        ports: &mut Ports<'_>,
        (input, vc): (u8, usize),
        (port, out): (u8, usize),
    ) -> u32 {
        let is_full = self.output[usize::from(port)][out].len() >= OUTPUT_QUEUE;
        if is_full || self.sharing.has_waiting_send(port, out) {
            return 0;
        }

        // There is no packet to take if only its head has arrived.
        let Some(packet) = ports.take(input, vc) else { return 0 };
        self.queue(port, out, packet).map_or_else(|packet| ports.recycle(packet), drop);
        1
    }

    /// Returns the position of the next packet of a class for this card; the packet stays in its
    /// buffer until [`Switch::take_packet`]. The sources, which are the links and this card itself,
    /// are served in turn. A source whose bit ([`Arrival::source`]) is set in `skip` is left out.
    #[inline]
    pub fn next_arrival(&mut self, ports: &Ports<'_>, class: Class, skip: u64) -> Option<Arrival> {
        let waiting = ports.arrived(channel(class, 0)) | ports.arrived(channel(class, 1));
        let loopback = u64::from(!self.loopback[class as usize].is_empty()) << LINKS;
        let mut sources = (waiting | loopback) & !skip;

        while let Some(source) = in_turn(sources, self.next_source) {
            sources &= !(1 << source);
            if let Some(arrival) = self.arrival_from(ports, class, source) {
                return Some(arrival);
            }
        }
        None
    }

    /// Returns the first packet of a class for this card at one input.
    #[inline]
    fn arrival_from(&self, ports: &Ports<'_>, class: Class, source: u8) -> Option<Arrival> {
        if usize::from(source) == LINKS {
            let header = self.loopback[class as usize].front()?.header;
            return Some(Arrival { input: None, class, wire: Wire::decode(header) });
        }

        (0..LANES as u8).find_map(|lane| {
            let header = ports.peek(source, channel(class, lane))?.header;
            let is_for_this_card = Wire::target_of(header) == self.node;
            is_for_this_card.then(|| Arrival {
                input: Some((source, lane)),
                class,
                wire: Wire::decode(header),
            })
        })
    }

    /// Returns the packet of an arrival without taking it.
    #[inline]
    pub fn peek_packet<'a>(&'a self, ports: &'a Ports<'_>, arrival: Arrival) -> Option<&'a Packet> {
        match arrival.input {
            None => self.loopback[arrival.class as usize].front(),
            Some((input, lane)) => ports.peek(input, channel(arrival.class, lane)),
        }
    }

    /// Takes the packet of an arrival.
    #[inline]
    pub fn take_packet(&mut self, ports: &mut Ports<'_>, arrival: Arrival) -> Option<Packet> {
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

    /// Returns a run of packets from an arrival on, of the same link and lane, at most `limit`.
    /// Other inputs are not examined in between. Returns `None` for a packet of this card itself.
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
