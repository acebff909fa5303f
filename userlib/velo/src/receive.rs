//! Receiving, and waiting.

use std::{
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use nicforge_driver::{Cancel, Deadline, Error as DriverError, Relax};
use nicforge_hwi::extoll_velo::{SLOT, SLOT_DATA, SLOT_HEADER};
use nicforge_shm::Window;

use crate::{Address, CONTROL_TAG, Error, Filter, Message, Port};

impl Port {
    /// Returns the next message, if one has arrived; kept messages come first.
    ///
    /// # Errors
    /// Errors of the driver.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Message>, Error> {
        let slot = (self.taken & (self.slots - 1)) * SLOT;
        let header = match self.ring.load_u64_acquire(slot + SLOT_HEADER) {
            Ok(header) if self.kept.is_empty() => header,
            _ => return self.poll_later(),
        };

        // The shortest message is the most frequent one. This function handles all of it, and
        // copies no byte twice.
        let quadword = match Message::of_header(header) {
            Some(found) if found.len() == 8 && !self.is_control(&found) => {
                self.ring.load_u64_relaxed(slot + SLOT_DATA)
            }
            _ => return self.poll_later(),
        };

        let (Ok(quadword), Some(mut message)) = (quadword, Message::of_header(header)) else {
            return self.poll_later();
        };

        message.data[..8].copy_from_slice(&quadword.to_ne_bytes());
        self.free_slot(slot)?;
        if self.account_received(message.from)? { Ok(Some(message)) } else { self.poll_later() }
    }

    /// As [`Port::poll`], into a buffer of the caller. Returns false when no message has arrived;
    /// the content of `message` is undefined then.
    ///
    /// # Errors
    /// Errors of the driver.
    #[inline]
    pub fn poll_into(&mut self, message: &mut Message) -> Result<bool, Error> {
        let slot = (self.taken & (self.slots - 1)) * SLOT;
        let header = self.ring.load_u64_acquire(slot + SLOT_HEADER)?;

        if !self.kept.is_empty() {
            return self.poll_into_later(message);
        }

        match message.head(header) {
            Some(data) => Self::read(&self.ring, slot, data)?,
            None => return self.poll_into_later(message),
        }
        if self.is_control(message) {
            return self.poll_into_later(message);
        }

        self.free_slot(slot)?;
        if self.account_received(message.from)? { Ok(true) } else { self.poll_into_later(message) }
    }

    /// Handles the cases that [`Port::poll_into`] leaves out.
    #[inline(never)]
    fn poll_into_later(&mut self, message: &mut Message) -> Result<bool, Error> {
        let next = self.poll_later()?;
        if let Some(next) = next {
            *message = next;
        }
        Ok(next.is_some())
    }

    /// Reads the data of the message in a slot, and no more of the slot.
    #[inline]
    fn read(ring: &Window, slot: u64, data: &mut [[u8; 8]]) -> Result<(), Error> {
        for (place, offset) in data.iter_mut().zip((slot + SLOT_DATA..).step_by(8)) {
            *place = ring.load_u64_relaxed(offset)?.to_ne_bytes();
        }
        Ok(())
    }

    /// Handles the cases that [`Port::poll`] leaves out: kept messages, control messages and all
    /// lengths.
    #[inline(never)]
    fn poll_later(&mut self) -> Result<Option<Message>, Error> {
        match self.take_kept(0)? {
            Some(message) => Ok(Some(message)),
            None => self.next_counted(),
        }
    }

    /// Takes the next message for this port out of the ring.
    fn next_counted(&mut self) -> Result<Option<Message>, Error> {
        // The bound keeps a peer whose messages are dropped from holding the call.
        for _ in 0..self.slots {
            let Some(message) = self.next()? else { break };
            if self.account_received(message.from)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Returns whether a message is a control message.
    #[inline]
    fn is_control(&self, message: &Message) -> bool {
        message.tag == CONTROL_TAG && self.config.flow_control
    }

    /// Returns the next message that `filter` selects, if one has arrived. Other messages are kept,
    /// in order.
    ///
    /// # Errors
    /// [`Error::KeptFull`], and errors of the driver.
    pub fn poll_for(&mut self, filter: Filter) -> Result<Option<Message>, Error> {
        if let Some(at) = self.kept.iter().position(|message| filter.admits(message)) {
            return self.take_kept(at);
        }

        loop {
            if self.kept.len() >= self.kept_capacity {
                return Err(Error::KeptFull { kept: self.kept.len() });
            }
            let Some(message) = self.next()? else { return Ok(None) };

            if !filter.admits(&message) {
                self.keep(message);
            } else if self.account_received(message.from)? {
                return Ok(Some(message));
            }
        }
    }

    /// Keeps a message from the ring, if it is for this port.
    fn keep(&mut self, message: Message) {
        if self.accept_sender(message.from) {
            self.kept.push_back(message);
        }
    }

    /// Takes a kept message, and accounts for its credit.
    fn take_kept(&mut self, at: usize) -> Result<Option<Message>, Error> {
        let message = self.kept.remove(at);
        if let Some(message) = &message {
            self.account_kept(message.from)?;
        }
        Ok(message)
    }

    /// Waits for the next message that `filter` selects. Other messages are kept, in order, for
    /// later calls.
    ///
    /// # Errors
    /// - [`Error::PeerGone`] when `filter` names a sender that goes away.
    /// - [`Error::KeptFull`], [`Error::Timeout`], [`Error::Cancelled`].
    /// - Errors that [`Port::check`] reports, and errors of the driver.
    #[inline]
    pub fn recv(
        &mut self,
        filter: Filter,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Message, Error> {
        match self.poll_for(filter)? {
            Some(message) => Ok(message),
            None => self.recv_later(filter, deadline, cancel),
        }
    }

    /// Waits for a message that [`Port::poll_for`] did not find at once.
    fn recv_later(
        &mut self,
        filter: Filter,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Message, Error> {
        let tenant = filter.from.map(|from| (from, self.awaited_tenant(from)));
        let mut waiter = Waiter::new(self, deadline, cancel);

        loop {
            let turn = waiter.turn(self, "a message");
            let gone = tenant.filter(|(from, tenant)| self.tenant(*from) != *tenant && *tenant & 1 != 0);

            // The directory changes behind everything that a peer has sent. The ring is therefore
            // polled once more before an error is returned, also when the device has gone away.
            fence(Ordering::Acquire);
            if let Some(message) = self.poll_for(filter)? {
                return Ok(message);
            }

            turn?;
            if let Some((address, _)) = gone {
                return Err(Error::PeerGone { address });
            }
            self.check()?;
        }
    }

    /// Returns the generation of the tenant that a call waits for: the tenant of an existing
    /// connection, else the current one.
    fn awaited_tenant(&self, from: Address) -> u8 {
        let Some(peer) = self.index(from).map(|index| self.peers[index]) else { return 0 };
        match (peer.receiver, peer.sender) {
            (0, 0) => self.tenant(from),
            (0, of) => of,
            (to, _) => to,
        }
    }

    /// Handles control messages, and keeps the messages that have arrived. A process that makes no
    /// other call for long should call it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn progress(&mut self) -> Result<(), Error> {
        self.pump()
    }

    /// Returns the number of kept messages.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Keeps all messages that have arrived, and sends pending control messages.
    pub(crate) fn pump(&mut self) -> Result<(), Error> {
        while self.kept.len() < self.kept_capacity
            && let Some(message) = self.next()?
        {
            self.keep(message);
        }

        self.drain_control_when_full()?;
        self.send_pending()
    }

    /// Handles the control messages at the front of the ring when no more messages can be kept.
    /// Returns whether a message that can't be kept is next.
    pub(crate) fn drain_control_when_full(&mut self) -> Result<bool, Error> {
        if self.kept.len() < self.kept_capacity {
            return Ok(false);
        }

        for _ in 0..self.slots {
            let slot = (self.taken & (self.slots - 1)) * SLOT;
            match Message::of_header(self.ring.load_u64_acquire(slot + SLOT_HEADER)?) {
                Some(message) if !self.is_control(&message) => return Ok(true),
                Some(_) => {}
                None => break,
            }

            if let Some(message) = self.take()? {
                self.handle_control(&message)?;
            }
        }
        Ok(false)
    }

    /// Takes the next message of the application out of the ring. Handles the control messages in
    /// front of it.
    fn next(&mut self) -> Result<Option<Message>, Error> {
        // The bound keeps a peer that only sends control messages from holding the call.
        for _ in 0..self.slots {
            let Some(message) = self.take()? else { break };
            if !self.is_control(&message) {
                return Ok(Some(message));
            }
            self.handle_control(&message)?;
        }

        self.send_pending()?;
        Ok(None)
    }

    /// Takes the next message out of the ring. When the ring is empty, informs the card of all
    /// taken messages.
    fn take(&mut self) -> Result<Option<Message>, Error> {
        let slot = (self.taken & (self.slots - 1)) * SLOT;
        let Some(mut message) = Message::of_header(self.ring.load_u64_acquire(slot + SLOT_HEADER)?) else {
            if self.unreported > 0 {
                self.report_taken()?;
            }
            return Ok(None);
        };

        let length = message.len();
        Self::read(&self.ring, slot, message.data[..length].as_chunks_mut().0)?;
        self.free_slot(slot)?;
        Ok(Some(message))
    }

    /// Frees the slot of a taken message, and informs the card in batches.
    #[inline]
    fn free_slot(&mut self, slot: u64) -> Result<(), Error> {
        if let Err(error) = self.ring.store_u64_release(slot + SLOT_HEADER, 0) {
            return Err(error.into());
        }

        self.taken += 1;
        self.unreported += 1;
        if self.unreported >= self.batch { self.report_taken() } else { Ok(()) }
    }
}

/// Longest sleep while a control message waits for room in the posted-write ring.
const PENDING_SLEEP: Duration = Duration::from_millis(1);

/// State of one call that waits.
pub(crate) struct Waiter<'a> {
    deadline: Deadline,
    cancel: Option<&'a Cancel>,
    relax: Relax,
    /// Time from which the call may sleep. `None` when it only polls.
    sleeps: Option<Instant>,
}

impl<'a> Waiter<'a> {
    /// Starts to wait.
    pub(crate) fn new(port: &Port, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        let sleeps = port.interrupt.as_ref().map(|_| Instant::now() + port.config.poll_phase);
        Self { deadline, cancel, relax: port.device.new_relax(), sleeps }
    }

    /// Pauses once in a loop that waits for `what`. Returns an error when the loop must end.
    pub(crate) fn turn(&mut self, port: &mut Port, what: &'static str) -> Result<(), Error> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled { what });
        }
        if self.deadline.has_passed() {
            return Err(Error::Timeout { what });
        }

        // The caller takes messages that arrived before it evaluates this error.
        if port.device.resets() != port.resets || !port.is_tenant() {
            return Err(port.end_reason());
        }

        if self.sleeps.is_none_or(|from| Instant::now() < from) {
            return Ok(port.device.relax(&mut self.relax)?);
        }

        // A message that has arrived since the last poll raises the interrupt at once.
        port.arm()?;

        // No interrupt announces room for a pending control message.
        let sleep =
            if port.pending.is_empty() { port.config.sleep } else { port.config.sleep.min(PENDING_SLEEP) };
        let deadline = self.deadline.at_most(sleep);
        match port.interrupt.as_ref().map(|interrupt| interrupt.wait(deadline, self.cancel)) {
            // A raised interrupt is disabled again, even if the engine has not reported the
            // enabling write as done.
            Some(Ok(_)) => port.armed = None,
            Some(Err(error)) if !matches!(error, DriverError::Timeout { .. } | DriverError::Cancelled) => {
                return Err(error.into());
            }
            _ => {}
        }
        Ok(())
    }
}
