//! Errors of this crate. Each carries the refused values.

use nix::errno::Errno;
use thiserror::Error;

/// Reason why shared memory could not be created, mapped or accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// The access passes the end of the memory or window.
    #[error("access to {len} bytes at offset 0x{offset:x} leaves a memory of 0x{size:x} bytes")]
    OutOfBounds {
        /// First byte of the access.
        offset: u64,
        /// Bytes accessed.
        len: u64,
        /// Size of the memory or window in bytes.
        size: u64,
    },
    /// The access must be aligned, and is not.
    #[error("offset 0x{offset:x} is not aligned to {align} bytes in memory")]
    Misaligned {
        /// First byte of the access.
        offset: u64,
        /// The required alignment in bytes.
        align: u64,
    },
    /// The number of slots of a ring is not a power of two.
    #[error("{count} slots: the length of a ring must be a power of two")]
    SlotCount {
        /// Number of slots requested.
        count: u32,
    },
    /// The write goes to memory that is mapped read-only.
    #[error("write to offset 0x{offset:x} of memory that is mapped read-only")]
    ReadOnly {
        /// First byte of the access.
        offset: u64,
    },
    /// The requested length is 0.
    #[error("a mapping of 0 bytes was asked for: ask for at least 1")]
    Empty,
    /// The end of the range is beyond the address space.
    #[error("offset 0x{offset:x} with length 0x{len:x} passes the end of the address space")]
    Overflow {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The offset in the file is not a multiple of the page size.
    #[error("file offset 0x{offset:x} is not a multiple of the page size 0x{page:x}")]
    UnalignedOffset {
        /// Offset in the file.
        offset: u64,
        /// The page size in bytes.
        page: u64,
    },
    /// The length is not a multiple of the required page size.
    #[error("length 0x{len:x} is not a multiple of the huge page size 0x{page:x}")]
    UnalignedLength {
        /// Length in bytes.
        len: u64,
        /// The page size in bytes.
        page: u64,
    },
    /// The file is shorter than the range to map.
    #[error(
        "range [0x{offset:x}, +0x{len:x}) passes the end of a file of 0x{size:x} bytes: extend the file first"
    )]
    FileTooShort {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the file in bytes.
        size: u64,
    },
    /// The file is not on tmpfs (a memfd is) or hugetlbfs. Other file systems can delay a page
    /// fault without end, so that guarded mappings refuse them.
    #[error(
        "a file of file system 0x{magic:x} is not shared memory: use a memfd, or a file on tmpfs or hugetlbfs"
    )]
    ForeignFile {
        /// Magic number of the file system (`statfs.f_type`), or 0 for a file that is not regular.
        magic: i64,
    },
    /// `memfd_create` failed, for example because the name has a NUL byte or is longer than 249
    /// bytes.
    #[error("creating a memory file of 0x{len:x} bytes: {errno}")]
    Create {
        /// Length in bytes.
        len: u64,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// `ftruncate` failed.
    #[error("giving a memory file 0x{len:x} bytes: {errno}")]
    Resize {
        /// Length in bytes.
        len: u64,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// The kernel refused the seals.
    #[error("sealing a memory file: {errno}")]
    Seal {
        /// Error number from the kernel.
        errno: Errno,
    },
    /// `fstat`, `fstatfs` or `dup` failed.
    #[error("examining the file to map: {errno}")]
    File {
        /// Error number from the kernel.
        errno: Errno,
    },
    /// `mmap` failed.
    #[error("mapping 0x{len:x} bytes at file offset 0x{offset:x}: {errno}")]
    Map {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// The mapping could not be guarded against truncation.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// Reason why a mapping could not be guarded against truncation of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GuardError {
    /// The process-wide table of ranges is full.
    #[error("all {limit} guarded ranges of this process are in use: unmap some, or map larger pieces")]
    TableFull {
        /// Size of the table.
        limit: usize,
    },
    /// The SIGBUS handler could not be installed.
    #[error("installing the SIGBUS handler: {errno}")]
    Install {
        /// Error number from the kernel.
        errno: Errno,
    },
}
