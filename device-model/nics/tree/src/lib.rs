//! The Blue Gene tree (collective) network NIC.
//!
//! A function is a node's NIC. Its clients are the four cores and the admin. [`nicforge_hwi::tree`]
//! and [`nicforge_hwi::tree_dcr`] define what a client sees; this crate implements it.
//!
//! In: accesses and mapped memory of the clients, packets from up to three links.
//! Out: packets, interrupts, mirrored state.
//! May touch: `core`, `family`, `hwi`, `kit`, `network`, `shm`. No unsafe, no threads, no clocks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nic`] | the device: attachments, resets, one step |
//! | `fifo` | a virtual channel's send and receive FIFO: slots in mapped memory, and a port |
//! | `router` | point-to-point, class and broadcast routing |
//! | [`alu`] | combining operands |
//! | `presence` | which cores of the machine have a client |
//! | `barrier` | global interrupts |
//! | `interrupts` | the interrupts of the attachments |
//! | `registers` | device control and interrupt registers |
//! | [`topology`] | machines: the links between nodes, and the routes over them |
//! | [`config`] | the configuration of one NIC |
//! | [`family`] | the tables `[[pset]]` of machine files |
#![forbid(unsafe_code)]

pub mod alu;
mod barrier;
pub mod config;
pub mod family;
mod fifo;
mod interrupts;
pub mod nic;
mod presence;
mod registers;
mod router;
pub mod topology;

pub use self::{
    config::{ClassRoute, Route, Routes, TreeConfig},
    family::Psets,
    nic::TreeNic,
    topology::{Topology, TopologyError, TopologyLink, TopologyNode},
};
