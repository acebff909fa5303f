//! The router: moves packets from the links, the send FIFOs and the ALU to their targets.
//!
//! A packet with one target is moved when the target has room. A packet with several targets is
//! taken out and copied to each target as room becomes available; it holds up only its own source.
//! The two virtual channels share no resource that one could wait for.

mod collective;
mod row;
mod symbols;

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::{
    tree::{Header, PORTS, VC_SYSTEM, VC_USER, VCS},
    tree_dcr::{pix, rcfg},
};

use crate::{
    alu,
    config::{CLASSES, ClassRoute, Route, Routes},
    fifo::{Channel, Head, Room, RowEnd},
    presence::{self, Presence},
};

/// Sources of packets at a node: ports 0 to 2, the send FIFO, the ALU.
const SOURCES: usize = 5;
/// The send FIFO as a source, and the receive FIFO as a target.
const LOCAL: usize = 3;
/// The ALU as a source.
const ALU: usize = 4;
/// Packets that a source moves in a row before the next source is served.
const BURST: u32 = 8;
/// The target bit of the receive FIFO.
const TO_LOCAL: u8 = 1 << LOCAL;
/// The bits of all ports.
const ALL_PORTS: u8 = (1 << PORTS) - 1;

/// A packet that is being copied to several targets.
struct Held {
    packet: Packet,
    /// Remaining targets: ports, and [`TO_LOCAL`].
    targets: u8,
}

/// Counters of one virtual channel of the router.
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
    /// Packets combined whose operation differed from the others'.
    pub(crate) mismatched: u64,
    /// Times that a source began to wait.
    pub(crate) stalls: u64,
    /// Packets discarded because their receiver is gone.
    pub(crate) sunk: u64,
    /// Packets without a route, discarded.
    pub(crate) no_target: u64,
    /// Presence symbols noted.
    pub(crate) presence: u64,
}

/// The outcome of one attempt to move the first packet of a source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Moved,
    /// The source has no packet.
    Empty,
    /// The packet has to wait.
    Blocked,
}

/// The parts of the NIC that the router works on during a step.
pub(crate) struct RouterContext<'a, 'b> {
    pub(crate) channels: &'a mut [Channel; VCS],
    pub(crate) presence: &'a mut Presence,
    pub(crate) ports: &'a mut Ports<'b>,
    /// Whether the injection interface is enabled.
    pub(crate) injecting: bool,
}

/// A node's router.
pub(crate) struct Router {
    address: u32,
    /// Point-to-point routes, by target address.
    targets: Vec<Route>,
    /// Class routes.
    pub(crate) classes: [ClassRoute; CLASSES],
    /// General configuration register.
    pub(crate) rcfg: u32,
    /// Packets with several targets, by the source they came from.
    held: [[Option<Held>; SOURCES]; VCS],
    /// Sources that have a held packet, one bit for each source.
    held_mask: [u8; VCS],
    /// Sources that wait, one bit for each source.
    blocked: [u8; VCS],
    /// Ports with a link, one bit for each port.
    connected: u8,
    /// The source that is served first.
    first: usize,
    /// Whether another look at the sources may find more packets in this step.
    again: bool,
    /// Whether a packet could not move because the pool was empty. The device must retry soon.
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

    /// Drops the packets in this node: those held, and those that have arrived at its ports.
    /// Presence symbols are processed.
    pub(crate) fn clear(&mut self, context: &mut RouterContext<'_, '_>) {
        self.look_at_links(context.ports);

        for channel in 0..VCS {
            for source in 0..SOURCES {
                if let Some(held) = self.held[channel][source].take() {
                    context.ports.recycle(held.packet);
                    self.counters[channel].sunk += 1;
                }
            }

            for port in 0..PORTS {
                while let Some(packet) = context.ports.take(port as u8, channel) {
                    match presence::parse(packet.header) {
                        Some((node, word)) => self.learn(context, channel, node, word, Some(port)),
                        None => self.counters[channel].sunk += 1,
                    }
                    context.ports.recycle(packet);
                }
            }
        }

        self.blocked = [0; VCS];
        self.held_mask = [0; VCS];
    }

    /// Returns the sources that wait, one bit for each source: ports, send FIFO, ALU.
    pub(crate) fn blocked(&self, channel: usize) -> u8 {
        self.blocked[channel]
    }

    /// Notes the ports that have a link.
    fn look_at_links(&mut self, ports: &Ports<'_>) {
        self.connected = ports.plugged() as u8 & ALL_PORTS;
    }

    /// Moves about `budget` packets. Returns whether any moved.
    #[inline(always)]
    pub(crate) fn run(&mut self, context: &mut RouterContext<'_, '_>, budget: u32) -> bool {
        if self.rcfg & rcfg::MAN != 0 {
            return false;
        }

        let mut left = budget.max(1);
        let mut moved_any = false;
        self.look_at_links(context.ports);

        loop {
            if context.presence.ports_waiting != [0; VCS] {
                self.flush_all_presence(context);
            }

            let active = self.active(context);
            if active == [0; VCS] {
                return moved_any;
            }

            self.again = false;
            let mut moved = 0;
            let [system, user] = active;
            if system != 0 {
                moved += self.serve(context, VC_SYSTEM, system, left);
            }
            if user != 0 {
                moved += self.serve(context, VC_USER, user, left);
            }

            moved_any |= moved > 0;
            left = left.saturating_sub(moved);
            if !self.again || left == 0 {
                return moved_any;
            }
        }
    }

    /// Moves packets of the active sources of a channel in turn. Returns the number moved.
    #[inline(always)]
    fn serve(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, sources: u8, left: u32) -> u32 {
        let limit = BURST.min(left);
        if !sources.is_power_of_two() {
            return self.serve_in_turn(context, channel, sources, limit);
        }

        let source = sources.trailing_zeros() as usize;
        let (moved, end) = self.move_row(context, channel, source, limit);

        if end == RowEnd::Empty && moved < limit {
            // The source is empty and nothing waits, so `continue_source` has no work.
            self.blocked[channel] = 0;
            return moved;
        }

        self.continue_source(context, channel, source, limit, (moved, end))
    }

    /// As [`Router::serve`], for several sources.
    #[inline(never)]
    fn serve_in_turn(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        sources: u8,
        limit: u32,
    ) -> u32 {
        // The round starts at `first` and wraps around.
        let later = 0xffu8 << self.first;
        let (mut sources, mut moved) = (sources, 0);

        while sources != 0 {
            let next = if sources & later != 0 { sources & later } else { sources };
            let source = next.trailing_zeros() as usize;
            sources &= !(1 << source);
            let row = self.move_row(context, channel, source, limit);
            moved += self.continue_source(context, channel, source, limit, row);
        }

        // The next round starts one source further on, so that competing sources alternate.
        self.first = if self.first + 1 == SOURCES { 0 } else { self.first + 1 };
        moved
    }

    /// Returns the sources that have a packet, by virtual channel, one bit for each source.
    #[inline]
    fn active(&mut self, context: &mut RouterContext<'_, '_>) -> [u8; VCS] {
        let arrived = context.ports.arrivals();
        let mut active = [0; VCS];

        for (channel, sources) in active.iter_mut().enumerate() {
            *sources = (arrived[channel] as u8 & ALL_PORTS) | self.held_mask[channel];

            let fifo = &mut context.channels[channel];
            if context.injecting && fifo.may_send() && fifo.head() != Head::Empty {
                *sources |= TO_LOCAL;
            }

            self.blocked[channel] &= *sources;
        }
        active
    }

    /// Moves up to `limit` packets of a source. `moved` and `end` describe the row that has gone
    /// already. Returns the number moved in all.
    ///
    /// Two events set [`Router::again`]. A source that reached its limit may have more packets. A
    /// packet to or from the ALU may let other sources continue. Nothing else in a step of this
    /// node changes what a source finds.
    #[inline(never)]
    fn continue_source(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        limit: u32,
        (mut moved, mut end): (u32, RowEnd),
    ) -> u32 {
        let bit = 1u8 << source;
        let mut row = moved;

        loop {
            if moved > 0 {
                self.blocked[channel] &= !bit;
            }

            if moved >= limit {
                self.again = true;
                return moved;
            }

            match end {
                RowEnd::Empty => return moved,
                RowEnd::Blocked | RowEnd::Starved => {
                    self.starved |= end == RowEnd::Starved;
                    self.wait(channel, bit);
                    return moved;
                }
                // Another row may follow this one.
                RowEnd::Other if row > 0 => {}
                RowEnd::Other => {
                    match self.advance(context, channel, source) {
                        Move::Moved => self.blocked[channel] &= !bit,
                        Move::Empty => return moved,
                        Move::Blocked => {
                            self.wait(channel, bit);
                            return moved;
                        }
                    }

                    moved += 1;
                    self.again |= source == ALU || self.held_mask[channel] != 0;
                    if moved >= limit {
                        continue;
                    }
                }
            }

            (row, end) = self.move_row(context, channel, source, limit - moved);
            moved += row;
        }
    }

    /// Notes that a source waits, and counts the stall if it did not wait before.
    #[inline]
    fn wait(&mut self, channel: usize, bit: u8) {
        if self.blocked[channel] & bit == 0 {
            self.blocked[channel] |= bit;
            self.counters[channel].stalls += 1;
        }
    }

    /// Moves the first packet of a source, of any kind.
    #[inline(never)]
    fn advance(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, source: usize) -> Move {
        if self.held_mask[channel] & (1 << source) != 0 {
            return self.advance_held(context, channel, source);
        }

        let header = if source < PORTS {
            if self.rcfg & (rcfg::SRC00 >> (4 * source + channel)) != 0 {
                return Move::Empty;
            }

            let Some(packet) = context.ports.peek(source as u8, channel) else { return Move::Empty };
            let header = packet.header;

            if let Some((node, word)) = presence::parse(header) {
                if let Some(packet) = context.ports.take(source as u8, channel) {
                    context.ports.recycle(packet);
                }
                self.learn(context, channel, node, word, Some(source));
                return Move::Moved;
            }
            Header(header as u32)
        } else if source == LOCAL && context.injecting {
            match context.channels[channel].head() {
                Head::Empty => return Move::Empty,
                Head::Packet(header) => header,
                Head::Presence { core, generation } => {
                    context.channels[channel].take_presence();
                    let word = context.presence.with_core(channel, self.address, core, generation);
                    self.learn(context, channel, self.address, word, None);
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
            return self.send(context, channel, source, header, target);
        }

        let route = self.classes[header.class() as usize];
        if !self.goes_up(route, source) {
            // The packet goes down, or it has no way to go.
            let down = source < PORTS && route.up() & (1 << source) != 0;
            let targets = if down { down_targets(route) } else { 0 };
            return self.send(context, channel, source, header, targets);
        }

        if alu::combines(header.opcode()) {
            self.combine(context, channel, route, header)
        } else {
            self.send(context, channel, source, header, up_targets(route))
        }
    }

    /// Returns whether a class's packet from this source goes up.
    fn goes_up(&self, route: ClassRoute, source: usize) -> bool {
        if source == LOCAL { route.sends() } else { route.children() & (1 << source) != 0 }
    }

    /// Sends the first packet of a source to its targets.
    #[inline]
    fn send(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        header: Header,
        targets: u8,
    ) -> Move {
        // A point-to-point packet takes no port without a link and never returns through its own
        // port. A class's packet turns round at its root.
        let back = if source < PORTS && header.is_point_to_point() { 1 << source } else { 0 };
        let targets = targets & (self.connected | TO_LOCAL) & !back;
        if targets == 0 {
            return self.discard(context, channel, source);
        }

        if targets & (targets - 1) != 0 {
            let Some(packet) = self.take(context, channel, source) else { return Move::Blocked };
            self.hold(channel, source, Held { packet, targets });
            let _ = self.advance_held(context, channel, source);
            return Move::Moved;
        }

        if targets == TO_LOCAL {
            return match context.channels[channel].room(header) {
                Room::No => Move::Blocked,
                room => {
                    let Some(packet) = self.take(context, channel, source) else { return Move::Blocked };
                    self.deliver(context, channel, &packet, room);
                    context.ports.recycle(packet);
                    Move::Moved
                }
            };
        }

        let port = targets.trailing_zeros() as usize;
        if !self.port_open(context, channel, port) {
            return Move::Blocked;
        }

        if source < PORTS {
            if !context.ports.forward(source as u8, port as u8, channel) {
                return Move::Blocked;
            }
            self.counters[channel].forwarded += 1;
            return Move::Moved;
        }

        if !context.ports.ready(port as u8, channel) {
            return Move::Blocked;
        }

        let Some(packet) = self.take(context, channel, source) else { return Move::Blocked };
        self.transmit(context, channel, port, packet);
        Move::Moved
    }

    /// Takes the first packet out of a port or the send FIFO.
    #[inline]
    fn take(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, source: usize) -> Option<Packet> {
        if source < PORTS {
            context.ports.take(source as u8, channel)
        } else {
            let packet = context.channels[channel].take(context.ports);
            match &packet {
                Some(_) => self.counters[channel].sent += 1,
                None => self.starved = true,
            }
            packet
        }
    }

    /// Puts a packet into the receive FIFO, or drops it where `room` says that its receiver is
    /// gone.
    #[inline]
    fn deliver(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, packet: &Packet, room: Room) {
        if room == Room::Yes {
            context.channels[channel].deliver(Header(packet.header as u32), packet.bytes());
            self.counters[channel].received += 1;
        } else {
            self.counters[channel].sunk += 1;
        }
    }

    /// Sends a packet through a port. The packet is dropped if the port does not accept it.
    #[inline]
    fn transmit(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, port: usize, packet: Packet) {
        match context.ports.send(port as u8, channel, packet) {
            Ok(()) => self.counters[channel].forwarded += 1,
            Err(packet) => context.ports.recycle(packet),
        }
    }

    /// Returns whether a packet can leave through a port now.
    fn port_ready(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, port: usize) -> bool {
        self.port_open(context, channel, port) && context.ports.ready(port as u8, channel)
    }

    /// Returns whether only credits can keep a packet from leaving through a port. Presence symbols
    /// that wait there are sent first.
    #[inline]
    fn port_open(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, port: usize) -> bool {
        if context.presence.ports_waiting[channel] & (1 << port) != 0
            && !self.flush_presence(context, channel, port)
        {
            return false;
        }

        self.rcfg & (rcfg::TGT00 >> (4 * port + channel)) == 0
    }

    /// Drops the first packet of a source, which has no target.
    fn discard(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, source: usize) -> Move {
        let Some(packet) = self.take(context, channel, source) else { return Move::Blocked };
        context.ports.recycle(packet);

        self.counters[channel].no_target += 1;
        if source == LOCAL {
            context.channels[channel].inject_error(pix::ADDR0);
        }
        Move::Moved
    }
}

/// Returns the targets of a class's packet that goes up: the port up, or those down at the root.
fn up_targets(route: ClassRoute) -> u8 {
    if route.up() != 0 { route.up() } else { down_targets(route) }
}

/// Returns the targets of a class's packet that goes down.
fn down_targets(route: ClassRoute) -> u8 {
    route.children() | if route.receives() { TO_LOCAL } else { 0 }
}
