//! Machine descriptions, the machines built from them, and the in-process backing.
//!
//! In: a machine file (TOML) or a description made in code. Out: a [`nicforge_core::machine::Machine`] with all devices
//! connected, and the list of its nodes with their names, roles and attachments. [`in_process`] lets the driver library hold
//! such a machine directly.
//! May touch: core, the NIC crates, the driver's backing trait. No sockets.

pub mod build;
pub mod description;
pub mod in_process;
