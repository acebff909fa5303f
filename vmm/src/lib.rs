//! The program `nicforge`, and programs like it with devices of one's own: [`App`]. It serves
//! machines, runs programs on them, boots guests with them, and shows their state.
//!
//! Its input is machine files, command lines and signals. Its output is sockets in a directory,
//! processes and tables. It may use all crates below it. Each command is a module. `main.rs` adds
//! the devices that come with nicforge, and the commands that use them: the demonstration, the
//! benches and the papers' experiments.
//!
//! A test or program can also serve a machine without the command line: [`serve::Served`]. The
//! machine comes from a file, from a [`Plan`], or is a [`nicforge_core::machine::Machine`] that the
//! caller has put together.

pub mod access;
mod app;
pub mod beside;
pub mod boot;
pub mod cli;
pub mod control;
pub mod demo;
pub mod descriptors;
pub mod directory;
pub mod escape;
pub mod failure;
mod host_load;
pub mod lines;
pub mod log;
pub mod processes;
pub mod regs;
pub mod run;
mod samples;
pub mod serve;
pub mod signals;
pub mod stat;
pub mod table;
pub mod top;
pub mod trace;
mod vm;

pub use clap;
pub use nicforge_family::{
    DeviceKind, DeviceSource, Families, Family, Plan, Section, SectionError, Spanned, check_range,
    refuse_value,
};

pub use self::app::{App, CommandBody};
