//! Serving of clients: the turn of each, deferred accesses, and DMA messages.

use std::time::Instant;

use nicforge_core::{dma::DmaBacking, interrupt::INTX, machine::Outgoing};
use nicforge_vfio_user::{Errno, Progress};

use crate::{
    attachment_handler::{self, AttachmentHandler},
    end::EndReason,
    engine::Engine,
    errno,
    mapper::Mapped,
    pace::{TurnStart, Verdict},
    wait::Event,
    watched::ClientKey,
};

impl Engine {
    /// Handles an event of a client's first socket.
    pub(crate) fn on_client(&mut self, key: ClientKey, event: &Event) {
        if let Some(client) = self.attachments.client_mut(key) {
            client.hung_up |= event.hangup;
            self.queue_client(key.index);
        }
    }

    /// Handles an event of a client's second socket. The client has answered a DMA message, made
    /// room there, or closed it.
    pub(crate) fn on_second_socket(&mut self, key: ClientKey) {
        if let Some(client) = self.attachments.client_mut(key) {
            client.connection.note_second_socket_readable();
            self.queue_client(key.index);
        }
    }

    /// Unmasks INTx when the client has signalled its eventfd for that. The eventfd is not read,
    /// because its watch is edge-triggered and reports each write.
    pub(crate) fn on_unmask(&mut self, key: ClientKey) {
        let has_unmask = self.attachments.client_mut(key).is_some_and(|client| client.watches.has_unmask());
        let attachment = &self.attachments[key.index];
        if has_unmask
            && let Ok(interrupts) = self.machine.interrupts(attachment.function, attachment.id)
            && let Err(error) = interrupts.unmask(INTX, 0, 1)
        {
            tracing::debug!(%error, "INTx was not unmasked");
        }
    }

    /// Queues the client of an attachment, if it has one, for a turn in this round.
    pub(crate) fn queue_client(&mut self, index: usize) {
        if let Some(client) = &self.attachments[index].client {
            self.queues.push_client(index, client.pace.is_slow());
        }
    }

    /// Serves each queued client for one turn, until the time of the round is over. One of the slow
    /// clients is served in each round.
    pub(crate) fn serve_queued(&mut self, round_end: Instant) {
        for served in 0..self.queues.count_ready() {
            if served > 0 && Instant::now() >= round_end {
                break;
            }
            if let Some(index) = self.queues.pop_ready() {
                self.serve_turn(index);
            }
        }

        if let Some(index) = self.queues.pop_slow() {
            self.serve_turn(index);
        }
    }

    /// Serves the requests of a client, for one turn.
    fn serve_turn(&mut self, index: usize) {
        let attachment = &mut self.attachments[index];
        let Some(client) = &mut attachment.client else { return };
        // Each message can bring descriptors to be closed, so none is received while too many wait.
        if !attachment.backlogs.admits_service() {
            self.queues.hold(index);
            return;
        }

        let turn = client.pace.start(Instant::now());
        let turn_end = Instant::now() + self.config.client_turn;
        // DMA writes of the device go out before the answer to a read that may announce them.
        let (state, connection) = (&mut client.state, &mut client.connection);
        let has_unsent =
            state.send_dma_messages(&mut self.machine, connection, &mut attachment.counters, turn_end);

        let mut written = Ok(false);
        if connection.wants_write() || connection.second_socket_wants_write() {
            written = connection.on_writable();
        }
        let has_more_to_write = matches!(written, Ok(true));

        let mut handler = AttachmentHandler {
            machine: &mut self.machine,
            client: state,
            mapper: &self.mapper,
            close_queue: &client.close_queue,
            eventfds: self.watchdog.eventfds(),
            counters: &mut attachment.counters,
            key: ClientKey { index, generation: attachment.generation },
            stall_limit: self.config.stall_limit,
        };

        let progress = match written {
            Ok(_) if has_unsent => Ok(Progress::More),
            Ok(_) => connection.on_readable(&mut handler),
            Err(error) => Err(error),
        };
        if handler.client.was_cancelled {
            connection.fail_dma(Errno::ECANCELED, &mut handler);
            handler.client.was_cancelled = false;
        }

        match progress {
            Ok(Progress::Closed) => self.end(index, EndReason::Closed),
            Ok(Progress::Idle | Progress::Blocked) if client.hung_up => self.end(index, EndReason::Closed),
            Ok(progress) => {
                let has_more = progress == Progress::More || has_more_to_write;
                self.prepare_next_turn(index, has_more, turn_end);
                self.account_for_turn(index, turn);
            }
            Err(error) => self.end(index, EndReason::Broken(error)),
        }
    }

    /// Sends the client's DMA messages until the turn is over, watches for what the client waits
    /// for, and queues it again if it has more work.
    fn prepare_next_turn(&mut self, index: usize, has_more: bool, turn_end: Instant) {
        let attachment = &mut self.attachments[index];
        let Some(client) = &mut attachment.client else { return };
        if client.state.deferred.is_some() {
            self.queues.push_deferred(index);
        }

        let (state, connection) = (&mut client.state, &mut client.connection);
        let has_more_to_send =
            state.send_dma_messages(&mut self.machine, connection, &mut attachment.counters, turn_end);
        let has_more = has_more || has_more_to_send || connection.ready();
        if let Some(deadline) = state.first_deadline() {
            self.clock.note_deadline(deadline);
        }

        let events = &mut *self.events;
        let mut watched = client.watches.update(events, connection);
        if let Some(new) = state.new_unmask.take() {
            watched = watched.and(client.watches.replace_unmask(events, new));
        }
        if let Err(error) = watched {
            tracing::warn!(%error, "a client could not be watched");
            self.end(index, EndReason::Evicted("it could not be watched"));
        }

        if has_more {
            self.queue_client(index);
        }
    }

    /// Records the length of a client's turn, and ends a client that slows system calls down too
    /// much.
    fn account_for_turn(&mut self, index: usize, turn: TurnStart) {
        let attachment = &mut self.attachments[index];
        let Some(client) = &mut attachment.client else { return };
        let longest_call = client.connection.take_longest_call();
        let (length, verdict) = client.pace.finish(turn, longest_call);

        attachment.counters.longest_turn = attachment.counters.longest_turn.max(length);
        let owner = (attachment.function, attachment.id);
        self.round_counters.longest.record_client_turn(length, owner, client.pid);
        if verdict == Verdict::HoldsEngine {
            let reason = "it made a system call of the engine take too long";
            self.end(index, EndReason::HeldEngine(reason));
        }
    }

    /// Tries each deferred access again, once. Those that have not ended go to the end of the
    /// queue, for the next round. Returns whether one of these waits for nothing but its turn.
    pub(crate) fn retry_deferred(&mut self, now: Instant) -> bool {
        let mut goes_on = false;
        for _ in 0..self.queues.count_deferred() {
            let Some(index) = self.queues.pop_deferred() else { break };
            let attachment = &mut self.attachments[index];
            let Some(client) = &mut attachment.client else { continue };
            if client.state.deferred.is_none() {
                continue;
            }

            let connection = &mut client.connection;
            if client.state.retry_access(&mut self.machine, connection, now, &mut attachment.counters) {
                self.queue_client(index);
            } else {
                goes_on |= client.state.waits_for_next_round();
                self.queues.push_deferred(index);
            }
        }
        goes_on
    }

    /// Serves and accepts again at the attachments that were held back until items were closed.
    pub(crate) fn resume_held(&mut self) {
        for _ in 0..self.queues.count_held() {
            let Some(index) = self.queues.pop_held() else { return };
            self.resume_accepting(index);
            self.queue_client(index);
        }
    }

    /// Handles the result of mapping a file: adds the range that waits for it to the client's DMA
    /// map, and answers the client's request.
    pub(crate) fn on_mapped(&mut self, mapped: Mapped) {
        let Mapped { client: key, result, backlog } = mapped;
        let Some(client) = self.attachments.client_mut(key) else {
            // The client that asked for the mapping has gone, and its close queue with it.
            let close_queue = self.attachments[key.index].backlogs.new_client_queue(&self.closers);
            close_queue.drop_memory(result.into_iter().collect());
            return;
        };
        // The mapping counts in the backlog of items to be closed while it is in progress, which
        // ends here.
        drop(backlog);

        let state = &mut client.state;
        let Some(pending) = state.pending_map.take() else {
            client.close_queue.drop_memory(result.into_iter().collect());
            return;
        };

        let mapped = result.map_err(|error| errno::of_memory(&error)).and_then(|memory| {
            let (file, window) = state.memory.adopt(pending.source, memory, &pending.map)?;
            let backing = DmaBacking::Memory(window);
            attachment_handler::map_range(&mut self.machine, state, &pending.map, Some(file), backing)
        });
        if mapped.is_err() {
            client.close_queue.drop_memory(state.memory.sweep());
        }

        if let Err(error) = client.connection.complete(pending.token, mapped) {
            tracing::warn!(%error, "a mapping ended that its connection does not wait for");
        }
        self.queue_client(key.index);
    }

    /// Hands the DMA messages of the machine to the clients that they are for. They are sent in the
    /// clients' turns.
    pub(crate) fn distribute_dma_messages(&mut self, now: Instant) {
        while let Some(message) = self.machine.pop_outgoing() {
            let (Outgoing::DmaRead { function, attachment, .. }
            | Outgoing::DmaWrite { function, attachment, .. }) = &message;
            let Some(index) = self.attachments.find(*function, *attachment) else { continue };
            let Some(client) = &mut self.attachments[index].client else { continue };
            client.state.queue_dma_message(&mut self.machine, message, now);

            // A client that is held back has no turn that would note the deadline.
            if let Some(deadline) = client.state.first_deadline() {
                self.clock.note_deadline(deadline);
            }
            self.queue_client(index);
        }
    }
}
