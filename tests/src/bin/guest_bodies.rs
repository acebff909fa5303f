//! Runs test bodies inside a guest: `guest_bodies DOOR MACHINE [PART OF A NAME]`. It prints one
//! line for each body. The exit status tells whether all of them passed.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use nicforge_tests::{
    bodies::{self, Door, GuestDoor},
    guest_rig::GuestRig,
};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (door, machine, part) = match &arguments[..] {
        [door, machine] => (door, machine, ""),
        [door, machine, part] => (door, machine, part.as_str()),
        _ => return ExitCode::from(2),
    };

    let Some(door) = GuestDoor::named(door) else { return ExitCode::from(2) };
    let rig = GuestRig::from_env();
    let (mut good, mut bad) = (0, Vec::new());

    for body in bodies::all() {
        let Some(machine) = body.machines.iter().find(|found| found.name == machine) else { continue };
        let name = body.name(machine, None);
        if !name.contains(part) || body.reason_not_to_run(machine, Door::Guest(door)).is_some() {
            continue;
        }

        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            rig.begin();
            body.run(&rig);
        }));
        let seconds = started.elapsed().as_secs_f32();

        match result {
            Ok(()) => {
                good += 1;
                println!("{name} ok {seconds:.2} s");
            }
            Err(_) => {
                println!("{name} FAILED {seconds:.2} s");
                bad.push(name);
            }
        }
        let _ = std::io::stdout().flush();
    }

    println!("{machine}: {good} bodies held, {} failed {bad:?}", bad.len());
    if bad.is_empty() && good > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
