//! Tests of a machine through the core's public interface, in one program. Each file has its own
//! topic.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod attach;
mod dma;
mod guest_memory;
mod interrupts;
mod property;
mod rings;
mod schedule;
mod spec;
