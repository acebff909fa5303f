//! Machine files, machines built from plans, and the in-process backing.
//!
//! A machine file (TOML) becomes a [`nicforge_family::Plan`]: [`description`]. A plan, from a file
//! or made in code, becomes a [`nicforge_core::machine::Machine`] with all devices connected. With
//! it comes the list of its nodes with their names, roles and attachments: [`build`].
//! [`in_process`] lets the driver library hold such a machine directly.
//!
//! The crate depends on core, on the registry of NIC families, and on the driver's backing trait.
//! It names no NIC and uses no sockets.

pub mod build;
pub mod description;
pub mod in_process;
