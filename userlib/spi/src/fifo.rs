//! The memory of a FIFO: a ring of bytes that the unit reaches.

use std::sync::Arc;

use nicforge_driver::DmaBuffer;
use nicforge_shm::Window;

use crate::{Error, address::END_OF_ADDRESSES};

/// Sizes that a FIFO may have.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Smallest size in bytes.
    pub(crate) min: u64,
    /// Largest size in bytes.
    pub(crate) max: u64,
    /// The address and the size must be multiples of this.
    pub(crate) alignment: u64,
}

/// The memory of a FIFO.
pub(crate) struct Ring {
    /// Keeps the memory reachable for the unit.
    _buffer: Arc<DmaBuffer>,
    window: Window,
    /// Address of the first byte for the unit.
    start: u64,
    size: u64,
}

impl Ring {
    /// Returns the FIFO memory of `size` bytes at `offset` of a buffer, if `sizes` permits it.
    pub(crate) fn new(buffer: Arc<DmaBuffer>, offset: u64, size: u64, sizes: Sizes) -> Result<Self, Error> {
        let Sizes { min, max, alignment } = sizes;
        let address = buffer.iova().saturating_add(offset);
        let is_aligned = address.is_multiple_of(alignment) && size.is_multiple_of(alignment);
        let is_reachable = address.checked_add(size).is_some_and(|end| end <= END_OF_ADDRESSES);
        if !is_aligned || !is_reachable || !(min..=max).contains(&size) {
            let (least, most, unit) = (min, max, alignment);
            return Err(Error::FifoMemory { address, bytes: size, least, most, unit });
        }

        let window = buffer.window().window(offset, size)?;
        Ok(Self { _buffer: buffer, window, start: address, size })
    }

    /// Returns the memory.
    #[inline]
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the size in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the offset that is `bytes`, at most a whole FIFO, after another one, around the end.
    #[inline]
    pub(crate) fn advance(&self, offset: u64, bytes: u64) -> u64 {
        let next = offset + bytes;
        if next >= self.size { next - self.size } else { next }
    }

    /// Copies the bytes from `offset` on into `out`, if necessary around the end.
    #[inline]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let until_end = (self.size - offset.min(self.size)) as usize;
        if out.len() <= until_end {
            return Ok(self.window.read(offset, out)?);
        }

        let (first, rest) = out.split_at_mut(until_end);
        self.window.read(offset, first)?;
        Ok(self.window.read(0, rest)?)
    }

    /// Copies `length` bytes from `offset` on to offset `at` of another window, if necessary around
    /// the end.
    #[inline]
    pub(crate) fn copy_to(&self, offset: u64, length: u64, to: &Window, at: u64) -> Result<(), Error> {
        let until_end = self.size - offset.min(self.size);
        let first_part = length.min(until_end);
        self.window.copy_to(offset, to, at, first_part)?;
        if first_part < length {
            self.window.copy_to(0, to, at + first_part, length - first_part)?;
        }
        Ok(())
    }
}
