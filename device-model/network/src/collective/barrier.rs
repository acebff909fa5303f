//! Barrier classes: trees of symbols without content.

use super::{
    CLASSES, ClassRoute,
    symbols::{Direction, Symbols},
};

/// A barrier class at a node.
#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    /// Inputs whose subtree has arrived, one bit for each.
    arrived: u64,
    /// The node itself has arrived.
    has_entered: bool,
    /// Completed barriers.
    completed: u64,
}

/// The barrier classes of a node.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    classes: [Barrier; CLASSES],
    /// Completed barriers of all classes.
    pub(super) all_completed: u64,
}

impl Barriers {
    /// Returns the number of completed barriers of a class.
    pub(super) fn completed(&self, class: usize) -> u64 {
        self.classes[class].completed
    }

    /// Returns whether the node has entered a barrier that is not complete.
    pub(super) fn is_entered(&self, class: usize) -> bool {
        self.classes[class].has_entered
    }

    /// Enters the node into the barrier of a class.
    pub(super) fn enter(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        self.classes[class].has_entered = true;
        self.advance(class, route, symbols);
    }

    /// Records that the subtree of an input has entered. Returns whether that was expected.
    pub(super) fn come_up(
        &mut self,
        (class, port): (usize, u8),
        route: &ClassRoute,
        symbols: &mut Symbols,
    ) -> bool {
        let arrived = &mut self.classes[class].arrived;
        if *arrived >> port & 1 == 1 {
            return false;
        }
        *arrived |= 1 << port;
        self.advance(class, route, symbols);
        true
    }

    /// Sends a symbol up if all have arrived. At the root, the barrier is then complete.
    fn advance(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let barrier = &mut self.classes[class];
        if barrier.arrived != route.inputs || route.is_member && !barrier.has_entered {
            return;
        }

        barrier.arrived = 0;
        match route.output {
            None => self.complete(class, route, symbols),
            Some(port) => symbols.queue_barrier(port, class, Direction::Up),
        }
    }

    /// Completes a barrier, and sends symbols down.
    pub(super) fn complete(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let barrier = &mut self.classes[class];
        barrier.has_entered = false;
        barrier.completed += 1;
        self.all_completed += 1;

        let mut inputs = route.inputs;
        while inputs != 0 {
            symbols.queue_barrier(inputs.trailing_zeros() as u8, class, Direction::Down);
            inputs &= inputs - 1;
        }
    }

    /// Forgets the arrivals of a class.
    pub(super) fn forget(&mut self, class: usize) {
        self.classes[class] = Barrier { completed: self.classes[class].completed, ..Barrier::default() };
    }
}
