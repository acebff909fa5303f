//! The in-process backing, as the driver library uses it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
};
use nicforge_driver::{Cancel, Deadline, Device, Error, HugePages};
use nicforge_hwi::proof::{addressed_send, dma_engine, slot_fifo};
use nicforge_proof::{AddressedSend, DmaEngine, SlotFifo};

use super::{LocalMachine, OpenError};

const FIFO: FunctionId = FunctionId(0);
const ENGINE: FunctionId = FunctionId(1);
const SEND: FunctionId = FunctionId(2);
/// A time limit above any answer's delay, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns a machine with a FIFO, a DMA engine and a card that sends to addresses.
fn machine() -> Arc<LocalMachine> {
    let mut machine = Machine::new();
    machine.add_function("fifo0", Box::new(SlotFifo::new())).unwrap();
    machine.add_function("dma0", Box::new(DmaEngine::new())).unwrap();
    machine.add_function("send0", Box::new(AddressedSend::new())).unwrap();
    LocalMachine::new(machine)
}

fn open(machine: &Arc<LocalMachine>, function: FunctionId, attachment: u16) -> Device {
    Device::from_backing(machine.open(function, AttachmentId(attachment)).unwrap()).unwrap()
}

#[test]
fn open_by_name_finds_the_attachment() {
    let machine = machine();

    let device = Device::from_backing(machine.open_named("fifo0", "user1").unwrap()).unwrap();

    assert_eq!(device.attachment(), 1);
    assert!(matches!(machine.open_named("fifo9", "user1"), Err(OpenError::NoSuchFunction { .. })));
    assert!(matches!(machine.open_named("fifo0", "user9"), Err(OpenError::NoSuchAttachment { .. })));
}

#[test]
fn open_of_a_taken_attachment_is_refused_until_it_is_dropped() {
    let machine = machine();
    let first = machine.open(FIFO, AttachmentId(0)).unwrap();

    assert!(matches!(machine.open(FIFO, AttachmentId(0)), Err(OpenError::Machine(_))));
    drop(first);

    assert!(machine.open(FIFO, AttachmentId(0)).is_ok());
}

#[test]
fn registers_are_read_and_written() {
    let device = open(&machine(), FIFO, 0);
    let registers = device.bar(0).unwrap();

    registers.write32(slot_fifo::REG_HOLD, 1).unwrap();

    assert_eq!(registers.read32(slot_fifo::REG_HOLD).unwrap(), 1);
}

#[test]
fn a_thread_that_waits_for_its_data_drives_the_machine() {
    let device = open(&machine(), FIFO, 0);
    let send = device.bar(1).unwrap().window(slot_fifo::WIN_SEND, slot_fifo::SLOT).unwrap();
    let receive = device.bar(2).unwrap().window(slot_fifo::MIRROR_RECEIVE, slot_fifo::SLOT).unwrap();

    send.write(8, &[7; slot_fifo::DATA]).unwrap();
    send.store_u64_release(0, 1).unwrap();
    device.doorbell().after_store().unwrap();
    device.wait_until(Deadline::after(LIMIT), None, || receive.load_u64_acquire(0) == Ok(1)).unwrap();

    let mut data = [0; slot_fifo::DATA];
    receive.read(8, &mut data).unwrap();
    assert_eq!(data, [7; slot_fifo::DATA]);
}

#[test]
fn a_doorbell_wakes_a_sleeping_machine_and_the_thread_that_waits() {
    let machine = machine();
    let device = open(&machine, FIFO, 0);
    let other = device.clone();
    let receive = device.bar(2).unwrap().window(slot_fifo::MIRROR_RECEIVE, slot_fifo::SLOT).unwrap();
    let waiting = std::thread::spawn(move || {
        other.wait_until(Deadline::after(LIMIT), None, || receive.load_u64_acquire(0) == Ok(1))
    });
    let sleeping = Deadline::after(LIMIT);
    while machine.sleepers.count.load(Ordering::Relaxed) == 0 {
        assert!(!sleeping.has_passed());
        std::thread::yield_now();
    }

    let send = device.bar(1).unwrap().window(slot_fifo::WIN_SEND, slot_fifo::SLOT).unwrap();
    send.store_u64_release(0, 1).unwrap();
    device.doorbell().after_store().unwrap();

    waiting.join().unwrap().unwrap();
}

#[test]
fn the_mirror_cannot_be_written() {
    let device = open(&machine(), FIFO, 0);
    let mirror = device.bar(2).unwrap();

    assert!(mirror.write64(slot_fifo::MIRROR_TAKEN, 1).is_err());
    assert_eq!(mirror.read64(slot_fifo::MIRROR_TAKEN).unwrap(), 0);
}

#[test]
fn dma_of_private_memory_completes_before_its_interrupt() {
    let device = open(&machine(), ENGINE, 0);
    let registers = device.bar(0).unwrap();
    let done = device.interrupt(dma_engine::VECTOR_DONE.into()).unwrap();
    let list = device.dma_buffer(4096, HugePages::Never).unwrap();
    let private = device.private_dma_buffer(8192).unwrap();
    private.write(0, &[9; 100]).unwrap();
    list.write(0, &private.iova().to_le_bytes()).unwrap();
    list.write(8, &(private.iova() + 4096).to_le_bytes()).unwrap();
    list.write(16, &100u64.to_le_bytes()).unwrap();

    registers.write64(dma_engine::REG_LIST, list.iova()).unwrap();
    registers.write32(dma_engine::REG_COUNT, 1).unwrap();
    registers.posted_write(dma_engine::REG_START, &1u32.to_le_bytes()).unwrap();
    let count = done.wait(Deadline::after(LIMIT), None).unwrap();

    let mut copy = [0; 100];
    private.read(4096, &mut copy).unwrap();
    assert_eq!((count, copy), (1, [9; 100]));
}

#[test]
fn unmapping_memory_that_was_not_mapped_is_refused() {
    let machine = machine();
    let backing = machine.open(ENGINE, AttachmentId(0)).unwrap();

    assert!(matches!(backing.dma_unmap(0x1000, 0x1000), Err(Error::Refused { .. })));
}

#[test]
fn a_wait_for_an_interrupt_ends_by_deadline_and_by_cancel() {
    let device = open(&machine(), ENGINE, 0);
    let done = device.interrupt(dma_engine::VECTOR_DONE.into()).unwrap();
    let cancel = Cancel::new().unwrap();

    let late = done.wait(Deadline::after(Duration::from_millis(5)), None);
    cancel.cancel();
    let cancelled = done.wait(Deadline::after(LIMIT), Some(&cancel));

    assert!(matches!(late, Err(Error::Timeout { .. })));
    assert_eq!(cancelled, Err(Error::Cancelled));
}

#[test]
fn an_evicted_client_gets_an_error_and_does_not_reach_its_successor() {
    let machine = machine();
    let device = open(&machine, FIFO, 0);
    let waiter = device.clone();
    let waiting = std::thread::spawn(move || waiter.wait_until(Deadline::after(LIMIT), None, || false));

    machine.evict(FIFO, AttachmentId(0)).unwrap();
    let _successor = open(&machine, FIFO, 0);

    assert!(waiting.join().unwrap().unwrap_err().is_gone());
    assert!(device.bar(0).unwrap().write32(slot_fifo::REG_HOLD, 1).unwrap_err().is_gone());
}

#[test]
fn a_stalled_trapped_write_is_overtaken_by_a_reset() {
    let machine = machine();
    let receiver = open(&machine, SEND, 1);
    let backing = machine.open(SEND, AttachmentId(0)).unwrap();
    let write = |backing: &Arc<dyn nicforge_driver::Backing>| {
        let offset = 1 << addressed_send::SEND_TARGET_SHIFT;
        backing.write(addressed_send::SEND_BAR.into(), offset, &[1], nicforge_driver::WriteMode::Confirmed)
    };
    for _ in 0..addressed_send::SLOTS {
        write(&backing).unwrap();
    }
    let stalled = backing.clone();
    let stalling = std::thread::spawn(move || write(&stalled));
    let deadline = Deadline::after(LIMIT);
    let stalls = |machine: &mut Machine| {
        machine.counters(SEND).iter().find(|counter| counter.name == "stalls").unwrap().value
    };
    while machine.with(stalls) == 0 {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }

    backing.reset().unwrap();

    assert!(matches!(stalling.join().unwrap(), Err(Error::Refused { .. })));
    assert_eq!(receiver.bar(0).unwrap().read64(addressed_send::REG_STALLS).unwrap(), 0);
}
