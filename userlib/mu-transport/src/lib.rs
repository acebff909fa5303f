//! The transport of [`nicforge_matching`] over the Message Unit of Blue Gene/Q (D. Chen and others,
//! *The IBM Blue Gene/Q Interconnection Network and Message Unit*, SC 2011, sections III and IV).
//!
//! Input: [`nicforge_driver::Device`]s that are application subgroups of nodes, and a [`Job`],
//! which maps ranks to subgroups. Output: a [`MuTransport`] for a [`nicforge_matching::Endpoint`].
//! The crate may use the SPI library. It accesses the memory that it allocates for DMA, and the
//! buffers of the endpoint's rendezvous messages.
//!
//! ```no_run
//! use nicforge_driver::Deadline;
//! use nicforge_matching::{Endpoint, Envelope, Mode, Selector};
//! use nicforge_mu_transport::{Config, MuTransport};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // For a program that `nicforge run` has started. Other programs call `MuTransport::open`.
//! let transport = MuTransport::from_environment(Config::default(), Deadline::never())?;
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
//! | `job.rs` | ranks and subgroups |
//! | `transport.rs`, `open.rs` | the [`nicforge_matching::Transport`] calls; opening and closing |
//! | `peers.rs` | state of the ranks: absent, connected, gone |
//! | `control.rs` | rows, questions: what the ranks' units do for each other |
//! | `row.rs`, `packet.rs` | layouts of rows and of packets' software bytes |
//! | `fifos.rs` | the subgroup's FIFOs, and the memory of messages |
//! | `gets.rs` | gets in flight |
//! | `config.rs`, `error.rs`, `statistics.rs` | types of the interface |
//!
//! # Messages
//! One message of the matching layer, of up to 512 bytes, is one memory-FIFO packet. The messages
//! of a pair of ranks are in order: one injection FIFO has all of them, and they are routed
//! deterministically through one network injection FIFO. A message is copied to memory of the
//! transport, so that the sender's buffer is free at once. It allocates nothing, takes no lock, and
//! makes no system call while the unit's engine is awake.
//!
//! # Credits
//! A full reception FIFO stalls the network in front of it. So each rank grants each other one
//! [`Config::window`] packets, and its FIFO has room for all grants. A rank that does not read
//! costs its senders their credits, and other ranks nothing. A message without a credit is
//! refused, and the matching layer sends it again later.
//!
//! # Rows
//! Each rank has a *mailbox* with a row for each other rank, which that rank's direct puts
//! overwrite: its session, the session of the owner as it knows it, and the total number of packets
//! that it grants. Rows take no room in a FIFO. A rank can put them before the other one is there,
//! and again until it is answered. A checksum shows a row that is just being written.
//!
//! # Rendezvous
//! The unit reaches only memory that is shared with it by a file. A `Vec` is not, so the data is
//! staged ([`nicforge_matching::staging`]). The receiver sends a remote get of two descriptors,
//! which the sender's unit carries out without its software: a direct put of the data to a chunk of
//! the receiver's memory, with a reception counter, and a put of the sender's session number. The
//! number arrives last. It shows that the data is complete, and whose it is.
//!
//! # Death of a peer
//! The unit drops messages for a subgroup without a client, and reports nothing to the sender. Each
//! rank therefore asks each other one now and then: a remote get fetches its session number. A
//! stopped process still answers, because its unit does, unless another's descriptor has stopped
//! its FIFO for gets meanwhile: the process restarts that one. A rank that does not answer several
//! questions for [`Config::patience`] is gone ([`nicforge_matching::Loss::Silent`]). Another number
//! in the answer, or in its row, is a successor's. A rank that closes its transport puts a last
//! row.
//!
//! # Trust
//! A put reaches all memory of its target that the unit reaches, and a remote get can fetch all.
//! So a rank must trust all users of its network with its memory, as on Blue Gene/Q, where the
//! kernel gives partitions to jobs. A rank that answers no gets holds half of the chunks at most,
//! and only for a time ([`Config::get_delay`]). Packets of other jobs and of a rank's predecessors
//! are recognized by the sessions, and dropped.

mod config;
mod control;
mod error;
mod fifos;
mod gets;
mod job;
mod open;
mod packet;
mod peers;
mod row;
mod statistics;
mod transport;

pub use config::Config;
pub use error::Error;
pub use job::{Job, RankAddress};
pub use statistics::Statistics;
pub use transport::MuTransport;
