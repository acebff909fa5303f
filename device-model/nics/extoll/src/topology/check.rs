//! The check that routing tables reach every node and can't deadlock.
//!
//! All classes of traffic use the same tables on channels of their own, so the check covers one
//! class. Its lanes are the virtual channels of the graph.

use nicforge_network::{
    deadlock::{Cycle, DeadlockError, Exits, NodeChannels, WaitGraph, by_target},
    shape::{Cabling, Wiring},
};

use super::{Route, Routes, TopologyError};
use crate::packet::LANES;

/// Checks the tables of all nodes.
pub(super) fn check_deadlock_freedom(wiring: &Wiring, routes: &Routes) -> Result<(), TopologyError> {
    // An entry that leads nowhere leaves its packets without an exit, which the graph refuses.
    let tables =
        by_target(wiring.nodes(), |node, target, exits: &mut Exits| match routes.get(node, target) {
            Route::Local if node == target => exits.deliver(),
            Route::Port { port, lane } if node != target && has_channel(wiring, node, port, lane) => {
                exits.link(port, lane);
            }
            _ => {}
        });

    let mut graph = WaitGraph::new(wiring, NodeChannels { vcs: LANES as u8, fifos: 0 }).map_err(refused)?;
    graph.add_routes(&tables).map_err(refused)?;
    graph.check().map_err(refused)
}

/// Returns whether a port of a node has a link, and the lane exists.
fn has_channel(wiring: &Wiring, node: u32, port: u8, lane: u8) -> bool {
    usize::from(lane) < LANES && wiring.far_end(node, port).is_some()
}

/// Returns the error of a network that the check refuses.
fn refused(error: DeadlockError) -> TopologyError {
    match error {
        DeadlockError::NoRoute { node, word: target } => TopologyError::Unreachable { node, target },
        DeadlockError::Endless { cycle, .. } | DeadlockError::Deadlock { cycle } => deadlock(cycle),
        other => TopologyError::Check(other),
    }
}

/// Returns the error of a cycle.
fn deadlock(cycle: Cycle) -> TopologyError {
    let (node, port, lane) = cycle.first_link().unwrap_or_default();
    TopologyError::Deadlock { node, port, lane, cycle }
}
