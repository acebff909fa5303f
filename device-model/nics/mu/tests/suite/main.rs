//! The Message Unit in a machine that the test steps. Each file has its own topic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod atomics;
mod barriers;
mod errors;
mod faults;
mod fifos;
mod hostile;
mod links;
mod messages;
mod references;
mod registers;
mod rows;
mod system;
mod tenants;
mod timing;
