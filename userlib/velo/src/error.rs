//! Errors.

use nicforge_driver::{Error as DriverError, WaitEnd};
use nicforge_hwi::{
    extoll::error,
    extoll_velo::{MessageFields, address},
};
use nicforge_shm::MemoryError;
use thiserror::Error;

use crate::{Address, MAX_MESSAGE};

/// An error that the card has found in an earlier operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// No tenant had the VPID that a message was for. The card dropped the message.
    #[error("{to} has no tenant; a message for it was dropped")]
    NoReceiver {
        /// Address of the receiver.
        to: Address,
    },
    /// A message waited in the card for a receiver that does not read, longer than the watchdog
    /// allows. The card dropped it.
    #[error("{to} does not read: a message for it was dropped by the card's watchdog")]
    Watchdog {
        /// Address of the receiver.
        to: Address,
    },
    /// A message reached the card in pieces that did not follow each other, in every attempt.
    /// Nothing of it was delivered.
    #[error(
        "a message was torn on its way to the card in every attempt; does other software use this VPID's device?"
    )]
    Torn,
    /// The memory of the receive ring is gone.
    #[error("the card can no longer write the receive ring; open the port again")]
    RingMemory,
    /// An error that this library does not cause: other software writes to this VPID's pages.
    #[error("the card counted error {code} about {about:#x}; does other software use this VPID's device?")]
    Other {
        /// One of [`nicforge_hwi::extoll::error`].
        code: u8,
        /// Further information about the error.
        about: u32,
    },
}

impl DeviceError {
    /// Decodes the card's error word.
    pub(crate) fn of_word(word: u64) -> Self {
        let (code, about) = (word as u8, (word >> 8) as u32);
        let MessageFields { node, vpid, .. } = address::decode(about.into());

        let to = Address { node, vpid };
        match code {
            error::NO_RECEIVER => Self::NoReceiver { to },
            error::WATCHDOG => Self::Watchdog { to },
            error::SEND_TORN => Self::Torn,
            error::RING_MEMORY => Self::RingMemory,
            _ => Self::Other { code, about },
        }
    }
}

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The call would have to wait: the connection has no credit, or the posted-write ring is full.
    #[error("the message can't be sent now; try again, or use the call that waits")]
    WouldBlock,
    /// The length of a message is invalid. Nothing was sent.
    #[error("a message of {length} bytes: lengths are multiples of 8, 8 to {MAX_MESSAGE}")]
    BadLength {
        /// Length in bytes.
        length: usize,
    },
    /// A tag is out of range, or reserved. Nothing was sent.
    #[error("tag {tag}: tags are 0 to {most} here")]
    BadTag {
        /// The tag.
        tag: u8,
        /// The highest valid tag.
        most: u8,
    },
    /// The network has no such address.
    #[error("there is no {address}: the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchPeer {
        /// The requested address.
        address: Address,
        /// Nodes of the network.
        nodes: u32,
        /// VPIDs of each node.
        vpids: u32,
    },
    /// The peer's process died, or closed its port. The caller may connect again when the VPID has
    /// a new tenant.
    #[error("{address} is gone; connect again when the address has a new tenant")]
    PeerGone {
        /// Address of the peer.
        address: Address,
    },
    /// The peer's receive ring has no room for another connection.
    #[error("{address} has no credit for another connection; it needs a larger receive ring or fewer peers")]
    NoCredit {
        /// Address of the peer.
        address: Address,
    },
    /// The card found an error in earlier operations. It is reported once.
    #[error("{error} ({count} errors since the last report)")]
    Device {
        /// The last error.
        error: DeviceError,
        /// Number of errors since the last report.
        count: u64,
    },
    /// As many messages are kept as [`crate::Config::kept`] allows. None is lost; the caller must
    /// receive some of them.
    #[error("{kept} messages of other tags or senders are kept, which is the limit: receive some of them")]
    KeptFull {
        /// Number of kept messages.
        kept: usize,
    },
    /// The call's deadline passed.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// The awaited event.
        what: &'static str,
    },
    /// The call was cancelled.
    #[error("cancelled while waiting for {what}")]
    Cancelled {
        /// The awaited event.
        what: &'static str,
    },
    /// This process or the administrator has reset the device since the port was opened. The port
    /// receives nothing any more.
    #[error("the device was reset: drop the port and open it again")]
    Reset,
    /// The device is no VPID of an EXTOLL card.
    #[error("this device is no VPID of an EXTOLL card: {found}; open the socket of a VPID")]
    WrongDevice {
        /// Description of the device.
        found: String,
    },
    /// The network does not allow a receive ring of this size.
    #[error(
        "a receive ring of {slots} slots is not possible in this network: use a power of two, {least} to 65,536"
    )]
    BadRing {
        /// The requested number of slots.
        slots: u32,
        /// The smallest valid number.
        least: u32,
    },
    /// An error of the driver library: the device is gone, or refused an operation.
    #[error(transparent)]
    Driver(DriverError),
    /// An access to mapped memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Returns the error of a call that ended while it waited for `operation`.
    pub fn of_wait(end: WaitEnd, operation: &'static str) -> Self {
        match end {
            WaitEnd::Cancelled => Error::Cancelled { what: operation },
            WaitEnd::Timeout => Error::Timeout { what: operation },
        }
    }

    /// Returns whether the device itself is lost, so that it must be opened again.
    pub fn is_device_gone(&self) -> bool {
        matches!(self, Error::Driver(error) if error.is_gone())
    }

    /// Returns whether the call's deadline or its cancel token has ended the call.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Cancelled { .. })
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::Driver(error)
    }
}
