//! Clients: how they are accepted, served and ended.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::{
    device::Ended,
    dma::DmaBacking,
    ids::{AttachmentId, FunctionId},
    interrupt::INTX,
    machine::{MachineError, Outgoing},
};
use nicforge_vfio_user::{ConnectionError, Errno, Progress, ServerConnection};
use nix::errno::Errno as SystemErrno;

use crate::{
    client::{Client, Watched},
    closer::DescriptorCloser,
    engine::Engine,
    errno,
    glue::{self, Glue},
    helper::Mapped,
    pace::{Pace, TurnStart, Verdict},
    session::Session,
    socket,
    wait::{Event, Interest},
};

/// Connections accepted in a row at one socket.
const ACCEPTS: usize = 16;
/// Time without accepting when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a client ends.
enum End {
    Closed,
    Broken(ConnectionError),
    Evicted(&'static str),
    /// As `Evicted`, and the attachment takes no client for a while.
    HeldEngine(&'static str),
}

impl Engine {
    pub(crate) fn accept(&mut self, index: usize, now: Instant) {
        self.ports[index].accepting = true;
        for _ in 0..ACCEPTS {
            if !self.may_accept(index, now) {
                return;
            }
            match self.ports[index].listener.accept() {
                Ok(None) => {
                    self.ports[index].accepting = false;
                    return;
                }
                Ok(Some(fd)) => self.welcome(index, fd, now),
                Err(errno @ (SystemErrno::EMFILE | SystemErrno::ENFILE)) => {
                    self.turn_away(index, errno, now);
                    return;
                }
                Err(errno) => {
                    tracing::warn!(%errno, "a connection could not be accepted");
                    self.note_deadline(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_soon = true;
    }

    /// Returns whether a connection may be taken from the kernel's queue now. If not, a later event
    /// tries again: the end of the client that has gone, or the wake-up when items of other clients
    /// were closed.
    fn may_accept(&mut self, index: usize, now: Instant) -> bool {
        let port = &mut self.ports[index];
        if let Some(client) = &mut port.client {
            // A client that has gone unnoticed is first served to its end, within its turns.
            if !client.hung_up && socket::is_hung_up(client.connection.as_fd()) {
                client.hung_up = true;
                self.queue(index);
            }
            let client = self.ports[index].client.as_ref();
            if client.is_some_and(|client| client.hung_up) {
                return false;
            }
        }

        let port = &self.ports[index];
        let is_refused = port.client.is_some() || !port.back_off.is_over(now);
        let admitted = if is_refused { port.closing.admits_refusal() } else { port.closing.admits_client() };
        if !admitted {
            self.hold(index);
        }
        admitted
    }

    /// Handles a lack of descriptors. The reserve lets one connection in, which is closed at once,
    /// so that it does not wait in vain.
    fn turn_away(&mut self, index: usize, errno: SystemErrno, now: Instant) {
        tracing::warn!(%errno, "no descriptor is left for a client");
        self.reserve = None;
        if let Ok(Some(turned_away)) = self.ports[index].listener.accept() {
            self.ports[index].closing.turn_away(turned_away);
        }
        self.reserve = File::open("/dev/null").ok();
        self.ports[index].counters.refused += 1;
        self.note_deadline(now + ACCEPT_PAUSE);
    }

    fn welcome(&mut self, index: usize, fd: OwnedFd, now: Instant) {
        let port = &mut self.ports[index];
        let Some(pid) = port.listener.welcome(&fd) else {
            port.counters.foreign += 1;
            tracing::warn!(path = %port.listener.path().display(), "a client of another user was refused");
            port.closing.turn_away(fd);
            return;
        };
        if port.client.is_some() {
            self.refuse(index, fd, Errno::EBUSY);
            return;
        }
        if !port.back_off.is_over(now) {
            self.refuse(index, fd, Errno::EAGAIN);
            return;
        }

        let (function, who) = (port.function, port.who);
        if let Err(error) = self.machine.attach(function, who) {
            tracing::warn!(%error, "a client could not be attached");
            self.refuse(index, fd, errno::of_machine(&error));
            return;
        }

        let port = &mut self.ports[index];
        port.generation = port.generation.wrapping_add(1);
        port.counters.clients += 1;
        let token = Watched::Client(index, port.generation).token();

        let watched = self.events.watch(fd.as_fd(), token, Interest::READ);
        let closing = port.closing.queue(&self.closers);
        let mut connection = ServerConnection::new(fd, self.config.connection());
        connection.set_closer(Arc::new(DescriptorCloser(Arc::clone(&closing))));

        port.client = Some(Client {
            connection,
            session: Session::new(function, who, &self.config),
            interest: Interest::READ,
            pace: Pace::default(),
            twin_interest: None,
            queued: false,
            hung_up: false,
            unmask: None,
            closing,
            pid,
            since: now,
        });
        self.clients += 1;

        tracing::debug!(path = %port.listener.path().display(), pid, "a client came");
        if let Err(error) = watched {
            tracing::warn!(%error, "a client could not be watched");
            self.end(index, End::Evicted("it could not be watched"));
            return;
        }
        self.note_deadline(now + self.config.version_limit);
        // Its first message has often arrived already.
        self.queue(index);
    }

    fn refuse(&mut self, index: usize, fd: OwnedFd, errno: Errno) {
        let port = &mut self.ports[index];
        port.counters.refused += 1;
        port.closing.refuse(&self.closers, fd, errno);
    }

    /// Does not serve an attachment until fewer of its items wait to be closed.
    fn hold(&mut self, index: usize) {
        if !self.held.contains(&index) {
            self.held.push(index);
        }
    }

    /// Serves and accepts again where that had to wait for items to be closed.
    pub(crate) fn release_held(&mut self) {
        for index in std::mem::take(&mut self.held) {
            self.accept_soon |= self.ports[index].accepting;
            self.queue(index);
        }
    }

    pub(crate) fn on_client(&mut self, index: usize, generation: u32, event: &Event) {
        let Some(port) = self.ports.get_mut(index).filter(|port| port.generation == generation) else {
            return;
        };
        if let Some(client) = &mut port.client {
            client.hung_up |= event.hangup;
            self.queue(index);
        }
    }

    /// Puts a client into a list of those to be served in this round, once.
    pub(crate) fn queue(&mut self, index: usize) {
        let Some(client) = self.ports.get_mut(index).and_then(|port| port.client.as_mut()) else { return };
        if std::mem::replace(&mut client.queued, true) {
            return;
        }
        if client.pace.is_slow() {
            self.slow.push_back(index);
        } else {
            self.ready.push_back(index);
        }
    }

    /// Serves each queued client for one turn, until the time of the round is over. One of the slow
    /// clients is served in each round.
    pub(crate) fn serve_queued(&mut self) {
        let until = Instant::now() + self.config.clients_turn;
        for served in 0..self.ready.len() {
            if served > 0 && Instant::now() >= until {
                break;
            }
            if let Some(index) = self.ready.pop_front() {
                self.drive(index);
            }
        }
        if let Some(index) = self.slow.pop_front() {
            self.drive(index);
        }
    }

    /// Serves a client that has answered a DMA message on its second socket, made room there, or
    /// closed it.
    pub(crate) fn on_twin(&mut self, index: usize, generation: u32) {
        let Some(port) = self.ports.get_mut(index).filter(|port| port.generation == generation) else {
            return;
        };
        if let Some(client) = &mut port.client {
            client.connection.note_twin_readable();
            self.queue(index);
        }
    }

    /// Unmasks INTx when the client has signalled its eventfd for that. The eventfd is not read:
    /// each write to it is reported by itself.
    pub(crate) fn on_unmask(&mut self, index: usize, generation: u32) {
        let Some(port) = self.ports.get(index).filter(|port| port.generation == generation) else { return };
        if port.client.as_ref().is_some_and(|client| client.unmask.is_some())
            && let Ok(interrupts) = self.machine.interrupts(port.function, port.who)
            && let Err(error) = interrupts.unmask(INTX, 0, 1)
        {
            tracing::debug!(%error, "INTx was not unmasked");
        }
    }

    /// Serves the requests of a client, for one turn.
    fn drive(&mut self, index: usize) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let Some(client) = &mut port.client else { return };
        client.queued = false;
        if !port.closing.admits_service() {
            self.hold(index);
            return;
        }

        let turn = client.pace.start(Instant::now());
        // DMA writes of the device go out before the answer to a read that may announce them.
        let until = Instant::now() + self.config.client_turn;
        let (session, connection) = (&mut client.session, &mut client.connection);
        let has_unsent = session.send(&mut self.machine, connection, &mut port.counters, until);

        let mut written = Ok(false);
        if client.connection.wants_write() || client.connection.twin_wants_write() {
            written = client.connection.on_writable();
        }
        let has_more_to_write = matches!(written, Ok(true));

        let mut glue = Glue {
            machine: &mut self.machine,
            session: &mut client.session,
            helper: &self.helper,
            closing: &client.closing,
            signals: &self.signals,
            counters: &mut port.counters,
            port: index,
            generation: port.generation,
            stall_limit: self.config.stall_limit,
        };

        let progress = match written {
            Ok(_) if has_unsent => Ok(Progress::More),
            Ok(_) => client.connection.on_readable(&mut glue),
            Err(error) => Err(error),
        };
        if glue.session.was_cancelled {
            client.connection.fail_dma(Errno::ECANCELED, &mut glue);
            client.session.was_cancelled = false;
        }

        match progress {
            Ok(Progress::Closed) => self.end(index, End::Closed),
            Ok(Progress::Idle | Progress::Blocked) if client.hung_up => self.end(index, End::Closed),
            Ok(progress) => {
                self.after_drive(index, progress == Progress::More || has_more_to_write, until);
                self.finish_turn(index, turn);
            }
            Err(error) => self.end(index, End::Broken(error)),
        }
    }

    /// Accounts for a client's turn, and ends a client that slows system calls down too much.
    fn finish_turn(&mut self, index: usize, turn: TurnStart) {
        let port = &mut self.ports[index];
        let Some(client) = &mut port.client else { return };
        let longest_call = client.connection.take_longest_call();
        let (length, verdict) = client.pace.finish(turn, longest_call);

        port.counters.longest_turn = port.counters.longest_turn.max(length);
        self.longest_turn.note(length, Some((port.function, port.who)), client.pid);
        if verdict == Verdict::HoldsEngine {
            self.end(index, End::HeldEngine("it made a system call of the engine take too long"));
        }
    }

    /// Sends the client's DMA messages until the time is over, and watches for what it waits for.
    fn after_drive(&mut self, index: usize, more: bool, until: Instant) {
        let port = &mut self.ports[index];
        let Some(client) = &mut port.client else { return };

        if client.session.stalled.is_some() && !self.stalled.contains(&index) {
            self.stalled.push_back(index);
        }

        let has_more_to_send =
            client.session.send(&mut self.machine, &mut client.connection, &mut port.counters, until);
        let due = client.session.due();
        let has_more = more || has_more_to_send || client.connection.ready();

        let wanted =
            Interest { read: client.connection.wants_read(), write: client.connection.wants_write() };
        let mut watched = Ok(());
        if wanted != client.interest {
            client.interest = wanted;
            let token = Watched::Client(index, port.generation).token();
            watched = self.events.rewatch(client.connection.as_fd(), token, wanted);
        }

        let token = Watched::Twin(index, port.generation).token();
        watched = watched.and(client.watch_twin(&mut *self.events, token));

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
        if has_more {
            self.queue(index);
        }
    }

    /// Offers the waiting accesses to their devices again.
    pub(crate) fn retry_stalled(&mut self, now: Instant) {
        // Accesses that stall again go to the end of the list, for the next time.
        for _ in 0..self.stalled.len() {
            let Some(index) = self.stalled.pop_front() else { return };
            let port = &mut self.ports[index];
            let Some(client) = &mut port.client else { continue };
            if client.session.stalled.is_none() {
                continue;
            }
            if client.session.retry(&mut self.machine, &mut client.connection, now, &mut port.counters) {
                self.queue(index);
            } else {
                self.stalled.push_back(index);
            }
        }
    }

    /// Takes the result of mapping a file for a range.
    pub(crate) fn on_mapped(&mut self, mapped: Mapped) {
        let Mapped { port: index, generation, result } = mapped;
        let port = self.ports.get_mut(index).filter(|port| port.generation == generation);
        let Some(client) = port.and_then(|port| port.client.as_mut()) else {
            // The client that asked for it has gone, and its queue with it.
            let closing = self.ports[index].closing.queue(&self.closers);
            closing.drop_memory(result.into_iter().collect());
            return;
        };

        let session = &mut client.session;
        let Some(pending) = session.pending_map.take() else {
            client.closing.drop_memory(result.into_iter().collect());
            return;
        };

        let placed = result.map_err(|error| errno::of_memory(&error)).and_then(|memory| {
            let (file, window) = session.memory.adopt(pending.place, memory, &pending.map)?;
            glue::place(&mut self.machine, session, &pending.map, Some(file), DmaBacking::Memory(window))
        });
        if placed.is_err() {
            client.closing.drop_memory(session.memory.sweep());
        }

        if let Err(error) = client.connection.complete(pending.token, placed) {
            tracing::warn!(%error, "a mapping ended that its connection does not wait for");
        }
        self.queue(index);
    }

    /// Hands the DMA messages of the machine to the clients that they are for. They are sent in the
    /// clients' turns.
    pub(crate) fn route(&mut self, now: Instant) {
        while let Some(message) = self.machine.pop_outgoing() {
            let (Outgoing::DmaRead { function, attachment, .. }
            | Outgoing::DmaWrite { function, attachment, .. }) = &message;
            let Some(&index) = self.served.get(&(*function, *attachment)) else { continue };
            let Some(client) = &mut self.ports[index].client else { continue };
            client.session.queue(&mut self.machine, message, now);
            self.queue(index);
        }
    }

    /// Handles the events that are due by the clock. Clients without a version end, and so do DMA
    /// messages without an answer. Sockets that were left alone for a while accept again.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        self.deadline = None;
        for index in 0..self.ports.len() {
            self.end_if_silent(index, now);
            let port = &mut self.ports[index];
            if let Some(client) = &mut port.client {
                let (machine, connection) = (&mut self.machine, &mut client.connection);
                let due = client.session.expire(machine, connection, now, &mut port.counters);
                // An unmap may have waited for a message that was given up.
                let goes_on = client.connection.ready();

                if let Some(due) = due {
                    self.note_deadline(due);
                }
                // The messages that ended may have made room for others.
                if goes_on || due.is_some() {
                    self.queue(index);
                }
            }
            if self.ports[index].accepting {
                self.accept(index, now);
            }
        }
    }

    /// Unmaps memory that devices have released since its ranges were unmapped.
    pub(crate) fn sweep(&mut self) {
        for port in &mut self.ports {
            if let Some(client) = &mut port.client
                && client.session.memory.has_leftover()
            {
                client.closing.drop_memory(client.session.memory.sweep());
            }
        }
        self.closers.start_missing();
        let released = self.orphans.extract_if(.., |(_, memory)| !memory.has_other_handles());
        for (queue, memory) in released {
            queue.drop_memory(vec![memory]);
        }
    }

    /// Ends a client that has not sent its version in time.
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

    /// Ends the clients that truncated a file which is mapped here.
    pub(crate) fn end_faulted(&mut self) {
        for index in 0..self.ports.len() {
            let port = &self.ports[index];
            if port.client.as_ref().is_some_and(|client| client.session.memory.is_faulted()) {
                self.end(index, End::Evicted("it cut a file short that is mapped for DMA"));
            }
        }
    }

    /// Ends the clients whose eventfds blocked the engine.
    pub(crate) fn end_blocking(&mut self) {
        for index in 0..self.ports.len() {
            if self.ports[index].client.as_ref().is_some_and(|client| client.session.eventfds.is_given_up()) {
                self.end(index, End::HeldEngine("a write to its eventfd held the engine"));
            }
        }
    }

    /// Takes an attachment from its client. Returns false when it has no client.
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
                self.queue(index);
            }
        }
        Ok(())
    }

    /// Ends all clients, because the engine ends.
    pub(crate) fn end_all(&mut self) {
        for index in 0..self.ports.len() {
            if self.ports[index].client.is_some() {
                self.end(index, End::Evicted("the server ends"));
            }
        }
    }

    fn end(&mut self, index: usize, why: End) {
        let port = &mut self.ports[index];
        let Some(client) = port.client.take() else { return };
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
            End::HeldEngine(reason) => {
                port.back_off.begin(Instant::now());
                tracing::warn!(
                    %path,
                    pid = client.pid,
                    reason,
                    "a client lost its attachment, which takes no other for a while"
                );
                port.counters.evicted += 1;
                Ended::Evicted
            }
        };

        if let Err(error) = self.machine.detach(port.function, port.who, ended) {
            tracing::warn!(%error, "a client was not attached");
        }

        self.events.unwatch(client.connection.as_fd(), Watched::Client(index, port.generation).token());
        if let Some(twin) = client.connection.twin().filter(|_| client.twin_interest.is_some()) {
            self.events.unwatch(twin, Watched::Twin(index, port.generation).token());
        }
        if let Some(unmask) = &client.unmask {
            self.events.unwatch(unmask.as_fd(), Watched::Unmask(index, port.generation).token());
        }

        let Client { connection, mut session, closing, .. } = client;
        closing.close_socket(connection.into_socket());
        // Memory that a device holds stays until the device releases it, so that the engine's
        // thread never unmaps it.
        let (held, free): (Vec<_>, Vec<_>) =
            session.memory.take().into_iter().partition(|memory| memory.has_other_handles());
        closing.drop_memory(free);
        self.orphans.extend(held.into_iter().map(|memory| (Arc::clone(&closing), memory)));

        // A connection that waits at the socket may be accepted now.
        self.accept_soon |= self.ports[index].accepting;
    }
}
