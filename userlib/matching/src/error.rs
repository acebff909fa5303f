//! What can go wrong.

use thiserror::Error;

use crate::{Loss, Rank, TransportError};

/// Why a call or a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The message was longer than the receive's buffer, which has its beginning.
    #[error("the message has {length} bytes, the buffer {capacity}; the rest of it is lost")]
    Truncated {
        /// Bytes of the message.
        length: u64,
        /// Bytes of the buffer.
        capacity: usize,
    },
    /// The request was cancelled by [`crate::Endpoint::cancel`].
    #[error("the request was cancelled")]
    Cancelled,
    /// The peer died, or can't be reached any more.
    #[error("rank {peer} is gone: {why}")]
    PeerGone {
        /// Who.
        peer: Rank,
        /// What the transport knows of it.
        why: Loss,
    },
    /// The peer breaks the protocol. It is treated as if it were dead.
    #[error("rank {peer} breaks the protocol: {what} ({value:#x}); it is not listened to any more")]
    BadPeer {
        /// Who.
        peer: Rank,
        /// What is wrong.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// The data of a long message could not be fetched. The rank that fetches knows why.
    #[error("the data of a message between this rank and rank {peer} could not be fetched")]
    NotFetched {
        /// The other side.
        peer: Rank,
    },
    /// There is no such rank.
    #[error("there is no rank {peer}; the transport has ranks 0 to {}", size.saturating_sub(1))]
    NoSuchPeer {
        /// The rank asked for.
        peer: Rank,
        /// Ranks there are.
        size: u32,
    },
    /// The request has been completed and taken already, or is another endpoint's.
    #[error("request {request:#x} is not outstanding; its completion was taken already")]
    NoSuchRequest {
        /// The handle.
        request: u64,
    },
    /// The claimed message has been received or discarded already.
    #[error("message {message:#x} is not claimed; it was received already")]
    NoSuchMessage {
        /// The handle.
        message: u64,
    },
    /// There are as many requests as handles can name.
    #[error("{limit} requests are outstanding; take completions first")]
    TooManyRequests {
        /// How many.
        limit: u32,
    },
    /// A parameter does not work.
    #[error("{what} is {value}; it must be {least} to {most}")]
    BadConfig {
        /// Which.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The least that works.
        least: usize,
        /// The most that works.
        most: usize,
    },
    /// The deadline of a wait passed. The request is still outstanding.
    #[error("timed out while waiting for {what}; it is still outstanding")]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
    /// A wait was ended by its token. The request is still outstanding.
    #[error("the wait for {what} was cancelled; it is still outstanding")]
    Interrupted {
        /// What was waited for.
        what: &'static str,
    },
    /// The transport failed.
    #[error("the transport failed: {0}")]
    Transport(#[from] TransportError),
}

impl Error {
    /// Whether the peer is the reason.
    pub fn is_peer(&self) -> bool {
        matches!(self, Error::PeerGone { .. } | Error::BadPeer { .. } | Error::NotFetched { .. })
    }
}
