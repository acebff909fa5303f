//! Networks of nodes: their shapes, and the check that their routes cannot deadlock.
//!
//! A NIC family describes its network with the types of this crate, and adds its own rules: which
//! port numbers its hardware has, which virtual channels, and which routes.
//!
//! In: lengths of dimensions, numbers of nodes, routing relations. Out: neighbours, cables,
//! distances, and either the statement that no packets wait for each other in a circle or an error
//! that names the circle. May touch: nothing else of nicforge. No unsafe, no threads, no clocks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`shape`] | tori, meshes, partitions, trees, hypercubes, full meshes, and cables from a list |
//! | [`deadlock`] | the graph of channels that wait for each other, and the search for its cycles |
#![forbid(unsafe_code)]

pub mod deadlock;
pub mod shape;
