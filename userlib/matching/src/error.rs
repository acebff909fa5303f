//! Errors.

use thiserror::Error;

use crate::{Loss, Rank, TransportError};

/// Error of a call or a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The message was longer than the receive's buffer, which holds the beginning of the message.
    #[error("the message has {length} bytes, the buffer {capacity}; the rest of it is lost")]
    Truncated {
        /// Length of the message in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// [`crate::Endpoint::cancel`] has cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The peer died, or is no longer reachable.
    #[error("rank {peer} is gone: {why}")]
    PeerGone {
        /// The peer.
        peer: Rank,
        /// The transport's reason.
        why: Loss,
    },
    /// The peer has violated the protocol. It is treated as dead.
    #[error("rank {peer} breaks the protocol: {what} ({value:#x}); its messages are ignored from now on")]
    BadPeer {
        /// The peer.
        peer: Rank,
        /// The violated rule.
        what: &'static str,
        /// The invalid value.
        value: u64,
    },
    /// The receiver could not fetch the data of a rendezvous message. Only the receiver knows the
    /// reason.
    #[error("the data of a message between this rank and rank {peer} could not be fetched")]
    NotFetched {
        /// The other rank.
        peer: Rank,
    },
    /// The transport has no such rank.
    #[error("there is no rank {peer}; the transport has ranks 0 to {}", size.saturating_sub(1))]
    NoSuchPeer {
        /// The requested rank.
        peer: Rank,
        /// Number of ranks.
        size: u32,
    },
    /// The request's completion was taken already, or the request belongs to another endpoint.
    #[error("request {request:#x} is not outstanding; its completion was taken already")]
    NoSuchRequest {
        /// The request's handle.
        request: u64,
    },
    /// The claimed message was received or discarded already.
    #[error("message {message:#x} is not claimed; it was received already")]
    NoSuchMessage {
        /// The message's handle.
        message: u64,
    },
    /// The window for unexpected messages of a pair of ranks is used up, and can't grow: the
    /// receiver's pool has no more for the sender. Sends that wait for the window, and receives
    /// that wait for the sender or any source, fail.
    #[error(
        "the window is full: rank {receiver} has {bytes} bytes of unexpected messages of rank {sender}, and its \
         pool has no more for them; receive some, or raise Config::window or Config::pool of rank {receiver}"
    )]
    WindowFull {
        /// The sender.
        sender: Rank,
        /// The receiver, whose window it is.
        receiver: Rank,
        /// Bytes of the window that unexpected messages of the sender use.
        bytes: u64,
    },
    /// As many requests are outstanding as handles can name.
    #[error("{limit} requests are outstanding; take completions first")]
    TooManyRequests {
        /// The limit.
        limit: u32,
    },
    /// A parameter is out of range.
    #[error("{what} is {value}; it must be {least} to {most}")]
    BadConfig {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The smallest valid value.
        least: usize,
        /// The largest valid value.
        most: usize,
    },
    /// The deadline of a wait passed. The request is still outstanding.
    #[error("timed out while waiting for {what}; it is still outstanding")]
    Timeout {
        /// The awaited event.
        what: &'static str,
    },
    /// The cancel token ended a wait. The request is still outstanding.
    #[error("the wait for {what} was cancelled; it is still outstanding")]
    Interrupted {
        /// The awaited event.
        what: &'static str,
    },
    /// The transport failed.
    #[error("the transport failed: {0}")]
    Transport(#[from] TransportError),
}

impl Error {
    /// Returns whether the peer is the reason for the error.
    pub fn is_peer(&self) -> bool {
        matches!(self, Error::PeerGone { .. } | Error::BadPeer { .. } | Error::NotFetched { .. })
    }
}
