//! What PCI software sees of a function: configuration space with its capabilities, and the MSI-X
//! table.
//!
//! In: accesses of any width and alignment. Out: register values, and what an access means for the
//! rest of the function ([`ConfigEffect`], [`Unmasked`]). May touch: nothing. Each attachment has
//! its own of both.
//!
//! Sources: PCI Local Bus 3.0 (header, MSI-X), PCI Express Base 4.0 chapter 7 (capability, Device
//! Serial Number, function-level reset), PCI Bus Power Management Interface 1.2.

mod capabilities;
mod config;
mod msix;
#[cfg(test)]
mod tests;

pub use config::{CONFIG_SIZE, ConfigEffect, ConfigSpace, PowerState};
pub use msix::{MAX_TABLE_WRITE, MsixTable, Unmasked};
