//! What can go wrong.

use nicforge_driver::Error as DriverError;
use nicforge_hwi::{extoll::error, extoll_velo::address};
use nicforge_shm::MemoryError;
use thiserror::Error;

use crate::{Address, MAX_MESSAGE};

/// What a card found wrong after a call had returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// Nobody had the VPID that a message was for; it was dropped.
    #[error("nobody has {to}, a message for it was dropped")]
    NoReceiver {
        /// Whom it was for.
        to: Address,
    },
    /// A message waited in the card for a receiver that does not read, longer than the watchdog allows, and was dropped.
    #[error("{to} does not read: a message for it was dropped by the card's watchdog")]
    Watchdog {
        /// Whom it was for.
        to: Address,
    },
    /// A message came to the card in pieces that did not follow each other, however often it was sent; nothing of it was delivered.
    #[error(
        "a message was torn on its way to the card each time; does somebody else use this VPID's device?"
    )]
    Torn,
    /// The memory of the receive ring is gone.
    #[error("the card can't write the receive ring any more; open the port again")]
    RingMemory,
    /// Something that this library does not do: somebody else writes to this VPID's pages.
    #[error("the card counted error {code} about {about:#x}; does somebody else use this VPID's device?")]
    Other {
        /// One of [`nicforge_hwi::extoll::error`].
        code: u8,
        /// What it is about.
        about: u32,
    },
}

impl DeviceError {
    /// Of the card's word.
    pub(crate) fn of_word(word: u64) -> Self {
        let (code, about) = (word as u8, (word >> 8) as u32);
        let (node, vpid, ..) = address::decode(about.into());
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

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that does not wait would have to: the connection has no credit, or the way to the card is full.
    #[error("the message can't be sent now; try again, or use the call that waits")]
    WouldBlock,
    /// A message's length is impossible. Nothing was sent.
    #[error("a message of {length} bytes: lengths are multiples of 8, 8 to {MAX_MESSAGE}")]
    BadLength {
        /// Its bytes.
        length: usize,
    },
    /// A tag is out of range, or taken. Nothing was sent.
    #[error("tag {tag}: tags are 0 to {most} here")]
    BadTag {
        /// The tag.
        tag: u8,
        /// The highest.
        most: u8,
    },
    /// There can be no such peer.
    #[error("there is no {address}: the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchPeer {
        /// The address asked for.
        address: Address,
        /// Nodes.
        nodes: u32,
        /// VPIDs of each.
        vpids: u32,
    },
    /// The peer's process died or closed its port. Connect again when its successor is there.
    #[error("{address} went down; connect again when its successor is there")]
    PeerGone {
        /// The peer.
        address: Address,
    },
    /// The peer's receive ring has no room for another connection.
    #[error("{address} has no credit for another connection; it needs a larger receive ring or fewer peers")]
    NoCredit {
        /// The peer.
        address: Address,
    },
    /// The card found something wrong with what was sent before. It is reported once.
    #[error("{error} ({count} errors since the last report)")]
    Device {
        /// The last of them.
        error: DeviceError,
        /// How many there were.
        count: u64,
    },
    /// Too many messages were kept while waiting for another one. None is lost: take some.
    #[error("{kept} messages of other tags or senders are kept and no more will be: take some of them")]
    KeptFull {
        /// How many.
        kept: usize,
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
    /// The device was reset since the port was opened, by this process or by the admin: nobody can send to it any more.
    #[error("the device was reset: drop the port and open it again")]
    Reset,
    /// The device is no VPID of an EXTOLL card.
    #[error("this device is no VPID of an EXTOLL card: {found}; open the socket of a VPID")]
    WrongDevice {
        /// What it is.
        found: String,
    },
    /// A receive ring of this size is impossible here.
    #[error(
        "a receive ring of {slots} slots: a power of two, {least} to 65,536, is possible in this network"
    )]
    BadRing {
        /// Slots asked for.
        slots: u32,
        /// The fewest.
        least: u32,
    },
    /// The driver library's error: the device is gone or refused something.
    #[error(transparent)]
    Driver(DriverError),
    /// Access to mapped memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Whether the device itself is lost, so that only opening it again helps.
    pub fn is_device_gone(&self) -> bool {
        matches!(self, Error::Driver(error) if error.is_gone())
    }

    /// Whether the call was ended by its deadline or its token.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Cancelled { .. })
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::Driver(error)
    }
}
