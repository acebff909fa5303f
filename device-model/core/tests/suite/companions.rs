//! Companions of a device, stepped and on threads: order, back-pressure, epochs, wake-ups, and
//! those that panic or hang.
#![allow(clippy::panic, clippy::unwrap_used, reason = "all of this file is tests")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use nicforge_core::{
    companion::{
        Companion, CompanionEnd, CompanionError, CompanionMode, CompanionReport, CompanionSpec,
        CompanionStatus, DeviceEnd, Halt, MAX_ABANDONED, MAX_COMPANIONS, MAX_MESSAGES, SendError,
    },
    context::Context,
    device::{Device, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    machine::{Machine, Next},
    spec::FunctionSpec,
    time::Nanos,
};

use crate::common::*;

/// Longest wait of a test.
const LONG: Duration = Duration::from_secs(20);
const BOTH_MODES: [CompanionMode; 2] = [CompanionMode::Stepped, CompanionMode::Threads];
const SPEC: CompanionSpec =
    CompanionSpec { name: "echo", commands: 4, events: 4, mode: CompanionMode::Threads };

/// A command to an [`Echo`].
enum Order {
    /// Send this number back.
    Send(u32),
    Panic,
    /// Report the poll that has begun, and wait in it until the test drops the other end.
    Wait(Sender<()>, Receiver<()>),
}

/// A companion that sends numbers back.
#[derive(Default)]
struct Echo {
    unsent: Option<u32>,
    _drops: Drops,
}

/// Counts its drops, and panics in them if the test asks for it.
#[derive(Default)]
struct Drops {
    panics: bool,
    count: Arc<AtomicU32>,
}

impl Drop for Drops {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "broken in drop");
    }
}

impl Companion for Echo {
    type Command = Order;
    type Event = u32;

    fn poll(&mut self, end: &mut CompanionEnd<Order, u32>, budget: u32) -> Progress {
        for _ in 0..budget {
            if let Some(number) = self.unsent.take()
                && let Err(SendError::Full(number)) = end.send(number)
            {
                self.unsent = Some(number);
                return Progress::Idle;
            }
            match end.receive() {
                Some(Order::Send(number)) => self.unsent = Some(number),
                Some(Order::Panic) => panic!("broken companion"),
                Some(Order::Wait(begun, released)) => {
                    let _ = begun.send(());
                    let _ = released.recv();
                }
                None => return Progress::Idle,
            }
        }
        Progress::Busy
    }
}

type End = DeviceEnd<Order, u32>;

/// Records an event as handled.
fn record(handled: &mut Vec<u32>, number: u32) -> bool {
    handled.push(number);
    true
}

/// A machine with a device whose end of a companion the test holds.
struct Rig {
    machine: Machine,
    probe: Probe,
    started: Instant,
}

impl Rig {
    fn new(mode: CompanionMode) -> Self {
        Self::with_waker(mode, Waker::noop().clone())
    }

    fn with_waker(mode: CompanionMode, waker: Waker) -> Self {
        let (mut machine, probe) = machine();
        machine.set_companions(mode, waker);
        // No test takes this long, unless it sets another limit.
        machine.set_companion_limit(LONG.as_nanos() as u64);
        machine.set_cool_after(0);
        Self { machine, probe, started: Instant::now() }
    }

    /// Has the device start an [`Echo`], and returns the device's end.
    fn start(&mut self, spec: CompanionSpec) -> Result<End, CompanionError> {
        self.start_with(spec, Echo::default())
    }

    fn start_with(&mut self, spec: CompanionSpec, body: Echo) -> Result<End, CompanionError> {
        let (sender, receiver) = mpsc::channel();
        self.probe.queue_action(move |context| sender.send(context.start_companion(spec, body)).unwrap());
        self.machine.wake(F);
        self.step();
        receiver.recv().unwrap()
    }

    /// Steps the machine at the present time.
    fn step(&mut self) -> Next {
        self.machine.step(Nanos(self.started.elapsed().as_nanos() as u64), 64)
    }

    /// Steps the machine until `attempt` returns a value.
    #[track_caller]
    fn step_until<R>(&mut self, mut attempt: impl FnMut(&mut Machine) -> Option<R>) -> R {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(result) = attempt(&mut self.machine) {
                return result;
            }
            assert!(Instant::now() < deadline, "not in time");
            self.step();
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn step_until_halted(&mut self, end: &End) -> Halt {
        self.step_until(|_| end.halt())
    }

    /// Returns the report about the function's first companion.
    fn report(&self) -> CompanionReport {
        self.machine.companions(F).remove(0)
    }
}

/// Has a companion on a thread wait within its poll. It continues when the result is dropped.
fn hold(end: &mut End) -> Sender<()> {
    let (release, released) = mpsc::channel();
    let (begun_sender, begun) = mpsc::channel();
    assert!(end.send(Order::Wait(begun_sender, released)).is_ok());
    begun.recv_timeout(LONG).unwrap();
    release
}

#[test]
fn events_come_in_order_through_fifos_of_one_message() {
    for mode in BOTH_MODES {
        let mut rig = Rig::new(mode);
        let mut end = rig.start(CompanionSpec { commands: 1, events: 1, ..SPEC }).unwrap();

        let (mut sent, mut received) = (0, Vec::new());
        rig.step_until(|_| {
            sent += u32::from(sent < 100 && end.send(Order::Send(sent)).is_ok());
            received.extend(end.receive());
            (received.len() == 100).then_some(())
        });

        assert_eq!(received, (0..100).collect::<Vec<_>>());
        assert_eq!(rig.report().to_string(), "echo (epoch 1) running");
    }
}

#[test]
fn event_that_is_not_handled_stays_with_those_after_it() {
    for mode in BOTH_MODES {
        let mut rig = Rig::new(mode);
        let mut end = rig.start(SPEC).unwrap();
        (0..4).for_each(|number| assert!(end.send(Order::Send(number)).is_ok()));

        // The limit is one event.
        let mut handled = Vec::new();
        rig.step_until(|_| {
            assert!(end.handle_events(1, |number| record(&mut handled, *number)) <= 1);
            (handled.len() == 2).then_some(())
        });
        let refused = rig.step_until(|_| {
            let mut refused = None;
            assert_eq!(end.handle_events(4, |number| refused.replace(*number).is_some()), 0);
            refused
        });
        assert_eq!(refused, 2);

        rig.step_until(|_| {
            end.handle_events(4, |number| record(&mut handled, *number));
            (handled.len() == 4).then_some(())
        });
        assert_eq!(handled, [0, 1, 2, 3]);
    }
}

#[test]
fn full_fifo_returns_the_command() {
    let mut rig = Rig::new(CompanionMode::Stepped);
    let mut end = rig.start(SPEC).unwrap();
    for number in 0..SPEC.commands as u32 {
        assert!(end.send(Order::Send(number)).is_ok());
    }

    let refused = end.send(Order::Send(7));

    assert!(matches!(refused, Err(SendError::Full(Order::Send(7)))));
}

#[test]
fn stepped_companion_keeps_the_machine_awake_until_its_events_are_received() {
    let mut rig = Rig::new(CompanionMode::Stepped);
    let mut end = rig.start(SPEC).unwrap();
    step_until_idle(&mut rig.machine, 1_000_000_000);
    rig.probe.steps();

    assert!(end.send(Order::Send(7)).is_ok());
    let next = step_until_idle(&mut rig.machine, 2_000_000_000);

    assert!(rig.probe.steps() > 0, "the device was not called for the event");
    assert_eq!((end.receive(), next), (Some(7), Next::At(Nanos::NEVER)));
}

#[test]
fn device_has_a_turn_in_the_step_that_polls_its_companion() {
    let mut rig = Rig::new(CompanionMode::Stepped);
    let mut end = rig.start(SPEC).unwrap();
    step_until_idle(&mut rig.machine, 1_000_000_000);
    rig.probe.steps();

    assert!(end.send(Order::Send(7)).is_ok());
    rig.machine.step(Nanos(2_000_000_000), 64);

    assert!(rig.probe.steps() > 0, "the device was not called for the event");
    assert_eq!(end.receive(), Some(7));
}

/// A device that answers each event of its companion with a command, so that both have work for
/// ever.
struct Insatiable {
    end: Option<End>,
    /// The budgets of its turns.
    budgets: Arc<Mutex<Vec<u32>>>,
}

impl Device for Insatiable {
    fn spec(&self) -> FunctionSpec {
        spec()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        self.budgets.lock().unwrap().push(budget);
        let end = self.end.get_or_insert_with(|| context.start_companion(SPEC, Echo::default()).unwrap());
        end.receive();
        assert!(end.send(Order::Send(7)).is_ok());
        Progress::Idle
    }
}

#[test]
fn turns_for_companions_take_less_than_two_budgets_of_a_step() {
    const BUDGET: u32 = 64;
    let (mut machine, budgets) = (Machine::new(), Arc::<Mutex<Vec<u32>>>::default());
    let device = Insatiable { end: None, budgets: Arc::clone(&budgets) };
    let function = machine.add_function("insatiable", Box::new(device)).unwrap();
    machine.wake(function);

    for step in 0..10 {
        assert_eq!(machine.step(Nanos(step), BUDGET), Next::Now);
        let turns = std::mem::take(&mut *budgets.lock().unwrap());
        let (first, short) = turns.split_first().unwrap();
        assert_eq!(*first, BUDGET, "step {step}");
        assert!(!short.is_empty() && short.iter().sum::<u32>() < 2 * BUDGET, "step {step}: {turns:?}");
    }
}

#[test]
fn new_incarnation_has_the_next_epoch_and_nothing_of_the_earlier_one() {
    for mode in BOTH_MODES {
        let mut rig = Rig::new(mode);
        let mut earlier = rig.start(SPEC).unwrap();
        assert!(earlier.send(Order::Send(1)).is_ok());
        rig.step_until(|machine| machine.companions(F).pop());

        let mut end = rig.start(SPEC).unwrap();
        assert!(end.send(Order::Send(2)).is_ok());
        let received = rig.step_until(|_| end.receive());

        assert_eq!((earlier.epoch(), end.epoch(), received), (1, 2, 2));
        rig.step_until(|_| matches!(earlier.send(Order::Send(3)), Err(SendError::Ended(_))).then_some(()));
        rig.step_until(|machine| machine.companions(F)[0].is_healthy().then_some(()));
    }
}

/// Counts wake-ups.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn machine_that_sleeps_is_woken_and_then_calls_the_device() {
    let wakes = Arc::new(Wakes::default());
    let mut rig = Rig::with_waker(CompanionMode::Threads, wakes.clone().into());
    let mut end = rig.start(SPEC).unwrap();
    let release = hold(&mut end);
    for number in 0..3 {
        assert!(end.send(Order::Send(number)).is_ok());
    }
    let deadline = Instant::now() + LONG;
    while !matches!(rig.step(), Next::At(_)) {
        assert!(Instant::now() < deadline, "the machine does not sleep");
    }
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    rig.probe.steps();

    drop(release);
    while wakes.0.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "the machine is not woken");
        std::thread::yield_now();
    }
    rig.step();
    rig.step();

    assert!(rig.probe.steps() > 0, "the device was not called for the event");
    let numbers: Vec<_> = (0..3).map(|_| rig.step_until(|_| end.receive())).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn companion_that_panics_is_halted_until_its_next_incarnation() {
    for mode in BOTH_MODES {
        let mut rig = Rig::new(mode);
        let mut end = rig.start(SPEC).unwrap();
        assert!(end.send(Order::Panic).is_ok());

        let halt = rig.step_until_halted(&end);

        assert_eq!(halt, Halt::Panicked("broken companion".to_owned()));
        assert!(matches!(end.send(Order::Send(1)), Err(SendError::Ended(_))));
        assert_eq!(rig.report().to_string(), "echo (epoch 1) panicked: broken companion");
        assert!(rig.machine.device_panic(F).is_none());
        let mut end = rig.start(SPEC).unwrap();
        assert!(end.send(Order::Send(5)).is_ok());
        assert_eq!(rig.step_until(|_| end.receive()), 5);
    }
}

#[test]
fn companion_that_hangs_is_halted_abandoned_and_counted_until_it_returns() {
    let mut rig = Rig::new(CompanionMode::Threads);
    rig.machine.set_companion_limit(20_000_000);
    let mut hung = rig.start(SPEC).unwrap();
    let release = hold(&mut hung);
    assert!(hung.send(Order::Send(1)).is_ok());

    assert_eq!(rig.step_until_halted(&hung), Halt::Hung);
    rig.machine.set_companion_limit(LONG.as_nanos() as u64);
    let mut end = rig.start(SPEC).unwrap();

    assert_eq!(rig.report().to_string(), "echo (epoch 2) running, 1 thread abandoned");
    assert!(end.send(Order::Send(2)).is_ok());
    assert_eq!(rig.step_until(|_| end.receive()), 2);
    drop(release);
    rig.step_until(|machine| machine.companions(F)[0].is_healthy().then_some(()));
    assert_eq!(hung.receive(), None, "a companion that hung has no event");
}

#[test]
fn no_incarnation_begins_while_too_many_threads_are_abandoned() {
    let mut rig = Rig::new(CompanionMode::Threads);
    let mut held = Vec::new();
    for _ in 0..MAX_ABANDONED {
        let mut end = rig.start(SPEC).unwrap();
        held.push(hold(&mut end));
    }

    let error = rig.start(SPEC).err().unwrap();
    assert!(matches!(error, CompanionError::Abandoned { count: MAX_ABANDONED, .. }), "{error}");

    drop(held);
    rig.step_until(|machine| (machine.companions(F)[0].abandoned == 0).then_some(()));
    assert!(rig.start(SPEC).is_ok());
}

#[test]
fn end_of_the_machine_does_not_wait_for_a_companion() {
    let mut rig = Rig::new(CompanionMode::Threads);
    let mut end = rig.start(SPEC).unwrap();
    let release = hold(&mut end);

    // The wait has no end of its own, so a join would never return.
    drop((rig, end));

    drop(release);
}

#[test]
fn companion_is_dropped_once_and_a_panic_there_is_contained() {
    for mode in BOTH_MODES {
        for panics in [false, true] {
            let mut rig = Rig::new(mode);
            let count = Arc::new(AtomicU32::new(0));
            let drops = Drops { panics, count: count.clone() };
            let end = rig.start_with(SPEC, Echo { unsent: None, _drops: drops }).unwrap();

            drop(end);
            rig.step_until(|_| (count.load(Ordering::SeqCst) > 0).then_some(()));
            drop(rig);

            assert_eq!(count.load(Ordering::SeqCst), 1);
        }
    }
}

#[test]
fn companion_of_a_device_that_panics_ends() {
    for mode in BOTH_MODES {
        let mut rig = Rig::new(mode);
        let count = Arc::new(AtomicU32::new(0));
        let drops = Drops { panics: false, count: count.clone() };
        let end = rig.start_with(SPEC, Echo { unsent: None, _drops: drops }).unwrap();
        // The device owns its end, and loses it with its other state.
        let owned = Mutex::new(Some(end));
        rig.probe.queue_action(move |_| {
            let _end = owned.lock().unwrap().take();
            panic!("broken");
        });
        rig.machine.wake(F);

        rig.step_until(|_| (count.load(Ordering::SeqCst) == 1).then_some(()));

        assert!(rig.machine.device_panic(F).is_some());
        rig.step_until(|machine| (machine.companions(F)[0].status == CompanionStatus::Ended).then_some(()));
    }
}

#[test]
fn stepped_companion_has_no_thread_on_a_machine_with_threads() {
    let mut rig = Rig::new(CompanionMode::Threads);
    let mut end = rig.start(CompanionSpec { mode: CompanionMode::Stepped, ..SPEC }).unwrap();
    assert!(end.send(Order::Send(1)).is_ok());

    // No other thread runs it, so the answer is there after a bounded number of steps.
    assert_eq!(rig.report().mode, CompanionMode::Stepped);
    let answer = (0..10).find_map(|_| {
        rig.step();
        end.receive()
    });
    assert_eq!(answer, Some(1));

    let end = rig.start(SPEC).unwrap();
    assert_eq!((end.epoch(), rig.report().mode), (2, CompanionMode::Threads));
}

#[test]
fn sizes_and_numbers_of_companions_are_bounded() {
    let mut rig = Rig::new(CompanionMode::Stepped);
    for invalid in [0, MAX_MESSAGES + 1] {
        for spec in [CompanionSpec { commands: invalid, ..SPEC }, CompanionSpec { events: invalid, ..SPEC }] {
            assert!(matches!(rig.start(spec), Err(CompanionError::Size { .. })));
        }
    }

    let names: Vec<&'static str> = ('a'..='q').map(|name| &*String::from(name).leak()).collect();
    let ends: Vec<_> = names[..MAX_COMPANIONS]
        .iter()
        .map(|name| rig.start(CompanionSpec { name, ..SPEC }).unwrap())
        .collect();

    let error = rig.start(CompanionSpec { name: names[MAX_COMPANIONS], ..SPEC }).err().unwrap();
    assert!(matches!(error, CompanionError::TooMany { .. }), "{error}");
    assert_eq!(rig.machine.companions(F).len(), ends.len());
}
