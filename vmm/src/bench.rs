//! `nicforge bench`: starts the program of the benches, `nicforge-bench`.
//!
//! It is a program of its own, because the benches need more libraries than the product.

use std::{env, ffi::OsString, io::ErrorKind, os::unix::process::CommandExt, process::Command};

use clap::{ArgMatches, Args, FromArgMatches};
use nicforge_family::Families;

use crate::failure::{ErrorContext, Failure};

/// The file name of the program. It is in the directory of this program.
const PROGRAM: &str = "nicforge-bench";

// The program of the benches parses its own arguments, also `--help`.
#[derive(Debug, Args)]
struct BenchArguments {
    /// A benchmark and its options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Returns the command line of the command.
pub fn command() -> clap::Command {
    BenchArguments::augment_args(clap::Command::new("bench"))
        .about("Measure the cost of the devices and libraries, beside their peers, in one run")
        .disable_help_flag(true)
        .after_help("`nicforge bench --help` shows the options, and `nicforge bench list` the benchmarks.")
}

/// Runs the command.
///
/// # Errors
/// Returns an error when the program of the benches cannot be started.
pub fn run(matches: &ArgMatches, _: &Families) -> Result<u8, Failure> {
    let arguments =
        BenchArguments::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    Err(start(&arguments.arguments))
}

/// Replaces this process by the program of the benches, with the same environment and standard
/// streams. Returns only when that fails.
pub fn start(arguments: &[OsString]) -> Failure {
    let program = match env::current_exe().context(|| "this program's own file".into()) {
        Ok(own) => own.with_file_name(PROGRAM),
        Err(failure) => return failure,
    };

    let error = Command::new(&program).args(arguments).exec();
    let advice = match error.kind() {
        ErrorKind::NotFound => {
            "; build it beside this program: `cargo build --release` builds both, `cargo build -p nicforge-bench` builds it alone"
        }
        _ => "",
    };

    Failure::environment(format!("can't start {}: {error}{advice}", program.display()))
}
