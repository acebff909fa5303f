//! What can go wrong.

use nicforge_driver::Error as DriverError;
use nicforge_shm::MemoryError;
use thiserror::Error;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is not an EXTOLL card's VPID.
    #[error("this is not a VPID of an EXTOLL card: its identity register reads {identity:#x}")]
    NotExtoll {
        /// What the identity register reads.
        identity: u64,
    },
    /// The notification queue can't have so many entries.
    #[error("a notification queue of {entries} entries: a power of two of 64 to 65536 is possible")]
    QueueLength {
        /// Entries asked for.
        entries: u32,
    },
    /// The card did not enable the notification queue.
    #[error(
        "the card did not enable the notification queue (error {code}): is there another port on this VPID?"
    )]
    QueueRefused {
        /// The card's error, as in the mirror.
        code: u8,
    },
    /// There is no such node or VPID in the network.
    #[error("there is no VPID {vpid} of node {node}: the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchTarget {
        /// The node asked for.
        node: u32,
        /// The VPID asked for.
        vpid: u16,
        /// Nodes there are.
        nodes: u32,
        /// VPIDs of each.
        vpids: u32,
    },
    /// Address or length of memory to be registered are not multiples of 4096, or there is none.
    #[error("{length:#x} bytes at {iova:#x} can't be registered: whole pages of 4096 bytes can")]
    Unaligned {
        /// First address.
        iova: u64,
        /// Bytes.
        length: u64,
    },
    /// The card refused to register or deregister.
    #[error("the card refused to {what}: {}", reason(*status))]
    Translation {
        /// What was asked.
        what: &'static str,
        /// The card's status, of `nicforge_hwi::extoll_atu::command`.
        status: u64,
    },
    /// A part of a region that is none.
    #[error("{length:#x} bytes at offset {offset:#x} are not in a region of {size:#x} bytes")]
    OutsideRegion {
        /// Where.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// A transfer of nothing, or more bytes than an immediate put carries.
    #[error("a transfer of {length} bytes: 1 to {most} are possible")]
    Length {
        /// Bytes asked for.
        length: u64,
        /// The most.
        most: u64,
    },
    /// The port was opened without a ring, by [`crate::Port::without_poster`].
    #[error("this port has no posted-write ring: use the calls that post through another one's")]
    NoPoster,
    /// Notifications were lost because the queue was full. Those that are in it can still be taken.
    #[error("{lost} notifications were lost: free them in time, or open the port with a longer queue")]
    Overflow {
        /// How many since the last time this was said.
        lost: u64,
    },
    /// The card has disabled the notification queue: the admin has reset the VPID, or the queue's memory was gone.
    #[error("the card has no notification queue any more: open the port anew")]
    QueueGone,
    /// The device was reset since the port was opened or the region registered: the card knows of neither any more.
    #[error(
        "the device was reset: drop the port and its regions, open the port anew and register the memory again"
    )]
    Reset,
    /// The driver's.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::Driver(error.into())
    }
}

fn reason(status: u64) -> &'static str {
    use nicforge_hwi::extoll_atu::command;
    match status {
        command::NO_ENTRIES => {
            "its table has no entries in a row for so many pages; deregister some, or use larger pages"
        }
        command::QUOTA => {
            "it has no entries left for this VPID but those that are kept for others; deregister some, or use larger pages"
        }
        command::SCATTERED => {
            "the memory is mapped for DMA in more pieces than a region may have; register less at once, or use huge pages"
        }
        command::NOT_YOURS => "nothing of this VPID is registered there",
        command::NOT_MAPPED => "the memory is not mapped for DMA",
        command::NO_OWNER => "nobody has the VPID",
        _ => "the command made no sense to it",
    }
}
