//! The usual shapes of networks.

use nicforge_hwi::extoll::{LINKS, MAX_NODES};
use nicforge_network::shape::{Dimension, Direction, FullMesh, Hypercube, Shape, ShapeError, Torus};

use super::{Route, Routes, Topology, TopologyError};

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
        if dimensions.is_empty() {
            return Self::single();
        }

        // A dimension of 2 has one link, so it is a mesh.
        let dimension = |&length: &u32| Dimension { length, wraps: length > 2 };
        let torus = Torus::new(&dimensions.iter().map(dimension).collect::<Vec<_>>())?;

        Self::with_shape(&torus, |node, target| torus_route(&torus, node, target))
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

        let cube = Hypercube::new(dimensions)?;
        Self::with_shape(&cube, |node, target| on_one_lane(&cube, node, target))
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

        let mesh = FullMesh::new(nodes)?;
        Self::with_shape(&mesh, |node, target| on_one_lane(&mesh, node, target))
    }

    /// Builds a network of a shape. `route` returns the route from a node to another one.
    fn with_shape(shape: &impl Shape, route: impl Fn(u32, u32) -> Route) -> Result<Self, TopologyError> {
        let nodes = shape.nodes();
        if nodes > MAX_NODES {
            return Err(TopologyError::Nodes { nodes: nodes.into() });
        }

        let mut routes = Routes::new(nodes);
        for node in 0..nodes {
            for target in (0..nodes).filter(|&target| target != node) {
                routes.set(node, target, route(node, target));
            }
        }

        Self::with_routes(nodes, shape.cables().map(Into::into).collect(), routes)
    }
}

impl From<ShapeError> for TopologyError {
    fn from(error: ShapeError) -> Self {
        match error {
            ShapeError::Nodes { nodes } => Self::Nodes { nodes },
            other => Self::Shape(other),
        }
    }
}

/// Returns a route by a shape's fixed path on lane 0.
fn on_one_lane(shape: &impl Shape, node: u32, target: u32) -> Route {
    shape.port_towards(node, target).map_or(Route::Local, |port| Route::Port { port, lane: 0 })
}

/// Returns a route in dimension order.
///
/// The dateline of a ring is between its last node and its first. A packet that has yet to cross it
/// travels on lane 0, all others on lane 1. Lane 0 ends at the dateline and lane 1 never crosses
/// it, so neither lane closes the ring.
fn torus_route(torus: &Torus, node: u32, target: u32) -> Route {
    let (Some(from), Some(to)) = (torus.coordinates(node), torus.coordinates(target)) else {
        return Route::None;
    };

    for dimension in 0..torus.dimensions().len() {
        let (from, to) = (from[dimension], to[dimension]);
        let Some(way) = torus.way(dimension, from, to) else { continue };

        let down = way.direction == Direction::Down;
        let wraps = if down { to > from } else { to < from };
        return Route::Port { port: dimension as u8 * 2 + u8::from(down), lane: u8::from(!wraps) };
    }
    Route::Local
}
