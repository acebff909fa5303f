//! The check of packet headers, and the route words of packets.

use nicforge_hwi::torus::{Channel, DIMENSIONS, PRIORITY_RECEPTION, PacketHeader, hint};
use nicforge_network::{router::policies::TorusWord, shape::Torus};
use thiserror::Error;

use crate::policy::{RouteWord, class};

/// Reasons why a packet is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RouteError {
    /// The destination is outside the machine.
    #[error("there is no node {coordinates:?}: the machine ends before it")]
    Destination {
        /// The coordinates X, Y, Z.
        coordinates: [u8; DIMENSIONS],
    },
    /// Both hint bits of a dimension are set, or one leads away from the destination on a mesh.
    #[error("the hint bits of dimension {dimension} lead to no way to the destination")]
    Hints {
        /// The dimension, 0 for X.
        dimension: usize,
    },
    /// The dynamic bit and the virtual channel differ.
    #[error("dynamic packets are on virtual channels 0 and 1, and others are not")]
    Dynamic,
    /// The packet is in a FIFO for another priority.
    #[error("a packet of virtual channel {channel:?} in a FIFO for another priority")]
    Priority {
        /// The virtual channel.
        channel: Channel,
    },
    /// A deposit packet does not go along a line, or is dynamic.
    #[error("a deposit packet goes along one dimension, and this one along {dimensions}")]
    Deposit {
        /// Number of dimensions.
        dimensions: u32,
    },
}

/// Checks the header of a packet in an injection FIFO, and returns its route word.
/// `is_priority_fifo` says whether the FIFO is the one for high priority.
///
/// Along dimensions without hint bits, the packet takes the shortest way. Where both directions are
/// equally short, nodes with an even sum of coordinates send up.
pub(crate) fn route_word(
    torus: &Torus,
    node: u32,
    header: &PacketHeader,
    is_priority_fifo: bool,
) -> Result<RouteWord, RouteError> {
    let (channel, is_dynamic) = (header.channel(), header.is_dynamic());
    if is_dynamic != matches!(channel, Channel::Dynamic0 | Channel::Dynamic1) {
        return Err(RouteError::Dynamic);
    }
    let is_priority = channel == Channel::BubblePriority;
    if is_priority != is_priority_fifo {
        return Err(RouteError::Priority { channel });
    }

    let coordinates = header.destination();
    let outside = RouteError::Destination { coordinates };
    let here = torus.coordinates(node).ok_or(outside)?;
    let target = torus.node(&coordinates.map(u32::from)).ok_or(outside)?;
    let ties = if here.iter().sum::<u32>().is_multiple_of(2) { 0 } else { u8::MAX };
    let mut word = TorusWord::between(torus, node, target, ties).or(Err(outside))?;

    let mut travelled = 0;
    for (dimension, (&own, target)) in here.iter().zip(coordinates.map(u32::from)).enumerate() {
        if own != target {
            travelled += 1;
            word = with_hints(torus, word, header.hints(), (dimension, own, target))?;
        }
    }

    if is_dynamic {
        word = word.adaptive();
    }
    if header.deposits() {
        if travelled != 1 || is_dynamic {
            return Err(RouteError::Deposit { dimensions: travelled });
        }
        word = word.with_deposit();
    }
    let class = if is_priority { class::HIGH_PRIORITY } else { class::NORMAL };
    Ok(RouteWord::new(word.with_class(class), header.group(), own_fifo(header.hints())))
}

/// Returns the word with the direction along a dimension that the hint bits name, if they name one.
/// `along` is the dimension, and the different coordinates of the node and the target.
fn with_hints(
    torus: &Torus,
    word: TorusWord,
    hints: u8,
    along: (usize, u32, u32),
) -> Result<TorusWord, RouteError> {
    let (dimension, own, target) = along;
    let port = 2 * dimension as u8;
    let [is_up, is_down] = [port, port + 1].map(|port| hints & hint::of_port(port) != 0);

    match (is_up, is_down) {
        (false, false) => Ok(word),
        (true, true) => Err(RouteError::Hints { dimension }),
        _ => {
            // On a ring both directions lead to the target, and on a line only one.
            let wraps = torus.dimensions().get(dimension).is_some_and(|ring| ring.wraps);
            let is_possible = wraps || (target < own) == is_down;
            if !is_possible {
                return Err(RouteError::Hints { dimension });
            }
            Ok(word.with_direction(dimension, is_down))
        }
    }
}

/// Returns the reception FIFO of a packet that a node sends to itself: that of the link that the
/// first hint bit names, or FIFO 0.
fn own_fifo(hints: u8) -> u8 {
    let fifos = 0..PRIORITY_RECEPTION as u8;
    fifos.into_iter().find(|&fifo| hints & hint::of_port(fifo) != 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use nicforge_network::shape::Dimension;

    use super::*;

    /// Returns a torus of 4 x 3 nodes, with a mesh of 3 in Z.
    fn torus() -> Torus {
        Torus::new(&[Dimension::torus(4), Dimension::torus(3), Dimension::mesh(3)]).unwrap()
    }

    fn word(from: u32, header: PacketHeader) -> Result<TorusWord, RouteError> {
        let is_priority = header.channel() == Channel::BubblePriority;
        route_word(&torus(), from, &header, is_priority).map(|word| word.0)
    }

    #[test]
    fn a_packet_without_hints_takes_the_shortest_way() {
        let word = word(0, PacketHeader::to([3, 1, 2], 1)).unwrap();
        assert!(word.is_down(0) && !word.is_down(1) && !word.is_down(2));
        assert!(word.is_adaptive() && !word.deposits());
        assert_eq!((word.coordinate(0), word.coordinate(1), word.coordinate(2)), (3, 1, 2));
    }

    #[test]
    fn equal_ways_depend_on_the_parity_of_the_node() {
        let header = PacketHeader::to([2, 0, 0], 0);
        assert!(!word(0, header).unwrap().is_down(0));
        let header = PacketHeader::to([3, 0, 0], 0);
        assert!(word(1, header).unwrap().is_down(0));
    }

    #[test]
    fn hints_choose_the_direction() {
        let xm = hint::of_port(1);
        assert!(word(0, PacketHeader::to([1, 0, 0], 0).with_hints(xm)).unwrap().is_down(0));
        // Hints of dimensions in which the packet does not travel have no effect.
        let zm = hint::of_port(5);
        assert!(word(0, PacketHeader::to([1, 0, 0], 0).with_hints(zm)).is_ok());
    }

    #[test]
    fn wrong_headers_are_refused() {
        let to = PacketHeader::to;
        let cases = [
            (to([4, 0, 0], 0), RouteError::Destination { coordinates: [4, 0, 0] }),
            (to([0, 3, 0], 0), RouteError::Destination { coordinates: [0, 3, 0] }),
            (to([0, 0, 255], 0), RouteError::Destination { coordinates: [0, 0, 255] }),
            (to([1, 0, 0], 0).with_hints(0x30), RouteError::Hints { dimension: 0 }),
            (to([0, 0, 1], 0).with_hints(hint::of_port(5)), RouteError::Hints { dimension: 2 }),
            (to([1, 0, 0], 0).with_channel(Channel::BubbleNormal), RouteError::Dynamic),
            (to([1, 0, 0], 0).deterministic().with_channel(Channel::Dynamic1), RouteError::Dynamic),
            (to([1, 1, 0], 0).deposit(), RouteError::Deposit { dimensions: 2 }),
            (to([0, 0, 0], 0).deposit(), RouteError::Deposit { dimensions: 0 }),
        ];
        for (header, error) in cases {
            assert_eq!(word(0, header), Err(error));
        }

        let refused = |header: PacketHeader, is_priority_fifo| {
            route_word(&torus(), 0, &header, is_priority_fifo).unwrap_err()
        };
        let channel = Channel::BubblePriority;
        assert_eq!(refused(to([1, 0, 0], 0).high_priority(), false), RouteError::Priority { channel });
        let channel = Channel::BubbleNormal;
        assert_eq!(refused(to([1, 0, 0], 0).deterministic(), true), RouteError::Priority { channel });
    }

    #[test]
    fn a_packet_to_the_own_node_goes_to_the_fifo_of_its_hint() {
        let header = PacketHeader::to([0, 0, 0], 1);
        let own = |header| route_word(&torus(), 0, &header, false).unwrap();
        assert_eq!(own(header), RouteWord::new(own(header).0, 1, 0));
        let hinted = own(header.with_hints(hint::of_port(3)));
        assert_eq!(hinted, RouteWord::new(hinted.0, 1, 3));
    }
}
