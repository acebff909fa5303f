//! Runs test bodies inside a guest: `guest_bodies DOOR MACHINE [PART OF A NAME]`. It prints one
//! line for each body. The exit status tells whether all of them passed.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use nicforge_tests::{
    guest_bodies::{BODIES, Door},
    guest_rig::GuestRig,
};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (door, machine, part) = match &arguments[..] {
        [door, machine] => (door, machine, ""),
        [door, machine, part] => (door, machine, part.as_str()),
        _ => return ExitCode::from(2),
    };

    let Some(door) = Door::named(door) else { return ExitCode::from(2) };
    let rig = GuestRig::from_env();
    let (mut good, mut bad) = (0, Vec::new());
    for body in
        BODIES.iter().copied().flatten().filter(|body| body.machine == machine && body.name.contains(part))
    {
        if body.reason_not_to_run(door).is_some() {
            continue;
        }
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            rig.begin();
            (body.run)(&rig);
        }));
        let seconds = started.elapsed().as_secs_f32();
        match result {
            Ok(()) => {
                good += 1;
                println!("{} ok {seconds:.2} s", body.name);
            }
            Err(_) => {
                bad.push(body.name);
                println!("{} FAILED {seconds:.2} s", body.name);
            }
        }
        let _ = std::io::stdout().flush();
    }

    println!("{machine}: {good} bodies held, {} failed {bad:?}", bad.len());
    if bad.is_empty() && good > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
