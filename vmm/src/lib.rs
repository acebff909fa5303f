//! The program `nicforge`. It serves machines, runs programs on them, boots guests with them, shows
//! their state, and starts the program of the benches.
//!
//! Its input is machine files, command lines and signals. Its output is sockets in a directory,
//! processes and tables. It may use all crates below it. Each command is a module. `main.rs` only
//! parses and dispatches.

pub mod access;
pub mod bench;
pub mod boot;
pub mod cli;
pub mod control;
pub mod demo;
pub mod descriptors;
pub mod directory;
pub mod failure;
pub mod lines;
pub mod log;
pub mod processes;
pub mod run;
pub mod serve;
pub mod signals;
pub mod stat;
