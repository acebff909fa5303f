//! The router: moves packets from the links, the send FIFOs and the ALU to their targets.
//!
//! A packet with one target is moved when the target has room. A packet with several targets is
//! taken out and copied to each target as room becomes available; it holds up only its own source.
//! The two virtual channels share no resource that one could wait for.
//!
//! Over links that cut through, a packet from a port to another port moves when its head has
//! arrived. All others wait for the tail: those for the receive FIFO and the ALU, and those with
//! several targets.
//!
//! | module | contents |
//! | --- | --- |
//! | `route` | the decision where a packet goes |
//! | `row` | moving packets there |
//! | `collective`, `held` | packets that are combined, and packets with several targets |
//! | `symbols` | presence symbols |

mod collective;
mod held;
mod route;
mod row;
mod symbols;

use nicforge_core::fabric::Ports;
use nicforge_hwi::{
    tree::{PORTS, VC_SYSTEM, VC_USER, VCS},
    tree_dcr::rcfg,
};

use self::{
    held::HeldPackets,
    route::{RouteTable, Source},
};
use crate::{
    config::{ClassRoute, Routes},
    fifo::{Channel, RowEnd, RowOutcome, SendHead},
    presence::{self, Presence},
};

/// Packets that a source moves in a row before the next source is served.
const BURST: u32 = 8;

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
    pub(crate) discarded: u64,
    /// Packets without a route, discarded.
    pub(crate) no_target: u64,
    /// Presence symbols noted.
    pub(crate) presence: u64,
}

/// The bits of all ports.
const ALL_PORTS: u8 = (1 << PORTS) - 1;

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
    /// Address of the node.
    address: u32,
    routes: RouteTable,
    /// General configuration register.
    rcfg: u32,
    /// Packets that some of their targets do not have yet.
    held: HeldPackets,
    /// Sources whose first packet waits, one bit for each source.
    blocked: [u8; VCS],
    /// The source that is served first. It advances when several sources have competed for a
    /// channel.
    first_source: Source,
    /// Whether another pass over the sources may move more packets in this step.
    needs_another_pass: bool,
    /// Whether a packet could not move because the pool was empty.
    starved: bool,
    pub(crate) counters: [RouterCounters; VCS],
}

impl Router {
    /// Returns the router of the node with this address, in the state of power-on.
    pub(crate) fn new(address: u32, routes: &Routes) -> Self {
        Self {
            address,
            routes: RouteTable::new(routes),
            rcfg: 0,
            held: HeldPackets::default(),
            blocked: [0; VCS],
            first_source: Source::first_of(1),
            needs_another_pass: false,
            starved: false,
            counters: [RouterCounters::default(); VCS],
        }
    }

    /// Returns the general configuration register.
    pub(crate) fn configuration(&self) -> u32 {
        self.rcfg
    }

    /// Sets the general configuration register, without the soft reset that its write can ask for.
    pub(crate) fn configure(&mut self, value: u32) {
        self.rcfg = value & rcfg::WRITABLE & !rcfg::RST;
    }

    /// Returns a class's route.
    pub(crate) fn class(&self, class: usize) -> ClassRoute {
        self.routes.class(class)
    }

    /// Sets a class's route.
    pub(crate) fn set_class(&mut self, class: usize, route: ClassRoute) {
        self.routes.set_class(class, route);
    }

    /// Sets configuration register and class routes to the state of power-on.
    pub(crate) fn power_on(&mut self, routes: &Routes) {
        self.rcfg = 0;
        self.routes.set_classes(routes.classes);
    }

    /// Returns whether a packet could not move because the packet pool was empty, and clears that
    /// record. The device must then ask for another step.
    #[inline]
    pub(crate) fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Drops the packets in this node: those held, and those that have arrived at its ports.
    /// Presence symbols are processed.
    pub(crate) fn clear(&mut self, context: &mut RouterContext<'_, '_>) {
        self.routes.set_connected(context.ports.plugged());

        for channel in 0..VCS {
            for source in Source::all() {
                if let Some(held) = self.held.take(channel, source) {
                    context.ports.recycle(held.packet);
                    self.counters[channel].discarded += 1;
                }
            }

            for port in 0..PORTS as u8 {
                while let Some(packet) = context.ports.take(port, channel) {
                    match presence::parse(packet.header) {
                        Some(presence::Symbol { node, presence_word }) => {
                            self.update_presence(context, channel, node, presence_word, Some(port));
                        }
                        None => self.counters[channel].discarded += 1,
                    }
                    context.ports.recycle(packet);
                }
            }
        }

        self.blocked = [0; VCS];
    }

    /// Returns the sources that wait, one bit for each source: ports, send FIFO, ALU.
    pub(crate) fn blocked(&self, channel: usize) -> u8 {
        self.blocked[channel]
    }

    /// Moves about `budget` packets of all sources. Returns whether any moved.
    #[inline(always)]
    pub(crate) fn run(&mut self, context: &mut RouterContext<'_, '_>, budget: u32) -> bool {
        if self.rcfg & rcfg::MAN != 0 {
            return false;
        }

        let mut remaining = budget.max(1);
        let mut moved_any = false;
        self.routes.set_connected(context.ports.plugged());

        loop {
            if context.presence.is_any_waiting() {
                self.flush_all_presence(context);
            }

            let active = self.find_active(context);
            if active == [0; VCS] {
                return moved_any;
            }

            self.needs_another_pass = false;
            let mut moved = 0;
            let [system, user] = active;
            if system != 0 {
                moved += self.serve(context, VC_SYSTEM, system, remaining);
            }
            if user != 0 {
                moved += self.serve(context, VC_USER, user, remaining);
            }

            moved_any |= moved > 0;
            remaining = remaining.saturating_sub(moved);
            if !self.needs_another_pass || remaining == 0 {
                return moved_any;
            }
        }
    }

    /// Moves packets of the active sources of a channel in turn. Returns the number moved.
    #[inline(always)]
    fn serve(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        sources: u8,
        remaining: u32,
    ) -> u32 {
        let limit = BURST.min(remaining);
        if !sources.is_power_of_two() {
            return self.serve_in_turn(context, channel, sources, limit);
        }

        let source = Source::first_of(sources);
        let first_row = self.move_row(context, channel, source, limit);

        // No other source has packets, so none waits if this one does not.
        if first_row.end == RowEnd::Empty {
            self.blocked[channel] = 0;
            return first_row.moved;
        }
        if first_row.moved >= limit {
            self.blocked[channel] = 0;
            self.needs_another_pass = true;
            return first_row.moved;
        }

        self.continue_source(context, channel, source, limit, first_row)
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
        let (mut sources, mut moved) = (sources, 0);
        while let Some(source) = Source::in_turn(sources, self.first_source) {
            sources &= !source.bit();
            let row = self.move_row(context, channel, source, limit);
            moved += self.continue_source(context, channel, source, limit, row);
        }

        // The next round starts one source further on, so that competing sources alternate.
        self.first_source = self.first_source.next();
        moved
    }

    /// Returns the sources that have a packet, by virtual channel, one bit for each source. A port
    /// has one when the head of a packet has arrived. Sources without one no longer count as
    /// blocked.
    #[inline]
    fn find_active(&mut self, context: &mut RouterContext<'_, '_>) -> [u8; VCS] {
        let mut active = [VC_SYSTEM, VC_USER].map(|channel| {
            let arrived = context.ports.arrived(channel) | context.ports.heads(channel);
            arrived as u8 & ALL_PORTS
        });

        for (channel, sources) in active.iter_mut().enumerate() {
            *sources |= self.held.mask(channel);

            let fifo = &mut context.channels[channel];
            if context.injecting && fifo.may_send() && fifo.poll_send_head() != SendHead::Empty {
                *sources |= Source::LOCAL.bit();
            }

            self.blocked[channel] &= *sources;
        }
        active
    }

    /// Moves more packets of a source, up to `limit` together with those of its first row. Returns
    /// the number moved in all.
    ///
    /// Two events set [`Router::needs_another_pass`]. A source that reached its limit may have more
    /// packets. A packet to or from the ALU may let other sources continue. Nothing else in a step
    /// of this node makes a blocked packet movable.
    #[inline(never)]
    fn continue_source(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
        limit: u32,
        first_row: RowOutcome,
    ) -> u32 {
        let RowOutcome { moved: mut in_row, mut end } = first_row;
        let mut moved = in_row;

        loop {
            if in_row > 0 {
                self.blocked[channel] &= !source.bit();
            }

            if moved >= limit {
                self.needs_another_pass = true;
                return moved;
            }

            match end {
                RowEnd::Empty => return moved,
                RowEnd::Blocked | RowEnd::Starved => {
                    self.starved |= end == RowEnd::Starved;
                    self.wait(channel, source.bit());
                    return moved;
                }
                // The source is disabled.
                RowEnd::Other if in_row == 0 => return moved,
                RowEnd::Other => {}
            }

            RowOutcome { moved: in_row, end } = self.move_row(context, channel, source, limit - moved);
            moved += in_row;
        }
    }

    /// Records that a source waits, and counts the stall if it did not wait before.
    #[inline]
    fn wait(&mut self, channel: usize, bit: u8) {
        if self.blocked[channel] & bit == 0 {
            self.blocked[channel] |= bit;
            self.counters[channel].stalls += 1;
        }
    }
}
