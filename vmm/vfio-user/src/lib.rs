//! The vfio-user protocol: wire types, framing, a server and a client.
//!
//! vfio-user carries VFIO's device interface over a UNIX socket. Regions are read and written by
//! messages or mapped through descriptors, and interrupts are eventfds. The server maps client
//! memory through a descriptor, or accesses it by DMA messages in the other direction. The
//! specification is `docs/interop/vfio-user.rst` of QEMU.
//!
//! - [`wire`]: the bytes; parsing accepts any input and cannot panic.
//! - [`socket`]: messages with descriptors on a non-blocking stream.
//! - [`server`]: [`ServerConnection`], one client's state machine, driven by the caller's event
//!   loop, and [`Handler`], the device behind it.
//! - [`client`]: [`Client`], blocking calls with deadlines from any number of threads.
//!
//! Neither side trusts the other: sizes, counts, descriptors and replies are checked; buffers and
//! queues are bounded; every wait has an end.

pub mod client;
mod errno;
pub mod server;
pub mod socket;
mod types;
pub mod wire;

pub use client::{Client, ClientConfig, ClientError, GuestMemory, IrqPayload, ServerProcess, ServerWatch};
pub use errno::Errno;
pub use server::{
    CompleteError, ConnectionError, DmaError, Handler, Outcome, Progress, ServerConfig, ServerConnection,
    Token,
};
pub use socket::{Closer, PeerFd};
pub use types::*;
