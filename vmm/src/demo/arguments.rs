//! The command line of the demonstration.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches};

use super::{Options, Part};
use crate::{cli::ServeOptions, failure::Failure};

#[derive(Debug, Args)]
struct DemoArguments {
    /// The file to stream [default: 256 MB or more of the toolchain's or the system's libraries].
    file: Option<PathBuf>,
    /// Bytes in a message, at most 64 MB.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    message: u32,
    /// Use FCNP's interrupt mode instead of polling on the I/O node.
    #[arg(long)]
    interrupts: bool,
    /// Packets in each FIFO of the machine: a power of two, at most 256. A machine has 8.
    #[arg(long, value_name = "PACKETS", default_value_t = 64, value_parser = parse_depth)]
    fifo_depth: u32,
    /// Print the result as JSON, and no progress.
    #[arg(long)]
    json: bool,
    /// The part of the demonstration that this process runs; used by the demonstration itself.
    #[arg(long, hide = true, value_enum)]
    part: Option<Part>,
    #[command(flatten)]
    options: ServeOptions,
}

/// Returns the command line of the command.
pub fn command() -> clap::Command {
    DemoArguments::augment_args(clap::Command::new("demo")).about(
        "Stream a file through an emulated Blue Gene tree network and back, and check the data that returns",
    )
}

/// Returns the options of a command line.
pub(super) fn options(matches: &ArgMatches) -> Result<Options, Failure> {
    let arguments =
        DemoArguments::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;

    Ok(Options {
        file: arguments.file,
        message: arguments.message as usize,
        interrupts: arguments.interrupts,
        fifo_depth: arguments.fifo_depth,
        json: arguments.json,
        part: arguments.part,
        serve: arguments.options,
    })
}

/// Parses the number of packets of a FIFO.
fn parse_depth(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(depth @ 1u32..=256) if depth.is_power_of_two() => Ok(depth),
        _ => Err("a power of two, at most 256, is possible".into()),
    }
}
