//! Blue Gene/Q: the Message Unit, and the five-dimensional network with its collectives.
//!
//! The paper is Chen et al., "The IBM Blue Gene/Q Interconnection Network and Message Unit",
//! SC 2011. Descriptors, packets and registers are in [`nicforge_hwi::mu`] and
//! [`nicforge_hwi::mu_packet`].
//!
//! ```text
//!   imFIFOs ──▶ descriptors ───▶ injection engines ──▶ 16 FIFOs ────▶ ┌─────────┐ ◀──▶ 10 links
//!   tables, counters                                                  │ network │
//!   rmFIFOs ◀── FIFO, put, get ◀── reception engines ◀── 15 FIFOs ◀── └─────────┘ ◀──▶ I/O link
//! ```
//!
//! In: descriptors and payload in client memory, registers, packets. Out: packets, deposits and
//! counters in client memory, interrupts. May touch: `core`, `kit`, `network`, `family`, `hwi`. No
//! unsafe, no threads, no clocks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`config`] | networks: shape, partitions, options |
//! | `network` | the network unit: router, collectives, barriers, control registers |
//! | `unit` | the Message Unit: injection, reception, memory, registers, errors |
//! | `tenants` | which client a packet is for, while clients come and go |
//! | `link_check` | check codes of links with injected errors |
//! | `device` | the device: attachments, resets, one step |
//! | [`family`] | the tables `[[bgq]]` of machine files |
#![forbid(unsafe_code)]

pub mod config;
mod device;
pub mod family;
mod link_check;
mod network;
mod tenants;
mod unit;

pub use self::{
    config::{Network, NetworkError, Options, Times},
    device::MessageUnit,
    family::Networks,
    link_check::{HOP_WORDS, LinkChecks, Paired, fixed_check, hop_check, noisy_link},
};
