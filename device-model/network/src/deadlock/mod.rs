//! The check that packets cannot wait for each other in a circle.
//!
//! A packet holds a buffer and waits for the next one on its way. The buffers are the vertices of a
//! [`WaitGraph`], and each is named by its [`Channel`]: a virtual channel of a link, or a FIFO
//! between network and software. The graph has an edge from a channel to each channel that its
//! packets may wait for. If it has no cycle, each waiting packet can proceed at some time (Dally
//! and Seitz).
//!
//! ```
//! use nicforge_network::{
//!     deadlock::{NodeChannels, WaitGraph, bubble, fixed_paths},
//!     shape::{Dimension, Torus},
//! };
//!
//! let torus = Torus::new(&[Dimension::torus(4), Dimension::torus(4)])?;
//! let mut graph = WaitGraph::new(&torus, NodeChannels { vcs: 1, fifos: 0 })?;
//! graph.add_routes(&fixed_paths(&torus, 0))?;
//!
//! assert!(graph.check().is_err());
//! graph.check_with(bubble(&torus, 0))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the graph must contain
//!
//! - **Fixed routes**: all of them.
//! - **Adaptive routes** that may take any of several channels: a [`Routing`] lists all of them,
//!   and none of them may be on a cycle.
//! - **Adaptive routes with an escape network**: the routes of the escape channels alone. A packet
//!   on another channel may change to the escape channel at each node, so it never waits for
//!   adaptive channels only (Duato). [`WaitGraph::add_routes`] refuses an escape network without a
//!   way from some node. The statement needs buffers of whole packets, as with virtual cut-through:
//!   a packet then waits in one buffer.
//! - **Multicast**: all channels by which copies leave. A packet that waits for all of them is
//!   treated as one that waits for any of them.
//! - **Protocol edges**: a packet that leaves the network only when its receiver can send another
//!   one, such as a remote get that needs room in an injection FIFO. The routing ends the packet's
//!   way with [`Exits::fifo`], and [`WaitGraph::add_wait`] adds what the FIFO waits for.
//!
//! # The bubble rule
//!
//! A packet that enters a ring needs room for two packets, and one that moves along the ring needs
//! room for one. The ring then never fills up, and its packets move on as soon as one can leave.
//! [`WaitGraph::check_with`] gets the successor of each channel to which the rule applies. It
//! accepts cycles whose steps all lead to the declared successors. It refuses any other cycle, even
//! if it only passes through such channels.
//!
//! # Time and memory
//!
//! [`WaitGraph::add_routes`] asks the routing once for each pair of node and route word, at most
//! [`MAX_LOOKUPS`] times, and follows each exit twice. The search for cycles visits each channel
//! and each edge once. Memory is bounded by the channels, and not by the pairs:
//!
//! | part | bytes |
//! | --- | --- |
//! | a graph | 12 for each channel |
//! | a call of `add_routes` | 48 for each node at most |
//! | the search for cycles | 80 for each channel at most |
//!
//! A 3D torus of 8,192 nodes with dimension order has 67 million pairs and 49,152 channels.
//! Its check takes a few seconds.

mod graph;
mod routing;
mod search;
mod walk;

use std::fmt;

use thiserror::Error;

pub use self::{
    graph::{NodeChannels, WaitGraph},
    routing::{Exits, Routing, by_target, fixed_paths},
    search::bubble,
};
use crate::shape::MAX_NODES;

/// The largest number of channels of a node: virtual channels of all its ports, and FIFOs.
pub const MAX_CHANNELS: u32 = u64::BITS;
/// The largest number of pairs of node and route word of one routing: 2^34.
pub const MAX_LOOKUPS: u64 = 1 << 34;

/// A buffer in which packets wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// A virtual channel of a link, in one direction: the buffer at the other end of the cable.
    Link {
        /// The node from which packets enter it.
        node: u32,
        /// The port of that node.
        port: u8,
        /// The virtual channel.
        vc: u8,
    },
    /// A FIFO between the network and the software of a node.
    Fifo {
        /// The node.
        node: u32,
        /// The FIFO's number at its node.
        fifo: u8,
    },
}

impl fmt::Display for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link { node, port, vc } => write!(out, "node {node} port {port} channel {vc}"),
            Self::Fifo { node, fifo } => write!(out, "node {node} FIFO {fifo}"),
        }
    }
}

/// Channels of which each waits for the next one, and the last for the first. There is at least
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    channels: Vec<Channel>,
}

impl Cycle {
    /// Number of channels that the text of a cycle names.
    const NAMED: usize = 16;

    /// Returns the channels.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Returns the node, port and virtual channel of the first channel that is one of a link.
    pub fn first_link(&self) -> Option<(u32, u8, u8)> {
        self.channels.iter().find_map(|channel| match *channel {
            Channel::Link { node, port, vc } => Some((node, port, vc)),
            Channel::Fifo { .. } => None,
        })
    }
}

/// Names the first channels of the cycle, and says how many follow.
impl fmt::Display for Cycle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for channel in self.channels.iter().take(Self::NAMED) {
            write!(out, "{channel} -> ")?;
        }

        match self.channels.len().saturating_sub(Self::NAMED) {
            0 => out.write_str("back to the first"),
            more => write!(out, "{more} more -> back to the first"),
        }
    }
}

/// Reasons why a network is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeadlockError {
    /// Too few or too many nodes.
    #[error("a network of {nodes} nodes: 1 to {MAX_NODES} can be checked")]
    Nodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// More channels at a node than can be checked.
    #[error(
        "{channels} channels at each node: leave out channels that cannot be waited for, down to {MAX_CHANNELS}"
    )]
    Channels {
        /// Number of channels of a node.
        channels: u32,
    },
    /// More pairs of node and route word than can be checked.
    #[error("{nodes} nodes and {words} route words: at most {MAX_LOOKUPS} pairs can be checked")]
    Lookups {
        /// Number of nodes.
        nodes: u32,
        /// Number of route words.
        words: u32,
    },
    /// A routing or a protocol edge names a channel that does not exist, or that has no cable.
    #[error("there is no {channel}: connect a cable there, or route packets elsewhere")]
    NoChannel {
        /// The channel.
        channel: Channel,
    },
    /// An edge between channels that do not meet: packets of the first are not at the node of the
    /// second.
    #[error("{from} cannot wait for {to}: its packets are not at that node")]
    Apart {
        /// The channel that would wait.
        from: Channel,
        /// The channel that it would wait for.
        to: Channel,
    },
    /// A routing neither delivers a packet nor sends it on.
    #[error("node {node} has no route for packets with route word {word}: give it one")]
    NoRoute {
        /// The node.
        node: u32,
        /// The route word.
        word: u32,
    },
    /// A routing delivers a packet at another node than its target.
    #[error("node {node} delivers packets with route word {word}, which are for node {target}")]
    WrongNode {
        /// The node that delivers them.
        node: u32,
        /// The route word.
        word: u32,
        /// Their target.
        target: u32,
    },
    /// A routing leads packets in a circle.
    #[error("packets with route word {word} never arrive: {cycle}")]
    Endless {
        /// The route word.
        word: u32,
        /// The circle.
        cycle: Cycle,
    },
    /// Packets can wait for each other in a circle.
    #[error("packets can wait for each other in a circle, each for the channel after its own: {cycle}")]
    Deadlock {
        /// The circle.
        cycle: Cycle,
    },
}
