//! The check that packets arrive: no route leads in a circle.

use super::{Cycle, DeadlockError, graph::WaitGraph};

/// The state of a node in the walk of a route word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The walk has not come to the node.
    Unknown,
    /// The node is on the path from the start of the walk.
    OnPath,
    /// All ways from the node end.
    Ends,
}

/// A node on the path of a walk.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: u32,
    /// The slot by which the path goes on.
    slot: u8,
    /// The exits that are still to be followed, as a mask of slots.
    rest: u64,
}

/// A depth-first walk along the routes of one route word after another.
#[derive(Debug)]
pub(super) struct Walk {
    states: Vec<State>,
    path: Vec<Step>,
}

impl Walk {
    /// Returns a walk in a network of this size.
    pub(super) fn new(nodes: u32) -> Self {
        Self { states: vec![State::Unknown; nodes as usize], path: Vec::new() }
    }

    /// Checks that packets with the route word `word` arrive by whichever of each node's `exits`
    /// they leave: no way leads in a circle.
    ///
    /// # Errors
    /// [`DeadlockError::Endless`].
    pub(super) fn check(&mut self, graph: &WaitGraph, exits: &[u64], word: u32) -> Result<(), DeadlockError> {
        self.states.fill(State::Unknown);

        for start in 0..exits.len() as u32 {
            if self.states[start as usize] == State::Unknown {
                self.enter(graph, exits, start);
                self.follow_all(graph, exits, word)?;
            }
        }
        Ok(())
    }

    /// Adds a node to the path.
    #[inline]
    fn enter(&mut self, graph: &WaitGraph, exits: &[u64], node: u32) {
        self.states[node as usize] = State::OnPath;
        let rest = graph.layout.links_in(exits[node as usize]);
        self.path.push(Step { node, slot: 0, rest });
    }

    /// Follows all ways from the end of the path, until the path is empty.
    fn follow_all(&mut self, graph: &WaitGraph, exits: &[u64], word: u32) -> Result<(), DeadlockError> {
        while let Some(step) = self.path.last_mut() {
            if step.rest == 0 {
                self.states[step.node as usize] = State::Ends;
                self.path.pop();
                continue;
            }

            step.slot = step.rest.trailing_zeros() as u8;
            step.rest &= step.rest - 1;
            let next = graph.buffer_nodes[step.node as usize * graph.layout.width() + usize::from(step.slot)];

            match self.states.get(next as usize).copied() {
                Some(State::Unknown) => self.enter(graph, exits, next),
                Some(State::OnPath) => {
                    return Err(DeadlockError::Endless { word, cycle: self.cycle(graph, next) });
                }
                Some(State::Ends) | None => {}
            }
        }
        Ok(())
    }

    /// Returns the circle of the path that begins at a node and has come back to it.
    fn cycle(&self, graph: &WaitGraph, from: u32) -> Cycle {
        let steps = self.path.iter().skip_while(|step| step.node != from);
        let index = |step: &Step| step.node as usize * graph.layout.width() + usize::from(step.slot);
        Cycle { channels: steps.map(|step| graph.layout.channel(index(step))).collect() }
    }
}
