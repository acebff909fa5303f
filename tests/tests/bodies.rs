//! A test for each test body, each of its machines and each door of the host, and one for each body
//! that runs on a network in memory. The registry of bodies says which there are, so that the
//! program makes them when it runs. Its options are those of other test programs.
//!
//! The output of a test is not captured. A failing test prints its panic, and the log lines of its
//! engine; a passing one prints nothing.

use std::{panic::resume_unwind, process::ExitCode, thread};

use libtest_mimic::{Arguments, Failed, Trial};
use nicforge_tests::{
    bodies::{self, Body, Door, HostDoor, Run, TestMachine},
    matching_body::InMemory,
};

fn main() -> ExitCode {
    let tests: Vec<_> = bodies::all().into_iter().flat_map(tests_of).collect();
    if tests.is_empty() {
        eprintln!("no test body is registered");
        return ExitCode::FAILURE;
    }

    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Returns the tests of a body.
fn tests_of(body: &'static Body) -> Vec<Trial> {
    let on_machines = body.machines.iter().flat_map(|machine| {
        let runs = |door: &HostDoor| body.reason_not_to_run(machine, Door::Host(*door)).is_none();
        HostDoor::ALL.into_iter().filter(runs).map(|door| through(body, machine, door))
    });
    on_machines.chain(in_memory(body)).collect()
}

/// Returns the test of a body on a machine, through a door.
fn through(body: &'static Body, machine: &'static TestMachine, door: HostDoor) -> Trial {
    test(body.name(machine, Some(door)), move || body.run(machine.name, &*door.rig((machine.make)())))
}

/// Returns the test of a body on a network in memory, if it runs on one.
fn in_memory(body: &'static Body) -> Option<Trial> {
    let Run::Network { in_memory, .. } = body.run else { return None };
    let name = format!("{}::in_memory::{}", body.topic(), body.function);
    Some(test(name, move || InMemory::variants().for_each(|network| in_memory(&network))))
}

/// Returns a test with a thread of its own, whose name a panic's message carries.
fn test(name: String, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name.clone(), move || {
        let thread = thread::Builder::new().name(name).spawn(run).map_err(Failed::from)?;
        // The harness reports the panic's message once more, at the end.
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok(())
    })
}
