//! The error of building a fabric.

use thiserror::Error;

use super::{LinkId, MAX_CHANNELS, MAX_CREDITS, MAX_FUNCTIONS, MAX_PORTS};
use crate::ids::FunctionId;

/// Reason why a fabric can't be built as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FabricError {
    /// The port has a link. A port holds one.
    #[error("port {port} of function {} has a link already", function.0)]
    PortTaken {
        /// Number of the function.
        function: FunctionId,
        /// Number of the port.
        port: u8,
    },
    /// The port number is not below [`MAX_PORTS`].
    #[error("port {port} of function {} is not below {MAX_PORTS}", function.0)]
    PortOutOfRange {
        /// Number of the function.
        function: FunctionId,
        /// Number of the port.
        port: u8,
    },
    /// The function's number is not below [`MAX_FUNCTIONS`].
    #[error("function {} is not below {MAX_FUNCTIONS}", function.0)]
    FunctionOutOfRange {
        /// Number of the function.
        function: FunctionId,
    },
    /// The number of virtual channels is not 1 to [`MAX_CHANNELS`].
    #[error("{count} virtual channels: a link has 1 to {MAX_CHANNELS}")]
    Channels {
        /// Number of channels requested.
        count: usize,
    },
    /// The number of credits of a virtual channel is not 1 to [`MAX_CREDITS`].
    #[error("{credits} credits: a virtual channel has 1 to {MAX_CREDITS}")]
    Credits {
        /// Number of credits requested.
        credits: u32,
    },
    /// The link does not exist.
    #[error("there is no link {}", link.0)]
    NoLink {
        /// Number of the link.
        link: LinkId,
    },
    /// The virtual channel does not exist.
    #[error("link {} has no virtual channel {channel}", link.0)]
    NoChannel {
        /// Number of the link.
        link: LinkId,
        /// Number of the virtual channel.
        channel: usize,
    },
}
