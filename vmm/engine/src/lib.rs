//! The engine: one thread that steps a machine and serves its attachments on UNIX sockets.
//!
//! In: a [`nicforge_core::machine::Machine`], paths to serve its attachments at, clients that speak
//! vfio-user. Out: sockets, replies, DMA messages, interrupts by eventfd; a [`Snapshot`] for
//! whoever asks through an [`EngineHandle`]. May touch: sockets, eventfds, client memory through
//! `nicforge-shm`, the clock. It knows no device.
//!
//! Everything of a machine happens on the thread that calls [`Engine::run`], so that the machine
//! needs no lock. A second thread maps client memory, a pool of threads closes what belongs to
//! clients, and a watchdog ends writes to eventfds that block. See `README.md` for how the engine
//! waits and what it does to bad clients.

mod client;
mod closer;
mod command;
mod config;
mod engine;
mod errno;
mod error;
mod glue;
mod helper;
mod interrupt;
mod memory;
mod pace;
mod ports;
mod refusal;
mod session;
mod sink;
mod socket;
mod stats;
mod stop;
mod wait;
mod watchdog;

pub use command::{Control, EngineHandle};
pub use config::{EngineConfig, EventLoopKind, Quotas};
pub use engine::Engine;
pub use error::{EngineError, HandleError};
pub use socket::{Listener, SocketAccess};
pub use stats::{
    AttachmentSnapshot, ClientSnapshot, FunctionSnapshot, LongestTurn, ServerCounters, Snapshot,
};
pub use stop::Stop;
