//! The distances between the nodes of the benchmark's machine.

use std::collections::VecDeque;

use nicforge::failure::Failure;
use nicforge_core::{fabric::LinkId, ids::FunctionId, machine::Machine};
use nicforge_machine::build::Built;

use super::{
    BENCH,
    child::{CountedFigure, DEPTH},
};
use crate::machine::{build, describe};

/// Number of compute nodes of the benchmark's machine: a whole pset of Blue Gene/L.
const COMPUTE_NODES: u32 = 64;

/// The route from the I/O node to a compute node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The compute node's rank.
    pub(super) rank: u32,
    /// Its address in the tree.
    pub(super) address: u32,
    /// Number of links between the two.
    pub(super) hops: u32,
}

impl Route {
    /// Builds the benchmark's machine, and returns it with the route that a figure uses: a longest
    /// one for [`CountedFigure::EngineFar`], and a shortest one for the others.
    ///
    /// # Errors
    /// Returns an error when the benchmark's machine cannot be built.
    pub(super) fn of(figure: CountedFigure) -> Result<(Machine, Self), Failure> {
        let (mut machine, built) = build_machine()?;
        let distances = distances(&mut machine, &built);
        let reachable = built.nodes.iter().zip(0..).zip(distances).filter_map(|((node, address), hops)| {
            (node.role.name() == "compute").then_some(Self { rank: node.rank, address, hops: hops? })
        });

        let chosen = match figure {
            CountedFigure::EngineFar => reachable.max_by_key(|route| route.hops),
            _ => reachable.min_by_key(|route| route.hops),
        };

        match chosen {
            Some(route) => Ok((machine, route)),
            None => Err(Failure::environment("no compute node can be reached in the bench's machine")),
        }
    }

    /// Returns the compute node's name.
    pub(super) fn name(&self) -> String {
        format!("cn{}", self.rank)
    }
}

/// Builds the machine that packets are counted in.
///
/// # Errors
/// Returns an error when it cannot be built.
fn build_machine() -> Result<(Machine, Built), Failure> {
    let pset = format!("[[pset]]\ncompute_nodes = {COMPUTE_NODES}\nfifo_depth = {DEPTH}\n");
    build(&describe(BENCH.name, &pset)?)
}

/// Returns the number of links between the I/O node and each node, in the order of the nodes, by a
/// breadth-first search. A node that cannot be reached has none.
fn distances(machine: &mut Machine, built: &Built) -> Vec<Option<u32>> {
    let fabric = machine.fabric();
    let links: Vec<_> = (0..fabric.links()).filter_map(|link| fabric.link_ends(LinkId(link)).ok()).collect();
    let node_of = |function: FunctionId| built.nodes.iter().position(|node| node.has_function(function));
    let mut distances = vec![None; built.nodes.len()];
    let mut queue = VecDeque::new();

    if let Some(start) = built.nodes.iter().position(|node| node.role.name() == "io") {
        distances[start] = Some(0);
        queue.push_back((start, 0));
    }

    while let Some((node, hops)) = queue.pop_front() {
        for [(a, _), (b, _)] in &links {
            for (from, to) in [(*a, *b), (*b, *a)] {
                let (Some(from), Some(to)) = (node_of(from), node_of(to)) else { continue };
                if from == node && distances[to].is_none() {
                    distances[to] = Some(hops + 1);
                    queue.push_back((to, hops + 1));
                }
            }
        }
    }

    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_near_route_has_one_hop_and_the_far_one_crosses_the_tree() {
        let hops = |figure| Route::of(figure).ok().map(|(_, route)| route.hops);
        let (short_route, long_route) = (hops(CountedFigure::EngineNear), hops(CountedFigure::EngineFar));

        assert_eq!(short_route, Some(1));
        // 65 nodes with at most two children each.
        assert!(long_route.is_some_and(|hops| (5..64).contains(&hops)), "{long_route:?}");
    }
}
