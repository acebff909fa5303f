//! Accepting of connections: which become clients, which are refused, and which must wait.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_vfio_user::{Errno, ServerConnection};
use nix::errno::Errno as SystemErrno;

use crate::{
    client::{Client, ClientWatches},
    client_state::ClientState,
    closer::DescriptorCloser,
    end::EndReason,
    engine::Engine,
    errno,
    pace::Pace,
    socket::{self, Peer},
    watched::ClientKey,
};

/// Maximum number of connections accepted in a round, at all sockets.
const MAX_ACCEPTS: usize = 16;
/// Time without accepting when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A descriptor that is freed when the process has none left, so that a connection can be accepted
/// and closed.
pub(crate) struct DescriptorReserve(Option<File>);

impl DescriptorReserve {
    pub(crate) fn new() -> Self {
        Self(Self::open())
    }

    fn open() -> Option<File> {
        File::open("/dev/null").ok()
    }

    /// Frees the descriptor during a call of `action`.
    fn free_during<T>(&mut self, action: impl FnOnce() -> T) -> T {
        self.0 = None;
        let result = action();
        self.0 = Self::open();
        result
    }
}

impl Engine {
    /// Handles a report that connections wait at a listening socket.
    pub(crate) fn on_connections(&mut self, index: usize) {
        self.attachments[index].may_have_connections = true;
        self.queues.push_accepting(index);
    }

    /// Queues an attachment for accepting again, if connections may wait at its socket.
    pub(crate) fn resume_accepting(&mut self, index: usize) {
        if self.attachments[index].may_have_connections {
            self.queues.push_accepting(index);
        }
    }

    /// Accepts connections, one at each socket in turn, until [`MAX_ACCEPTS`] were accepted or the
    /// time of the round is over. One is accepted in any case. The sockets that are left come first
    /// in the next round.
    pub(crate) fn accept_queued(&mut self, round_end: Instant) {
        for _ in 0..MAX_ACCEPTS {
            let Some(index) = self.queues.pop_accepting() else { return };
            if self.accept(index, Instant::now()) {
                self.queues.push_accepting(index);
            }
            if Instant::now() >= round_end {
                return;
            }
        }
    }

    /// Accepts one connection. Returns whether more may be accepted now. If not, a later event
    /// queues the attachment again.
    fn accept(&mut self, index: usize, now: Instant) -> bool {
        if !self.may_accept(index, now) {
            return false;
        }

        match self.attachments[index].listener.accept() {
            Ok(None) => {
                self.attachments[index].may_have_connections = false;
                false
            }
            Ok(Some(fd)) => {
                self.on_accepted(index, fd, now);
                true
            }
            Err(errno @ (SystemErrno::EMFILE | SystemErrno::ENFILE)) => {
                self.close_without_descriptors(index, errno, now);
                false
            }
            Err(errno) => {
                tracing::warn!(%errno, "a connection could not be accepted");
                self.clock.note_deadline(now + ACCEPT_PAUSE);
                false
            }
        }
    }

    /// Returns whether a connection may be taken from the kernel's queue now, to become the client
    /// or to be refused. If not, the engine tries again when the attachment's client has ended, or
    /// when enough items of earlier clients have been closed.
    fn may_accept(&mut self, index: usize, now: Instant) -> bool {
        let attachment = &mut self.attachments[index];
        if let Some(client) = &mut attachment.client {
            // A client that has hung up is first served to its end, in its own turns, because the
            // requests that it sent before are still carried out.
            let had_hung_up = client.hung_up;
            client.hung_up = had_hung_up || socket::is_hung_up(client.connection.as_fd());
            if client.hung_up {
                if !had_hung_up {
                    self.queue_client(index);
                }
                return false;
            }
        }

        let will_be_refused = attachment.client.is_some() || !attachment.back_off.is_over(now);
        let is_admitted = if will_be_refused {
            attachment.backlogs.admits_refusal()
        } else {
            attachment.backlogs.admits_client()
        };
        if !is_admitted {
            self.queues.hold(index);
        }
        is_admitted
    }

    /// Handles a lack of descriptors: accepts one connection with the descriptor of the reserve and
    /// closes it at once, because its client would otherwise wait in vain.
    fn close_without_descriptors(&mut self, index: usize, errno: SystemErrno, now: Instant) {
        tracing::warn!(%errno, "no descriptor is left for a client");
        let attachment = &mut self.attachments[index];
        attachment.counters.refused += 1;

        self.reserve.free_during(|| {
            if let Ok(Some(fd)) = attachment.listener.accept() {
                attachment.backlogs.close_unanswered(fd);
            }
        });
        self.clock.note_deadline(now + ACCEPT_PAUSE);
    }

    /// Makes an accepted connection the client of its attachment, or refuses it.
    fn on_accepted(&mut self, index: usize, fd: OwnedFd, now: Instant) {
        let attachment = &mut self.attachments[index];
        let Some(peer) = attachment.listener.authorize(&fd) else {
            attachment.counters.foreign += 1;
            let path = attachment.listener.path().display();
            tracing::warn!(%path, "a client of another user was refused");
            attachment.backlogs.close_unanswered(fd);
            return;
        };

        if attachment.client.is_some() {
            self.refuse(index, fd, Errno::EBUSY);
        } else if !attachment.back_off.is_over(now) {
            self.refuse(index, fd, Errno::EAGAIN);
        } else if let Err(error) = self.machine.attach(attachment.function, attachment.id) {
            tracing::warn!(%error, "a client could not be attached");
            self.refuse(index, fd, errno::of_machine(&error));
        } else {
            self.add_client(index, fd, peer, now);
        }
    }

    /// Answers a connection with an error, on another thread.
    fn refuse(&mut self, index: usize, fd: OwnedFd, errno: Errno) {
        let attachment = &mut self.attachments[index];
        attachment.counters.refused += 1;
        attachment.backlogs.refuse(&self.closers, fd, errno);
    }

    /// Makes a connection the client of an attachment. The machine has attached it already.
    fn add_client(&mut self, index: usize, fd: OwnedFd, peer: Peer, now: Instant) {
        let attachment = &mut self.attachments[index];
        attachment.generation = attachment.generation.wrapping_add(1);
        attachment.counters.clients += 1;
        let key = ClientKey { index, generation: attachment.generation };
        tracing::debug!(path = %attachment.listener.path().display(), pid = peer.pid, "a client connected");

        let (watches, watched) = ClientWatches::start(&mut *self.events, &fd, key);
        let close_queue = attachment.backlogs.new_client_queue(&self.closers);
        let mut connection = ServerConnection::new(fd, self.config.connection());
        connection.set_closer(Arc::new(DescriptorCloser(Arc::clone(&close_queue))));

        let client = Client {
            connection,
            state: ClientState::new(attachment, &self.config, peer.is_foreign),
            watches,
            pace: Pace::new(self.config.quotas.long_call),
            hung_up: false,
            close_queue,
            pid: peer.pid,
            since: now,
        };
        self.attachments.set_client(index, client);

        if let Err(error) = watched {
            tracing::warn!(%error, "a client could not be watched");
            self.end(index, EndReason::Evicted("it could not be watched"));
            return;
        }
        self.clock.note_deadline(now + self.config.version_limit);
        // The client's first message has often arrived already.
        self.queue_client(index);
    }
}
