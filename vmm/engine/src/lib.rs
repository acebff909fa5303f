//! The engine: one thread that steps a machine and serves its attachments on UNIX sockets.
//!
//! The input is a [`nicforge_core::machine::Machine`], paths to serve its attachments at, and
//! clients that speak vfio-user. The output is sockets, replies, DMA messages, interrupts by
//! eventfd, and an [`EngineSnapshot`] for callers of an [`EngineHandle`]. The engine touches
//! sockets, eventfds, the clock, and client memory through `nicforge-shm`. It knows no device.
//!
//! Everything of a machine happens on the thread that calls [`Engine::run`], so the machine needs
//! no lock. A second thread maps client memory, a pool of threads closes what belongs to clients,
//! and a watchdog ends writes to eventfds that block. `README.md` describes how the engine waits
//! and how it treats bad clients.

mod accept;
mod attachment;
mod attachment_handler;
mod client;
mod client_state;
mod clock;
mod closer;
mod command;
mod config;
mod end;
mod engine;
mod errno;
mod error;
mod mapper;
mod memory;
mod pace;
mod refusal;
mod rounds;
mod serve;
mod service_queues;
mod sigurg;
mod sink;
mod socket;
mod stats;
mod stop;
mod wait;
mod waiting;
mod watchdog;
mod watched;

pub use command::{Control, EngineHandle};
pub use config::{CompanionConfig, EngineConfig, EventLoopKind, Quotas};
pub use engine::Engine;
pub use error::{EngineError, HandleError};
pub use socket::{Listener, Peer, SocketAccess, SocketFile, SocketPlace};
pub use stats::{
    AttachmentSnapshot, ClientSnapshot, EngineSnapshot, FunctionSnapshot, LongestTurn, ServerCounters,
};
pub use stop::Stop;
