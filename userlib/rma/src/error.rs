//! Errors.

use nicforge_driver::Error as DriverError;
use nicforge_shm::MemoryError;
use thiserror::Error;

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is not an EXTOLL card's VPID.
    #[error("this is not a VPID of an EXTOLL card: its identity register reads {identity:#x}")]
    NotExtoll {
        /// Value of the identity register.
        identity: u64,
    },
    /// The notification queue can't have this number of entries.
    #[error("a notification queue of {entries} entries: a power of two of 64 to 65536 is possible")]
    QueueLength {
        /// Requested number of entries.
        entries: u32,
    },
    /// The card did not enable the notification queue.
    #[error(
        "the card did not enable the notification queue (error {code}): is there another port on this VPID?"
    )]
    QueueRefused {
        /// The card's error code, as in the mirror.
        code: u8,
    },
    /// The network has no such node or VPID.
    #[error("there is no VPID {vpid} of node {node}: the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchTarget {
        /// The requested node.
        node: u32,
        /// The requested VPID.
        vpid: u16,
        /// Nodes of the network.
        nodes: u32,
        /// VPIDs of each node.
        vpids: u32,
    },
    /// Address or length of memory to register is no multiple of 4096, or the length is 0.
    #[error("{length:#x} bytes at {iova:#x} can't be registered: whole pages of 4096 bytes can")]
    Unaligned {
        /// First address.
        iova: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The card refused to register or deregister memory.
    #[error("the card refused to {what}: {}", reason(*status))]
    Translation {
        /// The refused operation.
        what: &'static str,
        /// The card's status, from `nicforge_hwi::extoll_atu::command`.
        status: u64,
    },
    /// The range is not within the region.
    #[error("{length:#x} bytes at offset {offset:#x} are not in a region of {size:#x} bytes")]
    OutsideRegion {
        /// Offset of the range.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Length of the region in bytes.
        size: u64,
    },
    /// The length of a transfer is 0, or greater than an immediate put can carry.
    #[error("a transfer of {length} bytes: 1 to {most} are possible")]
    Length {
        /// Requested length in bytes.
        length: u64,
        /// Greatest possible length.
        most: u64,
    },
    /// The port was opened without a posted-write ring, by [`crate::Port::without_poster`].
    #[error("this port has no posted-write ring: use the calls that post through another one's")]
    NoPoster,
    /// Notifications were lost because the queue was full. Those in the queue can still be taken.
    #[error("{lost} notifications were lost: free them in time, or open the port with a longer queue")]
    Overflow {
        /// Number of notifications lost since the last report.
        lost: u64,
    },
    /// The card has disabled the notification queue: the administrator has reset the VPID, or the
    /// queue's memory was gone.
    #[error("the card has no notification queue any more: open the port anew")]
    QueueGone,
    /// The device was reset since the port was opened or the region was registered. The card knows
    /// neither any more.
    #[error(
        "the device was reset: drop the port and its regions, open the port anew and register the memory again"
    )]
    Reset,
    /// An error of the driver library.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::Driver(error.into())
    }
}

/// Returns the reason for a status of address translation.
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
        command::NO_OWNER => "the VPID has no owner",
        _ => "the command made no sense to it",
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::extoll_atu::command;

    use super::*;

    #[test]
    fn each_status_of_the_translation_has_a_text_of_its_own() {
        let statuses = [
            (command::NO_ENTRIES, "no entries in a row"),
            (command::QUOTA, "for this VPID"),
            (command::SCATTERED, "more pieces"),
            (command::NOT_YOURS, "nothing of this VPID"),
            (command::NOT_MAPPED, "not mapped"),
            (command::NO_OWNER, "no owner"),
            (u64::MAX, "made no sense"),
        ];

        for (status, expected) in statuses {
            let text = Error::Translation { what: "register memory", status }.to_string();
            assert!(text.contains(expected), "{text}");
            let matching = statuses.iter().filter(|(_, part)| text.contains(part)).count();
            assert_eq!(matching, 1, "{text}");
        }
    }
}
