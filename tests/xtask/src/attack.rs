//! `cargo xtask attack`: the attacks of `tests/attacks` on the release build of the program.

use std::{os::unix::process::CommandExt, path::PathBuf, process::Command};

use clap::{Args, ValueEnum};

use crate::steps::{Failed, Steps};

/// The target triple, which sanitizers need explicitly.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The build folder of programs with a sanitizer.
const SANITIZED: &str = "target/sanitized";

#[derive(Args, Debug)]
pub(crate) struct Attack {
    /// Seconds of each attack under each event loop.
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Only this attack; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Which event loops.
    #[arg(long = "loop", value_name = "LOOP", default_value = "both", value_parser = ["epoll", "io_uring", "both"])]
    event_loop: String,
    /// The polite tenant is a program in a guest.
    #[arg(long)]
    guest: bool,
    /// Print one JSON object for each attack instead of a table.
    #[arg(long)]
    json: bool,
    /// Attack this program instead of one that is built from this tree.
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Build the server with a sanitizer, and run small attacks whose times do not count.
    #[arg(long, value_enum, conflicts_with = "server")]
    sanitizer: Option<Sanitizer>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sanitizer {
    /// AddressSanitizer.
    Address,
}

/// Builds the programs and replaces this process with the load test, so that Ctrl-C and the exit
/// code are its own.
pub(crate) fn run(steps: &Steps, attack: &Attack) -> Result<(), Failed> {
    steps.cargo("build the attackers", &["build", "--release", "-p", "nicforge-attacks"])?;
    let release = steps.root().join("target/release");
    let server = match (&attack.server, attack.sanitizer) {
        (Some(program), _) => program.clone(),
        (None, Some(Sanitizer::Address)) => sanitized(steps)?,
        (None, None) => {
            steps.cargo("build the server", &["build", "--release", "-p", "nicforge"])?;
            release.join("nicforge")
        }
    };

    let mut load = Command::new(release.join("nicforge-attack"));
    load.arg("load").arg("--server").arg(server).current_dir(steps.root());
    load.args(["--seconds", &attack.seconds.to_string(), "--loop", &attack.event_loop]);

    for name in &attack.only {
        load.args(["--only", name]);
    }

    if attack.guest {
        load.arg("--guest");
    }

    if attack.json {
        load.arg("--json");
    }

    if attack.sanitizer.is_some() {
        let log = steps.root().join(SANITIZED).join("servers.log");
        steps.print_heading(&format!("what the servers say is in {}", log.display()));
        load.args(["--size", "small", "--untimed"]).arg("--log").arg(log);
        load.env("ASAN_OPTIONS", "exitcode=86:detect_leaks=1:detect_stack_use_after_return=1");
    }

    Err(Failed::new(format!("the attackers can't be started: {}", load.exec())))
}

/// Builds the server with AddressSanitizer. Returns the program's path.
fn sanitized(steps: &Steps) -> Result<PathBuf, Failed> {
    // The option is unstable; a stable compiler accepts it with `RUSTC_BOOTSTRAP`.
    steps.cargo_with(
        "build the server with AddressSanitizer",
        &["build", "--release", "-p", "nicforge", "--target", TARGET, "--target-dir", SANITIZED],
        &[
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", "-Zsanitizer=address"),
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
        ],
    )?;

    Ok(steps.root().join(SANITIZED).join(TARGET).join("release/nicforge"))
}
