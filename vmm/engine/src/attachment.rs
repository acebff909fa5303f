//! The attachments that an engine serves, and what each keeps from one client to the next.

use std::{
    collections::HashMap,
    ops::{Index, IndexMut},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::ids::{AttachmentId, FunctionId};
use nicforge_vfio_user::{Closer, Errno};

use crate::{
    client::Client,
    closer::{Backlog, CloseQueue, Closers, DescriptorCloser},
    refusal::Refusal,
    socket::Listener,
    stats::ServerCounters,
    stop::Waker,
    watched::{ClientKey, MAX_ATTACHMENTS},
};

/// An attachment that is served at a socket.
pub(crate) struct ServedAttachment {
    pub(crate) function: FunctionId,
    pub(crate) id: AttachmentId,
    pub(crate) listener: Listener,
    /// The client; only [`ServedAttachments`] sets and takes it, because it counts clients.
    pub(crate) client: Option<Client>,
    /// Counts up with each client, so that results for an earlier client are recognized.
    pub(crate) generation: u32,
    /// Whether connections may wait at the listening socket. A socket whose connections are not
    /// all accepted is not reported again until another one comes.
    pub(crate) may_have_connections: bool,
    pub(crate) back_off: BackOff,
    pub(crate) backlogs: CloseBacklogs,
    pub(crate) counters: ServerCounters,
}

impl ServedAttachment {
    pub(crate) fn new(
        function: FunctionId,
        id: AttachmentId,
        listener: Listener,
        backlogs: CloseBacklogs,
    ) -> Self {
        Self {
            function,
            id,
            listener,
            client: None,
            generation: 0,
            may_have_connections: false,
            back_off: BackOff::default(),
            backlogs,
            counters: ServerCounters::default(),
        }
    }
}

/// All attachments that are served. Their index is the number that the engine uses for them.
#[derive(Default)]
pub(crate) struct ServedAttachments {
    /// The attachments in the order of [`Self::add`].
    all: Vec<ServedAttachment>,
    /// The index of each attachment in `all`.
    indices: HashMap<(FunctionId, AttachmentId), usize>,
    /// Number of attachments with a client.
    client_count: usize,
}

impl ServedAttachments {
    /// Adds an attachment and returns its index.
    pub(crate) fn add(&mut self, attachment: ServedAttachment) -> usize {
        let index = self.all.len();
        self.indices.insert((attachment.function, attachment.id), index);
        self.all.push(attachment);
        index
    }

    pub(crate) fn is_full(&self) -> bool {
        self.all.len() >= MAX_ATTACHMENTS
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ServedAttachment> {
        self.all.iter()
    }

    /// Returns the index of an attachment, if it is served.
    pub(crate) fn find(&self, function: FunctionId, id: AttachmentId) -> Option<usize> {
        self.indices.get(&(function, id)).copied()
    }

    /// Returns the client with this key, unless it has gone. A later client of the same attachment
    /// has another key.
    pub(crate) fn client_mut(&mut self, key: ClientKey) -> Option<&mut Client> {
        let attachment = self.all.get_mut(key.index)?;
        attachment.client.as_mut().filter(|_| attachment.generation == key.generation)
    }

    /// Whether any attachment has a client.
    pub(crate) fn has_clients(&self) -> bool {
        self.client_count > 0
    }

    /// Sets the client of an attachment that has none.
    pub(crate) fn set_client(&mut self, index: usize, client: Client) {
        let earlier = self.all[index].client.replace(client);
        self.client_count += usize::from(earlier.is_none());
    }

    /// Takes the client of an attachment.
    pub(crate) fn take_client(&mut self, index: usize) -> Option<Client> {
        let client = self.all[index].client.take()?;
        self.client_count -= 1;
        Some(client)
    }
}

impl Index<usize> for ServedAttachments {
    type Output = ServedAttachment;

    #[inline]
    fn index(&self, index: usize) -> &ServedAttachment {
        &self.all[index]
    }
}

impl IndexMut<usize> for ServedAttachments {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut ServedAttachment {
        &mut self.all[index]
    }
}

/// The time in which an attachment takes no client, because its last client held up the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    /// The end of the last back-off; `None` if there was none.
    until: Option<Instant>,
    /// Length of the next back-off.
    next: Duration,
}

/// The first back-off. Each one that follows soon is twice as long, up to [`LONGEST_BACK_OFF`].
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);

impl Default for BackOff {
    fn default() -> Self {
        Self { until: None, next: FIRST_BACK_OFF }
    }
}

impl BackOff {
    /// Starts a back-off after a client held up the engine.
    pub(crate) fn begin(&mut self, now: Instant) {
        // After a long time without a back-off the length starts at the shortest again.
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

/// The counts of an attachment's items that wait to be closed, and the limits of these counts. See
/// [`Backlog`].
pub(crate) struct CloseBacklogs {
    /// Items of the attachment's client and of its earlier clients.
    clients: Arc<Backlog>,
    /// Refused connections, answered or not.
    refused: Arc<Backlog>,
    /// The queue of the refused connections that are closed without an answer.
    unanswered: Arc<CloseQueue>,
}

impl CloseBacklogs {
    /// Number of unclosed items from which on the attachment's client is not served.
    const MAX_OF_CLIENT: usize = 64;
    /// Number of unclosed items of earlier clients from which on no new client is accepted.
    const MAX_OF_PREDECESSORS: usize = 16;
    /// Maximum number of refused connections that are answered at a time.
    const MAX_ANSWERED: usize = 8;
    /// Number of unclosed refused connections from which on no more are accepted.
    const MAX_REFUSED: usize = 64;

    pub(crate) fn new(waker: &Waker, closers: &Closers) -> Self {
        let (clients, refused) = (Backlog::new(waker.clone()), Backlog::new(waker.clone()));
        let unanswered = closers.new_queue(&refused);
        Self { clients, refused, unanswered }
    }

    /// Returns whether a connection that will become the client may be accepted now. If not, the
    /// engine is woken when an item is closed.
    pub(crate) fn admits_client(&self) -> bool {
        self.clients.admits(Self::MAX_OF_PREDECESSORS)
    }

    /// Returns whether a connection that will be refused may be accepted now. If not, the engine is
    /// woken when an item is closed.
    pub(crate) fn admits_refusal(&self) -> bool {
        self.refused.admits(Self::MAX_REFUSED)
    }

    /// Returns whether the client may be served now. If not, the engine is woken when an item is
    /// closed.
    pub(crate) fn admits_service(&self) -> bool {
        self.clients.admits(Self::MAX_OF_CLIENT)
    }

    /// Makes the queue in which everything of a new client is closed.
    pub(crate) fn new_client_queue(&self, closers: &Closers) -> Arc<CloseQueue> {
        closers.new_queue(&self.clients)
    }

    /// Answers a connection's first message with an error and closes it. When too many are being
    /// answered, it is closed without an answer.
    pub(crate) fn refuse(&self, closers: &Closers, fd: OwnedFd, errno: Errno) {
        if self.refused.len() < Self::MAX_ANSWERED {
            closers.new_queue(&self.refused).refuse(Refusal::new(fd, errno));
        } else {
            self.close_unanswered(fd);
        }
    }

    /// Returns the closer of the listening socket, which closes connections that were never
    /// accepted.
    pub(crate) fn listener_closer(&self) -> Arc<dyn Closer> {
        Arc::new(DescriptorCloser(Arc::clone(&self.unanswered)))
    }

    /// Closes a connection without an answer.
    pub(crate) fn close_unanswered(&self, fd: OwnedFd) {
        self.unanswered.close_socket(fd);
    }
}
