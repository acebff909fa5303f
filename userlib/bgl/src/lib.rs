//! The communication software of Blue Gene/L (Almási et al., "MPI on BlueGene/L: Designing an
//! Efficient General Purpose Messaging Solution for a Large Cellular System", 2003).
//!
//! It has the paper's two layers below MPI:
//! - [`packet`] is the packet layer: initialization, packet send and packet receive on the torus.
//!   It has no policy, repeats nothing and never waits.
//! - [`message`] is the message layer: an active message system that moves buffers of any size and
//!   alignment between ranks, in order. It runs on any [`packet::PacketDevice`].
//!
//! A program opens a core of a torus function, and posts messages to other ranks:
//!
//! ```no_run
//! use nicforge_bgl::{
//!     message::{Arrival, Buffer, Callbacks, Config, Disposition, MessageLayer, Received, Sent},
//!     packet::{Rank, Torus},
//! };
//! use nicforge_driver::{Deadline, Device, OpenOptions, environment};
//!
//! struct Program {
//!     sent: bool,
//! }
//!
//! impl Callbacks for Program {
//!     fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
//!         Disposition::Receive(Buffer::from(vec![0; arrival.length]))
//!     }
//!
//!     fn recvdone(&mut self, received: Received) {
//!         println!("{} bytes from {}", received.stored, received.source);
//!     }
//!
//!     fn senddone(&mut self, sent: Sent) {
//!         self.sent = true;
//!     }
//! }
//!
//! # fn main() -> Result<(), nicforge_bgl::Error> {
//! let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
//! let mut layer = MessageLayer::init(Torus::open(device)?, Config::default())?;
//! let mut program = Program { sent: false };
//! let information = [0; 16];
//! layer.postsend(Rank::new(1, 0), information, Buffer::from(b"hello".to_vec()))?;
//! layer.wait_until(&mut program, Deadline::never(), None, |program| program.sent)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where it differs from the paper
//! - The paper's eager messages need no acknowledgement. Here a sender has a limited number of
//!   packets outstanding at a receiver, because a receiver must not allocate what a peer chooses:
//!   see [`message`].
//! - Processes can die here. A packet names the life of the core that it is for, and a connection
//!   ends with an error when its peer's life has changed.
//! - Messages own their memory while they are in progress, as safe Rust requires.
//!
//! The paper's virtual-node and co-processor modes and its optimised collectives are not in this
//! crate. Each core runs a message layer of its own.

pub mod message;
pub mod packet;

mod error;

pub use error::Error;
