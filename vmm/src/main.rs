//! `nicforge`: the program of [`nicforge::App`] with the devices that come with nicforge.

use std::process::ExitCode;

use nicforge::{App, bench, demo};

fn main() -> ExitCode {
    App::new("nicforge")
        .about("Build, serve and drive kernel-bypass NICs without owning one")
        .families(nicforge_nics::families())
        .command(demo::command(), demo::run)
        .command(bench::command(), bench::run)
        .main()
}
