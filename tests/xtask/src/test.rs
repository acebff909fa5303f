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
/// The test program that takes longest, in one thread: our own virtual machines inside a guest. It
/// runs beside the [`SLOW`] ones.
const NESTED: &str = "nested";
/// Test programs that the fast selection leaves out, too: they boot guests, make long random runs,
/// or check a model's states.
const SLOW: [&str; 4] = ["guests", "guest_programs", "model", "seeded"];
/// Parts of the names of tests of other programs that the fast selection leaves out: a long random
/// run, and runs that show that the papers' tables can fail.
const LONG: [&str; 2] = ["processes_killed_at_random_leave_no_state", "each_missing_mechanism_puts_rows_out"];

/// The environment variable by which the C library fills allocated and freed memory with a pattern,
/// so that uses of uninitialised or freed memory show.
const FILL: (&str, &str) = ("MALLOC_PERTURB_", "165");

#[derive(Args)]
pub(crate) struct Test {
    /// Leave out guests, long runs, model checking, and the examples in documentation.
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
    let Selections { quick, slow } = selections(steps)?;
    let quick = [&quick[..], &["--".to_owned()], &test_threads()].concat();

    let low = steps.with_low_priority();
    let others = || {
        let nested = ["--test".to_owned(), NESTED.to_owned()];
        let results = [
            run_tests(steps, "virtual machines inside a guest", &nested),
            test_virtual_time(&low, &[]),
            test_optimised_memory(&low),
            check_models(&low),
        ];
        results.into_iter().collect()
    };

    // A failing test does not keep later ones from running.
    let results = [
        run_tests(steps, "tests of libraries and programs", &quick),
        run_tests(steps, "examples in documentation", &["--doc".to_owned()]),
        run_tests_beside(steps, "tests with guests, and long runs", &slow, others),
        template::test(steps, true),
    ];
    results.into_iter().collect()
}

/// Builds the programs that tests start. Examples have a package's features for tests, so that this
/// selection is the tests' own. [`NESTED`] is built here because it begins while others run.
fn build(steps: &Steps) -> Result<(), Failed> {
    let targets = ["--lib", "--bins", "--examples", "--test", NESTED];
    steps.cargo("what tests start", &[&["build"], &PACKAGES[..], &targets].concat())
}

/// Runs the tests that take seconds.
fn fast(steps: &Steps) -> Result<(), Failed> {
    build(steps)?;
    let quick = selections(steps)?.quick;
    let skipped = skipped_tests();
    let quick = [&quick[..], &["--".to_owned()], &test_threads(), &skipped].concat();

    let low = steps.with_low_priority();
    run_tests_beside(steps, "tests without guests and long runs", &quick, || {
        test_virtual_time(&low, &skipped).and(template::test(&low, false))
    })
}

/// Runs tests of all packages but that of virtual time. `arguments` select them.
fn run_tests(steps: &Steps, description: &str, arguments: &[String]) -> Result<(), Failed> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    steps.tests(description, &[&TEST, &PACKAGES[..], &arguments].concat(), &[FILL, BUILT])
}

/// As [`run_tests`], with `others` beside the tests, which do not use all processors all the time.
fn run_tests_beside(
    steps: &Steps,
    description: &str,
    arguments: &[String],
    others: impl FnOnce() -> Result<(), Failed> + Send,
) -> Result<(), Failed> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let arguments = [&TEST, &PACKAGES[..], &arguments].concat();
    steps.tests_beside(description, &arguments, &[FILL, BUILT], others)
}

/// Arguments of cargo that select test programs.
struct Selections {
    /// Libraries, and the programs whose tests take seconds.
    quick: Vec<String>,
    /// The [`SLOW`] programs.
    slow: Vec<String>,
}

/// Returns the selections of all programs with tests.
fn selections(steps: &Steps) -> Result<Selections, Failed> {
    let metadata =
        steps.cargo_output("test programs", &["metadata", "--no-deps", "--format-version", "1"])?;
    let is_slow = |program: &TestProgram| SLOW.contains(&program.name.as_str());
    let others = test_programs(&metadata)?.into_iter().filter(|program| program.name != NESTED);
    let (slow, quick): (Vec<_>, Vec<_>) = others.partition(is_slow);
    let arguments = |programs: Vec<TestProgram>| {
        programs.into_iter().flat_map(|program| [program.option.to_owned(), program.name])
    };

    Ok(Selections {
        quick: std::iter::once("--lib".to_owned()).chain(arguments(quick)).collect(),
        slow: arguments(slow).collect(),
    })
}

/// Returns the option for the number of tests that a program runs at a time. Many tests wait for
/// other processes most of their time, so that two for each processor use it better than one.
fn test_threads() -> [String; 2] {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    ["--test-threads".to_owned(), (2 * processors).to_string()]
}

/// Returns the options that leave out the [`LONG`] tests.
fn skipped_tests() -> Vec<String> {
    LONG.iter().flat_map(|name| ["--skip", name]).map(str::to_owned).collect()
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

/// Tests machines and software in virtual time. `arguments` are for the test programs.
fn test_virtual_time(steps: &Steps, arguments: &[String]) -> Result<(), Failed> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    steps.tests("virtual time", &[&TEST, &VIRTUAL_TIME[..], &["--"], &arguments].concat(), &[FILL])
}

/// Options of cargo for a step with other compiler flags than the rest, which compiles all crates
/// again: only those that do much in it are optimised.
const UNOPTIMISED: [&str; 2] = ["--config", "profile.dev.opt-level=0"];

/// Tests shared memory as compiled for this processor, optimised and with all checks.
fn test_optimised_memory(steps: &Steps) -> Result<(), Failed> {
    let host = steps.host()?;
    let tests = ["test", "-p", "nicforge-shm", "--lib", "--tests", "--target", &host];
    let optimised = ["--config", "profile.dev.package.nicforge-shm.opt-level=3"];

    steps.tests(
        "shared memory, optimised for this processor and with all checks",
        &[&tests[..], &UNOPTIMISED, &optimised].concat(),
        &[FILL, ("RUSTFLAGS", "-C target-cpu=native")],
    )
}

/// Checks the posted-write ring and the wake-ups of companions under every interleaving that the
/// memory model allows.
fn check_models(steps: &Steps) -> Result<(), Failed> {
    let host = steps.host()?;
    let environment = [("RUSTFLAGS", "--cfg loom"), ("LOOM_MAX_PREEMPTIONS", "3")];
    let optimised = ["--config", "profile.dev.package.loom.opt-level=3"];
    let check = |description, tests: &[&str]| {
        let arguments = [&["test", "--target", &host], &UNOPTIMISED[..], &optimised, tests].concat();
        steps.tests(description, &arguments, &environment)
    };

    check("model checking of the posted-write ring (loom)", &["-p", "nicforge-shm", "--test", "loom"])?;
    check(
        "model checking of the companions' wake-ups (loom)",
        &["-p", "nicforge-core", "--lib", "companion::signal"],
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
