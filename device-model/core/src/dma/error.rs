//! Errors of DMA operations and of the map.

use thiserror::Error;

use super::MAX_DMA;

/// Reason why a DMA operation failed. A device turns it into its hardware's error bit and
/// interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaError {
    /// Part of the access is not mapped.
    #[error(
        "no memory is mapped at IOVA {iova:#x} ({length} bytes of the access from there on): map it before the device uses it"
    )]
    Unmapped {
        /// The first address that is not mapped.
        iova: u64,
        /// Bytes of the access from there to its end.
        length: usize,
    },
    /// Part of the access lies in a mapping that does not allow it.
    #[error("the mapping at IOVA {iova:#x} does not allow to {} {length} bytes: map it with that permission", if *write { "write" } else { "read" })]
    Permission {
        /// The first address without the permission.
        iova: u64,
        /// Bytes of the access from there to its end.
        length: usize,
        /// Whether it was a write to client memory.
        write: bool,
    },
    /// The operation has more than [`MAX_DMA`] bytes.
    #[error("{length} bytes are too many for one DMA operation: split it into pieces of at most {MAX_DMA}")]
    TooLong {
        /// Bytes requested.
        length: usize,
    },
    /// The function's *bus master* bit is off, or the function is not in D0.
    #[error(
        "the function may not start DMA: set bus master enable in its command register, and power state D0"
    )]
    NotBusMaster,
    /// Too many operations are in flight. Nothing was done. The device should retry in a later
    /// step.
    #[error("too many DMA operations are in progress: try again later")]
    Busy,
    /// Part of the access lies in memory that only messages reach.
    #[error("the memory at IOVA {iova:#x} is not mapped into this process: read or write it by messages")]
    Remote {
        /// The first such address.
        iova: u64,
    },
    /// The address is not that of an aligned 64-bit word in one mapping.
    #[error(
        "the 8 bytes at IOVA {iova:#x} are no aligned word of one mapping: use an address that is a multiple of 8"
    )]
    NoWord {
        /// The address.
        iova: u64,
    },
    /// The memory lies in more mappings than one lease may.
    #[error(
        "{length:#x} bytes at IOVA {iova:#x} lie in more than {limit} mappings: map larger ranges, or hold on to less"
    )]
    Scattered {
        /// The first address.
        iova: u64,
        /// Bytes requested.
        length: u64,
        /// Largest number of mappings: [`super::MAX_LEASE`].
        limit: usize,
    },
    /// The client truncated its file. Reads returned zeros, and writes were lost.
    #[error(
        "the file behind IOVA {iova:#x} is shorter than its mapping: the client truncated it; reset the attachment"
    )]
    Faulted {
        /// Start of the piece of the access that lies in that file.
        iova: u64,
    },
    /// The client answered a DMA message with an error.
    #[error("the client refused the access with errno {errno}")]
    Refused {
        /// The error number in the answer.
        errno: i32,
    },
    /// The client answered a DMA read with another number of bytes than requested.
    #[error("the client answered a read of {wanted} bytes with {length}")]
    ShortAnswer {
        /// Bytes in the answer.
        length: usize,
        /// Bytes requested.
        wanted: usize,
    },
    /// The client went away, or the attachment was reset.
    #[error("the client of the attachment is gone")]
    Gone,
}

/// Reason why a mapping was not made or removed. The map is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaMapError {
    /// The range overlaps a mapping (VFIO: `EEXIST`).
    #[error("the range overlaps the mapping of {length:#x} bytes at IOVA {iova:#x}: unmap that first")]
    Overlap {
        /// Start of the existing mapping.
        iova: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The range has no bytes (VFIO: `EINVAL`).
    #[error("the range at IOVA {iova:#x} is empty")]
    Zero {
        /// Start of the range.
        iova: u64,
    },
    /// The range passes the end of the address space (VFIO: `EINVAL`).
    #[error("{length:#x} bytes at IOVA {iova:#x} go past the end of the address space")]
    Wraps {
        /// Start of the range.
        iova: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The quota of mappings is used up (VFIO: `ENOSPC`).
    #[error("the quota of {quota} mappings is used up: unmap some, map larger ranges, or raise the quota")]
    Quota {
        /// Largest number of mappings.
        quota: usize,
    },
    /// The memory is not as long as the range (VFIO: `EINVAL`).
    #[error("{window:#x} bytes of memory can't back a range of {length:#x} bytes at IOVA {iova:#x}")]
    BadBacking {
        /// Start of the range.
        iova: u64,
        /// Its length in bytes.
        length: u64,
        /// Length of the memory in bytes.
        window: u64,
    },
    /// The mapping would permit writes to memory that this process may only read (VFIO: `EINVAL`).
    #[error(
        "the memory for IOVA {iova:#x} can't be written: map its file read-write, or map the range without write permission"
    )]
    NotWritable {
        /// Start of the range.
        iova: u64,
    },
    /// No mapping lies in the range (VFIO type 1 reports 0 bytes; a vfio-user server answers
    /// `ENOENT`).
    #[error("nothing is mapped in {length:#x} bytes at IOVA {iova:#x}")]
    NotFound {
        /// Start of the range.
        iova: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The range would cut a mapping in two (VFIO type 1 version 2: `EINVAL`).
    #[error("the range cuts the mapping of {length:#x} bytes at IOVA {iova:#x}: unmap all of it")]
    Partial {
        /// Start of the mapping that would be cut.
        iova: u64,
        /// Its length in bytes.
        length: u64,
    },
}
