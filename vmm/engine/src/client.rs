//! A client that has an attachment: its connection, and the descriptors it is watched by.

use std::{io, os::fd::AsFd, sync::Arc, time::Instant};

use nicforge_vfio_user::{PeerFd, ServerConnection};

use crate::{
    client_state::ClientState,
    closer::CloseQueue,
    pace::Pace,
    wait::{EventLoop, Interest},
    watched::{ClientKey, Watched},
};

/// The client of an attachment.
pub(crate) struct Client {
    pub(crate) connection: ServerConnection,
    pub(crate) state: ClientState,
    pub(crate) watches: ClientWatches,
    pub(crate) pace: Pace,
    /// Whether the client is gone; the requests that it sent before are still served.
    pub(crate) hung_up: bool,
    /// The queue in which everything of this client is closed.
    pub(crate) close_queue: Arc<CloseQueue>,
    /// The client's process when it connected.
    pub(crate) pid: i32,
    /// The time when the client connected.
    pub(crate) since: Instant,
}

impl Client {
    /// Stops watching all descriptors of the client.
    pub(crate) fn stop_watching(&self, events: &mut dyn EventLoop) {
        self.watches.stop(events, &self.connection);
    }

    /// Closes the socket of a client that has ended and unmaps its memory, on other threads.
    pub(crate) fn close(self) {
        let Self { connection, mut state, close_queue, .. } = self;
        close_queue.close_socket(connection.into_socket());
        close_queue.drop_memory(state.memory.take_all());
    }
}

/// The events for which the descriptors of a client are watched.
pub(crate) struct ClientWatches {
    key: ClientKey,
    /// Events of its first socket.
    socket: Interest,
    /// Events of its second socket; `None` while it is not watched.
    second_socket: Option<Interest>,
    /// The eventfd by which the client unmasks INTx.
    unmask: Option<PeerFd>,
}

impl ClientWatches {
    /// Watches the first socket for requests. The watches are returned also if that fails, because
    /// the client exists already and must be ended.
    pub(crate) fn start(
        events: &mut dyn EventLoop,
        socket: &impl AsFd,
        key: ClientKey,
    ) -> (Self, io::Result<()>) {
        let watched = events.watch(socket.as_fd(), Watched::Client(key).token(), Interest::READ);
        (Self { key, socket: Interest::READ, second_socket: None, unmask: None }, watched)
    }

    /// Returns whether the client unmasks INTx by an eventfd.
    pub(crate) fn has_unmask(&self) -> bool {
        self.unmask.is_some()
    }

    /// Registers both sockets in the event loop for the events that the connection waits for now.
    pub(crate) fn update(
        &mut self,
        events: &mut dyn EventLoop,
        connection: &ServerConnection,
    ) -> io::Result<()> {
        let wanted = Interest { read: connection.wants_read(), write: connection.wants_write() };
        let mut watched = Ok(());
        if wanted != self.socket {
            self.socket = wanted;
            watched = events.rewatch(connection.as_fd(), Watched::Client(self.key).token(), wanted);
        }

        watched.and(self.update_second_socket(events, connection))
    }

    /// Watches the second socket once both sides have agreed on one. A socket that has ended is not
    /// watched.
    fn update_second_socket(
        &mut self,
        events: &mut dyn EventLoop,
        connection: &ServerConnection,
    ) -> io::Result<()> {
        let Some(fd) = connection.second_socket() else { return Ok(()) };
        let token = Watched::SecondSocket(self.key).token();
        if connection.second_socket_has_ended() {
            if self.second_socket.take().is_some() {
                events.unwatch(fd, token);
            }
            return Ok(());
        }

        let wanted = Interest { read: true, write: connection.second_socket_wants_write() };
        match self.second_socket.replace(wanted) {
            Some(old) if old == wanted => Ok(()),
            Some(_) => events.rewatch(fd, token, wanted),
            None => events.watch(fd, token, wanted),
        }
    }

    /// Watches another eventfd that unmasks INTx, or none.
    pub(crate) fn replace_unmask(
        &mut self,
        events: &mut dyn EventLoop,
        new: Option<PeerFd>,
    ) -> io::Result<()> {
        let token = Watched::Unmask(self.key).token();
        if let Some(old) = self.unmask.take() {
            events.unwatch(old.as_fd(), token);
        }

        let Some(new) = new else { return Ok(()) };
        let watched = events.watch(new.as_fd(), token, Interest::READ);
        self.unmask = Some(new);
        watched
    }

    /// Stops watching all descriptors of the client.
    fn stop(&self, events: &mut dyn EventLoop, connection: &ServerConnection) {
        events.unwatch(connection.as_fd(), Watched::Client(self.key).token());
        if let Some(second_socket) = connection.second_socket().filter(|_| self.second_socket.is_some()) {
            events.unwatch(second_socket, Watched::SecondSocket(self.key).token());
        }
        if let Some(unmask) = &self.unmask {
            events.unwatch(unmask.as_fd(), Watched::Unmask(self.key).token());
        }
    }
}
