//! Tests of the program in processes and of the programs that it serves, in one test program. Each
//! file has its own topic.
//!
//! The test program is also the process on a node, when it runs only a function
//! `child_process_body`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../common/built.rs"]
mod built;
#[path = "../common/c_program.rs"]
mod c_program;
#[path = "../common/child_process.rs"]
mod child_process;
#[path = "../common/server.rs"]
mod server;

mod at_rest;
mod bench;
mod bgl_c_example;
mod c_fork;
mod c_library;
mod extoll_c_example;
mod fcnp_c_example;
mod fcnp_processes;
mod hello;
mod matching_c_example;
mod mpi_processes;
mod mpi_stopped;
mod mu_mpi;
mod portals_c_example;
mod portals_mpi_example;
mod portals_processes;
mod program;
mod rma_c_example;
mod server_killed;
mod spi_c_example;
mod velo_c_example;
mod velo_processes;

/// Leaves the processor to others for a short time, between two polls of a condition.
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(1));
}
