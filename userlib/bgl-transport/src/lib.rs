//! The transport of [`nicforge_matching`] over the torus of Blue Gene/L (G. Almási and others, *MPI
//! on BlueGene/L: Designing an Efficient General Purpose Messaging Solution for a Large Cellular
//! System*, 2003, section 4.3).
//!
//! Input: [`nicforge_driver::Device`]s that are cores of torus nodes, and a [`Job`], which maps
//! ranks to cores. Output: a [`BglTransport`] for a [`nicforge_matching::Endpoint`]. The crate may
//! use the message layer, and the buffers of the endpoint's rendezvous messages.
//!
//! ```no_run
//! use nicforge_bgl_transport::{BglTransport, Config};
//! use nicforge_driver::Deadline;
//! use nicforge_matching::{Endpoint, Envelope, Mode, Selector};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // For a program that `nicforge run` has started. Other programs call `BglTransport::open`.
//! let transport = BglTransport::from_environment(Config::default(), Deadline::never())?;
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
//! | `job.rs` | ranks and cores |
//! | `transport.rs`, `open.rs` | the [`nicforge_matching::Transport`] calls; opening and closing |
//! | `program.rs` | the callbacks of the message layer |
//! | `peers.rs` | state of the ranks: absent, present, lost |
//! | `regions.rs` | registered memory |
//! | `gets.rs` | gets in flight, and those of other ranks |
//! | `information.rs` | the match information of the layer's messages |
//! | `config.rs`, `error.rs`, `statistics.rs` | types of the interface |
//!
//! # Messages
//! One message of the matching layer, of up to 224 bytes, is one packet of the message layer's
//! eager protocol. The message layer presents the messages of a rank in order.
//!
//! # Gets
//! The torus has no DMA engine, so a get is a question to the other rank's software. That rank
//! answers with a message of the data when its program calls the endpoint next. The message layer
//! chooses the protocol by the length. A rank that does not answer holds half of the places for
//! gets at most, and only for a time ([`Config::get_delay`]). Answers to a rank that takes none are
//! limited by bytes ([`Config::answer_bytes`]). Keys of memory are random.
//!
//! # Room
//! A rank that reads nothing keeps [`Config::window`] messages of each other rank. Further ones
//! stay with the message layer, whose credits then stop their sender.
//!
//! # Death of a peer
//! The card shows that a core has other software than before when all packets of the former have
//! arrived. The transport looks at that now and then, offers what has come, and reports the rank as
//! lost. Each message names the life that it is for, so that a successor takes no message of a
//! predecessor's job.

mod config;
mod error;
mod gets;
mod information;
mod job;
mod open;
mod peers;
mod program;
mod regions;
mod statistics;
mod transport;

pub use config::Config;
pub use error::Error;
pub use job::Job;
pub use nicforge_bgl::packet::Rank as Core;
pub use statistics::Statistics;
pub use transport::BglTransport;
