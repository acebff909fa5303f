//! The memory that one client has mapped for DMA.
//!
//! Several ranges may come from one file. The file is mapped once, as a whole, and unmapped with
//! the last range, which is also the end of all leases of it. A device or a packet may still hold
//! such a lease, for as long as a receiver likes. So the file is unmapped beneath it, and zero
//! pages take its place, which count for no client: see [`crate::closer::CloseQueue::drop_memory`].
//!
//! The quota of bytes counts whole files: while a client punches a hole into a file, an access to
//! any page of the hole waits in the kernel. A file that has grown counts with its new size when
//! the client maps a range of it again. A client of another user might never do that, so a file of
//! such a client that can grow counts as at least [`MIN_GROWABLE_CHARGE`] bytes. Memory beyond the
//! quota is accessed by DMA messages.
//!
//! The client's file is checked here, by calls that no file can block. Seals are queried first, and
//! only files of tmpfs and hugetlbfs have any. Any other file could stop the engine in a page
//! fault, for instance one of FUSE, and so could a file of huge pages of 1 GiB. Such files are
//! never mapped, and their ranges are accessed by DMA messages.

use std::{collections::BTreeMap, os::fd::AsFd};

use nicforge_shm::{Access, SharedMemory, Window};
use nicforge_vfio_user::{DMA_FLAG_WRITE, DmaMap, DmaUnmap, Errno, PeerFd};
use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl},
    libc,
    sys::{stat::fstat, statfs::fstatfs},
};
use thiserror::Error;

use crate::config::Quotas;

/// Largest pages of a file that is mapped, in bytes. Clearing a page of 2 MiB takes a tenth of a
/// millisecond, one of 1 GiB a tenth of a second.
const MAX_PAGE: i64 = 2 << 20;

/// Offsets of ranges in their files must be multiples of this.
const PAGE_SIZE: u64 = 4096;

/// Least number of bytes by which a file of another user's client counts against the quota if no
/// seal keeps it from growing.
const MIN_GROWABLE_CHARGE: u64 = 1 << 30;

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileKey {
    device: u64,
    inode: u64,
}

/// The number of a mapping among those of one client. Numbers ascend and are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(u64);

/// A mapping of a client's whole file.
struct ClientFile {
    id: FileId,
    key: FileKey,
    memory: SharedMemory,
    /// Bytes that count against the quota.
    charge: u64,
    /// Number of DMA ranges that use the mapping.
    ranges: usize,
}

/// A range of DMA addresses; its start is the key.
struct Range {
    length: u64,
    /// `None` for memory that is accessed by DMA messages.
    file: Option<FileId>,
}

/// A client's file, and how to map it.
#[derive(Debug)]
pub(crate) struct FileToMap {
    pub(crate) fd: PeerFd,
    pub(crate) length: usize,
    pub(crate) access: Access,
}

/// The file of a mapping in progress, and the bytes by which it counts against the quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappingSource {
    key: FileKey,
    charge: u64,
}

/// Why a file is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unmappable {
    #[error("it is on neither tmpfs nor hugetlbfs")]
    FileSystem,
    #[error("its pages have more than 2 MiB")]
    PageSize,
    #[error(
        "it counts as {charge} bytes, and of the {limit} bytes of the limit (`--mapped-limit`) {counted} are used"
    )]
    Limit { charge: u64, counted: u64, limit: u64 },
    #[error(
        "it counts as {charge} bytes{}, and {counted} of {limit} bytes are used; the limit is for clients of other \
         users than the server's, and `--mapped-limit` raises it",
        if *.can_grow { ", because no seal (F_SEAL_GROW) keeps it from growing" } else { "" }
    )]
    ForeignLimit { charge: u64, counted: u64, limit: u64, can_grow: bool },
}

/// How the device reaches the bytes of a range.
#[derive(Debug)]
pub(crate) enum Backing {
    /// By DMA messages, because the range has no file.
    Remote,
    /// By DMA messages, because its file is not mapped.
    Unmappable {
        reason: Unmappable,
        /// Whether it is the first such range of this client.
        is_first: bool,
    },
    /// By a window of a file that is mapped already.
    Ready(FileId, Window),
    /// By a window of a file that must be mapped first.
    NotMapped(FileToMap, MappingSource),
}

/// The ranges that a client has mapped for DMA, and the files behind them.
pub(crate) struct ClientMemory {
    quotas: Quotas,
    /// Whether the client belongs to another user than the server's own and root.
    is_foreign: bool,
    /// The mappings, in the order of their numbers.
    files: Vec<ClientFile>,
    /// The ranges by their first address.
    ranges: BTreeMap<u64, Range>,
    next_file: FileId,
    /// Whether a range had a file that cannot be mapped.
    had_unmappable: bool,
}

impl ClientMemory {
    /// Returns the memory of a new client. `is_foreign` tells whether it belongs to another user.
    pub(crate) fn new(quotas: Quotas, is_foreign: bool) -> Self {
        Self {
            quotas,
            is_foreign,
            files: Vec::new(),
            ranges: BTreeMap::new(),
            next_file: FileId(0),
            had_unmappable: false,
        }
    }

    /// Checks a range that the client wants to map and its file, and returns how the device will
    /// reach the range. It changes no range; [`Self::insert`] adds the range later.
    pub(crate) fn prepare(&mut self, map: &DmaMap, fd: Option<PeerFd>) -> Result<Backing, Errno> {
        if self.ranges.len() >= self.quotas.ranges {
            return Err(Errno::ENOSPC);
        }

        // Ranges must not overlap.
        let last = map.address.checked_add(map.size.wrapping_sub(1)).ok_or(Errno::EINVAL)?;
        if self
            .ranges
            .range(..=last)
            .next_back()
            .is_some_and(|(address, range)| address + (range.length - 1) >= map.address)
        {
            return Err(Errno::EEXIST);
        }

        let Some(fd) = fd else { return Ok(Backing::Remote) };
        let Ok(seals) = fcntl(&fd, FcntlArg::F_GET_SEALS) else {
            return Ok(self.unmappable(Unmappable::FileSystem));
        };

        // The engine's thread would clear a whole page when it touches a hole in the file.
        if fstatfs(fd.as_fd())?.block_size() > MAX_PAGE {
            return Ok(self.unmappable(Unmappable::PageSize));
        }

        // The client may map only what its descriptor lets it access.
        let needs_write = map.flags & DMA_FLAG_WRITE != 0;
        let mode = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        if mode == OFlag::O_WRONLY || (needs_write && mode != OFlag::O_RDWR) {
            return Err(Errno::EACCES);
        }

        let stat = fstat(fd.as_fd())?;
        let size = u64::try_from(stat.st_size).map_err(|_| Errno::EINVAL)?;
        let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let end = map.offset.checked_add(map.size).ok_or(Errno::EINVAL)?;

        if !is_regular || end > size || !map.offset.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }

        let can_grow = !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_GROW);
        let charge = if can_grow && self.is_foreign { size.max(MIN_GROWABLE_CHARGE) } else { size };

        // An earlier range may have mapped the file.
        let key = FileKey { device: stat.st_dev, inode: stat.st_ino };
        self.charge_growth(key, charge);
        let found = self.find_mapping(key, map.offset, map.size, needs_write);

        let is_new = found.is_none();
        if is_new && self.files.len() >= self.quotas.files {
            return Err(Errno::ENOSPC);
        }

        let (counted, limit) = (self.counted_bytes(), self.mapped_limit());
        let is_within = if is_new { charge <= limit.saturating_sub(counted) } else { counted <= limit };
        if !is_within {
            return Ok(self.unmappable(match self.is_foreign {
                true => Unmappable::ForeignLimit { charge, counted, limit, can_grow },
                false => Unmappable::Limit { charge, counted, limit },
            }));
        }

        if let Some((id, window)) = found {
            return Ok(Backing::Ready(id, window));
        }

        let length = usize::try_from(size).map_err(|_| Errno::ENOSPC)?;
        let access = if needs_write { Access::ReadWrite } else { Access::ReadOnly };
        let file = FileToMap { fd, length, access };
        Ok(Backing::NotMapped(file, MappingSource { key, charge }))
    }

    /// Returns the backing of a range whose file cannot be mapped, and records that there was one.
    fn unmappable(&mut self, reason: Unmappable) -> Backing {
        Backing::Unmappable { reason, is_first: !std::mem::replace(&mut self.had_unmappable, true) }
    }

    /// Returns the quota of mapped bytes that applies to the client.
    fn mapped_limit(&self) -> u64 {
        if self.is_foreign { self.quotas.foreign_mapped_bytes } else { self.quotas.mapped_bytes }
    }

    /// Returns the bytes that count against the quota.
    fn counted_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.charge))
    }

    /// Raises the charge of a mapped file that has grown since. A charge that is beyond the limit
    /// is not raised further, so that sums of charges stay small.
    fn charge_growth(&mut self, key: FileKey, charge: u64) {
        let charge = charge.min(self.mapped_limit().saturating_add(1));
        for file in self.files.iter_mut().filter(|file| file.key == key) {
            file.charge = file.charge.max(charge);
        }
    }

    /// Returns a mapping of the file that contains these bytes, and their window in it. With
    /// `needs_write` the mapping must be writable.
    fn find_mapping(
        &self,
        key: FileKey,
        offset: u64,
        length: u64,
        needs_write: bool,
    ) -> Option<(FileId, Window)> {
        self.files.iter().filter(|file| file.key == key).find_map(|file| {
            let window = file.memory.window(offset, length).ok()?;
            (!needs_write || window.is_writable()).then_some((file.id, window))
        })
    }

    /// Takes over a mapping that [`Self::prepare`] asked for. Returns its number and the window of
    /// the range `map` in it.
    pub(crate) fn adopt(
        &mut self,
        source: MappingSource,
        memory: SharedMemory,
        map: &DmaMap,
    ) -> Result<(FileId, Window), Errno> {
        let window = memory.window(map.offset, map.size).map_err(|_| Errno::EINVAL)?;

        let id = self.next_file;
        self.next_file = FileId(id.0 + 1);
        self.files.push(ClientFile { id, key: source.key, memory, charge: source.charge, ranges: 0 });
        Ok((id, window))
    }

    /// Adds a range that the device can use from now on, with the mapping behind it.
    pub(crate) fn insert(&mut self, map: &DmaMap, file: Option<FileId>) {
        if let Some(file) = file.and_then(|id| self.files.iter_mut().find(|file| file.id == id)) {
            file.ranges += 1;
        }

        self.ranges.insert(map.address, Range { length: map.size, file });
    }

    /// Removes the ranges that an unmap covers. The caller must call [`ClientMemory::sweep`]
    /// afterwards, which returns the mappings that no range uses any more.
    pub(crate) fn remove(&mut self, unmap: &DmaUnmap) {
        match *unmap {
            DmaUnmap::All => {
                self.ranges.clear();
                self.files.iter_mut().for_each(|file| file.ranges = 0);
            }
            DmaUnmap::Range { address, size } => {
                let last = address.saturating_add(size.saturating_sub(1));
                while let Some((&start, range)) = self.ranges.range(address..=last).next() {
                    // The files are sorted by number. A binary search matters, because one unmap
                    // may cover thousands of ranges.
                    let file = range.file.map(|id| self.files.binary_search_by_key(&id, |file| file.id));
                    if let Some(Ok(position)) = file {
                        self.files[position].ranges -= 1;
                    }
                    self.ranges.remove(&start);
                }
            }
        }
    }

    /// Removes and returns the mappings that no range uses. A device may still hold some of them,
    /// with leases that have ended.
    pub(crate) fn sweep(&mut self) -> Vec<SharedMemory> {
        self.files.extract_if(.., |file| file.ranges == 0).map(|file| file.memory).collect()
    }

    /// Removes and returns all mappings, at the end of the client.
    pub(crate) fn take_all(&mut self) -> Vec<SharedMemory> {
        self.ranges.clear();
        self.files.drain(..).map(|file| file.memory).collect()
    }

    /// Returns whether the client truncated a file that is mapped here.
    pub(crate) fn is_faulted(&self) -> bool {
        self.files.iter().any(|file| file.memory.faulted())
    }

    /// Returns the number of bytes of the mapped files.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.memory.len() as u64).sum()
    }

    /// Returns the number of ranges.
    pub(crate) fn count_ranges(&self) -> usize {
        self.ranges.len()
    }
}

/// Reports new faults in guarded mappings of this process, which a client causes by truncating its
/// file.
pub(crate) struct FaultMonitor {
    seen: u64,
}

impl FaultMonitor {
    pub(crate) fn new() -> Self {
        Self { seen: nicforge_shm::guard_faults() }
    }

    /// Returns whether a mapping has faulted since the last call.
    pub(crate) fn take_new_fault(&mut self) -> bool {
        let faults = nicforge_shm::guard_faults();
        std::mem::replace(&mut self.seen, faults) != faults
    }
}

#[cfg(test)]
mod tests;
