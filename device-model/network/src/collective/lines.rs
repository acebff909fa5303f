//! Global interrupts: lines that the nodes of a class share.
//!
//! Each class has [`LINES`] lines. A line is set as long as one node sets it. A node sends the
//! union of its subtree up when that changes, and the root's union goes down to all nodes.

use super::{
    CLASSES, ClassRoute,
    symbols::{Direction, Symbols},
};

/// Lines of a class.
pub const LINES: u8 = 3;
/// All lines of a class.
const ALL: u8 = (1 << LINES) - 1;

/// The lines of a class that are set, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLevels {
    /// Lines that the node itself sets.
    pub own: u8,
    /// Lines that some node sets, as far as this node knows.
    pub all: u8,
}

/// The lines of a class at a node, one bit for each.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Those that the node itself sets.
    own: u8,
    /// Inputs whose subtree sets a line, by line; one bit for each port.
    inputs: [u64; LINES as usize],
    /// The union of this node's subtree.
    subtree: u8,
    /// The union of all nodes, as far as this node knows.
    all: u8,
}

/// The lines of all classes at a node.
#[derive(Debug, Default)]
pub(super) struct Lines {
    classes: [Class; CLASSES],
    /// Number of changes of any class's union of all nodes.
    pub(super) changes: u64,
}

impl Lines {
    /// Returns the lines of a class that are set; none if it does not exist.
    pub(super) fn levels(&self, class: u8) -> LineLevels {
        let class = self.classes.get(usize::from(class)).copied().unwrap_or_default();
        LineLevels { own: class.own, all: class.all }
    }

    /// Returns the lines that a symbol carries.
    pub(super) fn to_send(&self, class: usize, direction: Direction) -> u8 {
        match direction {
            Direction::Up => self.classes[class].subtree,
            Direction::Down => self.classes[class].all,
        }
    }

    /// Sets the lines of the node itself.
    pub(super) fn set(&mut self, class: usize, lines: u8, route: &ClassRoute, symbols: &mut Symbols) {
        self.classes[class].own = lines & ALL;
        self.update(class, route, symbols);
    }

    /// Records the lines of an input's subtree.
    pub(super) fn come_up(
        &mut self,
        (class, port): (usize, u8),
        lines: u8,
        route: &ClassRoute,
        symbols: &mut Symbols,
    ) {
        for (line, inputs) in self.classes[class].inputs.iter_mut().enumerate() {
            *inputs = *inputs & !(1 << port) | u64::from(lines >> line & 1) << port;
        }
        self.update(class, route, symbols);
    }

    /// Records the lines of all nodes, and sends them down.
    pub(super) fn come_down(&mut self, class: usize, lines: u8, route: &ClassRoute, symbols: &mut Symbols) {
        let (state, lines) = (&mut self.classes[class], lines & ALL);
        if state.all == lines {
            return;
        }
        state.all = lines;
        self.changes += 1;

        let mut inputs = route.inputs;
        while inputs != 0 {
            symbols.queue_lines(inputs.trailing_zeros() as u8, class, Direction::Down);
            inputs &= inputs - 1;
        }
    }

    /// Sends the union of the subtree up if it has changed.
    fn update(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let state = &mut self.classes[class];
        let of_inputs = state.inputs.iter().enumerate();
        let set = of_inputs.fold(state.own, |set, (line, &inputs)| set | u8::from(inputs != 0) << line);
        if set == state.subtree {
            return;
        }

        state.subtree = set;
        match route.output {
            None => self.come_down(class, set, route, symbols),
            Some(port) => symbols.queue_lines(port, class, Direction::Up),
        }
    }

    /// Forgets the lines of a class.
    pub(super) fn forget(&mut self, class: usize) {
        self.changes += u64::from(self.classes[class].all != 0);
        self.classes[class] = Class::default();
    }
}
