//! Creating memory files and mapping them.
//!
//! UNSAFETY: calls `mmap` and `munmap`. A [`Mapping`] owns its range of addresses from one to the
//! other, and everything that holds an address in it holds the `Mapping` too.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::MemoryError;
use crate::sigbus::{self, Guard};
use crate::window::Window;
use crate::word::{SharedU32, SharedU64};

/// What may be done with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    pub(crate) fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        }
    }
}

/// A range of addresses that a file is mapped to. Unmapped when it is dropped.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    /// Bytes that may be accessed.
    len: usize,
    /// Bytes that `munmap` has to be given: `len` rounded up to the file's pages.
    mapped: usize,
    access: Access,
    fd: Option<OwnedFd>,
    guard: Option<Guard>,
}

// SAFETY: the address is only dereferenced by the volatile and atomic accesses of this crate, which
// take no references to the memory, and the other fields are `Send` and `Sync`.
unsafe impl Send for Mapping {}
// SAFETY: as above; any process may access the memory at any time anyway.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        page: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let overflow = MemoryError::Overflow { offset, len: len as u64 };
        let file_offset = i64::try_from(offset).map_err(|_| overflow)?;
        let mapped =
            len.checked_next_multiple_of(page).filter(|l| *l <= isize::MAX as usize).ok_or(overflow)?;
        let length = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;

        // SAFETY: no address is asked for, so that the kernel chooses a range that nothing else
        // uses.
        let address =
            unsafe { mmap(None, length, access.protection(), MapFlags::MAP_SHARED, fd, file_offset) }
                .map_err(|errno| MemoryError::Map { offset, len: len as u64, errno })?;

        Ok(Mapping { address: address.cast(), len, mapped, access, fd: None, guard: None })
    }

    /// A range of addresses with nothing but zero pages of our own.
    fn reserve(len: usize, page: usize, access: Access) -> Result<Self, MemoryError> {
        let overflow = MemoryError::Overflow { offset: 0, len: len as u64 };
        let mapped =
            len.checked_next_multiple_of(page).filter(|l| *l <= isize::MAX as usize).ok_or(overflow)?;
        let length = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;

        // SAFETY: no address is asked for, so that the kernel chooses a range that nothing else
        // uses.
        let address = unsafe { mmap_anonymous(None, length, access.protection(), flags) }
            .map_err(|errno| MemoryError::Map { offset: 0, len: len as u64, errno })?;

        Ok(Mapping { address: address.cast(), len, mapped, access, fd: None, guard: None })
    }

    /// Maps `[offset, offset + len)` of it to the file, whose part of the whole begins at
    /// `file_offset`.
    fn place(
        &mut self,
        fd: BorrowedFd<'_>,
        file_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        let page = page_size() as u64;
        for value in [offset, len] {
            if !value.is_multiple_of(page) {
                return Err(MemoryError::UnalignedOffset { offset: value, page });
            }
        }

        let size = self.mapped as u64;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(MemoryError::OutOfBounds { offset, len, size });
        }

        let overflow = MemoryError::Overflow { offset: file_offset, len };
        let in_file =
            file_offset.checked_add(offset).and_then(|at| i64::try_from(at).ok()).ok_or(overflow)?;
        let length = NonZeroUsize::new(len as usize).ok_or(MemoryError::Empty)?;
        let at = NonZeroUsize::new(self.address.as_ptr() as usize + offset as usize).ok_or(overflow)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;

        // SAFETY: replaces a part of the range that this value owns and that nobody has an address
        // in yet.
        unsafe { mmap(Some(at), length, self.access.protection(), flags, fd, in_file) }
            .map(drop)
            .map_err(|errno| MemoryError::Map { offset: in_file as u64, len, errno })
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn faulted(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::faulted)
    }
}

/// Bytes that are unmapped at a time. The kernel locks the process's address space while it takes
/// pages out of it, and other threads that map memory wait; a gibibyte takes it hundreds of
/// milliseconds.
const UNMAP_PIECE: usize = 32 << 20;

impl Mapping {
    /// Takes the pages out of the address space piece by piece, so that [`munmap`] finds nothing
    /// left to do.
    fn empty(&self) {
        let pieces = (0..self.mapped).step_by(UNMAP_PIECE);
        for start in pieces.filter(|_| self.mapped > UNMAP_PIECE) {
            let len = UNMAP_PIECE.min(self.mapped - start);
            // SAFETY: `start` is within the range that this value owns.
            let piece = unsafe { self.address.byte_add(start) };
            // SAFETY: the piece is within that range, and no other value has an address in it any
            // more. Pages of a shared mapping stay in their file.
            let emptied = unsafe { madvise(piece.cast(), len, MmapAdvise::MADV_DONTNEED) };
            if emptied.is_err() {
                // Some kinds of memory can't be emptied; they are unmapped in one piece.
                return;
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The range leaves the table before the kernel may give its addresses to another mapping.
        self.guard = None;
        self.empty();
        // SAFETY: `mmap` gave this range to this value alone, and whoever held an address in it
        // held this value.
        let unmapped = unsafe { munmap(self.address.cast(), self.mapped) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A file mapped into this process, shared with whoever else maps it.
///
/// Clones are cheap and stand for the same mapping; it is unmapped when the last clone and the last
/// [`Window`] or word of it are gone.
#[derive(Clone)]
pub struct SharedMemory {
    all: Window,
}

impl SharedMemory {
    /// A new memory file of `len` bytes, rounded up to the page size, zeroed, and mapped for
    /// reading and writing.
    ///
    /// Its size is sealed (`F_SEAL_SHRINK`, `F_SEAL_GROW`, and `F_SEAL_SEAL` so that nobody adds
    /// more): whoever gets the descriptor can map and write it but not cut it short. `name` shows
    /// in `/proc/self/maps`.
    ///
    /// # Errors
    /// [`MemoryError::Empty`] for a length of 0; what the kernel says otherwise.
    pub fn create(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::empty(), SealFlag::empty())
    }

    /// As [`SharedMemory::create`], and whoever gets the descriptor can only map it read-only
    /// (`F_SEAL_FUTURE_WRITE`).
    ///
    /// The mapping returned is the one that can write, for as long as it lives.
    ///
    /// # Errors
    /// As [`SharedMemory::create`].
    pub fn create_write_protected(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::empty(), SealFlag::F_SEAL_FUTURE_WRITE)
    }

    /// As [`SharedMemory::create`], of huge pages of the default size.
    ///
    /// # Errors
    /// [`MemoryError::UnalignedLength`] when `len` is no multiple of that size,
    /// [`MemoryError::Map`] when there are not enough huge pages, [`MemoryError::Create`] when the
    /// kernel has none: fall back to `create`.
    pub fn create_huge(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::MFD_HUGETLB, SealFlag::empty())
    }

    fn create_sealed(name: &str, len: usize, flags: MFdFlags, seals: SealFlag) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }

        let create = |errno| MemoryError::Create { len: len as u64, errno };
        let name = CString::new(name).map_err(|_| create(Errno::EINVAL))?;
        let fd = memfd_create(name.as_c_str(), flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(create)?;
        let page = file_page_size(fd.as_fd())?;
        let overflow = MemoryError::Overflow { offset: 0, len: len as u64 };
        let rounded = len.checked_next_multiple_of(page).ok_or(overflow)?;
        if flags.contains(MFdFlags::MFD_HUGETLB) && rounded != len {
            return Err(MemoryError::UnalignedLength { len: len as u64, page: page as u64 });
        }

        let size = i64::try_from(rounded).map_err(|_| overflow)?;
        ftruncate(&fd, size).map_err(|errno| MemoryError::Resize { len: rounded as u64, errno })?;
        let mut mapping = Mapping::new(fd.as_fd(), 0, rounded, page, Access::ReadWrite)?;

        // After mapping: `F_SEAL_FUTURE_WRITE` would refuse ours too.
        let seals = seals | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| MemoryError::Seal { errno })?;
        mapping.fd = Some(fd);

        Ok(Self::from_mapping(mapping))
    }

    /// Maps `[offset, offset + len)` of a file that somebody else made, for as long as its owner
    /// keeps its size.
    ///
    /// A duplicate of the descriptor is kept ([`SharedMemory::fd`]). The size is checked for
    /// regular files; a device file checks for itself. For files of a peer that is not trusted use
    /// [`SharedMemory::map_guarded`].
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::UnalignedOffset`] when `offset` is no multiple of the
    /// page size, [`MemoryError::Overflow`], [`MemoryError::FileTooShort`], or what the kernel
    /// says.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, access: Access) -> Result<Self, MemoryError> {
        let stat = fstat(fd).map_err(|errno| MemoryError::File { errno })?;
        let mut mapping = Self::map_checked(fd, &stat, offset, len, access)?;
        let own = fd.try_clone_to_owned().map_err(|error| MemoryError::File { errno: errno_of(&error) })?;
        mapping.fd = Some(own);
        Ok(Self::from_mapping(mapping))
    }

    /// Maps `[offset, offset + len)` of a file whose owner is not trusted.
    ///
    /// When its owner truncates the file, an access finds zeros instead of killing this process,
    /// and [`SharedMemory::faulted`] says so from then on. The first call installs the handler of
    /// [`crate::install_sigbus_guard`]. No descriptor is kept.
    ///
    /// # Errors
    /// As [`SharedMemory::map`]; [`MemoryError::ForeignFile`] for files that are not on tmpfs or
    /// hugetlbfs (another file system could hold up a page fault for as long as it likes), and
    /// [`MemoryError::Guard`] when the table of ranges is full.
    pub fn map_guarded(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        sigbus::install_sigbus_guard()?;
        let stat = fstat(fd).map_err(|errno| MemoryError::File { errno })?;
        if !is_regular(&stat) {
            return Err(MemoryError::ForeignFile { magic: 0 });
        }

        let system = fstatfs(fd).map_err(|errno| MemoryError::File { errno })?.filesystem_type();
        if system != TMPFS_MAGIC && system != HUGETLBFS_MAGIC {
            return Err(MemoryError::ForeignFile { magic: system.0 as i64 });
        }

        let mut mapping = Self::map_checked(fd, &stat, offset, len, access)?;
        mapping.guard = Some(Guard::new(mapping.address, mapping.mapped, access)?);

        Ok(Self::from_mapping(mapping))
    }

    /// Maps `areas`, each {offset, length}, of the `len` bytes that lie at `file_offset` of a
    /// device file (`/dev/vfio`'s, or that of a driver of our own). What lies between them is
    /// memory of this process.
    ///
    /// When the device goes away, which its driver tells by SIGBUS, an access finds zeros and
    /// [`SharedMemory::faulted`] says so from then on, as with [`SharedMemory::map_guarded`]. A
    /// duplicate of the descriptor is kept.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::UnalignedOffset`] when an area does not start and end
    /// at a page, [`MemoryError::OutOfBounds`] for one that leaves the `len` bytes,
    /// [`MemoryError::Guard`], or what the kernel says.
    pub fn map_device(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        len: usize,
        areas: &[(u64, u64)],
        access: Access,
    ) -> Result<Self, MemoryError> {
        sigbus::install_sigbus_guard()?;
        let mut mapping = Mapping::reserve(len, page_size(), access)?;
        for &(offset, bytes) in areas {
            mapping.place(fd, file_offset, offset, bytes)?;
        }

        mapping.guard = Some(Guard::new(mapping.address, mapping.mapped, access)?);
        let own = fd.try_clone_to_owned().map_err(|error| MemoryError::File { errno: errno_of(&error) })?;
        mapping.fd = Some(own);

        Ok(Self::from_mapping(mapping))
    }

    fn map_checked(
        fd: BorrowedFd<'_>,
        stat: &FileStat,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Mapping, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }

        let page = page_size() as u64;
        if !offset.is_multiple_of(page) {
            return Err(MemoryError::UnalignedOffset { offset, page });
        }

        let end = offset.checked_add(len as u64).ok_or(MemoryError::Overflow { offset, len: len as u64 })?;
        let regular = is_regular(stat);
        let size = stat.st_size as u64;
        if regular && end > size {
            return Err(MemoryError::FileTooShort { offset, len: len as u64, size });
        }

        let page = if regular { file_page_size(fd)? } else { page_size() };

        Mapping::new(fd, offset, len, page, access)
    }

    fn from_mapping(mapping: Mapping) -> Self {
        let (address, len) = (mapping.address.as_ptr(), mapping.len);
        // SAFETY: `address` and `len` are the mapping's own.
        SharedMemory { all: unsafe { Window::from_raw(address, len, Arc::new(mapping)) } }
    }

    /// Size in bytes: what was asked for, rounded up to whole pages by the `create` functions.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.all.len() as usize
    }

    /// What may be done with it.
    pub fn access(&self) -> Access {
        self.all.mapping().access
    }

    /// The file, to be handed to a peer: of memory that was created here or mapped with
    /// [`SharedMemory::map`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.all.mapping().fd.as_ref().map(OwnedFd::as_fd)
    }

    /// Where it is mapped, for identification and registration only; dereferencing it breaks this
    /// crate's rules.
    pub fn base_address(&self) -> usize {
        self.all.base_address()
    }

    /// Whether an access met the end of the file since it was mapped (only with
    /// [`SharedMemory::map_guarded`]).
    ///
    /// From then on the memory is private to this process and shows zeros and what this process
    /// writes.
    pub fn faulted(&self) -> bool {
        self.all.faulted()
    }

    /// Whether there are other handles to it: clones, windows, words. Then the mapping stays when
    /// this one is dropped.
    pub fn has_other_handles(&self) -> bool {
        self.all.is_shared()
    }

    /// The whole of it as a window.
    pub fn whole(&self) -> Window {
        self.all.clone()
    }

    /// The sub-range `[offset, offset + len)`, checked here once.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn window(&self, offset: u64, len: u64) -> Result<Window, MemoryError> {
        self.all.window(offset, len)
    }

    /// Copies from the memory. Any alignment; not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.all.read(offset, out)
    }

    /// Copies into the memory. Any alignment; not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.all.write(offset, data)
    }

    /// The 32-bit word at `offset`, a multiple of 4, checked here once.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u32(&self, offset: u64) -> Result<SharedU32, MemoryError> {
        self.all.u32(offset)
    }

    /// The 64-bit word at `offset`, a multiple of 8, checked here once.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u64(&self, offset: u64) -> Result<SharedU64, MemoryError> {
        self.all.u64(offset)
    }

    /// Writes zeros.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        self.all.zero(offset, len)
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("base_address", &format_args!("0x{:x}", self.base_address()))
            .field("len", &format_args!("0x{:x}", self.len()))
            .field("access", &self.access())
            .field("faulted", &self.faulted())
            .finish()
    }
}

fn is_regular(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

/// The page size of ordinary memory in bytes.
fn page_size() -> usize {
    match sysconf(SysconfVar::PAGE_SIZE) {
        Ok(Some(size)) if size > 0 => size as usize,
        _ => 4096,
    }
}

/// The page size that a file is mapped with in bytes.
fn file_page_size(fd: BorrowedFd<'_>) -> Result<usize, MemoryError> {
    let system = fstatfs(fd).map_err(|errno| MemoryError::File { errno })?;
    if system.filesystem_type() == HUGETLBFS_MAGIC {
        Ok(system.block_size() as usize)
    } else {
        Ok(page_size())
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}
