//! The Cray SeaStar: mailboxes, DMA engines, a router with six links, and an embedded processor.
//!
//! The paper is Brightwell et al., "SeaStar Interconnect: Balanced Bandwidth for Scalable
//! Performance", IEEE Micro 2006. Mailboxes, commands and headers are in
//! [`nicforge_hwi::seastar`]; the program of the processor sees the device as a
//! [`nicforge_seastar_firmware::chip::Chip`].
//!
//! ```text
//!   mailboxes ──▶ ┌───────────┐ ◀── headers, ends ── receive DMA engine ◀──┐
//!   results  ◀── │ processor │                                     router ◀──▶ 6 links
//!   events   ◀── └───────────┘ ── messages ────────▶ transmit DMA engine ──┘
//! ```
//!
//! In: commands, packets, client memory. Out: results, events, deposits, interrupts, packets. May
//! touch: `core`, `kit`, `network`, `family`, `hwi`, `shm`, and the firmware. No unsafe, no clocks;
//! the machine chooses the processor's thread.
//!
//! | module | contents |
//! | --- | --- |
//! | [`config`] | networks: shape, tables of routes, options |
//! | `incarnations` | the incarnations of all nodes: one table, which the devices share |
//! | `wire` | packets and their route word |
//! | `memory` | client memory, tenants, lists of pieces |
//! | `wait_budgets` | budgets of the time for which slow clients make their node wait |
//! | `leased` | leased memory for events and data of header packets |
//! | `processor` | the embedded processor: the companion that runs the program |
//! | `parts` | what the engines share |
//! | `transmit`, `service` | the transmit DMA engine, and its message in service |
//! | `receive`, `stream` | the receive DMA engine, and the streams of its demultiplexer |
//! | `reference` | packets that refer to client memory |
//! | `mailbox` | commands and results |
//! | `device` | the device: attachments, resets, incarnations, one step |
//! | `link_check` | the check of a link with injected errors |
//! | [`family`] | the tables `[[seastar]]` of machine files |
#![forbid(unsafe_code)]

pub mod config;
mod device;
pub mod family;
mod incarnations;
mod leased;
mod link_check;
mod mailbox;
mod memory;
mod parts;
mod processor;
mod receive;
mod reference;
mod service;
mod stream;
mod transmit;
mod wait_budgets;
mod wire;

pub use self::{
    config::{Network, NetworkError, Options},
    device::{ProgramSite, SeaStar},
    family::{FirmwareOptions, Networks},
    link_check::{link_check, noisy_link},
};
