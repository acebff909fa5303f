//! RMA allocates no memory for a packet once everything has been used once.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::Rig;
use nicforge_core::machine::Next;
use nicforge_hwi::extoll_rma::notify;

/// An allocator that counts.
struct Counting;

thread_local! {
    /// Allocations of this thread. Other threads belong to the test harness.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: each call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_for_a_packet_once_warm() {
    let mut rig = Rig::pair();
    let mut local = rig.peer(0, 0, 1 << 20);
    let mut remote = rig.peer(1, 0, 1 << 20);
    let all = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;

    // Carries out three puts and three gets, and returns the number of allocations.
    let mut exchange = |rig: &mut Rig| {
        let before = ALLOCATIONS.with(Cell::get);
        for length in [8, 5000, 400_000] {
            assert!(
                rig.put(&local, &remote, (0, 0, length), all)
                    && rig.get(&local, &remote, (0, 0, length), all)
            );
        }

        while rig.machine.step(64) == Next::Now {}

        let allocated = ALLOCATIONS.with(Cell::get) - before;
        // A put notifies its requester and the completer at the other side. A get notifies the
        // responder at the other side, and its requester twice: it is the completer, too.
        assert_eq!((local.take_all().len(), remote.take_all().len()), (3 + 2 * 3, 3 + 3));
        allocated
    };

    for _ in 0..5 {
        exchange(&mut rig);
    }

    assert_eq!((0..20).map(|_| exchange(&mut rig)).sum::<u64>(), 0);
}
