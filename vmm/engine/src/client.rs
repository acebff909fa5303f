//! A client and the socket it came through.

use std::{os::fd::OwnedFd, time::Instant};

use nicforge_core::device::{AttachmentId, FunctionId};
use nicforge_vfio_user::ServerConnection;

use crate::{session::Session, socket::Listener, stats::ServerCounters, wait::Interest};

/// Who has an attachment.
pub(crate) struct Client {
    pub(crate) connection: ServerConnection,
    pub(crate) session: Session,
    pub(crate) interest: Interest,
    /// In the engine's list of connections that have something to do.
    pub(crate) queued: bool,
    /// The client is gone; what it said before is still read.
    pub(crate) hung_up: bool,
    /// The eventfd by which it unmasks INTx.
    pub(crate) unmask: Option<OwnedFd>,
    pub(crate) pid: i32,
    pub(crate) since: Instant,
}

/// An attachment that is served.
pub(crate) struct Port {
    pub(crate) function: FunctionId,
    pub(crate) who: AttachmentId,
    pub(crate) listener: Listener,
    pub(crate) client: Option<Client>,
    /// Counts up with each client, so that what was meant for an earlier one is known.
    pub(crate) generation: u32,
    /// More may wait to be accepted.
    pub(crate) accepting: bool,
    pub(crate) counters: ServerCounters,
}

/// What a descriptor that is watched belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Stop,
    Waker,
    Listener(usize),
    Client(usize, u32),
    Unmask(usize, u32),
    Refusal(usize, u32),
}

const INDEX_BITS: u32 = 24;
/// The most attachments that an engine serves.
pub(crate) const MAX_PORTS: usize = 1 << INDEX_BITS;

impl Watched {
    /// As a number: kind, generation, index.
    pub(crate) fn token(self) -> u64 {
        let (kind, index, generation) = match self {
            Self::Stop => (0, 0, 0),
            Self::Waker => (1, 0, 0),
            Self::Listener(index) => (2, index, 0),
            Self::Client(index, generation) => (3, index, generation),
            Self::Unmask(index, generation) => (4, index, generation),
            Self::Refusal(index, generation) => (5, index, generation),
        };
        kind << (INDEX_BITS + 32) | u64::from(generation) << INDEX_BITS | index as u64
    }

    pub(crate) fn from_token(token: u64) -> Option<Self> {
        let index = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = (token >> INDEX_BITS) as u32;
        Some(match token >> (INDEX_BITS + 32) {
            0 => Self::Stop,
            1 => Self::Waker,
            2 => Self::Listener(index),
            3 => Self::Client(index, generation),
            4 => Self::Unmask(index, generation),
            5 => Self::Refusal(index, generation),
            _ => return None,
        })
    }
}
