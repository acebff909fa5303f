//! The check of packet headers, and the route words of packets from one node to another.

use nicforge_hwi::{
    mu::fault,
    mu_packet::{DIMENSIONS, HintBits, PacketHeader, channel, fifo_map, kind, route_control, routing},
};
use nicforge_network::{
    router::policies::TorusWord,
    shape::{Dimension, Direction, Torus},
};
use thiserror::Error;

use super::word::{RouteWord, class};
use crate::config::{Cables, EXIT_PORTS};

/// The route of a packet: its route word, and the network injection FIFOs that take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(super) word: u64,
    /// Network injection FIFOs that take the packet, as bits of [`fifo_map`].
    pub(super) fifos: u16,
    /// The only node that gets the packet, if that is a compute node.
    pub(super) target: Option<u32>,
}

impl Route {
    /// Returns the only node that gets the packet, if that is a compute node.
    #[inline]
    pub(crate) fn target(self) -> Option<u32> {
        self.target
    }

    /// Returns the FIFOs, as bits of [`fifo_map`].
    pub(crate) fn fifos(self) -> u16 {
        self.fifos
    }
}

/// The kind of a node in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A compute node.
    Compute,
    /// An I/O node. It is attached to these compute nodes by the ports of [`EXIT_PORTS`].
    IoNode([Option<u32>; EXIT_PORTS.len()]),
}

/// Reasons why a header or a FIFO map is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RouteError {
    /// The type of the packet does not exist.
    #[error("packet type {kind:#x}: choose point to point or collective")]
    Kind {
        /// First byte of the header.
        kind: u8,
    },
    /// The virtual channel does not exist, or is none for this type of packet.
    #[error("virtual channel {channel} does not carry packets of type {kind:#x}")]
    Channel {
        /// The virtual channel.
        channel: u8,
        /// First byte of the header.
        kind: u8,
    },
    /// The map is empty, or has FIFOs that do not carry the packet.
    #[error("FIFO map {map:#x}: choose from {possible:#x} for this packet")]
    Fifos {
        /// The map.
        map: u64,
        /// FIFOs that carry such packets.
        possible: u16,
    },
    /// A user's packet is on a channel of the system.
    #[error("virtual channel {channel} is the system's")]
    Permission {
        /// The virtual channel.
        channel: u8,
    },
    /// The destination is outside the network.
    #[error("there is no node {coordinates:?}: the partition ends before it")]
    Destination {
        /// The coordinates A to E.
        coordinates: [u8; DIMENSIONS],
    },
    /// Both hint bits of a dimension are set, or one leads nowhere: the packet is there already, or
    /// the dimension ends in this direction.
    #[error("the hint bits of dimension {dimension} lead to no way to the destination")]
    Hints {
        /// The dimension.
        dimension: usize,
    },
    /// The dynamic bit and the virtual channel differ.
    #[error("dynamic packets are on virtual channel 0, and others are not")]
    Dynamic,
    /// A deposit packet does not go along a line.
    #[error("a deposit packet goes along one dimension, and this one along {dimensions}")]
    Deposit {
        /// Number of dimensions.
        dimensions: u32,
    },
    /// A packet to or from an I/O node that has no such link, or is not on the system's channel.
    #[error("only packets of the system use I/O links, and the link must exist")]
    IoLink,
    /// The class route has no contribution of this node, or another type than the packet's channel.
    #[error("class route {class} takes no packet of this node on virtual channel {channel}")]
    ClassRoute {
        /// The class.
        class: u8,
        /// The virtual channel.
        channel: u8,
    },
    /// The operation, the length of its words, or the collective type does not exist.
    #[error("operation {operation} on words of {bytes} bytes with type {collective_type} is not possible")]
    Operation {
        /// The operation.
        operation: u8,
        /// Bytes of a word.
        bytes: usize,
        /// The collective type.
        collective_type: u8,
    },
}

impl RouteError {
    /// Returns the reason why the unit stops the FIFO: one of [`fault`].
    pub(crate) fn fault(self) -> u64 {
        match self {
            Self::Permission { .. } => fault::PERMISSION,
            Self::Destination { .. } | Self::Hints { .. } | Self::IoLink => fault::DESTINATION,
            Self::Kind { .. }
            | Self::Channel { .. }
            | Self::Fifos { .. }
            | Self::Dynamic
            | Self::Deposit { .. }
            | Self::ClassRoute { .. }
            | Self::Operation { .. } => fault::DESCRIPTOR,
        }
    }
}

/// Checks a descriptor's FIFO map: it must name one or more FIFOs of `possible`, and no other ones.
pub(super) fn check_map(map: u64, possible: u64) -> Result<u16, RouteError> {
    if map == 0 || map & !possible != 0 {
        return Err(RouteError::Fifos { map, possible: possible as u16 });
    }
    Ok(map as u16)
}

/// Checks the header of a packet from one node to another, and returns its route.
pub(super) fn point_to_point(
    cables: &Cables,
    sender: Sender,
    header: &PacketHeader,
    map: u64,
    is_system: bool,
) -> Result<Route, RouteError> {
    let number = header.channel();
    let class = match number {
        channel::DYNAMIC | channel::DETERMINISTIC => class::USER,
        channel::HIGH_PRIORITY => class::HIGH_PRIORITY,
        channel::SYSTEM if is_system => class::SYSTEM,
        channel::SYSTEM => return Err(RouteError::Permission { channel: number }),
        _ => return Err(RouteError::Channel { channel: number, kind: kind::POINT_TO_POINT }),
    };

    let start = start(sender, header, class)?;
    let way = Way::of(&cables.torus, start.node, header)?;
    let mut word = RouteWord(way.word.with_class(class));
    if let Some(port) = start.port {
        word = word.by_exit(port);
    }
    word = with_options(word, &way, header)?;

    if header.byte2 & routing::TO_IO != 0 {
        if class != class::SYSTEM || !cables.has_io(way.target) {
            return Err(RouteError::IoLink);
        }
        word = word.to_io();
    }

    let is_local = way.travelled == 0 && way.loop_port.is_none() && start.port.is_none();
    let possible = match class {
        class::HIGH_PRIORITY => fifo_map::PRIORITY,
        class::SYSTEM => fifo_map::SYSTEM,
        _ if is_local => fifo_map::LOCAL0 | fifo_map::LOCAL1,
        _ => fifo_map::TORUS,
    };
    let has_one_receiver = header.byte2 & (routing::TO_IO | routing::DEPOSIT) == 0;
    let target = has_one_receiver.then_some(way.target);
    Ok(Route { word: word.0.0, fifos: check_map(map, possible)?, target })
}

/// The node that sends a packet.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) node: u32,
    pub(super) place: Place,
}

/// The compute node at which a packet enters the torus.
struct Start {
    node: u32,
    /// The port by which the packet of an I/O node leaves that node.
    port: Option<u8>,
}

/// Returns the compute node at which a packet enters the torus. A packet of an I/O node, which has
/// no coordinates, leaves it by the port that the header states, and enters at the compute node
/// there.
fn start(sender: Sender, header: &PacketHeader, class: u8) -> Result<Start, RouteError> {
    let return_port = (header.byte2 & routing::FROM_IO) >> routing::FROM_IO.trailing_zeros();
    let Place::IoNode(exits) = sender.place else {
        let start = Start { node: sender.node, port: None };
        return if return_port == 0 { Ok(start) } else { Err(RouteError::IoLink) };
    };

    // `MU_Pt2PtNetworkHeader.h`: 1 stands for D-, and 2 for D+. These are ports 7 and 6 here.
    let port = match return_port {
        1 => 7,
        2 => 6,
        3 => EXIT_PORTS[0],
        _ => return Err(RouteError::IoLink),
    };
    let exit = EXIT_PORTS.iter().position(|&exit| exit == port).and_then(|index| exits[index]);
    match exit {
        Some(node) if class == class::SYSTEM => Ok(Start { node, port: Some(port) }),
        _ => Err(RouteError::IoLink),
    }
}

/// The way of a packet to its destination.
struct Way {
    /// The destination.
    target: u32,
    word: TorusWord,
    /// Dimensions along which it goes, one bit for each.
    travelled: u8,
    /// Port of the loop cable that it takes to its own node.
    loop_port: Option<u8>,
}

/// The coordinates of a packet's start and target along a dimension.
struct Along {
    dimension: usize,
    ring: Dimension,
    own: u32,
    target: u32,
}

impl Way {
    /// Returns the way from a compute node. Along dimensions without hint bits, it is the shortest
    /// one.
    ///
    /// Where both directions are equally short, the parity of the node's coordinate and of all
    /// coordinates along other dimensions decides. So the messages of a node to many others use
    /// both directions alike, also along a dimension of two nodes with its two cables, and all
    /// messages from a node to another take the same way.
    fn of(torus: &Torus, from: u32, header: &PacketHeader) -> Result<Self, RouteError> {
        let coordinates = header.destination.coordinates();
        let outside = RouteError::Destination { coordinates };
        let here = torus.coordinates(from).ok_or(outside)?;
        let target = torus.node(&coordinates.map(u32::from)).ok_or(outside)?;
        let word = TorusWord::between(torus, from, target, 0).or(Err(outside))?;
        let mut way = Self { target, word, travelled: 0, loop_port: None };

        // The sum of all coordinates of both nodes. Without the target's coordinate in a dimension,
        // its parity decides there.
        let sum: u32 = here.iter().sum::<u32>() + coordinates.map(u32::from).iter().sum::<u32>();
        let dimensions = torus.dimensions().iter().zip(here.iter().zip(coordinates)).enumerate();
        for (dimension, (ring, (&own, target))) in dimensions {
            let (target, hints) = (u32::from(target), header.hints(dimension));
            let is_down_if_equal = (sum - target) % 2 == 1;
            let step = Along { dimension, ring: *ring, own, target };
            way.add(torus, step, hints, is_down_if_equal)?;
        }
        if way.loop_port.is_some() && way.travelled != 0 {
            return Err(outside);
        }
        Ok(way)
    }

    /// Adds the way along a dimension. `is_down_if_equal` is the direction where both are equally
    /// short.
    fn add(
        &mut self,
        torus: &Torus,
        along: Along,
        hints: HintBits,
        is_down_if_equal: bool,
    ) -> Result<(), RouteError> {
        let Along { dimension, ring, own, target } = along;
        let refused = RouteError::Hints { dimension };
        let is_down = match (hints.is_down, hints.is_up) {
            (true, true) => return Err(refused),
            (false, false) => match torus.way(dimension, own, target) {
                None => return Ok(()),
                Some(way) => {
                    way.direction == Direction::Down || way.direction == Direction::Either && is_down_if_equal
                }
            },
            // A hint to the own coordinate is possible only on a ring of one node, which has a loop
            // cable.
            (is_down, _) if own == target => {
                let is_possible = ring.wraps && ring.length == 1 && self.loop_port.is_none();
                self.loop_port = Some(dimension as u8 * 2 + u8::from(is_down));
                return if is_possible { Ok(()) } else { Err(refused) };
            }
            // On a ring both directions lead to the target, and on a line only one.
            (is_down, _) if ring.wraps || (target < own) == is_down => is_down,
            _ => return Err(refused),
        };

        self.word = self.word.with_direction(dimension, is_down);
        self.travelled |= 1 << dimension;
        Ok(())
    }
}

/// Checks the options of the header, and returns the word with them.
fn with_options(word: RouteWord, way: &Way, header: &PacketHeader) -> Result<RouteWord, RouteError> {
    let is_dynamic = header.byte2 & routing::DYNAMIC != 0;
    if is_dynamic != (header.channel() == channel::DYNAMIC) {
        return Err(RouteError::Dynamic);
    }

    let mut word = word;
    if let Some(port) = way.loop_port {
        word = word.by_loop(port);
    }
    if is_dynamic {
        word = RouteWord(word.0.adaptive().with_zone(header.zone()));
        if header.byte3 & route_control::STAY_ON_BUBBLE != 0 {
            word = word.staying();
        }
    }

    if header.byte2 & routing::DEPOSIT != 0 {
        let dimensions = way.travelled.count_ones();
        if dimensions != 1 || is_dynamic || header.byte2 & routing::TO_IO != 0 {
            return Err(RouteError::Deposit { dimensions });
        }
        word = RouteWord(word.0.with_deposit());
    }
    Ok(word)
}
