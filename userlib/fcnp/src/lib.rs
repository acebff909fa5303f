//! FCNP, the *Fast Collective Network Protocol* of the Blue Gene/P (J. W. Romein, "FCNP: Fast I/O on the Blue Gene/P"):
//! messages between the I/O node of a pset and the cores of its compute nodes, over the user virtual channel of the tree.
//!
//! In: a [`nicforge_driver::Device`] that is a core of a tree NIC, and the application's buffers. Out: messages.
//!
//! - [`ComputeCore`] is the protocol on a compute core, [`IoNode`] on the I/O node;
//! - [`tree`] is the packet layer below, for software that has other plans with the channel;
//! - [`protocol`] is what travels in the packets, and what was decided where the paper is silent.
//!
//! A compute core always starts: it sends a request, and the I/O node acknowledges it when its application has made the
//! matching call for that core and no other core is being served in that direction. The size is the lesser of both sides'.
//! User data are copied once, between the caller's buffer and the packet slots, whatever their alignment: an unaligned
//! access to the caller's memory costs nothing that an intermediate buffer would save. Buffers aligned to 16 bytes whose
//! sizes are multiples of 16 are the fastest.
//!
//! # What a failed call leaves behind
//!
//! | error | where | afterwards |
//! | --- | --- | --- |
//! | [`Error::Timeout`], [`Error::Cancelled`] | compute core | The request is withdrawn by a RESET of its direction, for which the call goes on for [`Config::recovery`] at most; if the I/O node does not answer, or nothing can leave, the next call does it first, whichever it is. A call of the I/O node that had begun this transfer ends with [`Error::Aborted`]; one that had not goes on waiting. |
//! | the same | I/O node, before the acknowledgement has left | Nothing has happened; the core's request still stands. |
//! | the same | I/O node, reading | The rest of the message is discarded as it comes. The core's write succeeds: like a socket's, it says that the data were sent. |
//! | the same | I/O node, writing | The core's read ends with [`Error::Aborted`], unless all of the message had left. |
//! | [`Error::PeerGone`] | both | The pset's slot is free. On the I/O node, calls for that core wait for its next process; each direction is told once, unless that process has made itself known before. On a compute core each direction is told once too, also when the process died between two calls; the next call waits for the next process on the I/O node, and sends a RESET. |
//! | [`Error::Aborted`] | both | Both ends are ready for the next message. |
//!
//! A process that resets its device ends its own calls with [`Error::Device`] and is a new process to the others. A [`ComputeCore`]
//! can be used on; an [`IoNode`] is to be dropped and opened again, also when the operator has reset its node.
//!
//! A core whose request could not be withdrawn, and which makes no more calls, is served in vain: data of its read are discarded by the
//! calls of its node's other cores; a call of the I/O node that takes its write waits until it ends.
//!
//! Deadline and token are looked at whenever a transfer waits, and every 1024 packets when it does not.
//!
//! A process that dies at any point, also while it holds the node's lock boxes, leaves nothing that stops the others. What
//! FCNP cannot see, because data packets carry nothing but data, is a packet that a compute core puts into the network for a
//! process on the I/O node that has died and been replaced since the core last looked, at most 8 packets before.
//!
//! # Limits
//! Messages of up to [`protocol::MAX_MESSAGE`] bytes. One process a pset serves the I/O node. A core that reads and does not
//! take its data while others of its pset wait blocks them: the tree loses nothing, so it stops.

pub mod protocol;
pub mod tree;

mod compute;
mod config;
mod error;
mod io;
mod statistics;
mod wait;

pub use compute::ComputeCore;
pub use config::{Config, Mode};
pub use error::{Error, Peer};
pub use io::IoNode;
pub use statistics::Statistics;
