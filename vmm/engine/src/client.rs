//! A client, and the attachment that it has.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::ids::{AttachmentId, FunctionId};
use nicforge_vfio_user::{Closer, Errno, PeerFd, ServerConnection};

use crate::{
    closer::{Backlog, CloseQueue, Closers, DescriptorCloser},
    pace::Pace,
    refusal::Refusal,
    session::Session,
    socket::Listener,
    stats::ServerCounters,
    stop::Waker,
    wait::{EventLoop, Interest},
};

/// The client of an attachment.
pub(crate) struct Client {
    pub(crate) connection: ServerConnection,
    pub(crate) session: Session,
    pub(crate) interest: Interest,
    /// Events that its second socket is watched for; `None` while it is not watched.
    pub(crate) twin_interest: Option<Interest>,
    pub(crate) pace: Pace,
    /// Whether it is in one of the engine's lists of clients to be served.
    pub(crate) queued: bool,
    /// Whether the client is gone; the requests that it sent before are still served.
    pub(crate) hung_up: bool,
    /// The eventfd by which the client unmasks INTx.
    pub(crate) unmask: Option<PeerFd>,
    /// The queue in which everything of this client is closed.
    pub(crate) closing: Arc<CloseQueue>,
    pub(crate) pid: i32,
    pub(crate) since: Instant,
}

impl Client {
    /// Watches the second socket once both sides have agreed on one, for the events wanted now. A
    /// socket that has ended is not watched.
    pub(crate) fn watch_twin(&mut self, events: &mut dyn EventLoop, token: u64) -> io::Result<()> {
        let Some(fd) = self.connection.twin() else { return Ok(()) };
        if self.connection.twin_has_ended() {
            if self.twin_interest.take().is_some() {
                events.unwatch(fd, token);
            }
            return Ok(());
        }

        let wanted = Interest { read: true, write: self.connection.twin_wants_write() };
        match self.twin_interest.replace(wanted) {
            Some(old) if old == wanted => Ok(()),
            Some(_) => events.rewatch(fd, token, wanted),
            None => events.watch(fd, token, wanted),
        }
    }
}

/// Time in which an attachment takes no client, after it was taken from one that held the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    until: Option<Instant>,
    next: Duration,
}

/// The first back-off. Each one that follows soon is twice as long.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);

impl Default for BackOff {
    fn default() -> Self {
        Self { until: None, next: FIRST_BACK_OFF }
    }
}

impl BackOff {
    /// Starts a back-off after a client held the engine.
    pub(crate) fn begin(&mut self, now: Instant) {
        // After a long time without a back-off the first one applies again.
        if self.until.is_some_and(|until| now > until + LONGEST_BACK_OFF) {
            self.next = FIRST_BACK_OFF;
        }
        self.until = Some(now + self.next);
        self.next = (self.next * 2).min(LONGEST_BACK_OFF);
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}

/// The items that an attachment's clients have left to be closed. See [`Backlog`].
pub(crate) struct Closing {
    /// Items of the clients that had the attachment.
    clients: Arc<Backlog>,
    /// Items of refused connections.
    refused: Arc<Backlog>,
    /// Connections that are closed without an answer.
    turned_away: Arc<CloseQueue>,
}

impl Closing {
    /// Items at which a client is no longer served.
    const MOST_OF_CLIENT: usize = 64;
    /// Items of earlier clients at which no new client is accepted.
    const MOST_OF_PREDECESSORS: usize = 16;
    /// Most refused connections that are answered at a time.
    const MOST_ANSWERED: usize = 8;
    /// Refused connections at which no more are accepted.
    const MOST_REFUSED: usize = 64;

    pub(crate) fn new(waker: &Waker, closers: &Closers) -> Self {
        let (clients, refused) = (Backlog::new(waker.clone()), Backlog::new(waker.clone()));
        let turned_away = closers.queue(&refused);
        Self { clients, refused, turned_away }
    }

    /// Returns whether a connection may be accepted to become the client.
    pub(crate) fn admits_client(&self) -> bool {
        self.clients.admits(Self::MOST_OF_PREDECESSORS)
    }

    /// Returns whether a connection may be accepted to be refused.
    pub(crate) fn admits_refusal(&self) -> bool {
        self.refused.admits(Self::MOST_REFUSED)
    }

    /// Returns whether the client may be served.
    pub(crate) fn admits_service(&self) -> bool {
        self.clients.admits(Self::MOST_OF_CLIENT)
    }

    /// Makes the queue of a client.
    pub(crate) fn queue(&self, closers: &Closers) -> Arc<CloseQueue> {
        closers.queue(&self.clients)
    }

    /// Answers a connection's first message with an error and closes it. When too many are being
    /// answered, it is closed without an answer.
    pub(crate) fn refuse(&self, closers: &Closers, fd: OwnedFd, errno: Errno) {
        if self.refused.len() < Self::MOST_ANSWERED {
            closers.queue(&self.refused).refuse(Refusal::new(fd, errno));
        } else {
            self.turn_away(fd);
        }
    }

    /// Returns the closer of the listening socket.
    pub(crate) fn closer(&self) -> Arc<dyn Closer> {
        Arc::new(DescriptorCloser(Arc::clone(&self.turned_away)))
    }

    /// Closes a connection without an answer.
    pub(crate) fn turn_away(&self, fd: OwnedFd) {
        self.turned_away.close_socket(fd);
    }
}

/// An attachment that is served.
pub(crate) struct Port {
    pub(crate) function: FunctionId,
    pub(crate) who: AttachmentId,
    pub(crate) listener: Listener,
    pub(crate) client: Option<Client>,
    /// Counts up with each client, so that results for an earlier client are recognized.
    pub(crate) generation: u32,
    /// Whether more connections may wait to be accepted.
    pub(crate) accepting: bool,
    pub(crate) back_off: BackOff,
    pub(crate) closing: Closing,
    pub(crate) counters: ServerCounters,
}

/// The owner of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Stop,
    Waker,
    Listener(usize),
    Client(usize, u32),
    Unmask(usize, u32),
    /// A client's second socket.
    Twin(usize, u32),
}

const INDEX_BITS: u32 = 24;
/// The most attachments that an engine serves.
pub(crate) const MAX_PORTS: usize = 1 << INDEX_BITS;

impl Watched {
    /// Returns the token: kind, generation, index.
    pub(crate) fn token(self) -> u64 {
        let (kind, index, generation) = match self {
            Self::Stop => (0, 0, 0),
            Self::Waker => (1, 0, 0),
            Self::Listener(index) => (2, index, 0),
            Self::Client(index, generation) => (3, index, generation),
            Self::Unmask(index, generation) => (4, index, generation),
            Self::Twin(index, generation) => (5, index, generation),
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
            5 => Self::Twin(index, generation),
            _ => return None,
        })
    }
}
