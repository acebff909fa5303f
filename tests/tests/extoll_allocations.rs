//! Messages over the EXTOLL card make no allocations in the steady state, neither in the libraries
//! nor, in process, in the machine.

#![allow(unsafe_code, clippy::unwrap_used, clippy::panic, reason = "tests; an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use nicforge_driver::Relax;
use nicforge_extoll_transport::ExtollTransport;
use nicforge_matching::{Config, Endpoint, Transport};
use nicforge_mpi_programs::{
    Program,
    message_rate::{End, Parameters, Side},
};
use nicforge_tests::{
    backing::{InProcess, test_deadline},
    extoll_body::{Extoll, machine},
    matching_body::World,
};

thread_local! {
    /// Allocations of this thread. The test harness makes others on its own threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of allocations.
struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends messages of a size. Returns the allocations for the second half of them, and their number.
fn second_half(bytes: usize) -> (u64, u64) {
    let rig = InProcess::new(machine());
    let mut world = World::new(&Extoll::new(&rig), 2, Config::default());
    let [sender, receiver] = &mut world.ranks[..] else { panic!("two ranks") };
    let terms = Parameters { bytes, window: 64, windows: 40, context: 0 };
    let mut sides = [
        Side::new(receiver, End::Receiver, 0, terms).unwrap(),
        Side::new(sender, End::Sender, 1, terms).unwrap(),
    ];
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    let mut exchange_until = |sides: &mut [Side<'_, Endpoint<ExtollTransport>>; 2], messages: u64| {
        while sides[0].completed() < messages {
            assert!(!deadline.has_passed(), "{} of {messages}", sides[0].completed());
            for side in sides.iter_mut() {
                side.step().unwrap();
            }
            sides[0].endpoint().transport_mut().relax(&mut relax).unwrap();
        }
    };

    let half = terms.messages() / 2;
    exchange_until(&mut sides, half);
    let before = ALLOCATIONS.get();
    exchange_until(&mut sides, 2 * half - 1);

    (ALLOCATIONS.get() - before, half - 1)
}

/// Checks that messages cause no allocation. One in a hundred may cause one, since the machine's
/// packet pool may still reach a new maximum.
fn check_no_allocations(bytes: usize) {
    let (allocations, messages) = second_half(bytes);
    assert!(
        allocations * 100 < messages,
        "{allocations} allocations for {messages} messages of {bytes} bytes"
    );
}

#[test]
fn eager_messages_allocate_nothing() {
    check_no_allocations(8);
    check_no_allocations(2048);
}

#[test]
fn messages_that_are_fetched_allocate_nothing() {
    check_no_allocations(4096);
}
