//! `nicforge bench`: starts the program of the benches, `nicforge-bench`.
//!
//! It is a program of its own, because the benches need more libraries than the product.

use std::{env, ffi::OsString, io::ErrorKind, os::unix::process::CommandExt, process::Command};

use crate::failure::{ErrorContext, Failure};

/// The file name of the program. It is in the directory of this program.
const PROGRAM: &str = "nicforge-bench";

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
