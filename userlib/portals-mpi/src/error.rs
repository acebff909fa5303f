//! Errors.

use nicforge_driver::{Error as DriverError, WaitEnd};
use nicforge_matching::Rank;
use nicforge_portals::{Error as PortalsError, Failure, ProcessId};
use thiserror::Error;

use crate::{bits, config::MAX_RANKS};

/// Reason why a rank counts as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// A message to it has failed because its node has ended.
    #[error("its node has ended")]
    NodeEnded,
    /// It has answered no question for [`crate::Config::patience`].
    #[error(
        "it has not answered for too long: its process has ended, or it is in host-based mode and makes no calls; \
         there, let a thread run Kernel::serve"
    )]
    Silent,
    /// It has both acknowledged a message and fetched it.
    #[error("it has both acknowledged a message and fetched it")]
    BrokeProtocol,
}

/// Error of a call or a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range.
    #[error("{what} is {value}; it must be {least} to {most}")]
    BadConfig {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
    /// The job has no rank, or more ranks than possible.
    #[error("a job of {ranks} ranks: it has 1 to {MAX_RANKS}")]
    BadSize {
        /// Number of ranks.
        ranks: u32,
    },
    /// Two ranks of the job are the same process.
    #[error("ranks {first} and {second} are both {process}; each rank needs a process of its own")]
    SameProcess {
        /// One rank.
        first: Rank,
        /// The other one.
        second: Rank,
        /// The process.
        process: ProcessId,
    },
    /// The interface's process is no rank of the job.
    #[error("{process} is no rank of the job")]
    NotOfJob {
        /// The process.
        process: ProcessId,
    },
    /// The job has no such rank.
    #[error("there is no rank {peer}; the job has ranks 0 to {}", size.saturating_sub(1))]
    NoSuchPeer {
        /// The requested rank.
        peer: Rank,
        /// Number of ranks.
        size: u32,
    },
    /// A tag has more bits than match bits have room for.
    #[error("tag {tag:#x} is too large: tags have {} bits", bits::TAG_BITS)]
    BadTag {
        /// The tag.
        tag: u64,
    },
    /// A context has more bits than match bits have room for.
    #[error("context {context:#x} is too large: contexts have {} bits", bits::CONTEXT_BITS)]
    BadContext {
        /// The context.
        context: u32,
    },
    /// The heap has no free block of this length.
    #[error("the heap has no {bytes} bytes in one piece: free buffers, or configure a larger heap")]
    NoMemory {
        /// The requested length.
        bytes: u64,
    },
    /// A range leaves its buffer or its segment.
    #[error("{length} bytes at offset {offset} leave the {size} bytes of the memory")]
    OutOfRange {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes of the memory.
        size: u64,
    },
    /// The buffer belongs to another endpoint.
    #[error("the buffer belongs to another endpoint: allocate it from the one that uses it")]
    ForeignBuffer,
    /// The message was longer than the receive's buffer, which holds the beginning of the message.
    #[error("the message has {length} bytes, the buffer {capacity}; the rest of it is lost")]
    Truncated {
        /// Length of the message in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        capacity: u64,
    },
    /// [`crate::Endpoint::cancel`] has cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The peer's process or node has ended, or counts as ended.
    #[error("rank {peer} is gone: {why}")]
    PeerGone {
        /// The peer.
        peer: Rank,
        /// The sign of its end.
        why: Loss,
    },
    /// The peer has received the message damaged each time, or has counted this rank as gone when
    /// it was silent. The peer asks for the message no more.
    #[error(
        "rank {peer} has given the message up: its data were damaged, or this rank was silent for too long"
    )]
    GivenUp {
        /// The receiver.
        peer: Rank,
    },
    /// The window of a pair of ranks is full of messages that no receive takes, and the receiver
    /// keeps no more of their headers. Sends that wait for the window fail, and receives that wait
    /// for the sender or any source.
    #[error(
        "the window is full: rank {receiver} has no room for more headers of messages of rank {sender}; receive \
         some, or raise Config::headers of rank {receiver}"
    )]
    WindowFull {
        /// The sender.
        sender: Rank,
        /// The receiver, whose memory it is.
        receiver: Rank,
    },
    /// The peer has matched the message, and has its data no longer.
    #[error("rank {peer} has ended this message, and no longer has its data")]
    NoLongerThere {
        /// The sender.
        peer: Rank,
    },
    /// A process took a receive that names it under another rank's number.
    #[error("{process} sent a message as rank {claimed}, which it is not")]
    WrongSource {
        /// The process that sent the message.
        process: ProcessId,
        /// The rank in the message's match bits.
        claimed: Rank,
    },
    /// The transfer failed, and so did its repetitions.
    #[error("the transfer failed: {0:?}")]
    Failed(Failure),
    /// The request's completion was taken already, or the request belongs to another endpoint.
    #[error("request {request:#x} is not outstanding; its completion was taken already")]
    NoSuchRequest {
        /// The request's handle.
        request: u64,
    },
    /// The deadline of a wait passed. The request is still outstanding.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// The awaited event.
        what: &'static str,
    },
    /// The cancel token ended a wait. The request is still outstanding.
    #[error("the wait for {what} was cancelled")]
    Interrupted {
        /// The awaited event.
        what: &'static str,
    },
    /// An error of Portals. If [`PortalsError::is_gone`] holds, the endpoint is of no more use.
    #[error(transparent)]
    Portals(#[from] PortalsError),
}

impl Error {
    /// Returns the error of a wait that has ended.
    pub(crate) fn of_wait(end: WaitEnd, operation: &'static str) -> Self {
        match end {
            WaitEnd::Cancelled => Error::Interrupted { what: operation },
            WaitEnd::Timeout => Error::Timeout { what: operation },
        }
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::Portals(error.into())
    }
}
