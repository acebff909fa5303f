//! Attacks on a served machine, and a measurement of what they do to others.
//!
//! Each [`attack`] is a process that knows nothing but sockets of `nicforge serve`. While it is at work, a [`polite`] tenant on
//! another card of the machine notes how long its rounds take, and newcomers connect. At the end the server is asked to end with
//! the attacker still there. A [`contest`] is one such run; the [`load`] test is all of them under both event loops, as a table.
//!
//! In: the program `nicforge`. Out: reports. May touch: the driver libraries for the polite side, vfio-user's wire types for the
//! other one, processes and files.

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
