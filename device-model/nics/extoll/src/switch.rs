//! A card's switch, from six links and the host to six links and the host.
//!
//! In: packets of this card ([`Switch::send_to`]) and packets that have arrived at the links. Out:
//! packets on links, and packets for this card ([`Switch::next_arrival`], [`Switch::take_packet`]).
//! Of a transit packet's header, the switch reads only the target node.
//!
//! A packet that can't leave waits in the queue of its output port and virtual channel, which holds
//! [`OUTPUT_QUEUE`] packets. There it does not block packets that leave elsewhere (a variant of
//! virtual output queuing, the EXTOLL paper's section III.A). When that queue is full, the packet
//! stays in its input buffer, and the link's credits stop the sender.
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
    arrival::InputLane,
    packet::{CHANNELS, LANES, PacketHeader, TrafficClass, channel},
    sharing::Sharing,
    topology::Route,
};

/// Maximum number of packets that wait for an output port and virtual channel.
pub const OUTPUT_QUEUE: usize = 8;
/// Maximum number of packets of a class that wait from this card to itself.
pub const LOOPBACK_QUEUE: usize = 16;

/// The length of an output queue or of the loopback queue, and its maximum.
#[derive(Clone, Copy)]
struct QueueFill {
    length: usize,
    maximum: usize,
}

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
    loopback: [VecDeque<Packet>; TrafficClass::ALL.len()],
    /// The input whose transit packets are moved first; it advances by one in each step.
    first_input: u8,
    /// The input whose packets for this card are taken first; [`LINKS`] is the card itself.
    next_source: u8,
    /// Arbitration between this card's packets and transit packets.
    sharing: Sharing,
    /// Transit packets moved so far.
    forwarded: u64,
    /// Packets taken from the loopback queues so far, by class.
    looped_back: [u64; TrafficClass::ALL.len()],
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
            looped_back: [0; TrafficClass::ALL.len()],
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

    /// Sends a packet of this card to the node `target`. Its header is an encoded [`PacketHeader`]
    /// with this target, and a kind of this class.
    ///
    /// # Errors
    /// [`Refused`], with the packet.
    #[inline]
    pub fn send_to(
        &mut self,
        ports: &mut Ports<'_>,
        target: u32,
        class: TrafficClass,
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
    fn loop_back(&mut self, class: TrafficClass, packet: Packet) -> Result<(), Packet> {
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
        class: TrafficClass,
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
    pub fn allowance(&mut self, ports: &Ports<'_>, output: PortChannel) -> u32 {
        let PortChannel { port, channel: vc } = output;
        self.sharing.allowance(port, vc, ports.credits(port, vc))
    }

    /// Records that clients have sent packets by an output channel.
    #[inline]
    pub fn spend(&mut self, output: PortChannel, packets: u32) {
        self.sharing.spend(output.port, output.channel, packets);
    }

    /// Records that this card has a packet of a class for a node that must wait. Transit packets
    /// then leave room for it.
    pub fn note_waiting_send(&mut self, target: u32, class: TrafficClass) {
        if let Route::Port { port, lane } = self.route(target) {
            self.sharing.note_waiting_send(port, channel(class, lane));
        }
    }

    /// Returns the number of packets, of any sender, that have left by this card's output channel
    /// toward a node. While the number grows, a packet that waits for the channel will be served.
    pub fn departed(&self, ports: &Ports<'_>, target: u32, class: TrafficClass) -> u64 {
        match self.route(target) {
            Route::Port { port, lane } => ports.sent(port, channel(class, lane)).packets,
            Route::Local => self.looped_back[class as usize],
            Route::None => 0,
        }
    }

    /// Requests room for a packet of a class to a node. Returns whether the packet can be sent now,
    /// at least into the queue. If not, the caller counts as waiting for the output channel, and
    /// transit packets leave room. Returns true without a route: sending then fails for good.
    #[inline]
    pub fn request_room(&mut self, target: u32, class: TrafficClass) -> bool {
        self.request_output(target, class, |queue| queue.length < queue.maximum)
    }

    /// Requests an output channel without waiting packets for a class. Returns whether no packet
    /// waits on it now. If not, the caller counts as waiting for the output channel. Bulk data are
    /// sent only by an output channel with an empty queue, so that the queue has room for small
    /// messages.
    #[inline]
    pub fn request_idle_output(&mut self, target: u32, class: TrafficClass) -> bool {
        self.request_output(target, class, |queue| queue.length == 0)
    }

    /// Returns whether `is_short_enough` accepts the fill of this card's queue toward a node, so
    /// that a packet may be sent now. If not, records that a packet of this card waits for the
    /// output channel.
    #[inline]
    fn request_output(
        &mut self,
        target: u32,
        class: TrafficClass,
        is_short_enough: impl Fn(QueueFill) -> bool,
    ) -> bool {
        let may_send = self.queue_fill(target, class).is_none_or(is_short_enough);
        if !may_send {
            self.note_waiting_send(target, class);
        }
        may_send
    }

    /// Returns the fill of this card's queue toward a node, or `None` without a route.
    #[inline]
    fn queue_fill(&self, target: u32, class: TrafficClass) -> Option<QueueFill> {
        match self.route(target) {
            Route::Port { port, lane } => {
                let length = self.output[usize::from(port)][channel(class, lane)].len();
                Some(QueueFill { length, maximum: OUTPUT_QUEUE })
            }
            Route::Local => {
                Some(QueueFill { length: self.loopback[class as usize].len(), maximum: LOOPBACK_QUEUE })
            }
            Route::None => None,
        }
    }

    /// Returns the output channel by which a packet to a node leaves at once, if the channel has a
    /// credit. Returns `None` if no port leads to the node, or if other packets wait for the output
    /// channel.
    #[inline]
    pub fn output_channel(&self, target: u32, class: TrafficClass) -> Option<PortChannel> {
        let Route::Port { port, lane } = self.route(target) else { return None };
        let channel = channel(class, lane);
        (self.queued[channel] & (1 << port) == 0).then_some(PortChannel { port, channel })
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
                let from = PortChannel { port: input, channel: vc };
                moved += self.forward_transit(ports, from, budget.saturating_sub(moved));
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

    /// Moves the first transit packets of the input `from`, at most `budget`, until one is for this
    /// card or has to wait. Returns their number.
    fn forward_transit(&mut self, ports: &mut Ports<'_>, from: PortChannel, budget: u32) -> u32 {
        let mut moved = 0;
        while moved < budget {
            let head = ports.peek_head(from.port, from.channel);
            let Some(target) = head.map(|packet| PacketHeader::target_of(packet.header)) else { break };
            if target == self.node {
                break;
            }

            let Route::Port { port, lane } = self.route(target) else {
                // Not reached with tables that were checked; the packet is dropped.
                let Some(packet) = ports.take(from.port, from.channel) else { break };
                ports.recycle(packet);
                continue;
            };

            // A packet keeps its class, whose lanes are adjacent channels, and may change the lane.
            let first_of_class = from.channel / LANES * LANES;
            let to = PortChannel { port, channel: first_of_class + usize::from(lane) };
            let maximum = budget - moved;
            let forwarded = match self.forward_directly(ports, from, to, target, maximum) {
                0 => self.move_to_output_queue(ports, from, to),
                forwarded => forwarded,
            };

            if forwarded == 0 {
                self.sharing.note_waiting_transit(to.port, to.channel);
                break;
            }
            self.sharing.note_forwarded(to.port, to.channel);
            moved += forwarded;
        }

        self.forwarded += u64::from(moved);
        moved
    }

    /// Forwards the first packets of the input `from` that go to `target`, at most `maximum`, by
    /// the output channel `to`, if no other packet waits for it. Returns their number.
    fn forward_directly(
        &self,
        ports: &mut Ports<'_>,
        from: PortChannel,
        to: PortChannel,
        target: u32,
        maximum: u32,
    ) -> u32 {
        if self.queued[to.channel] & (1 << to.port) != 0 {
            return 0;
        }

        let has_target = |packet: &Packet| PacketHeader::target_of(packet.header) == target;
        ports.forward_row_between(from, maximum, |_| Some((to, has_target))).map_or(0, |row| row.moved)
    }

    /// Moves the first packet of the input `from` to the queue of its output channel `to`, if all
    /// of it has arrived and it may wait there. Returns the number of packets moved, 0 or 1.
    fn move_to_output_queue(&mut self, ports: &mut Ports<'_>, from: PortChannel, to: PortChannel) -> u32 {
        let is_full = self.output[usize::from(to.port)][to.channel].len() >= OUTPUT_QUEUE;
        if is_full || self.sharing.has_waiting_send(to.port, to.channel) {
            return 0;
        }

        // There is no packet to take if only its head has arrived.
        let Some(packet) = ports.take(from.port, from.channel) else { return 0 };
        self.queue(to.port, to.channel, packet).map_or_else(|packet| ports.recycle(packet), drop);
        1
    }

    /// Returns the position of the next packet of a class for this card; the packet stays in its
    /// buffer until [`Switch::take_packet`]. The sources, which are the links and this card itself,
    /// are served in turn. A source whose bit ([`Arrival::source`]) is set in `skip` is left out.
    #[inline]
    pub fn next_arrival(&mut self, ports: &Ports<'_>, class: TrafficClass, skip: u64) -> Option<Arrival> {
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
    fn arrival_from(&self, ports: &Ports<'_>, class: TrafficClass, source: u8) -> Option<Arrival> {
        if usize::from(source) == LINKS {
            let encoded = self.loopback[class as usize].front()?.header;
            return Some(Arrival { input: None, class, header: PacketHeader::decode(encoded) });
        }

        (0..LANES as u8).find_map(|lane| {
            let encoded = ports.peek(source, channel(class, lane))?.header;
            let is_for_this_card = PacketHeader::target_of(encoded) == self.node;
            is_for_this_card.then(|| Arrival {
                input: Some(InputLane { link: source, lane }),
                class,
                header: PacketHeader::decode(encoded),
            })
        })
    }

    /// Returns the packet of an arrival without taking it.
    #[inline]
    pub fn peek_packet<'a>(&'a self, ports: &'a Ports<'_>, arrival: Arrival) -> Option<&'a Packet> {
        match arrival.input {
            None => self.loopback[arrival.class as usize].front(),
            Some(InputLane { link, lane }) => ports.peek(link, channel(arrival.class, lane)),
        }
    }

    /// Takes the packet of an arrival.
    #[inline]
    pub fn take_packet(&mut self, ports: &mut Ports<'_>, arrival: Arrival) -> Option<Packet> {
        self.next_source = (arrival.source() + 1) % (LINKS as u8 + 1);

        match arrival.input {
            None => {
                self.looped_back[arrival.class as usize] += 1;
                self.loopback[arrival.class as usize].pop_front()
            }
            Some(InputLane { link, lane }) => ports.take(link, channel(arrival.class, lane)),
        }
    }

    /// Returns up to `limit` packets from an arrival on, all of the same link and lane, which the
    /// caller takes one after another. Returns `None` for a packet of this card itself.
    #[inline]
    pub fn take_run<'a>(
        &mut self,
        ports: &'a mut Ports<'_>,
        arrival: Arrival,
        limit: u32,
    ) -> Option<Arrivals<'a>> {
        let InputLane { link, lane } = arrival.input?;
        self.next_source = (link + 1) % (LINKS as u8 + 1);
        ports.take_run(link, channel(arrival.class, lane), limit)
    }
}
