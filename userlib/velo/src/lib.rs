//! VELO of the EXTOLL card: messages of 1 to 8 quadwords between processes (Fröning et al., "On
//! Achieving High Message Rates").
//!
//! Input: a [`nicforge_driver::Device`] that is a VPID of a card, and messages. Output: messages.
//!
//! A [`Port`] is a process's endpoint on a card. It receives into a ring of its own memory. It
//! sends each message as one posted write, whose address names the receiver. Messages from one port
//! to another arrive in order, exactly once, and whole. Sending and receiving allocate nothing,
//! take no lock, and make no system call while the card's engine is awake.
//!
//! | module | content |
//! | --- | --- |
//! | `port.rs` | opening a port, and the parts of its state |
//! | `card.rs`, `card_errors.rs` | BARs of the card, and the errors that it counts |
//! | `directory.rs`, `tenant.rs` | addresses of the network, and their tenants |
//! | `ring.rs`, `kept.rs` | the receive ring, and messages taken out of it for later calls |
//! | `send_path.rs` | the posted-write ring, or stores in its place |
//! | `flow.rs`, `peer.rs` | grant and return of credits, and the state of each peer |
//! | `control.rs` | control messages |
//! | `connect.rs`, `send.rs`, `receive.rs` | calls of the application |
//! | `interrupt.rs`, `wait.rs` | calls that wait |
//! | `message.rs`, `config.rs`, `error.rs` | types of the interface |
//!
//! # Flow control
//!
//! Each node has a share of a receive ring's slots. A card that has used up its share of a ring
//! holds the message back. Everything that the same sender posts after it waits too (head-of-line
//! blocking).
//!
//! Credits prevent this. A receiver grants each connection a number of credits, and a sender spends
//! one for each message. The receiver returns credits by messages with the tag [`CONTROL_TAG`] when
//! its application has taken messages. A connection whose receiver does not read runs out of
//! credits: [`Port::send_nb`] returns [`Error::WouldBlock`], and other connections continue.
//!
//! Control messages need no credit, since each ring reserves slots for those that ports send each
//! other. A peer that connects again and again is not answered each time. A tenant whose ring is
//! full until the card's watchdog drops a control message is granted no more credits. Both ends
//! must agree on the use of flow control: [`Config::flow_control`].
//!
//! Control messages are handled inside the calls of a port. A process that computes for long
//! without such a call answers late; [`Port::progress`] only handles them.
//!
//! # When a peer dies
//!
//! The peer's card announces the end of a tenant after everything that the tenant has sent. A
//! [`PeerLink`] is to one tenant of a VPID. From the announcement on, sending on the link and
//! waiting for a message from its peer fail with [`Error::PeerGone`]. Messages that have arrived
//! can still be received. A new tenant needs a new [`Port::connect`].
//!
//! A message for the old tenant may have waited in a card. The new tenant's port drops it, because
//! its sender has not connected to the new tenant. Without flow control there are no connects, so
//! the new tenant may receive it.
//!
//! A process that resets its own device, or whose VPID the administrator resets, is gone for its
//! peers in the same way. Calls that wait return [`Error::Reset`]; the port can't be used any more.
#![forbid(unsafe_code)]

mod card;
mod card_errors;
mod config;
mod connect;
mod control;
mod directory;
mod error;
mod flow;
mod interrupt;
mod kept;
mod message;
mod peer;
mod port;
mod receive;
mod ring;
mod send;
mod send_path;
mod tenant;
mod wait;

pub use config::{Config, Waiting};
pub use control::CONTROL_TAG;
pub use error::{DeviceError, Error};
pub use message::{Address, Filter, MAX_MESSAGE, Message};
pub use port::{PeerLink, Port, Statistics};
