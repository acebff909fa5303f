//! The usual shapes of networks.

use nicforge_hwi::extoll::{LINKS, MAX_NODES};

use super::{Route, Routes, Topology, TopologyError, TopologyLink};

impl Topology {
    /// Builds a network of one card without links.
    ///
    /// # Errors
    /// There are none in practice.
    pub fn single() -> Result<Self, TopologyError> {
        Self::with_routes(1, Vec::new(), Routes::new(1))
    }

    /// Builds a torus of up to three dimensions; node `x + X (y + Y z)` is at position (x, y, z).
    ///
    /// Routing is in dimension order, by the shorter way round; if both are equally long, the
    /// positive one. Port 2 d leads up in dimension d, port 2 d + 1 down. A dimension of 2 has one
    /// link between its two nodes.
    ///
    /// # Errors
    /// [`TopologyError::Nodes`], [`TopologyError::Degree`].
    pub fn torus(dimensions: &[u32]) -> Result<Self, TopologyError> {
        if dimensions.len() * 2 > LINKS {
            return Err(TopologyError::Degree { what: "a torus", links: dimensions.len() as u64 * 2 });
        }

        let nodes = product(dimensions)?;
        let mut links = Vec::new();
        let mut routes = Routes::new(nodes);

        for node in 0..nodes {
            let mut stride = 1;
            for (dimension, &size) in dimensions.iter().enumerate() {
                let position = node / stride % size;
                let next = node - position * stride + (position + 1) % size * stride;
                // Two nodes share one link, which the lower one creates.
                if size > 2 || (size == 2 && position == 0) {
                    let port = dimension as u8 * 2;
                    links.push(TopologyLink { a: (node, port), b: (next, port + 1) });
                }
                stride *= size;
            }

            for target in 0..nodes {
                routes.set(node, target, torus_route(dimensions, node, target));
            }
        }

        Self::with_routes(nodes, links, routes)
    }

    /// Builds a hypercube of `dimensions` (0 to 6). Nodes whose numbers differ in bit `d` are
    /// linked by port `d`. Routes correct the lowest differing bit first.
    ///
    /// # Errors
    /// [`TopologyError::Degree`].
    pub fn hypercube(dimensions: u32) -> Result<Self, TopologyError> {
        if dimensions as usize > LINKS {
            return Err(TopologyError::Degree { what: "a hypercube", links: dimensions.into() });
        }

        let nodes = 1 << dimensions;
        let mut links = Vec::new();
        let mut routes = Routes::new(nodes);

        for node in 0..nodes {
            for port in 0..dimensions {
                let other = node ^ (1 << port);
                if node < other {
                    links.push(TopologyLink { a: (node, port as u8), b: (other, port as u8) });
                }
            }

            for target in (0..nodes).filter(|&target| target != node) {
                let port = (node ^ target).trailing_zeros() as u8;
                routes.set(node, target, Route::Port { port, lane: 0 });
            }
        }

        Self::with_routes(nodes, links, routes)
    }

    /// Builds a full mesh of up to 7 nodes, in which each node is linked with each other node.
    ///
    /// # Errors
    /// [`TopologyError::Nodes`], [`TopologyError::Degree`].
    pub fn full_mesh(nodes: u32) -> Result<Self, TopologyError> {
        if nodes == 0 {
            return Err(TopologyError::Nodes { nodes: 0 });
        }

        if nodes as usize > LINKS + 1 {
            return Err(TopologyError::Degree { what: "a full mesh", links: u64::from(nodes) - 1 });
        }

        let mut links = Vec::new();
        let mut routes = Routes::new(nodes);
        // A node's ports to the others count up in their order, without the node itself.
        let port = |node: u32, other: u32| if other < node { other as u8 } else { other as u8 - 1 };

        for node in 0..nodes {
            for other in (0..nodes).filter(|&other| other != node) {
                if node < other {
                    links.push(TopologyLink { a: (node, port(node, other)), b: (other, port(other, node)) });
                }
                routes.set(node, other, Route::Port { port: port(node, other), lane: 0 });
            }
        }

        Self::with_routes(nodes, links, routes)
    }
}

/// Returns the number of nodes of a torus, if it is in range.
fn product(dimensions: &[u32]) -> Result<u32, TopologyError> {
    let nodes: u64 = dimensions.iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul);
    match u32::try_from(nodes) {
        Ok(nodes @ 1..=MAX_NODES) => Ok(nodes),
        _ => Err(TopologyError::Nodes { nodes }),
    }
}

/// Returns a route in dimension order.
///
/// The dateline of a ring is between its last node and its first. A packet that has yet to cross it
/// travels on lane 0, all others on lane 1. Lane 0 ends at the dateline and lane 1 never crosses
/// it, so neither lane closes the ring.
fn torus_route(dimensions: &[u32], node: u32, target: u32) -> Route {
    let mut stride = 1;
    for (dimension, &size) in dimensions.iter().enumerate() {
        let (from, to) = (node / stride % size, target / stride % size);
        stride *= size;
        if from == to {
            continue;
        }

        let forward = (to + size - from) % size;
        // Two nodes have one link, which leads up from the first and down from the second.
        let up = if size == 2 { from == 0 } else { forward <= size - forward };
        let wraps = if up { to < from } else { to > from };
        return Route::Port { port: dimension as u8 * 2 + u8::from(!up), lane: u8::from(!wraps) };
    }
    Route::Local
}
