//! Tori and meshes of one to five dimensions.

use std::{fmt, ops::Deref};

use super::{Cable, CableEnd, Cabling, Shape, ShapeError, checked_nodes, ends};

/// The largest number of dimensions of a torus.
pub const MAX_DIMENSIONS: usize = 5;

/// A dimension of a torus: its length, and whether its ends are joined.
///
/// A *torus* dimension has a cable from the up port of its last node to the down port of its first.
/// This holds for each length, as in the machines that have such cables:
///
/// - with a length of 1, the cable joins the two ports of one node (a looped cable, as in a node
///   that is tested on its own);
/// - with a length of 2, two cables join the two nodes (as in dimension E of Blue Gene/Q, which
///   has both its links, and twice the bandwidth).
///
/// A *mesh* dimension has no such cable. A network whose dimension of length 2 has one cable
/// declares it a mesh, and one whose dimension of length 1 has no cable as well. The distances are
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    /// Number of nodes in a line of this dimension.
    pub length: u32,
    /// Whether a cable joins the last node of a line with its first.
    pub wraps: bool,
}

impl Dimension {
    /// A dimension whose ends are joined.
    pub const fn torus(length: u32) -> Self {
        Self { length, wraps: true }
    }

    /// A dimension whose ends are open.
    pub const fn mesh(length: u32) -> Self {
        Self { length, wraps: false }
    }
}

/// The coordinates of a node, one for each dimension. It dereferences to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coordinates {
    values: [u32; MAX_DIMENSIONS],
    dimensions: u8,
}

impl Coordinates {
    /// Returns coordinates with these values.
    ///
    /// # Errors
    /// [`ShapeError::Dimensions`] for none or more than [`MAX_DIMENSIONS`] values.
    pub fn new(values: &[u32]) -> Result<Self, ShapeError> {
        let mut coordinates =
            Self { values: [0; MAX_DIMENSIONS], dimensions: checked_dimensions(values.len())? };
        coordinates.values[..values.len()].copy_from_slice(values);
        Ok(coordinates)
    }
}

impl Deref for Coordinates {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        &self.values[..usize::from(self.dimensions)]
    }
}

/// Writes coordinates as `(1, 2, 3)`.
impl fmt::Display for Coordinates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.iter().enumerate() {
            let before = if index == 0 { "(" } else { ", " };
            write!(out, "{before}{value}")?;
        }
        out.write_str(")")
    }
}

/// The direction of a shortest way along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards higher coordinates, from the last to 0 where the dimension wraps.
    Up,
    /// Towards lower coordinates.
    Down,
    /// Both directions are equally short: the target is half a ring away.
    Either,
}

/// A shortest way along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// Number of cables, at least 1.
    pub hops: u32,
    /// The direction.
    pub direction: Direction,
}

/// A torus of one to five dimensions. Each dimension is a torus or a mesh of its own.
///
/// Dimension 0 varies fastest: with lengths X, Y, Z, node `x + X (y + Y z)` is at (x, y, z). Port
/// `2 d` leads up in dimension `d`, port `2 d + 1` down. A cable's first end is the one at an up
/// port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Torus {
    dimensions: [Dimension; MAX_DIMENSIONS],
    /// The difference between the numbers of two neighbours in each dimension.
    strides: [u32; MAX_DIMENSIONS],
    /// Number of dimensions.
    count: u8,
    nodes: u32,
}

impl Torus {
    /// Returns a torus with these dimensions.
    ///
    /// # Errors
    /// [`ShapeError::Dimensions`] and [`ShapeError::Nodes`].
    pub fn new(dimensions: &[Dimension]) -> Result<Self, ShapeError> {
        let count = checked_dimensions(dimensions.len())?;
        let lengths = dimensions.iter().map(|dimension| u64::from(dimension.length));
        let nodes = checked_nodes(lengths.fold(1, u64::saturating_mul))?;

        let mut torus = Self {
            dimensions: [Dimension::mesh(1); MAX_DIMENSIONS],
            strides: [1; MAX_DIMENSIONS],
            count,
            nodes,
        };
        let mut stride = 1;
        for (index, &dimension) in dimensions.iter().enumerate() {
            torus.dimensions[index] = dimension;
            torus.strides[index] = stride;
            stride *= dimension.length;
        }

        Ok(torus)
    }

    /// Returns the dimensions.
    #[inline]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions[..usize::from(self.count)]
    }

    /// Returns the coordinates of a node; `None` if there is no such node.
    #[inline]
    pub fn coordinates(&self, node: u32) -> Option<Coordinates> {
        if node >= self.nodes {
            return None;
        }

        let mut coordinates = Coordinates { values: [0; MAX_DIMENSIONS], dimensions: self.count };
        for dimension in 0..usize::from(self.count) {
            coordinates.values[dimension] = self.coordinate(node, dimension);
        }
        Some(coordinates)
    }

    /// Returns the node at these coordinates; `None` if they are not those of a node.
    #[inline]
    pub fn node(&self, coordinates: &[u32]) -> Option<u32> {
        if coordinates.len() != usize::from(self.count) {
            return None;
        }

        let mut node = 0;
        for (dimension, &coordinate) in coordinates.iter().enumerate() {
            if coordinate >= self.dimensions[dimension].length {
                return None;
            }
            node += coordinate * self.strides[dimension];
        }
        Some(node)
    }

    /// Returns the shortest way along a dimension from one coordinate to another; `None` if they
    /// are equal, or if the dimension or a coordinate does not exist.
    #[inline]
    pub fn way(&self, dimension: usize, from: u32, to: u32) -> Option<Way> {
        let Dimension { length, wraps } = *self.dimensions().get(dimension)?;
        if from == to || from >= length || to >= length {
            return None;
        }

        let (direct, around) =
            if to > from { (Direction::Up, Direction::Down) } else { (Direction::Down, Direction::Up) };
        let direct_hops = from.abs_diff(to);
        let around_hops = length - direct_hops;

        if !wraps || direct_hops < around_hops {
            Some(Way { hops: direct_hops, direction: direct })
        } else if direct_hops == around_hops {
            Some(Way { hops: direct_hops, direction: Direction::Either })
        } else {
            Some(Way { hops: around_hops, direction: around })
        }
    }

    /// Returns the next end on the ring of a channel that leaves by `end`: the same port of the
    /// node at the other end of the cable. Returns `None` for a port of a mesh dimension.
    #[inline]
    pub fn ring_successor(&self, end: CableEnd) -> Option<CableEnd> {
        let dimension = self.dimensions().get(usize::from(end.port / 2))?;
        let next = self.far_end(end.node, end.port)?;
        dimension.wraps.then_some(CableEnd { node: next.node, port: end.port })
    }

    /// Returns a coordinate of a node. Both must exist.
    #[inline]
    pub(super) fn coordinate(&self, node: u32, dimension: usize) -> u32 {
        node / self.strides[dimension] % self.dimensions[dimension].length
    }
}

impl Cabling for Torus {
    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn ports(&self) -> u8 {
        self.count * 2
    }

    #[inline]
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        if node >= self.nodes || port >= self.ports() {
            return None;
        }

        let dimension = usize::from(port / 2);
        let Dimension { length, wraps } = self.dimensions[dimension];
        let (coordinate, stride) = (self.coordinate(node, dimension), self.strides[dimension]);
        let (is_first, is_last) = (coordinate == 0, coordinate + 1 == length);
        let first_to_last = (length - 1) * stride;

        // Even ports lead up, odd ones down. The cable that closes the ring exists in a torus only.
        let (closes_ring, next) = match port % 2 {
            0 if is_last => (true, node - first_to_last),
            0 => (false, node + stride),
            _ if is_first => (true, node + first_to_last),
            _ => (false, node - stride),
        };
        (wraps || !closes_ring).then_some(CableEnd { node: next, port: port ^ 1 })
    }

    fn cables(&self) -> impl Iterator<Item = Cable> {
        ends(self)
            .filter(|end| end.port % 2 == 0)
            .filter_map(move |a| Some(Cable { a, b: self.far_end(a.node, a.port)? }))
    }
}

impl Shape for Torus {
    #[inline]
    fn distance(&self, from: u32, to: u32) -> Option<u32> {
        if from >= self.nodes || to >= self.nodes {
            return None;
        }

        let hops = |dimension| {
            let way = self.way(dimension, self.coordinate(from, dimension), self.coordinate(to, dimension));
            way.map_or(0, |way| way.hops)
        };
        Some((0..usize::from(self.count)).map(hops).sum())
    }

    /// Dimension order: the lowest dimension in which the nodes differ comes first. If both
    /// directions are equally short, the way leads up.
    #[inline]
    fn port_towards(&self, node: u32, target: u32) -> Option<u8> {
        if node >= self.nodes || target >= self.nodes {
            return None;
        }

        (0..self.count).find_map(|dimension| {
            let index = usize::from(dimension);
            let way = self.way(index, self.coordinate(node, index), self.coordinate(target, index))?;
            Some(dimension * 2 + u8::from(way.direction == Direction::Down))
        })
    }
}

/// Returns a number of dimensions, if it is in range.
fn checked_dimensions(dimensions: usize) -> Result<u8, ShapeError> {
    if (1..=MAX_DIMENSIONS).contains(&dimensions) {
        Ok(dimensions as u8)
    } else {
        Err(ShapeError::Dimensions { dimensions, min: 1, max: MAX_DIMENSIONS })
    }
}
