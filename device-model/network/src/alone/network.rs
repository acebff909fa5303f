//! The nodes of a network alone, and the order of their turns.

use nicforge_core::{
    cache::prefetch_entry,
    fabric::{FabricError, LinkSpec},
    time::Nanos,
};
use thiserror::Error;

use super::{
    links::NodeLinks,
    net::{Net, PREFETCH_DISTANCE},
};
use crate::shape::Cabling;

/// Cache lines at the beginning of a node that are prefetched before its turn. Routers have most of
/// their masks there.
const NODE_LINES: usize = 8;
/// Maximum number of turns of a node at one time.
const MAX_TURNS: u32 = 1 << 16;

/// A node: a router, and what puts packets into it and takes them out.
pub trait Node {
    /// Does the node's work at the present time ([`crate::router::Links::now`]), with at least one
    /// step of its router.
    fn turn(&mut self, links: &mut NodeLinks<'_>) -> Turn;

    /// Lets the node's router decide on a packet whose head has arrived at an input, before the
    /// turns of the present time: [`crate::router::Router::arrive`]. Returns whether the node needs
    /// a turn for that.
    #[inline(always)]
    fn arrive(&mut self, links: &mut NodeLinks<'_>, input: u8) -> bool {
        let _ = (links, input);
        true
    }

    /// Has the processor load the tables of the node, which has a turn soon. The arguments are
    /// those of [`crate::router::Router::prefetch`]: the inputs with the head of a packet, and the
    /// ports at which a wait has ended, one bit for each.
    #[inline(always)]
    fn prefetch(&self, heads: u64, freed: u64) {
        let _ = (heads, freed);
    }
}

/// Result of [`Node::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Turn {
    /// Time at which the node has to have a turn even without an event, or [`Nanos::NEVER`].
    pub wake: Nanos,
    /// The node has more to do at this time.
    pub has_more: bool,
}

/// Reasons why a network is refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AloneError {
    /// The link is refused.
    #[error("the link is refused: {0}")]
    Link(#[from] FabricError),
    /// The link has no delay or an infinite bandwidth.
    #[error(
        "a link with a delay of {delay} ns and {bits_per_second} bits a second: give it at least 1 ns and 1 bit"
    )]
    Instant {
        /// The delay in nanoseconds.
        delay: u64,
        /// The bandwidth, 0 for an infinite one.
        bits_per_second: u64,
    },
    /// The number of nodes is not that of the shape.
    #[error("{given} nodes for a shape of {nodes}")]
    Nodes {
        /// Nodes that were given.
        given: usize,
        /// Nodes of the shape.
        nodes: u32,
    },
    /// There are more virtual channels than events can name.
    #[error("{nodes} nodes of {ports} ports and {channels} virtual channels: choose fewer")]
    TooLarge {
        /// Nodes of the shape.
        nodes: u32,
        /// Ports of a node.
        ports: u8,
        /// Virtual channels of a link.
        channels: usize,
    },
}

/// Work at one time that did not end within 65,536 turns of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("node {node} has had {MAX_TURNS} turns at {} ns, and is not done", time.0)]
pub struct Endless {
    /// The node.
    pub node: u32,
    /// The network's time.
    pub time: Nanos,
}

/// A network without a machine: see the module documentation of [`crate::alone`].
#[derive(Debug)]
pub struct Network<N> {
    nodes: Vec<N>,
    net: Net,
    /// Empty memory for the list of nodes that have a turn at one time.
    turns: Vec<u32>,
}

impl<N: Node> Network<N> {
    /// Returns the nodes of a shape, joined by its cables. All links are of one kind. Each node has
    /// a turn at time 0.
    ///
    /// # Errors
    /// [`AloneError`] names the value that does not fit.
    pub fn new(cabling: &impl Cabling, link: &LinkSpec, nodes: Vec<N>) -> Result<Self, AloneError> {
        link.check()?;
        if link.delay == 0 || link.bits_per_second == 0 {
            let LinkSpec { delay, bits_per_second, .. } = *link;
            return Err(AloneError::Instant { delay, bits_per_second });
        }

        let (count, ports, channels) = (cabling.nodes(), cabling.ports(), link.credits.len());
        if nodes.len() != count as usize {
            return Err(AloneError::Nodes { given: nodes.len(), nodes: count });
        }
        if !Net::fits_events(count, ports, channels) {
            return Err(AloneError::TooLarge { nodes: count, ports, channels });
        }

        let mut net = Net::new(count, ports, channels, link);
        for cable in cabling.cables() {
            net.connect(cable.a, cable.b);
            net.connect(cable.b, cable.a);
        }
        (0..count).for_each(|node| net.wake(node));
        Ok(Self { nodes, net, turns: Vec::new() })
    }

    /// Returns the present time.
    pub fn now(&self) -> Nanos {
        self.net.tables.now
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// Returns a node, to change it. It has a turn in the next [`Network::run_until`].
    pub fn node_mut(&mut self, node: u32) -> Option<&mut N> {
        let changed = self.nodes.get_mut(node as usize)?;
        self.net.wake(node);
        Some(changed)
    }

    /// Returns the number of packets sent over links: a packet counts once for each link.
    pub fn hops(&self) -> u64 {
        self.net.hops()
    }

    /// Carries out everything that is due until `time`, inclusive, in order of time. The network's
    /// time is `time` afterwards. With [`Nanos::NEVER`], it runs until nothing is due, and its time
    /// is that of the last event.
    ///
    /// # Errors
    /// [`Endless`] if a node always asks for another turn. A further call continues the work.
    pub fn run_until(&mut self, time: Nanos) -> Result<(), Endless> {
        self.run_woken()?;
        while let Some(events) = self.net.take_events(time) {
            // The nodes that have a turn in any case need not decide on heads ahead of it.
            self.net.carry_out_others(&events);
            for (index, &lane) in events.arrivals.iter().enumerate() {
                if let Some(&ahead) = events.arrivals.get(index + PREFETCH_DISTANCE) {
                    self.net.prefetch_lane(ahead);
                }
                self.net.arrive(&mut self.nodes, lane);
            }
            self.net.recycle_events(events);
            self.run_woken()?;
        }

        if time < Nanos::NEVER {
            self.net.go_on_to(time);
        }
        Ok(())
    }

    /// Runs the turns of all woken nodes.
    fn run_woken(&mut self) -> Result<(), Endless> {
        // The empty memory takes the nodes that are woken meanwhile.
        std::mem::swap(&mut self.turns, &mut self.net.woken);
        let mut turns = std::mem::take(&mut self.turns);
        let Some(&last) = turns.last() else {
            self.turns = turns;
            return Ok(());
        };

        // Each turn has two behind it then, whose memory is loaded meanwhile.
        turns.extend([last; 2]);
        for (index, window) in turns.windows(3).enumerate() {
            let &[number, next, ahead] = window else { continue };
            self.prefetch(next, ahead);
            if let Err(endless) = self.run_node(number) {
                self.net.postpone(&turns[index..turns.len() - 2]);
                return Err(endless);
            }
        }

        turns.clear();
        self.turns = turns;
        Ok(())
    }

    /// Has the processor load what the next turn needs, and the one after that.
    #[inline(always)]
    fn prefetch(&self, next: u32, ahead: u32) {
        prefetch_entry::<NODE_LINES, _>(&self.nodes, ahead as usize);
        self.net.prefetch_node(ahead);
        if let Some(node) = self.nodes.get(next as usize) {
            let (arrived, freed) = self.net.heads_and_freed(next);
            node.prefetch(arrived, freed);
        }
    }

    /// Runs turns of a node for as long as it has more to do, and has it woken when it asks for
    /// that.
    #[inline(always)]
    fn run_node(&mut self, number: u32) -> Result<(), Endless> {
        let mut turn = self.run_turn(number);
        if turn.has_more {
            turn = self.run_more(number)?;
        }
        if turn.wake < Nanos::NEVER {
            self.net.wake_at(number, turn.wake.max(self.now().after(1)));
        }
        Ok(())
    }

    /// Runs further turns of a node, and returns the result of the last one.
    #[cold]
    #[inline(never)]
    fn run_more(&mut self, number: u32) -> Result<Turn, Endless> {
        for _ in 1..MAX_TURNS {
            let turn = self.run_turn(number);
            if !turn.has_more {
                return Ok(turn);
            }
        }
        Err(Endless { node: number, time: self.now() })
    }

    /// Runs a turn of a node.
    #[inline(always)]
    fn run_turn(&mut self, number: u32) -> Turn {
        let node = self.nodes.get_mut(number as usize);
        match (node, self.net.begin_turn(number)) {
            (Some(node), Some(mut links)) => node.turn(&mut links),
            _ => Turn { wake: Nanos::NEVER, has_more: false },
        }
    }
}
