//! Tests of the wake-up of clients that wait for their device.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, atomic::Ordering};

use crate::common::*;
use nicforge_core::{
    device::Ended,
    ids::{AttachmentId, FunctionId},
    machine::{ClientWaker, Machine},
    time::Nanos,
};
use nicforge_shm::{SharedMemory, SharedU32};

/// Returns the waiting word of a client that the machine wakes, and its count of wake-ups.
fn set_waker(machine: &mut Machine, attachment_id: AttachmentId) -> (SharedU32, Arc<Count>) {
    let word = SharedMemory::create("waiting", 4096).unwrap().u32(0).unwrap();
    let count = Arc::new(Count::default());
    let waker = ClientWaker { word: word.clone(), sink: count.clone() };
    machine.set_client_waker(F, attachment_id, Some(waker)).unwrap();
    (word, count)
}

/// Lets a device work in one step at a time, and then steps its machine until it has no more work.
fn work(machine: &mut Machine, function: FunctionId, probe: &Probe, now: u64) {
    machine.wake(function);
    probe.script().busy = true;
    machine.step(Nanos(now), 64);
    probe.script().busy = false;
    step_until_idle(machine, now);
}

#[test]
fn waiting_client_is_woken_once_after_work_of_its_function() {
    let (mut machine, probe) = attached();
    let (word, wakes) = set_waker(&mut machine, A);
    step_until_idle(&mut machine, 0);

    word.store(1, Ordering::Relaxed);
    step_until_idle(&mut machine, 1);
    let without_work = (wakes.get(), word.load(Ordering::Relaxed));
    work(&mut machine, F, &probe, 2);
    work(&mut machine, F, &probe, 3);

    assert_eq!(without_work, (0, 1));
    assert_eq!((wakes.get(), word.load(Ordering::Relaxed), machine.client_wakes()), (1, 0, 1));
}

#[test]
fn client_that_does_not_wait_is_not_signalled() {
    let (mut machine, probe) = attached();
    let (_, wakes) = set_waker(&mut machine, A);
    work(&mut machine, F, &probe, 0);
    assert_eq!(wakes.get(), 0);
}

#[test]
fn busy_machine_wakes_a_client_after_a_delay() {
    let (mut machine, probe) = attached();
    let (word, wakes) = set_waker(&mut machine, A);
    word.store(1, Ordering::Relaxed);
    probe.script().busy = true;

    machine.step(Nanos(0), 64);
    machine.step(Nanos(10_000), 64);
    let before = wakes.get();
    machine.step(Nanos(20_000), 64);

    assert_eq!((before, wakes.get()), (0, 1));
}

#[test]
fn work_of_another_function_wakes_no_client() {
    let (mut machine, _) = attached();
    let (other, other_probe) = add(&mut machine, "other", spec());
    let (word, wakes) = set_waker(&mut machine, A);
    step_until_idle(&mut machine, 0);

    word.store(1, Ordering::Relaxed);
    work(&mut machine, other, &other_probe, 1);

    assert_eq!((wakes.get(), word.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn end_of_a_client_ends_its_wake_ups_and_a_client_without_attachment_has_none() {
    let (mut machine, probe) = attached();
    let (word, wakes) = set_waker(&mut machine, A);
    let waker = ClientWaker { word: word.clone(), sink: wakes.clone() };
    assert!(machine.set_client_waker(F, B, Some(waker)).is_err());
    machine.detach(F, A, Ended::Closed).unwrap();
    machine.attach(F, A).unwrap();

    word.store(1, Ordering::Relaxed);
    work(&mut machine, F, &probe, 0);

    assert_eq!((wakes.get(), machine.is_attached(FunctionId(0), A)), (0, true));
}

#[test]
fn function_goes_cold_early_only_if_its_clients_can_be_woken() {
    let hot_functions = |has_waker: bool| {
        let (mut machine, probe) = attached();
        let _waker = has_waker.then(|| set_waker(&mut machine, A));
        machine.set_cool_after(50_000);
        machine.set_near_cool_after(5_000);

        probe.script().busy = true;
        machine.wake(F);
        machine.step(Nanos(0), 64);
        probe.script().busy = false;
        machine.step(Nanos(1_000), 64);
        machine.step(Nanos(10_000), 64);
        machine.hot_functions()
    };
    assert_eq!((hot_functions(false), hot_functions(true)), (1, 0));
}
