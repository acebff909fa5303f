//! The transport of [`nicforge_matching`] over the EXTOLL card: MPI-style messages as the paper ran
//! them (H. Fröning, M. Nüssle, H. Litz and others, *On Achieving High Message Rates*, section IV).
//!
//! Input: [`nicforge_driver::Device`]s that are VPIDs of a card, and a [`Job`], which maps ranks to
//! VPIDs. Output: an [`ExtollTransport`] for a [`nicforge_matching::Endpoint`]. The crate may use
//! the VELO and RMA libraries. It accesses the memory that it allocates for DMA, and the buffers of
//! the endpoint's rendezvous messages.
//!
//! ```no_run
//! use nicforge_driver::Deadline;
//! use nicforge_extoll_transport::{Config, ExtollTransport};
//! use nicforge_matching::{Endpoint, Envelope, Mode, Selector};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // For a program that `nicforge run` has started. Other programs call `ExtollTransport::open`.
//! let transport = ExtollTransport::from_environment(Config::default(), Deadline::never())?;
//! let mut endpoint = Endpoint::new(transport, Default::default())?;
//! let next = (endpoint.rank() + 1) % endpoint.size();
//! let send = endpoint.isend(Envelope::new(next, 0, 7), Mode::Standard, b"hello".to_vec(), 0)?;
//! let receive = endpoint.irecv(Selector::any_source(0, 7), vec![0; 5], 0)?;
//! endpoint.wait(receive, Deadline::never(), None)?;
//! endpoint.wait(send, Deadline::never(), None)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | `job.rs` | ranks and addresses |
//! | `transport.rs` | opening, and the [`nicforge_matching::Transport`] calls |
//! | `peers.rs` | state of the ranks: absent, connected, gone |
//! | `messages.rs` | padding to VELO messages, whose lengths are multiples of 8 bytes |
//! | `memory.rs` | registered memory |
//! | `gets.rs` | gets in flight |
//! | `config.rs`, `error.rs`, `statistics.rs` | types of the interface |
//!
//! # Messages
//! One message of the matching layer is one VELO message. The messages of a pair of ranks are in
//! order because VELO's are. A message without a credit is refused, and the matching layer sends it
//! again later. [`nicforge_velo`]'s credits are sized so that each rank has a grant, so a card
//! never waits for a receiver. A message allocates nothing, takes no lock, and makes no system call
//! while the card's engine is awake.
//!
//! # Rendezvous
//! The card reaches only registered memory that is shared with it by a file. A `Vec` is not, so the
//! data is staged:
//!
//! - A source is copied to memory of the transport when it is registered. Sources of up to half of
//!   [`Config::staging`] share one region that stays registered (the registration cache). A longer
//!   source has its own memory and registration for the duration of the transfer.
//! - A get writes to a chunk of the transport's memory. When it has ended, its data is copied to
//!   the destination.
//!
//! Thus a card never reaches a buffer of the application, and no peer can after a deregistration.
//!
//! Peers can read staged data, and earlier data until it is overwritten: a rank must trust the
//! others with the contents of its long messages.
//!
//! A rank that sends more than its window of the matching layer is lost alone. Gets from one rank
//! have half of the chunks at most.
//!
//! # Death of a peer
//! A rank is one process at its VPID. The card's directory has a generation for each VPID, which
//! changes with the process. When it changes, messages that have arrived are offered first, and the
//! rank is reported then. Gets from the rank end with errors. A successor at the same VPID is not a
//! rank of this job, and its messages are dropped.
//!
//! A process that goes before it has answered or connected belonged to an earlier job: its end was
//! not known here yet when this job began. The rank is then the next process at the address.

mod config;
mod error;
mod gets;
mod job;
mod memory;
mod messages;
mod peers;
mod statistics;
mod transport;

pub use config::Config;
pub use error::Error;
pub use job::Job;
pub use statistics::Statistics;
pub use transport::ExtollTransport;
