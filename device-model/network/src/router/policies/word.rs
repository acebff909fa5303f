//! The route word of packets on tori and meshes.

use thiserror::Error;

use crate::shape::{Dimension, MAX_DIMENSIONS, Torus};

/// Number of classes of packets.
pub const CLASSES: usize = 4;
/// Number of orders of dimensions for adaptive packets.
pub const ZONES: usize = 4;

/// A route word for [`super::TorusPolicy`]: the target's coordinates, and the way to go.
///
/// | bits | contents |
/// | --- | --- |
/// | 0 to 39 | coordinates of the target, 8 bits for each dimension |
/// | 40 to 44 | direction in each dimension: 0 up, 1 down |
/// | 45 | adaptive: the packet may take any shortest way, and packets may overtake each other |
/// | 46 | deposit: a copy is delivered to each node that the packet crosses |
/// | 47, 48 | class of the packet, 0 to 3 |
/// | 49, 50 | zone: order of the dimensions of an adaptive packet, 0 to 3 |
/// | 51 to 63 | free for the NIC |
///
/// The sender sets the directions, as the hint bits of Blue Gene do. Routers only compare
/// coordinates. A direction that is not the shorter one is permitted on rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TorusWord(pub u64);

/// Bits of a coordinate.
const COORDINATE: u32 = 8;
/// Number of the first direction bit.
const DIRECTION: u32 = 40;
const ADAPTIVE: u64 = 1 << 45;
const DEPOSIT: u64 = 1 << 46;
const CLASS: u32 = 47;
const ZONE: u32 = 49;
/// Number of the first bit that is free for the NIC.
const FREE: u32 = 51;
/// The coordinates of a word.
const COORDINATES: u64 = (1 << DIRECTION) - 1;

/// Reasons why a route word cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WordError {
    /// A node does not exist.
    #[error("there is no node {node}: the network has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// A dimension is too long for a route word.
    #[error("a dimension of {length} nodes: route words have coordinates of at most 256")]
    TooLong {
        /// Nodes of the dimension.
        length: u32,
    },
}

impl TorusWord {
    /// Returns the word of a packet from one node to another by a shortest way. `ties` says for
    /// each dimension, one bit for each, whether packets go down if both directions are equally
    /// short.
    ///
    /// # Errors
    /// [`WordError`].
    #[inline]
    pub fn between(torus: &Torus, from: u32, to: u32, ties: u8) -> Result<Self, WordError> {
        let nodes = crate::shape::Cabling::nodes(torus);
        for node in [from, to] {
            if node >= nodes {
                return Err(WordError::NoNode { node, nodes });
            }
        }

        // Dimension 0 varies fastest in the numbers of nodes.
        let (mut word, mut here, mut there) = (0, from, to);
        for (index, dimension) in torus.dimensions().iter().enumerate() {
            let length = dimension.length;
            if length > 256 {
                return Err(WordError::TooLong { length });
            }

            let [own, target] = [here % length, there % length];
            (here, there) = (here / length, there / length);
            word |= u64::from(target) << (COORDINATE as usize * index);
            let tie = ties >> index & 1 == 1;
            word |= u64::from(is_down(*dimension, own, target, tie)) << (DIRECTION as usize + index);
        }
        Ok(Self(word))
    }

    /// Returns the word of [`TorusWord::between`] for the nodes at these coordinates.
    #[inline]
    pub(super) fn of_coordinates(torus: &Torus, here: &[u32], there: &[u32], ties: u8) -> Self {
        let mut word = 0;
        for (dimension, (&here, &there)) in here.iter().zip(there).enumerate() {
            word |= u64::from(there) << (COORDINATE * dimension as u32);

            let Some(&length) = torus.dimensions().get(dimension) else { continue };
            let down = is_down(length, here, there, ties >> dimension & 1 == 1);
            word |= u64::from(down) << (DIRECTION + dimension as u32);
        }
        Self(word)
    }

    /// Returns the word of a packet that crosses all other nodes of the line through a node along a
    /// dimension, in one direction, and leaves a copy at each. On a mesh, it crosses those that lie
    /// in this direction. Returns `None` if the dimension or the node does not exist, or there is
    /// no node to cross.
    pub fn line(torus: &Torus, from: u32, dimension: usize, down: bool) -> Option<Self> {
        let length = torus.dimensions().get(dimension)?.length;
        let wraps = torus.dimensions()[dimension].wraps;
        let mut end = torus.coordinates(from)?.to_vec();
        let here = end[dimension];

        end[dimension] = match (wraps, down) {
            (true, false) => (here + length - 1) % length,
            (true, true) => (here + 1) % length,
            (false, false) => length - 1,
            (false, true) => 0,
        };
        if end[dimension] == here {
            return None;
        }

        let word = Self::between(torus, from, torus.node(&end)?, 0).ok()?;
        Some(word.with_direction(dimension, down).with_deposit())
    }

    /// Returns the word for an adaptive packet.
    #[must_use]
    #[inline]
    pub fn adaptive(self) -> Self {
        Self(self.0 | ADAPTIVE)
    }

    /// Returns the word for a packet in dimension order.
    #[must_use]
    #[inline]
    pub fn in_order(self) -> Self {
        Self(self.0 & !ADAPTIVE)
    }

    /// Returns the word for a packet that goes down along a dimension, or up.
    #[must_use]
    pub fn with_direction(self, dimension: usize, is_down: bool) -> Self {
        let bit = DIRECTION + dimension as u32;
        Self(self.0 & !(1 << bit) | u64::from(is_down) << bit)
    }

    /// Returns the word for a packet that leaves a copy at each node that it crosses. It is not
    /// adaptive.
    #[must_use]
    pub fn with_deposit(self) -> Self {
        Self(self.0 & !ADAPTIVE | DEPOSIT)
    }

    /// Returns the word for a packet of a class. Only the lowest two bits of the number count.
    #[must_use]
    #[inline]
    pub fn with_class(self, class: u8) -> Self {
        Self(self.0 & !(0b11 << CLASS) | u64::from(class & 0b11) << CLASS)
    }

    /// Returns the word for an adaptive packet with this order of dimensions. Only the lowest two
    /// bits of the number count.
    #[must_use]
    pub fn with_zone(self, zone: u8) -> Self {
        Self(self.0 & !(0b11 << ZONE) | u64::from(zone & 0b11) << ZONE)
    }

    /// Returns the word with the bits that are free for the NIC. Only the lowest 13 bits of the
    /// number count.
    #[must_use]
    pub fn with_free_bits(self, bits: u16) -> Self {
        Self(self.0 & ((1 << FREE) - 1) | u64::from(bits) << FREE)
    }

    /// Returns the bits that are free for the NIC.
    #[inline]
    pub fn free_bits(self) -> u16 {
        (self.0 >> FREE) as u16
    }

    /// Returns the coordinates, 8 bits for each dimension.
    #[inline]
    pub(super) fn packed(self) -> u64 {
        self.0 & COORDINATES
    }

    /// Returns the target's coordinate in a dimension.
    #[inline]
    pub fn coordinate(self, dimension: usize) -> u32 {
        (self.0 >> (COORDINATE as usize * dimension)) as u32 & 0xff
    }

    /// Returns the port by which the packet leaves along a dimension.
    #[inline]
    pub fn port(self, dimension: usize) -> u8 {
        let is_down = (self.0 >> DIRECTION >> dimension) as u8 & 1;
        dimension as u8 * 2 + is_down
    }

    /// Returns whether the packet goes down along a dimension.
    #[inline]
    pub fn is_down(self, dimension: usize) -> bool {
        self.0 >> (DIRECTION as usize + dimension) & 1 == 1
    }

    /// Returns whether the packet is adaptive.
    #[inline]
    pub fn is_adaptive(self) -> bool {
        self.0 & ADAPTIVE != 0
    }

    /// Returns whether the packet goes in dimension order and leaves no copies.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (ADAPTIVE | DEPOSIT) == 0
    }

    /// Returns whether the packet leaves copies.
    #[inline]
    pub fn deposits(self) -> bool {
        self.0 & DEPOSIT != 0
    }

    /// Returns the class of the packet.
    #[inline]
    pub fn class(self) -> usize {
        (self.0 >> CLASS) as usize & 0b11
    }

    /// Returns the zone of the packet.
    #[inline]
    pub fn zone(self) -> usize {
        (self.0 >> ZONE) as usize & 0b11
    }
}

/// Returns whether a shortest way from one coordinate to another leads down. `tie` is the answer
/// if both directions are equally short.
#[inline]
fn is_down(Dimension { length, wraps }: Dimension, from: u32, to: u32, tie: bool) -> bool {
    if !wraps {
        return to < from;
    }

    // The cables up are more than half of the ring. Half of it counts as more if a tie leads down.
    let up = if to < from { to + length - from } else { to - from };
    2 * up + u32::from(tie) > length
}

/// Returns coordinates as a route word has them.
pub(super) fn pack(coordinates: &[u32]) -> u64 {
    let shifted = coordinates.iter().enumerate().take(MAX_DIMENSIONS);
    shifted.fold(0, |word, (dimension, &value)| word | u64::from(value) << (COORDINATE as usize * dimension))
}
