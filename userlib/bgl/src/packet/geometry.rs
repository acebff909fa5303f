//! Ranks, coordinates and directions.

use std::fmt;

use nicforge_hwi::torus::{CORES, DIMENSIONS, MAX_NODES, PORTS, PacketHeader, hint};

/// Rank of a core in the machine: twice the number of its node, plus the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

/// Bits of a rank, for software headers.
pub(crate) const RANK_BITS: u32 = 13;
const _: () = assert!(MAX_NODES * CORES as u32 <= 1 << RANK_BITS);

impl Rank {
    /// Returns the rank of a core, 0 or 1, of a node.
    pub const fn new(node: u16, core: u16) -> Self {
        Self(node * CORES + core % CORES)
    }

    /// Returns the number of the node, X fastest.
    pub const fn node(self) -> u16 {
        self.0 / CORES
    }

    /// Returns the core of the node, 0 or 1.
    pub const fn core(self) -> u16 {
        self.0 % CORES
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (core {} of node {})", self.0, self.core(), self.node())
    }
}

/// A dimension of the torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The dimension in which node numbers are adjacent.
    X,
    /// The second dimension.
    Y,
    /// The third dimension.
    Z,
}

/// A direction in a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards greater coordinates.
    Plus,
    /// Towards lesser coordinates.
    Minus,
}

/// Returns the hint bit of a link.
const fn hint_of(dimension: usize, direction: Direction) -> u8 {
    hint::of_port(2 * dimension as u8 + direction as u8)
}
const _: () = assert!(PORTS as usize == 2 * DIMENSIONS);

/// Size of the machine, and which of its dimensions are tori.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The greatest coordinates.
    pub last: [u8; DIMENSIONS],
    /// Whether each dimension is a torus; otherwise it is a mesh.
    pub wraps: [bool; DIMENSIONS],
}

impl Shape {
    /// Returns the number of coordinates of each dimension.
    fn sizes(&self) -> [u32; DIMENSIONS] {
        self.last.map(|last| u32::from(last) + 1)
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.sizes().iter().product()
    }

    /// Returns the coordinates of a node, if the machine has it.
    pub fn coordinates(&self, node: u32) -> Option<[u8; DIMENSIONS]> {
        let [x, y, _] = self.sizes();
        (node < self.nodes()).then_some([(node % x) as u8, (node / x % y) as u8, (node / (x * y)) as u8])
    }

    /// Returns the number of the node at these coordinates, if the machine has it.
    pub fn node(&self, coordinates: [u8; DIMENSIONS]) -> Option<u32> {
        let is_inside = coordinates.iter().zip(self.last).all(|(&at, last)| at <= last);
        let [x_size, y_size, _] = self.sizes();
        let [x, y, z] = coordinates.map(u32::from);
        is_inside.then_some(x + x_size * (y + y_size * z))
    }

    /// Returns the hint bits of the shortest ways between two nodes: `BGLTorusCalcHints`. Of two
    /// ways of equal length in a dimension, nodes with an even coordinate take the way up, and the
    /// others the way down. The hints are valid for coordinates inside the machine.
    pub fn hints_towards(&self, from: [u8; DIMENSIONS], to: [u8; DIMENSIONS]) -> u8 {
        let mut hints = 0;
        for dimension in 0..DIMENSIONS {
            if let Some(direction) = self.direction_towards(dimension, from[dimension], to[dimension]) {
                hints |= hint_of(dimension, direction);
            }
        }
        hints
    }

    /// Returns the direction of the shortest way between two coordinates, unless they are equal.
    fn direction_towards(&self, dimension: usize, from: u8, to: u8) -> Option<Direction> {
        if from == to {
            return None;
        }
        let direct = if to > from { Direction::Plus } else { Direction::Minus };
        if !self.wraps[dimension] {
            return Some(direct);
        }

        let around = if to > from { Direction::Minus } else { Direction::Plus };
        let distance = u32::from(from.abs_diff(to));
        Some(match (2 * distance).cmp(&self.sizes()[dimension]) {
            std::cmp::Ordering::Less => direct,
            std::cmp::Ordering::Greater => around,
            std::cmp::Ordering::Equal if from.is_multiple_of(2) => Direction::Plus,
            std::cmp::Ordering::Equal => Direction::Minus,
        })
    }
}

/// A rank's place in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank itself.
    pub rank: Rank,
    /// Life of the rank's core.
    pub life: u16,
    /// The coordinates of the rank's node.
    pub coordinates: [u8; DIMENSIONS],
    /// The machine.
    pub shape: Shape,
}

impl Place {
    /// Returns the number of ranks of the machine.
    pub fn ranks(&self) -> u16 {
        self.shape.nodes() as u16 * CORES
    }

    /// Returns the header of a dynamic packet to a rank, which may be on this node. Returns `None`
    /// for a rank that the machine does not have.
    pub fn route(&self, rank: Rank) -> Option<PacketHeader> {
        let coordinates = self.shape.coordinates(u32::from(rank.node()))?;
        let hints = self.shape.hints_towards(self.coordinates, coordinates);
        Some(PacketHeader::to(coordinates, rank.core()).with_hints(hints))
    }

    /// Returns the header of a packet of which the next `hops` nodes of a line each get a copy, on
    /// core `core`. Broadcasts to a line, a plane and a cube are made of such packets.
    ///
    /// Returns `None` if the line leaves a mesh, goes all the way around a torus, or has no hops.
    pub fn deposit_line(
        &self,
        dimension: Dimension,
        direction: Direction,
        hops: u8,
        core: u16,
    ) -> Option<PacketHeader> {
        let index = dimension as usize;
        let (size, from) = (self.shape.sizes()[index], u32::from(self.coordinates[index]));
        let hops = u32::from(hops);
        if hops == 0 || hops >= size {
            return None;
        }

        let end = match direction {
            Direction::Plus => from + hops,
            Direction::Minus => from + size - hops,
        };
        let crosses_the_edge = match direction {
            Direction::Plus => end >= size,
            Direction::Minus => end < size,
        };
        if crosses_the_edge && !self.shape.wraps[index] {
            return None;
        }

        let mut coordinates = self.coordinates;
        coordinates[index] = (end % size) as u8;
        Some(PacketHeader::to(coordinates, core).with_hints(hint_of(index, direction)).deposit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORUS: Shape = Shape { last: [3, 4, 0], wraps: [true, true, false] };
    const MESH: Shape = Shape { last: [3, 4, 0], wraps: [false; 3] };

    fn place(shape: Shape, coordinates: [u8; 3]) -> Place {
        let node = shape.node(coordinates).unwrap() as u16;
        Place { rank: Rank::new(node, 0), life: 1, coordinates, shape }
    }

    #[test]
    fn nodes_and_coordinates_correspond() {
        for node in 0..TORUS.nodes() {
            assert_eq!(TORUS.node(TORUS.coordinates(node).unwrap()), Some(node));
        }
        assert_eq!((TORUS.coordinates(20), TORUS.node([4, 0, 0])), (None, None));
        assert_eq!(TORUS.coordinates(6), Some([2, 1, 0]));
    }

    #[test]
    fn hints_take_the_shorter_way_around_a_torus_only() {
        let (x_plus, x_minus, y_minus) = (0x20, 0x10, 0x04);
        assert_eq!(TORUS.hints_towards([0, 0, 0], [3, 4, 0]), x_minus | y_minus);
        assert_eq!(MESH.hints_towards([0, 0, 0], [3, 0, 0]), x_plus);
        assert_eq!(TORUS.hints_towards([1, 1, 0], [1, 1, 0]), 0);
    }

    #[test]
    fn ways_of_equal_length_are_divided_by_parity() {
        let hints = |from| TORUS.hints_towards([from, 0, 0], [(from + 2) % 4, 0, 0]);
        assert_eq!([0, 1, 2, 3].map(hints), [0x20, 0x10, 0x20, 0x10]);
    }

    #[test]
    fn routes_lead_to_all_ranks_of_the_machine() {
        let place = place(TORUS, [1, 0, 0]);
        assert_eq!([40, u16::MAX].map(|rank| place.route(Rank(rank))), [None; 2]);
        assert_eq!(place.route(Rank(3)).map(|header| (header.hints(), header.group())), Some((0, 1)));

        let header = place.route(Rank(39)).unwrap();
        assert_eq!((header.destination(), header.group(), header.is_dynamic()), ([3, 4, 0], 1, true));
    }

    #[test]
    fn deposit_line_ends_within_a_mesh_and_before_its_own_node() {
        let line = |shape, direction, hops| {
            let header = place(shape, [1, 0, 0]).deposit_line(Dimension::X, direction, hops, 1)?;
            Some((header.destination()[0], header.hints(), header.deposits()))
        };
        assert_eq!(line(TORUS, Direction::Plus, 3), Some((0, 0x20, true)));
        assert_eq!(line(TORUS, Direction::Minus, 2), Some((3, 0x10, true)));
        assert_eq!(line(MESH, Direction::Plus, 2), Some((3, 0x20, true)));
        assert_eq!(line(MESH, Direction::Minus, 1), Some((0, 0x10, true)));
        assert_eq!([line(MESH, Direction::Plus, 3), line(MESH, Direction::Minus, 2)], [None; 2]);
        assert_eq!([line(TORUS, Direction::Plus, 4), line(TORUS, Direction::Plus, 0)], [None; 2]);
    }
}
