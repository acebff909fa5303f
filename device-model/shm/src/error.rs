//! What can go wrong, with the values that were refused.

use nix::errno::Errno;
use thiserror::Error;

/// Why shared memory could not be created, mapped or accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// The access leaves the memory or window.
    #[error("access to {len} bytes at offset 0x{offset:x} leaves a memory of 0x{size:x} bytes")]
    OutOfBounds {
        /// First byte of the access.
        offset: u64,
        /// Bytes accessed.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// An access that must be aligned is not.
    #[error("offset 0x{offset:x} is not aligned to {align} bytes in memory")]
    Misaligned {
        /// First byte of the access.
        offset: u64,
        /// The alignment it needs in bytes.
        align: u64,
    },
    /// A ring of slots whose length is no power of two.
    #[error("{count} slots: the length of a ring must be a power of two")]
    SlotCount {
        /// Slots asked for.
        count: u32,
    },
    /// A write to memory that is mapped read-only.
    #[error("write to offset 0x{offset:x} of memory that is mapped read-only")]
    ReadOnly {
        /// First byte of the access.
        offset: u64,
    },
    /// A length of 0 was asked for.
    #[error("a mapping of 0 bytes was asked for: ask for at least 1")]
    Empty,
    /// A length or an end that no mapping can have.
    #[error("offset 0x{offset:x} with length 0x{len:x} passes the end of the address space")]
    Overflow {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A file can only be mapped at a multiple of the page size.
    #[error("file offset 0x{offset:x} is not a multiple of the page size 0x{page:x}")]
    UnalignedOffset {
        /// Offset in the file.
        offset: u64,
        /// The page size in bytes.
        page: u64,
    },
    /// The length is no multiple of the page size where it has to be.
    #[error("length 0x{len:x} is not a multiple of the huge page size 0x{page:x}")]
    UnalignedLength {
        /// Length in bytes.
        len: u64,
        /// The page size in bytes.
        page: u64,
    },
    /// The file ends before the range to map does.
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
    /// A guarded mapping takes only files of tmpfs (a memfd is one) and hugetlbfs: others can park
    /// a page fault.
    #[error(
        "a file of file system 0x{magic:x} is not shared memory: use a memfd, or a file on tmpfs or hugetlbfs"
    )]
    ForeignFile {
        /// The file system's magic number (`statfs.f_type`), 0 for what is no regular file.
        magic: i64,
    },
    /// A name with a NUL byte in it, or longer than 249 bytes, or any other failure of
    /// `memfd_create`.
    #[error("creating a memory file of 0x{len:x} bytes: {errno}")]
    Create {
        /// Length in bytes.
        len: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// `ftruncate` failed.
    #[error("giving a memory file 0x{len:x} bytes: {errno}")]
    Resize {
        /// Length in bytes.
        len: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// Seals were refused.
    #[error("sealing a memory file: {errno}")]
    Seal {
        /// What the kernel said.
        errno: Errno,
    },
    /// `fstat`, `fstatfs` or `dup` failed.
    #[error("looking at the file to map: {errno}")]
    File {
        /// What the kernel said.
        errno: Errno,
    },
    /// `mmap` failed.
    #[error("mapping 0x{len:x} bytes at file offset 0x{offset:x}: {errno}")]
    Map {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// The mapping could not be guarded against truncation.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// Why a mapping could not be guarded against truncation of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GuardError {
    /// Every slot of the process-wide table is taken.
    #[error("all {limit} guarded ranges of this process are in use: unmap some, or map larger pieces")]
    TableFull {
        /// Slots there are.
        limit: usize,
    },
    /// The handler could not be installed.
    #[error("installing the SIGBUS handler: {errno}")]
    Install {
        /// What the kernel said.
        errno: Errno,
    },
}
