//! Routes on tori and meshes by coordinates.

use std::sync::Arc;

use thiserror::Error;

use super::word::{CLASSES, TorusWord, ZONES, pack};
use crate::{
    router::{Candidates, Decision, Exit, Policy, Room, Source, Targets},
    shape::{Cabling, Dimension, MAX_DIMENSIONS, Torus},
};

/// The virtual channels of packets in dimension order, which must have no deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fixed {
    /// One virtual channel, whose rings have the bubble rule. The router must have it in
    /// [`crate::router::RouterSpec::bubble_vcs`].
    Bubble {
        /// The virtual channel.
        vc: u8,
    },
    /// Two virtual channels. A packet is on the first while the cable from the last node of a ring
    /// to its first is still ahead of it, and on the second otherwise.
    Dateline {
        /// The virtual channels.
        vcs: [u8; 2],
    },
    /// One virtual channel without a rule. It suffices for meshes; a torus can deadlock.
    Plain {
        /// The virtual channel.
        vc: u8,
    },
}

/// The virtual channels of a class of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelClass {
    /// Those of packets in dimension order. Adaptive packets escape to them.
    pub fixed: Fixed,
    /// Those of adaptive packets, one bit for each. If there are none, all packets of the class are
    /// in dimension order.
    pub adaptive: u16,
}

/// Rules that the policies of all nodes of a torus share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TorusRules {
    /// Virtual channels by class of packets.
    pub classes: [ChannelClass; CLASSES],
    /// Order of the dimensions for packets in dimension order. Numbers of dimensions that the torus
    /// does not have are ignored.
    pub order: [u8; MAX_DIMENSIONS],
    /// Order of the dimensions for adaptive packets, by zone: sets of dimensions, one bit for each.
    /// A packet goes along the dimensions of the first set in which it still has a way to go.
    pub zones: [[u8; MAX_DIMENSIONS]; ZONES],
}

/// Reasons why a policy is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// The node does not exist.
    #[error("there is no node {node}: the network has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// A dimension is too long for a route word.
    #[error("dimension {dimension} has {length} nodes: route words have coordinates of at most 256")]
    TooLong {
        /// The dimension.
        dimension: usize,
        /// Its nodes.
        length: u32,
    },
    /// The order of dimensions, or that of a zone, leaves out a dimension of the torus.
    #[error("an order without dimension {dimension}: name each dimension of the torus")]
    NoDimension {
        /// The dimension.
        dimension: usize,
    },
}

impl TorusRules {
    /// Returns rules by which all classes share the same virtual channels. The order is that of the
    /// dimensions, and adaptive packets may go along any dimension.
    pub const fn shared(class: ChannelClass) -> Self {
        const ANY: u8 = (1 << MAX_DIMENSIONS) - 1;
        Self { classes: [class; CLASSES], order: [0, 1, 2, 3, 4], zones: [[ANY; MAX_DIMENSIONS]; ZONES] }
    }

    /// Checks that the orders name each dimension.
    fn check(&self, dimensions: usize) -> Result<(), PolicyError> {
        for dimension in 0..dimensions {
            let in_order = self.order.contains(&(dimension as u8));
            let in_zones = |zone: &[u8; MAX_DIMENSIONS]| zone.iter().any(|set| set >> dimension & 1 == 1);
            if !in_order || !self.zones.iter().all(in_zones) {
                return Err(PolicyError::NoDimension { dimension });
            }
        }
        Ok(())
    }
}

/// The policy of a node of a torus or mesh, or of a partition ([`crate::shape::Partition::shape`]).
///
/// Ports are those of [`Torus`]: `2 d` leads up dimension `d`, and `2 d + 1` down. The route word
/// is a [`TorusWord`].
///
/// - A packet in dimension order goes along the first dimension of the order in which it is not at
///   its target's coordinate. Packets of one class from one node to another stay in order.
/// - An adaptive packet goes along any dimension of its zone in which it is not there. If the
///   adaptive channels have no room, it takes the channel of dimension order, if that has. At the
///   next node it may return to an adaptive channel.
/// - A packet with the deposit bit goes in dimension order, and leaves a copy at each node between
///   its source and its target.
#[derive(Clone, Debug)]
pub struct TorusPolicy {
    /// Own coordinates, as in a route word.
    own: u64,
    /// The same with the bytes swapped: such numbers compare as the first coordinates that differ.
    own_swapped: u64,
    reception: Reception,
    network: Arc<Network>,
}

/// The part that the policies of all nodes of a torus share.
#[derive(Debug)]
struct Network {
    torus: Torus,
    rules: TorusRules,
    dimensions: [Dimension; MAX_DIMENSIONS],
    /// The exits of dimension order, by class of packets, dimension and way.
    exits: [[[Exit; WAYS]; DIMENSIONS]; CLASSES],
    /// The highest coordinate of each dimension, as in a route word.
    last: u64,
    /// A dimension of more than one node is a mesh.
    has_mesh: bool,
    /// The first dimension of the order, for each set of dimensions. The empty set has none:
    /// [`MAX_DIMENSIONS`].
    first: [u8; 1 << MAX_DIMENSIONS],
    /// The order is that of the numbers.
    is_in_order: bool,
    /// A class has channels for adaptive packets.
    has_adaptive: bool,
}

/// Places for dimensions in tables: a power of two.
const DIMENSIONS: usize = MAX_DIMENSIONS.next_power_of_two();

/// Ways along a dimension: up and down, each before and past the cable from the last node of the
/// ring to its first.
const WAYS: usize = 4;

/// Returns the number of a way. A packet that goes up is past the cable if its target's coordinate
/// is higher than that of the node, and one that goes down if it is lower.
#[inline(always)]
fn way(is_down: bool, is_higher: bool) -> usize {
    usize::from(is_down) << 1 | usize::from(is_higher ^ is_down)
}

/// Returns the exits of dimension order along a dimension, by way. Packets of the bubble rule need
/// the room of those that enter a ring.
fn fixed_exits(fixed: Fixed, (index, dimension): (usize, Dimension)) -> [Exit; WAYS] {
    let room = match fixed {
        Fixed::Bubble { .. } if dimension.wraps => Room::Two,
        _ => Room::One,
    };
    std::array::from_fn(|way| {
        let vc = match fixed {
            Fixed::Dateline { vcs } if dimension.wraps => vcs[way & 1],
            Fixed::Dateline { vcs: [_, second] } => second,
            Fixed::Bubble { vc } | Fixed::Plain { vc } => vc,
        };
        Exit { port: (2 * index + (way >> 1)) as u8, vc, room }
    })
}

/// The choice of reception FIFOs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reception {
    /// One for all packets.
    #[default]
    Shared,
    /// One for each port, and one more for packets of the node itself.
    ByPort,
}

impl Network {
    /// Returns the tables of a torus.
    fn new(torus: &Torus, rules: TorusRules) -> Result<Self, PolicyError> {
        let mut dimensions = [Dimension::mesh(1); MAX_DIMENSIONS];
        for (index, &dimension) in torus.dimensions().iter().enumerate() {
            if dimension.length > 256 {
                return Err(PolicyError::TooLong { dimension: index, length: dimension.length });
            }
            dimensions[index] = dimension;
        }
        rules.check(torus.dimensions().len())?;

        let first = std::array::from_fn(|set| {
            let mut order =
                rules.order.into_iter().filter(|&dimension| usize::from(dimension) < MAX_DIMENSIONS);
            order.find(|dimension| set >> dimension & 1 == 1).unwrap_or(MAX_DIMENSIONS as u8)
        });
        let has_adaptive = rules.classes.iter().any(|class| class.adaptive != 0);
        let is_in_order =
            rules.order.iter().enumerate().all(|(place, &dimension)| place == usize::from(dimension));
        let exits = rules.classes.map(|class| {
            std::array::from_fn(|index| {
                let dimension = dimensions.get(index).copied().unwrap_or(Dimension::mesh(1));
                fixed_exits(class.fixed, (index, dimension))
            })
        });
        let last = pack(&dimensions.map(|dimension| dimension.length.saturating_sub(1)));
        let has_mesh = dimensions.iter().any(|dimension| !dimension.wraps && dimension.length > 1);
        Ok(Self { torus: *torus, rules, dimensions, exits, last, has_mesh, first, is_in_order, has_adaptive })
    }
}

impl TorusPolicy {
    /// Returns the policy of a node. It delivers all packets to reception FIFO 0.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn new(torus: &Torus, node: u32, rules: TorusRules) -> Result<Self, PolicyError> {
        let network = Arc::new(Network::new(torus, rules)?);
        Self { own: 0, own_swapped: 0, reception: Reception::Shared, network }.at(node)
    }

    /// Returns the policy of another node of the same network, which shares this one's tables.
    ///
    /// # Errors
    /// [`PolicyError::NoNode`].
    pub fn at(&self, node: u32) -> Result<Self, PolicyError> {
        let torus = &self.network.torus;
        let no_node = PolicyError::NoNode { node, nodes: torus.nodes() };
        let own = pack(&torus.coordinates(node).ok_or(no_node)?);
        Ok(Self { own, own_swapped: own.swap_bytes(), ..self.clone() })
    }

    /// Delivers packets to the reception FIFO whose number is that of the port by which they come.
    /// Packets of the node itself go to the FIFO after those of the ports.
    #[must_use]
    pub fn with_reception_by_port(self) -> Self {
        Self { reception: Reception::ByPort, ..self }
    }

    /// Returns the dimensions in which a packet is not at its target's coordinate, one bit for
    /// each.
    #[inline]
    fn differing_dimensions(&self, word: TorusWord) -> u8 {
        const LOW_BITS: u64 = 0x7f_7f7f_7f7f;
        let differing = word.packed() ^ self.own;

        // The highest bit of each byte that is not zero.
        let high = (((differing & LOW_BITS) + LOW_BITS) | differing) & !LOW_BITS;
        // The product moves the bits 7, 15, 23, 31 and 39 to 35 to 39.
        (high.wrapping_mul(0x1020_4081) >> 35) as u8 & 0x1f
    }

    /// Returns whether a packet can reach its target. A word that a client has made up can name
    /// coordinates outside, or lead out of a mesh.
    #[inline]
    fn is_reachable(&self, word: TorusWord) -> bool {
        const HIGH_BITS: u64 = 0x80_8080_8080;
        let (last, target) = (self.network.last, word.packed());

        // The highest bit of each byte is set if the byte of `last` is not below that of `target`.
        let low = (last | HIGH_BITS) - (target & !HIGH_BITS);
        let fits = (last & !target) | (!(last ^ target) & low);
        fits & HIGH_BITS == HIGH_BITS && (!self.network.has_mesh || self.stays_on_meshes(word))
    }

    /// Returns whether a packet goes towards its target in each mesh dimension.
    #[inline(never)]
    fn stays_on_meshes(&self, word: TorusWord) -> bool {
        self.network.dimensions.iter().enumerate().all(|(dimension, length)| {
            let (own, target) = (TorusWord(self.own).coordinate(dimension), word.coordinate(dimension));
            length.wraps || own == target || (target < own) == word.is_down(dimension)
        })
    }

    /// Returns the first dimension of the order in which a packet is not at its target's
    /// coordinate, and whether that is higher than the own one. Returns `None` at the target.
    #[inline(always)]
    fn first_difference(&self, word: TorusWord) -> Option<(usize, bool)> {
        let target = word.packed();
        if !self.network.is_in_order {
            return self.first_difference_of(word);
        }

        // The lowest byte that differs is the first in the other order of bytes.
        let differing = target ^ self.own;
        let is_higher = target.swap_bytes() > self.own_swapped;
        if differing == 0 { None } else { Some((differing.trailing_zeros() as usize / 8, is_higher)) }
    }

    /// Does the work of [`TorusPolicy::first_difference`] for orders other than that of the
    /// numbers.
    #[inline(never)]
    fn first_difference_of(&self, word: TorusWord) -> Option<(usize, bool)> {
        let first = &self.network.first;
        let dimension = usize::from(first[usize::from(self.differing_dimensions(word)) % first.len()]);
        if dimension >= MAX_DIMENSIONS {
            return None;
        }
        Some((dimension, word.coordinate(dimension) > TorusWord(self.own).coordinate(dimension)))
    }

    /// Returns the exit of a packet in dimension order, or `None` at its target.
    #[inline(always)]
    fn fixed_exit(&self, word: TorusWord, from: Source) -> Option<Exit> {
        let (dimension, is_higher) = self.first_difference(word)?;
        let ways = &self.network.exits[word.class()][dimension % DIMENSIONS];
        let exit = ways[way(word.is_down(dimension), is_higher)];

        // A port's number differs in its lowest bit from that of the other direction.
        let Exit { port, vc, room } = exit;
        let stays_in_ring = room == Room::Two && from == Source::Link { port: port ^ 1, vc };
        Some(if stays_in_ring { Exit { room: Room::One, ..exit } } else { exit })
    }

    /// Returns the ports of an adaptive packet.
    #[inline]
    fn adaptive_ports(&self, word: TorusWord, differing: u8) -> u64 {
        let zone = self.network.rules.zones[word.zone()];
        let mut set = zone.iter().map(|set| set & differing).find(|&set| set != 0).unwrap_or(0);

        let mut ports = 0;
        while set != 0 {
            ports |= 1 << word.port(set.trailing_zeros() as usize);
            set &= set - 1;
        }
        ports
    }
}

impl Policy for TorusPolicy {
    #[inline(always)]
    fn only_exit(&self, word: u64, from: Source) -> Option<Exit> {
        let word = TorusWord(word);
        if !word.is_plain() || (matches!(from, Source::Injection { .. }) && !self.is_reachable(word)) {
            return None;
        }
        self.fixed_exit(word, from)
    }

    #[inline]
    fn decide(&self, word: u64, from: Source) -> Decision {
        let word = TorusWord(word);
        if matches!(from, Source::Injection { .. }) && !self.is_reachable(word) {
            return Decision::Drop;
        }

        let Some(fixed) = self.fixed_exit(word, from) else { return Decision::Local };
        let vcs = self.network.rules.classes[word.class()].adaptive;
        if word.is_adaptive() && vcs != 0 {
            return Decision::Any(Candidates {
                ports: self.adaptive_ports(word, self.differing_dimensions(word)),
                vcs,
                escape: Some(fixed),
            });
        }

        if word.deposits() && matches!(from, Source::Link { .. }) {
            let Exit { port, vc, room } = fixed;
            return Decision::Many(Targets { ports: 1 << port, vc, room, local: true });
        }
        Decision::One(fixed)
    }

    #[inline(always)]
    fn is_local(&self, word: u64, _: Source) -> bool {
        TorusWord(word).packed() == self.own
    }

    #[inline]
    fn has_candidates(&self) -> bool {
        self.network.has_adaptive
    }

    #[inline]
    fn reception(&self, _: u64, from: Source) -> u8 {
        match (self.reception, from) {
            (Reception::Shared, _) => 0,
            (Reception::ByPort, Source::Link { port, .. }) => port,
            (Reception::ByPort, Source::Injection { .. }) => self.network.torus.ports(),
        }
    }
}
