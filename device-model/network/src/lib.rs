//! Networks of nodes: what the networks of all NIC families share.
//!
//! A NIC family describes its network with the types of this crate, and adds its own rules: which
//! port numbers its hardware has, which virtual channels, and which routes.
//!
//! | module | contents |
//! | --- | --- |
//! | [`shape`] | tori, meshes, partitions, trees, hypercubes, full meshes, and cables from a list |
//! | [`deadlock`] | the graph of channels that wait for each other, and the search for its cycles |
//! | [`router`] | the router that a NIC's device owns, and policies for it |
//! | [`collective`] | class routes, the ALU that combines packets, and barrier classes |
//! | [`presence`] | which nodes have software, and since which generation |
//! | [`alone`] | networks of routers without a machine |
//!
//! In: lengths of dimensions, numbers of nodes, routing relations, packets. Out: neighbours,
//! cables, distances; packets at their targets; and either the statement that no packets wait for
//! each other in a circle or an error that names the circle. May touch: the ports and packets of
//! `nicforge-core`. No unsafe, no threads, no clocks.
#![forbid(unsafe_code)]

pub mod alone;
pub mod collective;
pub mod deadlock;
pub mod presence;
pub mod router;
pub mod shape;
