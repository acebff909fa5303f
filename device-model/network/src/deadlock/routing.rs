//! Routing relations: where the packets of a route word may go from a node.

use super::{Channel, graph::Layout};
use crate::shape::Shape;

/// A routing relation. It must depend on the node and the packet's route word alone.
///
/// A route word is a number for all that a packet's header says about its route, such as its
/// target. Every node may send packets with each route word.
pub trait Routing {
    /// Returns the number of route words. They are numbered from 0.
    fn words(&self) -> u32;

    /// Returns the only node at which packets with this route word may be delivered; `None` if
    /// there are several. The default takes the route word as the number of the node.
    fn target(&self, word: u32) -> Option<u32> {
        Some(word)
    }

    /// Adds each exit by which a packet with this route word may leave a node.
    fn exits(&self, node: u32, word: u32, exits: &mut Exits);
}

/// The exits of packets from a node, as a [`Routing`] collects them.
#[derive(Clone, Copy, Debug)]
pub struct Exits {
    layout: Layout,
    node: u32,
    /// The channels by which packets leave, one bit for each.
    pub(super) mask: u64,
    /// Whether packets are delivered here, at once or through a FIFO.
    pub(super) delivers: bool,
    /// A channel that was added and does not exist.
    pub(super) unknown: Option<Channel>,
}

impl Exits {
    /// Returns an empty set of exits from a node.
    #[inline]
    pub(super) fn none(layout: Layout, node: u32) -> Self {
        Self { layout, node, mask: 0, delivers: false, unknown: None }
    }

    /// Adds the delivery of packets at this node, to a receiver that always takes them.
    #[inline]
    pub fn deliver(&mut self) {
        self.delivers = true;
    }

    /// Adds a virtual channel of a port by which packets leave.
    #[inline]
    pub fn link(&mut self, port: u8, vc: u8) {
        self.add(Channel::Link { node: self.node, port, vc });
    }

    /// Adds the delivery of packets at this node into a FIFO, in which they wait for room.
    #[inline]
    pub fn fifo(&mut self, fifo: u8) {
        self.delivers = true;
        self.add(Channel::Fifo { node: self.node, fifo });
    }

    /// Adds a channel of this node.
    #[inline]
    fn add(&mut self, channel: Channel) {
        match self.layout.slot(channel) {
            Some(slot) => self.mask |= 1 << slot,
            None => self.unknown = Some(channel),
        }
    }
}

/// Returns the routing in which a packet's route word is its target. `exits` is called with a node,
/// a target, and the exits that it adds to.
pub fn by_target(nodes: u32, exits: impl Fn(u32, u32, &mut Exits)) -> impl Routing {
    ByTarget { nodes, exits }
}

/// Returns the routing by a shape's fixed paths ([`Shape::port_towards`]) on one virtual channel.
pub fn fixed_paths(shape: &impl Shape, vc: u8) -> impl Routing {
    by_target(shape.nodes(), move |node, target, exits| match shape.port_towards(node, target) {
        Some(port) => exits.link(port, vc),
        None => exits.deliver(),
    })
}

/// See [`by_target`].
struct ByTarget<F> {
    nodes: u32,
    exits: F,
}

impl<F: Fn(u32, u32, &mut Exits)> Routing for ByTarget<F> {
    fn words(&self) -> u32 {
        self.nodes
    }

    #[inline]
    fn exits(&self, node: u32, word: u32, exits: &mut Exits) {
        (self.exits)(node, word, exits);
    }
}
