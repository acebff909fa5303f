//! Copies of the data of a posted-write ring's cell.
//!
//! UNSAFETY: as in [`super`].
#![allow(unsafe_code)]

use super::{Direction, FromShared, ToShared, V16, move_bytes};

/// Reads the 56 bytes of a ring cell's data.
///
/// # Safety
/// `source` must be readable shared memory for 56 bytes, 8 bytes after a multiple of 64.
#[inline]
pub(crate) unsafe fn cell_from_shared(target: &mut [u64; 7], source: *const u8) {
    // SAFETY: by this function's contract.
    unsafe { move_cell::<FromShared>(target.as_mut_ptr().cast(), source) };
}

/// Writes the 56 bytes of a ring cell's data.
///
/// # Safety
/// `target` must be writable shared memory for 56 bytes, 8 bytes after a multiple of 64.
#[inline]
pub(crate) unsafe fn cell_to_shared(target: *mut u8, source: &[u64; 7]) {
    // SAFETY: by this function's contract.
    unsafe { move_cell::<ToShared>(target, source.as_ptr().cast()) };
}

/// Moves the 56 bytes of a ring cell's data: one word, and then three vectors.
///
/// # Safety
/// As [`cell_from_shared`] or [`cell_to_shared`], for the shared side of `D`.
#[inline(always)]
unsafe fn move_cell<D: Direction>(target: *mut u8, source: *const u8) {
    // SAFETY: by this function's contract. The pivot is aligned to 8 bytes, and to 16 bytes after
    // the first 8.
    unsafe { D::step::<u64>(target, source) };
    for at in [8, 24, 40] {
        // SAFETY: as above.
        unsafe { D::step::<V16>(target.wrapping_add(at), source.wrapping_add(at)) };
    }
}

/// Writes the first `len` bytes, at most 56, of a ring cell's data. The lengths of registers take
/// one store.
///
/// # Safety
/// `target` must be writable shared memory for `len` bytes, 8 bytes after a multiple of 64.
#[inline]
pub(crate) unsafe fn up_to_cell_to_shared(target: *mut u8, source: *const u8, len: usize) {
    match len {
        // SAFETY: by this function's contract; the target is aligned to 8 bytes.
        8 => unsafe { ToShared::step::<u64>(target, source) },
        // SAFETY: as above.
        4 => unsafe { ToShared::step::<u32>(target, source) },
        // SAFETY: by this function's contract, for all data of a cell.
        56 => unsafe { move_cell::<ToShared>(target, source) },
        // SAFETY: by this function's contract.
        _ => unsafe { move_bytes::<ToShared>(target, source, len) },
    }
}
