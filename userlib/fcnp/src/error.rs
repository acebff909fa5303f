//! What can go wrong.

use std::fmt;

use nicforge_driver::Error as DriverError;
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
                write!(f, "compute core {rank} (core {} of compute node {})", rank % 4, rank / 4)
            }
        }
    }
}

/// Why a call failed. What each leaves behind is said in the documentation of the crate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer's process died or closed its device: while the call waited for it or transferred with it, or since the last
    /// call of this direction.
    #[error("{peer} went down; call again when its process is back")]
    PeerGone {
        /// Who.
        peer: Peer,
    },
    /// The peer gave the running transfer up (its call timed out or was cancelled). What was transferred is void.
    #[error("{peer} gave the transfer up; agree with it on what to send again")]
    Aborted {
        /// Who.
        peer: Peer,
    },
    /// The peer breaks the protocol. The transfer was withdrawn.
    #[error("{peer} breaks the protocol: {what} ({value:#x})")]
    BadPeer {
        /// Who.
        peer: Peer,
        /// What is wrong.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// The call's deadline passed.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
    /// The call was cancelled.
    #[error("cancelled while waiting for {what}")]
    Cancelled {
        /// What was waited for.
        what: &'static str,
    },
    /// Another thread is in the same kind of call for the same core: one read and one write may be outstanding a core.
    #[error("another thread is in {what} for this core already; wait for it, or use another core")]
    Busy {
        /// The kind of call.
        what: &'static str,
    },
    /// The pset has no such core.
    #[error("there is no compute core {core}: this pset has cores 0 to {}", cores.saturating_sub(1))]
    NoSuchCore {
        /// The core asked for.
        core: u32,
        /// Cores there are.
        cores: u32,
    },
    /// The device is not what the call is for.
    #[error("this device is not {expected}: {found}; open the socket of the right node")]
    WrongDevice {
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Another process serves FCNP on this I/O node.
    #[error("attachment {owner} of this I/O node serves FCNP already; one process a pset does")]
    Served {
        /// The attachment.
        owner: u32,
    },
    /// The device shows values that make no sense.
    #[error("the device shows {what} {value}, which does not work; FIFO depths must be powers of two")]
    BadDevice {
        /// What is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A thread could not be started.
    #[error("the daemon thread could not be started (error {errno}); look at the limits of this process")]
    Thread {
        /// Error number of the operating system, 0 when it gave none.
        errno: i32,
    },
    /// The device is gone or refused something.
    #[error(transparent)]
    Device(DriverError),
    /// Access to mapped memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Whether the device itself is lost, so that only opening it again helps.
    pub fn is_device_gone(&self) -> bool {
        matches!(self, Error::Device(error) if error.is_gone())
    }

    /// Whether the call was ended by its deadline or its token.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Cancelled { .. })
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::Device(error)
    }
}
