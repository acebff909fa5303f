//! Tests of the engine with clients on its sockets, in one program. Each file has its own topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod closing;
mod companions;
mod eventfds;
mod files;
mod hostile;
mod messages;
mod panics;
mod second_socket;
mod serve;
mod survive;
mod tenants;
mod turns;
mod waiting;
