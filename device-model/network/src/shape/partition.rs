//! Parts of a torus that are machines of their own.

use super::{Coordinates, Dimension, ShapeError, Torus, torus::MAX_DIMENSIONS};

/// The rule by which a dimension of a partition is a torus.
///
/// A dimension that has the machine's whole length is what it is in the machine. A shorter one is a
/// mesh, because the machine's cable from its last node leads out of the partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartitionRule {
    /// A length at which a dimension is a torus in any case, because the hardware can close it with
    /// a cable of its own. In Blue Gene/Q it is 4, the length of a midplane.
    pub closes_at: Option<u32>,
}

impl PartitionRule {
    /// Only whole dimensions are tori.
    pub const WHOLE: Self = Self { closes_at: None };
    /// Blue Gene/Q's rule: whole dimensions and those of four nodes are tori.
    pub const BLUE_GENE_Q: Self = Self { closes_at: Some(4) };

    /// Returns a partition's dimension of `length` nodes in the dimension `machine` of the machine.
    fn dimension(self, machine: Dimension, length: u32) -> Dimension {
        let is_whole_ring = machine.wraps && length == machine.length;
        Dimension { length, wraps: is_whole_ring || self.closes_at == Some(length) }
    }
}

/// A box of nodes of a torus that is a machine of its own. Its nodes are numbered as those of a
/// torus of its size; no cable leads out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    machine: Torus,
    origin: Coordinates,
    shape: Torus,
}

impl Partition {
    /// Returns the partition whose lowest node is at `origin` and which has these lengths.
    ///
    /// # Errors
    /// [`ShapeError::PartitionDimensions`] and [`ShapeError::Outside`].
    pub fn new(
        machine: Torus,
        origin: &[u32],
        lengths: &[u32],
        rule: PartitionRule,
    ) -> Result<Self, ShapeError> {
        let dimensions = machine.dimensions();
        for given_dimensions in [origin.len(), lengths.len()] {
            if given_dimensions != dimensions.len() {
                return Err(ShapeError::PartitionDimensions {
                    dimensions: given_dimensions,
                    machine: dimensions.len(),
                });
            }
        }

        let mut partition = [Dimension::mesh(1); MAX_DIMENSIONS];
        for (index, &dimension) in dimensions.iter().enumerate() {
            let (origin, length, limit) = (origin[index], lengths[index], dimension.length);
            if length == 0 || length > limit || origin > limit - length {
                return Err(ShapeError::Outside { dimension: index, origin, length, limit });
            }
            partition[index] = rule.dimension(dimension, length);
        }

        let shape = Torus::new(&partition[..dimensions.len()])?;
        Ok(Self { machine, origin: Coordinates::new(origin)?, shape })
    }

    /// Returns the partition as a network of its own.
    #[inline]
    pub fn shape(&self) -> &Torus {
        &self.shape
    }

    /// Returns the machine.
    #[inline]
    pub fn machine(&self) -> &Torus {
        &self.machine
    }

    /// Returns the coordinates of the partition's lowest node in the machine.
    #[inline]
    pub fn origin(&self) -> Coordinates {
        self.origin
    }

    /// Returns the machine's number of a node of the partition; `None` if there is no such node.
    #[inline]
    pub fn machine_node(&self, node: u32) -> Option<u32> {
        let mut coordinates = [0; MAX_DIMENSIONS];
        let in_partition = self.shape.coordinates(node)?;
        for (sum, (&own, &origin)) in coordinates.iter_mut().zip(in_partition.iter().zip(&*self.origin)) {
            *sum = own + origin;
        }
        self.machine.node(&coordinates[..in_partition.len()])
    }

    /// Returns the partition's number of a node of the machine; `None` if it is outside.
    #[inline]
    pub fn node(&self, machine_node: u32) -> Option<u32> {
        let mut coordinates = [0; MAX_DIMENSIONS];
        let in_machine = self.machine.coordinates(machine_node)?;
        for (rest, (&of_node, &origin)) in coordinates.iter_mut().zip(in_machine.iter().zip(&*self.origin)) {
            *rest = of_node.checked_sub(origin)?;
        }
        self.shape.node(&coordinates[..in_machine.len()])
    }
}
