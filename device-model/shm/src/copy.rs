//! Volatile copies into and out of shared memory.
//!
//! UNSAFETY: reads and writes through raw pointers, with the widest aligned access of the target.
//! The compiler may not repeat, merge or drop a volatile access, so that the checked bytes are the
//! bytes used. Callers (`window`, `posted`) have checked the shared range against its mapping.
//!
//! The main loops run on the alignment of the *shared* side; the private side is accessed
//! unaligned. Long copies use the string instruction of x86-64. The assembly block that holds it is
//! as opaque to the compiler as a volatile access.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicU8, Ordering};

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
const STRING: usize = 2048;

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
    /// Returns the address whose alignment the vector accesses need.
    fn pivot(target: *mut u8, source: *const u8) -> usize;
    /// # Safety
    /// `source` must be readable and `target` writable for the size of `T`. The shared addresses
    /// must be aligned to it.
    unsafe fn step<T: Copy>(target: *mut u8, source: *const u8);
}

struct FromShared;
struct ToShared;
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
    if len >= STRING && has_fast_strings() {
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
    if len >= STRING && has_fast_strings() {
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
    let skew = target as usize ^ source as usize;
    #[cfg(target_arch = "x86_64")]
    if (skew & (VECTOR - 1) != 0 && len >= 32) || (len >= STRING && has_fast_strings()) {
        // SAFETY: by this function's contract.
        return unsafe { move_string(target, source, len) };
    }

    if skew & (VECTOR - 1) == 0 {
        // SAFETY: by this function's contract; the two addresses are equal modulo VECTOR.
        return unsafe { move_bytes::<BothShared>(target, source, len) };
    }

    // SAFETY: by this function's contract.
    unsafe { move_skewed(target, source, len) };
}

/// Copies between addresses whose difference prevents vector accesses to both.
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

#[inline(always)]
unsafe fn move_array<D: Direction, const N: usize>(target: *mut u8, source: *const u8) {
    if !N.is_multiple_of(16) || N > 512 || D::pivot(target, source) & (VECTOR - 1) != 0 {
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
