//! Clients that are left asleep while their function runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    machine::{Machine, Next},
    time::Nanos,
};

/// Times at which the timers of a test fire.
const TIMES: [u64; 3] = [10_000_000, 20_000_000, 30_000_000];

/// Returns a machine of one function that lets its client sleep.
fn relaying() -> (Machine, Probe) {
    let (mut machine, probe) = (Machine::new(), Probe::default());
    probe.script().lets_clients_sleep = true;
    add_with(&mut machine, "node0", spec(), &probe);
    attach(&mut machine, A);
    (machine, probe)
}

#[test]
fn clients_sleep_on_while_a_device_only_passes_packets_on() {
    let (mut machine, probe) = relaying();
    let mut ring = Ring::new(&machine, F, A);
    let mirror = memory(&machine, A, 2);
    probe.queue_action(|context| context.wake_at(Nanos(TIMES[0])));
    go_cold(&mut machine, 0);

    // A turn without work, and one that has only passed packets on.
    for (time, next) in [(TIMES[0], TIMES[1]), (TIMES[1], TIMES[2])] {
        let is_busy = time == TIMES[1];
        probe.script().busy = is_busy;
        probe.queue_action(move |context| {
            assert!(context.clients_sleep());
            context.note_transit();
            context.wake_at(Nanos(next));
        });
        let first = machine.step(Nanos(time), 64);
        probe.script().busy = false;
        step_until_idle(&mut machine, time);
        assert_eq!((first == Next::Now, is_sleeping(&mirror)), (is_busy, true));
    }

    // One that has done something for the node, and the record that a client has posted meanwhile.
    ring.push_number(1);
    probe.calls();
    probe.script().busy = true;
    machine.step(Nanos(TIMES[2]), 64);
    assert_eq!((is_sleeping(&mirror), numbers(&probe)), (false, vec![]));
    machine.step(Nanos(TIMES[2]), 64);
    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn wake_by_a_client_ends_the_sleep_of_a_function_that_waits_for_its_turn() {
    let (mut machine, probe) = relaying();
    let mut ring = Ring::new(&machine, F, A);
    let mirror = memory(&machine, A, 2);
    probe.queue_action(|context| context.wake_at(Nanos(TIMES[0])));
    go_cold(&mut machine, 0);
    probe.calls();

    // After a busy turn that only passed packets on, the function waits for its next turn.
    probe.script().busy = true;
    probe.queue_action(|context| context.note_transit());
    machine.step(Nanos(TIMES[0]), 64);
    let asleep = is_sleeping(&mirror);
    ring.push_number(1);
    machine.wake(F);
    machine.step(Nanos(TIMES[0]), 64);

    assert!(asleep);
    assert_eq!((is_sleeping(&mirror), numbers(&probe), machine.hot_functions()), (false, vec![1], 1));
}

#[test]
fn timer_wakes_the_clients_of_a_device_that_does_not_let_them_sleep() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    let mirror = memory(&machine, A, 2);
    probe.queue_action(|context| context.wake_at(Nanos(TIMES[0])));
    go_cold(&mut machine, 0);
    probe.calls();

    ring.push_number(1);
    probe.queue_action(|context| assert!(!context.clients_sleep()));
    machine.step(Nanos(TIMES[0]), 64);

    assert_eq!((is_sleeping(&mirror), numbers(&probe)), (false, vec![1]));
}
