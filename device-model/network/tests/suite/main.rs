//! Tests of shapes, the deadlock check, routers, collectives and presence through the crate's
//! public interface.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod alone;
mod bed;
mod collective;
mod deadlock;
mod presence;
mod properties;
mod router;
mod rows;
mod shapes;
mod strategies;
