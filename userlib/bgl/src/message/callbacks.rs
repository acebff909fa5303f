//! The callbacks of a message layer, and what they are given.

use std::fmt;

use super::{Buffer, MatchInformation};
use crate::{Error, packet::Rank};

/// Identifies a message that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendHandle(pub(super) super::slab::Key);

/// Identifies a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveHandle(pub(super) super::slab::Key);

impl ReceiveHandle {
    /// Returns the handle as a number, which is not 0.
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the handle of a number. A number of no handle gives a handle of no message.
    pub fn from_bits(bits: u64) -> Self {
        Self(super::slab::Key::from_bits(bits))
    }
}

/// A message that has begun to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Identifies the message until its [`Callbacks::recvdone`].
    pub handle: ReceiveHandle,
    /// The sender.
    pub source: Rank,
    /// The [life](nicforge_hwi::torus::presence) of the sender's core, which tells its processes
    /// apart.
    pub life: u16,
    /// The sender's match information.
    pub information: MatchInformation,
    /// Bytes of the message.
    pub length: usize,
}

/// A program's decision about a message that has begun to arrive.
#[derive(Debug)]
pub enum Disposition {
    /// The message is received into a buffer. If the buffer is shorter, the rest of the message is
    /// discarded.
    Receive(Buffer),
    /// The message is discarded.
    Discard,
    /// The program decides later, by [`super::MessageLayer::decide`]. The message holds places at
    /// this receiver until then: see the module's documentation.
    Later,
}

/// The end of a message that was received or discarded, or that failed.
#[derive(Debug)]
pub struct Received {
    /// The handle of its [`Arrival`].
    pub handle: ReceiveHandle,
    /// The sender.
    pub source: Rank,
    /// The sender's match information.
    pub information: MatchInformation,
    /// Bytes of the message.
    pub length: usize,
    /// Bytes of the message in the buffer: less than `length` if the buffer was shorter.
    pub stored: usize,
    /// The buffer of [`Disposition::Receive`].
    pub buffer: Option<Buffer>,
    /// Success, or [`Error::PeerGone`]. The contents of the buffer are unspecified after an error.
    pub result: Result<(), Error>,
}

/// The end of a message that was posted.
#[derive(Debug)]
pub struct Sent {
    /// The handle that [`super::MessageLayer::postsend`] has returned.
    pub handle: SendHandle,
    /// The receiver.
    pub destination: Rank,
    /// The buffer, which can be used again.
    pub buffer: Buffer,
    /// Success, or [`Error::PeerGone`]. Success says that the packet device has all packets, not
    /// that they have arrived.
    pub result: Result<(), Error>,
}

/// The program's side of the active message system: the paper's three callbacks.
///
/// The layer calls them from [`super::MessageLayer::advance`],
/// [`super::MessageLayer::check_peers`] and [`super::MessageLayer::decide`]. They can't call the
/// layer: a program that answers a message notes the answer, and posts it after the call.
pub trait Callbacks {
    /// A message has begun to arrive. The messages of a sender are presented in the order in which
    /// it posted them.
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition;

    /// A message has ended that was presented by [`Callbacks::recvnew`].
    fn recvdone(&mut self, received: Received);

    /// A message has ended that was posted.
    fn senddone(&mut self, sent: Sent);
}

/// A message that could not be posted.
#[derive(Debug)]
pub struct Rejected {
    /// The reason.
    pub error: Error,
    /// The buffer of the message.
    pub buffer: Buffer,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Rejected {}

impl From<Box<Rejected>> for Error {
    fn from(rejected: Box<Rejected>) -> Self {
        rejected.error
    }
}
