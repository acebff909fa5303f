//! Networks alone: routers with their links and the nodes' own work, without a machine.
//!
//! A machine calls a device for each turn, and its fabric carries packets with contents, faults and
//! memory for clients. A study of a network needs none of that. A [`Network`] has the links in
//! tables, moves packets of a few words ([`Parcel`]) by value, and calls its nodes directly. The
//! routers are those that NICs have ([`crate::router::Router`]), with the same policies,
//! arbitration, slots and counters: they see the links through [`crate::router::Links`].
//!
//! ```text
//!   timing wheel ── arrivals, idle wires, credits, timers ──▶ nodes to run
//!                                                               │ turn
//!   lanes, wires ◀── forward, send, take ── Router ◀── Node ◀───┘
//! ```
//!
//! # What is the same as in a machine
//!
//! - The times of a transmission are the fabric's own ([`nicforge_core::fabric::timing`]).
//! - Credits are back when a packet's tail has left the buffer, and the delay has passed.
//! - A packet is shown when its head has arrived and the one before it has left; a router asks for
//!   its tail. A sender is woken when a wire falls idle or enough credits are there.
//! - All events of a time come before the turns of that time. A node has a turn after each of its
//!   events, and as long as it asks for another. It can leave out those after heads that have to
//!   wait ([`Node::arrive`]), in which its router would do nothing more.
//!
//! Each packet thus arrives at the same time as in a machine of such nodes. The test
//! `networks_alone_and_machines_deliver_the_same_packets` runs both and compares them.
//!
//! # The order of events
//!
//! A link has a delay of at least 1 ns. An action of a node therefore concerns another one at a
//! later time only, and the result does not depend on the order of the events and turns of one
//! time. Arrivals are carried out last. A node that has a turn in any case then decides on new
//! heads in it, which takes less than [`Node::arrive`].
//!
//! # What is missing
//!
//! Faults, contents of packets, links of several kinds, links without delay or of infinite
//! bandwidth, and devices with clients. They need a machine.
//!
//! | module | contents |
//! | --- | --- |
//! | `network` | the nodes, and the order of their turns |
//! | `net` | the tables of the links, and their events |
//! | `links` | the links as a node sees them |
//! | `lane` | a virtual channel: buffer, credits, what its receiver has been shown |
//! | `wheel` | events in order of time |

mod lane;
mod links;
mod net;
mod network;
mod wheel;

pub use self::{
    lane::Parcel,
    links::NodeLinks,
    network::{AloneError, Endless, Network, Node, Turn},
};
