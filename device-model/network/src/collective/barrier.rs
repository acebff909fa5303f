//! Barrier classes: trees of symbols without content.

use super::{
    CLASSES, ClassRoute,
    symbols::{Direction, Symbols},
};

/// A barrier class at a node.
#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    /// Inputs whose subtree has entered the barrier, one bit for each.
    entered_inputs: u64,
    /// The node itself has entered it.
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

    /// Records that all members of the subtree at an input have entered the barrier. Returns false
    /// if they had entered it already, so that the symbol is one too many.
    pub(super) fn enter_subtree(
        &mut self,
        class: usize,
        port: u8,
        route: &ClassRoute,
        symbols: &mut Symbols,
    ) -> bool {
        let entered = &mut self.classes[class].entered_inputs;
        if *entered >> port & 1 == 1 {
            return false;
        }
        *entered |= 1 << port;
        self.advance(class, route, symbols);
        true
    }

    /// Sends a symbol up if all inputs and the node itself, if it is a member, have entered. At the
    /// root, the barrier is then complete.
    fn advance(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let barrier = &mut self.classes[class];
        if barrier.entered_inputs != route.inputs || route.is_member && !barrier.has_entered {
            return;
        }

        barrier.entered_inputs = 0;
        match route.output {
            None => self.complete(class, route, symbols),
            Some(port) => symbols.queue_barrier(port, class, Direction::Up),
        }
    }

    /// Completes the barrier of a class at this node, and sends symbols down to its inputs.
    pub(super) fn complete(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let barrier = &mut self.classes[class];
        barrier.has_entered = false;
        barrier.completed += 1;
        self.all_completed += 1;

        let mut inputs = route.inputs;
        while inputs != 0 {
            symbols.queue_barrier(inputs.trailing_zeros() as u8, class, Direction::Down);
            // Removes this port.
            inputs &= inputs - 1;
        }
    }

    /// Forgets which inputs have entered a class's barrier, and whether the node has.
    pub(super) fn forget(&mut self, class: usize) {
        self.classes[class] = Barrier { completed: self.classes[class].completed, ..Barrier::default() };
    }
}
