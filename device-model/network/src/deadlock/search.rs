//! The search for cycles of a graph.

use std::collections::VecDeque;

use super::{
    Channel, Cycle,
    graph::{NO_NODE, WaitGraph, slots},
};
use crate::shape::{CableEnd, Torus};

/// Returns the `successor` of [`WaitGraph::check_with`] for a torus in which all rings of one
/// virtual channel have the bubble rule.
pub fn bubble(torus: &Torus, bubble_vc: u8) -> impl Fn(Channel) -> Option<Channel> {
    move |channel| match channel {
        Channel::Link { node, port, vc } if vc == bubble_vc => {
            let next = torus.ring_successor(CableEnd { node, port })?;
            Some(Channel::Link { node: next.node, port: next.port, vc })
        }
        _ => None,
    }
}

/// Returns a cycle with a step that does not lead to the `successor` of its channel, if there is
/// one.
pub(super) fn find_cycle(graph: &WaitGraph, successor: impl Fn(Channel) -> Option<Channel>) -> Option<Cycle> {
    let mut search = Search::new(graph);

    (0..graph.waits.len())
        .filter(|&index| graph.waits[index] != 0)
        .find_map(|start| if search.order[start] == UNSEEN { search.visit(start, &successor) } else { None })
}

/// The order of a channel that has not been visited.
const UNSEEN: u32 = 0;
/// The order of a channel whose component is complete.
const COMPLETE: u32 = u32::MAX;

/// A channel on the path of a search.
#[derive(Clone, Copy, Debug)]
struct Step {
    index: u32,
    /// The channels that it waits for and that are still to be followed: slots of the node that
    /// buffers its packets.
    rest: u64,
}

/// Tarjan's search for strongly connected components: sets of channels of which each waits for each
/// other, over any number of steps. All cycles lie inside components.
struct Search<'a> {
    graph: &'a WaitGraph,
    /// The order in which channels were visited, from 1; [`UNSEEN`] or [`COMPLETE`].
    order: Vec<u32>,
    /// The lowest order of the open channels that are known to be reached from a channel.
    lowest: Vec<u32>,
    /// Visited channels of components that are not complete.
    open: Vec<u32>,
    path: Vec<Step>,
    visited: u32,
}

impl<'a> Search<'a> {
    /// Returns a search that has visited no channel.
    fn new(graph: &'a WaitGraph) -> Self {
        let channels = graph.waits.len();
        Self {
            graph,
            order: vec![UNSEEN; channels],
            lowest: vec![0; channels],
            open: Vec::new(),
            path: Vec::new(),
            visited: 0,
        }
    }

    /// Visits all channels that can be reached from `start`. Returns the first cycle found that
    /// `successor` does not cover.
    fn visit(&mut self, start: usize, successor: &impl Fn(Channel) -> Option<Channel>) -> Option<Cycle> {
        self.enter(start);

        while let Some(step) = self.path.last_mut() {
            let index = step.index as usize;

            // Follow the next wait of the channel.
            if step.rest != 0 {
                let slot = step.rest.trailing_zeros() as usize;
                step.rest &= step.rest - 1;
                let next = self.graph.buffer_nodes[index] as usize * self.graph.layout.width() + slot;

                match self.order[next] {
                    UNSEEN => self.enter(next),
                    COMPLETE => {}
                    order => self.lowest[index] = self.lowest[index].min(order),
                }
                continue;
            }

            // All waits are followed. A channel that reaches none before itself is the first of its
            // component.
            self.path.pop();
            let lowest = self.lowest[index];
            if let Some(before) = self.path.last() {
                let before = before.index as usize;
                self.lowest[before] = self.lowest[before].min(lowest);
            }
            if lowest == self.order[index]
                && let Some(cycle) = self.complete(index, successor)
            {
                return Some(cycle);
            }
        }
        None
    }

    /// Adds a channel, which has not been visited, to the path.
    fn enter(&mut self, index: usize) {
        self.visited += 1;
        self.order[index] = self.visited;
        self.lowest[index] = self.visited;
        self.open.push(index as u32);

        let rest = if self.graph.buffer_nodes[index] == NO_NODE { 0 } else { self.graph.waits[index] };
        self.path.push(Step { index: index as u32, rest });
    }

    /// Completes the component whose first channel is `root`. Returns a cycle of it that
    /// `successor` does not cover.
    fn complete(&mut self, root: usize, successor: &impl Fn(Channel) -> Option<Channel>) -> Option<Cycle> {
        let start = self.open.iter().rposition(|&index| index as usize == root)?;

        if let Some((from, to)) = self.uncovered_step(root, &self.open[start..], successor) {
            return Some(self.cycle_through(root, from, to));
        }

        for index in self.open.drain(start..) {
            self.order[index as usize] = COMPLETE;
        }
        None
    }

    /// Returns the first step inside the component of `root`, from one channel to another, that
    /// does not lead to its channel's successor.
    fn uncovered_step(
        &self,
        root: usize,
        members: &[u32],
        successor: &impl Fn(Channel) -> Option<Channel>,
    ) -> Option<(usize, usize)> {
        let layout = self.graph.layout;
        members.iter().map(|&index| index as usize).find_map(|from| {
            let expected = || successor(layout.channel(from));
            let to = self.steps_inside(root, from).find(|&to| expected() != Some(layout.channel(to)))?;
            Some((from, to))
        })
    }

    /// Returns the channels of the component of `root` that a channel waits for. Channels that are
    /// open and were visited since `root` are those of its component, once it is complete.
    fn steps_inside(&self, root: usize, from: usize) -> impl Iterator<Item = usize> {
        let first = self.graph.buffer_nodes[from] as usize * self.graph.layout.width();
        slots(self.graph.waits[from])
            .map(move |slot| first + slot)
            .filter(move |&to| self.order[to] != COMPLETE && self.order[to] >= self.order[root])
    }

    /// Returns a shortest cycle through the step from `from` to `to`, which is inside the component
    /// of `root`. The cycle begins with that step.
    fn cycle_through(&self, root: usize, from: usize, to: usize) -> Cycle {
        // A breadth-first search from `to` back to `from`.
        let mut before = vec![None; self.graph.waits.len()];
        let mut waiting = VecDeque::from([to]);

        while let Some(index) = waiting.pop_front()
            && index != from
        {
            for next in self.steps_inside(root, index) {
                if next != to && before[next].is_none() {
                    before[next] = Some(index as u32);
                    waiting.push_back(next);
                }
            }
        }

        // `before` leads from `from` back to `to`. Reversed, the path begins with `to` and ends
        // with `from`, which comes to the front.
        let path = std::iter::successors(Some(from), |&index| before[index].map(|index| index as usize));
        let mut channels: Vec<Channel> = path.map(|index| self.graph.layout.channel(index)).collect();
        channels.reverse();
        channels.rotate_right(1);
        Cycle { channels }
    }
}
