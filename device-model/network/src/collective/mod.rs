//! Collective operations: packets that the nodes of a tree combine.
//!
//! A *class route* is a tree of ports that is embedded in the network: each node has inputs, one
//! output, or none at the root, and may contribute itself. Packets go up the tree and are combined
//! at each node. The root turns them around, and they go down to all nodes.
//!
//! ```text
//!   inputs ──┐                       ┌── output (up), or
//!            ├── operands ── ALU ────┤
//!   own FIFO ┘                       └── turned at the root ─┐
//!                                                            │
//!   output (down) ─────────────────────── copies ◄───────────┘
//!                                           └── inputs (down), and the own reception FIFO
//! ```
//!
//! | kind | result |
//! | --- | --- |
//! | [`Kind::Broadcast`] | one node's packet goes up uncombined, and down to all members |
//! | [`Kind::Reduce`] | the combined packet goes to one member |
//! | [`Kind::Allreduce`] | the combined packet goes to all members |
//!
//! # Rules
//!
//! - The operand slots are the first packets of the virtual channels at the inputs, and of the
//!   injection FIFOs. A packet waits there until each input of its class has one.
//! - A class uses one virtual channel, and one injection and reception FIFO of each node.
//!   Operations of FIFO 0 go first.
//! - The ALU combines in one pass: the own contribution first, and then the inputs in the order of
//!   their ports, whatever the order of arrival. Floating-point sums are thus the same bits in each
//!   run with the same class route.
//! - A packet has flags for exceptions, which travel with the result: see [`Flags`].
//! - The unit works on one packet up and one packet down at a time, as the hardware of Blue Gene/Q.
//!   Packets down come first.
//! - A packet is combined and sent on when the heads of all operands have arrived. The links are of
//!   one rate, so no tail leaves before it has come.
//! - Classes whose routes share virtual channels can block each other, if their operations start in
//!   different orders at different nodes. Software keeps one order, as on the hardware.
//! - A *barrier class* has a route of its own. Its symbols carry nothing and wait for nothing: each
//!   node counts them at once. They have a virtual channel of their own.
//! - The route also has [`LINES`] *lines* of global interrupts. A line is set at all nodes as
//!   long as one node sets it. Symbols carry the lines; a change that is undone before its symbol
//!   leaves may go unseen.
//!
//! The device calls [`CollectiveUnit::step`] before [`crate::router::Router::step`]: collective
//! packets then have the higher priority on each wire.
//!
//! | module | contents |
//! | --- | --- |
//! | `alu` | operations on operands |
//! | `word` | the header word of a packet |
//! | `unit`, `work` | the unit of a node, and its work on packets |
//! | `barrier_network` | the barriers and global interrupts of a unit |
//! | `barrier`, `lines` | barrier classes, and their lines of global interrupts |
//! | `symbols` | the symbols of both |

mod alu;
mod barrier;
mod barrier_network;
mod lines;
mod symbols;
mod unit;
mod word;
mod work;

use nicforge_core::fabric::LinkSpec;
use thiserror::Error;

pub use self::{
    alu::{ByteOrder, Flags, Number, Operand, Operation, combine},
    lines::{LINES, LineLevels},
    unit::{CollectiveCounters, CollectiveUnit},
    word::{CollectiveWord, Kind},
};
use crate::router::FifoSpec;

/// Number of classes, for data and for barriers.
pub const CLASSES: usize = 16;
/// Maximum number of injection FIFOs of a unit, and that of its reception FIFOs.
pub const MAX_FIFOS: usize = 4;
/// Maximum number of inputs of a unit from links: ports, times virtual channels of data.
pub const MAX_INPUTS: usize = 60;

/// The part of a class route at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassRoute {
    /// Ports from which packets come up, one bit for each. Packets go down by them.
    pub inputs: u64,
    /// Port by which packets leave upwards, and come down; `None` at the root.
    pub output: Option<u8>,
    /// Whether the node itself contributes, and gets results.
    pub is_member: bool,
    /// Virtual channel of the class: a place in [`CollectiveSpec::vcs`]. Barriers have none.
    pub channel: u8,
    /// Injection and reception FIFO of the class. Barriers have none.
    pub fifo: u8,
}

/// Description of the collective unit of a node. All its links must be of one kind.
#[derive(Clone, Debug)]
pub struct CollectiveSpec {
    /// Number of the node, for [`Kind::Reduce`].
    pub node: u32,
    /// Number of ports.
    pub ports: u8,
    /// Kind of the links.
    pub link: LinkSpec,
    /// Largest framing of a packet in bytes.
    pub framing: u32,
    /// Virtual channels of data.
    pub vcs: Vec<u8>,
    /// Virtual channel of barrier symbols.
    pub barrier_vc: u8,
    /// Framing of a barrier symbol, which has no content, in bytes.
    pub barrier_framing: u32,
    /// Nanoseconds that the unit adds to a packet's way: first on its way up, then on its way down.
    pub delays: [u64; 2],
    /// Nanoseconds that the logic needs between two packets on their way up, beyond the time of the
    /// first on the wire.
    pub recovery: u64,
    /// Bytes at the start of a packet that are not combined, such as a header. Those of the result
    /// are those of the first operand.
    pub prefix: usize,
    /// FIFOs of the node's contributions, at most [`MAX_FIFOS`].
    pub injection: Vec<FifoSpec>,
    /// FIFOs of results, as many.
    pub reception: Vec<FifoSpec>,
}

/// Reasons why a unit or a class route is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CollectiveError {
    /// Too few or too many inputs from links.
    #[error("{ports} ports with {channels} virtual channels of data: choose 1 to {MAX_INPUTS} inputs")]
    Inputs {
        /// Number of ports.
        ports: u8,
        /// Number of virtual channels of data.
        channels: usize,
    },
    /// Too few or too many FIFOs.
    #[error("{injection} injection and {reception} reception FIFOs: choose 1 to {MAX_FIFOS} of each")]
    Fifos {
        /// Number of injection FIFOs.
        injection: usize,
        /// Number of reception FIFOs.
        reception: usize,
    },
    /// A class route names a virtual channel or a FIFO that the unit does not have.
    #[error("class {class} uses virtual channel {channel} and FIFO {fifo}, which the unit does not have")]
    RouteChannel {
        /// Number of the class.
        class: u8,
        /// Place of the virtual channel.
        channel: u8,
        /// The FIFO.
        fifo: u8,
    },
    /// A virtual channel does not exist, or is used twice.
    #[error("virtual channels {vc} and {barrier_vc} of {channels}: choose two different ones")]
    Channels {
        /// Virtual channel of data.
        vc: u8,
        /// Virtual channel of barrier symbols.
        barrier_vc: u8,
        /// Virtual channels of the link.
        channels: usize,
    },
    /// The buffers of a virtual channel are too small for its longest packet.
    #[error("virtual channel {vc} has {credits} credits: its longest packet takes {needed}")]
    SmallBuffer {
        /// The virtual channel.
        vc: u8,
        /// Its credits.
        credits: u32,
        /// The credits that the longest packet takes.
        needed: u32,
    },
    /// A FIFO is too small for the longest packet.
    #[error("a FIFO of {bytes} bytes and {packets} packets: it must hold one packet of {longest} bytes")]
    SmallFifo {
        /// Bytes of the FIFO.
        bytes: u32,
        /// Packets of the FIFO.
        packets: u16,
        /// Bytes of the longest packet with its framing.
        longest: u32,
    },
    /// The class does not exist.
    #[error("there is no class {class}: choose 0 to {}", CLASSES - 1)]
    Class {
        /// Number of the class.
        class: u8,
    },
    /// A class route names a port that does not exist, or one as input and output.
    #[error("class {class} uses port {port}, which does not exist or is its input and its output")]
    RoutePort {
        /// Number of the class.
        class: u8,
        /// The port.
        port: u8,
    },
    /// The node has entered the barrier, which is not complete.
    #[error("barrier {class} is not complete: enter it again afterwards")]
    Entered {
        /// Number of the class.
        class: u8,
    },
    /// The node is no member of the class.
    #[error("the node is no member of class {class}: give the class a route that has it as one")]
    NoMember {
        /// Number of the class.
        class: u8,
    },
}

impl CollectiveSpec {
    /// Returns the bytes of the longest packet, with its framing.
    fn longest_bytes(&self) -> u32 {
        (self.link.max_packet as u32).saturating_add(self.framing)
    }

    /// Checks that the numbers of inputs, FIFOs and virtual channels are possible, and that each
    /// FIFO and each virtual channel holds the longest packet.
    fn check(&self) -> Result<(), CollectiveError> {
        let (ports, data) = (self.ports, self.vcs.len());
        if !(1..=MAX_INPUTS).contains(&(usize::from(ports) * data)) {
            return Err(CollectiveError::Inputs { ports, channels: data });
        }

        let (injection, reception) = (self.injection.len(), self.reception.len());
        if injection != reception || !(1..=MAX_FIFOS).contains(&injection) {
            return Err(CollectiveError::Fifos { injection, reception });
        }

        self.check_channels()?;
        let longest = self.longest_bytes();
        for &FifoSpec { bytes, packets, .. } in self.injection.iter().chain(&self.reception) {
            if bytes < longest || packets == 0 {
                return Err(CollectiveError::SmallFifo { bytes, packets, longest });
            }
        }
        Ok(())
    }

    /// Checks that the virtual channels exist, differ, and hold their longest packet.
    fn check_channels(&self) -> Result<(), CollectiveError> {
        let (barrier_vc, channels) = (self.barrier_vc, self.link.credits.len());
        let mut used = 1_u64 << (barrier_vc % 64);
        for &vc in &self.vcs {
            let is_taken = used >> (vc % 64) & 1 == 1;
            if is_taken || usize::from(vc.max(barrier_vc)) >= channels {
                return Err(CollectiveError::Channels { vc, barrier_vc, channels });
            }
            used |= 1 << vc;
        }

        let data = self.vcs.iter().map(|&vc| (vc, self.longest_bytes()));
        for (vc, bytes) in data.chain([(barrier_vc, self.barrier_framing)]) {
            let (credits, needed) =
                (self.link.credits[usize::from(vc)], self.link.credit_unit.needed(bytes.into()));
            if credits < needed {
                return Err(CollectiveError::SmallBuffer { vc, credits, needed });
            }
        }
        Ok(())
    }

    /// Checks that a class exists, and that its route names a virtual channel, a FIFO and ports
    /// that exist. The output must not be an input.
    fn check_route(&self, class: u8, route: &ClassRoute) -> Result<(), CollectiveError> {
        if usize::from(class) >= CLASSES {
            return Err(CollectiveError::Class { class });
        }

        let (channel, fifo) = (route.channel, route.fifo);
        if usize::from(channel) >= self.vcs.len() || usize::from(fifo) >= self.injection.len() {
            return Err(CollectiveError::RouteChannel { class, channel, fifo });
        }

        let existing = (1 << self.ports) - 1;
        let missing = route.inputs & !existing;
        if missing != 0 {
            return Err(CollectiveError::RoutePort { class, port: missing.trailing_zeros() as u8 });
        }
        match route.output {
            Some(port) if port >= self.ports || route.inputs >> port & 1 == 1 => {
                Err(CollectiveError::RoutePort { class, port })
            }
            _ => Ok(()),
        }
    }
}
