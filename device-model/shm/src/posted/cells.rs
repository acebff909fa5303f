//! The cells of a ring in shared memory.
//!
//! UNSAFETY: dereferences addresses in a window. The cell number is masked by the number of cells.
//! [`SharedCells::new`] has checked that the cells fit the window.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use nicforge_hwi::posted::{CELL, CELL_DATA, MAX_RING_CELLS, MIN_RING_CELLS};
use thiserror::Error;

use super::{CELL_WORDS, Cells};
use crate::copy;
use crate::window::Window;

/// Reason why a window can't hold a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The number of cells is not a power of two, or out of range.
    #[error("0x{len:x} bytes are no ring: a power of two from {min} to {max} cells of {CELL} bytes is",
        min = MIN_RING_CELLS, max = MAX_RING_CELLS)]
    BadSize {
        /// Size of the window in bytes.
        len: u64,
    },
    /// The ring is not aligned to a cell, which is a cache line.
    #[error("a ring starts at a multiple of {CELL} bytes in memory, not at 0x{address:x}")]
    Misaligned {
        /// Address of the window.
        address: u64,
    },
    /// The memory is mapped read-only. Both ends of a ring write it.
    #[error("a ring needs memory that is mapped for writing")]
    ReadOnly,
}

/// The cells of a ring that fills a window.
#[derive(Clone, Debug)]
pub struct SharedCells {
    base: Base,
    mask: usize,
    _window: Window,
}

#[derive(Clone, Copy, Debug)]
struct Base(*mut u8);

// SAFETY: points into the window beside it. All accesses through it are volatile or atomic.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

impl SharedCells {
    /// Returns the ring that fills `window`.
    ///
    /// # Errors
    /// [`RingError::BadSize`], [`RingError::Misaligned`], [`RingError::ReadOnly`].
    pub fn new(window: Window) -> Result<Self, RingError> {
        let len = window.len();
        let count = len / CELL as u64;
        let sizes = MIN_RING_CELLS as u64..=MAX_RING_CELLS as u64;
        if !len.is_multiple_of(CELL as u64) || !count.is_power_of_two() || !sizes.contains(&count) {
            return Err(RingError::BadSize { len });
        }

        let address = window.base_address();
        if !address.is_multiple_of(CELL) {
            return Err(RingError::Misaligned { address: address as u64 });
        }

        if !window.is_writable() {
            return Err(RingError::ReadOnly);
        }

        Ok(SharedCells { base: Base(window.base_pointer()), mask: count as usize - 1, _window: window })
    }

    #[inline]
    fn cell(&self, cell: usize) -> *mut u8 {
        // SAFETY: `mask + 1` cells fit the window.
        unsafe { self.base.0.add((cell & self.mask) * CELL) }
    }

    #[inline]
    fn header(&self, cell: usize) -> &AtomicU64 {
        // SAFETY: a cell starts at a multiple of 64 bytes in the window, which lives as long as
        // `self`.
        unsafe { AtomicU64::from_ptr(self.cell(cell).cast()) }
    }

    #[inline]
    fn data(&self, cell: usize) -> *mut u8 {
        // SAFETY: the data follow the header in the cell.
        unsafe { self.cell(cell).add(CELL - CELL_DATA) }
    }
}

impl Cells for SharedCells {
    #[inline]
    fn count(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn header_acquire(&self, cell: usize) -> u64 {
        self.header(cell).load(Ordering::Acquire)
    }

    #[inline]
    fn set_header_release(&self, cell: usize, header: u64) {
        self.header(cell).store(header, Ordering::Release);
    }

    #[inline]
    fn set_header_relaxed(&self, cell: usize, header: u64) {
        self.header(cell).store(header, Ordering::Relaxed);
    }

    #[inline]
    fn data_read(&self, cell: usize, data: &mut [u64; CELL_WORDS]) {
        // SAFETY: the data of a cell lie in the window, and are aligned to 8 bytes.
        unsafe { copy::cell_from_shared(data, self.data(cell)) };
    }

    #[inline]
    fn data_read_bytes(&self, cell: usize, data: &mut [u64; CELL_WORDS], len: usize) {
        if len <= 8 {
            // SAFETY: the first word of a cell's data lies in the window, and is aligned to 8
            // bytes.
            data[0] = unsafe { self.data(cell).cast::<u64>().read_volatile() };
        } else {
            self.data_read(cell, data);
        }
    }

    #[inline]
    fn data_write(&self, cell: usize, data: &[u64; CELL_WORDS]) {
        // SAFETY: the data of a cell lie in the window, which is mapped for writing, and are
        // aligned to 8 bytes.
        unsafe { copy::cell_to_shared(self.data(cell), data) };
    }

    #[inline]
    fn data_write_bytes(&self, cell: usize, bytes: &[u8]) {
        let len = bytes.len().min(CELL_DATA);
        // SAFETY: at most the data of a cell, which lie in the window, which is mapped for writing,
        // aligned to 8 bytes.
        unsafe { copy::up_to_cell_to_shared(self.data(cell), bytes.as_ptr(), len) };
    }
}
