//! The guest's RAM: one memfd, which KVM maps and which functions get for DMA.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, OnceLock},
};

use nicforge_shm::{Access as SharedAccess, SharedMemory, Window};
use nix::{
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::{
    error::VmError,
    hypervisor::MemoryAccess,
    layout::{HIGH_RAM, HOLE},
    slots::Slots,
};

/// Size of a page, and the unit of RAM sizes.
pub(crate) const PAGE: u64 = 4096;
/// Least RAM: Linux and its boot structures do not fit into less.
const LEAST: u64 = 1 << 20;
/// Most RAM. All of it is below the window of 64-bit BARs.
const MOST: u64 = 60 << 30;

/// A range of guest addresses with RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// First guest address.
    pub address: u64,
    /// Size in bytes, a multiple of 4096.
    pub size: u64,
    /// Where the range begins in the file, in bytes.
    pub file_offset: u64,
}

/// The guest's RAM. Clones share it.
#[derive(Clone, Debug)]
pub struct Ram {
    file: Arc<File>,
    memory: GuestMemoryMmap,
    ranges: Vec<RamRange>,
    /// The ranges as devices of this process reach them, if there are any.
    windows: Arc<OnceLock<Vec<Window>>>,
}

impl Ram {
    /// Makes RAM of `size` bytes, a multiple of 4096 from 1 MiB to 60 GiB. All its bytes are 0.
    ///
    /// # Errors
    /// [`VmError::Request`] for an impossible size, [`VmError::Memory`].
    pub fn new(size: u64) -> Result<Self, VmError> {
        if !size.is_multiple_of(PAGE) || !(LEAST..=MOST).contains(&size) {
            let text = format!("{size} bytes of RAM are no multiple of {PAGE} from {LEAST} to {MOST}");
            return Err(VmError::Request(text));
        }

        let failed = |error: &dyn std::fmt::Display| VmError::Memory(error.to_string());
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"nicforge-ram", flags).map_err(|error| failed(&error))?;
        let file = Arc::new(File::from(file));
        file.set_len(size).map_err(|error| failed(&error))?;
        // Servers of functions get the file too. The seals keep them from shrinking it, which would
        // make accesses of this process fail with SIGBUS.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&*file, FcntlArg::F_ADD_SEALS(seals)).map_err(|error| failed(&error))?;

        let ranges = ranges(size);
        let mappings = ranges.iter().map(|range| {
            let offset = FileOffset::from_arc(file.clone(), range.file_offset);
            (GuestAddress(range.address), range.size as usize, Some(offset))
        });
        let memory = GuestMemoryMmap::from_ranges_with_files(mappings).map_err(|error| failed(&error))?;
        Ok(Self { file, memory, ranges, windows: Arc::default() })
    }

    /// Returns the ranges of guest addresses, in their order.
    pub fn ranges(&self) -> &[RamRange] {
        &self.ranges
    }

    /// Returns the file of all ranges.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the RAM as this process sees it.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Returns the ranges as devices of this process reach them, in the order of the ranges. The
    /// first call maps them.
    pub(crate) fn windows(&self) -> Result<&[Window], VmError> {
        if let Some(windows) = self.windows.get() {
            return Ok(windows);
        }

        let windows = self.ranges.iter().map(|range| {
            let size = range.size as usize;
            let memory = SharedMemory::map(self.file(), range.file_offset, size, SharedAccess::ReadWrite);
            memory.map(|memory| memory.whole()).map_err(|error| VmError::Memory(error.to_string()))
        });
        let windows = windows.collect::<Result<_, _>>()?;
        Ok(self.windows.get_or_init(|| windows))
    }

    /// Sets all bytes to 0, and gives the pages back to the system.
    ///
    /// # Errors
    /// [`VmError::Memory`]
    pub(crate) fn clear(&self) -> Result<(), VmError> {
        let size = self.ranges.iter().map(|range| range.size).sum::<u64>();
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let cleared = fallocate(&*self.file, mode, 0, size as i64);
        cleared.map_err(|error| VmError::Memory(error.to_string()))
    }

    /// Returns where `len` bytes at an address of this process are in the RAM's file, or `None` if
    /// they are not in one range of the RAM.
    pub(crate) fn file_offset(&self, address: usize, len: usize) -> Option<u64> {
        self.memory.iter().zip(&self.ranges).find_map(|(region, range)| {
            let offset = address.checked_sub(region.as_ptr().addr())?;
            let end = offset.checked_add(len)? as u64;
            (end <= range.size).then(|| range.file_offset + offset as u64)
        })
    }

    /// Copies the next `len` bytes of a file to an offset in the RAM's file. Returns how many there
    /// were.
    pub(crate) fn fill_from(&self, source: &File, offset: u64, len: usize) -> io::Result<usize> {
        let mut to = &*self.file;
        to.seek(SeekFrom::Start(offset))?;
        io::copy(&mut source.take(len as u64), &mut to).map(|copied| copied as usize)
    }

    /// Makes the RAM appear in the guest.
    pub(crate) fn map(&self, slots: &Slots) -> Result<(), VmError> {
        for region in self.memory.iter() {
            slots.map(region.start_addr().0, region.get_mmap(), MemoryAccess::ReadWrite)?;
        }
        Ok(())
    }
}

/// Returns the ranges of RAM of a size: below the hole, and from 4 GiB on what does not fit there.
fn ranges(size: u64) -> Vec<RamRange> {
    let low = RamRange { address: 0, size: size.min(HOLE), file_offset: 0 };
    let high = RamRange { address: HIGH_RAM, size: size - low.size, file_offset: low.size };
    [low, high].into_iter().filter(|range| range.size > 0).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn ram_leaves_the_hole_free() {
        assert_eq!(ranges(1 << 30), [RamRange { address: 0, size: 1 << 30, file_offset: 0 }]);
        assert_eq!(
            ranges(4 << 30),
            [
                RamRange { address: 0, size: HOLE, file_offset: 0 },
                RamRange { address: HIGH_RAM, size: 1 << 30, file_offset: HOLE },
            ]
        );
    }

    #[test]
    fn a_file_fills_the_ram_at_an_address() {
        let ram = Ram::new(LEAST).unwrap();
        let base = ram.memory.iter().next().unwrap().as_ptr().addr();
        let mut source = tempfile::tempfile().unwrap();
        let text: Vec<u8> = (0..3 * PAGE).map(|byte| (byte % 251) as u8).collect();
        source.write_all(&text).unwrap();
        source.seek(SeekFrom::Start(5)).unwrap();

        let offset = ram.file_offset(base + 4099, 5000).unwrap();
        assert_eq!(ram.fill_from(&source, offset, 5000).unwrap(), 5000);
        let mut bytes = vec![0; 5002];
        ram.memory.read_slice(&mut bytes, GuestAddress(4098)).unwrap();
        assert_eq!((bytes[0], &bytes[1..5001], bytes[5001]), (0, &text[5..5005], 0));

        // The next bytes follow, up to the file's end.
        assert_eq!(ram.fill_from(&source, 0, 1 << 20).unwrap(), text.len() - 5005);
    }

    #[test]
    fn only_bytes_in_one_range_have_an_offset() {
        let ram = Ram::new(LEAST).unwrap();
        let (base, size) = (ram.memory.iter().next().unwrap().as_ptr().addr(), LEAST as usize);

        assert_eq!(ram.file_offset(base, size), Some(0));
        assert_eq!(ram.file_offset(base + size, 0), Some(LEAST));
        for (address, len) in [(base - 1, 1), (base, size + 1), (base + size, 1), (base + 1, usize::MAX)] {
            assert_eq!(ram.file_offset(address, len), None);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for size in [0, 4095, LEAST + 1, MOST + PAGE] {
            assert!(matches!(Ram::new(size), Err(VmError::Request(_))), "{size}");
        }
    }
}
