#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod atu;
pub mod card;
pub mod config;
mod control;
mod device;
mod directory;
mod registers;
mod rma;
mod set;
mod sharing;
pub mod switch;
pub mod topology;
mod velo;
mod vpid;
pub mod wire;
mod work;

pub use self::{
    card::Card,
    config::{CardConfig, ConfigError},
    topology::{Route, Routes, Topology, TopologyError, TopologyLink},
};
