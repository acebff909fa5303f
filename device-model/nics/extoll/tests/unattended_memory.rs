//! The memory of cards whose VPIDs have no clients.
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test; an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use nicforge_core::machine::Machine;
use nicforge_extoll::{Card, Topology};

thread_local! {
    /// Bytes that are allocated, for this thread alone, since the test harness has others.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// An allocator that counts.
struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size().cast_signed());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size().cast_signed());
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_unattended_card_of_512_nodes_takes_less_than_6_kilobytes() {
    let topology = Topology::torus(&[8, 8, 8]).unwrap();
    let config = topology.config(7, 16);

    // A machine keeps the configuration to make the card, and the card has it too.
    let before = BYTES.get();
    let card = Box::new(Card::new(config.clone()).unwrap());
    let taken = BYTES.get() - before;

    assert!(taken < 6 << 10, "{taken} bytes");
    drop(card);
    assert_eq!(BYTES.get(), before);
}

#[test]
fn a_machine_of_unattended_cards_takes_less_than_14_kilobytes_a_card() {
    let topology = Topology::torus(&[8, 8, 8]).unwrap();
    let mut machine = Machine::new();
    let add = |machine: &mut Machine, node: u32| {
        let card = Card::new(topology.config(node, 16)).unwrap();
        machine.add_function(&format!("ex{node}"), Box::new(card)).unwrap();
    };

    // The first card brings the layout of configuration space, which all of them share.
    add(&mut machine, 0);
    let before = BYTES.get();
    (1..65).for_each(|node| add(&mut machine, node));
    let taken = (BYTES.get() - before) / 64;

    assert!(taken < 14 << 10, "{taken} bytes");
}
