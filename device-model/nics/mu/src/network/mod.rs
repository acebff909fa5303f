//! The network unit of a node: injection and reception FIFOs, router, collective logic, registers.
//!
//! ```text
//!   network injection FIFOs ──▶ ┌────────────┐ ◀──▶ ten torus links, I/O link
//!   network reception FIFOs ◀── │ router     │
//!   barriers, registers     ◀─▶ │ collectives│
//!                               └────────────┘
//! ```
//!
//! | virtual channel | packets |
//! | --- | --- |
//! | 0 | user packets that choose their way by load; they escape to channel 1 |
//! | 1 | user packets in dimension order, with the bubble rule |
//! | 2 | user packets of high priority, the same way |
//! | 3 | packets of the system, the same way; they alone use I/O links |
//! | 4 | the second queue of channel 0, where there is one (`spec`) |
//! | 5 | collective packets of all nodes, and of the system |
//! | 6 | collective packets of some nodes |
//! | 7 | symbols of barriers and global interrupts |
//!
//! | module | contents |
//! | --- | --- |
//! | `collective` | class routes, and the check of collective headers |
//! | `registers` | the device control registers |
//! | `policy` | the routes of a node, and the deadlock check |
//! | `route` | the check of packet headers |
//! | `spec` | the description of a network's routers |
//! | `word` | the route word |

mod collective;
mod policy;
mod registers;
mod route;
mod spec;
#[cfg(test)]
mod tests;
mod word;

use nicforge_core::{
    context::Context,
    fabric::{MAX_CHANNELS, Packet, Ports},
    time::Nanos,
    warning::Warning,
};
use nicforge_hwi::{
    mu_packet::{MAX_PACKET, PORTS, PacketHeader, channel, fifo_map, kind, packet_type, reception_fifo},
    nd_dcr::error,
};
use nicforge_kit::CountWatch;
use nicforge_network::{
    collective::{CollectiveError, CollectiveUnit, CollectiveWord, LineLevels},
    router::{Bypass, InjectionRefusal, NotInjected, Outcome, Router},
};
use zerocopy::FromBytes;

use self::{
    collective::{SYSTEM_FIFO, USER_FIFO},
    registers::Registers,
    spec::{FIRST_ROUTED, SECOND_QUEUE, dynamic_queues, fifo_packets, has_second_queue},
};
pub(crate) use self::{
    policy::{CachingPolicy, NodePolicy, check_deadlock},
    route::{Place, Route, RouteError},
    spec::{divide_dynamic_credits, router_spec},
};
use crate::config::{NetworkError, Site};

/// Number of virtual channels of a link.
pub(crate) const CHANNELS: usize = 8;
/// Virtual channel of collective packets of all nodes, and of the system. As on the chip, software
/// must keep their class routes on different links.
pub(crate) const COLLECTIVE: u8 = 5;
/// Virtual channel of collective packets of some nodes.
pub(crate) const SUB_COMM: u8 = 6;
/// Virtual channel of symbols.
pub(crate) const SYMBOLS: u8 = 7;
/// Symbols for which a receiver has room: one up and one down for each class.
pub(crate) const SYMBOL_CREDITS: u32 = 32;

/// Packets from links that an output sends between two injected ones, at power-on.
const THROUGH_RATIO: u8 = 1;

/// The kinds of packets that arrive at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    /// Packets for the router.
    is_routed: bool,
    /// Packets or symbols for the collective logic.
    is_collective: bool,
}

impl Arriving {
    /// Packets for the router alone.
    const ROUTED: Self = Self { is_routed: true, is_collective: false };

    /// Returns what arrives now.
    #[inline(always)]
    pub(crate) fn at(ports: &Ports<'_>) -> Self {
        let [arrived, heads] = ports.arrivals_and_heads();
        // One word a channel, with a bit for each port. A loop over them costs more than its body.
        let any = |channel: u8| arrived[usize::from(channel)] | heads[usize::from(channel)];
        let dynamic = any(channel::DYNAMIC) | any(SECOND_QUEUE);
        let user = dynamic | any(channel::DETERMINISTIC) | any(channel::HIGH_PRIORITY);
        let collective = any(COLLECTIVE) | any(SUB_COMM) | any(SYMBOLS);
        Self { is_routed: user | any(channel::SYSTEM) != 0, is_collective: collective != 0 }
    }
}

const _: () = assert!(CHANNELS == 8 && MAX_CHANNELS >= CHANNELS && channel::SYSTEM == 3);

/// Returns whether a packet is for a reception FIFO in memory, or a put.
#[inline]
fn is_for_memory(packet: &Packet) -> bool {
    let header = PacketHeader::ref_from_prefix(packet.bytes());
    header.is_ok_and(|(header, _)| matches!(header.packet_type(), packet_type::FIFO | packet_type::PUT))
}

/// Returns whether a packet is a put that carries its payload.
#[inline]
fn is_put(packet: &Packet) -> bool {
    let header = PacketHeader::ref_from_prefix(packet.bytes());
    packet.memory.is_none() && header.is_ok_and(|(header, _)| header.packet_type() == packet_type::PUT)
}

/// The network unit of a node.
#[derive(Debug)]
pub(crate) struct NetworkUnit {
    site: Site,
    router: Router<CachingPolicy>,
    collective: CollectiveUnit,
    registers: Registers,
    /// Bytes that the link carries with each packet.
    framing: u32,
    /// Bytes of the longest packet, with framing and the memory that it refers to.
    longest_packet: u32,
    watches: Watches,
}

/// Counts of which each rise is logged.
#[derive(Debug, Default)]
struct Watches {
    dropped: CountWatch,
    mismatched: CountWatch,
}

impl NetworkUnit {
    /// Returns the unit of a node, without packets.
    pub(crate) fn new(site: &Site) -> Result<Self, NetworkError> {
        let framing = site.options.framing();
        Ok(Self {
            router: Router::with_plan(&site.plan, CachingPolicy::new(site.policy.clone())),
            collective: collective::unit(site)?,
            registers: Registers::new(),
            framing,
            longest_packet: MAX_PACKET as u32 + framing + site.options.max_reference(),
            watches: Watches::default(),
            site: site.clone(),
        })
    }

    /// Checks the header of a packet and its FIFO map, and returns its route. Hint bits that are
    /// not set are computed. `is_system` says whether the injection FIFO is the system's.
    ///
    /// # Errors
    /// [`RouteError`] names the field that has no meaning.
    pub(crate) fn route(
        &self,
        header: &PacketHeader,
        map: u64,
        is_system: bool,
    ) -> Result<Route, RouteError> {
        let Site { node, place, cables, .. } = &self.site;
        let sender = route::Sender { node: *node, place: *place };
        match header.data_packet_type {
            kind::POINT_TO_POINT => route::point_to_point(cables, sender, header, map, is_system),
            kind::COLLECTIVE => collective::route(&self.collective, cables, header, map, is_system),
            kind => Err(RouteError::Kind { kind }),
        }
    }

    /// Returns those of these network injection FIFOs that have room for a packet of the longest
    /// kind, as bits of [`fifo_map`].
    #[inline]
    pub(crate) fn room(&self, fifos: u16, now: Nanos) -> u16 {
        let (mut map, mut left) = (0, fifos);
        while left != 0 {
            let fifo = left.trailing_zeros() as u8;
            left &= left - 1;
            map |= u16::from(self.has_room(fifo, now)) << fifo;
        }
        map
    }

    /// Returns the first FIFO that [`NetworkUnit::room`] would return, counted from FIFO `turn` on
    /// and around the end.
    #[inline]
    pub(crate) fn next_with_room(&self, fifos: u16, turn: u8, now: Nanos) -> Option<u8> {
        let from_turn = fifos & u16::MAX.checked_shl(turn.into()).unwrap_or(0);
        for mut left in [from_turn, fifos & !from_turn] {
            while left != 0 {
                let fifo = left.trailing_zeros() as u8;
                if self.has_room(fifo, now) {
                    return Some(fifo);
                }
                left &= left - 1;
            }
        }
        None
    }

    /// Returns whether a network injection FIFO has room for a packet of the longest kind.
    #[inline]
    fn has_room(&self, fifo: u8, now: Nanos) -> bool {
        let (room, longest) = match fifo.checked_sub(FIRST_ROUTED) {
            Some(routed) => (self.router.injection_room(routed, now), self.longest_packet),
            None => (self.collective.injection_room(fifo, now), MAX_PACKET as u32 + self.framing),
        };
        room.fits(longest)
    }

    /// Puts a packet into a network injection FIFO. Its data is the header and the payload.
    /// [`nicforge_core::fabric::Contents::framing`] holds the bytes of client memory to which it
    /// refers, or 0. Collective packets refer to none.
    ///
    /// # Errors
    /// [`NotInjected`] if the FIFO has no room now, or is none of the route's.
    pub(crate) fn inject(
        &mut self,
        fifo: u8,
        route: Route,
        mut packet: Packet,
        now: Nanos,
    ) -> Result<(), NotInjected> {
        let is_of_route = u32::from(fifo) < fifo_map::COUNT && route.fifos >> fifo & 1 == 1;
        if !is_of_route {
            return Err(NotInjected { packet, reason: InjectionRefusal::NoFifo { fifo } });
        }

        packet.header = route.word;
        packet.framing += self.framing;
        let injected = match fifo.checked_sub(FIRST_ROUTED) {
            Some(routed) => self.router.inject(routed, packet, now),
            None => self.collective.inject(fifo, packet, now),
        };
        injected.map_err(|mut refused| {
            refused.packet.framing -= self.framing;
            refused
        })
    }

    /// Puts packets that `next` returns into a network injection FIFO, while it has room for a
    /// packet of the longest kind. Each has data as for [`NetworkUnit::inject`], and refers to no
    /// memory. Returns their number, and the packet that ended the row because it is too long, if
    /// there is one.
    #[inline]
    pub(crate) fn inject_row(
        &mut self,
        fifo: u8,
        route: Route,
        now: Nanos,
        mut next: impl FnMut() -> Option<Packet>,
    ) -> (u32, Option<Packet>) {
        let Some(routed) = fifo.checked_sub(FIRST_ROUTED) else { return (0, None) };
        let framing = self.framing;
        self.router.inject_row(routed, now, || {
            let mut packet = next()?;
            (packet.header, packet.framing) = (route.word, framing);
            Some(packet)
        })
    }

    /// Passes the complete packets of a network reception FIFO to `accept`, in order, until it
    /// returns false. Those for which it returns true leave the FIFO, and `recycle` takes them: it
    /// returns them to the fabric. Returns their number. Results of collectives are not passed.
    #[inline]
    pub(crate) fn take_row(
        &mut self,
        fifo: u8,
        now: Nanos,
        accept: impl FnMut(&Packet) -> bool,
        recycle: impl FnMut(Packet),
    ) -> u32 {
        match fifo {
            reception_fifo::COLLECTIVE_USER | reception_fifo::COLLECTIVE_SYSTEM => 0,
            _ => self.router.take_row(fifo, now, accept, recycle),
        }
    }

    /// Returns the packets of a link that the device can take at once, past their reception FIFO,
    /// if the unit has nothing else to do.
    #[inline]
    pub(crate) fn bypass(&self, ports: &Ports<'_>, arriving: Arriving) -> Option<Bypass> {
        let is_router_alone = arriving == Arriving::ROUTED && self.collective.awaits_arrivals();
        if is_router_alone { self.router.bypass(ports, is_for_memory) } else { None }
    }

    /// Passes packets as [`Router::bypass_row`] does.
    #[inline(always)]
    pub(crate) fn bypass_row(
        &mut self,
        ports: &mut Ports<'_>,
        bypass: &mut Bypass,
        limit: u32,
        accept: impl FnMut(&Packet) -> bool,
    ) -> u32 {
        self.router.bypass_row(ports, bypass, limit, accept)
    }

    /// Takes the first packet of the link as [`Router::bypass_one`] does, if it is a put that
    /// carries its payload.
    #[inline]
    pub(crate) fn bypass_put(&mut self, ports: &mut Ports<'_>, bypass: &mut Bypass) -> Option<Packet> {
        self.router.bypass_one(ports, bypass, is_put)
    }

    /// Puts a packet into its FIFO as [`Router::put_in_fifo`] does.
    pub(crate) fn put_in_fifo(&mut self, bypass: &Bypass, packet: Packet, now: Nanos) {
        self.router.put_in_fifo(bypass, packet, now);
    }

    /// Frees the places of the packets that have bypassed their FIFO.
    pub(crate) fn end_bypass(&mut self, bypass: &Bypass) {
        self.router.end_bypass(bypass);
    }

    /// Returns whether a network reception FIFO may have a packet.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        self.router.received() != 0 || !self.collective.awaits_arrivals()
    }

    /// Returns the network reception FIFOs whose first packet is complete, one bit for each.
    pub(crate) fn fifos_with_packets(&self, now: Nanos) -> u16 {
        let mut left = self.router.received() as u16;
        if !self.collective.awaits_arrivals() {
            left |= 1 << reception_fifo::COLLECTIVE_USER | 1 << reception_fifo::COLLECTIVE_SYSTEM;
        }

        let mut waiting = 0;
        while left != 0 {
            let fifo = left.trailing_zeros() as u8;
            left &= left - 1;
            waiting |= u16::from(self.front(fifo, now).is_some()) << fifo;
        }
        waiting
    }

    /// Returns the first packet of a network reception FIFO, if it is complete.
    pub(crate) fn front(&self, fifo: u8, now: Nanos) -> Option<&Packet> {
        match fifo {
            reception_fifo::COLLECTIVE_USER => self.collective.front(USER_FIFO, now),
            reception_fifo::COLLECTIVE_SYSTEM => self.collective.front(SYSTEM_FIFO, now),
            _ => self.router.front(fifo, now),
        }
    }

    /// Takes the first packet of a network reception FIFO, if it is complete. The caller must
    /// return it to the fabric, and call [`NetworkUnit::step`] afterwards.
    pub(crate) fn take(&mut self, fifo: u8, now: Nanos) -> Option<Packet> {
        let (number, overflow, not_a_number) = match fifo {
            reception_fifo::COLLECTIVE_USER => (USER_FIFO, error::USER_OVERFLOW, error::USER_NAN),
            reception_fifo::COLLECTIVE_SYSTEM => (SYSTEM_FIFO, error::SYSTEM_OVERFLOW, error::SYSTEM_NAN),
            _ => return self.router.take(fifo, now),
        };

        let packet = self.collective.take(number, now)?;
        if let Some(CollectiveWord { flags, .. }) = CollectiveWord::from_bits(packet.header) {
            self.registers.errors |= if flags.overflow { overflow } else { 0 };
            self.registers.errors |= if flags.not_a_number { not_a_number } else { 0 };
        }
        Some(packet)
    }

    /// Enters the node into the next barrier of a class. [`NetworkUnit::step`] sends the symbol.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`], [`CollectiveError::Entered`].
    pub(crate) fn enter_barrier(&mut self, class: u8) -> Result<(), CollectiveError> {
        self.collective.enter_barrier(class)
    }

    /// Returns whether the node has entered a barrier of a class that is not complete.
    pub(crate) fn has_entered_barrier(&self, class: u8) -> bool {
        self.collective.has_entered_barrier(class)
    }

    /// Returns the number of completed barriers of a class; 0 if it does not exist.
    pub(crate) fn completed_barriers(&self, class: u8) -> u64 {
        self.collective.barriers_completed(class)
    }

    /// Returns the number of completed barriers of all classes.
    #[inline]
    pub(crate) fn all_completed_barriers(&self) -> u64 {
        self.collective.all_barriers_completed()
    }

    /// Sets the lines of global interrupts of a class that this node sets. [`NetworkUnit::step`]
    /// sends the symbols.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`].
    pub(crate) fn set_lines(&mut self, class: u8, lines: u8) -> Result<(), CollectiveError> {
        self.collective.set_lines(class, lines)
    }

    /// Returns the lines of a class that are set.
    pub(crate) fn lines(&self, class: u8) -> LineLevels {
        self.collective.lines(class)
    }

    /// Returns the number of changes of the lines that some node sets.
    #[inline]
    pub(crate) fn line_changes(&self) -> u64 {
        self.collective.line_changes()
    }

    /// Returns the exceptions of collectives that the kernel has enabled as an interrupt: bits of
    /// [`error`], until it clears them.
    pub(crate) fn pending_errors(&self) -> u64 {
        self.registers.errors & self.registers.enabled
    }

    /// Returns whether [`NetworkUnit::step`] has nothing to do.
    #[inline]
    pub(crate) fn is_idle(&self, ports: &Ports<'_>, arriving: Arriving) -> bool {
        let Arriving { is_routed, is_collective } = arriving;
        let awaits_events = || self.router.awaits_arrivals() || self.router.is_stalled(ports);
        !is_routed && !is_collective && self.collective.awaits_arrivals() && awaits_events()
    }

    /// Moves the packets of `arriving` and others, at most about `budget` in the router and as many
    /// in the collective logic. The caller must wake the device at [`Outcome::wake`].
    pub(crate) fn step(&mut self, ports: &mut Ports<'_>, arriving: Arriving, budget: u32) -> Outcome {
        let Arriving { is_routed, is_collective } = arriving;
        if !is_collective && self.collective.awaits_arrivals() {
            return self.step_router(ports, is_routed, budget);
        }

        // The collective logic comes first, so that its packets are first on each wire.
        let collective = self.collective.step(ports, budget);
        if collective.moved > 0 {
            self.registers.note_exceptions(self.collective.counters());
        }

        let routed = self.step_router(ports, is_routed, budget);
        Outcome {
            moved: collective.moved + routed.moved,
            has_more: collective.has_more || routed.has_more,
            wake: collective.wake.min(routed.wake),
        }
    }

    /// Moves packets in the router, if there are any.
    #[inline]
    fn step_router(&mut self, ports: &mut Ports<'_>, is_routed: bool, budget: u32) -> Outcome {
        if is_routed || !self.router.awaits_arrivals() {
            self.router.step(ports, budget)
        } else {
            Outcome { moved: 0, has_more: false, wake: Nanos::NEVER }
        }
    }

    /// Returns the unit to the state of power-on: empties all FIFOs, forgets collective operations,
    /// barriers and class routes, and resets the registers. Packets on links stay there.
    pub(crate) fn reset(&mut self, ports: &mut Ports<'_>) {
        self.router.reset(ports);
        *self.router.policy_mut().zones_mut() = self.site.options.zones;
        self.router.set_through_ratio(THROUGH_RATIO);

        self.collective.reset(ports);
        self.collective.clear_routes();

        self.registers = Registers::new();
        self.registers.note_exceptions(self.collective.counters());
        self.registers.errors = 0;
        self.clear_counters(ports, u64::MAX);
    }

    /// Logs packets that the network has dropped, and collectives that have failed.
    #[inline]
    pub(crate) fn log_counts(&mut self, context: &mut Context<'_>) {
        let (router, collective) = (self.router.counters(), self.collective.counters());
        self.watches.dropped.check(context, None, router.dropped + collective.dropped, || {
            Warning::dropped(&"the network has a way for a packet, and a class route expects it")
        });
        self.watches.mismatched.check(context, None, collective.mismatched, || {
            Warning::failed(&"all operands of a collective have the same operation and width")
        });
    }

    /// Returns the counters of the unit since power-on, with their names.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let (router, collective) = (self.router.counters(), self.collective.counters());
        let outputs = (0..PORTS).map(|port| self.router.output_counters(port));
        let forwarded = outputs.map(|output| output.through).sum();
        vec![
            ("forwarded", forwarded),
            ("delivered", router.delivered + collective.delivered),
            ("reception_full", router.full),
            ("escaped", router.escaped),
            ("undeliverable", router.dropped),
            ("combined", collective.combined),
            ("collective_sent", collective.sent),
            ("collective_dropped", collective.dropped),
            ("collective_exceptions", collective.exceptions),
            ("collective_mismatches", collective.mismatched),
        ]
    }
}
