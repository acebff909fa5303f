#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arrival;
mod attachment;
mod atu;
pub mod card;
mod command_budget;
pub mod config;
mod device;
mod directory;
mod failure;
pub mod family;
mod mirror;
pub mod packet;
mod per_client;
mod registers;
mod ring_registers;
mod rma;
mod sharing;
pub mod switch;
pub mod topology;
mod unit;
mod velo;

pub use self::{
    card::Card,
    config::{CardConfig, ConfigError, MAX_RMA_MTU, R1_RMA_MTU},
    family::Networks,
    topology::{Route, Routes, Topology, TopologyError, TopologyLink},
};
