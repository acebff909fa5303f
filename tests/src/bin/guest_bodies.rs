//! Runs test bodies inside a guest: `guest_bodies DOOR MACHINE[,MACHINE...] [PART OF A NAME]`. It
//! prints one line for each body. The exit status tells whether all of them passed.
//!
//! `guest_bodies --list` prints each pair of a door and a body, and runs none.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use nicforge_tests::{
    bodies::{self, Body, Door, GuestDoor},
    guest_rig::GuestRig,
};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (door, machines, part) = match &arguments[..] {
        [list] if list == "--list" => return print_list(),
        [door, machines] => (door, machines, ""),
        [door, machines, part] => (door, machines, part.as_str()),
        _ => return ExitCode::from(2),
    };
    let Some(door) = GuestDoor::named(door) else { return ExitCode::from(2) };

    let rig = GuestRig::from_env();
    // A failure does not keep the bodies of later machines from running.
    let counts: Vec<_> = machines.split(',').map(|machine| run_all(&rig, door, machine, part)).collect();
    // Each machine has bodies for its door. A part of a name may be of one machine's bodies alone.
    let has_run = |count: &Option<usize>| *count != Some(0);
    let is_complete = if part.is_empty() { counts.iter().all(has_run) } else { counts.iter().any(has_run) };
    let has_failed = counts.contains(&None);
    if is_complete && !has_failed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the bodies of a machine with `part` in their names. Returns how many hold, or `None` when
/// one does not.
fn run_all(rig: &GuestRig, door: GuestDoor, machine: &str, part: &str) -> Option<usize> {
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, body) in through(door, Some(machine)).filter(|(name, _)| name.contains(part)) {
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            rig.begin();
            body.run(machine, rig);
        }));
        let seconds = started.elapsed().as_secs_f32();

        match result {
            Ok(()) => {
                passed += 1;
                println!("{name} ok {seconds:.2} s");
            }
            Err(_) => {
                println!("{name} FAILED {seconds:.2} s");
                failed.push(name);
            }
        }
        let _ = std::io::stdout().flush();
    }

    println!("{machine}: {passed} bodies held, {} failed {failed:?}", failed.len());
    failed.is_empty().then_some(passed)
}

/// Prints the bodies that run through each door.
fn print_list() -> ExitCode {
    for door in GuestDoor::ALL {
        for (name, _) in through(door, None) {
            println!("{} {name}", door.name());
        }
    }
    ExitCode::SUCCESS
}

/// Returns the names and bodies that run through a door, of the machine with this name or of all.
fn through(door: GuestDoor, machine: Option<&str>) -> impl Iterator<Item = (String, &'static Body)> {
    let on_machines = bodies::all().into_iter().flat_map(|body| {
        let machines = body.machines.iter();
        machines.map(move |on| (body, *on))
    });

    on_machines
        .filter(move |(_, on)| machine.is_none_or(|name| on.name == name))
        .filter(move |(body, on)| body.reason_not_to_run(on, Door::Guest(door)).is_none())
        .map(|(body, on)| (body.name(on, None), body))
}
