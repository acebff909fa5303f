//! The bytes that this program has allocated.
//!
//! The program's global allocator counts while [`count`] runs, in a child process of a bench. At
//! other times it passes requests on.
//!
//! Unsafe code: a global allocator is an unsafe trait. Each of its methods passes its arguments to
//! the system's allocator.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicIsize, Ordering},
};

/// Whether the allocator counts.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
/// Bytes allocated, less the bytes freed.
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, which counts on request.
#[derive(Debug)]
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls `work`, and returns its result and the bytes that it has allocated and not freed. Bytes of
/// other threads count, too.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = BYTES.load(Ordering::Relaxed);
    IS_COUNTING.store(true, Ordering::Relaxed);
    let result = work();
    IS_COUNTING.store(false, Ordering::Relaxed);

    (result, BYTES.load(Ordering::Relaxed) - before)
}

/// Adds to the count while the allocator counts.
#[inline]
fn add(bytes: isize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: all memory comes from the system's allocator, by the same layouts.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_bytes_that_are_not_freed_are_counted() {
        const KEPT: usize = 64 << 20;
        let (buffers, bytes) = count(|| {
            drop(vec![0u8; 1 << 20]);
            vec![1u8; KEPT]
        });

        // Other tests of this program allocate and free some memory meanwhile.
        let near = usize::try_from(bytes).is_ok_and(|bytes| bytes.abs_diff(KEPT) <= KEPT / 2);
        assert!(near, "{bytes} bytes for {}", buffers.len());
    }
}
