//! The memory of nodes without clients, in bytes that their machine has allocated.
//!
//! The program has a global allocator that counts. A `GlobalAlloc` is unsafe to implement, so that
//! this test opts in to unsafe code.
#![allow(unsafe_code, reason = "a counting global allocator")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use nicforge_core::{
    context::Context,
    device::{Device, Write},
    fabric::LinkSpec,
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
};

/// The system's allocator, with a count of the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each method calls the system's allocator with the arguments that the caller vouches for.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device that does nothing.
struct Quiet(FunctionSpec);

impl Device for Quiet {
    fn spec(&self) -> FunctionSpec {
        self.0.clone()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: nicforge_core::device::Reset) {}
}

/// Returns the description of a NIC with an admin attachment and 16 others.
fn spec() -> FunctionSpec {
    let identity =
        Identity { vendor: 1, device: 2, subsystem_vendor: 3, subsystem: 4, class: 0x02_80_00, revision: 1 };
    let attachments =
        (0..17).map(|number| AttachmentSpec { name: format!("vpid{number}"), group: 0 }).collect();
    FunctionSpec::nic(
        identity,
        attachments,
        NicSizes {
            register_bytes: 0x1000,
            vectors: 8,
            ring_cells: 64,
            window_bytes: 0x1_0000,
            mirror_bytes: 0x1000,
        },
    )
}

/// Returns a machine of 512 such functions in a torus of 8x8x8, whose links have buffers for many
/// packets.
fn torus() -> Machine {
    let mut machine = Machine::new();
    for node in 0..512 {
        machine.add_function(&format!("node{node}"), Box::new(Quiet(spec()))).unwrap();
    }

    let link = LinkSpec { delay: 20, bits_per_second: 16_000_000_000, ..LinkSpec::new(4, 64, 2048) };
    for node in 0..512u32 {
        for (dimension, stride) in [1, 8, 64].into_iter().enumerate() {
            let at = node / stride % 8;
            let next = node - at * stride + (at + 1) % 8 * stride;
            let (up, down) = (2 * dimension as u8, 2 * dimension as u8 + 1);
            machine.fabric().connect((FunctionId(node), up), (FunctionId(next), down), link.clone()).unwrap();
        }
    }
    machine
}

#[test]
fn node_of_a_large_machine_without_clients_takes_little_memory() {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let machine = torus();
    let per_node = (ALLOCATED.load(Ordering::Relaxed) - before) / machine.functions() as usize;

    assert!(per_node <= 17 << 10, "{per_node} bytes");
}
