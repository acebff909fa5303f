//! Policies for networks of common shapes.
//!
//! | policy | routes | for |
//! | --- | --- | --- |
//! | [`TorusPolicy`] | dimension order, or adaptive with an escape | Blue Gene/L, Blue Gene/Q |
//! | [`TablePolicy`] | a table for each node | SeaStar, EXTOLL |
//!
//! Tori and meshes have 1 to 5 dimensions; partitions are tori of their own.

mod check;
mod table;
mod torus;
mod word;

pub use self::{
    check::{escape_routes, table_routes},
    table::{TablePolicy, TableRules, TableWord},
    torus::{ChannelClass, Fixed, PolicyError, TorusPolicy, TorusRules},
    word::{CLASSES, TorusWord, WordError, ZONES},
};
