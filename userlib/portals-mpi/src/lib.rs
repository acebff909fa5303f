//! MPI-style messages over Portals on the Cray SeaStar, as its MPI library made them (Brightwell et
//! al., "SeaStar Interconnect: Balanced Bandwidth for Scalable Performance", sections *MPI receive
//! posting* and *Preregistration of memory*).
//!
//! Input: an [`Interface`](nicforge_portals::Interface) and a [`Job`]; the application's sends and
//! receives. Output: completions. The crate accesses the card only through the calls of Portals.
//!
//! - [`Endpoint`] is the interface for an application: `isend`, `irecv`, `test`, `wait`, `cancel`,
//!   and [`Endpoint::progress`].
//! - [`Buffer`] is the memory of a message. It lies in one of the [`Segment`]s of the process, each
//!   of which one memory descriptor covers, so that a send is one call of the card.
//! - [`Envelope`] and [`Selector`] are those of the matching layer.
//!
//! # Protocols
//! All messages are sent eagerly: they leave at once, with their data.
//!
//! | message | leaves from | without a posted receive |
//! | --- | --- | --- |
//! | short, up to [`Config::short`] | a slot, into which it is copied | goes to memory for it |
//! | medium, up to [`Config::medium`] | its buffer | goes to memory for it |
//! | long | its buffer, which is also exposed | is dropped, and fetched by a get |
//!
//! The send of a short message is complete at once.
//!
//! # Matching
//! The card, or the kernel in host-based mode, matches messages with posted receives, by context,
//! source and tag in their match bits. The library searches only messages that came before their
//! receive. `PtlPost` posts a receive only if there is no such message that the library has not
//! seen.
//!
//! # Order
//! Messages of a pair of ranks match in the order in which they were sent. Requests may complete in
//! another order.
//!
//! # Bounds
//! - The memory for unexpected messages has a fixed size. A message that finds no place there
//!   leaves only its header; its sender keeps the data, and sends them again when a receive has
//!   matched.
//! - Each peer has a window of messages without an acknowledgement ([`Config::window`]). Further
//!   ones wait at the sender. The event queues hold the events of all windows, so that no event is
//!   lost.
//! - Each peer may have a part of the operations that the process can have in progress, so that a
//!   peer whose card takes nothing does not stop messages to others.
//!
//! # Death of a peer
//! When a peer's node or process ends, every request that waits for it fails with
//! [`Error::PeerGone`]. The end of a process is noticed by [`Config::patience`]. A rank in
//! host-based mode that makes no calls for so long is taken for one that has ended, unless a thread
//! runs [`nicforge_portals::Kernel::serve`].
#![forbid(unsafe_code)]

mod bits;
mod config;
mod endpoint;
mod error;
mod job;
mod memory;
mod pool;
mod statistics;

pub use bits::{CONTEXT_BITS, TAG_BITS};
pub use config::{Config, SpaceBytes, Unexpected};
pub use endpoint::{Completion, Endpoint, Request};
pub use error::{Error, Loss};
pub use job::Job;
pub use memory::{Buffer, Segment};
pub use nicforge_matching::{Envelope, Kind, Rank, Selector};
pub use statistics::Statistics;
