//! Copies of a length that is known at compile time, in unrolled loops.
//!
//! UNSAFETY: as in [`super`].
#![allow(unsafe_code)]

use super::{Direction, FromShared, ToShared, V16, VECTOR, move_64, move_bytes};

/// Longest array in bytes whose copy is unrolled.
const MAX_UNROLLED: usize = 512;

/// Copies `N` bytes out of shared memory, unrolled when the source is aligned.
///
/// # Safety
/// As [`copy_from_shared`].
#[inline]
pub(crate) unsafe fn array_from_shared<const N: usize>(target: *mut u8, source: *const u8) {
    // SAFETY: by this function's contract.
    unsafe { move_array::<FromShared, N>(target, source) };
}

/// Copies `N` bytes into shared memory, unrolled when the target is aligned.
///
/// # Safety
/// As [`copy_to_shared`].
#[inline]
pub(crate) unsafe fn array_to_shared<const N: usize>(target: *mut u8, source: *const u8) {
    // SAFETY: by this function's contract.
    unsafe { move_array::<ToShared, N>(target, source) };
}

/// Width of the moves of an aligned array.
pub(crate) trait Moves {
    /// Copies `N` bytes, a multiple of 16, out of shared memory.
    ///
    /// # Safety
    /// As [`copy_from_shared`]; `source` must be aligned to 64 bytes.
    unsafe fn from_shared<const N: usize>(target: *mut u8, source: *const u8);
    /// Copies `N` bytes, a multiple of 16, into shared memory.
    ///
    /// # Safety
    /// As [`copy_to_shared`]; `target` must be aligned to 64 bytes.
    unsafe fn to_shared<const N: usize>(target: *mut u8, source: *const u8);
}

/// The widest moves that the program was compiled for.
pub(crate) struct NarrowMoves;

impl Moves for NarrowMoves {
    #[inline(always)]
    unsafe fn from_shared<const N: usize>(target: *mut u8, source: *const u8) {
        // SAFETY: by this function's contract.
        unsafe { move_aligned_array::<FromShared, N>(target, source) };
    }
    #[inline(always)]
    unsafe fn to_shared<const N: usize>(target: *mut u8, source: *const u8) {
        // SAFETY: by this function's contract.
        unsafe { move_aligned_array::<ToShared, N>(target, source) };
    }
}

/// Returns whether to use [`WideMoves`]: the processor has 32-byte moves, and the program was
/// compiled for narrower ones.
pub(crate) fn has_wide_moves() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = VECTOR < 32 && std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Moves of 32 bytes in a program compiled for narrower ones. Its functions must be inlined into
/// one that has AVX enabled; otherwise the compiler splits each move in two.
#[cfg(target_arch = "x86_64")]
pub(crate) struct WideMoves;

#[cfg(target_arch = "x86_64")]
impl Moves for WideMoves {
    #[inline(always)]
    unsafe fn from_shared<const N: usize>(target: *mut u8, source: *const u8) {
        // SAFETY: by this function's contract.
        unsafe { move_wide_array::<FromShared, N>(target, source) };
    }
    #[inline(always)]
    unsafe fn to_shared<const N: usize>(target: *mut u8, source: *const u8) {
        // SAFETY: by this function's contract.
        unsafe { move_wide_array::<ToShared, N>(target, source) };
    }
}

/// Moves `N` bytes in an unrolled loop of 32-byte moves.
///
/// # Safety
/// As [`move_aligned_array`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move_wide_array<D: Direction, const N: usize>(target: *mut u8, source: *const u8) {
    let mut at = 0;
    while at + 32 <= N {
        // SAFETY: the caller guarantees that `N` bytes may be moved, and that the pivot is aligned.
        unsafe { D::step::<core::arch::x86_64::__m256i>(target.wrapping_add(at), source.wrapping_add(at)) };
        at += 32;
    }

    if at < N {
        // SAFETY: as above.
        unsafe { D::step::<V16>(target.wrapping_add(at), source.wrapping_add(at)) };
    }
}

/// Moves `N` bytes, unrolled if the pivot is aligned and `N` is suitable.
///
/// # Safety
/// `source` must be readable and `target` writable for `N` bytes.
#[inline(always)]
unsafe fn move_array<D: Direction, const N: usize>(target: *mut u8, source: *const u8) {
    if !N.is_multiple_of(16) || N > MAX_UNROLLED || D::pivot(target, source) & (VECTOR - 1) != 0 {
        // SAFETY: by this function's contract.
        return unsafe { move_bytes::<D>(target, source, N) };
    }
    // SAFETY: by this function's contract; the check above aligns the pivot.
    unsafe { move_aligned_array::<D, N>(target, source) };
}

/// Moves `N` bytes in an unrolled loop.
///
/// # Safety
/// As [`Direction::step`] for `N` bytes, a multiple of 16, with the pivot aligned to [`VECTOR`].
#[inline(always)]
unsafe fn move_aligned_array<D: Direction, const N: usize>(target: *mut u8, source: *const u8) {
    let mut at = 0;
    while at + 64 <= N {
        // SAFETY: the caller guarantees that `N` bytes may be moved, and that the pivot is aligned.
        unsafe { move_64::<D>(target.wrapping_add(at), source.wrapping_add(at)) };
        at += 64;
    }

    while at + 16 <= N {
        // SAFETY: as above.
        unsafe { D::step::<V16>(target.wrapping_add(at), source.wrapping_add(at)) };
        at += 16;
    }
}
