//! Tests of a machine through the core's public interface, in one program. Each file has its own
//! topic.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod attach;
mod clients;
mod companions;
mod copy;
mod dma;
mod fabric;
mod forget;
mod guest_memory;
mod interrupts;
mod links;
mod panics;
mod property;
mod registers;
mod rings;
mod schedule;
mod sleepers;
mod spec;
mod trace;
mod virtual_time;
mod waiting_clients;
mod warnings;
