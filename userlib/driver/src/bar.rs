//! Registers and mapped memory of a BAR.

use std::{fmt, sync::Arc};

use nicforge_shm::{MemoryError, Window};

use crate::{Error, RegionInfo, WriteMode, device::Shared, posted};

/// A region and its mapped memory.
pub(crate) struct Region {
    /// VFIO index of the region.
    index: u32,
    info: RegionInfo,
    /// The mapping of the region, if any of it is mappable.
    memory: Option<Window>,
}

impl Region {
    /// Makes the region with an index, and its mapping if it has one.
    pub(crate) fn new(index: u32, info: RegionInfo, memory: Option<Window>) -> Self {
        Self { index, info, memory }
    }

    /// Returns the mapped memory if all of `[offset, offset + len)` is mappable. The window checks
    /// the access itself.
    #[inline]
    fn mapped(&self, offset: u64, len: u64) -> Option<&Window> {
        let memory = self.memory.as_ref()?;

        let has_range = |area: &crate::MappableArea| {
            offset >= area.offset && len <= area.len && offset - area.offset <= area.len - len
        };

        self.info.mappable.iter().any(has_range).then_some(memory)
    }

    /// Returns the mapped memory at `[offset, offset + len)`.
    pub(crate) fn window(&self, offset: u64, len: u64) -> Result<Window, Error> {
        let memory = self.mapped(offset, len).ok_or(Error::NotMapped { region: self.index, offset, len })?;
        Ok(memory.window(offset, len)?)
    }

    /// Checks that an access of `width` bytes lies in the region and is aligned to its width.
    #[inline]
    fn check_access(&self, offset: u64, width: u64) -> Result<(), Error> {
        let size = self.info.size;

        if offset > size || width > size - offset {
            return Err(Error::OutOfRange { what: "BAR", index: self.index, offset, len: width, size });
        }

        if !offset.is_multiple_of(width) {
            return Err(Error::Misaligned { offset, width });
        }
        Ok(())
    }
}

/// A BAR of the device. Clones are cheap.
///
/// An access to a mapped area is a plain load (acquire) or store (release) of its width. Any other
/// access is trapped: a round trip to the server, which first consumes the records of the
/// posted-write rings. Values are little-endian. The memory rules in this crate's README say which
/// accesses are ordered with which.
#[derive(Clone)]
pub struct Bar {
    index: u8,
    region: Arc<Region>,
    shared: Arc<Shared>,
}

macro_rules! accesses {
    ($($read:ident $write:ident $value:ty, $size:literal, $load:ident, $store:ident;)*) => {
        impl Bar {
            $(
                #[doc = concat!("Reads the ", $size, "-byte register or word at `offset`, a multiple of ", $size, ".")]
                ///
                /// # Errors
                /// Returns [`Error::OutOfRange`] or [`Error::Misaligned`]. A trapped access may
                /// also return [`Error::DeviceGone`], [`Error::Timeout`] or [`Error::Refused`].
                #[inline]
                pub fn $read(&self, offset: u64) -> Result<$value, Error> {
                    self.region.check_access(offset, $size)?;

                    if let Some(memory) = self.region.mapped(offset, $size) {
                        return Ok(<$value>::from_le(memory.$load(offset)?));
                    }

                    let mut bytes = [0; $size];
                    self.shared.read(self.region.index, offset, &mut bytes)?;
                    Ok(<$value>::from_le_bytes(bytes))
                }

                #[doc = concat!("Writes the ", $size, "-byte register or word at `offset`, a multiple of ", $size, ".")]
                /// A trapped write returns when the device has taken it. After a store to mapped
                /// memory that the device polls, the caller must call [`Bar::kick_if_sleeping`].
                ///
                /// # Errors
                #[doc = concat!("As [`Bar::", stringify!($read), "`]; [`MemoryError::ReadOnly`] in [`Error::Memory`] for a mirror.")]
                #[inline]
                pub fn $write(&self, offset: u64, value: $value) -> Result<(), Error> {
                    self.region.check_access(offset, $size)?;

                    if let Some(memory) = self.region.mapped(offset, $size) {
                        return Ok(memory.$store(offset, value.to_le())?);
                    }

                    self.shared.write(self.region.index, offset, &value.to_le_bytes(), WriteMode::Confirmed)
                }
            )*
        }
    };
}

accesses! {
    read8 write8 u8, 1, load_u8_relaxed, store_u8_relaxed;
    read16 write16 u16, 2, load_u16_relaxed, store_u16_relaxed;
    read32 write32 u32, 4, load_u32_acquire, store_u32_release;
    read64 write64 u64, 8, load_u64_acquire, store_u64_release;
}

impl Bar {
    /// Returns BAR `index` of a device.
    pub(crate) fn new(shared: &Arc<Shared>, index: u8) -> Result<Self, Error> {
        Ok(Self { index, region: shared.region(index)?.clone(), shared: shared.clone() })
    }

    /// Returns the BAR's number, 0 to 5.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Returns the BAR's size in bytes.
    pub fn size(&self) -> u64 {
        self.region.info.size
    }

    /// Returns the backing's description of the BAR.
    pub fn info(&self) -> &RegionInfo {
        &self.region.info
    }

    /// Writes 16 bytes at once. `offset` is a multiple of 16. The write is one 16-byte store where
    /// the BAR is mapped, and one trapped access elsewhere.
    ///
    /// # Errors
    /// Returns the errors of [`Bar::write32`].
    #[inline]
    pub fn write_burst16(&self, offset: u64, data: &[u8; 16]) -> Result<(), Error> {
        self.burst(offset, data, |memory| memory.store_16(offset, *data))
    }

    /// Writes 64 bytes at once. `offset` is a multiple of 64. The write is a sequence of vector
    /// stores, lowest address first, where the BAR is mapped. Elsewhere it is one trapped access.
    ///
    /// # Errors
    /// Returns the errors of [`Bar::write32`].
    #[inline]
    pub fn write_burst64(&self, offset: u64, data: &[u8; 64]) -> Result<(), Error> {
        self.burst(offset, data, |memory| memory.store_64(offset, *data))
    }

    /// Stores a burst to mapped memory by `store`, or makes it one trapped write where the BAR is
    /// not mapped.
    #[inline]
    fn burst(
        &self,
        offset: u64,
        data: &[u8],
        store: impl FnOnce(&Window) -> Result<(), MemoryError>,
    ) -> Result<(), Error> {
        self.region.check_access(offset, data.len() as u64)?;

        match self.region.mapped(offset, data.len() as u64) {
            Some(memory) => Ok(store(memory)?),
            None => self.shared.write(self.region.index, offset, data, WriteMode::Confirmed),
        }
    }

    /// Writes `data` (1 to 512 bytes) to registers at `offset` through posted-write ring 0, which
    /// callers share by a lock.
    ///
    /// A device without rings gets a trapped write. The call waits for room at most
    /// [`crate::OpenOptions::timeout`]. A thread that posts often should hold a [`crate::Poster`]
    /// of its own.
    ///
    /// # Errors
    /// Returns the errors of [`crate::Poster::post`], and [`Error::RingTaken`] while a poster holds
    /// ring 0.
    pub fn posted_write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        posted::post_shared(&self.shared, self.index, offset, data)
    }

    /// Waits until the device has taken all earlier writes: see [`crate::Device::flush`].
    ///
    /// # Errors
    /// Returns the errors of [`crate::Device::flush`].
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.flush()
    }

    /// Wakes the engine if it sleeps: see [`crate::Doorbell::after_store`].
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] when the engine cannot be woken.
    #[inline]
    pub fn kick_if_sleeping(&self) -> Result<(), Error> {
        self.shared.after_store()
    }

    /// Returns the mapped memory at `[offset, offset + len)`.
    ///
    /// # Errors
    /// Returns [`Error::NotMapped`] when some of the range is not mapped memory.
    pub fn window(&self, offset: u64, len: u64) -> Result<Window, Error> {
        self.region.window(offset, len)
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bar").field("index", &self.index).field("info", &self.region.info).finish()
    }
}
