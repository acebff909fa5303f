//! Hypercubes.

use super::{CableEnd, Cabling, MAX_NODES, Shape, ShapeError};

/// A hypercube: port `d` leads to the node whose number differs in bit `d` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hypercube {
    dimensions: u8,
}

impl Hypercube {
    /// The largest number of dimensions.
    pub const MAX_DIMENSIONS: u32 = MAX_NODES.ilog2();

    /// Returns a hypercube of 0 to [`Hypercube::MAX_DIMENSIONS`] dimensions.
    ///
    /// # Errors
    /// [`ShapeError::Dimensions`].
    pub fn new(dimensions: u32) -> Result<Self, ShapeError> {
        if dimensions > Self::MAX_DIMENSIONS {
            let max = Self::MAX_DIMENSIONS as usize;
            return Err(ShapeError::Dimensions { dimensions: dimensions as usize, min: 0, max });
        }
        Ok(Self { dimensions: dimensions as u8 })
    }
}

impl Cabling for Hypercube {
    fn nodes(&self) -> u32 {
        1 << self.dimensions
    }

    fn ports(&self) -> u8 {
        self.dimensions
    }

    #[inline]
    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        let exists = node < self.nodes() && port < self.dimensions;
        exists.then(|| CableEnd { node: node ^ (1 << port), port })
    }
}

impl Shape for Hypercube {
    #[inline]
    fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let exist = from < self.nodes() && to < self.nodes();
        exist.then(|| (from ^ to).count_ones())
    }

    /// The lowest differing bit is corrected first (e-cube).
    #[inline]
    fn port_towards(&self, node: u32, target: u32) -> Option<u8> {
        let leaves = node != target && node < self.nodes() && target < self.nodes();
        leaves.then(|| (node ^ target).trailing_zeros() as u8)
    }
}
