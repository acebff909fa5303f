//! Messages as MPI and libfabric know them, over any transport that carries small messages in order and fetches memory.
//!
//! In: a [`Transport`], and the application's sends and receives. Out: completions. The room knows no NIC; it may touch the
//! transport and the buffers of outstanding requests, nothing else.
//!
//! - [`Endpoint`] is what an application or a provider uses: `isend`, `irecv`, `test`, `wait`, `probe`, `claim`, `cancel`, and
//!   [`Endpoint::progress`], in which everything happens;
//! - [`Envelope`] and [`Selector`] say which message a receive takes; [`Buffer`] is memory lent to a request;
//! - [`Transport`] is what is below, [`memory`] one that joins ranks of the same process;
//! - [`wire`] is what travels in the transport's messages.
//!
//! # Protocols
//! Messages up to [`Config::eager_threshold`] leave at once, cut into what the transport carries in one message (*eager*). For
//! longer ones a request leaves, and the receiver fetches the data with the transport's get when it has matched (*rendezvous*);
//! each side's memory is registered around the transfer. This is how MPI ran over EXTOLL (H. Fröning, M. Nüssle, H. Litz and
//! others, *On Achieving High Message Rates*, section IV). What a rank sends to itself stays within the endpoint.
//!
//! # Order
//! Messages of a pair of ranks match in the order in which they were sent. A message takes the oldest posted receive that
//! matches it, a receive the oldest message. Completion may come in another order.
//!
//! # What does not grow
//! - Time: posting, matching and cancelling do not depend on the depth of either queue; see [`Selector`] for the one exception,
//!   more than eight kinds of wildcard masks at a time.
//! - Memory: of each peer at most [`Config::window`] bytes wait unmatched. The window is granted to the sender, whose further
//!   sends wait on its side; a peer that exceeds it is refused towards the transport. Nothing is lost.
//! - Work: a call of [`Endpoint::progress`] is bounded by [`Config::budget`].
//!
//! Tables and pools keep the size they once needed, so the path of a message allocates only when a new maximum is reached.
//!
//! # Death
//! When a peer dies, every request that waits for it fails with [`Error::PeerGone`]: sends to it, receives that name it,
//! receives that have begun to take its data. Receives from any source stay posted. Messages of the dead that had arrived
//! completely can still be received.

pub mod memory;
pub mod wire;

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
