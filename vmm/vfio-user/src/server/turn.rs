//! A turn of a connection: reading both sockets and serving requests within a budget.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::config::ServerConfig;
use super::connection::{Progress, ServerConnection};
use super::error::ConnectionError;
use super::handler::Handler;
use crate::socket::{PendingFds, ReadOutcome};
use crate::wire::{Command, MessageType};

/// Steps and time of one call of [`ServerConnection::on_readable`] or
/// [`ServerConnection::on_writable`]. The first step is always taken.
pub(super) struct Turn {
    /// Steps taken.
    steps: u32,
    /// Maximum number of steps.
    budget: u32,
    end: Instant,
}

impl Turn {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self { steps: 0, budget: config.budget, end: Instant::now() + config.turn }
    }

    pub(super) fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Returns whether another step may be taken.
    pub(super) fn may_continue(&self) -> bool {
        self.steps == 0 || (self.steps < self.budget && Instant::now() < self.end)
    }
}

impl ServerConnection {
    /// Serves the second socket and then the first, both within one turn.
    pub(super) fn serve_both_sockets(
        &mut self,
        handler: &mut dyn Handler,
    ) -> Result<Progress, ConnectionError> {
        let mut turn = Turn::new(&self.dispatcher.config);
        let second_has_more = self.dispatcher.serve_second_socket(handler, &mut turn)?;
        self.dispatcher.complete_waiting_unmap();
        match self.serve_first_socket(handler, &mut turn)? {
            Progress::Idle | Progress::Blocked if second_has_more => Ok(Progress::More),
            progress => Ok(progress),
        }
    }

    /// Serves the first socket within the turn.
    fn serve_first_socket(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<Progress, ConnectionError> {
        let mut drained = false;
        while turn.may_continue() {
            turn.count_step();
            if self.dispatcher.deferred.is_some() {
                match self.advance_deferred(handler, turn)? {
                    Some(progress) => return Ok(progress),
                    None => continue,
                }
            }
            if self.has_full_queue() {
                return Ok(Progress::Blocked);
            }

            let (rx, mut out) = self.framed.split();
            if let Some(message) = rx.next_message()? {
                self.dispatcher.dispatch(&mut out, message, handler)?;
                self.apply_negotiation();
                continue;
            }

            if drained {
                return Ok(Progress::Idle);
            }
            match self.framed.fill()? {
                ReadOutcome::Data { drained: is_empty } => drained = is_empty,
                ReadOutcome::WouldBlock | ReadOutcome::Full => return Ok(Progress::Idle),
                ReadOutcome::End => return self.end_of_stream(),
            }
        }
        Ok(Progress::More)
    }

    /// Sets the stream's new limits after a `VERSION`. It is called when no message is borrowed
    /// from the stream.
    fn apply_negotiation(&mut self) {
        if let Some(limit) = self.dispatcher.new_message_limit.take() {
            self.framed.set_limit(limit);
            let fds = PendingFds::for_messages_of(self.dispatcher.config.max_msg_fds as usize);
            self.framed.rx.set_pending_limit(fds);
        }
    }

    /// Takes a step while a request is deferred: answers the request if it was completed, and reads
    /// on behind it otherwise. Returns the progress with which the turn ends, or `None` if it
    /// continues.
    fn advance_deferred(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<Option<Progress>, ConnectionError> {
        let (_, mut out) = self.framed.split();
        if self.dispatcher.finish_deferred(&mut out, handler)? {
            return Ok(None);
        }

        self.examine_later_messages(handler, turn)?;
        if let Some(deferred) = self.dispatcher.deferred.as_mut()
            && self.dispatcher.resets_ahead > 0
            && !deferred.was_asked
        {
            deferred.was_asked = true;
            if let Some(errno) = handler.reset_pending(deferred.token) {
                deferred.result = Some(Err(errno));
                return Ok(None);
            }
        }
        if !turn.may_continue() {
            return Ok(Some(Progress::More));
        }

        if !self.framed.rx.has_room() {
            // The buffer has no room to read the end of the stream, so a poll finds out whether the
            // client has gone.
            let has_hung_up = self.has_hung_up();
            return Ok(Some(if has_hung_up { Progress::Closed } else { Progress::Blocked }));
        }
        match self.framed.fill()? {
            ReadOutcome::Data { .. } => Ok(None),
            ReadOutcome::WouldBlock | ReadOutcome::Full => Ok(Some(Progress::Blocked)),
            ReadOutcome::End => Ok(Some(Progress::Closed)),
        }
    }

    /// Examines the messages received after the deferred request, within the turn. It counts
    /// resets, and serves and removes replies to DMA requests, because the deferred request may
    /// depend on them. All other messages stay in the buffer.
    fn examine_later_messages(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<(), ConnectionError> {
        let dispatcher = &mut self.dispatcher;
        let (rx, mut out) = self.framed.split();
        dispatcher.examined = dispatcher.examined.max(rx.position());
        // Stream positions of the replies that were served.
        let mut served: Vec<Range<u64>> = Vec::new();
        let mut result = Ok(());
        while turn.may_continue()
            && let Some(header) = rx.header_at(dispatcher.examined)
        {
            turn.count_step();
            let start = dispatcher.examined;
            dispatcher.examined = start + u64::from(header.size);
            if header.message_type() == MessageType::Reply && dispatcher.expects(&header) {
                dispatcher.counters.messages += 1;
                let payload = rx.payload_at(start, &header).unwrap_or_default();
                result = dispatcher
                    .dma
                    .on_reply(&mut out, dispatcher.dma_limits, &header, payload, handler)
                    .map(drop);
                served.push(start..dispatcher.examined);
                if result.is_err() {
                    break;
                }
            }
            if header.message_type() == MessageType::Command && header.command == Command::DeviceReset {
                dispatcher.resets_ahead += 1;
            }
        }

        // All served messages are removed at once, because each removal moves the later bytes, of
        // which there may be a mebibyte.
        rx.remove(&served);
        dispatcher.examined -= served.iter().map(|message| message.end - message.start).sum::<u64>();
        result.map_err(ConnectionError::from)
    }

    /// Returns whether the client has closed its end. It does not read the socket.
    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self.framed.as_fd(), PollFlags::empty())];
        let _ = poll(&mut fds, PollTimeout::ZERO);
        fds[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    /// Returns the result for a client that has closed its end. Within a message that is an error.
    fn end_of_stream(&self) -> Result<Progress, ConnectionError> {
        match self.framed.rx.buffered() {
            0 => Ok(Progress::Closed),
            buffered => Err(ConnectionError::Truncated { buffered }),
        }
    }
}
