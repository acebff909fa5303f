//! Tests of shapes and of the deadlock check through the crate's public interface.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod deadlock;
mod shapes;
mod strategies;
