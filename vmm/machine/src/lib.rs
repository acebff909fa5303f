//! Machine descriptions, the machines built from them, and the in-process backing.
//!
//! A machine file (TOML), or a description made in code, becomes a
//! [`nicforge_core::machine::Machine`] with all devices connected. With it comes the list of its
//! nodes with their names, roles and attachments. [`in_process`] lets the driver library hold such
//! a machine directly.
//!
//! The crate depends on core, on the NIC crates, and on the driver's backing trait. It uses no
//! sockets.

pub mod build;
pub mod description;
pub mod in_process;
