//! The firmware on fake chips: several nodes, random schedules, drops, restarts, hostile commands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this target is tests")]

mod chip;
mod commands;
mod flow_control;
mod host_based;
mod network;
mod nic_based;
mod schedules;
mod tenants;
