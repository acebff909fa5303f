//! Tests of attach, detach and resets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::atomic::Ordering;

use crate::common::*;
use nicforge_core::{
    device::{Ended, Reset},
    dma::{DmaError, DmaMapError},
    ids::{AttachmentId, FunctionId},
    machine::{Machine, MachineError, Next, region},
    time::Nanos,
};
use nicforge_hwi::attachment::{control, mirror};

#[test]
fn attach_gives_each_client_zeroed_memory_of_its_own() {
    let (mut machine, probe) = machine();

    attach(&mut machine, A);
    attach(&mut machine, C);
    memory(&machine, A, 1).write(WINDOWS, b"mine").unwrap();

    let mut bytes = [1; 4];
    memory(&machine, C, 1).read(WINDOWS, &mut bytes).unwrap();

    assert_eq!(bytes, [0; 4]);
    assert_eq!(probe.calls(), [Call::Attached(A), Call::Attached(C)]);
}

#[test]
fn next_client_does_not_see_memory_that_the_previous_one_keeps() {
    let (mut machine, _) = attached();
    let old_memory = memory(&machine, A, 1);
    old_memory.write(WINDOWS, b"old").unwrap();

    machine.detach(F, A, Ended::Closed).unwrap();
    attach(&mut machine, A);
    old_memory.write(WINDOWS + 0x100, b"from the grave").unwrap();

    let mut bytes = [1; 0x200];
    memory(&machine, A, 1).read(WINDOWS, &mut bytes).unwrap();

    assert_eq!(bytes, [0; 0x200]);
}

#[test]
fn without_a_client_there_is_no_memory_and_no_access() {
    let (mut machine, _) = attached();

    machine.detach(F, A, Ended::Closed).unwrap();

    assert!(machine.region(F, A, 1).unwrap().memory.is_none());
    assert!(machine.read(F, A, 0, 0, &mut [0; 4]).is_err());
    assert!(!machine.is_attached(F, A));
}

#[test]
fn second_client_is_refused_while_the_first_stays() {
    let (mut machine, _) = attached();

    let second = machine.attach(F, A);

    assert!(matches!(second, Err(MachineError::Taken { function: 0, attachment: 0 })));
    assert!(machine.is_attached(F, A));
}

#[test]
fn missing_functions_and_attachments_are_refused() {
    let (mut machine, _) = attached();
    let (no_function, no_attachment) = (FunctionId(7), AttachmentId(9));

    assert!(matches!(machine.attach(no_function, A), Err(MachineError::NoSuchAttachment { .. })));
    assert!(matches!(machine.attach(F, no_attachment), Err(MachineError::NoSuchAttachment { .. })));
    assert!(matches!(machine.detach(F, B, Ended::Closed), Err(MachineError::NotAttached { .. })));
    assert!(matches!(machine.reset_attachment(F, no_attachment), Err(MachineError::NoSuchAttachment { .. })));
    assert!(matches!(machine.reset_function(no_function), Err(MachineError::NoSuchAttachment { .. })));
    assert!(matches!(machine.mark_dead(F, B), Err(MachineError::NotAttached { .. })));
    assert!(matches!(machine.dma_unmap(F, A, 0, 1), Err(MachineError::DmaMap(DmaMapError::NotFound { .. }))));
    assert!(machine.region(no_function, A, 0).is_err());
    assert!(machine.irq_info(no_function, A, 0).is_none());

    machine.wake(no_function);
}

#[test]
fn group_memory_is_shared_within_the_group_only() {
    let (mut machine, _) = machine();
    for attachment_id in [A, B, C] {
        attach(&mut machine, attachment_id);
    }

    memory(&machine, A, BAR_GROUP).write(0, b"ours").unwrap();

    let (mut of_b, mut of_c) = ([0; 4], [1; 4]);
    memory(&machine, B, BAR_GROUP).read(0, &mut of_b).unwrap();
    memory(&machine, C, BAR_GROUP).read(0, &mut of_c).unwrap();

    assert_eq!((of_b, of_c), (*b"ours", [0; 4]));
}

#[test]
fn group_memory_is_renewed_only_when_the_group_is_empty() {
    let (mut machine, _) = machine();
    attach(&mut machine, A);
    attach(&mut machine, B);
    let first = memory(&machine, A, BAR_GROUP);
    first.write(0, b"ours").unwrap();

    machine.detach(F, A, Ended::Closed).unwrap();
    attach(&mut machine, A);
    let mut while_b_stays = [0; 4];
    memory(&machine, A, BAR_GROUP).read(0, &mut while_b_stays).unwrap();
    machine.detach(F, A, Ended::Closed).unwrap();
    machine.detach(F, B, Ended::Closed).unwrap();
    attach(&mut machine, B);
    first.write(0, b"late").unwrap();

    let mut renewed = [1; 4];
    memory(&machine, B, BAR_GROUP).read(0, &mut renewed).unwrap();

    assert_eq!((while_b_stays, renewed), (*b"ours", [0; 4]));
}

#[test]
fn mirror_file_cannot_be_mapped_for_writing() {
    let (machine, _) = attached();
    let view = machine.region(F, A, 2).unwrap();
    let memory = view.memory.unwrap();
    let fd = memory.fd().unwrap();

    let length = memory.len();
    let for_writing = nicforge_shm::SharedMemory::map(fd, 0, length, nicforge_shm::Access::ReadWrite);
    let for_reading = nicforge_shm::SharedMemory::map(fd, 0, length, nicforge_shm::Access::ReadOnly);

    assert!(!view.writable);
    assert!(for_writing.is_err());
    assert_eq!(mirror_word(&for_reading.unwrap(), mirror::MAGIC), mirror::MAGIC_VALUE);
}

#[test]
fn detach_carries_out_posted_records_then_calls_the_device() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(7);

    machine.detach(F, A, Ended::Closed).unwrap();

    let calls = probe.calls();

    assert!(matches!(&calls[0], Call::Write(A, _, data) if *data == 7u32.to_le_bytes()));
    assert_eq!(calls[1..], [Call::Detached(A, Ended::Closed), Call::Reset(Reset::Attachment(A))]);
}

#[test]
fn detach_ends_even_when_the_device_stalls() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(7);
    probe.script().stalled.push(A);

    machine.detach(F, A, Ended::Closed).unwrap();

    assert_eq!(probe.calls(), [Call::Detached(A, Ended::Closed), Call::Reset(Reset::Attachment(A))]);
}

#[test]
fn eviction_shows_in_the_mirror_that_the_client_keeps() {
    let (mut machine, _) = attached();
    let old_memory = memory(&machine, A, 2);

    machine.detach(F, A, Ended::Evicted).unwrap();

    assert_eq!(mirror_word(&old_memory, mirror::FLAGS), mirror::FLAG_DEAD);
}

#[test]
fn eviction_raises_vfios_request_interrupt_and_not_that_of_errors() {
    let (mut machine, _) = attached();
    let error = bind(&mut machine, A, nicforge_core::interrupt::ERROR, 0);
    let request = bind(&mut machine, A, nicforge_core::interrupt::REQUEST, 0);

    machine.detach(F, A, Ended::Evicted).unwrap();

    assert_eq!((error.get(), request.get()), (0, 1));
}

#[test]
fn generation_rises_with_each_client_and_reset_and_so_does_its_copy_in_the_mirror() {
    let (mut machine, _) = attached();
    let first = read_control(&mut machine, A, GENERATION);

    machine.reset_attachment(F, A).unwrap();
    let second = read_control(&mut machine, A, GENERATION);
    let second_mirror = mirror_word(&memory(&machine, A, 2), mirror::GENERATION);
    machine.detach(F, A, Ended::Closed).unwrap();
    attach(&mut machine, A);
    let third = read_control(&mut machine, A, GENERATION);

    assert_eq!((second, second_mirror), (first + 1, first + 1));
    assert!(third > second);
    assert_eq!(mirror_word(&memory(&machine, A, 2), mirror::GENERATION), third);
}

#[test]
fn reset_zeroes_the_clients_windows_and_keeps_the_header_of_the_attachment_mirror() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    memory(&machine, A, 1).write(WINDOWS, &[1; 16]).unwrap();
    memory(&machine, B, 1).write(WINDOWS, &[2; 16]).unwrap();
    memory(&machine, A, BAR_MIXED).write(0x1000, &[1; 16]).unwrap();
    memory(&machine, A, BAR_GROUP).write(0, &[3; 16]).unwrap();
    memory(&machine, A, 2).write(0x1000, &[4; 16]).unwrap();
    probe.calls();

    machine.reset_attachment(F, A).unwrap();

    let bytes = |attachment_id, bar, offset| {
        let mut out = [9; 16];
        memory(&machine, attachment_id, bar).read(offset, &mut out).unwrap();
        out
    };

    assert_eq!(bytes(A, 1, WINDOWS), [0; 16]);
    assert_eq!(bytes(A, BAR_MIXED, 0x1000), [0; 16]);
    assert_eq!(bytes(A, 2, 0x1000), [0; 16]);
    assert_eq!(bytes(B, 1, WINDOWS), [2; 16]);
    assert_eq!(bytes(A, BAR_GROUP, 0), [3; 16]);
    assert_eq!(mirror_word(&memory(&machine, A, 2), mirror::MAGIC), mirror::MAGIC_VALUE);
    assert_eq!(probe.calls(), [Call::Reset(Reset::Attachment(A))]);
}

#[test]
fn reset_zeroes_a_mirrored_bar_without_an_attachment_mirror_from_its_start() {
    let mut machine = Machine::new();
    let mut with_second_mirror = spec();
    let page = nicforge_core::spec::BarSpec::memory(
        0x1000,
        nicforge_core::spec::AreaKind::Mirrored,
        nicforge_core::spec::Scope::Attachment,
    );
    with_second_mirror.bars[5] = Some(page);
    add(&mut machine, "node0", with_second_mirror);
    attach(&mut machine, A);
    memory(&machine, A, 5).write(0, &[5; 16]).unwrap();

    machine.reset_attachment(F, A).unwrap();

    let mut bytes = [9; 16];
    memory(&machine, A, 5).read(0, &mut bytes).unwrap();

    assert_eq!(bytes, [0; 16]);
}

#[test]
fn reset_empties_rings_and_the_client_starts_again_at_cell_0() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    for number in 0..10 {
        ring.push_number(number);
    }

    step_until_idle(&mut machine, 0);
    ring.push_number(10);
    probe.calls();

    machine.reset_attachment(F, A).unwrap();

    assert_eq!(mirror_word(&memory(&machine, A, 2), mirror::RING_HEAD), 0);

    ring.restart();
    ring.push_number(11);
    step_until_idle(&mut machine, 0);

    assert_eq!(numbers(&probe), [11]);
}

#[test]
fn function_level_reset_in_configuration_space_resets_the_attachment() {
    let (mut machine, probe) = attached();
    let before = read_control(&mut machine, A, GENERATION);

    // The PCI Express capability lies after the 8 bytes of power management at 0x40. Device
    // control is at offset 8 in it; bit 15 starts the reset.
    assert_eq!(read::<1>(&mut machine, A, region::CONFIG, 0x48), [0x10]);

    write(&mut machine, A, region::CONFIG, 0x48 + 8, &0x8000u16.to_le_bytes());

    assert_eq!(read_control(&mut machine, A, GENERATION), before + 1);
    assert_eq!(read::<2>(&mut machine, A, region::CONFIG, 0x04), [0, 0]);
    assert_eq!(probe.calls(), [Call::Reset(Reset::Attachment(A))]);
}

#[test]
fn function_reset_works_without_clients_and_with_clients_that_stall() {
    let (mut machine, probe) = machine();
    machine.reset_function(F).unwrap();
    attach(&mut machine, A);
    attach(&mut machine, C);
    Ring::new(&machine, F, A).push_number(1);
    probe.script().stalled.push(A);
    step_until_idle(&mut machine, 0);
    let generations = [A, C].map(|attachment_id| read_mirror_generation(&machine, attachment_id));
    probe.calls();

    machine.reset_function(F).unwrap();
    probe.script().stalled.clear();
    step_until_idle(&mut machine, 0);

    assert_eq!(probe.calls(), [Call::Reset(Reset::Function)]);
    assert_eq!(
        [A, C].map(|attachment_id| read_mirror_generation(&machine, attachment_id)),
        generations.map(|value| value + 1)
    );
}

/// Returns the generation in a client's mirror.
fn read_mirror_generation(machine: &Machine, attachment_id: AttachmentId) -> u32 {
    mirror_word(&memory(machine, attachment_id, 2), mirror::GENERATION)
}

#[test]
fn reset_clears_the_dead_flag() {
    let (mut machine, _) = attached();
    machine.mark_dead(F, A).unwrap();
    let marked = mirror_word(&memory(&machine, A, 2), mirror::FLAGS);

    machine.reset_attachment(F, A).unwrap();

    assert_eq!((marked, mirror_word(&memory(&machine, A, 2), mirror::FLAGS)), (mirror::FLAG_DEAD, 0));
}

#[test]
fn next_client_gets_no_message_mapping_or_interrupt_of_the_previous_one() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, nicforge_core::interrupt::MSIX, 0);
    probe.queue_action(|context| context.dma_write(A, 0x1000, b"secret").unwrap());
    machine.step(Nanos(0), 64);

    machine.detach(F, A, Ended::Closed).unwrap();
    attach(&mut machine, A);
    probe.queue_action(|context| {
        context.interrupt(A, 0);
        assert!(matches!(context.dma_write(A, 0x1000, b"x"), Err(DmaError::Unmapped { .. })));
    });

    step_until_idle(&mut machine, 0);

    assert_eq!(outgoing(&mut machine), []);
    assert_eq!(sink.get(), 0);
    assert!(probe.script().actions.is_empty());
}

#[test]
fn three_hundred_functions_run_and_go_cold() {
    let mut machine = Machine::new();
    let probes: Vec<_> = (0..300).map(|number| add(&mut machine, &format!("node{number}"), spec())).collect();
    for (function, _) in &probes {
        machine.attach(*function, A).unwrap();
        Ring::new(&machine, *function, A).push_number(function.0);
    }

    step_until_idle(&mut machine, 0);
    let next = step_until_idle(&mut machine, 1_000_000);

    for (function, probe) in &probes {
        assert_eq!(numbers(probe), [function.0]);
    }

    assert_eq!((machine.functions(), machine.hot_functions(), next), (300, 0, Next::At(Nanos::NEVER)));
}

#[test]
fn names_of_any_length_can_be_attached_to() {
    let mut machine = Machine::new();
    add(&mut machine, &"long\0".repeat(100), spec());

    machine.attach(F, A).unwrap();

    assert!(machine.is_attached(F, A));
}

#[test]
fn control_page_names_the_attachment() {
    let (mut machine, _) = machine();
    attach(&mut machine, C);

    assert_eq!(read_control(&mut machine, C, control::ATTACHMENT), 2);
}

#[test]
fn device_counters_and_names_can_be_queried() {
    let (mut machine, _) = attached();

    assert_eq!(machine.counters(F)[0].name, "probes");
    assert_eq!(machine.name(F), Some("node0"));
    assert_eq!(machine.spec(F).map(|spec| spec.attachments.len()), Some(3));
    assert!(!machine.is_faulted(F, A));
    assert_eq!(memory(&machine, A, 2).u64(mirror::HEARTBEAT).unwrap().load(Ordering::Relaxed), 0);
}
