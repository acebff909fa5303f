//! Message matching with the semantics of MPI and libfabric, over any transport that carries small
//! messages in order and fetches remote memory.
//!
//! Input: a [`Transport`], and the application's sends and receives. Output: completions. The crate
//! knows no NIC. It accesses only the transport and the buffers of outstanding requests.
//!
//! - [`Endpoint`] is the interface for an application or a provider: `isend`, `irecv`, `test`,
//!   `wait`, `probe`, `claim`, `cancel`, and [`Endpoint::progress`], which does the protocol's
//!   work.
//! - [`Envelope`] and [`Selector`] define which message a receive takes; [`Buffer`] is memory lent
//!   to a request.
//! - [`Transport`] is the interface to the network; [`memory`] implements it between ranks of the
//!   same process.
//! - [`wire`] defines the protocol's messages.
//! - [`staging`] is for transports whose device can't reach the applications' buffers,
//!   and [`losses`] for those with one receive ring for all senders.
//!
//! # Protocols
//! - *Eager*: a message up to [`Config::eager_threshold`] leaves at once, cut into messages of the
//!   transport.
//! - *Rendezvous*: for a longer message only a request leaves. The receiver fetches the data with
//!   the transport's get after a receive has matched. Each side registers its memory for the
//!   duration of the transfer.
//!
//! MPI ran over EXTOLL in this way (H. Fröning, M. Nüssle, H. Litz and others, *On Achieving High
//! Message Rates*, section IV). A message from a rank to itself stays within the endpoint.
//!
//! # Order
//! Messages of a pair of ranks match in the order in which they were sent. An arriving message
//! takes the oldest posted receive that matches it. A new receive takes the oldest unexpected
//! message. Requests may complete in another order.
//!
//! # Bounds
//! - Time: posting, matching and cancelling do not depend on the depth of either queue. The one
//!   exception, more than eight kinds of wildcard masks at a time, is described at [`Selector`].
//! - Memory: unexpected messages of each peer take at most [`Config::window`] bytes. The receiver
//!   grants the window to the sender, which queues further sends. A message of a peer that exceeds
//!   its window stays in the transport, which may count the peer as lost.
//! - Waits: while a receive waits, the windows of its senders grow, by at most [`Config::pool`]
//!   bytes for all peers. So a receive gets its message although others stand before it. Beyond
//!   that it fails with [`Error::WindowFull`], and so do the sends that wait for the window.
//! - Work: [`Config::budget`] bounds a call of [`Endpoint::progress`].
//!
//! Tables and pools never shrink, so the path of a message allocates only when a new maximum is
//! reached.
//!
//! # Death of a peer
//! When a peer dies, every request that waits for it fails with [`Error::PeerGone`]. These are
//! sends to it, receives that name it, and receives that have begun to take its data. Receives from
//! any source stay posted. Messages of the dead peer that have arrived completely can still be
//! received.

pub mod losses;
pub mod memory;
pub mod staging;
pub mod wire;

mod arena;
mod buffer;
mod config;
mod endpoint;
mod envelope;
mod error;
mod lists;
mod pool;
mod queues;
mod statistics;
mod store;
mod transport;

pub use buffer::Buffer;
pub use config::Config;
pub use endpoint::{Arrived, Completion, Endpoint, Kind, Message, Mode, Request};
pub use envelope::{Envelope, Rank, Selector};
pub use error::Error;
pub use statistics::Statistics;
pub use transport::{
    Access, Get, Gone, Loss, Memory, Region, RemoteRegion, Taken, Transport, TransportError,
};
