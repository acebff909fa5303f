//! Tests of the EXTOLL card in a machine that the test steps, in one program. Each file has its own
//! topic.

#[path = "../common/mod.rs"]
mod common;

mod atu;
mod atu_budget;
mod fair;
mod rates;
mod registers;
mod rma;
mod rma_packets;
mod rma_remote;
mod rma_slow;
mod rma_watchdog;
mod scattered;
mod velo;
mod velo_hostile;
mod velo_rows;
