//! Tests of DMA: split-phase reads, posted writes, messages, and their bounds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::*;
use nicforge_core::{
    context::{Context, MAX_REMOTE},
    device::Ended,
    dma::{DmaBacking, DmaError, DmaPermission, MAX_DMA},
    ids::{AttachmentId, DmaToken},
    machine::{Access, Machine, Next, Outgoing, region},
    time::Nanos,
};
use nicforge_shm::SharedMemory;

/// Runs an action with the device's context in a step, and returns its result.
pub(super) fn in_step<R: Send + 'static>(
    machine: &mut Machine,
    probe: &Probe,
    action: impl FnOnce(&mut Context<'_>) -> R + Send + 'static,
) -> R {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    probe.queue_action(move |context| *slot.lock().unwrap() = Some(action(context)));
    machine.wake(F);
    machine.step(Nanos(0), 64);
    let mut result = result.lock().unwrap();
    result.take().unwrap()
}

/// Starts a read of `length` bytes at `iova`, and returns its result.
fn read_dma(machine: &mut Machine, probe: &Probe, iova: u64, length: usize) -> Result<Vec<u8>, DmaError> {
    probe.calls();
    in_step(machine, probe, move |context| context.dma_read(A, iova, length, DmaToken(5))).unwrap();
    step_until_idle(machine, 0);
    let mut done = probe.done();
    assert_eq!((done.len(), done[0].0), (1, 5));
    done.remove(0).1
}

/// Has the device write bytes to client memory in a step.
fn write_dma(machine: &mut Machine, probe: &Probe, iova: u64, data: &[u8]) -> Result<(), DmaError> {
    let data = data.to_vec();
    in_step(machine, probe, move |context| context.dma_write(A, iova, &data))
}

#[test]
fn data_of_a_read_comes_after_the_call_that_started_it() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000).write(8, b"hello").unwrap();
    let inner = probe.clone();
    let within = in_step(&mut machine, &probe, move |context| {
        context.dma_read(A, 0x1008, 5, DmaToken(9)).unwrap();
        inner.done()
    });

    step_until_idle(&mut machine, 0);

    assert_eq!(within, []);
    assert_eq!(probe.done(), [(9, Ok(b"hello".to_vec()))]);
}

#[test]
fn read_that_a_trapped_write_started_ends_in_the_next_step() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    probe.queue_action(|context| context.dma_read(A, 0x1000, 4, DmaToken(1)).unwrap());

    write(&mut machine, A, 0, 0x10, &[1]);
    let before = probe.done();
    machine.step(Nanos(0), 1);

    assert_eq!((before, probe.done()), (vec![], vec![(1, Ok(vec![0; 4]))]));
}

#[test]
fn local_memory_is_read_and_written_at_once_and_counted() {
    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x2_0000);
    memory.write(0, &[3; MAX_DMA]).unwrap();

    let all = read_dma(&mut machine, &probe, 0x1000, MAX_DMA);
    let none = read_dma(&mut machine, &probe, 0x1000, 0);
    let wrote = write_dma(&mut machine, &probe, 0x1010, b"abc");

    let mut bytes = [0; 5];
    memory.read(0xf, &mut bytes).unwrap();
    let counters = machine.attachment_counters(F, A).unwrap();

    assert_eq!((all, none, wrote), (Ok(vec![3; MAX_DMA]), Ok(vec![]), Ok(())));
    assert_eq!(bytes, [3, b'a', b'b', b'c', 3]);
    assert_eq!((counters.dma_read_bytes, counters.dma_written_bytes), (MAX_DMA as u64, 3));
    assert_eq!(outgoing(&mut machine), []);
}

#[test]
fn unmapped_forbidden_and_too_long_dma_fails_and_is_counted() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    let page = DmaBacking::Memory(SharedMemory::create("read-only", 0x1000).unwrap().whole());
    machine.dma_map(F, A, 0x2000, 0x1000, DmaPermission::READ, page).unwrap();

    let reads = [
        read_dma(&mut machine, &probe, 0x2ffc, 8),
        read_dma(&mut machine, &probe, 0, 1),
        read_dma(&mut machine, &probe, u64::MAX, 8),
        read_dma(&mut machine, &probe, 0x1000, MAX_DMA + 1),
    ];
    let write = write_dma(&mut machine, &probe, 0x1ffc, &[1; 8]);

    assert_eq!(reads[0], Err(DmaError::Unmapped { iova: 0x3000, length: 4 }));
    assert!(matches!(reads[1], Err(DmaError::Unmapped { .. })));
    assert!(matches!(reads[2], Err(DmaError::Unmapped { .. })));
    assert_eq!(reads[3], Err(DmaError::TooLong { length: MAX_DMA + 1 }));
    assert_eq!(write, Err(DmaError::Permission { iova: 0x2000, length: 4, write: true }));
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 5);
}

#[test]
fn dma_fails_after_unmap() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);

    assert_eq!(write_dma(&mut machine, &probe, 0x1000, &[1]), Ok(()));

    machine.dma_unmap(F, A, 0x1000, 0x1000).unwrap();
    let unmapped = write_dma(&mut machine, &probe, 0x1000, &[1]);
    map_local(&mut machine, A, 0x1000, 0x1000);
    machine.dma_unmap_all(F, A).unwrap();

    assert_eq!(unmapped, Err(DmaError::Unmapped { iova: 0x1000, length: 1 }));
    assert!(read_dma(&mut machine, &probe, 0x1000, 1).is_err());
}

#[test]
fn dma_to_an_unmapped_address_sets_received_master_abort() {
    let (mut machine, probe) = attached();
    let status = |machine: &mut Machine| u16::from_le_bytes(read(machine, A, region::CONFIG, 0x06));
    let before = status(&mut machine);

    assert!(write_dma(&mut machine, &probe, 0xdead_0000, b"lost").is_err());

    assert_eq!((before & 0x2000, status(&mut machine) & 0x2000), (0, 0x2000));
}

#[test]
fn no_dma_without_bus_master_or_client() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    write(&mut machine, A, region::CONFIG, 0x04, &[0, 0]);

    let read = read_dma(&mut machine, &probe, 0x1000, 4);
    let write = write_dma(&mut machine, &probe, 0x1000, &[1]);
    let without_client = in_step(&mut machine, &probe, |context| {
        context.dma_read(B, 0, 4, DmaToken(1)).unwrap();
        context.dma_read(AttachmentId(77), 0, 4, DmaToken(2)).unwrap();
        [B, AttachmentId(77)].map(|attachment_id| context.dma_write(attachment_id, 0, &[1]))
    });

    step_until_idle(&mut machine, 0);

    assert_eq!((read, write), (Err(DmaError::NotBusMaster), Err(DmaError::NotBusMaster)));
    assert_eq!(without_client, [Err(DmaError::Gone); 2]);
    assert_eq!(probe.done(), [(1, Err(DmaError::Gone)), (2, Err(DmaError::Gone))]);
}

#[test]
fn remote_memory_is_reached_by_messages() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);

    in_step(&mut machine, &probe, |context| {
        context.dma_read(A, 0x1010, 4, DmaToken(7)).unwrap();
        context.dma_write(A, 0x1020, b"xyz").unwrap();
    });

    let messages = outgoing(&mut machine);
    let early = probe.done();
    machine.dma_read_done(F, A, id_of(&messages[0]), Ok(b"data")).unwrap();
    machine.dma_write_done(F, A, id_of(&messages[1]), Ok(())).unwrap();
    step_until_idle(&mut machine, 0);

    let (function, attachment) = (F, A);
    let (read, write) = (id_of(&messages[0]), id_of(&messages[1]));

    assert_eq!(
        messages,
        [
            Outgoing::DmaRead { id: read, function, attachment, iova: 0x1010, length: 4 },
            Outgoing::DmaWrite { id: write, function, attachment, iova: 0x1020, data: b"xyz".to_vec() }
        ]
    );
    assert_eq!((early, probe.done()), (vec![], vec![(7, Ok(b"data".to_vec()))]));
}

#[test]
fn machine_asks_to_be_stepped_while_messages_wait() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    probe.queue_action(|context| context.dma_write(A, 0x1000, &[1]).unwrap());

    let with_message = machine.step(Nanos(0), 64);
    outgoing(&mut machine);
    let without = machine.step(Nanos(0), 64);

    assert_eq!((with_message, without), (Next::Now, Next::Poll));
}

#[test]
fn access_of_both_kinds_of_memory_goes_by_message_as_a_whole() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, A, 0x2000, 0x1000);

    in_step(&mut machine, &probe, |context| context.dma_read(A, 0x1ffc, 8, DmaToken(1))).unwrap();

    assert!(matches!(outgoing(&mut machine)[..], [Outgoing::DmaRead { iova: 0x1ffc, length: 8, .. }]));
}

#[test]
fn bad_answers_become_errors_of_the_device() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    in_step(&mut machine, &probe, |context| {
        for token in 0..3 {
            context.dma_read(A, 0x1000, 8, DmaToken(token)).unwrap();
        }
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();

    machine.dma_read_done(F, A, ids[0], Ok(&[1; 7])).unwrap();
    machine.dma_read_done(F, A, ids[1], Ok(&[1; 9])).unwrap();
    machine.dma_read_done(F, A, ids[2], Err(DmaError::Refused { errno: 14 })).unwrap();
    step_until_idle(&mut machine, 0);

    let expected = [
        (0, Err(DmaError::ShortAnswer { length: 7, wanted: 8 })),
        (1, Err(DmaError::ShortAnswer { length: 9, wanted: 8 })),
        (2, Err(DmaError::Refused { errno: 14 })),
    ];

    assert_eq!(probe.done(), expected);
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 3);
}

#[test]
fn answers_without_a_request_are_ignored() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    map_remote(&mut machine, A, 0x1000, 0x1000);
    in_step(&mut machine, &probe, |context| {
        context.dma_read(A, 0x1000, 4, DmaToken(1)).unwrap();
        context.dma_write(A, 0x1000, &[1]).unwrap();
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();

    // Another client sends answers with the right numbers.
    machine.dma_read_done(F, B, ids[0], Ok(&[1; 4])).unwrap();
    machine.dma_write_done(F, B, ids[1], Ok(())).unwrap();
    machine.dma_read_done(F, A, u64::MAX, Ok(&[1; 4])).unwrap();
    machine.reset_attachment(F, A).unwrap();
    machine.dma_read_done(F, A, ids[0], Ok(&[1; 4])).unwrap();
    machine.dma_write_done(F, A, ids[1], Ok(())).unwrap();
    step_until_idle(&mut machine, 0);
    machine.detach(F, A, Ended::Closed).unwrap();

    assert_eq!(probe.done(), []);
    assert!(machine.dma_read_done(F, A, ids[0], Ok(&[1; 4])).is_err());
}

#[test]
fn reads_of_one_attachment_are_bounded_and_resume_after_a_reply() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    map_local(&mut machine, A, 0x1000, 0x1000);
    map_local(&mut machine, B, 0x1000, 0x1000);
    let started = |attachment_id| {
        move |context: &mut Context<'_>| {
            (0..1000)
                .take_while(|&token| {
                    context.dma_read(attachment_id, 0x1000, 4, DmaToken(token)) != Err(DmaError::Busy)
                })
                .count()
        }
    };

    let (of_a, of_b) =
        in_step(&mut machine, &probe, move |context| (started(A)(context), started(B)(context)));
    step_until_idle(&mut machine, 0);
    let started_again = in_step(&mut machine, &probe, started(A));

    assert_eq!((of_a, of_b, started_again), (MAX_REMOTE, MAX_REMOTE, MAX_REMOTE));
}

#[test]
fn the_budget_of_a_step_bounds_the_reads_that_are_reported_done() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    probe.queue_action(|context| {
        for token in 0..20 {
            context.dma_read(A, 0x1000, 4, DmaToken(token)).unwrap();
        }
    });

    machine.wake(F);
    let mut done_in_steps = Vec::new();
    while done_in_steps.iter().sum::<usize>() < 20 {
        assert_eq!(machine.step(Nanos(0), 8), Next::Now);
        done_in_steps.push(probe.done().len());
    }

    assert_eq!(done_in_steps, [8, 8, 4]);
}

#[test]
fn reads_that_fail_are_bounded_too() {
    let (mut machine, probe) = attached();
    let mut failed = 0;
    for _ in 0..100 {
        // There is no step in between, as when a client only sends trapped writes.
        probe.queue_action(|context| while context.dma_read(A, 0, 4, DmaToken(0)).is_ok() {});
        probe.queue_action(|context| while context.dma_read(AttachmentId(99), 0, 4, DmaToken(0)).is_ok() {});
        write(&mut machine, A, 0, 0, &[1]);
    }

    for _ in 0..100 {
        machine.step(Nanos(0), 64);
        failed += probe.done().len();
    }

    assert!(failed <= 2 * MAX_REMOTE, "{failed}");
}

#[test]
fn messages_of_one_attachment_are_bounded() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);

    let (reads, writes) = in_step(&mut machine, &probe, |context| {
        let reads = (0..1000).take_while(|_| context.dma_read(A, 0x1000, 4, DmaToken(0)).is_ok()).count();
        let writes = (0..1000).take_while(|_| context.dma_write(A, 0x1000, &[1]).is_ok()).count();
        assert_eq!(context.dma_write(A, 0x1000, &[1]), Err(DmaError::Busy));
        (reads, writes)
    });

    let messages = outgoing(&mut machine);
    for message in &messages {
        match message {
            Outgoing::DmaRead { id, .. } => machine.dma_read_done(F, A, *id, Ok(&[0; 4])).unwrap(),
            Outgoing::DmaWrite { id, .. } => machine.dma_write_done(F, A, *id, Ok(())).unwrap(),
        }
    }

    step_until_idle(&mut machine, 0);
    let started_again = write_dma(&mut machine, &probe, 0x1000, &[1]);

    assert_eq!((reads, writes, messages.len()), (MAX_REMOTE, MAX_REMOTE, 2 * MAX_REMOTE));
    assert_eq!(started_again, Ok(()));
}

#[test]
fn messages_not_sent_are_forgotten_at_a_reset() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    map_remote(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, B, 0x1000, 0x1000);
    for _ in 0..100 {
        in_step(&mut machine, &probe, |context| {
            while context.dma_write(A, 0x1000, &[1; 64]).is_ok() {}
            while context.dma_read(A, 0x1000, 64, DmaToken(0)).is_ok() {}
        });
        machine.reset_attachment(F, A).unwrap();
        set_bus_master(&mut machine, A);
    }

    in_step(&mut machine, &probe, |context| context.dma_write(B, 0x1000, b"b")).unwrap();
    machine.reset_attachment(F, A).unwrap();

    let remaining = outgoing(&mut machine);

    assert!(matches!(&remaining[..], [Outgoing::DmaWrite { attachment: B, .. }]), "{remaining:?}");
}

#[test]
fn resets_free_the_slots_of_reads() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    for round in 0..50 {
        // At the reset the data has arrived, but the device has not received it.
        probe.queue_action(|context| while context.dma_read(A, 0x1000, 4, DmaToken(0)).is_ok() {});
        write(&mut machine, A, 0, 0, &[1]);
        match round % 3 {
            0 => machine.reset_attachment(F, A).unwrap(),
            1 => machine.reset_function(F).unwrap(),
            _ => {
                machine.detach(F, A, Ended::Closed).unwrap();
                machine.attach(F, A).unwrap();
                map_local(&mut machine, A, 0x1000, 0x1000);
            }
        }
        set_bus_master(&mut machine, A);
    }

    let stale = probe.done();

    assert_eq!((stale, read_dma(&mut machine, &probe, 0x1000, 4)), (vec![], Ok(vec![0; 4])));
}

#[test]
fn write_answers_with_an_error_are_counted() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    write_dma(&mut machine, &probe, 0x1000, &[1]).unwrap();
    let id = id_of(&outgoing(&mut machine)[0]);

    machine.dma_write_done(F, A, id, Err(DmaError::Refused { errno: 5 })).unwrap();

    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 1);
}

#[test]
fn truncated_file_is_seen_until_a_reset() {
    nicforge_shm::install_sigbus_guard().unwrap();
    let (mut machine, probe) = attached();
    let file = nix::sys::memfd::memfd_create(c"client", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 0x2000).unwrap();
    let memory = SharedMemory::map_guarded(
        std::os::fd::AsFd::as_fd(&file),
        0,
        0x2000,
        nicforge_shm::Access::ReadWrite,
    )
    .unwrap();
    let backing = DmaBacking::Memory(memory.whole());
    machine.dma_map(F, A, 0x1000, 0x2000, DmaPermission::READ_WRITE, backing).unwrap();
    nix::unistd::ftruncate(&file, 0).unwrap();

    let outcome = read_dma(&mut machine, &probe, 0x1000, 16);
    let faulted = machine.is_faulted(F, A);
    machine.reset_attachment(F, A).unwrap();

    assert_eq!((outcome, faulted), (Err(DmaError::Faulted { iova: 0x1000 }), true));
    assert!(!machine.is_faulted(F, A));
}

#[test]
fn messages_that_wait_when_bus_mastering_ends_fail() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, nicforge_core::interrupt::MSIX, 0);
    in_step(&mut machine, &probe, |context| {
        context.dma_read(A, 0x1000, 4, DmaToken(7)).unwrap();
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.interrupt(A, 0);
    });

    let early = sink.get();

    write(&mut machine, A, region::CONFIG, 0x04, &0x0002u16.to_le_bytes());

    assert_eq!((outgoing(&mut machine), early, sink.get()), (vec![], 0, 1));

    step_until_idle(&mut machine, 0);
    assert_eq!(probe.done(), [(7, Err(DmaError::NotBusMaster))]);

    // No operation is in flight: the whole limit is available again.
    set_bus_master(&mut machine, A);
    let started = in_step(&mut machine, &probe, |context| {
        (0..100).take_while(|_| context.dma_write(A, 0x1000, &[1]).is_ok()).count()
    });

    assert_eq!(started, MAX_REMOTE);
}

#[test]
fn the_end_of_bus_mastering_is_reported_once() {
    let (mut machine, _) = attached();
    let config = |machine: &mut Machine, offset: u64, data: &[u8]| {
        machine.write(F, A, region::CONFIG, offset, data).unwrap()
    };

    assert_eq!(config(&mut machine, 0x04, &[2, 0]), Access::BusMasteringLost);
    assert_eq!(config(&mut machine, 0x04, &[2, 0]), Access::Done);
    assert_eq!(config(&mut machine, 0x04, &[6, 0]), Access::Done);

    // Initiate Function-Level Reset, bit 15 of Device Control.
    assert_eq!(config(&mut machine, 0x48 + 8, &0x8000u16.to_le_bytes()), Access::BusMasteringLost);
    assert_eq!(config(&mut machine, 0x48 + 8, &0x8000u16.to_le_bytes()), Access::Done);
}
