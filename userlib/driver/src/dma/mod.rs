//! Memory that the device reaches by DMA.
//!
//! A [`DmaBuffer`] is allocated here, or made of memory that the caller has. It has an address for
//! the device (IOVA), and the device can reach it until it is dropped.

mod iova;

use std::{fmt, sync::Arc};

use nicforge_shm::{MemoryError, SharedMemory, SharedU32, SharedU64, Window};

pub(crate) use iova::IovaAllocator;

use crate::{
    DmaAllocation, DmaMemory, DmaPermission, Error,
    device::{Shared, lock},
};

/// Size in bytes of the pages that mappings consist of.
const PAGE: u64 = 4096;
/// Size in bytes of a huge page. Buffers of at least this size are aligned to it for the device, so
/// that huge pages are mapped whole.
const HUGE_PAGE: u64 = 2 << 20;

/// The kind of pages of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    Never,
    /// Huge pages if the system has enough and the buffer fills half of them or more, otherwise
    /// ordinary ones.
    Try,
    /// Huge pages. The allocation fails if the system has not enough.
    Require,
}

/// Memory shared with the device by DMA. A dropped buffer is first taken away from the device.
///
/// The device's writes become visible in no particular order, unless the device defines one.
/// Software therefore loads the word that the device writes last with acquire order, and then reads
/// the rest.
pub struct DmaBuffer {
    shared: Arc<Shared>,
    /// The buffer's address for the device.
    iova: u64,
    /// The buffer's mapping in this process.
    window: Window,
    /// The memory and its file; `None` for private memory.
    memory: Option<SharedMemory>,
}

/// Creates memory of huge pages, of `len` bytes rounded up to whole pages. Fails if that is more
/// than `limit`.
fn create_huge(len: usize, limit: usize) -> Result<SharedMemory, MemoryError> {
    match SharedMemory::create_huge("nicforge-dma", len) {
        // The error names the size of the system's huge pages.
        Err(MemoryError::UnalignedLength { page, .. }) if page != 0 => {
            let rounded = len
                .checked_next_multiple_of(page as usize)
                .filter(|rounded| *rounded <= limit)
                .ok_or(MemoryError::Overflow { offset: 0, len: len as u64 })?;
            SharedMemory::create_huge("nicforge-dma", rounded)
        }
        result => result,
    }
}

impl DmaBuffer {
    /// Allocates a memory file of `len` bytes, rounded up to whole pages of the kind that it gets.
    pub(crate) fn create(shared: &Arc<Shared>, len: usize, huge: HugePages) -> Result<Self, Error> {
        if let Some(created) = Self::allocate(shared, len)? {
            return Ok(created);
        }

        let memory = match huge {
            HugePages::Never => SharedMemory::create("nicforge-dma", len)?,
            HugePages::Try => create_huge(len, len.saturating_mul(2))
                .or_else(|_| SharedMemory::create("nicforge-dma", len))?,
            HugePages::Require => create_huge(len, usize::MAX)?,
        };

        let len = memory.len() as u64;
        Self::map_shared(shared, &memory, 0, len, DmaPermission::READ_WRITE)
    }

    /// Maps `len` bytes of `memory` from `offset`, for DMA by the device: see
    /// [`Device::map_dma`](crate::Device::map_dma).
    pub(crate) fn map_shared(
        shared: &Arc<Shared>,
        memory: &SharedMemory,
        offset: u64,
        len: u64,
        permission: DmaPermission,
    ) -> Result<Self, Error> {
        for value in [offset, len] {
            if !value.is_multiple_of(PAGE) {
                return Err(Error::Misaligned { offset: value, width: PAGE });
            }
        }

        let window = memory.window(offset, len)?;
        let target = DmaMemory::Shared { memory: memory.clone(), offset, len };
        Self::map(shared, window, Some(memory.clone()), target, permission)
    }

    /// Allocates memory whose file stays in this process. A vfio-user server accesses it by DMA
    /// messages only.
    pub(crate) fn create_private(shared: &Arc<Shared>, len: usize) -> Result<Self, Error> {
        if let Some(created) = Self::allocate(shared, len)? {
            return Ok(created);
        }

        let memory = SharedMemory::create("nicforge-private", len)?;
        let window = memory.whole();
        let target = DmaMemory::Private { memory: Arc::new(window.clone()), len: window.len() };
        Self::map(shared, window, None, target, DmaPermission::READ_WRITE)
    }

    /// Allocates memory through the backing, if the backing requires that.
    fn allocate(shared: &Arc<Shared>, len: usize) -> Result<Option<Self>, Error> {
        shared.check_owner()?;
        let overflow = MemoryError::Overflow { offset: 0, len: len as u64 };
        let len = (len as u64).checked_next_multiple_of(PAGE).ok_or(overflow)?;
        if len == 0 {
            return Err(MemoryError::Empty.into());
        }

        let Some(DmaAllocation { memory, iova }) = shared.note_loss(shared.backing.dma_allocate(len))? else {
            return Ok(None);
        };

        let window = memory.window(0, len)?;
        Ok(Some(Self { shared: shared.clone(), iova, window, memory: Some(memory) }))
    }

    /// Maps the memory `target` for the device. `window` is its mapping in this process.
    fn map(
        shared: &Arc<Shared>,
        window: Window,
        memory: Option<SharedMemory>,
        target: DmaMemory,
        permission: DmaPermission,
    ) -> Result<Self, Error> {
        shared.check_owner()?;
        let len = window.len();
        if len == 0 {
            return Err(MemoryError::Empty.into());
        }

        let Some(addresses) = &shared.iova else {
            let iova = shared.note_loss(shared.backing.dma_register(target, permission))?;
            return Ok(Self { shared: shared.clone(), iova, window, memory });
        };

        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let iova = lock(addresses).allocate(len, align).ok_or(Error::AddressSpace { len })?;
        if let Err(error) = shared.note_loss(shared.backing.dma_map(iova, target, permission)) {
            // Only after these errors is it certain that the device does not have the range: its
            // side has refused it or is gone, or the backing has sent nothing. Otherwise the
            // address stays reserved.
            if matches!(
                error,
                Error::Refused { .. }
                    | Error::DeviceGone { .. }
                    | Error::Unsupported { .. }
                    | Error::Memory(_)
            ) {
                lock(addresses).free(iova, len);
            }
            return Err(error);
        }

        Ok(Self { shared: shared.clone(), iova, window, memory })
    }

    /// Returns the buffer's address for the device.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the buffer's size in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Returns whether the memory's file stays in this process. A vfio-user server then reaches the
    /// memory by DMA messages only.
    pub fn is_private(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns the buffer's memory as a window, which stays mapped in this process after the buffer
    /// is dropped.
    ///
    /// The device then no longer reaches it, with one exception. Memory from
    /// [`Backing::dma_allocate`](crate::Backing::dma_allocate) of the kernel shim stays reachable
    /// for the device until the last window is dropped.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the memory and its file, or `None` for a private buffer.
    pub fn memory(&self) -> Option<&SharedMemory> {
        self.memory.as_ref()
    }

    /// Copies the bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] when the range leaves the buffer.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.window.read(offset, out)?)
    }

    /// Copies `data` into the buffer from `offset` on.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] when the range leaves the buffer.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        Ok(self.window.write(offset, data)?)
    }

    /// Returns the 32-bit word at `offset`, a multiple of 4.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] for a bad offset.
    pub fn u32(&self, offset: u64) -> Result<SharedU32, Error> {
        Ok(self.window.u32(offset)?)
    }

    /// Returns the 64-bit word at `offset`, a multiple of 8.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] for a bad offset.
    pub fn u64(&self, offset: u64) -> Result<SharedU64, Error> {
        Ok(self.window.u64(offset)?)
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // In a child of `fork`, the device still has the memory for its parent.
        if self.shared.is_inherited() {
            return;
        }

        let len = self.window.len();
        let unmapped = self.shared.note_loss(self.shared.backing.dma_unmap(self.iova, len));

        // After any other error, the device may still have the range: its address stays reserved.
        if let (Ok(()) | Err(Error::DeviceGone { .. }), Some(addresses)) = (unmapped, &self.shared.iova) {
            lock(addresses).free(self.iova, len);
        }
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuffer")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len", &format_args!("{:#x}", self.len()))
            .field("private", &self.is_private())
            .finish()
    }
}
