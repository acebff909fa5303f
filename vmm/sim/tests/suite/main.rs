//! Tests of virtual time, of traffic on networks alone, of the papers' framework with a made-up
//! experiment, and of the program's command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod bgq;
mod extoll;
mod fcnp;
mod made_up;
mod mu;
mod paper;
mod papers;
mod polls;
mod program;
mod seastar;
mod torus;
mod traffic;
mod world;
