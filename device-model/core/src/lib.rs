//! What any nicforge PCI function has, and the machine that runs them.
//!
//! A [`device::Device`] is a state machine that does no I/O and never waits. A [`machine::Machine`]
//! holds devices as PCI functions, their attachments and the [`fabric`] between them, and is driven
//! by whoever holds it: a thread that waits in process, or an engine that serves it to other
//! processes and guests.
//!
//! In: accesses to regions, memory mapped for DMA, interrupt sinks, replies to DMA messages, the
//! time. Out: register values, interrupts, DMA messages for memory that is not mapped
//! ([`machine::Outgoing`]), when to step again. May touch: `hwi` for layouts, `shm` for shared
//! memory. No sockets, no threads, no clocks.

pub mod attachment;
pub mod context;
pub mod device;
pub mod dma;
pub mod fabric;
pub mod interrupt;
pub mod machine;
pub mod pci;
pub mod posted;
pub mod spec;
pub mod time;
pub mod trace;
