//! Hints that memory is needed soon.
//!
//! UNSAFETY: a prefetch instruction takes an address, and moves the line between caches. It neither
//! faults nor reads or changes a value, whatever the address is.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Requests the first cache line of a value, which the processor loads while it continues. It has
/// no effect on targets without such an instruction.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_line(std::ptr::from_ref(value).cast());
}

/// Requests `LINES` cache lines from the start of a value on, as [`prefetch`] does.
#[inline(always)]
pub fn prefetch_lines<const LINES: usize, T: ?Sized>(value: &T) {
    prefetch_from::<LINES>(std::ptr::from_ref(value).cast());
}

/// Requests `LINES` cache lines from the start of a table's entry on, as [`prefetch`] does. The
/// request has no use if the table has no such entry.
#[inline(always)]
pub fn prefetch_entry<const LINES: usize, T>(table: &[T], index: usize) {
    prefetch_from::<LINES>(table.as_ptr().wrapping_add(index).cast());
}

#[inline(always)]
fn prefetch_from<const LINES: usize>(first: *const u8) {
    for line in 0..LINES {
        prefetch_line(first.wrapping_add(line * LINE));
    }
}

#[inline(always)]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of each x86-64 processor, and any address is permitted.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Requests the cache line of an address for writing: other processors give up their copies. It has
/// no effect on targets without such an instruction.
#[inline(always)]
pub(crate) fn prefetch_for_writing(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: processors without the instruction take it as one that does nothing, and any address
    // is permitted. It changes neither memory nor registers.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
