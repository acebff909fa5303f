//! Errors.

use nicforge_bgl::Error as LayerError;
use nicforge_driver::Error as DriverError;
use nicforge_matching::TransportError;
use thiserror::Error;

use crate::Core;

/// Error of opening or using a transport.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range.
    #[error("{what} is {value}; it must be {rule}")]
    BadConfig {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// A core of the job does not exist in this torus.
    #[error("rank {rank} is {core}, but the torus has {nodes} nodes of 2 cores")]
    NoSuchCore {
        /// The rank.
        rank: u32,
        /// Its core.
        core: Core,
        /// Nodes of the torus.
        nodes: u32,
    },
    /// Two ranks of the job are on one node, between whose cores the chip's torus has no way.
    #[error("ranks {first} and {second} are both on node {node}; give each a node of its own")]
    SameNode {
        /// The first rank.
        first: u32,
        /// The second rank.
        second: u32,
        /// Their node.
        node: u16,
    },
    /// The device's core is not in the job.
    #[error("{core} is no rank of this job of {size}; open the device of one")]
    NotOfJob {
        /// The device's core.
        core: Core,
        /// Number of ranks of the job.
        size: u32,
    },
    /// An error of the message layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Layer(error.into())
    }
}

impl Error {
    /// Translates the error into one of the matching layer, which has fewer details.
    pub(crate) fn short(&self) -> TransportError {
        let what = match self {
            Error::Layer(LayerError::Device(error)) if error.is_gone() => "the device is gone",
            _ => "the transport failed; BglTransport::failure says how",
        };
        TransportError { what, value: 0 }
    }
}
