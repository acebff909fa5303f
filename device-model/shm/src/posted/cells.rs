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
use crate::prefetch::prefetch_for_writing;
use crate::window::Window;

/// Distance in cells at which a producer requests a cell before it writes it.
///
/// Stores become visible in program order. A store to a cell waits for the cache line if the
/// consumer's processor has it, and all later stores of the producer wait behind it, until its
/// processor has no room for more of them. At 16 cells ahead, a line that takes 230 ns from another
/// processor is there in time for a producer that takes 14 ns a record.
const CELLS_AHEAD: u32 = 16;

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
    /// The number of cells less one.
    mask: u32,
    /// Keeps the memory mapped.
    _window: Window,
}

/// Address of the first cell.
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

        Ok(SharedCells { base: Base(window.base_pointer()), mask: count as u32 - 1, _window: window })
    }

    /// Returns the address of the cell at a position.
    #[inline]
    fn cell(&self, position: u32) -> *mut u8 {
        // SAFETY: `mask + 1` cells fit the window.
        unsafe { self.base.0.add((position & self.mask) as usize * CELL) }
    }

    /// Returns the header of the cell at a position.
    #[inline]
    fn header(&self, position: u32) -> &AtomicU64 {
        // SAFETY: a cell starts at a multiple of 64 bytes in the window, which lives as long as
        // `self`.
        unsafe { AtomicU64::from_ptr(self.cell(position).cast()) }
    }

    /// Returns the address of the data of the cell at a position.
    #[inline]
    fn data(&self, position: u32) -> *mut u8 {
        // SAFETY: the data follow the header in the cell.
        unsafe { self.cell(position).add(CELL - CELL_DATA) }
    }
}

impl Cells for SharedCells {
    #[inline]
    fn count(&self) -> usize {
        self.mask as usize + 1
    }

    #[inline]
    fn header_acquire(&self, position: u32) -> u64 {
        self.header(position).load(Ordering::Acquire)
    }

    #[inline]
    fn set_header_release(&self, position: u32, header: u64) {
        self.header(position).store(header, Ordering::Release);
    }

    #[inline]
    fn set_header_relaxed(&self, position: u32, header: u64) {
        self.header(position).store(header, Ordering::Relaxed);
    }

    #[inline]
    fn data_read(&self, position: u32, data: &mut [u64; CELL_WORDS]) {
        // SAFETY: the data of a cell lie in the window, and are aligned to 8 bytes.
        unsafe { copy::cell_from_shared(data, self.data(position)) };
    }

    #[inline]
    fn first_word(&self, position: u32) -> u64 {
        // SAFETY: the first word of a cell's data lies in the window, and is aligned to 8 bytes.
        unsafe { self.data(position).cast::<u64>().read_volatile() }
    }

    #[inline(always)]
    fn first_word_if(&self, position: u32, header: u64) -> Option<u64> {
        // Not by `Cells::first_word`, so that the address of the cell is computed once.
        let cell = self.cell(position);
        // SAFETY: a cell starts at a multiple of 64 bytes in the window, which lives as long as
        // `self`.
        if unsafe { AtomicU64::from_ptr(cell.cast()) }.load(Ordering::Acquire) != header {
            return None;
        }
        // SAFETY: the data follow the header in the cell.
        let data = unsafe { cell.add(CELL - CELL_DATA) };
        // SAFETY: the first word of the data, which is aligned to 8 bytes.
        Some(unsafe { data.cast::<u64>().read_volatile() })
    }

    #[inline]
    fn data_write(&self, position: u32, data: &[u64; CELL_WORDS]) {
        // SAFETY: the data of a cell lie in the window, which is mapped for writing, and are
        // aligned to 8 bytes.
        unsafe { copy::cell_to_shared(self.data(position), data) };
    }

    #[inline]
    fn data_write_bytes(&self, position: u32, bytes: &[u8]) {
        // SAFETY: as for `write_bytes`.
        unsafe { write_bytes(self.cell(position), bytes) };
    }

    #[inline(always)]
    fn publish(&self, position: u32, header: u64, bytes: &[u8]) {
        // The address is computed once: the compiler can't know that the first store leaves the
        // fields of `self` as they are.
        let cell = self.cell(position);
        // SAFETY: a cell of the window, which is mapped for writing.
        unsafe { write_bytes(cell, bytes) };
        // SAFETY: a cell starts at a multiple of 64 bytes in the window, which lives as long as
        // `self`.
        unsafe { AtomicU64::from_ptr(cell.cast()) }.store(header, Ordering::Release);
        prefetch_for_writing(self.cell(position.wrapping_add(CELLS_AHEAD)));
    }
}

/// Writes the first bytes of a cell's data, at most [`CELL_DATA`].
///
/// # Safety
/// `cell` is a cell of a window that is mapped for writing.
#[inline(always)]
unsafe fn write_bytes(cell: *mut u8, bytes: &[u8]) {
    let len = bytes.len().min(CELL_DATA);
    // SAFETY: the data follow the header in the cell.
    let data = unsafe { cell.add(CELL - CELL_DATA) };
    // SAFETY: at most the data of the cell, which are aligned to 8 bytes.
    unsafe { copy::up_to_cell_to_shared(data, bytes.as_ptr(), len) };
}
