//! Errors of a connection and of its deferred requests.

use super::handler::Token;
use crate::socket::FrameError;
use crate::wire::{Command, VersionError};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The stream is broken, or its framing is.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The client died in the middle of a message.
    #[error("the client closed the connection {buffered} bytes into a message")]
    Truncated {
        /// Bytes of the message that had come.
        buffered: usize,
    },
    /// The first message must be a version.
    #[error("the client sent {command:?} before VFIO_USER_VERSION")]
    NotNegotiated {
        /// The command of that message.
        command: Command,
    },
    /// The version could not be read.
    #[error("the client's VFIO_USER_VERSION cannot be read: {0}")]
    Version(#[from] VersionError),
    /// The major version is not supported.
    #[error("the client speaks major version {major}, and only 0 is known")]
    Major {
        /// The version it proposed.
        major: u16,
    },
    /// The client takes no data at all.
    #[error("the client says max_data_xfer_size 0, and no transfer fits into that")]
    NoTransfers,
    /// The connection has ended before.
    #[error("the connection has ended")]
    Ended,
}

/// Why a deferred request was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// No request is deferred with this token.
    #[error("no request is deferred with token {token}")]
    NotDeferred {
        /// The token given.
        token: Token,
    },
    /// A read ends with exactly the requested bytes, any other request with none.
    #[error("the request takes {expected} bytes of data and {got} were given")]
    Length {
        /// Bytes that the request takes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}
