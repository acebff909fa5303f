//! FCNP, the *Fast Collective Network Protocol* of the Blue Gene/P (J. W. Romein, "FCNP: Fast I/O
//! on the Blue Gene/P").
//!
//! The protocol carries messages between the I/O node of a pset and the cores of its compute nodes.
//! It uses the user virtual channel of the tree. An endpoint is opened on a
//! [`nicforge_driver::Device`] that is a core of a tree NIC.
//!
//! - [`ComputeCore`] is the protocol on a compute core, and [`IoNode`] on the I/O node.
//! - [`tree`] is the packet layer below, for software with its own protocol on the channel.
//! - [`protocol`] defines the packets, and the points that the paper leaves open.
//!
//! A compute core starts every transfer: it sends a request. The I/O node acknowledges the request
//! when two conditions hold: its application has made the matching call for that core, and no other
//! core is being served in that direction. The size is the lesser of both sides' sizes.
//!
//! User data are copied once, between the caller's buffer and the packet slots, whatever their
//! alignment. Buffers aligned to 16 bytes whose sizes are multiples of 16 are the fastest.
//!
//! # State after a failed call
//!
//! [`Error::Timeout`] and [`Error::Cancelled`] on a compute core:
//! - The call withdraws the request by a RESET of its direction, for which it continues for at most
//!   [`Config::recovery`].
//! - If the RESET cannot be sent or is not acknowledged, the core's next call repeats it first,
//!   whichever call that is.
//! - A call of the I/O node that had begun this transfer ends with [`Error::Aborted`]. A call that
//!   had not begun it continues to wait.
//!
//! The same errors on the I/O node:
//! - Before the acknowledgement has left, the core's request remains valid.
//! - In a read, the rest of the message is discarded as it arrives. The core's write succeeds: as
//!   with a socket, success means that the data were sent.
//! - In a write, the core's read ends with [`Error::Aborted`], unless the whole message had left.
//!
//! [`Error::PeerGone`] frees the pset's slot. Each direction reports it once:
//! - On the I/O node, later calls for that core wait for its next process. A direction without a
//!   report skips it if the next process has already sent its RESET.
//! - On a compute core, the error is also reported if the process died between two calls. The next
//!   call waits for the next process on the I/O node, and sends a RESET.
//!
//! After [`Error::Aborted`], both ends are ready for the next message.
//!
//! A process that resets its device ends its own calls with [`Error::Device`], and its peers treat
//! it as a new process. A [`ComputeCore`] remains usable. An [`IoNode`] must be dropped and opened
//! again, also when the operator has reset its node.
//!
//! A core may fail to withdraw its request and make no more calls. The I/O node then still serves
//! that request. The node's other cores discard the data of such a read in their calls. A call of
//! the I/O node that takes such a write waits until its deadline, or until the core's process ends.
//!
//! A transfer checks its deadline and its cancellation token whenever it waits, and every 1024
//! packets when it does not.
//!
//! A process that dies at any point leaves nothing that blocks the others, even if it holds the
//! node's lock boxes.
//!
//! FCNP cannot detect one case, because data packets carry nothing but data. A compute core may
//! send up to 8 data packets to a process on the I/O node that has died since the core's last
//! check. If a new process has replaced it, that process receives them.
//!
//! # Limits
//! A message has at most [`protocol::MAX_MESSAGE`] bytes. One process per pset serves the I/O node.
//! A core that reads must take its data while others of its pset wait. Otherwise it blocks them,
//! because the tree never drops a packet.

pub mod protocol;
pub mod tree;

mod compute;
mod config;
mod error;
mod io;
mod statistics;
mod wait;

pub use compute::ComputeCore;
pub use config::{Config, Mode, Poller};
pub use error::{Error, Peer};
pub use io::IoNode;
pub use statistics::Statistics;
