//! The device contract of nicforge, and the machine that runs devices.
//!
//! A [`device::Device`] is a state machine that does no I/O and never blocks. A
//! [`machine::Machine`] holds devices as PCI functions, their attachments and the [`fabric`]
//! between them. Its owner drives it: a thread that polls it in process, or an engine that serves
//! it to other processes and guests.
//!
//! - **Input**: accesses to regions, memory mapped for DMA, interrupt sinks, replies to DMA
//!   messages, the current time.
//! - **Output**: register values, interrupts, DMA messages for memory that is not mapped
//!   ([`machine::Outgoing`]), the time of the next step.
//! - **Dependencies**: `hwi` for layouts, `shm` for shared memory. The crate opens no socket and
//!   reads no clock. It starts threads for companions alone, when its owner asks for that.

pub mod attachment;
pub mod cache;
pub mod companion;
pub mod context;
mod decode;
pub mod device;
pub mod dma;
mod error;
pub mod fabric;
pub mod ids;
pub mod interrupt;
pub mod machine;
pub mod panic;
pub mod pci;
pub mod posted;
mod progress;
pub mod spec;
pub mod time;
pub mod trace;
pub mod warning;

pub use nicforge_hwi::register;
