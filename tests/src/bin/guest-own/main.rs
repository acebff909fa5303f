//! Runs test bodies in our own virtual machine, inside a guest with nested virtualisation, and lets
//! programs there meet programs of this process and of QEMU's guest on the same served machine.
//!
//! ```text
//! guest-own FOLDER VM LOGS BYTES POSTS
//! ```
//!
//! `FOLDER` has the prepared files of the guests of [`own_vm`], and `VM` is a program with the
//! command `vm`. The guests' logs go to the folder `LOGS`, and a failure prints their ends. Our own
//! virtual machine sends `BYTES` bytes to QEMU's guest over TCP, and an eighth of that come the
//! other way. `POSTS` writes are posted in each guest while exits are counted. The exit status is 0
//! when everything held. The program prints what it took, and a table of what both virtual machines
//! cost.
//!
//! On an emulated SVM, a Linux in a guest sometimes crashes, our own virtual machine's as well as
//! QEMU's. So a step that fails begins again on guests that are booted anew, and the program says
//! so. What a step checks fails each time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod costs;
mod steps;

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nicforge_engine::{EngineConfig, Quotas};
use nicforge_guest::{Guest, GuestConfig, Prepared, Progress};
use nicforge_tests::{
    backing::Served,
    guest::{self, LONG},
    own_vm,
};

use self::{
    costs::{COUNTERS, set_up},
    steps::{STEPS, Step},
};

/// Failures of steps after which the guests are booted once more.
const MAX_FAILURES: usize = 5;
/// How long a guest may take to run a command that does nothing.
const ANSWER: Duration = Duration::from_secs(20);

/// What all steps need.
struct Scene {
    served: Served,
    prepared: Prepared,
    own: GuestConfig,
    qemu: GuestConfig,
    /// Times from the start of the guests' machines to their first exit.
    set_up: [Duration; 2],
    bytes: u64,
    posts: u64,
}

/// Our own virtual machine's guest, and QEMU's.
struct Guests {
    own: Guest,
    qemu: Guest,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, vm, logs, bytes, posts] = &arguments[..] else {
        panic!("guest-own FOLDER VM LOGS BYTES POSTS");
    };

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LONG, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(own_vm::machine(), settings);

    let mounted = Command::new("mount").args(["-t", "debugfs", "debugfs", COUNTERS]).status();
    assert!(mounted.expect("a program to mount").success());
    let prepared = Prepared::open(Path::new(folder), Some(vm.into()));
    let prepared = prepared.unwrap_or_else(|error| panic!("{error}"));
    let socket = |function: &str, attachment: &str| served.socket(function, attachment);
    let (own, qemu) = (own_vm::config(socket).logs(logs), own_vm::qemu_config(socket).logs(logs));
    let set_up = [&own, &qemu].map(|config| set_up(&served, &prepared, config));
    let bytes = bytes.parse().expect("a number of bytes");
    let posts = posts.parse().expect("a number of writes");

    let scene = Scene { served, prepared, own, qemu, set_up, bytes, posts };
    scene.run(&STEPS);
}

impl Scene {
    /// Runs all steps in their order. A step that fails begins again on new guests.
    fn run(&self, mut steps: &[Step]) {
        let mut failures = 0;
        while !steps.is_empty() {
            let begun = panic::catch_unwind(AssertUnwindSafe(|| self.run_on_new_guests(&mut steps)));
            let Err(cause) = begun else { continue };

            failures += 1;
            if failures > MAX_FAILURES {
                panic::resume_unwind(cause);
            }
            let name = steps.first().map_or("the end", |step| step.name);
            eprintln!("FAILURE {failures} of at most {MAX_FAILURES}, as shown above: {name} begins again");
            self.await_no_client();
        }
    }

    /// Boots both guests, and runs steps until one fails. It removes those that held.
    fn run_on_new_guests(&self, steps: &mut &[Step]) {
        let guests = thread::scope(|scope| {
            let qemu = scope.spawn(|| self.boot(&self.qemu));
            Guests { own: self.boot(&self.own), qemu: qemu.join().unwrap() }
        });

        thread::scope(|scope| {
            scope.spawn(|| {
                guest::answer_requests(&self.served, guests.own.terminal().expect("it was asked for"))
            });
            // Kills the guest in every case, which ends the operator's thread too.
            let _end = KillOnDrop(&guests.own);
            while let Some((step, later)) = steps.split_first() {
                let held = panic::catch_unwind(AssertUnwindSafe(|| (step.run)(self, &guests)));
                if let Err(cause) = held {
                    guests.print_state();
                    panic::resume_unwind(cause);
                }
                *steps = later;
            }
        });
    }

    /// Boots a guest, and waits until it takes commands.
    fn boot(&self, config: &GuestConfig) -> Guest {
        let begin = Instant::now();
        let booted = Guest::boot_prepared(&self.prepared, config, &Progress::silent());
        let guest = booted.unwrap_or_else(|error| panic!("{error}"));
        assert!(guest.problems().is_empty(), "{}: {:?}", guest.node(), guest.problems());

        println!("{} takes commands after {:.1?}", guest.node(), begin.elapsed());
        guest
    }

    /// Waits until no function has a client. The next guests have the same functions.
    fn await_no_client(&self) {
        await_no_client(&self.served);
    }
}

impl Guests {
    /// Prints whether the guests still run commands.
    fn print_state(&self) {
        for guest in [&self.own, &self.qemu] {
            match guest.run("true", ANSWER) {
                Ok(_) => eprintln!("{} still runs commands", guest.node()),
                Err(error) => eprintln!("{} runs no commands: {error}", guest.node()),
            }
        }
    }
}

/// Waits until no function of a served machine has a client.
fn await_no_client(served: &Served) {
    let begin = Instant::now();
    let has_client = || {
        let functions = served.snapshot().functions;
        functions
            .iter()
            .flat_map(|function| &function.attachments)
            .any(|attachment| attachment.client.is_some())
    };

    while has_client() {
        assert!(begin.elapsed() < LONG, "a function still has a client");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Kills a guest on drop.
struct KillOnDrop<'a>(&'a Guest);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}
