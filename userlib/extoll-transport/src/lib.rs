//! Matching's transport over the EXTOLL card: MPI-style messages as the paper ran them (H. Fröning, M. Nüssle, H. Litz and others, *On
//! Achieving High Message Rates*, section IV).
//!
//! In: [`nicforge_driver::Device`]s that are VPIDs of a card, and a [`Job`], which says which VPID is which rank. Out: an
//! [`ExtollTransport`] for a [`nicforge_matching::Endpoint`]. It may touch the VELO and RMA libraries, the memory it allocates for DMA, and the
//! buffers of the endpoint's long messages.
//!
//! ```no_run
//! use nicforge_driver::Deadline;
//! use nicforge_extoll_transport::{Config, ExtollTransport};
//! use nicforge_matching::{Endpoint, Envelope, Mode, Selector};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Of a program that `nicforge run` starts; `ExtollTransport::open` for others.
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
//! - `job.rs`: ranks and addresses; `transport.rs`: opening, and the [`nicforge_matching::Transport`] calls;
//! - `peers.rs`: who is there, connected, gone; `messages.rs`: any length in VELO's multiples of 8 bytes;
//! - `memory.rs`, `arena.rs`: what is registered; `gets.rs`: gets under way;
//! - `config.rs`, `error.rs`, `statistics.rs`.
//!
//! # Messages
//! One message of the matching layer is one VELO message, in order per pair because VELO is. What has no credit is refused and comes again:
//! [`nicforge_velo`]'s promises, sized here so that each rank has one, keep the card from ever waiting for a receiver. No message allocates, locks
//! or makes a system call while the card's engine is awake.
//!
//! # Long messages
//! The card reaches memory that is shared with it by a file and registered. A `Vec` is not, so the data are staged: a source is copied to memory of
//! the transport's when it is registered, gets go to chunks of the transport's memory, from which they are copied to the destination when they have
//! ended. Sources of up to half of [`Config::staging`] lie in one region that stays registered (the registration cache); longer ones get memory
//! and a registration of their own around the transfer. Neither way the card ever reaches a buffer of the application's, so that nothing a peer asks
//! for after a deregistration does.
//!
//! Peers can read what is staged, and what was staged before until it is overwritten: the ranks of a job trust each other with their messages.
//!
//! # Death
//! A rank is one tenant of its VPID. When the card's directory shows another one, what had arrived is offered first and the rank is reported then;
//! its gets end with errors. A successor at the same VPID is not a rank of this job: its messages are dropped.

mod arena;
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
