//! Tests of a machine in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::*;
use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, DeviceEnd},
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::LinkSpec,
    ids::{Address, AttachmentId, FunctionId},
    machine::{Endless, Machine, Next, TurnLimits},
    spec::FunctionSpec,
    time::Nanos,
};

/// Limits that only an endless loop reaches.
const LIMITS: TurnLimits = TurnLimits { budget: 64, turns: 100 };

/// Steps of bouncers, in order: the function, the time, and the header of the packet that it sent,
/// or `u64::MAX` for none.
type Log = Arc<Mutex<Vec<(u32, u64, u64)>>>;

/// A device that sends each packet back whose header is not yet 0, and counts it down.
struct Bouncer {
    log: Log,
    /// Header of the packet that the first step sends.
    first: Option<u64>,
}

impl Device for Bouncer {
    fn spec(&self) -> FunctionSpec {
        spec()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        let (function, now) = (context.function().0, context.now().0);
        let mut ports = context.ports();
        let mut received = self.first.take();
        if let Some(packet) = ports.take(0, 0) {
            received = packet.header.checked_sub(1);
            ports.recycle(packet);
        }

        self.log.lock().unwrap().push((function, now, received.unwrap_or(u64::MAX)));
        let Some(header) = received else { return Progress::Idle };
        let mut packet = ports.new_packet(100).unwrap();
        packet.header = header;
        ports.send(0, 0, packet).unwrap();

        Progress::Busy
    }
}

/// Returns a link of this delay on which a byte takes a nanosecond.
fn link(delay: u64) -> LinkSpec {
    LinkSpec { delay, bits_per_second: 8_000_000_000, ..LinkSpec::default() }
}

/// Returns a machine with two bouncers and a link. The first bouncer sends a packet that crosses
/// the link `bounces` times.
fn bouncers(spec: &LinkSpec, bounces: u64) -> (Machine, Log) {
    let (mut machine, log) = (Machine::new(), Log::default());
    let first = [Some(bounces - 1), None];
    let functions = first.map(|first| {
        machine.add_function("bouncer", Box::new(Bouncer { log: Arc::clone(&log), first })).unwrap()
    });

    machine.fabric().connect((functions[0], 0), (functions[1], 0), spec.clone()).unwrap();

    (machine, log)
}

/// Takes the functions that ran since the last call.
fn active(machine: &mut Machine) -> Vec<u32> {
    let mut active = Vec::new();
    machine.take_active(|function| active.push(function.0));
    active
}

#[test]
fn machine_without_work_moves_its_time_and_runs_nothing() {
    let (mut machine, probe) = machine();

    machine.run_until(Nanos(1_000_000), LIMITS).unwrap();

    assert_eq!((machine.now(), machine.next_event()), (Nanos(1_000_000), Nanos::NEVER));
    assert_eq!((probe.steps(), active(&mut machine)), (0, vec![]));
}

#[test]
fn timer_runs_its_function_once_at_its_time_and_no_other_function() {
    let mut machine = Machine::new();
    let (first, probe) = add(&mut machine, "first", spec());
    let (_, other) = add(&mut machine, "second", spec());
    probe.queue_action(|context| context.wake_at(Nanos(5_000)));
    machine.wake(first);

    let at_first = machine.next_event();
    machine.run_until(Nanos(4_999), LIMITS).unwrap();
    let (before, next) = (probe.steps(), machine.next_event());
    machine.run_until(Nanos(1_000_000_000), LIMITS).unwrap();

    assert_eq!((at_first, before, next), (Nanos(0), 1, Nanos(5_000)));
    assert_eq!(probe.script().calls, [Call::Step(Nanos(5_000))]);
    assert_eq!((other.steps(), machine.next_event()), (0, Nanos::NEVER));
}

#[test]
fn packet_goes_back_and_forth_at_the_times_of_its_link() {
    let (mut machine, log) = bouncers(&link(50), 4);

    machine.wake(FunctionId(0));
    machine.run_until(Nanos(10_000), LIMITS).unwrap();

    let log = log.lock().unwrap();
    let sent: Vec<_> = log.iter().filter(|entry| entry.2 != u64::MAX).copied().collect();
    assert_eq!(sent, [(0, 0, 3), (1, 150, 2), (0, 300, 1), (1, 450, 0)]);
    assert_eq!((machine.now(), machine.next_event()), (Nanos(10_000), Nanos::NEVER));
}

#[test]
fn machine_runs_until_nothing_is_due_and_stands_at_the_last_event() {
    let (mut machine, _) = bouncers(&link(50), 4);

    machine.wake(FunctionId(0));
    machine.run_until(Nanos::NEVER, LIMITS).unwrap();

    // The last packet arrives at 600, and its credit is back 50 ns later.
    assert_eq!(machine.next_event(), Nanos::NEVER);
    assert!((600..=650).contains(&machine.now().0), "{:?}", machine.now());
}

#[test]
fn same_calls_cause_the_same_calls_of_devices() {
    let logs = [0, 1].map(|_| {
        let (mut machine, log) = bouncers(&link(13), 1000);
        machine.wake(FunctionId(1));
        machine.wake(FunctionId(0));
        for time in 1..500 {
            machine.run_until(Nanos(time * 77), LIMITS).unwrap();
        }
        std::mem::take(&mut *log.lock().unwrap())
    });

    assert!(logs[0].len() > 600, "{}", logs[0].len());
    assert_eq!(logs[0], logs[1]);
}

#[test]
fn one_call_and_many_calls_cause_the_same_calls_of_devices() {
    let logs = [100_000, 1].map(|stride| {
        let (mut machine, log) = bouncers(&link(13), 400);
        machine.wake(FunctionId(0));
        for time in 1..=100_000 / stride {
            machine.run_until(Nanos(time * stride), LIMITS).unwrap();
        }
        std::mem::take(&mut *log.lock().unwrap())
    });

    assert_eq!(logs[0], logs[1]);
}

#[test]
fn store_of_a_client_is_found_after_a_wake() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    machine.run_until(Nanos(100), LIMITS).unwrap();
    probe.calls();

    ring.push_number(1);
    ring.push_number(2);
    machine.run_until(Nanos(200), LIMITS).unwrap();
    let before = numbers(&probe);
    machine.wake(F);
    let next = machine.next_event();
    active(&mut machine);
    machine.run_until(Nanos(200), LIMITS).unwrap();

    assert_eq!((before, next), (vec![], Nanos(200)));
    assert_eq!((numbers(&probe), active(&mut machine)), (vec![1, 2], vec![0]));
    assert_eq!(machine.next_event(), Nanos::NEVER);
}

#[test]
fn function_runs_again_only_while_it_makes_progress() {
    let (mut machine, probe) = machine();
    probe.script().busy = true;
    machine.wake(F);
    machine.run_until(Nanos(0), TurnLimits { turns: 3, ..LIMITS }).unwrap_err();
    probe.script().busy = false;
    probe.steps();

    machine.run_until(Nanos(10), LIMITS).unwrap();
    machine.run_until(Nanos(20), LIMITS).unwrap();

    assert_eq!(probe.script().calls, [Call::Step(Nanos(0))]);
}

#[test]
fn device_that_is_always_busy_is_reported_and_does_not_hold_the_machine() {
    let (mut machine, probe) = machine();
    probe.script().busy = true;
    machine.run_until(Nanos(7), LIMITS).unwrap();
    machine.wake(F);

    let first = machine.run_until(Nanos(50), LIMITS);
    let second = machine.run_until(Nanos(50), LIMITS);

    let endless = Endless::Function { function: F, turns: 100, time: Nanos(7) };
    assert_eq!((first, second), (Err(endless), Err(endless)));
    assert_eq!((probe.steps(), machine.now()), (200, Nanos(7)));
    assert!(endless.to_string().contains("100 turns at 7 ns"), "{endless}");
}

/// Sets the function's timer to the present, in this step and in all later ones.
fn set_timer_to_the_present(probe: &Probe, context: &mut Context<'_>) {
    let next = probe.clone();
    probe.queue_action(move |context| set_timer_to_the_present(&next, context));
    context.wake_at(context.now());
}

#[test]
fn timer_that_is_set_to_the_present_again_and_again_is_reported() {
    let (mut machine, probe) = machine();
    let inner = probe.clone();
    probe.queue_action(move |context| set_timer_to_the_present(&inner, context));
    machine.wake(F);

    let result = machine.run_until(Nanos(1), LIMITS);

    assert_eq!(result, Err(Endless::Function { function: F, turns: 100, time: Nanos(0) }));
}

#[test]
fn two_functions_that_wake_each_other_at_one_time_for_ever_are_reported() {
    let spec = LinkSpec::default();
    let (mut machine, _) = bouncers(&spec, u64::MAX);
    machine.wake(FunctionId(0));

    let result = machine.run_until(Nanos(1000), LIMITS);

    assert!(matches!(result, Err(Endless::Function { turns: 100, time: Nanos(0), .. })), "{result:?}");
}

#[test]
fn functions_that_ran_are_named_once() {
    let (mut machine, _) = bouncers(&link(50), 4);

    machine.wake(FunctionId(0));
    machine.run_until(Nanos(10_000), LIMITS).unwrap();
    let first = active(&mut machine);
    let second = active(&mut machine);
    machine.wake(FunctionId(1));
    machine.run_until(Nanos(10_000), LIMITS).unwrap();

    assert_eq!((first.len(), second, active(&mut machine)), (2, vec![], vec![1]));
}

#[test]
fn turn_limits_of_0_still_make_progress() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);

    let _ = machine.run_until(Nanos(0), TurnLimits { budget: 0, turns: 0 });

    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn machine_changes_from_steps_to_virtual_time_and_back() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    machine.step(Nanos(10), 64);
    ring.push_number(1);
    machine.run_until(Nanos(20), LIMITS).unwrap();
    let first = numbers(&probe);

    // In virtual time, the machine does not poll. After it, the machine does.
    ring.push_number(2);
    machine.run_until(Nanos(30), LIMITS).unwrap();
    let second = numbers(&probe);
    let next = machine.step(Nanos(40), 64);

    assert_eq!((first, second, numbers(&probe)), (vec![1], vec![], vec![2]));
    assert_eq!(next, Next::Now);

    machine.step(Nanos(41), 64);
    ring.push_number(3);
    machine.step(Nanos(42), 64);
    assert_eq!(numbers(&probe), [3]);
}

#[test]
fn packet_sent_in_steps_wakes_its_receiver_in_virtual_time() {
    let (mut machine, log) = bouncers(&link(50), 4);
    machine.wake(FunctionId(0));
    machine.step(Nanos(0), 64);
    machine.step(Nanos(150), 64);

    machine.run_until(Nanos(10_000), LIMITS).unwrap();

    let sent = log.lock().unwrap().iter().filter(|entry| entry.2 != u64::MAX).count();
    assert_eq!(sent, 4);
}

#[test]
fn sleeping_word_is_not_set_in_virtual_time() {
    let (mut machine, _) = attached();
    let mirror = memory(&machine, A, 2);

    machine.run_until(Nanos(10_000_000_000), LIMITS).unwrap();

    assert!(!is_sleeping(&mirror));
}

#[test]
fn device_that_panics_goes_out_of_service_and_the_others_run_on() {
    let mut machine = Machine::new();
    let (broken, probe) = add(&mut machine, "broken", spec());
    let (sound, other) = add(&mut machine, "sound", spec());
    probe.queue_action(|_| panic!("broken"));
    machine.wake(broken);
    machine.wake(sound);

    machine.run_until(Nanos(5), LIMITS).unwrap();

    assert!(machine.device_panic(broken).is_some());
    assert_eq!((other.steps(), machine.now()), (1, Nanos(5)));
}

/// A companion that doubles numbers, and is busy for ever after the number 0.
struct Doubler {
    is_endless: bool,
}

impl Companion for Doubler {
    type Command = u32;
    type Event = u32;

    fn poll(&mut self, end: &mut CompanionEnd<u32, u32>, _: u32) -> Progress {
        while let Some(number) = end.receive() {
            self.is_endless |= number == 0;
            let _ = end.send(2 * number);
        }
        if self.is_endless { Progress::Busy } else { Progress::Idle }
    }
}

/// Starts a companion in the first step of a function, and sends it a number.
fn start_doubler(probe: &Probe, number: u32) -> Arc<Mutex<Option<DeviceEnd<u32, u32>>>> {
    let end = Arc::new(Mutex::new(None));
    let shared = Arc::clone(&end);
    probe.queue_action(move |context| {
        let mode = CompanionMode::Threads;
        let spec = CompanionSpec { name: "doubler", commands: 4, events: 4, mode };
        let mut started = context.start_companion(spec, Doubler { is_endless: false }).unwrap();
        started.send(number).unwrap();
        *shared.lock().unwrap() = Some(started);
    });
    end
}

#[test]
fn companion_works_at_the_time_of_its_command_and_wakes_its_function() {
    let (mut machine, probe) = machine();
    let end = start_doubler(&probe, 21);
    machine.wake(F);

    machine.run_until(Nanos(5), LIMITS).unwrap();

    assert_eq!(end.lock().unwrap().as_mut().unwrap().receive(), Some(42));
    assert_eq!(probe.script().calls, [Call::Step(Nanos(0)), Call::Step(Nanos(0))]);
    assert_eq!(machine.now(), Nanos(5));
}

#[test]
fn companion_that_is_always_busy_is_reported() {
    let (mut machine, probe) = machine();
    let _end = start_doubler(&probe, 0);
    machine.wake(F);

    let result = machine.run_until(Nanos(5), LIMITS);

    assert_eq!(result, Err(Endless::Companions { rounds: 100, time: Nanos(0) }));
    assert_eq!(machine.next_event(), Nanos(0));
}
