//! Volatile copies into and out of shared memory.
//!
//! UNSAFETY: reads and writes through raw pointers, with the widest aligned access of the target.
//! The compiler may not repeat, merge or drop a volatile access, so that the checked bytes are the
//! bytes used. Callers (`window`, `posted`) have checked the shared range against its mapping.
//!
//! The main loops run on the alignment of the *shared* side; the private side is accessed
//! unaligned. Long copies use the string instruction of x86-64. The assembly block that holds it is
//! as opaque to the compiler as a volatile access.
//!
//! | module | contents |
//! | --- | --- |
//! | `array` | copies of a length that is known at compile time, in unrolled loops |
//! | `cell` | copies of the data of a posted-write ring's cell |
#![allow(unsafe_code)]

mod array;
mod cell;

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicU8, Ordering};

#[cfg(target_arch = "x86_64")]
pub(crate) use self::array::WideMoves;
pub(crate) use self::{
    array::{Moves, NarrowMoves, array_from_shared, array_to_shared, has_wide_moves},
    cell::{cell_from_shared, cell_to_shared, up_to_cell_to_shared},
};

#[cfg(target_arch = "x86_64")]
type V16 = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type V16 = u128;
#[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
type V32 = core::arch::x86_64::__m256i;
#[cfg(all(target_arch = "x86_64", target_feature = "avx512f"))]
type V64 = core::arch::x86_64::__m512i;

/// Alignment of the shared side in the main loops in bytes: the widest access.
const VECTOR: usize = if cfg!(all(target_arch = "x86_64", target_feature = "avx512f")) {
    64
} else if cfg!(all(target_arch = "x86_64", target_feature = "avx")) {
    32
} else {
    16
};

/// Length in bytes from which the string instruction is faster than the vector loop.
#[cfg(target_arch = "x86_64")]
const MIN_STRING: usize = 2048;
/// Length in bytes from which the string instruction is faster than [`move_skewed`].
#[cfg(target_arch = "x86_64")]
const MIN_SKEWED_STRING: usize = 32;

/// Returns whether this CPU has fast string instructions (ERMS; CPUID leaf 7, EBX bit 9). The
/// answer is cached, because a hypervisor traps CPUID.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_fast_strings() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[cold]
    fn query_cpuid() -> u8 {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        #[allow(unused_unsafe, reason = "newer compilers know that every x86-64 CPU has the instruction")]
        // SAFETY: every x86-64 CPU has the instruction. Leaf 7 is read only if leaf 0 says that it
        // exists.
        let fast = unsafe { __cpuid(0) }.eax >= 7 && {
            // SAFETY: as above.
            #[allow(unused_unsafe, reason = "as above")]
            let leaf = unsafe { __cpuid_count(7, 0) };
            leaf.ebx & (1 << 9) != 0
        };

        let answer = if fast { YES } else { NO };
        ANSWER.store(answer, Ordering::Relaxed);

        answer
    }

    let known = ANSWER.load(Ordering::Relaxed);

    (if known == UNKNOWN { query_cpuid() } else { known }) == YES
}

/// One of the three directions of a copy. The loops below are generic over them.
trait Direction {
    /// Returns the *pivot*: the shared address, which the vector accesses need aligned. If both
    /// addresses are shared, it is the target, and the source must have the same alignment.
    fn pivot(target: *mut u8, source: *const u8) -> usize;
    /// Copies one value of type `T` by one access to each side.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for the size of `T`. The shared addresses
    /// must be aligned to it.
    unsafe fn step<T: Copy>(target: *mut u8, source: *const u8);
}

/// A copy from shared memory to private memory.
struct FromShared;
/// A copy from private memory to shared memory.
struct ToShared;
/// A copy from shared memory to shared memory.
struct BothShared;

impl Direction for FromShared {
    #[inline(always)]
    fn pivot(_: *mut u8, source: *const u8) -> usize {
        source as usize
    }
    #[inline(always)]
    unsafe fn step<T: Copy>(target: *mut u8, source: *const u8) {
        // SAFETY: the caller guarantees that the source is readable and aligned.
        let value = unsafe { source.cast::<T>().read_volatile() };
        // SAFETY: the caller guarantees that the target is writable.
        unsafe { target.cast::<T>().write_unaligned(value) };
    }
}

impl Direction for ToShared {
    #[inline(always)]
    fn pivot(target: *mut u8, _: *const u8) -> usize {
        target as usize
    }
    #[inline(always)]
    unsafe fn step<T: Copy>(target: *mut u8, source: *const u8) {
        // SAFETY: the caller guarantees that the source is readable.
        let value = unsafe { source.cast::<T>().read_unaligned() };
        // SAFETY: the caller guarantees that the target is writable and aligned.
        unsafe { target.cast::<T>().write_volatile(value) };
    }
}

impl Direction for BothShared {
    #[inline(always)]
    fn pivot(target: *mut u8, _: *const u8) -> usize {
        target as usize
    }
    #[inline(always)]
    unsafe fn step<T: Copy>(target: *mut u8, source: *const u8) {
        // SAFETY: the caller guarantees that the source is readable and aligned.
        let value = unsafe { source.cast::<T>().read_volatile() };
        // SAFETY: the caller guarantees that the target is writable and aligned.
        unsafe { target.cast::<T>().write_volatile(value) };
    }
}

/// Moves 32 bytes. # Safety: as [`Direction::step`], aligned to the smaller of 32 and [`VECTOR`].
#[inline(always)]
unsafe fn move_32<D: Direction>(target: *mut u8, source: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
    // SAFETY: by this function's contract.
    unsafe {
        D::step::<V32>(target, source)
    };

    #[cfg(not(all(target_arch = "x86_64", target_feature = "avx")))]
    for at in [0, 16] {
        // SAFETY: by this function's contract, for each half.
        unsafe { D::step::<V16>(target.wrapping_add(at), source.wrapping_add(at)) };
    }
}

/// Moves 64 bytes. # Safety: as [`Direction::step`], aligned to [`VECTOR`].
#[inline(always)]
unsafe fn move_64<D: Direction>(target: *mut u8, source: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx512f"))]
    // SAFETY: by this function's contract.
    unsafe {
        D::step::<V64>(target, source)
    };

    #[cfg(not(all(target_arch = "x86_64", target_feature = "avx512f")))]
    for at in [0, 32] {
        // SAFETY: by this function's contract, for each half.
        unsafe { move_32::<D>(target.wrapping_add(at), source.wrapping_add(at)) };
    }
}

/// Moves `len` bytes in pieces that fit the pivot's alignment.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes; with [`BothShared`] they must
/// be equal modulo [`VECTOR`].
#[inline(always)]
unsafe fn move_bytes<D: Direction>(mut target: *mut u8, mut source: *const u8, mut len: usize) {
    // Moves one piece, and advances by its size.
    macro_rules! step {
        ($size:expr, $move:expr) => {{
            // SAFETY: `len` covers the piece at each use, and the comment there explains the
            // alignment.
            unsafe { $move(target, source) };
            target = target.wrapping_add($size);
            source = source.wrapping_add($size);
            len -= $size;
        }};
    }

    if D::pivot(target, source) & (VECTOR - 1) != 0 {
        // Each piece clears the lowest set bit of the address. If a piece is skipped, fewer bytes
        // are left than its size. The address is then aligned to every piece that still fits.
        if len >= 1 && D::pivot(target, source) & 1 != 0 {
            step!(1, D::step::<u8>);
        }
        if len >= 2 && D::pivot(target, source) & 2 != 0 {
            step!(2, D::step::<u16>);
        }
        if len >= 4 && D::pivot(target, source) & 4 != 0 {
            step!(4, D::step::<u32>);
        }
        if len >= 8 && D::pivot(target, source) & 8 != 0 {
            step!(8, D::step::<u64>);
        }
        if VECTOR > 16 && len >= 16 && D::pivot(target, source) & 16 != 0 {
            step!(16, D::step::<V16>);
        }
        if VECTOR > 32 && len >= 32 && D::pivot(target, source) & 32 != 0 {
            step!(32, move_32::<D>);
        }
    }

    // From here on the pivot is aligned to VECTOR, or to a power of two above `len`.
    while len >= 256 {
        for at in [0, 64, 128, 192] {
            // SAFETY: at least 256 bytes are left.
            unsafe { move_64::<D>(target.wrapping_add(at), source.wrapping_add(at)) };
        }
        target = target.wrapping_add(256);
        source = source.wrapping_add(256);
        len -= 256;
    }

    while len >= 64 {
        step!(64, move_64::<D>);
    }

    if len >= 32 {
        step!(32, move_32::<D>);
    }

    if len >= 16 {
        step!(16, D::step::<V16>);
    }

    if len >= 8 {
        step!(8, D::step::<u64>);
    }

    if len >= 4 {
        step!(4, D::step::<u32>);
    }

    if len >= 2 {
        step!(2, D::step::<u16>);
    }

    if len >= 1 {
        // SAFETY: one byte is left.
        unsafe { D::step::<u8>(target, source) };
    }
}

/// Copies with `rep movsb`.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move_string(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: touches the two ranges only; the ABI keeps the direction flag clear.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes out of shared memory.
///
/// # Safety
/// `source` must be readable shared memory and `target` writable private memory for `len` bytes.
#[inline]
pub(crate) unsafe fn copy_from_shared(target: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= MIN_STRING && has_fast_strings() {
        // SAFETY: by this function's contract.
        return unsafe { move_string(target, source, len) };
    }
    // SAFETY: by this function's contract.
    unsafe { move_bytes::<FromShared>(target, source, len) };
}

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// `target` must be writable shared memory and `source` readable private memory for `len` bytes.
#[inline]
pub(crate) unsafe fn copy_to_shared(target: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= MIN_STRING && has_fast_strings() {
        // SAFETY: by this function's contract.
        return unsafe { move_string(target, source, len) };
    }
    // SAFETY: by this function's contract.
    unsafe { move_bytes::<ToShared>(target, source, len) };
}

/// Copies `len` bytes from shared memory to shared memory.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[inline]
pub(crate) unsafe fn copy_shared_to_shared(target: *mut u8, source: *const u8, len: usize) {
    // The bits in which the addresses differ: the low ones are 0 if both can be aligned together.
    let skew = target as usize ^ source as usize;
    #[cfg(target_arch = "x86_64")]
    if (skew & (VECTOR - 1) != 0 && len >= MIN_SKEWED_STRING) || (len >= MIN_STRING && has_fast_strings()) {
        // SAFETY: by this function's contract.
        return unsafe { move_string(target, source, len) };
    }

    if skew & (VECTOR - 1) == 0 {
        // SAFETY: by this function's contract; the two addresses are equal modulo `VECTOR`.
        return unsafe { move_bytes::<BothShared>(target, source, len) };
    }

    // SAFETY: by this function's contract.
    unsafe { move_skewed(target, source, len) };
}

/// Copies between addresses that no vector access can be aligned to together.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
unsafe fn move_skewed(target: *mut u8, source: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let (to, from) = (target.wrapping_add(at), source.wrapping_add(at));
        let alignment = to as usize | from as usize;
        if alignment & 7 == 0 && len - at >= 8 {
            // SAFETY: in range and aligned by the comparison.
            unsafe { BothShared::step::<u64>(to, from) };
            at += 8;
        } else if alignment & 3 == 0 && len - at >= 4 {
            // SAFETY: in range and aligned by the comparison.
            unsafe { BothShared::step::<u32>(to, from) };
            at += 4;
        } else {
            // SAFETY: in range by the comparison.
            unsafe { BothShared::step::<u8>(to, from) };
            at += 1;
        }
    }
}

/// Stores 16 bytes with one access.
///
/// # Safety
/// `target` must be writable shared memory, aligned to 16 bytes; `source` readable private memory.
#[inline]
pub(crate) unsafe fn store_16(target: *mut u8, source: *const u8) {
    // SAFETY: by this function's contract.
    unsafe { ToShared::step::<V16>(target, source) };
}

/// Writes zeros into shared memory.
///
/// # Safety
/// `target` must be writable shared memory for `len` bytes.
pub(crate) unsafe fn zero_shared(target: *mut u8, len: usize) {
    const ZEROS: [u8; 256] = [0; 256];
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(ZEROS.len());
        // SAFETY: in range by the comparison.
        unsafe { copy_to_shared(target.wrapping_add(at), ZEROS.as_ptr(), piece) };
        at += piece;
    }
}
