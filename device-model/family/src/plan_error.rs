//! The errors of a plan, and their messages.

use std::{fmt, ops::Range};

use nicforge_core::fabric::{FabricError, MAX_CHANNELS, MAX_CREDITS, MAX_FUNCTIONS, MAX_PACKET, MAX_PORTS};
use thiserror::Error;

use crate::{SectionError, plan::MAX_BUFFERS};

impl From<FabricError> for PlanError {
    /// Returns the error of a link that a fabric refuses.
    fn from(reason: FabricError) -> Self {
        match reason {
            FabricError::Channels { count } => Self::Channels { channels: count },
            FabricError::Credits { credits } => Self::Credits { credits },
            FabricError::PacketSize { bytes } => Self::Packet { bytes },
            reason => Self::LinkUnits { reason },
        }
    }
}

/// The reason why something cannot be added to a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.refusal())]
pub enum PlanError {
    /// A name of a machine, node or function is empty, too long, or has other characters than
    /// letters, digits and `-`.
    Name {
        /// The name.
        name: String,
    },
    /// Another node has the name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// Another function of the node has the name.
    FunctionTaken {
        /// The function's name.
        name: String,
        /// The node's name.
        node: String,
    },
    /// The machine has as many functions as a fabric takes.
    Functions,
    /// The key is that of a node of another plan.
    NoNode,
    /// There is no function of the name.
    NoFunction {
        /// The name.
        name: String,
        /// Names of functions that exist.
        some: String,
    },
    /// The number of the port is too large.
    NoPort {
        /// The function's name, and the port.
        port: String,
    },
    /// The port has a link already.
    PortTaken {
        /// The function's name, and the port.
        port: String,
    },
    /// Both ends of the link are the same port.
    SamePort {
        /// The function's name, and the port.
        port: String,
    },
    /// The link has no virtual channel, or too many.
    Channels {
        /// Number of virtual channels.
        channels: usize,
    },
    /// A virtual channel has no credit, or too many.
    Credits {
        /// Credits of the virtual channel.
        credits: u32,
    },
    /// The packets of a link are too long, or have no bytes.
    Packet {
        /// Bytes of a packet.
        bytes: usize,
    },
    /// The bytes of a link's cut-through or of its credits do not fit its packets.
    LinkUnits {
        /// Reason why a fabric refuses the link.
        reason: FabricError,
    },
    /// All links together have too many packets of buffer.
    Buffers {
        /// Number of packets.
        buffers: u64,
    },
    /// An environment variable has an impossible name or value, or one that nicforge sets itself.
    Variable {
        /// The variable's name.
        name: String,
    },
}

/// The texts of a refusal's message: "`quantity` is `found`; expected `expected`".
pub(crate) struct Refusal {
    /// Name of the quantity that is refused.
    pub(crate) quantity: String,
    /// The refused value.
    pub(crate) found: String,
    /// The values that are possible.
    pub(crate) expected: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; expected {}", self.quantity, self.found, self.expected)
    }
}

impl PlanError {
    /// Returns the error with a position in the text of a machine file.
    pub fn at(&self, span: Range<usize>) -> SectionError {
        let Refusal { quantity, found, expected } = self.refusal();
        SectionError::value(span, quantity, found, expected)
    }

    /// Returns the texts of the error's message.
    pub(crate) fn refusal(&self) -> Refusal {
        let refusal = |quantity: &str, found: String, expected: &str| Refusal {
            quantity: quantity.to_owned(),
            found,
            expected: expected.to_owned(),
        };

        match self.clone() {
            Self::Name { name } => refusal("name", name, "1 to 32 letters, digits and '-'"),
            Self::NameTaken { name } => refusal("name", name, "a name that no other node has"),
            Self::FunctionTaken { name, node } => {
                refusal("name", name, &format!("a name that no other function of node {node} has"))
            }
            Self::Functions => {
                refusal("the number of functions", "too large".into(), &format!("at most {MAX_FUNCTIONS}"))
            }
            Self::NoNode => refusal("a node", "of another plan".into(), "a node of this plan"),
            Self::NoFunction { name, some } => {
                refusal("the function", name, &format!("one of this machine: {some}"))
            }
            Self::NoPort { port } => {
                refusal("a port", port, &format!("a number of 0 to {} behind the ':'", MAX_PORTS - 1))
            }
            Self::PortTaken { port } => refusal("a port", port, "a port that has no link yet"),
            Self::SamePort { port } => refusal("the other end", port, "another port than the first end"),
            Self::Channels { channels } => {
                refusal("channels", channels.to_string(), &format!("1 to {MAX_CHANNELS}"))
            }
            Self::Credits { credits } => {
                refusal("credits", credits.to_string(), &format!("1 to {MAX_CREDITS}"))
            }
            Self::Packet { bytes } => {
                refusal("the longest packet", bytes.to_string(), &format!("1 to {MAX_PACKET} bytes"))
            }
            Self::LinkUnits { reason } => refusal(
                "a link's cut-through or credit unit",
                reason.to_string(),
                "a head of at least 1 byte, and credits for the longest packet",
            ),
            Self::Buffers { buffers } => refusal(
                "the packets of buffer of all links",
                buffers.to_string(),
                &format!("{MAX_BUFFERS} at most"),
            ),
            Self::Variable { name } => refusal(
                "an environment variable",
                name,
                "letters, digits and '_', without the start NICFORGE_, and a value without a zero byte",
            ),
        }
    }
}
