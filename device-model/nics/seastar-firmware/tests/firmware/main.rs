//! The firmware on fake chips: several nodes, random schedules, drops, restarts, hostile commands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this target is tests")]

mod commands;
mod host_based;
mod network;
mod nic_based;
mod schedules;
