//! VELO of the EXTOLL card: messages of 1 to 8 quadwords between processes (Fröning et al., "On Achieving High
//! Message Rates").
//!
//! In: a [`nicforge_driver::Device`] that is a VPID of a card, and messages. Out: messages.
//!
//! A [`Port`] is what a process has of a card: it receives into a ring of its own memory, and sends by one posted write a message, whose
//! address says to whom. Messages from one port to another arrive in order, each once, and whole. No call on the way of a message allocates,
//! locks, or makes a system call while the card's engine is awake.
//!
//! - `port.rs`: opening, and what a port knows; `connect.rs`: peers;
//! - `send.rs`, `receive.rs`: messages; `flow.rs`: the credits of connections;
//! - `stores.rs`: messages where there is no posted-write ring, which may be torn on their way, and are sent again;
//! - `message.rs`, `config.rs`, `error.rs`: what goes in and out.
//!
//! # Flow control
//!
//! A receive ring has a share for each node, and a card that has used up its share of a ring makes the *sender* wait: its other
//! messages too, since they stand behind. So that this does not happen, a receiver promises each connection some messages, and a sender
//! sends no more than was promised; promises are renewed by messages with the tag [`CONTROL_TAG`], when the receiver's application has taken
//! messages. A connection whose receiver does not read stops by itself ([`Port::send_nb`] gives [`Error::WouldBlock`]), and all others go on.
//! The messages about promises need no credit: each ring keeps room for those that ports send each other. Who asks more often is not answered, and a
//! tenant whose ring has no room for an answer until the card's watchdog drops it is promised and told nothing any more.
//! Both ends have to use it or both not: [`Config::flow_control`].
//!
//! The answering is done inside the calls of a port. A process that computes for long without calling any answers late; [`Port::progress`] does
//! nothing else.
//!
//! # When a peer dies
//!
//! Its card tells all others, behind everything that it had sent. A [`Link`] is to one tenant of a VPID: sending on it, or waiting for a message
//! from its other end, fails with [`Error::PeerGone`] from then on, and its messages that have arrived can still be taken. A new tenant is
//! reached by a new [`Port::connect`]; messages meant for the old one, which may have waited in a card, are dropped by it, since their sender has not
//! connected to it. Without flow control nobody connects, and it may get them.
//!
//! A process that resets its own device, or whose VPID the admin resets, is gone to the others in the same way. Its port does not outlive that: calls
//! that wait give [`Error::Reset`].
#![forbid(unsafe_code)]

mod config;
mod connect;
mod error;
mod flow;
mod message;
mod port;
mod receive;
mod send;
mod stores;

pub use config::{Config, Waiting};
pub use error::{DeviceError, Error};
pub use flow::CONTROL_TAG;
pub use message::{Address, Filter, MAX_MESSAGE, Message};
pub use port::{Link, Port, Statistics};
