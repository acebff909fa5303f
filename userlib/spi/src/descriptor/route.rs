//! The route of a message through the network.

use nicforge_hwi::mu_packet::{
    CLASSES, Descriptor, Destination, channel, collective_type, fifo_map, kind, operation, route_control,
    routing,
};

use crate::DescriptorError;

/// Lowest bit of the class route in byte 2 of a collective header.
const CLASS_SHIFT: u32 = 4;
/// Lowest bit of the collective type in byte 3.
const KIND_SHIFT: u32 = 3;

/// The routing of a point-to-point packet: its virtual channel, and the choices on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// By load. Packets of a message may overtake each other.
    Dynamic {
        /// Number of the zone masks that constrain the order of dimensions, 0 to 3.
        zone: u8,
    },
    /// In the programmed order of dimensions. Packets of one network injection FIFO stay in order.
    Deterministic,
    /// In the programmed order of dimensions, on the channel of high priority.
    HighPriority,
    /// In the programmed order of dimensions, on the channel of the system.
    System,
}

impl Routing {
    /// Returns the virtual channel, and the network injection FIFOs that its packets may use.
    #[inline]
    fn channel_and_fifos(self) -> (u8, u64) {
        let normal_fifos = fifo_map::TORUS | fifo_map::LOCAL0 | fifo_map::LOCAL1;
        match self {
            Self::Dynamic { .. } => (channel::DYNAMIC, normal_fifos),
            Self::Deterministic => (channel::DETERMINISTIC, normal_fifos),
            Self::HighPriority => (channel::HIGH_PRIORITY, fifo_map::PRIORITY),
            Self::System => (channel::SYSTEM, fifo_map::SYSTEM),
        }
    }
}

/// The direction in which a packet moves in a dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// The unit chooses the shorter way.
    #[default]
    None,
    /// Down.
    Minus,
    /// Up.
    Plus,
}

/// The route of a point-to-point message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointToPoint {
    /// The node that gets it.
    pub destination: Destination,
    /// Channel and routing.
    pub routing: Routing,
    /// Network injection FIFOs that it may use: bits of `mu_packet::fifo_map`.
    pub fifo_map: u64,
    /// Directions in A to E.
    pub hints: [Hint; 5],
    /// Each node on the line to the destination gets a copy.
    pub deposit: bool,
    /// The packet leaves the destination by its link to an I/O node, on the system's channel.
    pub to_io: bool,
}

impl PointToPoint {
    /// Returns a route of system packets.
    pub fn system(destination: Destination) -> Self {
        Self::with(destination, Routing::System, fifo_map::SYSTEM)
    }

    /// Returns a route of high priority.
    pub fn high_priority(destination: Destination) -> Self {
        Self::with(destination, Routing::HighPriority, fifo_map::PRIORITY)
    }

    /// Returns a route by load, through any network injection FIFO of the torus.
    pub fn dynamic(destination: Destination) -> Self {
        Self::with(destination, Routing::Dynamic { zone: 0 }, fifo_map::TORUS)
    }

    /// Returns a route on which the packets to a destination stay in order: deterministic routing,
    /// and one network injection FIFO, which depends on the destination alone.
    pub fn ordered(destination: Destination) -> Self {
        // The ten FIFOs of the torus have the bits from that of E+ on. The sum spreads the
        // destinations over them.
        let sum: u32 = destination.coordinates().map(u32::from).iter().sum();
        Self::with(destination, Routing::Deterministic, fifo_map::EP << (sum % 10))
    }

    /// Returns the route of messages of a node to itself, of which the first or the second local
    /// FIFO takes all.
    pub fn local(own: Destination, is_second: bool) -> Self {
        let map = if is_second { fifo_map::LOCAL1 } else { fifo_map::LOCAL0 };
        Self::with(own, Routing::Deterministic, map)
    }

    /// Returns a route without hints and options.
    fn with(destination: Destination, routing: Routing, fifo_map: u64) -> Self {
        Self { destination, routing, fifo_map, hints: [Hint::None; 5], deposit: false, to_io: false }
    }

    /// Checks the route, and writes it into a descriptor.
    #[inline]
    pub(super) fn write(&self, descriptor: &mut Descriptor) -> Result<(), DescriptorError> {
        // A destination has six bits for each of the five dimensions.
        if self.destination.0.get() >> 30 != 0 {
            return Err(DescriptorError::Coordinates { coordinates: self.destination.coordinates() });
        }

        let (channel, allowed) = self.routing.channel_and_fifos();
        descriptor.torus_fifo_map = checked_map(self.fifo_map, allowed)?;

        let header = &mut descriptor.packet_header;
        header.data_packet_type = kind::POINT_TO_POINT;
        header.destination = self.destination;
        header.set_channel(channel);

        if let Routing::Dynamic { zone } = self.routing {
            if zone > 3 {
                return Err(DescriptorError::Zone { zone });
            }
            header.byte2 |= routing::DYNAMIC;
            header.byte3 |= zone << route_control::ZONE_SHIFT;
        }

        if self.hints != [Hint::None; 5] {
            for (dimension, hint) in
                self.hints.into_iter().enumerate().filter(|(_, hint)| *hint != Hint::None)
            {
                header.set_hint(dimension, hint == Hint::Minus);
            }
        }

        if self.deposit {
            header.byte2 |= routing::DEPOSIT;
        }
        if self.to_io {
            header.byte2 |= routing::TO_IO;
        }
        Ok(())
    }
}

/// Operations of reductions: `MUHWI_COLLECTIVE_OP_CODE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Bitwise and.
    And = operation::AND,
    /// Bitwise or.
    Or = operation::OR,
    /// Bitwise exclusive or.
    Xor = operation::XOR,
    /// Sum of unsigned numbers.
    UnsignedAdd = operation::UNSIGNED_ADD,
    /// Smallest unsigned number.
    UnsignedMin = operation::UNSIGNED_MIN,
    /// Largest unsigned number.
    UnsignedMax = operation::UNSIGNED_MAX,
    /// Sum of signed numbers.
    SignedAdd = operation::SIGNED_ADD,
    /// Smallest signed number.
    SignedMin = operation::SIGNED_MIN,
    /// Largest signed number.
    SignedMax = operation::SIGNED_MAX,
    /// Sum of double-precision numbers.
    FloatingAdd = operation::FLOATING_ADD,
    /// Smallest double-precision number.
    FloatingMin = operation::FLOATING_MIN,
    /// Largest double-precision number.
    FloatingMax = operation::FLOATING_MAX,
}

impl Operation {
    /// Returns whether the words are double-precision numbers.
    pub fn is_floating(self) -> bool {
        matches!(self, Self::FloatingAdd | Self::FloatingMin | Self::FloatingMax)
    }
}

/// A reduction of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// The operation.
    pub operation: Operation,
    /// Bytes of a word: 4 to 512, a power of two; 8 for floating point.
    pub word: u16,
}

impl Reduction {
    /// Returns byte 1 of a header: the operation, and the exponent `n` of a word of `4 << n` bytes.
    fn header_byte(self) -> Result<u8, DescriptorError> {
        let bytes = self.word;
        let is_possible = bytes.is_power_of_two() && (4..=512).contains(&bytes);
        if !is_possible || self.operation.is_floating() && bytes != 8 {
            return Err(DescriptorError::Word { bytes });
        }

        Ok((self.operation as u8) << 4 | (bytes.trailing_zeros() - 2) as u8)
    }
}

/// Kinds of collective messages: `MUHWI_COLLECTIVE_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// The message goes to all nodes of the class route. One of them injects it.
    Broadcast,
    /// The combined message goes to all nodes. All inject theirs.
    Allreduce(Reduction),
    /// The combined message goes to one node. All inject theirs.
    Reduce(Reduction, Destination),
}

/// Virtual channels of collective packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectiveChannel {
    /// All nodes of a partition.
    CommWorld,
    /// A subset of the nodes.
    #[default]
    SubComm,
    /// The system.
    System,
}

/// The route of a collective message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The class route, 0 to 15.
    pub class: u8,
    /// Operation on the nodes' messages.
    pub kind: CollectiveKind,
    /// The virtual channel.
    pub channel: CollectiveChannel,
}

impl Collective {
    /// Returns a broadcast on a user's class route.
    pub fn broadcast(class: u8) -> Self {
        Self { class, kind: CollectiveKind::Broadcast, channel: CollectiveChannel::default() }
    }

    /// Returns a reduction whose result all nodes of a user's class route get.
    pub fn allreduce(class: u8, operation: Operation, word: u16) -> Self {
        let kind = CollectiveKind::Allreduce(Reduction { operation, word });
        Self { class, kind, channel: CollectiveChannel::default() }
    }

    /// Returns a reduction whose result one node gets.
    pub fn reduce(class: u8, operation: Operation, word: u16, to: Destination) -> Self {
        let kind = CollectiveKind::Reduce(Reduction { operation, word }, to);
        Self { class, kind, channel: CollectiveChannel::default() }
    }

    /// Checks the route, and writes it into a descriptor that has its payload.
    pub(super) fn write(&self, descriptor: &mut Descriptor) -> Result<(), DescriptorError> {
        let class = self.class;
        if usize::from(class) >= CLASSES {
            return Err(DescriptorError::Class { class });
        }

        let (byte1, kind_bits, destination) = match self.kind {
            CollectiveKind::Broadcast => (0, collective_type::BROADCAST, Destination::default()),
            CollectiveKind::Allreduce(reduction) => {
                (reduction.header_byte()?, collective_type::ALLREDUCE, Destination::default())
            }
            CollectiveKind::Reduce(reduction, to) => (reduction.header_byte()?, collective_type::REDUCE, to),
        };

        if let CollectiveKind::Allreduce(reduction) | CollectiveKind::Reduce(reduction, _) = self.kind
            && !descriptor.message_length.is_multiple_of(reduction.word.into())
        {
            let length = descriptor.message_length;
            let possible = "whole words of the reduction";
            return Err(DescriptorError::Length { kind: "reduction", length, possible });
        }

        let (channel, map) = match self.channel {
            CollectiveChannel::CommWorld => (channel::USER_COMM_WORLD, fifo_map::COLLECTIVE_USER),
            CollectiveChannel::SubComm => (channel::USER_SUB_COMM, fifo_map::COLLECTIVE_USER),
            CollectiveChannel::System => (channel::SYSTEM_COLLECTIVE, fifo_map::COLLECTIVE_SYSTEM),
        };

        descriptor.torus_fifo_map = map;
        let header = &mut descriptor.packet_header;
        header.data_packet_type = kind::COLLECTIVE;
        header.byte1 = byte1;
        header.byte2 = class << CLASS_SHIFT;
        header.byte3 = kind_bits << KIND_SHIFT;
        header.set_channel(channel);
        header.destination = destination;
        Ok(())
    }
}

/// Checks that a FIFO map names some of the allowed network injection FIFOs, and no others.
fn checked_map(map: u64, allowed: u64) -> Result<u64, DescriptorError> {
    if map == 0 || map & !allowed != 0 {
        return Err(DescriptorError::FifoMap { map, allowed });
    }
    Ok(map)
}

/// The route of a message through the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRoute {
    /// From one node to another.
    PointToPoint(PointToPoint),
    /// Among the nodes of a class route.
    Collective(Collective),
}

impl From<PointToPoint> for MessageRoute {
    fn from(route: PointToPoint) -> Self {
        Self::PointToPoint(route)
    }
}

impl From<Collective> for MessageRoute {
    fn from(route: Collective) -> Self {
        Self::Collective(route)
    }
}
