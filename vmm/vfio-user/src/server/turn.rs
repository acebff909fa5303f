//! A turn of a connection: reading both sockets and serving requests within a budget.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::config::ServerConfig;
use super::connection::{Progress, ServerConnection};
use super::error::ConnectionError;
use super::handler::Handler;
use crate::socket::{PendingFds, ReadOutcome};
use crate::wire::{Command, MessageType};

/// Steps and time of one call of [`ServerConnection::on_readable`]. The first step is always taken.
pub(super) struct Turn {
    steps: u32,
    budget: u32,
    until: Instant,
}

impl Turn {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self { steps: 0, budget: config.budget, until: Instant::now() + config.turn }
    }

    pub(super) fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Whether another step may be taken.
    pub(super) fn has_time(&self) -> bool {
        self.steps == 0 || (self.steps < self.budget && Instant::now() < self.until)
    }
}

impl ServerConnection {
    /// Serves the second socket and then the first, both within one turn.
    pub(super) fn drive_both(&mut self, handler: &mut dyn Handler) -> Result<Progress, ConnectionError> {
        let mut turn = Turn::new(&self.dispatcher.config);
        let more = self.dispatcher.drive_second_socket(handler, &mut turn)?;
        self.dispatcher.finish_drain();
        match self.drive(handler, &mut turn)? {
            Progress::Idle | Progress::Blocked if more => Ok(Progress::More),
            progress => Ok(progress),
        }
    }

    /// Serves the first socket within the turn.
    fn drive(&mut self, handler: &mut dyn Handler, turn: &mut Turn) -> Result<Progress, ConnectionError> {
        let mut drained = false;
        while turn.has_time() {
            turn.count_step();
            if self.dispatcher.deferred.is_some() {
                match self.wait_deferred(handler, turn)? {
                    Some(progress) => return Ok(progress),
                    None => continue,
                }
            }
            if self.is_clogged() {
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
                ReadOutcome::Data { drained: all } => drained = all,
                ReadOutcome::WouldBlock | ReadOutcome::Full => return Ok(Progress::Idle),
                ReadOutcome::End => return self.end(),
            }
        }
        Ok(Progress::More)
    }

    /// Sets the stream's limits after a VERSION, once no message is borrowed from it.
    fn apply_negotiation(&mut self) {
        if let Some(limit) = self.dispatcher.new_limit.take() {
            self.framed.set_limit(limit);
            let fds = PendingFds::for_messages_of(self.dispatcher.config.max_msg_fds as usize);
            self.framed.rx.set_pending_limit(fds);
        }
    }

    /// Takes a step while a request is deferred. Returns the progress with which the turn ends, or
    /// `None` if it continues.
    fn wait_deferred(
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
            && !deferred.asked
        {
            deferred.asked = true;
            if let Some(errno) = handler.reset_pending(deferred.token) {
                deferred.result = Some(Err(errno));
                return Ok(None);
            }
        }
        if !turn.has_time() {
            return Ok(Some(Progress::More));
        }

        if !self.framed.rx.has_room() {
            // No byte can be read now, so only a poll tells whether the client has gone.
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
    /// resets, and serves and removes replies to operations of this side, since the deferred
    /// request may depend on them. All others stay in the buffer.
    fn examine_later_messages(
        &mut self,
        handler: &mut dyn Handler,
        turn: &mut Turn,
    ) -> Result<(), ConnectionError> {
        let dispatcher = &mut self.dispatcher;
        let (rx, mut out) = self.framed.split();
        dispatcher.scanned = dispatcher.scanned.max(rx.position());
        let mut served = Vec::new();
        let mut result = Ok(());
        while turn.has_time()
            && let Some(header) = rx.header_at(dispatcher.scanned)
        {
            turn.count_step();
            let from = dispatcher.scanned;
            dispatcher.scanned = from + u64::from(header.size);
            if header.message_type() == MessageType::Reply && dispatcher.expects(&header) {
                dispatcher.counters.messages += 1;
                let payload = rx.payload_at(from, &header).unwrap_or_default();
                result =
                    dispatcher.dma.on_reply(&mut out, dispatcher.limits, &header, payload, handler).map(drop);
                served.push((from, dispatcher.scanned));
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
        dispatcher.scanned -= served.iter().map(|(from, end)| end - from).sum::<u64>();
        result.map_err(ConnectionError::from)
    }

    /// Whether the client has closed its end.
    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self.framed.as_fd(), PollFlags::empty())];
        let _ = poll(&mut fds, PollTimeout::ZERO);
        fds[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    }

    /// Returns the result for a client that has closed its end, which is an error within a message.
    fn end(&self) -> Result<Progress, ConnectionError> {
        match self.framed.rx.buffered() {
            0 => Ok(Progress::Closed),
            buffered => Err(ConnectionError::Truncated { buffered }),
        }
    }
}
