//! Once queues and pools have their full size, messages are matched, stored and completed without
//! an allocation.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests; an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use nicforge_matching::{
    Config, Endpoint, Envelope, Mode, Selector,
    memory::{Fabric, FabricConfig, FabricPort},
};

thread_local! {
    /// Counts this thread alone, because the test harness has other threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends 200 messages of several sizes to the rank itself: for the first hundred the receives are
/// posted before the sends, for the rest after them. `memory` holds the buffers.
fn exchange_messages(endpoint: &mut Endpoint<FabricPort>, memory: &mut Vec<Vec<u8>>) {
    for posted_first in [true, false] {
        for receive in [posted_first, !posted_first] {
            for tag in 0..100 {
                let mut buffer = memory.pop().unwrap();
                if receive {
                    endpoint.irecv(Selector::any_source(0, tag).ignoring(0xff00), buffer, 0).unwrap();
                } else {
                    buffer.truncate([0, 8, 2000, 2100][tag as usize % 4]);
                    endpoint.isend(Envelope::new(0, 0, tag), Mode::Standard, buffer, 0).unwrap();
                }
            }
        }

        while let Some(completion) = endpoint.next_completion() {
            completion.result.unwrap();
            let mut buffer = completion.buffer.into_vec().unwrap();
            buffer.resize(2100, 0);
            memory.push(buffer);
        }
    }
}

#[test]
fn messages_of_a_warm_endpoint_allocate_nothing() {
    let (_fabric, mut ports) = Fabric::new(1, FabricConfig::default());
    let config = Config { window: 1 << 20, ..Config::default() };
    let mut endpoint = Endpoint::new(ports.remove(0), config).unwrap();
    let mut memory: Vec<_> = (0..200).map(|_| vec![0; 2100]).collect();

    // After twenty exchanges each slot of a pool has been used for every purpose.
    for _ in 0..20 {
        exchange_messages(&mut endpoint, &mut memory);
    }

    let before = ALLOCATIONS.get();

    for _ in 0..10 {
        exchange_messages(&mut endpoint, &mut memory);
    }

    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!((memory.len(), endpoint.outstanding()), (200, 0));
}
