//! Global interrupts: lines that the nodes of a class share.
//!
//! Each class has [`LINES`] lines. A line is set as long as one node sets it. A node sends the
//! lines that its subtree sets up when they change. Those of the root go down to all nodes.

use super::{
    CLASSES, ClassRoute,
    symbols::{Direction, Symbols},
};

/// Number of lines of a class.
pub const LINES: u8 = 3;
/// All lines of a class, one bit for each.
const ALL_LINES: u8 = (1 << LINES) - 1;

/// The lines of a class that are set, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLevels {
    /// Lines that the node itself sets.
    pub own: u8,
    /// Lines that some node sets, by the symbols that have reached this node.
    pub all: u8,
}

/// The lines of a class at a node, one bit for each.
#[derive(Clone, Copy, Debug, Default)]
struct ClassLines {
    /// Lines that the node itself sets.
    own: u8,
    /// For each line, the inputs whose subtree sets it, one bit for each port.
    inputs: [u64; LINES as usize],
    /// Lines that some node of this node's subtree sets.
    subtree: u8,
    /// Lines that some node sets, by the symbols that have reached this node.
    all: u8,
}

/// The lines of all classes at a node.
#[derive(Debug, Default)]
pub(super) struct Lines {
    classes: [ClassLines; CLASSES],
    /// Number of changes of [`LineLevels::all`] of any class.
    pub(super) changes: u64,
}

impl Lines {
    /// Returns the lines of a class that are set; none if it does not exist.
    pub(super) fn levels(&self, class: u8) -> LineLevels {
        let class = self.classes.get(usize::from(class)).copied().unwrap_or_default();
        LineLevels { own: class.own, all: class.all }
    }

    /// Returns the lines that a symbol carries which is sent now: those of the subtree up, and
    /// those of all nodes down.
    pub(super) fn to_send(&self, class: usize, direction: Direction) -> u8 {
        match direction {
            Direction::Up => self.classes[class].subtree,
            Direction::Down => self.classes[class].all,
        }
    }

    /// Sets the lines that the node itself sets, and clears the others.
    pub(super) fn set(&mut self, class: usize, lines: u8, route: &ClassRoute, symbols: &mut Symbols) {
        self.classes[class].own = lines & ALL_LINES;
        self.update(class, route, symbols);
    }

    /// Records the lines that the subtree at an input sets.
    pub(super) fn set_of_subtree(
        &mut self,
        class: usize,
        port: u8,
        lines: u8,
        route: &ClassRoute,
        symbols: &mut Symbols,
    ) {
        for (line, inputs) in self.classes[class].inputs.iter_mut().enumerate() {
            *inputs = *inputs & !(1 << port) | u64::from(lines >> line & 1) << port;
        }
        self.update(class, route, symbols);
    }

    /// Records the lines that some node sets, and sends them down if they have changed.
    pub(super) fn set_of_all(&mut self, class: usize, lines: u8, route: &ClassRoute, symbols: &mut Symbols) {
        let (state, lines) = (&mut self.classes[class], lines & ALL_LINES);
        if state.all == lines {
            return;
        }
        state.all = lines;
        self.changes += 1;

        let mut inputs = route.inputs;
        while inputs != 0 {
            symbols.queue_lines(inputs.trailing_zeros() as u8, class, Direction::Down);
            // Removes this port.
            inputs &= inputs - 1;
        }
    }

    /// Computes the lines of the subtree: the union of the node's own and those of its inputs.
    /// Sends them up if they have changed. At the root, they are those of all nodes.
    fn update(&mut self, class: usize, route: &ClassRoute, symbols: &mut Symbols) {
        let state = &mut self.classes[class];
        let of_inputs = state.inputs.iter().enumerate();
        let union = of_inputs.fold(state.own, |union, (line, &inputs)| union | u8::from(inputs != 0) << line);
        if union == state.subtree {
            return;
        }

        state.subtree = union;
        match route.output {
            None => self.set_of_all(class, union, route, symbols),
            Some(port) => symbols.queue_lines(port, class, Direction::Up),
        }
    }

    /// Forgets the lines of a class.
    pub(super) fn forget(&mut self, class: usize) {
        self.changes += u64::from(self.classes[class].all != 0);
        self.classes[class] = ClassLines::default();
    }
}
