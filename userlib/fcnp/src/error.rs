//! The errors of FCNP.

use std::fmt;

use nicforge_driver::{Error as DriverError, WaitEnd};
use nicforge_hwi::tree::CORES;
use nicforge_shm::MemoryError;
use thiserror::Error;

/// The other side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The process that serves FCNP on the I/O node.
    IoNode {
        /// Address of the node.
        address: u32,
    },
    /// A compute core.
    Core {
        /// Its rank in the pset: 4 times the node's rank, plus the core.
        rank: u32,
    },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::IoNode { address } => write!(f, "the I/O node (address {address})"),
            Peer::Core { rank } => {
                let cores = u32::from(CORES);
                write!(f, "compute core {rank} (core {} of compute node {})", rank % cores, rank / cores)
            }
        }
    }
}

/// The reason why a call failed. The crate's documentation describes the state after each error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer's process died or closed its device. This happened during the call, or since the
    /// last call of this direction.
    #[error("{peer} is gone; call again when its process is back")]
    PeerGone {
        /// The other side of the transfer.
        peer: Peer,
    },
    /// The peer ended the running transfer, because its call timed out or was cancelled. The
    /// transferred data are void.
    #[error("{peer} aborted the transfer; agree with it on the data to send again")]
    Aborted {
        /// The other side of the transfer.
        peer: Peer,
    },
    /// The peer violates the protocol. The transfer was withdrawn.
    #[error("{peer} breaks the protocol: {what} ({value:#x})")]
    BadPeer {
        /// The other side of the transfer.
        peer: Peer,
        /// The rule that it violates.
        what: &'static str,
        /// The value that it sent.
        value: u64,
    },
    /// The call's deadline passed.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// The event that the call waited for.
        what: &'static str,
    },
    /// The call was cancelled.
    #[error("cancelled while waiting for {what}")]
    Cancelled {
        /// The event that the call waited for.
        what: &'static str,
    },
    /// Another thread is in the same kind of call for the same core. Each core may have one read
    /// and one write outstanding.
    #[error("another thread is in {what} for this core already; wait for it, or use another core")]
    Busy {
        /// The kind of call.
        what: &'static str,
    },
    /// The pset has no such core.
    #[error("there is no compute core {core}: this pset has cores 0 to {}", cores.saturating_sub(1))]
    NoSuchCore {
        /// The core that was requested.
        core: u32,
        /// Number of cores in the pset.
        cores: u32,
    },
    /// The device is of another kind than the call needs.
    #[error("this device is not {expected}: {found}; open the socket of the right node")]
    WrongDevice {
        /// The kind that the call needs.
        expected: &'static str,
        /// The kind of the device.
        found: String,
    },
    /// Another process serves FCNP on this I/O node.
    #[error("attachment {owner} of this I/O node serves FCNP already; only one process of a pset can")]
    AlreadyServed {
        /// Number of the attachment that serves it.
        owner: u32,
    },
    /// The device reports an invalid value.
    #[error("the device reports {what} {value}, which does not work; FIFO depths must be powers of two")]
    BadDevice {
        /// The value's name.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// A thread could not be started.
    #[error("the daemon thread could not be started (error {errno}); look at the limits of this process")]
    Thread {
        /// Error number of the operating system, or 0 when it gave none.
        errno: i32,
    },
    /// The device is gone, or it refused an operation.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// Access to mapped memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Returns the error of a call that ended while it waited for `operation`.
    pub(crate) fn of_wait(end: WaitEnd, operation: &'static str) -> Self {
        match end {
            WaitEnd::Cancelled => Error::Cancelled { what: operation },
            WaitEnd::Timeout => Error::Timeout { what: operation },
        }
    }

    /// Returns whether the device itself is lost, so that it must be opened again.
    pub fn is_device_gone(&self) -> bool {
        matches!(self, Error::Device(error) if error.is_gone())
    }

    /// Returns whether the call was ended by its deadline or its cancellation token.
    pub fn is_timeout_or_cancel(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Cancelled { .. })
    }
}
