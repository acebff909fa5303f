//! Ends of clients: clients that close or break their connections, clients that are too slow or
//! hold up the engine, and clients that the operator ends.

use std::{os::fd::AsFd, time::Instant};

use nicforge_core::{
    device::Ended,
    ids::{AttachmentId, FunctionId},
    machine::MachineError,
};
use nicforge_vfio_user::ConnectionError;

use crate::{engine::Engine, socket};

/// Why a client ends.
pub(crate) enum EndReason {
    /// It closed its connection between two messages.
    Closed,
    /// Its connection failed, or it broke the protocol.
    Broken(ConnectionError),
    /// The engine or the operator takes the attachment from it.
    Evicted(&'static str),
    /// As `Evicted`, and the attachment takes no client for a while.
    HeldEngine(&'static str),
}

impl Engine {
    /// Handles the events that are due by the clock. Clients that have not sent their version in
    /// time end. DMA messages without an answer in time fail. Sockets at which accepting failed a
    /// while ago try again.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        for index in 0..self.attachments.len() {
            self.end_without_version(index, now);
            self.expire_dma(index, now);
            self.resume_accepting(index);
        }
    }

    /// Ends a client that has not sent its `VERSION` message in time.
    fn end_without_version(&mut self, index: usize, now: Instant) {
        let Some(client) = &self.attachments[index].client else { return };
        if client.connection.peer().is_some() {
            return;
        }

        let limit = client.since + self.config.version_limit;
        if now < limit {
            self.clock.note_deadline(limit);
        } else {
            self.end(index, EndReason::Evicted("it did not send its version in time"));
        }
    }

    /// Fails the DMA messages that a client has not answered in time.
    fn expire_dma(&mut self, index: usize, now: Instant) {
        let attachment = &mut self.attachments[index];
        let Some(client) = &mut attachment.client else { return };
        let connection = &mut client.connection;
        let due =
            client.state.expire_dma_messages(&mut self.machine, connection, now, &mut attachment.counters);

        if let Some(due) = due {
            self.clock.note_deadline(due);
        }
        // An unmap may have waited for a message that has failed now, and the messages that failed
        // may have made room for others.
        if connection.ready() || due.is_some() {
            self.queue_client(index);
        }
    }

    /// Ends the clients that truncated a file which is mapped here. An access to such a mapping has
    /// faulted.
    pub(crate) fn end_faulted(&mut self) {
        for index in 0..self.attachments.len() {
            let client = self.attachments[index].client.as_ref();
            if client.is_some_and(|client| client.state.memory.is_faulted()) {
                self.end(index, EndReason::Evicted("it cut a file short that is mapped for DMA"));
            }
        }
    }

    /// Ends the clients that were given up because writes to their eventfds held up the engine.
    pub(crate) fn end_clients_of_blocking_eventfds(&mut self) {
        for index in 0..self.attachments.len() {
            let client = self.attachments[index].client.as_ref();
            if client.is_some_and(|client| client.state.eventfd_owner.is_given_up()) {
                self.end(index, EndReason::HeldEngine("a write to its eventfd held the engine"));
            }
        }
    }

    /// Takes an attachment from its client. Returns false when it has no client.
    pub(crate) fn evict(&mut self, function: FunctionId, attachment: AttachmentId) -> bool {
        let Some(index) = self.attachments.find(function, attachment) else { return false };
        if self.attachments[index].client.is_none() {
            return false;
        }
        self.end(index, EndReason::Evicted("the operator took it away"));
        true
    }

    /// Resets a function, and cancels the DMA messages and deferred accesses of its clients.
    pub(crate) fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.machine.reset_function(function)?;

        for index in 0..self.attachments.len() {
            let attachment = &mut self.attachments[index];
            if attachment.function == function
                && let Some(client) = &mut attachment.client
            {
                client.state.cancel_dma_of(&mut self.machine, &mut client.connection);
                client.state.cancel_access(&mut client.connection);
                self.queue_client(index);
            }
        }
        Ok(())
    }

    /// Ends all clients, because the engine ends. A client that has closed its connection loses
    /// nothing, also when the engine has not seen that yet: a program that ends is followed at once
    /// by the end of a server that was started for it.
    pub(crate) fn end_all(&mut self) {
        for index in 0..self.attachments.len() {
            let client = self.attachments[index].client.as_ref();
            let reason = match client {
                Some(client) if socket::is_hung_up(client.connection.as_fd()) => EndReason::Closed,
                _ => EndReason::Evicted("the server ends"),
            };
            self.end(index, reason);
        }
    }

    /// Ends the client of an attachment, if it has one: detaches it from the machine, and leaves
    /// the close of its descriptors and memory to other threads.
    pub(crate) fn end(&mut self, index: usize, reason: EndReason) {
        let Some(client) = self.attachments.take_client(index) else { return };
        let ended = self.report_end(index, client.pid, &reason);

        let attachment = &self.attachments[index];
        if let Err(error) = self.machine.detach(attachment.function, attachment.id, ended) {
            tracing::warn!(%error, "a client could not be detached");
        }

        client.stop_watching(&mut *self.events);
        client.close();

        // A connection that waits at the socket may be accepted now.
        self.resume_accepting(index);
    }

    /// Logs and counts the end of a client. Returns the kind of end for the device.
    fn report_end(&mut self, index: usize, pid: i32, reason: &EndReason) -> Ended {
        let attachment = &mut self.attachments[index];
        let path = attachment.listener.path().display();

        match reason {
            EndReason::Closed => {
                tracing::debug!(%path, pid, "a client closed its connection");
                Ended::Closed
            }
            EndReason::Broken(error) => {
                tracing::info!(%path, pid, %error, "a client failed or broke the protocol");
                attachment.counters.broken += 1;
                Ended::Closed
            }
            EndReason::Evicted(reason) => {
                tracing::warn!(%path, pid, reason, "a client lost its attachment");
                attachment.counters.evicted += 1;
                Ended::Evicted
            }
            EndReason::HeldEngine(reason) => {
                attachment.back_off.begin(Instant::now());
                tracing::warn!(
                    %path,
                    pid,
                    reason,
                    "a client lost its attachment, which takes no other for a while"
                );
                attachment.counters.evicted += 1;
                Ended::Evicted
            }
        }
    }
}
