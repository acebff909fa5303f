//! The SeaStar in a machine that the test steps, with a program of the test in place of its
//! firmware. Each file has its own topic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod detached;
mod firmware;
mod halts;
mod incarnations;
mod mailboxes;
mod messages;
mod order;
mod pieces;
mod references;
mod sleeping_clients;
mod slow_clients;
mod streams;
mod timing;
