//! Virtual time: a machine and its software on one clock.
//!
//! - [`world`]: the clock, the machine and the threads of its software, which use the same
//!   libraries as on a host;
//! - [`cluster`]: EXTOLL nodes, and ranks that run parallel programs on them;
//! - [`pset`]: a Blue Gene/P pset and the programs of its benchmarks;
//! - [`bgq`]: Blue Gene/Q nodes, and the programs of their benchmarks;
//! - [`seastar`]: nodes with SeaStars, and the programs of their benchmarks;
//! - [`traffic`]: load on a network alone;
//! - [`paper`]: the papers' experiments, and the tables of their results;
//! - [`run`]: parallel programs on the machine of a file;
//! - [`interrupted`]: a check of whether the user has ended a run;
//! - [`cli`]: the command line of the program `nicforge-sim`.

pub mod bgq;
pub mod cli;
pub mod cluster;
pub mod interrupted;
pub mod paper;
pub mod pset;
pub mod run;
pub mod seastar;
pub mod traffic;
pub mod world;
