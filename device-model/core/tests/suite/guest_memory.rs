//! Tests of client memory as `vm-memory` sees it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::atomic::Ordering;

use crate::common::*;
use nicforge_core::{
    context::Context,
    dma::{DmaBacking, DmaError, DmaPermission, GuestMemoryView, MAX_DMA},
    machine::{Machine, Next, region},
    time::Nanos,
};
use nicforge_shm::SharedMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// Runs an action with the client's memory in a step.
fn with_memory(
    machine: &mut Machine,
    probe: &Probe,
    action: impl FnOnce(&GuestMemoryView<'_>) + Send + 'static,
) -> Next {
    in_step(machine, probe, |context| action(&context.guest_memory(A).unwrap()))
}

/// Runs an action with the device's context in a step, and asserts that it ran. Returns the result
/// of the step.
fn in_step(
    machine: &mut Machine,
    probe: &Probe,
    action: impl FnOnce(&mut Context<'_>) + Send + 'static,
) -> Next {
    probe.queue_action(action);
    machine.wake(F);
    let next = machine.step(Nanos(0), 64);
    assert!(probe.script().actions.is_empty(), "the action ran");
    next
}

/// Returns a machine with pages that are adjacent in the client's addresses only, and a read-only
/// page after them.
fn scattered() -> (Machine, Probe, Vec<SharedMemory>) {
    let (mut machine, probe) = attached();
    let pages = (0..4).map(|page| map_local(&mut machine, A, 0x1000 * (1 + page), 0x1000)).collect();
    let read_only = SharedMemory::create("read-only", 0x1000).unwrap();
    let backing = DmaBacking::Memory(read_only.whole());
    machine.dma_map(F, A, 0x5000, 0x1000, DmaPermission::READ, backing).unwrap();
    (machine, probe, pages)
}

#[test]
fn an_access_continues_in_the_next_mapping() {
    let (mut machine, probe, pages) = scattered();
    let data: Vec<u8> = (0..0x3000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    let sent = data.clone();

    with_memory(&mut machine, &probe, move |memory| {
        memory.write_slice(&sent, GuestAddress(0x1800)).unwrap();
        let mut bytes = vec![0; sent.len()];
        memory.read_slice(&mut bytes, GuestAddress(0x1800)).unwrap();
        assert_eq!(bytes, sent);
        memory.copy_from(0x1800, &mut bytes).unwrap();
        assert_eq!(bytes, sent);

        memory.copy_to(0x1ffe, &[1, 2, 3, 4]).unwrap();
        assert_eq!(memory.read_obj::<u32>(GuestAddress(0x1ffe)).unwrap(), 0x0403_0201);
        memory.store(7_u16, GuestAddress(0x2000), Ordering::Release).unwrap();
        assert_eq!(memory.load::<u16>(GuestAddress(0x2000), Ordering::Acquire).unwrap(), 7);
        assert_eq!(memory.error(), None);
    });

    let mut page = [0; 0x1000];
    pages[2].read(0, &mut page).unwrap();
    assert_eq!(page, data[0x1800..0x2800]);
}

#[test]
fn unmapped_and_forbidden_accesses_are_refused_and_the_first_error_is_kept() {
    let (mut machine, probe, _) = scattered();
    map_remote(&mut machine, A, 0x6000, 0x1000);

    with_memory(&mut machine, &probe, |memory| {
        let range = |from: u64, length, access| memory.check_range(GuestAddress(from), length, access);
        assert!(range(0x1000, 0x5000, Permissions::Read));
        assert!(range(0x1000, 0x4000, Permissions::ReadWrite));
        assert!(!range(0x1000, 0x4001, Permissions::Write));
        assert!(!range(0x1000, 0x4001, Permissions::ReadWrite));
        assert!(!range(0x1000, 0x5001, Permissions::Read), "messages reach it only");
        assert!(!range(0xfff, 2, Permissions::Read));
        assert_eq!(memory.error(), None, "a question is no access");

        assert!(memory.write_obj(1_u32, GuestAddress(0x5000)).is_err());
        assert!(memory.read_obj::<u32>(GuestAddress(0x7000)).is_err());
        let first = DmaError::Permission { iova: 0x5000, length: 4, write: true };
        assert_eq!(memory.error(), Some(first));
    });

    for (address, error) in [
        (0x7000, DmaError::Unmapped { iova: 0x7000, length: 4 }),
        (u64::MAX, DmaError::Unmapped { iova: u64::MAX, length: 4 }),
        (0x6000, DmaError::Remote { iova: 0x6000 }),
        (0x5ffe, DmaError::Remote { iova: 0x6000 }),
    ] {
        with_memory(&mut machine, &probe, move |memory| {
            assert!(memory.read_obj::<u32>(GuestAddress(address)).is_err());
            assert_eq!(memory.error(), Some(error));
        });
    }
    with_memory(&mut machine, &probe, |memory| {
        let length = MAX_DMA + 1;
        assert!(memory.read_slice(&mut vec![0; length], GuestAddress(0x1000)).is_err());
        assert_eq!(memory.error(), Some(DmaError::TooLong { length }));
    });
}

#[test]
fn words_that_are_split_or_misaligned_are_refused() {
    let (mut machine, probe, _) = scattered();

    with_memory(&mut machine, &probe, |memory| {
        assert!(memory.load::<u16>(GuestAddress(0x1fff), Ordering::Relaxed).is_err());
        assert!(memory.store(1_u32, GuestAddress(0x1002), Ordering::Relaxed).is_err());
        assert!(memory.load::<u64>(GuestAddress(0x1ffc), Ordering::Relaxed).is_err());
    });
}

#[test]
fn bytes_and_errors_are_counted_and_an_error_sets_received_master_abort() {
    let (mut machine, probe, _) = scattered();

    in_step(&mut machine, &probe, |context| {
        let memory = context.guest_memory(A).unwrap();
        memory.write_slice(&[1; 100], GuestAddress(0x1000)).unwrap();
        memory.copy_to(0x1000, &[1; 20]).unwrap();
        memory.read_slice(&mut [0; 30], GuestAddress(0x1000)).unwrap();
        memory.copy_from(0x9000, &mut [0; 4]).unwrap_err();
        let error = memory.error().unwrap();
        context.count_dma_error(A, &error);
    });

    let counters = machine.attachment_counters(F, A).unwrap();
    assert_eq!(counters.dma_written_bytes, 120);
    assert_eq!(counters.dma_read_bytes, 30);
    assert_eq!(counters.dma_errors, 1);
    let status = u16::from_le_bytes(read(&mut machine, A, region::CONFIG, 0x06));
    assert_ne!(status & 1 << 13, 0, "received master abort");
}

#[test]
fn writes_wait_for_an_earlier_write_by_message() {
    const REMOTE: u64 = 0x10_0000;

    let (mut machine, probe, _) = scattered();
    map_remote(&mut machine, A, REMOTE, 4096);

    in_step(&mut machine, &probe, |context| {
        context.dma_write(A, REMOTE, &[1; 8]).unwrap();
        let memory = context.guest_memory(A).unwrap();

        assert_eq!(memory.copy_to(0x1000, &[1; 4]), Err(DmaError::Busy));
        assert!(memory.write_slice(&[1; 4], GuestAddress(0x1000)).is_err());
        assert_eq!(memory.copy_from(0x1000, &mut [0; 4]), Ok(()));
    });
}

/// Accessed bytes use up the step's allowance: functions after this one wait for the next step.
#[test]
fn bytes_accessed_count_against_the_step() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0, MAX_DMA);
    let (other, other_probe) = add(&mut machine, "node1", spec());
    let now = go_cold(&mut machine, 0);
    other_probe.steps();

    probe.queue_action(|context| {
        let memory = context.guest_memory(A).unwrap();
        let mut data = vec![0; MAX_DMA];
        for _ in 0..8 {
            memory.read_slice(&mut data, GuestAddress(0)).unwrap();
        }
    });
    machine.wake(F);
    machine.wake(other);

    let next = machine.step(Nanos(now), 64);
    let in_same_step = other_probe.steps();
    machine.step(Nanos(now), 64);

    assert_eq!((next, in_same_step, other_probe.steps()), (Next::Now, 0, 1));
}

#[test]
fn without_bus_mastering_or_client_there_is_no_memory() {
    let (mut machine, probe) = machine();
    let refuses_with = |expected: DmaError| {
        move |context: &mut Context<'_>| assert_eq!(context.guest_memory(A).err(), Some(expected))
    };

    in_step(&mut machine, &probe, refuses_with(DmaError::Gone));
    machine.attach(F, A).unwrap();
    in_step(&mut machine, &probe, refuses_with(DmaError::NotBusMaster));
    set_bus_master(&mut machine, A);
    with_memory(&mut machine, &probe, |memory| assert_eq!(memory.error(), None));
}
