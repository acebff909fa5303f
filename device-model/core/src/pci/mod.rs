//! A function as PCI software sees it: configuration space with its capabilities, and the MSI-X
//! table.
//!
//! Accesses may have any width and alignment. An access returns register values and its effect on
//! the rest of the function ([`ConfigEffect`], [`Unmasked`]). The module touches nothing else. Each
//! attachment has its own configuration space and table.
//!
//! Sources: PCI Local Bus 3.0 (header, MSI-X), PCI Express Base 4.0 chapter 7 (capability, Device
//! Serial Number, function-level reset), PCI Bus Power Management Interface 1.2.

mod capabilities;
mod config;
mod msix;
#[cfg(test)]
mod tests;

pub(crate) use config::ConfigLayouts;
pub use config::{CONFIG_SIZE, ConfigEffect, ConfigSpace, PowerState};
pub use msix::{MAX_TABLE_WRITE, MsixTable, Unmasked};
