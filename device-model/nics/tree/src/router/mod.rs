//! The router: takes packets from the links, the send FIFOs and the ALU to where they go.
//!
//! A packet with one target is moved when the target has room. One with several is taken out, copied to each target as it gets
//! room, and holds up its own source only. The two virtual channels share nothing that one could wait for.

mod collective;
mod news;

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::{
    tree::{Header, PORTS, VCS},
    tree_dcr::{pix, rcfg},
};

use crate::{
    alu,
    config::{CLASSES, ClassRoute, Route, Routes},
    fifo::{Channel, Head, Room},
    presence::{self, Presence},
};

/// Sources of packets at a node: ports 0 to 2, the send FIFO, the ALU.
const SOURCES: usize = 5;
/// The send FIFO as a source, and the receive FIFO as a target.
const LOCAL: usize = 3;
/// The ALU as a source.
const ALU: usize = 4;
/// Packets that a source moves in a row before the next has its turn.
const BURST: u32 = 8;
/// The target bit of the receive FIFO.
const TO_LOCAL: u8 = 1 << LOCAL;
/// The bits of all ports.
const ALL_PORTS: u8 = (1 << PORTS) - 1;

/// A packet on its way to several targets.
struct Held {
    packet: Packet,
    /// Targets left: ports, and [`TO_LOCAL`].
    targets: u8,
}

/// What a virtual channel's part of the router has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouterCounters {
    /// Packets taken out of the send FIFO.
    pub(crate) sent: u64,
    /// Packets put into the receive FIFO.
    pub(crate) received: u64,
    /// Packets sent through a port, the node's own included.
    pub(crate) forwarded: u64,
    /// Packets combined into another.
    pub(crate) combined: u64,
    /// Packets combined whose operation was not the others'.
    pub(crate) mismatched: u64,
    /// Times a source began to wait.
    pub(crate) stalls: u64,
    /// Packets discarded because their receiver is gone.
    pub(crate) sunk: u64,
    /// Packets without a route, discarded.
    pub(crate) no_target: u64,
    /// Presence symbols noted.
    pub(crate) presence: u64,
}

/// One try to move the packet that is first at a source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Moved,
    /// There is nothing.
    Empty,
    /// It has to wait.
    Blocked,
}

/// What the router works with for the time of a step.
pub(crate) struct Surroundings<'a, 'b> {
    pub(crate) channels: &'a mut [Channel; VCS],
    pub(crate) presence: &'a mut Presence,
    pub(crate) ports: &'a mut Ports<'b>,
    /// Whether the injection interface works.
    pub(crate) injecting: bool,
}

/// A node's router.
pub(crate) struct Router {
    address: u32,
    targets: Vec<Route>,
    pub(crate) classes: [ClassRoute; CLASSES],
    /// General configuration register.
    pub(crate) rcfg: u32,
    held: [[Option<Held>; SOURCES]; VCS],
    /// Sources for which something is held, a bit a source.
    held_mask: [u8; VCS],
    /// Which sources wait, a bit a source.
    blocked: [u8; VCS],
    /// Ports with a link.
    connected: u8,
    /// Whose turn is first.
    first: usize,
    /// Another look at the sources may find more in this step.
    again: bool,
    /// Something could not move for want of a packet from the pool; it is to be tried again soon.
    pub(crate) starved: bool,
    pub(crate) counters: [RouterCounters; VCS],
}

impl Router {
    pub(crate) fn new(address: u32, routes: &Routes) -> Self {
        Self {
            address,
            targets: routes.targets.clone(),
            classes: routes.classes,
            rcfg: 0,
            held: Default::default(),
            held_mask: [0; VCS],
            blocked: [0; VCS],
            connected: 0,
            first: 0,
            again: false,
            starved: false,
            counters: [RouterCounters::default(); VCS],
        }
    }

    /// Drops what is under way in this node: what is held, and what has arrived at its ports. Presence news are kept.
    pub(crate) fn clear(&mut self, around: &mut Surroundings<'_, '_>) {
        self.look_at_links(around.ports);
        for channel in 0..VCS {
            for source in 0..SOURCES {
                if let Some(held) = self.held[channel][source].take() {
                    around.ports.recycle(held.packet);
                    self.counters[channel].sunk += 1;
                }
            }
            for port in 0..PORTS {
                while let Some(packet) = around.ports.take(port as u8, channel) {
                    match presence::parse(packet.header) {
                        Some((node, word)) => self.learn(around, channel, node, word, Some(port)),
                        None => self.counters[channel].sunk += 1,
                    }
                    around.ports.recycle(packet);
                }
            }
        }
        self.blocked = [0; VCS];
        self.held_mask = [0; VCS];
    }

    /// Sources that wait, a bit a source: ports, send FIFO, ALU.
    pub(crate) fn blocked(&self, channel: usize) -> u8 {
        self.blocked[channel]
    }

    fn look_at_links(&mut self, ports: &Ports<'_>) {
        self.connected = ports.plugged() as u8 & ALL_PORTS;
    }

    /// Moves about `budget` packets. True when anything moved.
    pub(crate) fn run(&mut self, around: &mut Surroundings<'_, '_>, budget: u32) -> bool {
        if self.rcfg & rcfg::MAN != 0 {
            return false;
        }
        let mut left = budget.max(1);
        let mut moved_any = false;
        self.look_at_links(around.ports);
        loop {
            let (mut moved, mut active) = (0, 0);
            self.again = false;
            for channel in 0..VCS {
                if around.presence.ports_waiting[channel] != 0 {
                    for port in 0..PORTS {
                        self.flush_presence(around, channel, port);
                    }
                }
                let sources = self.active(around, channel);
                self.blocked[channel] &= sources;
                if sources == 0 {
                    continue;
                }
                active |= sources;
                // The sources from `first` on, then those before it.
                let later = 0xffu8 << self.first;
                for part in [sources & later, sources & !later] {
                    let mut part = part;
                    while part != 0 {
                        let source = part.trailing_zeros() as usize;
                        part &= part - 1;
                        moved += self.drain(around, channel, source, BURST.min(left));
                    }
                }
            }
            if active == 0 {
                return moved_any;
            }
            self.first = if self.first + 1 == SOURCES { 0 } else { self.first + 1 };
            moved_any |= moved > 0;
            left = left.saturating_sub(moved);
            if !self.again || left == 0 {
                return moved_any;
            }
        }
    }

    /// Sources that have something, a bit a source.
    #[inline]
    fn active(&self, around: &mut Surroundings<'_, '_>, channel: usize) -> u8 {
        let mut sources = (around.ports.arrived(channel) as u8 & ALL_PORTS) | self.held_mask[channel];
        if around.injecting && around.channels[channel].head() != Head::Empty {
            sources |= TO_LOCAL;
        }
        sources
    }

    /// Moves up to `limit` packets of a source. Whoever moved that many has perhaps more, and what the ALU did or was given may let others
    /// go on: both are worth another look ([`Router::again`]). Nothing else in a step of this node changes what a source finds.
    #[inline]
    fn drain(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, source: usize, limit: u32) -> u32 {
        let bit = 1u8 << source;
        let mut passed = 0;
        if source < PORTS && self.held_mask[channel] & bit == 0 {
            passed = self.pass_on(around, channel, source, limit);
            if passed > 0 {
                self.blocked[channel] &= !bit;
                if passed < limit && around.ports.arrived(channel) as u8 & bit == 0 {
                    return passed;
                }
            }
        }
        for moved in passed..limit {
            match self.advance(around, channel, source) {
                Move::Moved => self.blocked[channel] &= !bit,
                Move::Empty => return moved,
                Move::Blocked => {
                    if self.blocked[channel] & bit == 0 {
                        self.blocked[channel] |= bit;
                        self.counters[channel].stalls += 1;
                    }
                    return moved;
                }
            }
            self.again |= source == ALU || self.held_mask[channel] != 0;
        }
        self.again = true;
        limit
    }

    /// The common case by itself: moves point-to-point packets from port to port as long as nothing else comes up.
    #[inline]
    fn pass_on(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        channel: usize,
        source: usize,
        limit: u32,
    ) -> u32 {
        if self.rcfg != 0 || around.presence.ports_waiting[channel] != 0 {
            return 0;
        }
        let targets = self.targets.as_slice();
        let route = |packet: &Packet| {
            // The bits of a presence symbol and the lack of the point-to-point bit both end this.
            let header = Header(packet.header as u32);
            let plain = packet.header >> 32 == 0 && header.is_point_to_point();
            if plain { targets.get(header.node() as usize).copied() } else { None }
        };
        let Some(first) = around.ports.peek(source as u8, channel) else { return 0 };
        let first_header = first.header;
        let Some(Route::Port(port)) = route(first) else { return 0 };
        if self.connected & !(1 << source) & (1 << port) == 0 {
            return 0;
        }
        // A stream's packets are alike.
        let goes =
            |packet: &Packet| packet.header == first_header || route(packet) == Some(Route::Port(port));
        let moved = around.ports.forward_while(source as u8, port, channel, limit, goes);
        self.counters[channel].forwarded += u64::from(moved);
        moved
    }

    #[inline]
    fn advance(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, source: usize) -> Move {
        if self.held_mask[channel] & (1 << source) != 0 {
            return self.advance_held(around, channel, source);
        }
        let header = if source < PORTS {
            if self.rcfg & (rcfg::SRC00 >> (4 * source + channel)) != 0 {
                return Move::Empty;
            }
            let Some(packet) = around.ports.peek(source as u8, channel) else { return Move::Empty };
            let header = packet.header;
            if let Some((node, word)) = presence::parse(header) {
                if let Some(packet) = around.ports.take(source as u8, channel) {
                    around.ports.recycle(packet);
                }
                self.learn(around, channel, node, word, Some(source));
                return Move::Moved;
            }
            Header(header as u32)
        } else if source == LOCAL && around.injecting {
            match around.channels[channel].head() {
                Head::Empty => return Move::Empty,
                Head::Packet(header) => header,
                Head::Presence { core, generation } => {
                    around.channels[channel].take_presence();
                    let word = around.presence.with_core(channel, self.address, core, generation);
                    self.learn(around, channel, self.address, word, None);
                    return Move::Moved;
                }
            }
        } else {
            return Move::Empty;
        };
        if header.is_point_to_point() {
            let target = match self.targets.get(header.node() as usize) {
                Some(Route::Local) => TO_LOCAL,
                Some(Route::Port(port)) => 1 << *port,
                Some(Route::None) | None => 0,
            };
            return self.send(around, channel, source, header, target);
        }
        let route = self.classes[header.class() as usize];
        if !self.goes_up(route, source) {
            // Down, or nowhere.
            let down = source < PORTS && route.up() & (1 << source) != 0;
            let targets = if down { down_targets(route) } else { 0 };
            return self.send(around, channel, source, header, targets);
        }
        if alu::combines(header.opcode()) {
            self.combine(around, channel, route, header)
        } else {
            self.send(around, channel, source, header, up_targets(route))
        }
    }

    fn goes_up(&self, route: ClassRoute, source: usize) -> bool {
        if source == LOCAL { route.sends() } else { route.children() & (1 << source) != 0 }
    }

    /// Sends the packet that is first at a source to its targets.
    #[inline]
    fn send(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        channel: usize,
        source: usize,
        header: Header,
        targets: u8,
    ) -> Move {
        // A link that is not there, or the one it came through, is no way for a point-to-point packet; a class turns round.
        let back = if source < PORTS && header.is_point_to_point() { 1 << source } else { 0 };
        let targets = targets & (self.connected | TO_LOCAL) & !back;
        if targets == 0 {
            return self.discard(around, channel, source);
        }
        if targets & (targets - 1) != 0 {
            let Some(packet) = self.take(around, channel, source) else { return Move::Blocked };
            self.hold(channel, source, Held { packet, targets });
            let _ = self.advance_held(around, channel, source);
            return Move::Moved;
        }
        if targets == TO_LOCAL {
            return match around.channels[channel].room(header) {
                Room::No => Move::Blocked,
                room => {
                    let Some(packet) = self.take(around, channel, source) else { return Move::Blocked };
                    self.deliver(around, channel, &packet, room);
                    around.ports.recycle(packet);
                    Move::Moved
                }
            };
        }
        let port = targets.trailing_zeros() as usize;
        if !self.port_open(around, channel, port) {
            return Move::Blocked;
        }
        if source < PORTS {
            if !around.ports.forward(source as u8, port as u8, channel) {
                return Move::Blocked;
            }
            self.counters[channel].forwarded += 1;
            return Move::Moved;
        }
        if !around.ports.ready(port as u8, channel) {
            return Move::Blocked;
        }
        let Some(packet) = self.take(around, channel, source) else { return Move::Blocked };
        self.transmit(around, channel, port, packet);
        Move::Moved
    }

    /// Takes the packet that is first at a port or in the send FIFO.
    #[inline]
    fn take(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, source: usize) -> Option<Packet> {
        if source < PORTS {
            around.ports.take(source as u8, channel)
        } else {
            let packet = around.channels[channel].take(around.ports);
            match &packet {
                Some(_) => self.counters[channel].sent += 1,
                None => self.starved = true,
            }
            packet
        }
    }

    #[inline]
    fn deliver(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, packet: &Packet, room: Room) {
        if room == Room::Yes {
            around.channels[channel].deliver(Header(packet.header as u32), packet.bytes());
            self.counters[channel].received += 1;
        } else {
            self.counters[channel].sunk += 1;
        }
    }

    #[inline]
    fn transmit(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, port: usize, packet: Packet) {
        match around.ports.send(port as u8, channel, packet) {
            Ok(()) => self.counters[channel].forwarded += 1,
            Err(packet) => around.ports.recycle(packet),
        }
    }

    /// Whether a packet can go out of a port now.
    fn port_ready(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, port: usize) -> bool {
        self.port_open(around, channel, port) && around.ports.ready(port as u8, channel)
    }

    /// Whether nothing but credits can keep a packet from going out of a port; presence symbols that wait there go first.
    #[inline]
    fn port_open(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, port: usize) -> bool {
        if around.presence.ports_waiting[channel] & (1 << port) != 0
            && !self.flush_presence(around, channel, port)
        {
            return false;
        }
        self.rcfg & (rcfg::TGT00 >> (4 * port + channel)) == 0
    }

    fn discard(&mut self, around: &mut Surroundings<'_, '_>, channel: usize, source: usize) -> Move {
        let Some(packet) = self.take(around, channel, source) else { return Move::Blocked };
        around.ports.recycle(packet);
        self.counters[channel].no_target += 1;
        if source == LOCAL {
            around.channels[channel].inject_error(pix::ADDR0);
        }
        Move::Moved
    }
}

/// Where the packets of a class go on their way up: up, or down again at the root.
fn up_targets(route: ClassRoute) -> u8 {
    if route.up() != 0 { route.up() } else { down_targets(route) }
}

fn down_targets(route: ClassRoute) -> u8 {
    route.children() | if route.receives() { TO_LOCAL } else { 0 }
}
