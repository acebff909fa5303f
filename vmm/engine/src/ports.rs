//! Clients: how they come, what they ask, how they end.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use nicforge_core::{
    device::{AttachmentId, Ended, FunctionId},
    dma::DmaBacking,
    interrupt::INTX,
    machine::{MachineError, Outgoing},
};
use nicforge_vfio_user::{ConnectionError, Errno, Progress, ServerConfig, ServerConnection};
use nix::{
    errno::Errno as SystemErrno,
    sys::socket::{Shutdown, shutdown},
};

use crate::{
    client::{Client, Watched},
    engine::Engine,
    errno,
    glue::{self, Glue},
    helper::Mapped,
    session::Session,
    socket::{self, Refusal},
    wait::{Event, Interest},
};

/// Connections accepted in a row at one socket.
const ACCEPTS: usize = 16;
/// How long no connection is accepted when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a client ends.
enum End {
    Closed,
    Broken(ConnectionError),
    Evicted(&'static str),
}

impl Engine {
    pub(crate) fn accept(&mut self, index: usize, now: Instant) {
        self.ports[index].accepting = false;
        for _ in 0..ACCEPTS {
            match self.ports[index].listener.accept() {
                Ok(None) => return,
                Ok(Some(fd)) => self.welcome(index, fd, now),
                Err(errno @ (SystemErrno::EMFILE | SystemErrno::ENFILE)) => {
                    self.turn_away(index, errno, now);
                    return;
                }
                Err(errno) => {
                    tracing::warn!(%errno, "a connection could not be accepted");
                    self.retry_accept(index, now);
                    return;
                }
            }
        }
        self.ports[index].accepting = true;
        self.accept_soon = true;
    }

    /// No descriptor is left. The reserve lets one client in, to be closed at once, so that it need not wait for nothing.
    fn turn_away(&mut self, index: usize, errno: SystemErrno, now: Instant) {
        tracing::warn!(%errno, "no descriptor is left for a client");
        self.reserve = None;
        let turned_away = self.ports[index].listener.accept();
        drop(turned_away);
        self.reserve = File::open("/dev/null").ok();
        self.ports[index].counters.refused += 1;
        self.retry_accept(index, now);
    }

    fn retry_accept(&mut self, index: usize, now: Instant) {
        self.ports[index].accepting = true;
        self.note_deadline(now + ACCEPT_PAUSE);
    }

    fn welcome(&mut self, index: usize, fd: OwnedFd, now: Instant) {
        let Some(pid) = socket::welcome(&fd) else {
            self.ports[index].counters.foreign += 1;
            tracing::warn!(path = %self.ports[index].listener.path().display(), "a client of another user was refused");
            return;
        };
        // Who came before may have gone without being noticed yet.
        if let Some(client) = &mut self.ports[index].client
            && socket::is_hung_up(client.connection.as_fd())
        {
            client.hung_up = true;
            self.drive_to_end(index);
        }
        if self.ports[index].client.is_some() {
            self.ports[index].counters.refused += 1;
            self.refuse(fd, Errno::EBUSY, now);
            return;
        }
        let (function, who) = (self.ports[index].function, self.ports[index].who);
        if let Err(error) = self.machine.attach(function, who) {
            tracing::warn!(%error, "a client could not be attached");
            self.ports[index].counters.refused += 1;
            self.refuse(fd, errno::of_machine(&error), now);
            return;
        }
        let limits = ServerConfig {
            budget: self.config.messages,
            max_data_xfer_size: self.config.max_transfer,
            max_queued: self.config.max_queued,
            max_dma_maps: u32::try_from(self.config.quotas.ranges).unwrap_or(u32::MAX),
            ..ServerConfig::default()
        };
        let port = &mut self.ports[index];
        port.generation = port.generation.wrapping_add(1);
        port.counters.clients += 1;
        let token = Watched::Client(index, port.generation).token();
        let watched = self.events.watch(fd.as_fd(), token, Interest::READ);
        port.client = Some(Client {
            connection: ServerConnection::new(fd, limits),
            session: Session::new(function, who, &self.config),
            interest: Interest::READ,
            queued: false,
            hung_up: false,
            unmask: None,
            pid,
            since: now,
        });
        self.clients += 1;
        tracing::debug!(path = %self.ports[index].listener.path().display(), pid, "a client came");
        if let Err(error) = watched {
            tracing::warn!(%error, "a client could not be watched");
            self.end(index, End::Evicted("it could not be watched"));
            return;
        }
        self.note_deadline(now + self.config.version_limit);
        // Its first message is there already, more often than not.
        self.drive(index);
    }

    fn refuse(&mut self, fd: OwnedFd, errno: Errno, now: Instant) {
        let refusal = Refusal::new(fd, errno, now);
        let index = self.refusals.iter().position(|(_, slot)| slot.is_none()).unwrap_or(self.refusals.len());
        if index >= self.config.refusals {
            return;
        }
        if index == self.refusals.len() {
            self.refusals.push((0, None));
        }
        self.note_deadline(refusal.until());
        let (generation, slot) = &mut self.refusals[index];
        *generation = generation.wrapping_add(1);
        let token = Watched::Refusal(index, *generation).token();
        if self.events.watch(refusal.fd(), token, Interest::READ).is_ok() {
            *slot = Some(refusal);
        }
    }

    pub(crate) fn on_refusal(&mut self, index: usize, generation: u32) {
        let Some((current, slot)) = self.refusals.get_mut(index) else { return };
        if *current == generation && slot.as_mut().is_some_and(Refusal::on_readable) {
            self.end_refusal(index);
        }
    }

    fn end_refusal(&mut self, index: usize) {
        if let Some((generation, slot)) = self.refusals.get_mut(index)
            && let Some(refusal) = slot.take()
        {
            self.events.unwatch(refusal.fd(), Watched::Refusal(index, *generation).token());
        }
    }

    pub(crate) fn on_client(&mut self, index: usize, generation: u32, event: &Event) {
        let Some(port) = self.ports.get_mut(index).filter(|port| port.generation == generation) else {
            return;
        };
        if let Some(client) = &mut port.client {
            client.hung_up |= event.hangup;
            self.drive(index);
        }
    }

    /// The client asks by its eventfd that INTx be unmasked. It is not read: each write to it is reported by itself.
    pub(crate) fn on_unmask(&mut self, index: usize, generation: u32) {
        let Some(port) = self.ports.get(index).filter(|port| port.generation == generation) else { return };
        if port.client.as_ref().is_some_and(|client| client.unmask.is_some())
            && let Ok(interrupts) = self.machine.interrupts(port.function, port.who)
            && let Err(error) = interrupts.unmask(INTX, 0, 1)
        {
            tracing::debug!(%error, "INTx was not unmasked");
        }
    }

    /// Serve what a client has sent, for a turn.
    pub(crate) fn drive(&mut self, index: usize) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let Some(client) = &mut port.client else { return };
        client.queued = false;
        let mut written = Ok(());
        if client.connection.wants_write() {
            written = client.connection.on_writable();
        }
        let mut glue = Glue {
            machine: &mut self.machine,
            session: &mut client.session,
            helper: &self.helper,
            signals: &self.signals,
            counters: &mut port.counters,
            port: index,
            generation: port.generation,
            stall_limit: self.config.stall_limit,
        };
        let progress = written.and_then(|()| client.connection.on_readable(&mut glue));
        if glue.session.was_cancelled {
            client.connection.fail_dma(Errno::ECANCELED, &mut glue);
            client.session.was_cancelled = false;
        }
        match progress {
            Ok(Progress::Closed) => self.end(index, End::Closed),
            Ok(Progress::Idle | Progress::Blocked) if client.hung_up => self.end(index, End::Closed),
            Ok(progress) => self.after_drive(index, progress == Progress::More),
            Err(error) => self.end(index, End::Broken(error)),
        }
    }

    /// Serve what a client sent before it went, as far as that goes without waiting, and end it.
    fn drive_to_end(&mut self, index: usize) {
        let turns = 1 << 10;
        for _ in 0..turns {
            self.drive(index);
            if self.ports[index].client.is_none() {
                return;
            }
        }
        self.end(index, End::Closed);
    }

    fn after_drive(&mut self, index: usize, more: bool) {
        let port = &mut self.ports[index];
        let Some(client) = &mut port.client else { return };
        if client.session.stalled.is_some() && !self.stalled.contains(&index) {
            self.stalled.push_back(index);
        }
        let due = client.session.send(&mut self.machine, &mut client.connection, &mut port.counters);
        if (more || client.connection.ready()) && !client.queued {
            client.queued = true;
            self.ready.push_back(index);
        }
        let wanted =
            Interest { read: client.connection.wants_read(), write: client.connection.wants_write() };
        let mut watched = Ok(());
        if wanted != client.interest {
            client.interest = wanted;
            let token = Watched::Client(index, port.generation).token();
            watched = self.events.rewatch(client.connection.as_fd(), token, wanted);
        }
        if let Some(new) = client.session.new_unmask.take() {
            let token = Watched::Unmask(index, port.generation).token();
            if let Some(old) = client.unmask.take() {
                self.events.unwatch(old.as_fd(), token);
            }
            if let Some(new) = new {
                watched = watched.and(self.events.watch(new.as_fd(), token, Interest::READ));
                client.unmask = Some(new);
            }
        }
        if let Some(due) = due {
            self.note_deadline(due);
        }
        if let Err(error) = watched {
            tracing::warn!(%error, "a client could not be watched");
            self.end(index, End::Evicted("it could not be watched"));
        }
    }

    /// Offer the accesses that wait to their devices again.
    pub(crate) fn retry_stalled(&mut self, now: Instant) {
        // Those that stall again go to the end, and have their turn next time.
        for _ in 0..self.stalled.len() {
            let Some(index) = self.stalled.pop_front() else { return };
            let port = &mut self.ports[index];
            let Some(client) = &mut port.client else { continue };
            if client.session.stalled.is_none() {
                continue;
            }
            if client.session.retry(&mut self.machine, &mut client.connection, now, &mut port.counters) {
                self.drive(index);
            } else {
                self.stalled.push_back(index);
            }
        }
    }

    /// A file was mapped for a range, or was not.
    pub(crate) fn on_mapped(&mut self, mapped: Mapped) {
        let Mapped { port: index, generation, result } = mapped;
        let port = self.ports.get_mut(index).filter(|port| port.generation == generation);
        let Some(client) = port.and_then(|port| port.client.as_mut()) else {
            self.helper.drop_memory(result.into_iter().collect());
            return;
        };
        let session = &mut client.session;
        let Some(pending) = session.pending_map.take() else {
            self.helper.drop_memory(result.into_iter().collect());
            return;
        };
        let placed = result.map_err(|error| errno::of_memory(&error)).and_then(|memory| {
            let (file, window) = session.memory.adopt(pending.place, memory, &pending.map)?;
            glue::place(&mut self.machine, session, &pending.map, Some(file), DmaBacking::Memory(window))
        });
        if placed.is_err() {
            self.helper.drop_memory(session.memory.sweep());
        }
        if let Err(error) = client.connection.complete(pending.token, placed) {
            tracing::warn!(%error, "a mapping ended that its connection does not wait for");
        }
        self.drive(index);
    }

    /// Send DMA messages that the machine has for clients.
    pub(crate) fn route(&mut self, now: Instant) {
        while let Some(message) = self.machine.pop_outgoing() {
            let (Outgoing::DmaRead { function, attachment, .. }
            | Outgoing::DmaWrite { function, attachment, .. }) = &message;
            let Some(&index) = self.served.get(&(*function, *attachment)) else { continue };
            let Some(client) = &mut self.ports[index].client else { continue };
            client.session.queue(&mut self.machine, message, now);
            if !self.senders.contains(&index) {
                self.senders.push(index);
            }
        }
        while let Some(index) = self.senders.pop() {
            let port = &mut self.ports[index];
            let Some(client) = &mut port.client else { continue };
            let due = client.session.send(&mut self.machine, &mut client.connection, &mut port.counters);
            let generation = port.generation;
            let wanted =
                Interest { read: client.connection.wants_read(), write: client.connection.wants_write() };
            if wanted != client.interest {
                client.interest = wanted;
                let token = Watched::Client(index, generation).token();
                if self.events.rewatch(client.connection.as_fd(), token, wanted).is_err() {
                    self.end(index, End::Evicted("it could not be watched"));
                    continue;
                }
            }
            if let Some(due) = due {
                self.note_deadline(due);
            }
        }
    }

    /// What is due by the clock: refusals, clients without a version, DMA messages without an answer, sockets that were left alone
    /// for a while.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        self.deadline = None;
        for index in 0..self.refusals.len() {
            match self.refusals[index].1.as_ref().map(Refusal::until) {
                Some(until) if until <= now => self.end_refusal(index),
                Some(until) => self.note_deadline(until),
                None => {}
            }
        }
        for index in 0..self.ports.len() {
            self.end_if_silent(index, now);
            let port = &mut self.ports[index];
            if let Some(client) = &mut port.client {
                let (machine, connection) = (&mut self.machine, &mut client.connection);
                if let Some(due) = client.session.expire(machine, connection, now, &mut port.counters) {
                    self.note_deadline(due);
                    // What ended may have made room for the rest.
                    if !self.senders.contains(&index) {
                        self.senders.push(index);
                    }
                }
            }
            if self.ports[index].accepting {
                self.accept(index, now);
            }
        }
    }

    /// Unmap what devices have let go of since its ranges were unmapped.
    pub(crate) fn sweep(&mut self) {
        for port in &mut self.ports {
            if let Some(client) = &mut port.client
                && client.session.memory.has_leftover()
            {
                self.helper.drop_memory(client.session.memory.sweep());
            }
        }
    }

    /// End a client that has not said its version in time.
    fn end_if_silent(&mut self, index: usize, now: Instant) {
        let Some(client) = &self.ports[index].client else { return };
        if client.connection.peer().is_some() {
            return;
        }
        let until = client.since + self.config.version_limit;
        if now < until {
            self.note_deadline(until);
        } else {
            self.end(index, End::Evicted("it did not say its version in time"));
        }
    }

    /// End the clients that cut a file short which is mapped here.
    pub(crate) fn end_faulted(&mut self) {
        for index in 0..self.ports.len() {
            let port = &self.ports[index];
            if port.client.as_ref().is_some_and(|client| client.session.memory.is_faulted()) {
                self.end(index, End::Evicted("it cut a file short that is mapped for DMA"));
            }
        }
    }

    /// End the clients whose eventfds made the engine wait.
    pub(crate) fn end_blocking(&mut self) {
        for index in 0..self.ports.len() {
            if self.ports[index].client.as_ref().is_some_and(|client| client.session.eventfds.is_given_up()) {
                self.end(index, End::Evicted("a write to its eventfd had to wait"));
            }
        }
    }

    /// Take an attachment from its client. False when nobody has it.
    pub(crate) fn evict(&mut self, function: FunctionId, who: AttachmentId) -> bool {
        let Some(&index) = self.served.get(&(function, who)) else { return false };
        if self.ports[index].client.is_none() {
            return false;
        }
        self.end(index, End::Evicted("the operator took it away"));
        true
    }

    pub(crate) fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.machine.reset_function(function)?;
        for index in 0..self.ports.len() {
            if self.ports[index].function == function
                && let Some(client) = &mut self.ports[index].client
            {
                client.session.cancel_dma(&mut self.machine);
                client.session.cancel_access(&mut client.connection);
                self.drive(index);
            }
        }
        Ok(())
    }

    /// End all clients, because the engine ends.
    pub(crate) fn end_all(&mut self) {
        for index in 0..self.ports.len() {
            if self.ports[index].client.is_some() {
                self.end(index, End::Evicted("the server ends"));
            }
        }
        for index in 0..self.refusals.len() {
            self.end_refusal(index);
        }
    }

    fn end(&mut self, index: usize, why: End) {
        let port = &mut self.ports[index];
        let Some(mut client) = port.client.take() else { return };
        self.clients -= 1;
        let path = port.listener.path().display();
        let ended = match &why {
            End::Closed => {
                tracing::debug!(%path, pid = client.pid, "a client went");
                Ended::Closed
            }
            End::Broken(error) => {
                tracing::info!(%path, pid = client.pid, %error, "a client broke off");
                port.counters.broken += 1;
                Ended::Closed
            }
            End::Evicted(reason) => {
                tracing::warn!(%path, pid = client.pid, reason, "a client lost its attachment");
                port.counters.evicted += 1;
                Ended::Evicted
            }
        };
        if let Err(error) = self.machine.detach(port.function, port.who, ended) {
            tracing::warn!(%error, "a client was not attached");
        }
        self.events.unwatch(client.connection.as_fd(), Watched::Client(index, port.generation).token());
        if let Some(unmask) = &client.unmask {
            self.events.unwatch(unmask.as_fd(), Watched::Unmask(index, port.generation).token());
        }
        // The kernel may hold the socket open for a moment longer; the client is to know now.
        let fd = std::os::fd::AsRawFd::as_raw_fd(&client.connection.as_fd());
        let _ = shutdown(fd, Shutdown::Both);
        self.helper.drop_memory(client.session.memory.take());
    }
}
