//! An allocator that counts allocations of all threads between the marks of a stream.
#![allow(unsafe_code, reason = "an allocator is asked for memory by unsafe calls")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    process::{Counted, Process},
    workload::{CALLERS, Mark, PACKETS},
};

/// Allocations so far, of the whole process.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Number of callers that have passed the first mark.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The allocations when the last caller passed the first mark, and when the first caller passed the
/// second one; [`NEVER`] before.
static AT: [AtomicU64; 2] = [AtomicU64::new(NEVER), AtomicU64::new(NEVER)];

/// The number at a mark that was not passed yet.
const NEVER: u64 = u64::MAX;

/// The system's allocator, with a count of allocations.
struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Checks that no thread of the stream allocates after its warm-up, neither the engine's nor the
/// library's callers.
pub(crate) fn check(test: &str) {
    let mut process = Process::start(test, Counted::Allocations);
    process.begin();
    let line = process.output.by_ref().map_while(Result::ok).find(|line| line.starts_with("allocations "));
    assert_eq!(line.as_deref(), Some("allocations 0"), "while {PACKETS} packets went by");
}

/// Records that a caller passes a mark.
pub(crate) fn mark(mark: Mark) {
    let now = ALLOCATIONS.load(Ordering::SeqCst);
    match mark {
        Mark::Begin if BEGUN.fetch_add(1, Ordering::SeqCst) + 1 == CALLERS => {
            AT[0].store(now, Ordering::SeqCst)
        }
        Mark::Begin => {}
        Mark::End => {
            AT[1].fetch_min(now, Ordering::SeqCst);
        }
    }
}

/// Returns the allocations while all callers were between their marks. `None` if they never were.
pub(crate) fn counted() -> Option<u64> {
    let [begin, end] = [&AT[0], &AT[1]].map(|at| at.load(Ordering::SeqCst));
    if begin == NEVER || end == NEVER { None } else { end.checked_sub(begin) }
}

#[test]
fn an_allocation_is_counted() {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(7)));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > before);
}
