//! The part of a collective unit for barriers and global interrupts: the routes of their classes,
//! their state, and the symbols that carry them.
//!
//! *Invariant:* a barrier in progress and the lines of a class belong to the present route of the
//! class. A new route forgets both.

use nicforge_core::fabric::Ports;

use super::{
    CLASSES, ClassRoute, CollectiveError, CollectiveSpec,
    barrier::Barriers,
    lines::{LineLevels, Lines},
    symbols::{Direction, Kind, Symbol, Symbols},
};

/// Barriers and global interrupts of a unit.
#[derive(Debug)]
pub(super) struct BarrierNetwork {
    routes: [ClassRoute; CLASSES],
    barriers: Barriers,
    lines: Lines,
    symbols: Symbols,
}

/// The numbers of symbols that [`BarrierNetwork::receive_symbols`] has taken.
pub(super) struct ReceivedSymbols {
    pub(super) count: u32,
    /// Symbols among them that no route expects.
    pub(super) unexpected: u32,
}

impl BarrierNetwork {
    /// Returns the state without class routes.
    pub(super) fn new(spec: &CollectiveSpec) -> Self {
        let symbol_credits = spec.link.credit_unit.needed(spec.barrier_framing.into());
        Self {
            routes: [ClassRoute::default(); CLASSES],
            barriers: Barriers::default(),
            lines: Lines::default(),
            symbols: Symbols::new(spec.ports, spec.barrier_vc, spec.barrier_framing, symbol_credits),
        }
    }

    /// Sets the route of a class, which must exist.
    pub(super) fn set_route(&mut self, class: usize, route: ClassRoute) {
        self.routes[class] = route;
        self.forget(class);
    }

    /// Removes the routes of all classes. It follows [`BarrierNetwork::reset`].
    pub(super) fn clear_routes(&mut self) {
        self.routes = [ClassRoute::default(); CLASSES];
    }

    /// Returns the route of a class; an empty one if it does not exist.
    pub(super) fn route(&self, class: u8) -> ClassRoute {
        self.routes.get(usize::from(class)).copied().unwrap_or_default()
    }

    /// Enters the node into the next barrier of a class.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`], [`CollectiveError::Entered`].
    pub(super) fn enter(&mut self, class: u8) -> Result<(), CollectiveError> {
        let index = usize::from(class);
        let route = self.routes.get(index).ok_or(CollectiveError::Class { class })?;
        if !route.is_member {
            return Err(CollectiveError::NoMember { class });
        }
        if self.barriers.is_entered(index) {
            return Err(CollectiveError::Entered { class });
        }

        self.barriers.enter(index, route, &mut self.symbols);
        Ok(())
    }

    /// Sets the lines of a class that this node itself sets, one bit for each, and clears the
    /// others.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`].
    pub(super) fn set_lines(&mut self, class: u8, lines: u8) -> Result<(), CollectiveError> {
        let index = usize::from(class);
        let route = self.routes.get(index).ok_or(CollectiveError::Class { class })?;
        if !route.is_member {
            return Err(CollectiveError::NoMember { class });
        }

        self.lines.set(index, lines, route, &mut self.symbols);
        Ok(())
    }

    /// Returns the lines of a class that are set; none if it does not exist.
    pub(super) fn lines(&self, class: u8) -> LineLevels {
        self.lines.levels(class)
    }

    /// Returns the number of changes of the lines that some node sets, of all classes.
    #[inline]
    pub(super) fn line_changes(&self) -> u64 {
        self.lines.changes
    }

    /// Returns whether the node has entered a barrier of a class that is not complete; false if the
    /// class does not exist.
    pub(super) fn has_entered(&self, class: u8) -> bool {
        usize::from(class) < CLASSES && self.barriers.is_entered(class.into())
    }

    /// Returns the number of completed barriers of a class; 0 if it does not exist.
    pub(super) fn completed(&self, class: u8) -> u64 {
        if usize::from(class) < CLASSES { self.barriers.completed(class.into()) } else { 0 }
    }

    /// Returns the number of completed barriers of all classes.
    #[inline]
    pub(super) fn all_completed(&self) -> u64 {
        self.barriers.all_completed
    }

    /// Returns whether no symbol arrives or waits.
    #[inline]
    pub(super) fn is_idle(&self, ports: &Ports<'_>) -> bool {
        self.symbols.is_idle(ports)
    }

    /// Forgets the barriers in progress and the lines of all classes. The routes stay.
    pub(super) fn reset(&mut self) {
        for class in 0..CLASSES {
            self.forget(class);
        }
    }

    /// Forgets a class's barrier that is in progress at this node, and its lines.
    fn forget(&mut self, class: usize) {
        self.barriers.forget(class);
        self.lines.forget(class);
        self.symbols.forget(class);
    }

    /// Takes and handles the symbols that have arrived. Returns their numbers.
    pub(super) fn receive_symbols(&mut self, ports: &mut Ports<'_>) -> ReceivedSymbols {
        let mut received = ReceivedSymbols { count: 0, unexpected: 0 };
        while let Some((port, header)) = self.symbols.take(ports) {
            received.count += 1;
            received.unexpected += u32::from(!self.handle_symbol(port, header));
        }
        received
    }

    /// Handles a symbol that has arrived at a port, by its header word. Returns false for one that
    /// no route expects.
    fn handle_symbol(&mut self, port: u8, header: u64) -> bool {
        let Some(Symbol { class, direction, kind }) = Symbol::from_bits(header) else { return false };
        let (route, symbols) = (&self.routes[class], &mut self.symbols);
        let is_expected = match direction {
            Direction::Up => route.inputs >> port & 1 == 1,
            Direction::Down => route.output == Some(port),
        };

        match (direction, kind) {
            _ if !is_expected => return false,
            (Direction::Up, Kind::Barrier) => {
                return self.barriers.enter_subtree(class, port, route, symbols);
            }
            (Direction::Down, Kind::Barrier) => self.barriers.complete(class, route, symbols),
            (Direction::Up, Kind::Lines(lines)) => {
                self.lines.set_of_subtree(class, port, lines, route, symbols);
            }
            (Direction::Down, Kind::Lines(lines)) => self.lines.set_of_all(class, lines, route, symbols),
        }
        true
    }

    /// Sends the symbols that wait. Returns their number.
    pub(super) fn send_symbols(&mut self, ports: &mut Ports<'_>) -> u32 {
        self.symbols.send(ports, &self.lines)
    }

    /// Returns and clears whether the fabric had no packet for a symbol.
    pub(super) fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.symbols.starved)
    }
}
