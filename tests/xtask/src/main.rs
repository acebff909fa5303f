//! The project's own build tasks. `cargo xtask --help` lists them.
//!
//! - `test`: all tests, after setting up what they need; `--fast` for those that take seconds
//! - `lint`: formatting, clippy, layout, rooms, and whether generated files are up to date
//! - `doc`: the API documentation and the book; it checks the links in both, and the links of all
//!   Markdown files to files and headings
//! - `book`: the book alone, with the same checks of its links
//! - `headers`: writes the generated C headers
//! - `new`: copies the template of a device
//! - `install`: builds and installs the C library
//! - `pictures`: draws the book's pictures from their text
//! - `attack`: all attacks on a served machine, with a polite tenant beside them
//! - `fuzz`: all fuzz bodies for a given time
//!
//! `.ci/run` calls the first three.

mod attack;
mod cited;
mod failures;
mod fuzz;
mod headers;
mod install;
mod layout;
mod package;
mod pictures;
mod rooms;
mod steps;
mod surroundings;
mod svg;
mod template;
mod test;

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
    /// Run the tests.
    Test(test::Test),
    /// Check formatting, lints, the layout of comments and functions, that libraries run in virtual
    /// time, that the tests named in the book exist, which crate uses which, packages, and
    /// generated files.
    Lint,
    /// Build the API documentation and the book and check their links.
    Doc,
    /// Build the book alone and check its links.
    Book,
    /// Write the generated C headers again.
    Headers,
    /// Copy the template of a device into a new folder.
    New(template::New),
    /// Build the C library, and install it with its headers and the file of its flags (pkg-config).
    Install(install::Install),
    /// Draw the book's pictures again.
    Pictures,
    /// Attack the release build, and measure the effect on other clients.
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

/// Runs a task.
fn run(task: &Task) -> Result<(), Failed> {
    let steps = Steps::new(root()?);
    match task {
        Task::Test(arguments) => test::run(&steps, arguments),
        Task::Lint => lint(&steps),
        Task::Doc => doc(&steps),
        Task::Book => book(&steps),
        Task::Headers => headers::write(steps.root()),
        Task::New(arguments) => template::copy(&steps, arguments),
        Task::Install(arguments) => install::run(&steps, arguments),
        Task::Pictures => pictures::write(steps.root()),
        Task::Attack(arguments) => attack::run(&steps, arguments),
        Task::Fuzz(arguments) => fuzz::run(&steps, arguments),
        Task::Ci => test::all(&steps).and_then(|()| lint(&steps)).and_then(|()| doc(&steps)),
    }
}

/// Runs all checks that run no test.
fn lint(steps: &Steps) -> Result<(), Failed> {
    steps.cargo("formatting", &["fmt", "--all", "--", "--check"])?;
    // Virtual time compiles hooks into the libraries, so it is checked apart from the other crates.
    let others = ["--workspace", "--exclude", "nicforge-sim"];
    for packages in [&others[..], &["-p", "nicforge-sim"]] {
        let arguments = [&["clippy"], packages, &["--all-targets", "--", "-D", "warnings"]].concat();
        steps.cargo("clippy", &arguments)?;
    }
    steps.print_heading("comments of 100 columns, functions with paragraphs");
    layout::check(steps.root())?;
    surroundings::check(steps.root())?;
    steps.print_heading("tests that the book names");
    cited::check(steps.root())?;
    steps.print_heading("which crate uses which");
    rooms::check(steps.root())?;
    package::check(steps)?;
    template::check(steps)?;
    steps.print_heading("pictures of the book");
    pictures::check(steps.root())?;
    steps.print_heading("generated C headers");
    headers::check(steps.root())
}

/// Builds the API documentation and the book.
fn doc(steps: &Steps) -> Result<(), Failed> {
    steps.cargo_with(
        "API documentation",
        &["doc", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    book(steps)
}

/// Builds the book.
fn book(steps: &Steps) -> Result<(), Failed> {
    steps.cargo("the book", &["run", "-p", "nicforge-book"])
}

/// Returns the root of the workspace.
fn root() -> Result<PathBuf, Failed> {
    // The folder tests/xtask is two levels below the workspace's root.
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).ok_or_else(|| Failed::new("the workspace was not found"))
}
