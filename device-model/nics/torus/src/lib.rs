//! The torus of Blue Gene/L.
//!
//! A function is the torus side of a node: two FIFO groups, one for each core, and six links.
//! [`nicforge_hwi::torus`] and [`nicforge_hwi::torus_dcr`] define what a client sees; this crate
//! implements it.
//!
//! In: accesses and mapped memory of the two cores and the kernel, packets from up to six links.
//! Out: packets, interrupts, mirrored state.
//! May touch: `core`, `family`, `hwi`, `kit`, `network`, `shm`. No unsafe, no threads, no clocks.
//!
//! ```text
//!   core 0: 3+1 injection FIFOs ──▶ ┌────────┐ ◀──▶ six links
//!           6+1 reception FIFOs ◀── │ router │
//!   core 1: 3+1 injection FIFOs ──▶ │        │
//!           6+1 reception FIFOs ◀── └────────┘
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`device`] | the device: attachments, resets, one step |
//! | `group` | the FIFO group of a core |
//! | `injection`, `reception` | its FIFOs in mapped memory |
//! | `ring` | the memory of a FIFO, in chunks |
//! | `port` | the trapped port on the FIFOs |
//! | `registers` | the registers of BAR 0 |
//! | `lives` | which cores of the network have software |
//! | `route` | the check of headers, and the route words |
//! | `policy` | the routes of a node, and the deadlock check |
//! | [`config`] | networks: shape, options, and what their nodes share |
//! | [`family`] | the tables `[[bgl]]` of machine files |
#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub mod family;
mod group;
mod injection;
mod lives;
mod policy;
mod port;
mod reception;
mod registers;
mod ring;
mod route;

pub use self::{
    config::{Network, NetworkError, Options},
    device::TorusNic,
    family::Networks,
};
