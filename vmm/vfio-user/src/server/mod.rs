//! The server side: one client's connection as a state machine that an event loop of any kind
//! drives.
//!
//! The input is a connected socket, and calls when it can be read or written. The output is calls
//! of a [`Handler`], and replies. The connection has no thread, never waits, and trusts no data of
//! the client.
//!
//! **Order.** Requests are served in the order of arrival. While one is deferred
//! ([`Outcome::Deferred`]), later requests wait in the receive buffer. The connection reads
//! on until that buffer is full, so it notices the end of the client and a `DEVICE_RESET` after
//! the deferred request. On such a reset [`Handler::reset_pending`] is called, and the handler may
//! give the deferred request up. The requests in front of the reset are still served first; for
//! each one that defers again the handler is called again. Replies to DMA requests of this side do
//! not wait either. Messages that lie more than a full buffer later are not seen before those in
//! front of them.
//!
//! **Bounds.** One call of [`ServerConnection::on_readable`] ends after [`ServerConfig::budget`]
//! steps or [`ServerConfig::turn`], whichever comes first. Looking after a deferred request counts
//! too. One step may overrun the time, since a client can slow down a system call on its socket.
//! [`ServerConnection::take_longest_call`] returns how long the slowest one was.
//!
//! **Back-pressure.** Replies that the socket does not take are queued. At
//! [`ServerConfig::max_queued`] bytes or 32 descriptors no more requests are taken until the client
//! reads.
//!
//! **The second socket.** A client that proposes a twin socket gets one: see
//! [`ServerConnection::second_socket`].
//!
//! **Endings.** When the client has closed its end, the requests in front of the end are served,
//! and replies to them are dropped. If one of them is deferred, the connection ends at once. An
//! error from [`ServerConnection::on_readable`] or `on_writable`, and [`Progress::Closed`], end the
//! connection: the caller drops it. Malformed *requests* are answered with an errno and end
//! nothing. Malformed *framing* ends the connection, since the start of the next message is then
//! unknown.

mod access;
mod config;
mod connection;
mod deferred;
mod dispatcher;
mod dma;
mod error;
mod handler;
mod info;
mod irqs;
mod mapping;
mod multi;
mod negotiation;
mod reply;
mod second_socket;
mod turn;

pub use config::ServerConfig;
pub use connection::{Counters, Progress, ServerConnection};
pub use dma::DmaError;
pub use error::{CompleteError, ConnectionError};
pub use handler::{Handler, Outcome, Token};
