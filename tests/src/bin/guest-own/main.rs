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
//! QEMU's. So a step that fails begins again on guests that are booted anew: up to five times where
//! a guest ran no commands any more, but only twice where both did. The program prints each
//! failure, and keeps the logs of its guests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod costs;
mod steps;

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::Command,
    slice, thread,
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
    costs::{COUNTERS, set_up_in_turns},
    steps::{STEPS, Step},
};

/// Failures after which the guests are booted once more.
const MAX_FAILURES: usize = 5;
/// Those among them after which both guests still ran commands.
const MAX_FAILURES_OF_SOUND_GUESTS: usize = 2;
/// Time after which nothing begins again.
const LAST_BEGIN: Duration = Duration::from_secs(1500);
/// How long a guest may take to run a command that does nothing.
const ANSWER: Duration = Duration::from_secs(20);

/// The machine, the guests' configurations and the settings that all steps share.
struct Scene {
    served: Served,
    prepared: Prepared,
    own: GuestConfig,
    qemu: GuestConfig,
    logs: PathBuf,
    /// Times from the start of the two machines, with the same functions, to their first exit.
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
    let (own, qemu) = (own_vm::config(socket), own_vm::qemu_config(socket));
    let alike = [own_vm::config_like_qemus(socket), qemu.clone()];
    let set_up = set_up_in_turns(&served, &prepared, &alike);
    let bytes = bytes.parse().expect("a number of bytes");
    let posts = posts.parse().expect("a number of writes");

    let scene = Scene { served, prepared, own, qemu, logs: logs.into(), set_up, bytes, posts };
    scene.run(&STEPS);
}

impl Scene {
    /// Runs all steps in their order. A step that fails begins again on new guests.
    fn run(&self, mut steps: &[Step]) {
        let begin = Instant::now();
        let (mut failures, mut of_sound_guests) = (0, 0);
        while let Some(Step { name, .. }) = steps.first() {
            let mut guests_are_sound = false;
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                self.run_on_new_guests(&mut steps, failures, &mut guests_are_sound);
            }));
            let Err(cause) = outcome else { continue };

            failures += 1;
            of_sound_guests += usize::from(guests_are_sound);
            if failures > MAX_FAILURES
                || of_sound_guests > MAX_FAILURES_OF_SOUND_GUESTS
                || begin.elapsed() > LAST_BEGIN
                || steps.is_empty()
            {
                panic::resume_unwind(cause);
            }
            let name = steps.first().map_or(*name, |step| step.name);
            eprintln!("FAILURE {failures}, as shown above: {name} begins again");
            await_no_client(&self.served);
        }
    }

    /// Boots both guests, and runs steps until one fails. It removes those that held. If one fails
    /// and both guests still run commands, `guests_are_sound` is set.
    fn run_on_new_guests(&self, steps: &mut &[Step], failures: usize, guests_are_sound: &mut bool) {
        // Each pair of guests has logs of its own.
        let logs = self.logs.join(format!("attempt-{}", failures + 1));
        fs::create_dir_all(&logs).expect("a folder for logs");
        let guests = thread::scope(|scope| {
            let qemu = scope.spawn(|| self.boot(&self.qemu, &logs));
            Guests { own: self.boot(&self.own, &logs), qemu: qemu.join().unwrap() }
        });

        thread::scope(|scope| {
            let line = guests.own.terminal().expect("it was asked for");
            scope.spawn(|| guest::answer_requests(slice::from_ref(&self.served), line));
            // Kills the guest in every case, which ends the thread that answers requests.
            let _end = KillOnDrop(&guests.own);
            while let Some((step, later)) = steps.split_first() {
                let held = panic::catch_unwind(AssertUnwindSafe(|| (step.run)(self, &guests)));
                if let Err(cause) = held {
                    *guests_are_sound = guests.run_commands();
                    panic::resume_unwind(cause);
                }
                *steps = later;
            }
        });
    }

    /// Boots a guest, and waits until it takes commands.
    fn boot(&self, config: &GuestConfig, logs: &Path) -> Guest {
        let begin = Instant::now();
        let config = config.clone().logs(logs);
        let booted = Guest::boot_prepared(&self.prepared, &config, &Progress::silent());
        let guest = booted.unwrap_or_else(|error| panic!("{error}"));
        assert!(guest.problems().is_empty(), "{}: {:?}", guest.node(), guest.problems());

        println!("{} takes commands after {:.1?}", guest.node(), begin.elapsed());
        guest
    }
}

impl Guests {
    /// Returns whether both guests still run commands, and prints it for each.
    fn run_commands(&self) -> bool {
        let runs = [&self.own, &self.qemu].map(|guest| match guest.run("true", ANSWER) {
            Ok(_) => {
                eprintln!("{} still runs commands", guest.node());
                true
            }
            Err(error) => {
                eprintln!("{} runs no commands: {error}", guest.node());
                false
            }
        });
        runs == [true; 2]
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
