//! `nicforge-bench`: the program that `nicforge bench` starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    nicforge::failure::report(nicforge_bench::cli::main(nicforge_bench::benches::ALL))
}
