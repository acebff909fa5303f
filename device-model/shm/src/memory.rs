//! Creation and mapping of memory files.
//!
//! UNSAFETY: calls `mmap` and `munmap`. A [`Mapping`] owns its range of addresses between the two
//! calls. Every holder of an address in the range also holds the `Mapping`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::MemoryError;
use crate::sigbus;
use crate::table::{Entry, Kind, Registration};
use crate::window::Window;
use crate::word::{SharedU32, SharedU64};

/// Permitted access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The memory can be read.
    ReadOnly,
    /// The memory can be read and written.
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

/// A range of addresses to which a file is mapped. Dropping it unmaps the file.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    /// Length of the accessible part in bytes.
    len: usize,
    /// Length for `munmap` in bytes: `len` rounded up to the file's pages.
    mapped: usize,
    access: Access,
    /// The file's descriptor, for mappings that keep it.
    fd: Option<OwnedFd>,
    guard: Option<Registration>,
    /// Keeps the mapping and its descriptor from children of `fork`.
    uninherited: OnceLock<[Option<Registration>; 2]>,
    /// Private zero pages have taken the place of the file: see [`SharedMemory::replace_by_zeros`].
    is_replaced: AtomicBool,
}

// SAFETY: only the volatile and atomic accesses of this crate dereference the address, and they
// take no references to the memory. The other fields are `Send` and `Sync`.
unsafe impl Send for Mapping {}
// SAFETY: as above; any process may access the memory at any time anyway.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `[offset, offset + len)` of a file whose pages have `page` bytes.
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
            len.checked_next_multiple_of(page).filter(|&n| n <= isize::MAX as usize).ok_or(overflow)?;
        let length = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;

        // SAFETY: the call names no address, so that the kernel chooses an unused range.
        let address =
            unsafe { mmap(None, length, access.protection(), MapFlags::MAP_SHARED, fd, file_offset) }
                .map_err(|errno| MemoryError::Map { offset, len: len as u64, errno })?;

        Ok(Mapping {
            address: address.cast(),
            len,
            mapped,
            access,
            fd: None,
            guard: None,
            uninherited: OnceLock::new(),
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Reserves a range of addresses with private zero pages.
    fn reserve(len: usize, page: usize, access: Access) -> Result<Self, MemoryError> {
        let overflow = MemoryError::Overflow { offset: 0, len: len as u64 };
        let mapped =
            len.checked_next_multiple_of(page).filter(|&n| n <= isize::MAX as usize).ok_or(overflow)?;
        let length = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;

        // SAFETY: the call names no address, so that the kernel chooses an unused range.
        let address = unsafe { mmap_anonymous(None, length, access.protection(), flags) }
            .map_err(|errno| MemoryError::Map { offset: 0, len: len as u64, errno })?;

        Ok(Mapping {
            address: address.cast(),
            len,
            mapped,
            access,
            fd: None,
            guard: None,
            uninherited: OnceLock::new(),
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Maps the file to `[offset, offset + len)` of the range. `file_offset` is the offset in the
    /// file of the start of the range.
    fn map_file_at(
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
        let mapped_offset =
            file_offset.checked_add(offset).and_then(|at| i64::try_from(at).ok()).ok_or(overflow)?;
        let length = NonZeroUsize::new(len as usize).ok_or(MemoryError::Empty)?;
        let address = NonZeroUsize::new(self.address.as_ptr() as usize + offset as usize).ok_or(overflow)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;

        // SAFETY: replaces a part of the range that this value owns. No other value has an address
        // in it yet.
        unsafe { mmap(Some(address), length, self.access.protection(), flags, fd, mapped_offset) }
            .map(drop)
            .map_err(|errno| MemoryError::Map { offset: mapped_offset as u64, len, errno })
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn faulted(&self) -> bool {
        self.guard.as_ref().is_some_and(Registration::faulted)
    }

    /// Returns the mapping's entry in the table of ranges.
    fn entry(&self, kind: Kind) -> Entry {
        Entry::of_range(kind, self.address, self.mapped, self.access)
    }

    /// Guards the range against a file that ends.
    fn guarded(&self) -> Result<Registration, MemoryError> {
        Ok(Registration::new(self.entry(Kind::Guarded))?)
    }

    /// Keeps the range and the descriptor from children of `fork`.
    fn keep_from_children(&self) -> Result<(), MemoryError> {
        if self.uninherited.get().is_some() {
            return Ok(());
        }

        let range = Registration::new(self.entry(Kind::UninheritedRange))?;
        let file = self.fd.as_ref().map(|fd| Registration::new(Entry::of_file(fd.as_fd()))).transpose()?;
        // SAFETY: the range belongs to this value, and the call changes nothing of it in this
        // process. An error is no harm: the child replaces a range that it has inherited, too.
        let _ = unsafe { madvise(self.address.cast(), self.mapped, MmapAdvise::MADV_DONTFORK) };
        // Another thread may have been first. Its entries are the same.
        let _ = self.uninherited.set([Some(range), file]);
        Ok(())
    }
}

/// Bytes to unmap in one call. The kernel locks the process's address space during the call, and
/// other threads that map memory wait. For a gibibyte that is hundreds of milliseconds.
const UNMAP_PIECE: usize = 32 << 20;

impl Mapping {
    /// Removes the pages from the address space piece by piece, so that [`munmap`] has no work
    /// left.
    fn remove_pages(&self) {
        let pieces = (0..self.mapped).step_by(UNMAP_PIECE);
        for start in pieces.filter(|_| self.mapped > UNMAP_PIECE) {
            let len = UNMAP_PIECE.min(self.mapped - start);
            // SAFETY: `start` is within the range that this value owns.
            let piece = unsafe { self.address.byte_add(start) };
            // SAFETY: the piece is within that range. The pages of a shared mapping stay in their
            // file, where a later access of another holder finds them.
            let emptied = unsafe { madvise(piece.cast(), len, MmapAdvise::MADV_DONTNEED) };
            if emptied.is_err() {
                // The kernel can't empty some kinds of memory. They are unmapped in one piece.
                return;
            }
        }
    }
}

impl Mapping {
    /// Replaces the file by private zero pages, at the same addresses.
    fn replace_by_zeros(&self) -> Result<(), MemoryError> {
        let len = self.mapped as u64;
        let overflow = MemoryError::Overflow { offset: 0, len };
        let address = NonZeroUsize::new(self.address.as_ptr() as usize).ok_or(overflow)?;
        let length = NonZeroUsize::new(self.mapped).ok_or(MemoryError::Empty)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;

        self.remove_pages();
        // SAFETY: replaces exactly the range that this value owns, by memory of the same
        // protection. Other holders of its addresses make volatile and atomic accesses only, to
        // whatever pages are there.
        unsafe { mmap_anonymous(Some(address), length, self.access.protection(), flags) }
            .map_err(|errno| MemoryError::Map { offset: 0, len, errno })?;

        if let Some(guard) = &self.guard {
            guard.mark_replaced();
        }
        self.is_replaced.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The range must leave the table before the kernel can give its addresses to another
        // mapping. So must the descriptor before it is closed.
        self.guard = None;
        self.uninherited.take();
        if !self.is_replaced.load(Ordering::Relaxed) {
            self.remove_pages();
        }
        // SAFETY: `mmap` returned this range to this value alone, and every holder of an address in
        // it held this value.
        let unmapped = unsafe { munmap(self.address.cast(), self.mapped) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A file mapped into this process.
///
/// Clones are cheap and refer to the same mapping. It is unmapped when the last clone and the last
/// [`Window`] or word of it are dropped.
#[derive(Clone)]
pub struct SharedMemory {
    all: Window,
}

impl SharedMemory {
    /// Creates a memory file of `len` bytes, rounded up to the page size, zeroed, and mapped for
    /// reading and writing.
    ///
    /// The file's size is sealed with `F_SEAL_SHRINK` and `F_SEAL_GROW`, and the set of seals with
    /// `F_SEAL_SEAL`. A receiver of the descriptor can map and write the file, but not truncate it.
    /// `name` shows in `/proc/self/maps`.
    ///
    /// # Errors
    /// [`MemoryError::Empty`] for a length of 0, and errors from the kernel.
    pub fn create(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::empty(), SealFlag::empty())
    }

    /// Creates a file as [`SharedMemory::create`] does, of which later mappings are read-only
    /// (`F_SEAL_FUTURE_WRITE`). Only the returned mapping can write, as long as it lives.
    ///
    /// # Errors
    /// Those of [`SharedMemory::create`].
    pub fn create_write_protected(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::empty(), SealFlag::F_SEAL_FUTURE_WRITE)
    }

    /// Creates a file as [`SharedMemory::create`] does, of huge pages of the default size.
    ///
    /// # Errors
    /// [`MemoryError::UnalignedLength`] if `len` is not a multiple of that size.
    /// [`MemoryError::Map`] if there are not enough huge pages, [`MemoryError::Create`] if the
    /// kernel has none; the caller can then use `create`.
    pub fn create_huge(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::create_sealed(name, len, MFdFlags::MFD_HUGETLB, SealFlag::empty())
    }

    /// Creates and maps a memory file of `len` bytes in whole pages, and seals its size.
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

        // `F_SEAL_FUTURE_WRITE` would refuse this mapping too, so the seals come after it.
        let seals = seals | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| MemoryError::Seal { errno })?;
        mapping.fd = Some(fd);

        Ok(Self::from_mapping(mapping))
    }

    /// Maps `[offset, offset + len)` of a file of another party. Its owner must keep its size as
    /// long as it is mapped.
    ///
    /// The mapping keeps a duplicate of the descriptor ([`SharedMemory::fd`]). The size is checked
    /// for regular files; the driver of a device file checks it itself. For files of an untrusted
    /// peer there is [`SharedMemory::map_guarded`].
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::UnalignedOffset`] if `offset` is not a multiple of
    /// the page size, [`MemoryError::Overflow`], [`MemoryError::FileTooShort`], and errors from the
    /// kernel.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, access: Access) -> Result<Self, MemoryError> {
        let stat = fstat(fd).map_err(|errno| MemoryError::File { errno })?;
        let mut mapping = Self::map_checked(fd, &stat, offset, len, access)?;
        let file = fd.try_clone_to_owned().map_err(|error| MemoryError::File { errno: errno_of(&error) })?;
        mapping.fd = Some(file);
        Ok(Self::from_mapping(mapping))
    }

    /// Maps `[offset, offset + len)` of a file whose owner is not trusted.
    ///
    /// If the owner truncates the file, an access finds zeros instead of killing this process.
    /// [`SharedMemory::faulted`] returns true from then on. The first call installs the handler of
    /// [`crate::install_sigbus_guard`]. The mapping keeps no descriptor.
    ///
    /// # Errors
    /// Those of [`SharedMemory::map`]. [`MemoryError::ForeignFile`] for files that are not on tmpfs
    /// or hugetlbfs, because another file system could delay a page fault without end.
    /// [`MemoryError::Guard`] if the table of ranges is full.
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
        mapping.guard = Some(mapping.guarded()?);

        Ok(Self::from_mapping(mapping))
    }

    /// Maps `areas`, each {offset, length}, of the `len` bytes at `file_offset` of a device file,
    /// such as VFIO's. The space between the areas is private memory of this process.
    ///
    /// If the device goes away, its driver raises SIGBUS. An access then finds zeros, and
    /// [`SharedMemory::faulted`] returns true from then on, as with [`SharedMemory::map_guarded`].
    /// The mapping keeps a duplicate of the descriptor.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::UnalignedOffset`] if an area does not start and end
    /// at a page, [`MemoryError::OutOfBounds`] if it leaves the `len` bytes,
    /// [`MemoryError::Guard`], and errors from the kernel.
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
            mapping.map_file_at(fd, file_offset, offset, bytes)?;
        }

        mapping.guard = Some(mapping.guarded()?);
        let file = fd.try_clone_to_owned().map_err(|error| MemoryError::File { errno: errno_of(&error) })?;
        mapping.fd = Some(file);

        Ok(Self::from_mapping(mapping))
    }

    /// Maps a file after checks of the range against the file's size and pages.
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

    /// Returns the size in bytes, which the `create` functions round up to whole pages.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.all.len() as usize
    }

    /// Returns the permitted access.
    pub fn access(&self) -> Access {
        self.all.mapping().access
    }

    /// Returns the file's descriptor, for sending to a peer. Guarded mappings keep none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.all.mapping().fd.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns the address of the mapping, for identification and registration only. Dereferencing
    /// it breaks this crate's rules.
    pub fn base_address(&self) -> usize {
        self.all.base_address()
    }

    /// Returns whether an access has met the end of the file since it was mapped. Only guarded
    /// mappings detect this.
    ///
    /// Afterwards the memory is private to this process: zeros, and its own later writes.
    pub fn faulted(&self) -> bool {
        self.all.faulted()
    }

    /// Keeps the mapping and its descriptor from children of `fork`. Their copies of the handles
    /// then refer to private zero pages, and to a socket whose peer is closed.
    ///
    /// # Errors
    /// [`MemoryError::Guard`] if the table of ranges is full.
    pub fn keep_from_children(&self) -> Result<(), MemoryError> {
        self.all.mapping().keep_from_children()
    }

    /// Returns whether other handles to the mapping exist: clones, windows, words. They keep the
    /// mapping when this handle is dropped.
    pub fn has_other_handles(&self) -> bool {
        self.all.is_shared()
    }

    /// Unmaps the file although other handles exist: private zero pages take its place, at the same
    /// addresses. Accesses by those handles do not reach the file any more; they find zeros and
    /// their own writes. A guarded mapping counts as [`SharedMemory::faulted`] from then on.
    ///
    /// The call can take as long as unmapping takes: the kernel may have to free all pages of the
    /// file. The drop of the last handle then takes little time.
    ///
    /// # Errors
    /// [`MemoryError::Map`] if the kernel refuses. The file then stays mapped.
    pub fn replace_by_zeros(&self) -> Result<(), MemoryError> {
        self.all.mapping().replace_by_zeros()
    }

    /// Returns a window of the whole memory.
    pub fn whole(&self) -> Window {
        self.all.clone()
    }

    /// Returns the sub-range `[offset, offset + len)`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn window(&self, offset: u64, len: u64) -> Result<Window, MemoryError> {
        self.all.window(offset, len)
    }

    /// Copies from the memory, at any alignment. The copy is not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.all.read(offset, out)
    }

    /// Copies into the memory, at any alignment. The copy is not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.all.write(offset, data)
    }

    /// Returns the 32-bit word at `offset`, a multiple of 4.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u32(&self, offset: u64) -> Result<SharedU32, MemoryError> {
        self.all.u32(offset)
    }

    /// Returns the 64-bit word at `offset`, a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u64(&self, offset: u64) -> Result<SharedU64, MemoryError> {
        self.all.u64(offset)
    }

    /// Writes zeros to `len` bytes at `offset`.
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

/// Returns the page size of ordinary memory in bytes.
fn page_size() -> usize {
    match sysconf(SysconfVar::PAGE_SIZE) {
        Ok(Some(size)) if size > 0 => size as usize,
        _ => 4096,
    }
}

/// Returns the page size in bytes with which a file is mapped.
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
