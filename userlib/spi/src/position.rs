//! The position of a node in its network, and the routes to other nodes.

use nicforge_hwi::mu_packet::{DIMENSIONS, Destination};

use crate::PointToPoint;

/// Coordinates in A to E.
pub type Coordinates = [u8; DIMENSIONS];

/// The position of a node in its network, and the network's shape. The public name is
/// `Personality_t`'s `Network_Config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePosition {
    /// Nodes in each dimension, at least 1.
    pub shape: Coordinates,
    /// Coordinates of this node.
    pub own: Coordinates,
}

impl NodePosition {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.shape.map(u32::from).iter().product()
    }

    /// Returns this node as a destination.
    pub fn destination(&self) -> Destination {
        Destination::new(self.own)
    }

    /// Returns the number of this node. Nodes are counted with A fastest.
    pub fn rank(&self) -> u32 {
        let from_e_to_a = self.own.into_iter().zip(self.shape).rev();
        from_e_to_a.fold(0, |rank, (own, length)| rank * u32::from(length) + u32::from(own))
    }

    /// Returns the coordinates of a node, or `None` if there is none of this number.
    pub fn coordinates(&self, rank: u32) -> Option<Coordinates> {
        if rank >= self.nodes() {
            return None;
        }

        let mut remaining = rank;
        Some(self.shape.map(|length| {
            let coordinate = remaining % u32::from(length);
            remaining /= u32::from(length);
            coordinate as u8
        }))
    }

    /// Returns the route on which messages to a node stay in order. Messages to this node itself
    /// take a local FIFO.
    pub fn ordered(&self, to: Coordinates) -> PointToPoint {
        let destination = Destination::new(to);
        if to == self.own {
            PointToPoint::local(destination, false)
        } else {
            PointToPoint::ordered(destination)
        }
    }

    /// Returns the route to a node on which packets choose their way by load. Messages to this node
    /// itself take a local FIFO.
    pub fn dynamic(&self, to: Coordinates) -> PointToPoint {
        let destination = Destination::new(to);
        if to == self.own {
            PointToPoint::local(destination, false)
        } else {
            PointToPoint::dynamic(destination)
        }
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::mu_packet::fifo_map;

    use super::*;

    const PLACE: NodePosition = NodePosition { shape: [4, 3, 2, 1, 2], own: [2, 1, 1, 0, 1] };

    #[test]
    fn a_rank_and_its_coordinates_belong_together() {
        assert_eq!(PLACE.nodes(), 48);
        assert_eq!(PLACE.coordinates(PLACE.rank()), Some(PLACE.own));
        let all: std::collections::HashSet<_> = (0..48).filter_map(|rank| PLACE.coordinates(rank)).collect();
        assert_eq!(all.len(), 48);
        assert_eq!(PLACE.coordinates(48), None);
    }

    #[test]
    fn the_way_to_the_own_node_takes_a_local_fifo() {
        assert_eq!(PLACE.ordered(PLACE.own).fifo_map, fifo_map::LOCAL0);
        assert_eq!(PLACE.dynamic(PLACE.own).fifo_map, fifo_map::LOCAL0);
        assert_eq!(PLACE.dynamic([0; 5]).fifo_map, fifo_map::TORUS);
    }

    #[test]
    fn an_ordered_way_has_one_network_injection_fifo() {
        for rank in 0..48 {
            let way = PLACE.ordered(PLACE.coordinates(rank).unwrap());
            assert_eq!(way.fifo_map.count_ones(), 1);
            assert!(way.fifo_map & (fifo_map::TORUS | fifo_map::LOCAL0) != 0);
        }
    }
}
