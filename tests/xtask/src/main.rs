//! The project's own build tasks. `cargo xtask --help` lists them.
//!
//! - `test`: all tests, after setting up what they need
//! - `lint`: formatting, clippy, layout, and whether generated files are up to date
//! - `doc`: the API documentation and the book; it checks the former's links, and the links of all
//!   Markdown files to files and headings
//! - `headers`: writes the generated C headers
//! - `attack`: all attacks on a served machine, with a polite tenant beside them
//! - `fuzz`: all fuzz bodies for a given time
//!
//! `.ci/run` calls the first three.

mod attack;
mod fuzz;
mod headers;
mod layout;
mod steps;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use steps::{Failed, Steps};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "nicforge's own build tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all tests.
    Test,
    /// Check formatting, lints, the layout of comments and functions, and generated files.
    Lint,
    /// Build the API documentation and the book and check their links.
    Doc,
    /// Write the generated C headers anew.
    Headers,
    /// Attack the release build, and see what others notice of it.
    Attack(attack::Attack),
    /// Run the fuzz bodies, each for a given time.
    Fuzz(fuzz::Fuzz),
    /// All that CI runs: test, lint, doc.
    Ci,
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    match run(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("xtask: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<(), Failed> {
    let steps = Steps::new(root()?);
    match task {
        Task::Test => test(&steps),
        Task::Lint => lint(&steps),
        Task::Doc => doc(&steps),
        Task::Headers => headers::write(steps.root()),
        Task::Attack(arguments) => attack::run(&steps, arguments),
        Task::Fuzz(arguments) => fuzz::run(&steps, arguments),
        Task::Ci => test(&steps).and_then(|()| lint(&steps)).and_then(|()| doc(&steps)),
    }
}

fn test(steps: &Steps) -> Result<(), Failed> {
    guests(steps)?;
    // The program and the C libraries come first, as whole-system tests start them.
    steps.cargo(
        "build what the whole-system tests start",
        &["build", "-p", "nicforge", "-p", "nicforge-fcnp-c"],
    )?;
    steps.cargo("build the attackers", &["build", "-p", "nicforge", "-p", "nicforge-attacks"])?;

    // Allocated and freed memory is filled with a pattern, so that uses of uninitialised or freed
    // memory show.
    steps.cargo_with("tests", &["test", "--workspace"], &[("MALLOC_PERTURB_", "165")])?;
    steps.cargo_with(
        "shared memory, optimised for this processor and with all checks",
        &["test", "--release", "-p", "nicforge-shm", "--lib", "--tests"],
        &[
            ("RUSTFLAGS", "-C target-cpu=native"),
            ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
            ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
            ("CARGO_TARGET_DIR", "target/checked"),
        ],
    )?;

    steps.cargo_with(
        "model checking of the posted-write ring (loom)",
        &["test", "--release", "-p", "nicforge-shm", "--test", "loom"],
        &[("RUSTFLAGS", "--cfg loom"), ("LOOM_MAX_PREEMPTIONS", "3"), ("CARGO_TARGET_DIR", "target/loom")],
    )
}

/// Prepares guests for the tests: QEMU, a kernel and the kernel module once for each user, and the
/// KVM trial once for each boot of the host.
fn guests(steps: &Steps) -> Result<(), Failed> {
    steps.say("what guests are made of");
    let watch = nicforge_guest::Watch::on_stderr();
    let made = nicforge_guest::Provision::from_environment().provide(&watch).and_then(|toolkit| {
        if toolkit.has_shim() {
            toolkit.shim(&watch)?;
        }
        toolkit.accelerator(&watch).map(|choice| (toolkit, choice))
    });

    let (toolkit, choice) = made.map_err(|error| Failed::new(error.to_string()))?;
    steps.say(&format!(
        "guests: QEMU {}, Linux {}, {}: {}",
        toolkit.qemu.version(),
        toolkit.kernel.version,
        choice.accelerator.name(),
        choice.reason
    ));

    Ok(())
}

fn lint(steps: &Steps) -> Result<(), Failed> {
    steps.cargo("formatting", &["fmt", "--all", "--", "--check"])?;
    steps.cargo("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    steps.say("comments of 100 columns, functions with paragraphs");
    layout::check(steps.root())?;
    steps.say("generated C headers");
    headers::check(steps.root())
}

fn doc(steps: &Steps) -> Result<(), Failed> {
    steps.cargo_with(
        "API documentation",
        &["doc", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    steps.cargo("the book", &["run", "--quiet", "-p", "nicforge-book"])
}

fn root() -> Result<PathBuf, Failed> {
    // The folder tests/xtask is two levels below the workspace's root.
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).ok_or_else(|| Failed::new("the workspace was not found"))
}
