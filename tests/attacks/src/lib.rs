//! Attacks on a served machine, and a measurement of their effects on others.
//!
//! Each [`attack`] is a process that has access to nothing but sockets of `nicforge serve`. While
//! it runs, a [`polite`] tenant on another card of the machine measures its rounds, and newcomers
//! connect. At the end the server is asked to end with the attacker still present. A [`contest`] is
//! one such run; the [`load`] test is all of them under both event loops, as a table.
//!
//! - In: the program `nicforge`.
//! - Out: reports.
//! - It may use the driver libraries for the polite side, vfio-user's wire types for the attackers,
//!   processes and files.

pub mod arena;
pub mod attack;
pub mod client;
pub mod contest;
pub mod copier;
pub mod files;
pub mod guest;
pub mod load;
pub mod polite;
pub mod server;
