//! Tests of the protocol's client and server, in one program. Each file has its own topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../common/mod.rs"]
mod common;

mod client_server;
mod deferred;
mod hostile_server;
mod second_socket_client;
mod second_socket_server;
mod survive_requests;
mod survive_stream;
