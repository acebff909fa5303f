//! The programs that the book shows.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "they are written for the reader of the book"
)]

#[path = "../../../docs/src/devices/tree/allreduce.rs"]
mod allreduce;
#[path = "../../../docs/src/ports/repeater.rs"]
mod repeater;
#[path = "../../../docs/src/descriptor-rings/ring_nic.rs"]
mod ring_nic;
#[path = "../../../docs/src/own-device/tally.rs"]
mod tally;
