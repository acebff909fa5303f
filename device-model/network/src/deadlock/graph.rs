//! The graph of channels that wait for each other.

use super::{
    Channel, DeadlockError, MAX_CHANNELS, MAX_LOOKUPS,
    routing::{Exits, Routing},
    search, walk,
};
use crate::shape::{Cabling, MAX_NODES};

/// The channels of a node that a graph contains, beside its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeChannels {
    /// Virtual channels of each port.
    pub vcs: u8,
    /// FIFOs between the network and the node's software.
    pub fifos: u8,
}

/// The numbering of channels. A channel's *slot* is its number at its node, and its *index* is its
/// number in the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) nodes: u32,
    ports: u8,
    channels: NodeChannels,
}

impl Layout {
    /// Returns the number of slots of a node.
    #[inline]
    pub(super) fn width(self) -> usize {
        self.link_slots() + usize::from(self.channels.fifos)
    }

    /// Returns the number of slots of a node that are channels of links. They come before those of
    /// FIFOs.
    #[inline]
    fn link_slots(self) -> usize {
        usize::from(self.ports) * usize::from(self.channels.vcs)
    }

    /// Returns those slots of a mask that are channels of links.
    #[inline]
    pub(super) fn links_in(self, mask: u64) -> u64 {
        match self.link_slots() {
            64.. => mask,
            links => mask & ((1 << links) - 1),
        }
    }

    /// Returns the slot of a channel; `None` if it has none.
    #[inline]
    pub(super) fn slot(self, channel: Channel) -> Option<usize> {
        let NodeChannels { vcs, fifos } = self.channels;
        match channel {
            Channel::Link { port, vc, .. } if port < self.ports && vc < vcs => {
                Some(usize::from(port) * usize::from(vcs) + usize::from(vc))
            }
            Channel::Fifo { fifo, .. } if fifo < fifos => Some(self.link_slots() + usize::from(fifo)),
            _ => None,
        }
    }

    /// Returns the channel of an index.
    pub(super) fn channel(self, index: usize) -> Channel {
        let (node, slot) = ((index / self.width()) as u32, index % self.width());
        match slot.checked_sub(self.link_slots()) {
            Some(fifo) => Channel::Fifo { node, fifo: fifo as u8 },
            None => {
                let vcs = usize::from(self.channels.vcs);
                Channel::Link { node, port: (slot / vcs) as u8, vc: (slot % vcs) as u8 }
            }
        }
    }
}

/// In place of a node: the channel's port has no cable.
pub(super) const NO_NODE: u32 = u32::MAX;

/// The channels of a network, and for each one the channels that it waits for. The module
/// documentation says which waits it must contain.
#[derive(Clone, Debug)]
pub struct WaitGraph {
    pub(super) layout: Layout,
    /// The node at which the packets of each channel are buffered, or [`NO_NODE`].
    pub(super) buffer_nodes: Vec<u32>,
    /// The channels that each channel waits for: slots of the node that buffers its packets, one
    /// bit for each.
    pub(super) waits: Vec<u64>,
}

impl WaitGraph {
    /// Returns a graph with a vertex for each channel of a network, and without waits.
    ///
    /// # Errors
    /// [`DeadlockError::Nodes`], [`DeadlockError::Channels`].
    pub fn new(cabling: &impl Cabling, channels: NodeChannels) -> Result<Self, DeadlockError> {
        let layout = Layout { nodes: cabling.nodes(), ports: cabling.ports(), channels };
        if layout.nodes == 0 || layout.nodes > MAX_NODES {
            return Err(DeadlockError::Nodes { nodes: layout.nodes });
        }
        if layout.width() > MAX_CHANNELS as usize {
            return Err(DeadlockError::Channels { channels: layout.width() as u32 });
        }

        let mut buffer_nodes = Vec::with_capacity(layout.nodes as usize * layout.width());
        for node in 0..layout.nodes {
            for port in 0..layout.ports {
                // Packets of a link wait at its far end, those of a FIFO at the node itself.
                let far = cabling.far_end(node, port).map_or(NO_NODE, |far| far.node);
                buffer_nodes.extend((0..channels.vcs).map(|_| far));
            }
            buffer_nodes.extend((0..channels.fifos).map(|_| node));
        }

        let waits = vec![0; buffer_nodes.len()];
        Ok(Self { layout, buffer_nodes, waits })
    }

    /// Adds the waits of all packets that a routing routes, and checks that they all arrive.
    /// Routings of different packets are added one after another.
    ///
    /// # Errors
    /// [`DeadlockError::Lookups`], [`DeadlockError::NoChannel`], [`DeadlockError::NoRoute`],
    /// [`DeadlockError::WrongNode`], [`DeadlockError::Endless`]. The graph then has a part of the
    /// routing's waits.
    pub fn add_routes(&mut self, routing: &impl Routing) -> Result<(), DeadlockError> {
        let (nodes, words) = (self.layout.nodes, routing.words());
        if u64::from(nodes) * u64::from(words) > MAX_LOOKUPS {
            return Err(DeadlockError::Lookups { nodes, words });
        }

        let mut exits = vec![0; nodes as usize];
        let mut walk = walk::Walk::new(nodes);

        for word in 0..words {
            for (node, exits) in (0..).zip(&mut exits) {
                *exits = self.exits(routing, node, word)?;
            }

            self.add_waits(&exits);
            walk.check(self, &exits, word)?;
        }
        Ok(())
    }

    /// Adds an edge: packets in the channel `from` may wait for the channel `to`, which must begin
    /// at the node that buffers them. The packets of a link are at the other end of its cable.
    ///
    /// # Errors
    /// [`DeadlockError::NoChannel`], [`DeadlockError::Apart`].
    pub fn add_wait(&mut self, from: Channel, to: Channel) -> Result<(), DeadlockError> {
        let (from_index, _) = self.find(from)?;
        let (_, slot) = self.find(to)?;

        let (Channel::Link { node, .. } | Channel::Fifo { node, .. }) = to;
        if self.buffer_nodes[from_index] != node {
            return Err(DeadlockError::Apart { from, to });
        }

        self.waits[from_index] |= 1 << slot;
        Ok(())
    }

    /// Checks that no channels wait for each other in a circle.
    ///
    /// # Errors
    /// [`DeadlockError::Deadlock`], with a circle.
    pub fn check(&self) -> Result<(), DeadlockError> {
        self.check_with(|_| None)
    }

    /// Checks that no channels wait for each other in a circle, apart from rings with the bubble
    /// rule. `successor` returns the next channel along the ring of a channel that has the rule,
    /// and `None` for all others.
    ///
    /// # Errors
    /// [`DeadlockError::Deadlock`], with a circle that the rule does not cover.
    pub fn check_with(&self, successor: impl Fn(Channel) -> Option<Channel>) -> Result<(), DeadlockError> {
        match search::find_cycle(self, successor) {
            None => Ok(()),
            Some(cycle) => Err(DeadlockError::Deadlock { cycle }),
        }
    }

    /// Returns the index and the slot of a channel, which must exist and have a cable.
    fn find(&self, channel: Channel) -> Result<(usize, usize), DeadlockError> {
        let (Channel::Link { node, .. } | Channel::Fifo { node, .. }) = channel;
        let no_channel = DeadlockError::NoChannel { channel };
        let Some(slot) = self.layout.slot(channel) else { return Err(no_channel) };

        let index = node as usize * self.layout.width() + slot;
        match self.buffer_nodes.get(index) {
            None | Some(&NO_NODE) => Err(no_channel),
            Some(_) => Ok((index, slot)),
        }
    }

    /// Returns the slots by which packets with a route word leave a node, one bit for each. Checks
    /// that they exist, and that packets are delivered only at their target.
    #[inline]
    fn exits(&self, routing: &impl Routing, node: u32, word: u32) -> Result<u64, DeadlockError> {
        let mut exits = Exits::none(self.layout, node);
        routing.exits(node, word, &mut exits);

        if let Some(channel) = exits.unknown {
            return Err(DeadlockError::NoChannel { channel });
        }
        if exits.mask == 0 && !exits.delivers {
            return Err(DeadlockError::NoRoute { node, word });
        }
        if exits.delivers
            && let Some(target) = routing.target(word).filter(|&target| target != node)
        {
            return Err(DeadlockError::WrongNode { node, word, target });
        }

        let first = node as usize * self.layout.width();
        match slots(exits.mask).find(|slot| self.buffer_nodes[first + slot] == NO_NODE) {
            None => Ok(exits.mask),
            Some(slot) => Err(DeadlockError::NoChannel { channel: self.layout.channel(first + slot) }),
        }
    }

    /// Adds the waits of the packets of one route word, which leave each node by one of its
    /// `exits`: in the channel that they leave by, they wait for the exits of the next node.
    fn add_waits(&mut self, exits: &[u64]) {
        for (node, &mask) in exits.iter().enumerate() {
            let first = node * self.layout.width();
            for slot in slots(self.layout.links_in(mask)) {
                let next_node = self.buffer_nodes[first + slot] as usize;
                self.waits[first + slot] |= exits[next_node];
            }
        }
    }
}

/// Returns the slots of a mask, in order.
#[inline]
pub(super) fn slots(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(slot)
    })
}
