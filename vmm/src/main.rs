//! `nicforge`: see [`nicforge::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nicforge::failure::report(nicforge::cli::main())
}
