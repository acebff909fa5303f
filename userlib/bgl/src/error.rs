//! The errors of both layers.

use nicforge_driver::Error as DriverError;
use nicforge_shm::MemoryError;
use thiserror::Error;

/// The reason why a call or a message failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is of another kind.
    #[error("this device is not a core of Blue Gene/L's torus: {found}; open the socket of a core")]
    WrongDevice {
        /// The kind of the device.
        found: String,
    },
    /// The device reports a value that is impossible.
    #[error("the device reports {what} {value:#x}, which is impossible; reset it, or open it again")]
    BadDevice {
        /// The name of the value.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// A packet's payload is too long.
    #[error("a payload of {len} bytes: a packet has room for {most}")]
    PayloadTooLong {
        /// Bytes of payload that were given.
        len: usize,
        /// Maximum number of bytes.
        most: usize,
    },
    /// A message is too long.
    #[error("a message of {len} bytes: the longest has {most}")]
    MessageTooLong {
        /// Bytes of the message.
        len: usize,
        /// Maximum number of bytes.
        most: usize,
    },
    /// A region leaves the memory of its buffer.
    #[error("a region of {len} bytes at {start} leaves a buffer of {size} bytes")]
    BadRegion {
        /// First byte of the region.
        start: usize,
        /// Length of the region in bytes.
        len: usize,
        /// Size of the memory in bytes.
        size: usize,
    },
    /// An option has a value that is impossible.
    #[error("option {option} is {value}: {problem}")]
    BadConfig {
        /// The name of the option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The rule that it violates.
        problem: &'static str,
    },
    /// The packet device has no way to this rank.
    #[error("no packet from here reaches rank {rank}: the machine has ranks below {ranks}")]
    Unreachable {
        /// The rank that was requested.
        rank: u16,
        /// Number of ranks of the machine.
        ranks: u16,
    },
    /// The peer's core has no process. A later call may find one.
    #[error("rank {rank} has no process; call again when it is up")]
    PeerDown {
        /// The peer.
        rank: u16,
    },
    /// The peer's process has ended, or was replaced by another one, while the message was in
    /// progress. A new message goes to the new process.
    #[error("the process of rank {rank} is gone; messages that were in progress with it are lost")]
    PeerGone {
        /// The peer.
        rank: u16,
    },
    /// No message with this handle waits for a decision.
    #[error("no message with this handle waits for a decision")]
    NoSuchMessage,
    /// The device is gone, it refused an operation, or a wait ended.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// Access to mapped memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
