//! A network of Blue Gene/Q nodes: its shape, its routes, and the options of its nodes.
//!
//! The compute nodes are a torus of five dimensions A to E, or a partition of a larger machine. An
//! I/O node is attached to one to three of them. Compute nodes have the first numbers, in the order
//! of their coordinates with A fastest, and I/O nodes follow.

use std::sync::Arc;

use nicforge_core::fabric::LinkSpec;
use nicforge_hwi::{
    mu::USER_SUBGROUPS,
    mu_packet::{CHECK_BYTES, DIMENSIONS, IO_PORT, MAX_PACKET, PORTS},
};
use nicforge_kit::Clock;
use nicforge_network::{
    collective::CollectiveError,
    deadlock::DeadlockError,
    router::{RouterError, RouterPlan, policies::PolicyError},
    shape::{Cable, CableEnd, Cabling, Dimension, Partition, ShapeError, Torus},
};
use thiserror::Error;

use crate::{
    link_check::{CheckTable, End, LinkChecks},
    network::{self, Place},
    tenants::Tenants,
};

/// Maximum number of nodes of a network, I/O nodes included. It bounds the time of the deadlock
/// check, which asks for the routes between all pairs of nodes.
pub const MAX_NODES: u32 = 2048;
/// Longest dimensions: coordinates have 6 bits, and dimension E has two nodes.
pub const LONGEST: [u32; DIMENSIONS] = [64, 64, 64, 64, 2];
/// Subgroups of a node unless the options say otherwise.
pub const DEFAULT_SUBGROUPS: u16 = 4;
/// Packets of buffer at the receiving end of a virtual channel. `nd_rese_dcr.h` states seven
/// tokens, that is packets, for the deterministic and the collective channels. Its limits for the
/// tokens of the dynamic channel, which are chunks of 32 bytes, suggest a buffer of about 128 of
/// them: room for seven of the longest packets.
pub const CREDITS: u32 = 7;
/// Bytes of the link protocol for each packet on a link with a bandwidth: acknowledgement and
/// tokens. With them, a link carries at most 90 % of its raw bandwidth as payload (section II.A).
pub const PROTOCOL_BYTES: u32 = 24;
/// Maximum number of bytes of client memory that a packet refers to, on links without a bandwidth.
pub const MAX_REFERENCE: u32 = 256 << 10;
/// The set of all dimensions, one bit for each.
const ALL_DIMENSIONS: u8 = (1 << DIMENSIONS) - 1;
/// Maximum number of compute nodes to which an I/O node is attached.
pub const MAX_EXITS: usize = 3;
/// The ports by which an I/O node is attached to its compute nodes: the I/O link, and those of D+
/// and D-. The first compute node is at the first port, and so on.
pub const EXIT_PORTS: [u8; MAX_EXITS] = [IO_PORT, 6, 7];

/// Times and bytes that the hardware spends on a message, of which the paper gives only sums. By
/// default the messages take no time, and links have the protocol bytes of the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds from the fetch of a descriptor to its first packet: the latencies of memory and
    /// of the ports at both ends of the message, of which only the sum is known.
    pub latency: u64,
    /// The bandwidth of memory, as a clock: the unit reads or writes one byte in each cycle. The
    /// default clock stands for a memory of any bandwidth.
    pub memory: Clock,
    /// Bytes of the link protocol for each packet: [`PROTOCOL_BYTES`].
    pub protocol_bytes: u32,
    /// Cycles that the collective logic needs between two packets, beyond their time on the wire.
    pub collective_recovery: u32,
}

impl Default for Times {
    fn default() -> Self {
        Self { latency: 0, memory: Clock::default(), protocol_bytes: PROTOCOL_BYTES, collective_recovery: 0 }
    }
}

/// Options of a network and its nodes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Application subgroups of a node, 1 to 64.
    pub subgroups: u16,
    /// Clock of the Message Unit. The cycles of the default take no time.
    pub clock: Clock,
    /// Clock of the network's collective logic.
    pub network_clock: Clock,
    /// Times of messages.
    pub times: Times,
    /// Order of the dimensions for deterministic packets, the same at all nodes: 0 is A.
    pub order: [u8; DIMENSIONS],
    /// Zone masks at power-on, for dynamic packets: each of the four zones is a sequence of sets of
    /// dimensions, bit 0 for A. A packet goes along the dimensions of a set before those of the
    /// next.
    pub zones: [[u8; DIMENSIONS]; 4],
    /// I/O nodes: the compute nodes to which each is attached, 1 to 3.
    pub io_nodes: Vec<Vec<u32>>,
    /// Links. The number of virtual channels and the longest packet are the network's own.
    pub link: LinkSpec,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            subgroups: DEFAULT_SUBGROUPS,
            clock: Clock::default(),
            network_clock: Clock::default(),
            times: Times::default(),
            order: [0, 1, 2, 3, 4],
            zones: [[ALL_DIMENSIONS, 0, 0, 0, 0]; 4],
            io_nodes: Vec::new(),
            link: LinkSpec::new(network::CHANNELS, CREDITS, MAX_PACKET),
        }
    }
}

impl Options {
    /// Returns whether the links have a bandwidth.
    pub fn is_timed(&self) -> bool {
        self.link.bits_per_second > 0
    }

    /// Returns the bytes that a link carries with each packet: check bytes and link protocol. Links
    /// without a bandwidth carry none.
    pub fn framing(&self) -> u32 {
        if self.is_timed() { CHECK_BYTES + self.times.protocol_bytes } else { 0 }
    }

    /// Returns the most bytes that a packet can refer to ([`MAX_REFERENCE`]), which is none on
    /// links with a bandwidth.
    pub fn max_reference(&self) -> u32 {
        if self.is_timed() { 0 } else { MAX_REFERENCE }
    }
}

/// Reasons why a network or a node is refused.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The shape does not exist.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A dimension is too long.
    #[error("dimension {dimension} has {length} nodes: choose at most {longest}")]
    Dimension {
        /// The dimension, 0 for A.
        dimension: usize,
        /// Its nodes.
        length: u32,
        /// The longest that is possible.
        longest: u32,
    },
    /// Too many nodes.
    #[error("a network of {nodes} nodes: choose 1 to {MAX_NODES}")]
    Nodes {
        /// Number of nodes, I/O nodes included.
        nodes: u64,
    },
    /// The node does not exist.
    #[error("there is no node {node}: the network has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// Too few or too many subgroups.
    #[error("{subgroups} subgroups: choose 1 to {USER_SUBGROUPS}")]
    Subgroups {
        /// Number of subgroups.
        subgroups: u16,
    },
    /// The order of dimensions does not name each dimension once.
    #[error("the order of dimensions {order:?}: name each of 0 to 4 once")]
    Order {
        /// The order.
        order: [u8; DIMENSIONS],
    },
    /// An I/O node is attached to no compute node or to too many.
    #[error("I/O node {io_node} is attached to {exits} compute nodes: choose 1 to {MAX_EXITS}")]
    Exits {
        /// Number of the I/O node, from 0.
        io_node: usize,
        /// Number of compute nodes.
        exits: usize,
    },
    /// The compute node of an I/O link does not exist, or has another I/O link.
    #[error("I/O node {io_node} is attached to node {node}, which does not exist or has an I/O node")]
    Exit {
        /// Number of the I/O node, from 0.
        io_node: usize,
        /// The compute node.
        node: u32,
    },
    /// The policy of a node is not possible.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The routes can deadlock.
    #[error(transparent)]
    Deadlock(#[from] DeadlockError),
    /// The router is not possible.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// The collective unit is not possible.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// The nodes and cables of a network: a torus, and I/O nodes.
#[derive(Clone, Debug)]
pub struct Cables {
    pub(crate) torus: Torus,
    /// Compute nodes of each I/O node.
    pub(crate) io_nodes: Vec<Vec<u32>>,
    /// For each compute node, the end of its I/O link at the I/O node, if it has such a link.
    exits: Vec<Option<CableEnd>>,
}

impl Cables {
    /// Returns the cables of a torus with these I/O nodes.
    fn new(torus: Torus, io_nodes: &[Vec<u32>]) -> Result<Self, NetworkError> {
        let nodes = u64::from(torus.nodes()) + io_nodes.len() as u64;
        if nodes > u64::from(MAX_NODES) {
            return Err(NetworkError::Nodes { nodes });
        }

        let mut exits = vec![None; torus.nodes() as usize];
        for (io_node, attached) in io_nodes.iter().enumerate() {
            if attached.is_empty() || attached.len() > MAX_EXITS {
                return Err(NetworkError::Exits { io_node, exits: attached.len() });
            }
            for (&node, port) in attached.iter().zip(EXIT_PORTS) {
                match exits.get_mut(node as usize) {
                    Some(end @ None) => *end = Some(CableEnd::new(torus.nodes() + io_node as u32, port)),
                    _ => return Err(NetworkError::Exit { io_node, node }),
                }
            }
        }
        Ok(Self { torus, io_nodes: io_nodes.to_vec(), exits })
    }

    /// Returns the compute nodes to which a node is attached as an I/O node. There are none for the
    /// number of a compute node.
    pub(crate) fn attached_to(&self, node: u32) -> &[u32] {
        let io_node = node.checked_sub(self.torus.nodes());
        io_node.and_then(|io_node| self.io_nodes.get(io_node as usize)).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a compute node has an I/O link.
    pub(crate) fn has_io(&self, node: u32) -> bool {
        matches!(self.exits.get(node as usize), Some(Some(_)))
    }
}

impl Cabling for Cables {
    fn nodes(&self) -> u32 {
        self.torus.nodes() + self.io_nodes.len() as u32
    }

    fn ports(&self) -> u8 {
        PORTS
    }

    fn far_end(&self, node: u32, port: u8) -> Option<CableEnd> {
        // The numbers behind those of the torus are those of I/O nodes.
        if node >= self.torus.nodes() {
            let index = EXIT_PORTS.iter().position(|&exit_port| exit_port == port)?;
            let compute = *self.attached_to(node).get(index)?;
            return Some(CableEnd::new(compute, IO_PORT));
        }
        match port {
            IO_PORT => self.exits[node as usize],
            _ => self.torus.far_end(node, port),
        }
    }
}

/// A network of Blue Gene/Q nodes: its shape, its routes, and what its devices share.
#[derive(Clone, Debug)]
pub struct Network {
    cables: Arc<Cables>,
    options: Arc<Options>,
    policy: network::NodePolicy,
    plan: RouterPlan,
    tenants: Tenants,
    checks: CheckTable,
}

impl Network {
    /// Returns a torus with these lengths of the dimensions A, B, C, D and E; those that are left
    /// out have one node.
    ///
    /// Dimension `d` is closed to rings if `wraps` says so for it. Without a statement, all
    /// dimensions of more than one node are closed. One of two nodes then has two cables between
    /// them, and a closed one of a single node has a loop cable between its two ports.
    ///
    /// # Errors
    /// [`NetworkError`] names the value that does not fit. Routes that could deadlock are refused.
    pub fn torus(lengths: &[u32], wraps: &[bool], options: Options) -> Result<Self, NetworkError> {
        if lengths.is_empty() || lengths.len() > DIMENSIONS {
            let dimensions = lengths.len();
            return Err(ShapeError::Dimensions { dimensions, min: 1, max: DIMENSIONS }.into());
        }

        let mut dimensions = [Dimension::mesh(1); DIMENSIONS];
        for (index, &length) in lengths.iter().enumerate() {
            let wraps = wraps.get(index).copied().unwrap_or(length > 1);
            dimensions[index] = Dimension { length, wraps };
        }
        Self::new(Torus::new(&dimensions)?, options)
    }

    /// Returns a partition as a network of its own. No cable leads out of it.
    ///
    /// # Errors
    /// As [`Network::torus`].
    pub fn partition(partition: &Partition, options: Options) -> Result<Self, NetworkError> {
        let mut dimensions = [Dimension::mesh(1); DIMENSIONS];
        for (own, &dimension) in dimensions.iter_mut().zip(partition.shape().dimensions()) {
            *own = dimension;
        }
        Self::new(Torus::new(&dimensions)?, options)
    }

    /// Returns the network of a torus of five dimensions.
    fn new(torus: Torus, mut options: Options) -> Result<Self, NetworkError> {
        check_options(&torus, &options)?;
        let cables = Cables::new(torus, &options.io_nodes)?;

        options.link.max_packet = MAX_PACKET;
        options.link.credits.resize(network::CHANNELS, CREDITS);
        options.link.credits[usize::from(network::SYMBOLS)] = network::SYMBOL_CREDITS;
        network::divide_dynamic_credits(&mut options);

        let policy = network::NodePolicy::new(&cables, &options)?;
        network::check_deadlock(&cables, &policy)?;
        let plan = RouterPlan::new(&network::router_spec(&options))?;
        let tenants = Tenants::new(cables.nodes());
        let checks = CheckTable::default();
        Ok(Self { cables: Arc::new(cables), options: Arc::new(options), policy, plan, tenants, checks })
    }

    /// Returns the number of nodes, I/O nodes included.
    pub fn nodes(&self) -> u32 {
        self.cables.nodes()
    }

    /// Returns the number of compute nodes. I/O nodes have the numbers from there on.
    pub fn compute_nodes(&self) -> u32 {
        self.cables.torus.nodes()
    }

    /// Returns the shape of the compute nodes.
    pub fn shape(&self) -> &Torus {
        &self.cables.torus
    }

    /// Shows the CRCs of the packets that a node sends by a port, in the registers of the nodes at
    /// both ends of the link: `SE_LINK_CRC_*` of this one and `RE_LINK_CRC_*` of the other one.
    ///
    /// # Errors
    /// [`NetworkError::NoNode`]. A port without a link has no other end, and shows none there.
    pub fn show_checks(&self, node: u32, port: u8, checks: &LinkChecks) -> Result<(), NetworkError> {
        let nodes = self.nodes();
        if node >= nodes {
            return Err(NetworkError::NoNode { node, nodes });
        }

        if let Some(far) = self.cables.far_end(node, port) {
            self.checks.set(node, port, End::Sender, checks.clone());
            self.checks.set(far.node, far.port, End::Receiver, checks.clone());
        }
        Ok(())
    }

    /// Returns the options. Those of links are complete.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the cables between the nodes.
    pub fn cables(&self) -> impl Iterator<Item = Cable> + '_ {
        self.cables.cables()
    }

    /// Returns what the device of a node needs.
    pub(crate) fn node(&self, node: u32) -> Result<Site, NetworkError> {
        let nodes = self.nodes();
        if node >= nodes {
            return Err(NetworkError::NoNode { node, nodes });
        }

        let (place, policy) = self.policy.at(&self.cables, node)?;
        Ok(Site {
            node,
            place,
            policy,
            plan: self.plan.clone(),
            cables: Arc::clone(&self.cables),
            options: Arc::clone(&self.options),
            tenants: self.tenants.clone(),
            checks: self.checks.clone(),
        })
    }
}

/// A node of a network, and what its device needs of the network.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) node: u32,
    pub(crate) place: Place,
    pub(crate) policy: network::NodePolicy,
    pub(crate) plan: RouterPlan,
    pub(crate) cables: Arc<Cables>,
    pub(crate) options: Arc<Options>,
    pub(crate) tenants: Tenants,
    pub(crate) checks: CheckTable,
}

/// Checks the lengths of the dimensions, the number of subgroups, and the order of the dimensions.
fn check_options(torus: &Torus, options: &Options) -> Result<(), NetworkError> {
    for (dimension, (&Dimension { length, .. }, longest)) in
        torus.dimensions().iter().zip(LONGEST).enumerate()
    {
        if length > longest {
            return Err(NetworkError::Dimension { dimension, length, longest });
        }
    }

    let subgroups = options.subgroups;
    if !(1..=USER_SUBGROUPS).contains(&subgroups) {
        return Err(NetworkError::Subgroups { subgroups });
    }

    let order = options.order;
    let bit = |dimension: u8| 1_u32.checked_shl(dimension.into()).unwrap_or(0);
    let named = order.iter().fold(0, |set, &dimension| set | bit(dimension));
    if named != u32::from(ALL_DIMENSIONS) {
        return Err(NetworkError::Order { order });
    }
    Ok(())
}
