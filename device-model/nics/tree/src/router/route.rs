//! The routes of a node. This module alone decides where a packet goes.

use nicforge_hwi::tree::{Header, PORTS};
use nicforge_kit::in_turn;

use super::ALL_PORTS;
use crate::{
    alu,
    config::{CLASSES, ClassRoute, Route, Routes},
    presence,
};

/// A source of packets at a node: a port, the send FIFO, or the ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source(u8);

impl Source {
    /// The send FIFO. As a target, the same bit stands for the receive FIFO.
    pub(super) const LOCAL: Self = Self(PORTS as u8);
    pub(super) const ALU: Self = Self(PORTS as u8 + 1);
    /// Number of sources.
    pub(super) const COUNT: usize = PORTS + 2;

    /// Returns all sources.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Returns the first source of a mask that is not empty.
    #[inline]
    pub(super) fn first_of(mask: u8) -> Self {
        Self(mask.trailing_zeros() as u8)
    }

    /// Returns the next source of a mask in round-robin order, which begins at `first`.
    #[inline(always)]
    pub(super) fn in_turn(mask: u8, first: Self) -> Option<Self> {
        in_turn(mask.into(), first.0).map(Self)
    }

    /// Returns the source that follows, in a circle.
    pub(super) fn next(self) -> Self {
        if self.index() + 1 == Self::COUNT { Self(0) } else { Self(self.0 + 1) }
    }

    /// Returns the source's number.
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the source's bit in a mask.
    #[inline]
    pub(super) fn bit(self) -> u8 {
        1 << self.0
    }

    /// Returns the number of the port, if the source is one.
    #[inline]
    pub(super) fn port(self) -> Option<u8> {
        (self.index() < PORTS).then_some(self.0)
    }
}

/// Targets of a packet at a node, one bit for each port, and [`TO_LOCAL`] for the receive FIFO.
pub(super) type Targets = u8;

/// The receive FIFO as a target.
pub(super) const TO_LOCAL: Targets = 1 << PORTS;

/// The decision where a packet goes at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteDecision {
    /// Out through this port.
    Port(u8),
    /// Into the receive FIFO.
    Local,
    /// To each of these targets, two or more.
    Several(Targets),
    /// Into the ALU, which combines it with the other packets of this class.
    Combine { class: u32 },
    /// The packet has no target.
    Nowhere,
    /// The packet is a presence symbol, which the NIC takes out.
    Symbol { node: u32, presence_word: u32 },
}

/// The routes of a node, and the ports that they can use.
pub(super) struct RouteTable {
    /// Point-to-point routes, by target address.
    targets: Vec<Route>,
    classes: [ClassRoute; CLASSES],
    /// Ports with a link, one bit for each port.
    connected: u8,
}

impl RouteTable {
    /// Returns the table of a node with these routes. No port counts as connected yet.
    pub(super) fn new(routes: &Routes) -> Self {
        Self { targets: routes.targets.clone(), classes: routes.classes, connected: 0 }
    }

    /// Returns the ports with a link, one bit for each port.
    #[inline]
    pub(super) fn connected(&self) -> u8 {
        self.connected
    }

    /// Records the ports that have a link.
    #[inline]
    pub(super) fn set_connected(&mut self, ports: u64) {
        self.connected = ports as u8 & ALL_PORTS;
    }

    /// Returns a class's route.
    pub(super) fn class(&self, class: usize) -> ClassRoute {
        self.classes[class]
    }

    /// Sets the routes of all classes.
    pub(super) fn set_classes(&mut self, classes: [ClassRoute; CLASSES]) {
        self.classes = classes;
    }

    /// Sets a class's route.
    pub(super) fn set_class(&mut self, class: usize, route: ClassRoute) {
        self.classes[class] = route;
    }

    /// Decides where a packet of `source` goes. The port of a [`RouteDecision::Port`] has a link.
    #[inline(always)]
    pub(super) fn route(&self, source: Source, header: u64) -> RouteDecision {
        // A presence symbol has bits above the header's 32.
        if header >> 32 == 0 && Header(header as u32).is_point_to_point() {
            self.route_to_node(source, Header(header as u32).node())
        } else {
            self.route_by_class(source, header)
        }
    }

    /// Decides where a point-to-point packet goes. It never leaves through the port it came from.
    #[inline(always)]
    fn route_to_node(&self, source: Source, node: u32) -> RouteDecision {
        let exits = self.connected & !source.bit();

        match self.targets.get(node as usize) {
            Some(Route::Local) => RouteDecision::Local,
            Some(Route::Port(port)) if exits & (1 << port) != 0 => RouteDecision::Port(*port),
            _ => RouteDecision::Nowhere,
        }
    }

    /// Returns the decision for a packet of a class, by the class's route.
    ///
    /// A class's packet moves up to the root of the class, and from there down to all nodes,
    /// possibly through the port by which it came.
    #[inline(never)]
    fn route_by_class(&self, source: Source, header: u64) -> RouteDecision {
        if let Some(presence::Symbol { node, presence_word }) = presence::parse(header) {
            return RouteDecision::Symbol { node, presence_word };
        }

        let header = Header(header as u32);
        let route = self.classes[header.class() as usize];

        let rises = match source.port() {
            Some(_) => route.children() & source.bit() != 0,
            None => route.sends(),
        };
        if rises && alu::combines(header.opcode()) {
            return RouteDecision::Combine { class: header.class() };
        }

        let targets = if rises {
            self.targets_up(header.class())
        } else if source.port().is_some() && route.up() & source.bit() != 0 {
            self.existing(route.targets_down())
        } else {
            0
        };

        Self::decision_for(targets)
    }

    /// Returns the targets of a class's packet on its way up: the port up, or those down at the
    /// root.
    pub(super) fn targets_up(&self, class: u32) -> Targets {
        let route = self.classes[class as usize];
        self.existing(if route.up() != 0 { route.up() } else { route.targets_down() })
    }

    /// Returns the sources whose packets the ALU combines in a class.
    pub(super) fn operands(&self, class: u32) -> u8 {
        let route = self.classes[class as usize];
        route.children() & self.connected | if route.sends() { Source::LOCAL.bit() } else { 0 }
    }

    /// Returns those of `targets` that exist at this node.
    fn existing(&self, targets: Targets) -> Targets {
        targets & (self.connected | TO_LOCAL)
    }

    /// Returns the decision for a set of targets that exist.
    fn decision_for(targets: Targets) -> RouteDecision {
        match targets {
            0 => RouteDecision::Nowhere,
            TO_LOCAL => RouteDecision::Local,
            one if one.is_power_of_two() => RouteDecision::Port(one.trailing_zeros() as u8),
            several => RouteDecision::Several(several),
        }
    }
}

impl ClassRoute {
    /// Returns the targets of a packet that goes down.
    fn targets_down(self) -> Targets {
        self.children() | if self.receives() { TO_LOCAL } else { 0 }
    }
}
