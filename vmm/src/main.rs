//! `nicforge`: the program of [`nicforge::App`] with the devices that come with nicforge.

use std::process::ExitCode;

use nicforge::{App, beside::SiblingProgram, demo};

/// The benches. They need more libraries than the product.
const BENCH: SiblingProgram = SiblingProgram {
    command: "bench",
    about: "Measure the cost of the devices and libraries, beside their peers, in one run",
    more_help: "`nicforge bench --help` shows the options, and `nicforge bench list` the benchmarks.",
    file: "nicforge-bench",
    first_arguments: &[],
};

/// The papers' experiments. The libraries of `nicforge-sim` have hooks for virtual time, which the
/// served product does not pay for.
const PAPER: SiblingProgram = SiblingProgram {
    command: "paper",
    about: "Repeat the papers' experiments in virtual time, and compare the results with theirs",
    more_help: "`nicforge paper --help` shows the options, and `nicforge paper list` the papers.",
    file: "nicforge-sim",
    first_arguments: &["paper"],
};

/// Traffic on a network alone, by the same program.
const TRAFFIC: SiblingProgram = SiblingProgram {
    command: "traffic",
    about: "Measure a network alone in virtual time: latency and accepted load by offered load",
    more_help: "`nicforge traffic --help` shows the options.",
    file: "nicforge-sim",
    first_arguments: &["traffic"],
};

fn main() -> ExitCode {
    App::new("nicforge")
        .about("Build, serve and drive kernel-bypass NICs without owning one")
        .families(nicforge_nics::families())
        .command(demo::command(), demo::run)
        .program(BENCH)
        .program(PAPER)
        .program(TRAFFIC)
        .main()
}
