//! The command line of the program `nicforge-sim`, which `nicforge` starts for its commands in
//! virtual time.

use clap::{Parser, Subcommand};
use nicforge::{failure::Failure, log::Log};

use crate::{paper, run, traffic};

/// Machines and their software in virtual time.
#[derive(Debug, Parser)]
// The user has typed `nicforge paper` or `nicforge run --virtual`, or else `nicforge-sim`.
#[command(name = "nicforge-sim", bin_name = "nicforge", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Repeat the papers' experiments, and print their results beside the papers'.
    Paper(paper::command::Arguments),
    /// Run a parallel program on each node with an EXTOLL card, a SeaStar or a Message Unit.
    #[command(override_usage = "nicforge run --virtual [OPTIONS] <MACHINE> -- <PROGRAM>...")]
    Run(run::Arguments),
    /// Measure a network alone: latency and accepted load by offered load.
    Traffic(traffic::command::Arguments),
}

/// Parses the command line, and runs the command. Returns the exit code.
///
/// # Errors
/// Returns the failure of the command.
pub fn main() -> Result<u8, Failure> {
    let Arguments { command } = Arguments::parse();
    // The log is kept until the end. Its remaining lines are written when it is dropped.
    let _log = Log::install()?;

    match command {
        Command::Paper(arguments) => paper::command::main(paper::ALL, &arguments),
        Command::Run(arguments) => run::main(&arguments),
        Command::Traffic(arguments) => traffic::command::main(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
