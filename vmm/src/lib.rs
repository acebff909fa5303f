//! The program `nicforge`: serve a machine, run programs on it, boot guests with it, look at it, and the demonstration.
//!
//! In: machine files, command lines, signals. Out: sockets in a directory, processes, tables.
//! May touch everything below it. Each command is a module; `main.rs` only parses and dispatches.

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
