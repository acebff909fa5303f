//! `cargo xtask test`: all tests, or those that take seconds.
//!
//! cargo chooses the features of a crate by the packages of a command. So all tests, and all that
//! they start (programs, C libraries, examples), are compiled in one selection of packages, and
//! each crate once. Virtual time is apart: it compiles hooks into the libraries, which the other
//! tests must not have. The steps with other compiler flags need the crates `shm` and `core` alone.
//! They name a target triple, so that the flags do not reach build scripts and procedural macros.

use clap::Args;
use serde_json::Value;

use crate::{
    steps::{Failed, Steps},
    template,
};

/// The command that runs tests. A failing program does not keep later ones from running.
const TEST: [&str; 2] = ["test", "--no-fail-fast"];
/// The packages of all tests but those of virtual time. The book's program has none.
const PACKAGES: [&str; 5] = ["--workspace", "--exclude", "nicforge-book", "--exclude", "nicforge-sim"];
/// The package of virtual time.
const VIRTUAL_TIME: [&str; 2] = ["-p", "nicforge-sim"];
/// The environment variable that tells tests that all that they start is built.
const BUILT: (&str, &str) = ("NICFORGE_BUILT", "1");
/// Test programs that the fast selection leaves out: they boot guests, or make long random runs.
const SLOW: [&str; 3] = ["guests", "guest_programs", "seeded"];

/// The environment variable by which the C library fills allocated and freed memory with a pattern,
/// so that uses of uninitialised or freed memory show.
const FILL: (&str, &str) = ("MALLOC_PERTURB_", "165");

#[derive(Args)]
pub(crate) struct Test {
    /// Leave out guests, long random runs, model checking, and the examples in documentation.
    #[arg(long)]
    fast: bool,
}

/// Runs the tests.
pub(crate) fn run(steps: &Steps, test: &Test) -> Result<(), Failed> {
    if test.fast { fast(steps) } else { all(steps) }
}

/// Runs all tests, after provisioning QEMU, kernel and root file system of the guests.
pub(crate) fn all(steps: &Steps) -> Result<(), Failed> {
    provide_guests(steps)?;
    build(steps)?;
    steps.tests("tests", &[&TEST, &PACKAGES[..]].concat(), &[FILL, BUILT])?;
    test_virtual_time(steps)?;
    template::test(steps, true)?;
    test_optimised_memory(steps)?;
    check_models(steps)
}

/// Builds the programs that tests start. Examples have a package's features for tests, so that this
/// selection is the tests' own.
fn build(steps: &Steps) -> Result<(), Failed> {
    let targets = ["--lib", "--bins", "--examples"];
    steps.cargo("what tests start", &[&["build"], &PACKAGES[..], &targets].concat())
}

/// Runs the tests that take seconds.
fn fast(steps: &Steps) -> Result<(), Failed> {
    build(steps)?;
    let metadata =
        steps.cargo_output("test programs", &["metadata", "--no-deps", "--format-version", "1"])?;
    let programs = test_programs(&metadata)?;

    let mut arguments = [&TEST, &PACKAGES[..], &["--lib"]].concat();
    for program in programs.iter().filter(|program| !SLOW.contains(&program.name.as_str())) {
        arguments.extend([program.option, program.name.as_str()]);
    }

    steps.tests("tests without guests and long random runs", &arguments, &[FILL, BUILT])?;
    test_virtual_time(steps)?;
    template::test(steps, false)
}

/// A program with tests: the option of cargo that selects such programs, and the name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestProgram {
    option: &'static str,
    name: String,
}

/// Returns all programs with tests but those of libraries, by the workspace's metadata. None occurs
/// twice.
fn test_programs(metadata: &str) -> Result<Vec<TestProgram>, Failed> {
    let metadata: Value = serde_json::from_str(metadata)
        .map_err(|error| Failed::new(format!("cargo's metadata are no JSON: {error}")))?;
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();

    let targets = list(&metadata, "packages").into_iter().flat_map(|package| list(&package, "targets"));
    let tested = targets.filter(|target| target["test"] == true);
    let mut programs: Vec<_> = tested.filter_map(|target| test_program(&target)).collect();

    programs.sort();
    programs.dedup();
    Ok(programs)
}

/// Returns the program of a target in cargo's metadata, unless the target is a library.
fn test_program(target: &Value) -> Option<TestProgram> {
    let option = match target["kind"][0].as_str()? {
        "test" => "--test",
        "bin" => "--bin",
        _ => return None,
    };
    Some(TestProgram { option, name: target["name"].as_str()?.to_owned() })
}

/// Tests machines and software in virtual time.
fn test_virtual_time(steps: &Steps) -> Result<(), Failed> {
    steps.tests("virtual time", &[&TEST, &VIRTUAL_TIME[..]].concat(), &[FILL])
}

/// Tests shared memory as compiled for this processor, optimised and with all checks.
fn test_optimised_memory(steps: &Steps) -> Result<(), Failed> {
    steps.tests(
        "shared memory, optimised for this processor and with all checks",
        &["test", "-p", "nicforge-shm", "--lib", "--tests", "--target", &steps.host()?],
        &[FILL, ("RUSTFLAGS", "-C target-cpu=native -C opt-level=3")],
    )
}

/// Checks the posted-write ring and the wake-ups of companions under every interleaving that the
/// memory model allows.
fn check_models(steps: &Steps) -> Result<(), Failed> {
    let host = steps.host()?;
    let environment = [("RUSTFLAGS", "--cfg loom -C opt-level=3"), ("LOOM_MAX_PREEMPTIONS", "3")];

    steps.tests(
        "model checking of the posted-write ring (loom)",
        &["test", "-p", "nicforge-shm", "--test", "loom", "--target", &host],
        &environment,
    )?;
    steps.tests(
        "model checking of the companions' wake-ups (loom)",
        &["test", "-p", "nicforge-core", "--lib", "--target", &host, "companion::signal"],
        &environment,
    )
}

/// Prepares guests for the tests: QEMU, a kernel and the kernel module once for each user, and the
/// KVM trial once for each boot of the host.
fn provide_guests(steps: &Steps) -> Result<(), Failed> {
    steps.print_heading("QEMU, kernel and root file system of the guests");
    let progress = nicforge_guest::Progress::on_stderr();
    let created = nicforge_guest::Provision::from_environment().provide(&progress).and_then(|toolkit| {
        if toolkit.has_shim() {
            toolkit.shim(&progress)?;
        }
        toolkit.accelerator(&progress).map(|choice| (toolkit, choice))
    });

    let (toolkit, choice) = created.map_err(|error| Failed::new(error.to_string()))?;
    steps.print_heading(&format!(
        "guests: QEMU {}, Linux {}, {}: {}",
        toolkit.qemu().map_or("none", nicforge_guest::Qemu::version),
        toolkit.kernel.version,
        choice.accelerator.name(),
        choice.reason
    ));

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_tests_are_listed_once_and_libraries_are_not() {
        let metadata = r#"{"packages": [
            {"targets": [
                {"kind": ["lib"], "name": "a", "test": true},
                {"kind": ["test"], "name": "suite", "test": true}
            ]},
            {"targets": [
                {"kind": ["bin"], "name": "tool", "test": true},
                {"kind": ["bin"], "name": "server", "test": false},
                {"kind": ["test"], "name": "suite", "test": true},
                {"kind": ["test"], "name": "guests", "test": true}
            ]}
        ]}"#;
        let expected = [("--bin", "tool"), ("--test", "guests"), ("--test", "suite")];

        let expected = expected.map(|(option, name)| TestProgram { option, name: name.to_owned() });
        assert_eq!(test_programs(metadata).unwrap(), expected);
        assert!(test_programs("no metadata").is_err());
    }
}
