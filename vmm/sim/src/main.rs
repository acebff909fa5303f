//! `nicforge-sim`: the program that `nicforge paper` and `nicforge run --virtual` start.

use std::process::ExitCode;

fn main() -> ExitCode {
    nicforge::failure::report(nicforge_sim::cli::main())
}
