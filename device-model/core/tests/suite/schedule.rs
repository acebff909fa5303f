//! Tests of stepping, sleeping and waking.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_hwi::attachment::{control, mirror};

#[test]
fn machine_without_clients_has_nothing_to_do() {
    let (mut machine, probe) = machine();

    let next = machine.step(Nanos(0), 64);

    assert_eq!((next, probe.steps()), (Next::At(Nanos::NEVER), 0));
}

#[test]
fn idle_function_is_polled_for_a_while_and_then_goes_cold() {
    let (mut machine, _) = attached();
    machine.set_cool_after(1000);
    let mirror = memory(&machine, A, 2);

    let at_first = machine.step(Nanos(0), 64);
    let before = machine.step(Nanos(999), 64);
    let sleeping_before = is_sleeping(&mirror);
    let after = machine.step(Nanos(1000), 64);

    assert_eq!((at_first, before, sleeping_before), (Next::Poll, Next::Poll, false));
    assert_eq!((after, is_sleeping(&mirror)), (Next::At(Nanos::NEVER), true));
}

#[test]
fn busy_device_stays_hot() {
    let (mut machine, probe) = attached();
    probe.script().busy = true;

    let next: Vec<_> = (0..10).map(|time| machine.step(Nanos(time * 1_000_000), 64)).collect();

    assert_eq!(next, [Next::Now; 10]);
}

#[test]
fn wake_after_a_long_rest_keeps_the_function_hot_for_a_while() {
    let (mut machine, _) = attached();
    machine.set_cool_after(1000);
    let mirror = memory(&machine, A, 2);
    go_cold(&mut machine, 0);

    write_control(&mut machine, A, control::WAKE, 1);
    let awake = !is_sleeping(&mirror);
    let late = 3_000_000_000;
    let first = machine.step(Nanos(late), 64);
    let second = machine.step(Nanos(late + 999), 64);
    let third = machine.step(Nanos(late + 1000), 64);

    assert!(awake);
    assert_eq!((first, second, third), (Next::Poll, Next::Poll, Next::At(Nanos::NEVER)));
}

#[test]
fn cold_function_is_not_polled_until_it_is_woken() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    let now = go_cold(&mut machine, 0);
    probe.calls();

    ring.push_number(1);
    machine.step(Nanos(now), 64);
    let asleep = numbers(&probe);
    write_control(&mut machine, A, control::WAKE, 1);
    machine.step(Nanos(now), 64);

    assert_eq!((asleep, numbers(&probe)), (vec![], vec![1]));
    assert_eq!(machine.hot_functions(), 1);
}

#[test]
fn rescan_finds_records_posted_without_a_wake() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    let now = go_cold(&mut machine, 0);
    ring.push_number(1);

    machine.rescan();
    machine.step(Nanos(now), 64);

    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn last_step_before_sleep_finds_a_record_posted_after_the_last_turn() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    let mirror = memory(&machine, A, 2);
    step_until_idle(&mut machine, 0);
    probe.calls();

    // The action runs in the turn that finds no work. Its record is thus in the ring before the
    // last check of the ring.
    probe.queue_action(move |_| ring.push_number(1));

    let next = machine.step(Nanos(1_000_000), 64);

    assert_eq!((next, numbers(&probe)), (Next::Now, vec![1]));
    assert!(!is_sleeping(&mirror));
    assert_eq!(machine.hot_functions(), 1);
}

#[test]
fn sleeping_is_set_for_every_client_of_a_function_and_cleared_for_all() {
    let (mut machine, _) = machine();
    let mirrors = [A, B, C].map(|attachment_id| {
        attach(&mut machine, attachment_id);
        memory(&machine, attachment_id, 2)
    });

    go_cold(&mut machine, 0);
    let asleep = mirrors.each_ref().map(is_sleeping);

    machine.wake(F);

    assert_eq!((asleep, mirrors.each_ref().map(is_sleeping)), ([true; 3], [false; 3]));
}

#[test]
fn new_client_of_a_cold_function_is_polled() {
    let (mut machine, probe) = attached();
    let now = go_cold(&mut machine, 0);

    attach(&mut machine, B);
    let sleeping = is_sleeping(&memory(&machine, B, 2));
    Ring::new(&machine, F, B).push_number(1);
    machine.step(Nanos(now), 64);

    assert_eq!((sleeping, numbers(&probe)), (false, vec![1]));
}

#[test]
fn earliest_timer_wakes_the_function_once() {
    let (mut machine, probe) = attached();
    probe.queue_action(|context| {
        context.wake_at(Nanos(9_000_000));
        context.wake_at(Nanos(5_000_000));
        context.wake_at(Nanos(7_000_000));
    });

    let now = go_cold(&mut machine, 0);
    probe.steps();

    let before = machine.step(Nanos(4_999_999), 64);
    let early = probe.steps();
    machine.step(Nanos(5_000_000), 64);
    let due = probe.steps();
    go_cold(&mut machine, 5_000_000);
    probe.steps();
    let after = machine.step(Nanos(20_000_000), 64);

    assert!(now < 4_999_999);
    assert_eq!((before, early, due), (Next::At(Nanos(5_000_000)), 0, 1));
    assert_eq!((after, probe.steps()), (Next::At(Nanos::NEVER), 0));
}

#[test]
fn earliest_timer_of_several_calls_counts() {
    let (mut machine, probe) = attached();
    for time in [7_000_000, 5_000_000, 9_000_000] {
        probe.queue_action(move |context| context.wake_at(Nanos(time)));
        step_until_idle(&mut machine, 0);
    }

    go_cold(&mut machine, 0);

    let first = machine.step(Nanos(1_000_000), 64);
    go_cold(&mut machine, 5_000_000);

    assert_eq!(first, Next::At(Nanos(5_000_000)));
    assert_eq!(machine.step(Nanos(6_000_000), 64), Next::At(Nanos::NEVER));
}

#[test]
fn timer_set_while_a_record_is_carried_out_counts() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);
    probe.queue_action(|context| context.wake_at(Nanos(5_000_000)));

    read::<4>(&mut machine, A, 0, CONTROL + GENERATION);
    go_cold(&mut machine, 0);

    assert_eq!(machine.step(Nanos(2_000_000), 64), Next::At(Nanos(5_000_000)));
}

#[test]
fn timers_fire_however_many_there_were() {
    let mut machine = Machine::new();
    let (first, probe) = add(&mut machine, "first", spec());
    let (second, other) = add(&mut machine, "second", spec());
    for function in [first, second] {
        machine.attach(function, A).unwrap();
    }

    other.queue_action(|context| context.wake_at(Nanos(50_000_000)));
    for round in 0..1000 {
        // Each of these times adds an entry to the heap.
        probe.queue_action(move |context| context.wake_at(Nanos(90_000_000 - round)));
        machine.step(Nanos(round), 64);
        probe.queue_action(move |context| context.wake_at(Nanos(round)));
        machine.wake(first);
        machine.step(Nanos(round), 64);
    }

    probe.queue_action(|context| context.wake_at(Nanos(40_000_000)));
    machine.wake(first);
    step_until_idle(&mut machine, 1000);

    let times: Vec<_> = (0..2)
        .map(|_| {
            machine.set_cool_after(0);
            let next = step_until_idle(&mut machine, 2_000_000);
            let Next::At(time) = next else { panic!("{next:?}") };
            step_until_idle(&mut machine, time.0);
            time.0
        })
        .collect();

    assert_eq!(times, [40_000_000, 50_000_000]);
}

#[test]
fn heartbeat_moves_with_time_and_not_without() {
    let (mut machine, _) = attached();
    let word = memory(&machine, A, 2).u64(mirror::HEARTBEAT).unwrap();
    let beat = || word.load(std::sync::atomic::Ordering::Relaxed);

    machine.step(Nanos(0), 64);
    let first = beat();
    machine.step(Nanos(10), 64);
    let same = beat();
    machine.step(Nanos(100_000_000), 64);

    assert_eq!(same, first);
    assert!(beat() > first);
}

#[test]
fn time_does_not_go_backwards() {
    let (mut machine, probe) = attached();
    machine.step(Nanos(500), 64);
    machine.step(Nanos(100), 64);

    let calls = std::mem::take(&mut probe.script().calls);

    assert_eq!(calls.last(), Some(&Call::Step(Nanos(500))));
}

#[test]
fn flood_of_one_client_does_not_starve_another() {
    let (mut machine, probe) = machine();
    attach(&mut machine, A);
    attach(&mut machine, B);
    let (mut flood, mut trickle) = (Ring::new(&machine, F, A), Ring::new(&machine, F, B));
    for number in 0..RING_CELLS {
        flood.push_number(number);
    }

    trickle.push_number(1000);
    probe.calls();

    machine.step(Nanos(0), 8);

    let mut received = numbers(&probe);

    assert_eq!(received.pop(), Some(1000));
    assert_eq!(received, (0..8).collect::<Vec<_>>());
}

#[test]
fn budget_of_0_still_makes_progress() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);

    machine.step(Nanos(0), 0);

    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn stalled_record_does_not_keep_the_machine_awake() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);
    probe.script().stalled.push(A);

    go_cold(&mut machine, 0);
    probe.script().stalled.clear();
    machine.wake(F);
    step_until_idle(&mut machine, 2_000_000);

    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn records_taken_before_a_stall_count_as_work() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    ring.push_number(1);
    ring.push_number(2);
    let inner = probe.clone();
    probe.queue_action(move |_| inner.script().stalled.push(A));

    let next = machine.step(Nanos(0), 64);

    assert_eq!((next, numbers(&probe)), (Next::Now, vec![1]));
}
