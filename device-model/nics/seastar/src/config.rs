//! A network of SeaStars: its shape, its routes, and the options of its nodes.

use std::sync::Arc;

use nicforge_core::{companion::CompanionMode, fabric::LinkSpec};
use nicforge_hwi::seastar::{DEFAULT_PROCESSES, MAX_NODES, MAX_PROCESSES, PACKET};
use nicforge_kit::Clock;
use nicforge_network::{
    deadlock::{DeadlockError, NodeChannels, WaitGraph},
    router::{
        RouterError,
        policies::{TablePolicy, TableRules, table_routes},
    },
    shape::{Cable, Cabling, Dimension, Direction, ShapeError, Torus},
};
use thiserror::Error;

use crate::{
    incarnations::{Incarnations, SharedIncarnations},
    wire::{CHANNELS, CONTROL, DATA, FIRST_VCS},
};

/// Maximum number of bytes of a packet over links without a bandwidth.
pub const DEFAULT_MTU: usize = 8 << 10;
/// Largest value of [`Options::mtu`].
pub const MAX_MTU: usize = 1 << 16;
/// Number of packets for which the receiving end of each virtual channel of a link has buffers.
pub const CREDITS: u32 = 32;
/// Maximum number of attachments of a node: the kernel's and one for each process.
pub(crate) const MAX_CLIENTS: usize = MAX_PROCESSES as usize + 1;
/// Maximum number of dimensions of a torus.
const MAX_DIMENSIONS: usize = 3;

/// Options of a network's SeaStars.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of processes of a node, 1 to [`MAX_PROCESSES`].
    pub processes: u16,
    /// Clock of the embedded processor. With the default, its work takes no time.
    pub clock: Clock,
    /// Rate of the host interface in each direction in megabytes a second; 0 for no limit.
    pub host_rate: u32,
    /// Whether messages with data in several packets carry an end-to-end check. With `None`, they
    /// do if the links have a bandwidth.
    pub end_to_end_crc: Option<bool>,
    /// Maximum number of bytes of a packet over links without a bandwidth, [`PACKET`] to
    /// [`MAX_MTU`]. Over other links a packet has [`PACKET`] bytes.
    pub mtu: usize,
    /// Number of nodes, from the first one on, whose firmware may have a thread of its own. The
    /// firmware of the others is stepped in every machine.
    pub firmware_threads: u32,
    /// Properties of the links. The network itself sets the number of virtual channels and the
    /// longest packet.
    pub link: LinkSpec,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            processes: DEFAULT_PROCESSES,
            clock: Clock::default(),
            host_rate: 0,
            end_to_end_crc: None,
            mtu: DEFAULT_MTU,
            firmware_threads: MAX_NODES,
            link: LinkSpec::new(CHANNELS, CREDITS, DEFAULT_MTU),
        }
    }
}

impl Options {
    /// Returns the clock of the host interface, which moves a byte in each of its cycles.
    pub(crate) fn host_clock(&self) -> Clock {
        Clock::of_mhz(self.host_rate)
    }
}

/// Reasons why a network or a node is refused.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The shape does not exist.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Too many dimensions.
    #[error("a torus of {dimensions} dimensions: a SeaStar has links for {MAX_DIMENSIONS}")]
    Dimensions {
        /// Number of dimensions.
        dimensions: usize,
    },
    /// More nodes than the firmware has sequence numbers for.
    #[error("a network of {nodes} nodes: choose 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes.
        nodes: u32,
    },
    /// The node does not exist.
    #[error("there is no node {node}: the network has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// Too few or too many processes.
    #[error("{processes} processes: choose 1 to {MAX_PROCESSES}")]
    Processes {
        /// Number of processes.
        processes: u16,
    },
    /// Packets of a length that is not possible.
    #[error("packets of {mtu} bytes: choose {PACKET} to {MAX_MTU}")]
    Mtu {
        /// Bytes.
        mtu: usize,
    },
    /// The routes can deadlock.
    #[error(transparent)]
    Deadlock(#[from] DeadlockError),
    /// The router is not possible.
    #[error(transparent)]
    Router(#[from] RouterError),
}

/// A network of SeaStars: its shape, its routes, and what its devices share.
#[derive(Clone, Debug)]
pub struct Network {
    torus: Torus,
    /// The routing table of each node.
    tables: Arc<Vec<TablePolicy>>,
    options: Options,
    incarnations: Arc<SharedIncarnations>,
}

impl Network {
    /// Returns a torus with these lengths. `wraps` tells for each dimension whether its last node
    /// has a cable to its first; dimensions that it leaves out have one. A dimension of fewer than
    /// three nodes never has, because its nodes are neighbours already.
    ///
    /// # Errors
    /// [`NetworkError`] names the value that does not fit. Routes that could deadlock are refused.
    pub fn torus(lengths: &[u32], wraps: &[bool], mut options: Options) -> Result<Self, NetworkError> {
        if lengths.is_empty() || lengths.len() > MAX_DIMENSIONS {
            return Err(NetworkError::Dimensions { dimensions: lengths.len() });
        }

        let wraps = wraps.iter().copied().chain(std::iter::repeat(true));
        let dimensions: Vec<_> = lengths
            .iter()
            .zip(wraps)
            .map(|(&length, wraps)| Dimension { length, wraps: wraps && length > 2 })
            .collect();
        let torus = Torus::new(&dimensions)?;
        let nodes = torus.nodes();
        if nodes > MAX_NODES {
            return Err(NetworkError::Nodes { nodes });
        }

        check_options(&options)?;
        let is_timed = options.link.bits_per_second > 0;
        options.link.max_packet = if is_timed { PACKET } else { options.mtu };
        options.end_to_end_crc.get_or_insert(is_timed);

        let tables: Vec<_> = (0..nodes).map(|node| routing_table(&torus, node)).collect();
        check_deadlock(&torus, &tables)?;

        let incarnations = Arc::new(SharedIncarnations::new(nodes));
        Ok(Self { torus, tables: Arc::new(tables), options, incarnations })
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.torus.nodes()
    }

    /// Returns the options. Those of links are complete.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the cables between the nodes.
    pub fn cables(&self) -> impl Iterator<Item = Cable> + '_ {
        self.torus.cables()
    }

    /// Returns where the firmware of a node runs on a machine with threads.
    fn firmware_mode(&self, node: u32) -> CompanionMode {
        if node < self.options.firmware_threads { CompanionMode::Threads } else { CompanionMode::Stepped }
    }

    /// Returns what a node's device needs to know about its place in the network.
    pub(crate) fn site(&self, node: u32) -> Result<Site, NetworkError> {
        let nodes = self.nodes();
        let table = self.tables.get(node as usize).ok_or(NetworkError::NoNode { node, nodes })?;
        Ok(Site {
            node,
            nodes,
            ports: self.torus.ports(),
            table: table.clone(),
            firmware: self.firmware_mode(node),
            options: self.options.clone(),
            incarnations: self.incarnations.of_node(node),
        })
    }
}

/// A node's place in its network.
#[derive(Debug)]
pub(crate) struct Site {
    /// Number of the node.
    pub(crate) node: u32,
    /// Number of nodes of the network.
    pub(crate) nodes: u32,
    /// Number of ports with links.
    pub(crate) ports: u8,
    pub(crate) table: TablePolicy,
    /// Where the firmware runs on a machine with threads.
    pub(crate) firmware: CompanionMode,
    pub(crate) options: Options,
    pub(crate) incarnations: Arc<Incarnations>,
}

/// Checks the options that no other part checks.
fn check_options(options: &Options) -> Result<(), NetworkError> {
    let processes = options.processes;
    if !(1..=MAX_PROCESSES).contains(&processes) {
        return Err(NetworkError::Processes { processes });
    }

    let mtu = options.mtu;
    if !(PACKET..=MAX_MTU).contains(&mtu) {
        return Err(NetworkError::Mtu { mtu });
    }
    Ok(())
}

/// Returns the routing table of a node: dimension-order routing. A packet leaves by the first
/// dimension in which its target's coordinate differs from this node's.
///
/// In a ring, a packet is on the first channel of its class while the cable between the last node
/// and the first is still ahead of it, and on the second one otherwise. No channel thus closes a
/// ring.
fn routing_table(torus: &Torus, node: u32) -> TablePolicy {
    let mut table = TablePolicy::new(torus.nodes(), TableRules { first_vcs: FIRST_VCS });
    let Some(here) = torus.coordinates(node) else { return table };

    for target in 0..torus.nodes() {
        let Some(there) = torus.coordinates(target) else { continue };
        let Some(dimension) = (0..here.len()).find(|&dimension| here[dimension] != there[dimension]) else {
            table.set_local(target);
            continue;
        };

        let (from, to) = (here[dimension], there[dimension]);
        let Some(way) = torus.way(dimension, from, to) else { continue };
        let is_up = match way.direction {
            Direction::Up => true,
            Direction::Down => false,
            // The target is half a ring away: even nodes go up and odd ones down, so that both
            // directions have the same load.
            Direction::Either => from % 2 == 0,
        };

        let wraps = torus.dimensions()[dimension].wraps;
        let crosses_dateline = wraps && is_up == (to < from);
        let port = dimension as u8 * 2 + u8::from(!is_up);
        let channel_of_class = u8::from(!crosses_dateline);
        table.set_exit(target, port, channel_of_class);
    }
    table
}

/// Checks for each of the two classes of packets that its virtual channels cannot wait for each
/// other in a circle.
///
/// The classes have virtual channels of their own, and a receiver takes the packets of both without
/// waiting for its own transmission. They therefore never wait for each other.
fn check_deadlock(torus: &Torus, tables: &[TablePolicy]) -> Result<(), DeadlockError> {
    let mut graph = WaitGraph::new(torus, NodeChannels { vcs: CHANNELS as u8, fifos: 0 })?;
    for class in [DATA, CONTROL] {
        graph.add_routes(&table_routes(tables, class))?;
    }
    graph.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tori_and_meshes_have_routes_without_deadlock() {
        for (lengths, wraps) in [
            (&[2, 2, 2][..], &[][..]),
            (&[5, 4, 3], &[]),
            (&[3, 4, 5], &[false, false, true]),
            (&[8, 7], &[]),
            (&[9], &[]),
            (&[1, 6, 1], &[]),
        ] {
            let network = Network::torus(lengths, wraps, Options::default()).unwrap();
            assert_eq!(network.nodes(), lengths.iter().product::<u32>());
        }
    }

    #[test]
    fn rings_without_a_dateline_are_refused() {
        let torus = Torus::new(&[Dimension::torus(5)]).unwrap();
        let mut tables: Vec<_> = (0..5).map(|node| routing_table(&torus, node)).collect();
        for (node, table) in tables.iter_mut().enumerate() {
            for hops in 1..3 {
                assert!(table.set_exit((node as u32 + hops) % 5, 0, 0));
            }
        }

        assert!(matches!(check_deadlock(&torus, &tables), Err(DeadlockError::Deadlock { .. })));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let torus = |lengths: &[u32], options| Network::torus(lengths, &[], options).map(drop);
        let options = Options::default;

        assert!(matches!(torus(&[], options()), Err(NetworkError::Dimensions { dimensions: 0 })));
        assert!(matches!(torus(&[2; 4], options()), Err(NetworkError::Dimensions { dimensions: 4 })));
        assert!(matches!(torus(&[200, 100], options()), Err(NetworkError::Nodes { nodes: 20_000 })));
        assert!(matches!(torus(&[0], options()), Err(NetworkError::Shape(_))));
        for processes in [0, MAX_PROCESSES + 1] {
            let options = Options { processes, ..options() };
            assert!(matches!(torus(&[2], options), Err(NetworkError::Processes { .. })));
        }
        for mtu in [63, MAX_MTU + 1] {
            let options = Options { mtu, ..options() };
            assert!(matches!(torus(&[2], options), Err(NetworkError::Mtu { .. })));
        }
    }
}
