//! The Blue Gene tree (collective) network NIC.
//!
//! A function is a node's NIC. Its clients, the four cores and the admin, see it as [`nicforge_hwi::tree`] and
//! [`nicforge_hwi::tree_dcr`] say; this crate is what happens behind.
//!
//! In: accesses and mapped memory of the clients, packets from up to three links. Out: packets, interrupts, mirrored state.
//! May touch: `core`, `hwi`, `shm`. No unsafe, no threads, no clocks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`nic`] | the device: attachments, resets, one step |
//! | `fifo` | a virtual channel's send and receive FIFO, as slots in mapped memory |
//! | `port` | the trapped port on the same FIFOs |
//! | `router` | point-to-point, class and broadcast routing |
//! | [`alu`] | combining operands |
//! | `presence` | who is up |
//! | `barrier` | global interrupts |
//! | `registers` | device control and interrupt registers |
//! | [`topology`] | machines: who is linked with whom, and by which routes |
//! | [`config`] | what one NIC is told |
#![forbid(unsafe_code)]

pub mod alu;
mod barrier;
pub mod config;
mod fifo;
pub mod nic;
mod port;
mod presence;
mod registers;
mod router;
pub mod topology;

pub use self::{
    config::{ClassRoute, Route, Routes, TreeConfig},
    nic::TreeNic,
    topology::{Topology, TopologyError, TopologyLink, TopologyNode},
};
