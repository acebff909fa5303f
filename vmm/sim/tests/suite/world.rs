//! Threads of a world: their order, their waits, and the passage of time.

use std::{
    cell::{Cell, RefCell},
    process::Command,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge::failure::{EXIT_HELD, Failure};
use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::FunctionSpec,
};
use nicforge_driver::runtime::{self, Cost, Event, charge};
use nicforge_proof::SlotFifo;
use nicforge_sim::world::{Picos, Profile, World, WorldError};

/// A device that always reports more work.
struct Busy;

impl Device for Busy {
    fn spec(&self) -> FunctionSpec {
        SlotFifo::new().spec()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, _: &mut Context<'_>, _: u32) -> Progress {
        Progress::Busy
    }
}

const LIMIT: Duration = Duration::from_secs(1);

/// The log of threads: entries with their times in nanoseconds.
#[derive(Clone)]
struct Log {
    start: runtime::Instant,
    seen: Rc<RefCell<Vec<(u64, &'static str)>>>,
}

impl Log {
    fn add(&self, description: &'static str) {
        self.seen.borrow_mut().push((self.start.elapsed().as_nanos() as u64, description));
    }
}

/// Runs threads of one process on processors with this profile, and returns their log.
fn run(profile: Profile, bodies: Vec<Box<dyn FnOnce(Log)>>) -> Vec<(u64, &'static str)> {
    let (mut world, observed) = (World::new(Machine::new(), 1), Rc::default());
    let process = world.add_process(Vec::new(), profile);
    for body in bodies {
        let observed = Rc::clone(&observed);
        world
            .start(process, "a thread", move || body(Log { start: runtime::Instant::now(), seen: observed }));
    }

    world.run(LIMIT).unwrap();
    observed.take()
}

#[test]
fn threads_run_in_the_order_of_their_clocks() {
    let profile = Profile::default().with(Cost::Compute, Picos::nanos(10));
    let body = |units: usize, names: [&'static str; 2]| -> Box<dyn FnOnce(Log)> {
        Box::new(move |log| {
            for name in names {
                charge(Cost::Compute, units);
                log.add(name);
            }
        })
    };

    let observed = run(profile, vec![body(3, ["slow", "slow again"]), body(2, ["fast", "fast again"])]);
    assert_eq!(observed, [(20, "fast"), (30, "slow"), (40, "fast again"), (60, "slow again")]);
}

#[test]
fn work_without_an_entry_in_the_profile_takes_no_time() {
    let body = |log: Log| {
        charge(Cost::Match, 1_000_000);
        log.add("matched");
        runtime::sleep(Duration::from_nanos(5));
        log.add("slept");
    };
    assert_eq!(run(Profile::default(), vec![Box::new(body)]), [(0, "matched"), (5, "slept")]);
}

#[test]
fn a_notified_thread_runs_after_the_wake_time_and_another_one_after_its_own_limit() {
    let profile = Profile::default().with_wake(Picos::nanos(7));
    let events = [Arc::new(Event::default()), Arc::new(Event::default())];
    let waiter = |event: Arc<Event>, name| -> Box<dyn FnOnce(Log)> {
        Box::new(move |log| {
            event.sleep(event.count(), Duration::from_nanos(300));
            log.add(name);
        })
    };

    let notified = events[0].clone();
    let observed = run(
        profile,
        vec![
            waiter(events[0].clone(), "notified"),
            waiter(events[1].clone(), "left alone"),
            Box::new(move |_| {
                runtime::sleep(Duration::from_nanos(100));
                notified.notify();
            }),
        ],
    );
    assert_eq!(observed, [(107, "notified"), (300, "left alone")]);
}

#[test]
fn a_thread_waits_for_the_end_of_another_one() {
    let body = |log: Log| {
        let thread = runtime::spawn("child", || runtime::sleep(Duration::from_nanos(50))).unwrap();
        log.add("started");
        thread.join();
        log.add("ended");
    };
    assert_eq!(run(Profile::default(), vec![Box::new(body)]), [(0, "started"), (50, "ended")]);
}

#[test]
fn threads_have_different_numbers_and_the_seed_determines_random_numbers() {
    let numbers = |seed| {
        let (mut world, observed) = (World::new(Machine::new(), seed), Rc::new(RefCell::new(Vec::new())));
        let process = world.add_process(Vec::new(), Profile::default());
        for _ in 0..2 {
            let observed = observed.clone();
            world.start(process, "a thread", move || {
                observed.borrow_mut().push((runtime::thread_number(), runtime::random()));
            });
        }
        world.run(LIMIT).unwrap();
        observed.take()
    };

    let (first, same_seed, other_seed) = (numbers(1), numbers(1), numbers(2));
    assert_eq!(first, same_seed);
    assert_ne!(first, other_seed);
    assert_eq!([first[0].0, first[1].0], [0, 1]);
    assert_ne!(first[0].1, first[1].1);
}

#[test]
fn a_world_ends_at_its_limit_and_names_the_threads_that_still_wait() {
    let mut world = World::new(Machine::new(), 1);
    let process = world.add_process(Vec::new(), Profile::default());
    world.start(process, "the one that ends", || ());
    world.start(process, "the sleeper", || runtime::sleep(Duration::from_secs(3600)));

    let error = world.run(LIMIT).unwrap_err();
    assert_eq!(error.to_string(), "the sleeper did not end within 1s of virtual time");
    assert!(matches!(error, WorldError::TimeLimit { .. }));
    // It is no bad result.
    assert_eq!(Failure::from(error).code, EXIT_HELD);
}

#[test]
fn an_error_names_five_threads_and_the_number_of_the_others() {
    let mut world = World::new(Machine::new(), 1);
    let process = world.add_process(Vec::new(), Profile::default());
    for number in 0..7 {
        world.start(process, &format!("thread {number}"), || runtime::sleep(Duration::from_secs(3600)));
    }

    let error = world.run(LIMIT).unwrap_err().to_string();
    assert!(error.starts_with("thread 0, thread 1, thread 2, thread 3, thread 4 and 2 other"), "{error}");
}

#[test]
fn a_world_ends_when_the_caller_stops_it() {
    let (mut world, questions) = (World::new(Machine::new(), 1), Cell::new(0));
    let process = world.add_process(Vec::new(), Profile::default());
    world.start(process, "the one that never ends", || {
        loop {
            runtime::sleep(Duration::from_nanos(1));
        }
    });

    let ended = world.run_unless(Duration::MAX, &|| questions.replace(questions.get() + 1) == 2);

    assert!(matches!(ended, Err(WorldError::Stopped)), "{ended:?}");
    assert!(world.now() < Picos::nanos(100_000), "{:?}", world.now());
}

#[test]
fn a_function_that_works_for_ever_is_named() {
    let mut machine = Machine::new();
    machine.add_function("a busy function", Box::new(Busy)).unwrap();
    let mut world = World::new(machine, 1);
    let process = world.add_process(Vec::new(), Profile::default());
    world.start(process, "a thread", || runtime::sleep(Duration::from_nanos(1)));
    world.with_machine(|machine| machine.wake(FunctionId(0)));

    let error = world.run(LIMIT).unwrap_err().to_string();
    assert!(error.starts_with("a busy function: function 0 has had 65536 turns"), "{error}");
}

#[test]
fn a_thread_that_waits_for_ever_is_reported_as_late_by_any_limit() {
    let (mut world, event) = (World::new(Machine::new(), 1), Event::default());
    let process = world.add_process(Vec::new(), Profile::default());
    world.start(process, "the sleeper", move || event.sleep(event.count(), Duration::MAX));
    assert!(matches!(world.run(LIMIT), Err(WorldError::TimeLimit { .. })));
    assert!(matches!(world.run(Duration::MAX), Err(WorldError::TimeLimit { .. })));
}

#[test]
fn a_world_within_a_world_has_a_clock_of_its_own() {
    let body = |log: Log| {
        runtime::sleep(Duration::from_nanos(10));
        let mut inner = World::new(Machine::new(), 2);
        let process = inner.add_process(Vec::new(), Profile::default());
        inner.start(process, "inner", || runtime::sleep(Duration::from_nanos(500)));
        inner.run(LIMIT).unwrap();
        log.add("after the inner world");
        runtime::sleep(Duration::from_nanos(10));
        log.add("later");
    };
    assert_eq!(run(Profile::default(), vec![Box::new(body)]), [(10, "after the inner world"), (20, "later")]);
}

#[test]
fn a_thread_gets_a_mutex_whose_holder_waits() {
    let lock = Arc::new(Mutex::new(()));
    let (of_holder, of_waiter) = (lock.clone(), lock);
    let observed = run(
        Profile::default().with_poll(Picos::nanos(3)),
        vec![
            Box::new(move |_| {
                let _held = runtime::lock(&of_holder);
                runtime::sleep(Duration::from_nanos(100));
            }),
            Box::new(move |log| {
                let _held = runtime::lock(&of_waiter);
                log.add("locked");
            }),
        ],
    );
    assert_eq!(observed, [(102, "locked")]);
}

#[test]
#[should_panic(expected = "a defect of the program")]
fn time_passes_for_the_destructors_of_a_thread_that_panics() {
    /// A value whose destructor polls until a millisecond has passed.
    struct Waiter(runtime::Instant);
    impl Drop for Waiter {
        fn drop(&mut self) {
            while self.0.elapsed() < Duration::from_millis(1) {
                runtime::sleep(Duration::from_micros(100));
            }
        }
    }

    let body = |log: Log| {
        let _waits_when_dropped = Waiter(log.start);
        panic!("a defect of the program");
    };
    run(Profile::default(), vec![Box::new(body), Box::new(|_| runtime::sleep(Duration::from_nanos(1)))]);
}

#[test]
fn a_destructor_that_waits_for_a_suspended_thread_ends_the_process_with_a_message() {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "world::panic_with_a_lock_of_a_suspended_thread", "--ignored", "--nocapture"])
        .output()
        .unwrap();

    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(stderr.contains("a thread panics, and a destructor of it waits for a thread"), "{stderr}");
}

#[test]
#[ignore = "ends the process: the test above runs it in one of its own"]
fn panic_with_a_lock_of_a_suspended_thread() {
    /// A value whose destructor locks a mutex.
    struct Locker(Arc<Mutex<()>>);
    impl Drop for Locker {
        fn drop(&mut self) {
            drop(runtime::lock(&self.0));
        }
    }

    let mutex = Arc::new(Mutex::new(()));
    let (held, locker) = (mutex.clone(), Locker(mutex));
    run(
        Profile::default(),
        vec![
            Box::new(move |_| {
                let _held = runtime::lock(&held);
                runtime::sleep(Duration::from_secs(3600));
            }),
            Box::new(move |_| {
                let _locks_when_dropped = locker;
                panic!("a defect of the program");
            }),
        ],
    );
}

#[test]
#[should_panic(expected = "a defect of the program")]
fn a_panic_of_a_thread_is_passed_on_by_the_run() {
    struct Sleeper;
    impl Drop for Sleeper {
        fn drop(&mut self) {
            runtime::sleep(Duration::from_secs(3600));
        }
    }

    let body = |_| {
        let _sleeps_when_dropped = Sleeper;
        panic!("a defect of the program");
    };
    run(Profile::default(), vec![Box::new(body), Box::new(|_| runtime::sleep(Duration::from_nanos(1)))]);
}
