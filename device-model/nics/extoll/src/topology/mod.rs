//! Networks: the links between nodes, and the routes over them.
//!
//! In: the shape. Out: the links to connect, and a routing table for each card
//! ([`Topology::config`]). `check` proves that the tables reach every node and can't deadlock.
//!
//! Any network with at most six links for each node is possible. `generators` builds the usual
//! shapes; [`Topology::from_links`] makes shortest-path tables for any other.
//!
//! Shapes, cables and the search for deadlocks are those of [`nicforge_network`]. This module has
//! the card's own part: tables, lanes and limits.

mod check;
mod generators;

use std::collections::VecDeque;

use nicforge_hwi::extoll::{LINKS, MAX_NODES};
use nicforge_network::{
    deadlock::{Cycle, DeadlockError},
    shape::{Cable, CableEnd, Cabling, ShapeError, Wiring, WiringError},
};
use thiserror::Error;

use crate::config::CardConfig;

/// The next step of a packet at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// There is no such node.
    #[default]
    None,
    /// The packet is for this node.
    Local,
    /// The packet leaves through this port, 0 to 5, on this lane of its class, 0 or 1. A lane is
    /// one of the two virtual channels that each class has in each direction of a link.
    Port {
        /// The port.
        port: u8,
        /// The lane.
        lane: u8,
    },
}

/// A link between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyLink {
    /// Node and port of one end.
    pub a: (u32, u8),
    /// Node and port of the other end.
    pub b: (u32, u8),
}

impl From<Cable> for TopologyLink {
    fn from(cable: Cable) -> Self {
        Self { a: (cable.a.node, cable.a.port), b: (cable.b.node, cable.b.port) }
    }
}

impl From<TopologyLink> for Cable {
    fn from(link: TopologyLink) -> Self {
        let end = |(node, port)| CableEnd { node, port };
        Self { a: end(link.a), b: end(link.b) }
    }
}

/// The routing tables of all cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    nodes: u32,
    /// Routes by node, then target.
    table: Vec<Route>,
}

impl Routes {
    /// Returns tables with only the routes of each node to itself.
    fn new(nodes: u32) -> Self {
        let mut routes = Self { nodes, table: vec![Route::None; nodes as usize * nodes as usize] };
        for node in 0..nodes {
            routes.set(node, node, Route::Local);
        }
        routes
    }

    /// Returns the route from a node to a target; [`Route::None`] if either does not exist.
    #[inline]
    pub fn get(&self, node: u32, target: u32) -> Route {
        if node >= self.nodes || target >= self.nodes {
            return Route::None;
        }
        self.table[node as usize * self.nodes as usize + target as usize]
    }

    /// Changes a route. Ignored for nodes that do not exist.
    pub fn set(&mut self, node: u32, target: u32, route: Route) {
        if node < self.nodes && target < self.nodes {
            self.table[node as usize * self.nodes as usize + target as usize] = route;
        }
    }

    /// Returns one node's table.
    pub fn of(&self, node: u32) -> &[Route] {
        let start = node as usize * self.nodes as usize;
        self.table.get(start..start + self.nodes as usize).unwrap_or_default()
    }
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: u32,
    links: Vec<TopologyLink>,
    routes: Routes,
}

/// Reasons why a network is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// Too few or too many nodes.
    #[error("a network of {nodes} nodes: 1 to {MAX_NODES} are possible")]
    Nodes {
        /// Number of nodes.
        nodes: u64,
    },
    /// A shape needs more links for each node than a card has.
    #[error("{what} needs {links} links a node, and a card has {LINKS}")]
    Degree {
        /// The shape.
        what: &'static str,
        /// Links it needs.
        links: u64,
    },
    /// A link names a node or port that does not exist, or joins a node to itself.
    #[error("the link between {link:?} is not between ports 0 to 5 of two nodes of the network")]
    Link {
        /// The link.
        link: TopologyLink,
    },
    /// Two links at one port.
    #[error("port {port} of node {node} has two links")]
    PortTaken {
        /// The node.
        node: u32,
        /// The port.
        port: u8,
    },
    /// A table leads out of a port without a link, or has no entry.
    #[error("node {node} has no way to node {target}")]
    Unreachable {
        /// The node without a way.
        node: u32,
        /// The target that it can't reach.
        target: u32,
    },
    /// The tables allow a cycle of channels that wait for each other.
    #[error(
        "the routing tables can deadlock: a packet at node {node} that leaves by port {port} on lane {lane} can end up waiting for itself: {cycle}"
    )]
    Deadlock {
        /// A node on the cycle.
        node: u32,
        /// Its port on the cycle.
        port: u8,
        /// The lane.
        lane: u8,
        /// The whole cycle. Its virtual channels are the lanes of a class.
        cycle: Cycle,
    },
    /// The shape is impossible for another reason.
    #[error(transparent)]
    Shape(ShapeError),
    /// The tables can't be checked.
    #[error(transparent)]
    Check(DeadlockError),
}

/// Lane of a hop up the breadth-first order: see [`up_down`]. A packet changes from this lane to
/// [`LANE_DOWN`] at most once and never back, so no cycle of waiting packets can form.
const LANE_UP: u8 = 0;
/// Lane of a hop down the breadth-first order.
const LANE_DOWN: u8 = 1;

impl Topology {
    /// Builds a network of any shape with shortest up*/down* routes: up a breadth-first tree first,
    /// then down. Such routes can't deadlock, whatever the shape. The root is node 0.
    ///
    /// # Errors
    /// [`TopologyError::Nodes`], [`TopologyError::Link`], [`TopologyError::PortTaken`],
    /// [`TopologyError::Unreachable`].
    pub fn from_links(nodes: u32, links: Vec<TopologyLink>) -> Result<Self, TopologyError> {
        let routes = up_down(&wiring(nodes, &links)?);
        Self::with_routes(nodes, links, routes)
    }

    /// Builds a network with the caller's routing tables, after checking them.
    ///
    /// # Errors
    /// Each [`TopologyError`] is possible.
    pub fn with_routes(nodes: u32, links: Vec<TopologyLink>, routes: Routes) -> Result<Self, TopologyError> {
        check::check_deadlock_freedom(&wiring(nodes, &links)?, &routes)?;
        Ok(Self { nodes, links, routes })
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the links.
    pub fn links(&self) -> &[TopologyLink] {
        &self.links
    }

    /// Returns the routing tables.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the configuration of a card.
    pub fn config(&self, node: u32, vpids: u16) -> CardConfig {
        CardConfig {
            node,
            nodes: self.nodes,
            vpids,
            routes: self.routes.of(node).into(),
            ..CardConfig::alone()
        }
    }

    /// Returns the number of links on the route between two nodes; `None` if there is no route.
    pub fn hops(&self, from: u32, to: u32) -> Option<u32> {
        let wiring = wiring(self.nodes, &self.links).ok()?;
        let (mut node, mut hops) = (from, 0);

        while node != to {
            let Route::Port { port, .. } = self.routes.get(node, to) else { return None };
            node = wiring.far_end(node, port)?.node;
            hops += 1;
        }
        Some(hops)
    }
}

/// Returns the network of these links, after checking them.
fn wiring(nodes: u32, links: &[TopologyLink]) -> Result<Wiring, TopologyError> {
    if nodes == 0 || nodes > MAX_NODES {
        return Err(TopologyError::Nodes { nodes: nodes.into() });
    }
    let joins_node_to_itself = |link: &&TopologyLink| {
        let ((node_a, _), (node_b, _)) = (link.a, link.b);
        node_a == node_b
    };
    if let Some(&link) = links.iter().find(joins_node_to_itself) {
        return Err(TopologyError::Link { link });
    }

    let cables = links.iter().copied().map(Cable::from);
    Wiring::new(nodes, LINKS as u8, cables).map_err(|error| match error {
        WiringError::Nodes { nodes } => TopologyError::Nodes { nodes: nodes.into() },
        WiringError::NoNode { cable, .. } | WiringError::NoPort { cable, .. } => {
            TopologyError::Link { link: cable.into() }
        }
        WiringError::PortTaken { node, port } => TopologyError::PortTaken { node, port },
    })
}

/// Returns up*/down* tables. Each node has a rank: its position in a breadth-first walk from
/// node 0. A hop to a lower rank leads up. A route leads up any number of hops and then down, never
/// up again.
///
/// A table's entry depends on (node, target) alone, not on whether a packet has already gone down.
/// So each node from which hops down alone reach the target sends down, and every other node sends
/// up. The first hops up of a route thus end at the first node from which hops down suffice.
fn up_down(wiring: &Wiring) -> Routes {
    let nodes = wiring.nodes();
    let bfs_rank = breadth_first(wiring);
    let mut routes = Routes::new(nodes);

    for target in 0..nodes {
        // First step: nodes from which the target is reached by hops down only, nearest first.
        let mut waiting = VecDeque::from([target]);
        while let Some(node) = waiting.pop_front() {
            for (_, CableEnd { node: neighbour, port }) in wiring.neighbours(node) {
                let is_above = bfs_rank[neighbour as usize] < bfs_rank[node as usize];
                if is_above && routes.get(neighbour, target) == Route::None {
                    routes.set(neighbour, target, Route::Port { port, lane: LANE_DOWN });
                    waiting.push_back(neighbour);
                }
            }
        }

        // Second step: all other nodes send up, to the neighbour of the lowest rank that has a
        // route. Their order is that of the ranks, so the nodes above have their routes already.
        let mut rest: Vec<u32> = (0..nodes).filter(|&node| routes.get(node, target) == Route::None).collect();
        rest.sort_unstable_by_key(|&node| bfs_rank[node as usize]);

        for node in rest {
            let best = wiring
                .neighbours(node)
                .map(|(port, end)| (port, end.node))
                .filter(|&(_, other)| {
                    bfs_rank[other as usize] < bfs_rank[node as usize]
                        && routes.get(other, target) != Route::None
                })
                .min_by_key(|&(_, other)| bfs_rank[other as usize]);

            if let Some((port, _)) = best {
                routes.set(node, target, Route::Port { port, lane: LANE_UP });
            }
        }
    }
    routes
}

/// Returns each node's rank, which is its position in a breadth-first walk from node 0; `u32::MAX`
/// for a node that is not reached.
fn breadth_first(wiring: &Wiring) -> Vec<u32> {
    let mut bfs_rank = vec![u32::MAX; wiring.nodes() as usize];
    let mut waiting = VecDeque::from([0]);
    bfs_rank[0] = 0;
    let mut next_rank = 1;

    while let Some(node) = waiting.pop_front() {
        for (_, CableEnd { node: other, .. }) in wiring.neighbours(node) {
            if bfs_rank[other as usize] == u32::MAX {
                bfs_rank[other as usize] = next_rank;
                next_rank += 1;
                waiting.push_back(other);
            }
        }
    }
    bfs_rank
}

#[cfg(test)]
mod tests;
