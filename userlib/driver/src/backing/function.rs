//! The parts that the two kernel backings share: VFIO and the shim.
//!
//! A PCI function is a file in which its regions lie one after the other. [`Function`] reads,
//! writes and maps them, and detects that the function is gone.

use std::{
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_shm::{Access, OwnerProcess, SharedMemory, SharedU64, Uninherited, Window};
use nix::errno::Errno;

use super::{MappableArea, REGION_CONFIG, RegionInfo};
use crate::{
    Error, GoneCause,
    device::lock,
    heartbeat::{BEAT_TIMEOUT, Heartbeat},
};

/// The number of regions of a PCI function.
const REGIONS: usize = 9;
/// Minimum time between two checks of the function's identity during waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Size in bytes of the pages that mappable areas consist of.
const PAGE: u64 = 4096;

/// The way in which a function's file makes an access of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WordAccess {
    /// It makes one access of the function.
    Whole,
    /// It makes several accesses. One that must be whole goes to the mapping instead.
    Split,
}

/// The way in which a function was lost.
#[derive(Clone, Copy)]
pub(super) enum LossCause {
    /// The function no longer answers.
    Pulled = 1,
    /// The kernel has asked for the function back.
    Withdrawn = 2,
}

/// A region, as the kernel describes it.
#[derive(Default)]
pub(super) struct RegionDescription {
    /// Size in bytes; 0 when the function has no such region.
    pub(super) size: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Offset of the region in the file.
    pub(super) file_offset: u64,
    /// The mappable areas.
    pub(super) areas: Vec<MappableArea>,
}

/// A region, after the kernel has described it.
struct KernelRegion {
    info: RegionInfo,
    /// Offset of the region in the file.
    file_offset: u64,
    /// The region's mapping for accesses that the file would split, once there was one.
    memory: OnceLock<Window>,
}

/// Asks the kernel to describe a region. The answer is the default for a region that the function
/// does not have.
pub(super) type Describe = fn(BorrowedFd<'_>, u32) -> Result<RegionDescription, Errno>;

/// A PCI function behind a file of the kernel.
pub(super) struct Function {
    /// A child of `fork` does not keep it open, and thus not the function busy.
    file: Uninherited<File>,
    owner: OwnerProcess,
    describe: Describe,
    word_access: WordAccess,
    regions: [OnceLock<KernelRegion>; REGIONS],
    /// 0, or a [`LossCause`]. The function stays lost once this is set.
    loss: AtomicU8,
    /// Time of the last check of the function's identity.
    last_check: Mutex<Instant>,
    /// The heartbeat of the engine behind the function, if it has one.
    heartbeat: OnceLock<Heartbeat>,
}

/// Returns the error number of a failed access of a file.
fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

impl Function {
    /// Makes the function behind a file. `describe` asks the kernel for a description of a region.
    pub(super) fn new(file: File, describe: Describe, word_access: WordAccess) -> Result<Self, Error> {
        let (file, owner) = (Uninherited::new(file)?, OwnerProcess::current());
        let last_check = Mutex::new(Instant::now());
        let loss = AtomicU8::new(0);
        let (regions, heartbeat) = Default::default();

        Ok(Self { file, owner, describe, word_access, regions, loss, last_check, heartbeat })
    }

    /// Sets the word in which the engine behind the function counts its heartbeat.
    pub(super) fn set_heartbeat(&self, word: SharedU64) {
        let _ = self.heartbeat.set(Heartbeat::new(word));
    }

    /// Returns the function's file.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns a region. The first call asks the kernel for its description.
    fn region(&self, region: u32) -> Result<&KernelRegion, Error> {
        let none = Error::NoSuch { what: "region", index: region, count: REGIONS as u32 };
        let slot = self.regions.get(region as usize).ok_or(none)?;
        if let Some(known) = slot.get() {
            return Ok(known);
        }

        let described = self.checked("asking for a region", (self.describe)(self.fd(), region))?;

        // Only whole pages inside the region can be mapped.
        let can_be_mapped = |&MappableArea { offset, len }: &MappableArea| {
            let is_whole_pages = len != 0 && offset % PAGE == 0 && len % PAGE == 0;
            is_whole_pages && offset.checked_add(len).is_some_and(|end| end <= described.size)
        };
        let info = RegionInfo {
            size: described.size,
            readable: described.readable,
            writable: described.writable,
            mappable: described.areas.into_iter().filter(can_be_mapped).collect(),
        };

        Ok(slot.get_or_init(|| KernelRegion {
            info,
            file_offset: described.file_offset,
            memory: OnceLock::new(),
        }))
    }

    /// Returns the size and the possible accesses of a region.
    pub(super) fn info(&self, region: u32) -> Result<RegionInfo, Error> {
        Ok(self.region(region)?.info.clone())
    }

    /// Returns a mapping of the word at `offset` for an access of `len` bytes, if the file would
    /// split the access and the word can be mapped.
    fn mapped_word(&self, region: u32, offset: u64, len: usize) -> Option<Window> {
        if self.word_access == WordAccess::Whole || len != 8 || !offset.is_multiple_of(8) {
            return None;
        }

        let known = self.region(region).ok()?;
        let has_word = |area: &MappableArea| {
            offset >= area.offset && area.len >= 8 && offset - area.offset <= area.len - 8
        };

        if !known.info.mappable.iter().any(has_word) {
            return None;
        }

        if known.memory.get().is_none() {
            let memory = self.map(region, Access::ReadWrite).ok()??;
            memory.keep_from_children().ok()?;
            let _ = known.memory.set(memory.whole());
        }

        known.memory.get()?.window(offset, 8).ok()
    }

    /// Maps a region, as [`super::Backing::map`] does. The mapping has the access `wanted`, but is
    /// read-only for a region that is.
    pub(super) fn map(&self, region: u32, wanted: Access) -> Result<Option<SharedMemory>, Error> {
        let known = self.region(region)?;
        let areas: Vec<_> = known.info.mappable.iter().map(|area| (area.offset, area.len)).collect();

        let Some(end) = areas.iter().map(|(offset, len)| offset + len).max() else { return Ok(None) };
        let len = usize::try_from(end).map_err(|_| Error::AddressSpace { len: end })?;

        let access = if known.info.writable { wanted } else { Access::ReadOnly };
        Ok(Some(SharedMemory::map_device(self.fd(), known.file_offset, len, &areas, access)?))
    }

    /// Returns the offset in the file of `[offset, offset + len)` in a region.
    fn file_offset(&self, region: u32, offset: u64, len: usize) -> Result<u64, Error> {
        let known = self.region(region)?;
        let (size, len) = (known.info.size, len as u64);

        if offset > size || len > size - offset {
            return Err(Error::OutOfRange { what: "region", index: region, offset, len, size });
        }

        Ok(known.file_offset + offset)
    }

    /// Reads from a region, from its mapping if there is one for the access. A function that was
    /// pulled is recorded as lost.
    pub(super) fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = self.file_offset(region, offset, out.len())?;

        if let Some(word) = self.mapped_word(region, offset, out.len()) {
            out.copy_from_slice(&word.load_u64_acquire(0)?.to_ne_bytes());
        } else {
            let read = self.file.read_exact_at(out, at).map_err(|error| errno_of(&error));
            self.checked("a trapped read", read)?;
        }

        // A function that is no longer there reads as all ones.
        if out.len() >= 4 && out.iter().all(|&byte| byte == 0xff) && self.is_all_ones() {
            return Err(self.record_loss(LossCause::Pulled));
        }

        Ok(())
    }

    /// Writes to a region, to its mapping if there is one for the access.
    pub(super) fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        let at = self.file_offset(region, offset, data.len())?;

        if let (Some(word), Ok(value)) = (self.mapped_word(region, offset, data.len()), data.try_into()) {
            return Ok(word.store_u64_release(0, u64::from_ne_bytes(value))?);
        }

        let written = self.file.write_all_at(data, at).map_err(|error| errno_of(&error));
        self.checked("a trapped write", written)
    }

    /// Converts the result of a call. The kernel has several errors for a function that is gone.
    pub(super) fn checked<T>(&self, operation: &'static str, result: Result<T, Errno>) -> Result<T, Error> {
        result.map_err(|errno| match errno {
            Errno::ENODEV | Errno::ENXIO => self.record_loss(LossCause::Pulled),
            Errno::EIO if self.is_all_ones() => self.record_loss(LossCause::Pulled),
            errno => Error::system(operation, errno),
        })
    }

    /// Records that the function is lost, and returns the error. The first recorded cause stays.
    pub(super) fn record_loss(&self, cause: LossCause) -> Error {
        let _ = self.loss.compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Acquire);
        let is_withdrawn = self.loss.load(Ordering::Acquire) == LossCause::Withdrawn as u8;
        Error::DeviceGone { cause: if is_withdrawn { GoneCause::Withdrawn } else { GoneCause::HungUp } }
    }

    /// Returns whether the function's identity reads as all ones, which means that nothing answers.
    pub(super) fn is_all_ones(&self) -> bool {
        let Some(known) = self.regions.get(REGION_CONFIG as usize).and_then(OnceLock::get) else {
            return false;
        };

        let mut id = [0; 4];
        match self.file.read_exact_at(&mut id, known.file_offset) {
            Ok(()) => id == [0xff; 4],
            Err(_) => true,
        }
    }

    /// Checks whether the function is lost: by the recorded state, and at most once each
    /// [`CHECK_INTERVAL`] by its identity. While the heartbeat moves, the identity is not read: the
    /// heartbeat is in memory, and costs no access of the function.
    pub(super) fn check_alive(&self) -> Result<(), Error> {
        // A child's descriptors are no longer the function's.
        if !self.owner.is_current() {
            return Err(Error::ForeignProcess);
        }

        if self.loss.load(Ordering::Acquire) != 0 {
            return Err(self.record_loss(LossCause::Pulled));
        }

        {
            let mut last_check = lock(&self.last_check);
            if last_check.elapsed() < CHECK_INTERVAL {
                return Ok(());
            }
            *last_check = Instant::now();
        }

        let is_beating =
            self.heartbeat.get().is_some_and(|heartbeat| heartbeat.time_since_beat() <= BEAT_TIMEOUT);
        if !is_beating && self.is_all_ones() { Err(self.record_loss(LossCause::Pulled)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// Describes a region of two pages, which starts at the file's second page. Its second page is
    /// mappable.
    fn describe(_: BorrowedFd<'_>, region: u32) -> Result<RegionDescription, Errno> {
        match region {
            0 | REGION_CONFIG => Ok(RegionDescription {
                size: 8192,
                readable: true,
                writable: true,
                file_offset: PAGE,
                areas: [(4096, 4096), (4096, 100), (8192, 4096), (!0xfff, 8192)]
                    .map(|(offset, len)| MappableArea { offset, len })
                    .to_vec(),
            }),
            1 => Err(Errno::ENODEV),
            _ => Ok(RegionDescription::default()),
        }
    }

    fn function() -> (SharedMemory, Function) {
        let memory = SharedMemory::create("function", 3 * 4096).unwrap();
        let file: OwnedFd = memory.fd().unwrap().try_clone_to_owned().unwrap();
        (memory, Function::new(file.into(), describe, WordAccess::Split).unwrap())
    }

    #[test]
    fn invalid_areas_are_left_out() {
        let (_, function) = function();
        assert_eq!(function.info(0).unwrap().mappable, [MappableArea { offset: 4096, len: 4096 }]);
        assert_eq!(function.info(2), Ok(RegionInfo::default()));
        assert!(matches!(function.info(9), Err(Error::NoSuch { .. })));
    }

    #[test]
    fn accesses_reach_the_region_in_the_file_and_not_beyond() {
        let (memory, function) = function();
        function.write(0, 4, &[1, 2, 3, 4]).unwrap();
        function.write(0, 4096, &7u64.to_ne_bytes()).unwrap();

        let mut bytes = [0; 4];
        memory.read(PAGE + 4, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);

        let mut word = [0; 8];
        function.read(0, 4096, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 7);

        assert!(matches!(function.read(0, 8190, &mut bytes), Err(Error::OutOfRange { .. })));
        assert!(matches!(function.write(0, u64::MAX, &bytes), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn function_removed_by_the_kernel_stays_gone() {
        let (_, function) = function();
        assert!(function.check_alive().is_ok());
        let device_gone = Error::DeviceGone { cause: GoneCause::HungUp };
        assert_eq!(function.info(1), Err(device_gone.clone()));
        assert_eq!(function.check_alive(), Err(device_gone));
    }

    #[test]
    fn identity_is_read_only_when_the_engine_does_not_beat() {
        let (memory, function) = function();
        function.info(REGION_CONFIG).unwrap();

        function.set_heartbeat(memory.whole().u64(2 * PAGE).unwrap());
        memory.write(PAGE, &[0xff; 4]).unwrap();

        let (start, mut beats) = (Instant::now(), 0u64);
        while start.elapsed() < CHECK_INTERVAL * 3 {
            beats += 1;
            memory.write(2 * PAGE, &beats.to_ne_bytes()).unwrap();
            assert_eq!(function.check_alive(), Ok(()));
        }

        while function.check_alive().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "the loss was not noticed");
            std::thread::yield_now();
        }

        assert_eq!(function.check_alive(), Err(Error::DeviceGone { cause: GoneCause::HungUp }));
    }

    #[test]
    fn all_ones_in_a_register_and_the_identity_mean_that_the_function_is_gone() {
        let (memory, function) = function();
        function.info(REGION_CONFIG).unwrap();

        memory.write(PAGE + 64, &[0xff; 4]).unwrap();
        let mut bytes = [0; 4];
        function.read(0, 64, &mut bytes).unwrap();

        memory.write(PAGE, &[0xff; 4]).unwrap();
        assert_eq!(function.read(0, 64, &mut bytes), Err(Error::DeviceGone { cause: GoneCause::HungUp }));
    }
}
