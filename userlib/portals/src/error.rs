//! Errors.

use nicforge_driver::{Error as DriverError, WaitEnd};
use nicforge_hwi::seastar::{MAX_MESSAGE, MAX_PIECES, MAX_RANGES, code};
use nicforge_shm::MemoryError;
use thiserror::Error;

/// Reason why the card or the kernel refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// `PTL_NO_SPACE`.
    #[error("no memory is left for it: unlink what is not used, or use the host-based mode")]
    NoSpace,
    /// `PTL_SEGV`.
    #[error("memory or a length is out of range: use memory of a region of this interface")]
    Segment,
    /// `PTL_PT_INDEX_INVALID`.
    #[error("the portal does not exist: portals are 0 to 63")]
    Portal,
    /// `PTL_AC_INDEX_INVALID`.
    #[error("the access control entry does not exist: entries are 0 to 7")]
    Access,
    /// `PTL_ME_INVALID`.
    #[error("the match entry does not exist any more")]
    Entry,
    /// `PTL_ME_IN_USE`.
    #[error("the match entry has a descriptor, or operations in progress: wait for their events")]
    EntryInUse,
    /// `PTL_MD_INVALID`.
    #[error("the memory descriptor does not exist any more, or its threshold is 0")]
    Descriptor,
    /// `PTL_MD_IN_USE`.
    #[error("the memory descriptor has operations in progress: wait for their events")]
    DescriptorInUse,
    /// `PTL_MD_ILLEGAL`.
    #[error("the memory descriptor's values are not valid, or the range leaves its memory")]
    DescriptorIllegal,
    /// `PTL_EQ_INVALID`.
    #[error("the event queue does not exist any more")]
    Queue,
    /// The event queue is in use.
    #[error("memory descriptors use the event queue: unlink them first")]
    QueueInUse,
    /// `PTL_PROCESS_INVALID`.
    #[error("the process does not exist, or has been started already")]
    Process,
    /// `PTL_NI_INVALID`.
    #[error("the kernel has not started this process")]
    Interface,
    /// Any other code.
    #[error("code {0}; does the card run another version of its firmware?")]
    Other(u32),
}

impl Refusal {
    /// Returns the reason that a result's [`code`] names.
    pub(crate) fn of_code(code: u32) -> Self {
        match code {
            code::NO_SPACE => Self::NoSpace,
            code::SEGMENT_VIOLATION => Self::Segment,
            code::PORTAL_INVALID => Self::Portal,
            code::ACCESS_INVALID => Self::Access,
            code::ENTRY_INVALID => Self::Entry,
            code::ENTRY_IN_USE => Self::EntryInUse,
            code::DESCRIPTOR_INVALID => Self::Descriptor,
            code::DESCRIPTOR_IN_USE => Self::DescriptorInUse,
            code::DESCRIPTOR_ILLEGAL => Self::DescriptorIllegal,
            code::QUEUE_INVALID => Self::Queue,
            code::QUEUE_IN_USE => Self::QueueInUse,
            code::PROCESS_INVALID => Self::Process,
            code::NO_INTERFACE => Self::Interface,
            other => Self::Other(other),
        }
    }
}

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The card or the kernel refused the call, which has changed nothing.
    #[error("{call}: {reason}")]
    Refused {
        /// The standard's name of the call.
        call: &'static str,
        /// The reason.
        reason: Refusal,
    },
    /// The network has no such node.
    #[error("there is no node {node}: the network has {nodes}")]
    NoSuchNode {
        /// The requested node.
        node: u32,
        /// Nodes of the network.
        nodes: u32,
    },
    /// A range leaves its region or its descriptor.
    #[error("{length} bytes at offset {offset} leave the {size} bytes of the memory")]
    OutOfRange {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes of the memory.
        size: u64,
    },
    /// A message is longer than the network allows.
    #[error("a message of {length} bytes: the most is {MAX_MESSAGE}; send it in parts")]
    TooLong {
        /// Length of the message.
        length: u64,
    },
    /// Events were written over before they were taken.
    #[error("about {lost} events were lost: take events more often, or allocate a larger queue")]
    EventsLost {
        /// Number of lost events, at least.
        lost: u32,
    },
    /// A process in NIC-based mode has as many regions as the card can have.
    #[error("a process has at most {MAX_RANGES} regions: allocate a larger one and divide it")]
    TooManyRegions,
    /// A scattered region is not possible.
    #[error(
        "{length} bytes in pieces of {piece}: pieces are powers of two from 4096, at most {MAX_PIECES}, and need \
         the host-based mode"
    )]
    BadPieces {
        /// Length of the region.
        length: u64,
        /// Length of its pieces.
        piece: u64,
    },
    /// The firmware has panicked or hung. The node's messages are lost.
    #[error("the SeaStar's firmware has stopped: reset the function, and boot the node again")]
    FirmwareHalted,
    /// The firmware was restarted, so all state of this object is gone.
    #[error("the SeaStar's firmware was started again: boot the node and open the interface again")]
    Restarted,
    /// The device was reset since it was opened.
    #[error("the device was reset: open it again")]
    Reset,
    /// The firmware has not answered a command. No further command is possible.
    #[error("the SeaStar's firmware has not answered a command in time: reset the function")]
    Unresponsive,
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
    /// The device is no SeaStar, or not the attachment that the call needs.
    #[error("this device is not {wanted}: {found}")]
    WrongDevice {
        /// The device that the call needs.
        wanted: &'static str,
        /// Description of the device.
        found: String,
    },
    /// An error of the driver library: the device is gone, or refused an operation.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An access to mapped memory failed.
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

    /// Returns whether the node, the firmware or the device is lost, so that it must be opened or
    /// booted again.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Driver(error) => error.is_gone(),
            Error::FirmwareHalted | Error::Restarted | Error::Reset | Error::Unresponsive => true,
            _ => false,
        }
    }

    /// Returns the reason of a refusal.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Error::Refused { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    /// Returns whether the call's deadline or its cancel token has ended the call.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Cancelled { .. })
    }
}
