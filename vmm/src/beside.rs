//! Commands that another program carries out: one in the directory of this program.
//!
//! Such a program has dependencies or features that the served product does not have.

use std::{env, ffi::OsString, io::ErrorKind, os::unix::process::CommandExt, process::Command};

use clap::{ArgMatches, Args, FromArgMatches};

use crate::failure::{ErrorContext, Failure};

/// A program beside this one, and the command of this program that starts it.
#[derive(Clone, Copy, Debug)]
pub struct SiblingProgram {
    /// The name of the command.
    pub command: &'static str,
    /// The first line of the command's help text.
    pub about: &'static str,
    /// The last line of the command's help text.
    pub more_help: &'static str,
    /// The file name of the program, which is also the package that builds it.
    pub file: &'static str,
    /// The arguments of the program before those of the command.
    pub first_arguments: &'static [&'static str],
}

// The other program parses its own arguments, also `--help`. A doc comment here would be the
// command's description.
#[derive(Debug, Args)]
struct Arguments {
    /// The arguments of the other program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl SiblingProgram {
    /// Returns the command line of the command.
    pub fn command_line(&self) -> clap::Command {
        Arguments::augment_args(clap::Command::new(self.command))
            .about(self.about)
            .disable_help_flag(true)
            .after_help(self.more_help)
    }

    /// Runs the command: the program replaces this process, so that the call does not return.
    ///
    /// # Errors
    /// Returns an error when the program cannot be started.
    pub fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let Arguments { arguments } =
            Arguments::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
        Err(self.start(&arguments))
    }

    /// Replaces this process by the program, with the same environment and standard streams.
    /// Returns only when that fails.
    pub(crate) fn start(&self, arguments: &[OsString]) -> Failure {
        let program = match env::current_exe().context(|| "this program's own file".into()) {
            Ok(own) => own.with_file_name(self.file),
            Err(failure) => return failure,
        };

        let error = Command::new(&program).args(self.first_arguments).args(arguments).exec();
        let advice = match error.kind() {
            ErrorKind::NotFound => self.advice(),
            _ => String::new(),
        };

        Failure::environment(format!("can't start {}: {error}{advice}", program.display()))
    }

    /// Returns advice on building the program, with the profile of this one.
    fn advice(&self) -> String {
        let profile = if cfg!(debug_assertions) { "" } else { " --release" };
        format!(
            "; build it with `cargo build{profile} -p {}` in nicforge's folder, and put it beside this program",
            self.file
        )
    }
}
