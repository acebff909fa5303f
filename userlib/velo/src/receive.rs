//! Receiving, and waiting.

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::{Cancel, Deadline};

use crate::{
    Address, CONTROL_TAG, Error, Filter, Message, Port,
    message::QUADWORD,
    ring::{ReceiveRing, SlotStart},
    tenant::Tenant,
    wait::Waiter,
};

/// Number of messages that one call may still take out of the ring.
///
/// It starts at the number of slots, so a call takes all messages that were in the ring when it
/// began. Senders whose messages are dropped, and senders of control messages, can't hold it.
struct TakeBudget(u64);

impl TakeBudget {
    /// Returns the budget of a call that takes messages out of `ring`.
    fn of(ring: &ReceiveRing) -> Self {
        Self(ring.slots())
    }

    /// Counts a message. Returns whether it may be taken.
    fn spend(&mut self) -> bool {
        let remaining = self.0.checked_sub(1);
        self.0 = remaining.unwrap_or(0);
        remaining.is_some()
    }
}

/// The header of a message of one quadword for the application, encoded and decoded. Messages of
/// the same sender, tag and length have the same header.
#[derive(Clone, Copy)]
pub(crate) struct RecentHeader {
    header: u64,
    from: Address,
    tag: u8,
    /// Number of `from` in the directory.
    index: u32,
}

impl RecentHeader {
    /// The value before the first message. Its header is neither valid nor that of an empty slot.
    pub(crate) const NONE: Self =
        Self { header: 1, from: Address { node: 0, vpid: 0 }, tag: 0, index: u32::MAX };
}

impl Port {
    /// Returns the next message, if one has arrived; kept messages come first.
    ///
    /// # Errors
    /// Errors of the driver.
    // Inlined, the message is built where the caller wants it, without a copy.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Message>, Error> {
        let SlotStart { header, quadword } = self.ring.load_start();
        if !self.kept.is_empty() {
            return self.poll_other_cases();
        }

        // The shortest message is the most frequent one, and often of the last sender. This
        // function handles all of it.
        if header != self.recent.header && !self.set_recent(header) {
            return self.poll_other_cases();
        }
        self.ring.free();

        let RecentHeader { from, tag, index, .. } = self.recent;
        if self.account_received_at(index as usize, from) {
            Ok(Some(Message::of_quadword(from, tag, quadword)))
        } else {
            self.poll_other_cases()
        }
    }

    /// Returns whether a header is that of a message of one quadword for the application. If so,
    /// the header is the recent one from now on.
    #[inline(never)]
    fn set_recent(&mut self, header: u64) -> bool {
        let Some(found) = Message::of_header(header) else { return false };
        let Some(index) = self.directory.index(found.from) else { return false };
        if found.len() != QUADWORD || self.is_control(&found) {
            return false;
        }

        self.recent = RecentHeader { header, from: found.from, tag: found.tag, index: index as u32 };
        true
    }

    /// As [`Port::poll`], into a buffer of the caller. Returns false when no message has arrived;
    /// the content of `message` is undefined then.
    ///
    /// # Errors
    /// Errors of the driver.
    #[inline]
    pub fn poll_into(&mut self, message: &mut Message) -> Result<bool, Error> {
        let header = self.ring.load_header();
        if !self.kept.is_empty() {
            return self.poll_into_other_cases(message);
        }

        match message.set_header(header) {
            Some(data) => self.ring.load_data(data),
            None => return self.poll_into_other_cases(message),
        }
        if self.is_control(message) {
            return self.poll_into_other_cases(message);
        }

        self.ring.free();
        if self.account_received(message.from) { Ok(true) } else { self.poll_into_other_cases(message) }
    }

    /// Handles the cases that [`Port::poll_into`] leaves out.
    #[inline(never)]
    fn poll_into_other_cases(&mut self, message: &mut Message) -> Result<bool, Error> {
        let next = self.poll_other_cases()?;
        if let Some(next) = next {
            *message = next;
        }
        Ok(next.is_some())
    }

    /// Handles the cases that [`Port::poll`] leaves out: kept messages, control messages and all
    /// lengths.
    #[inline(never)]
    fn poll_other_cases(&mut self) -> Result<Option<Message>, Error> {
        match self.take_kept(0) {
            Some(message) => Ok(Some(message)),
            None => self.next_counted(),
        }
    }

    /// Takes the next message for this port out of the ring, and counts it as received.
    fn next_counted(&mut self) -> Result<Option<Message>, Error> {
        let mut budget = TakeBudget::of(&self.ring);
        while let Some(message) = self.next(&mut budget)? {
            if self.account_received(message.from) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Returns whether a message is a control message.
    #[inline]
    fn is_control(&self, message: &Message) -> bool {
        message.tag == CONTROL_TAG && self.flow.enabled
    }

    /// Returns the next message that `filter` selects, if one has arrived. Other messages are kept,
    /// in order. A call takes at most as many messages as the ring has slots, so that it also ends
    /// while messages keep arriving.
    ///
    /// # Errors
    /// - [`Error::KeptFull`] when the next message would have to be kept and there is no room.
    /// - Errors of the driver.
    pub fn poll_for(&mut self, filter: Filter) -> Result<Option<Message>, Error> {
        if let Some(at) = self.kept.position(filter) {
            return Ok(self.take_kept(at));
        }

        let mut budget = TakeBudget::of(&self.ring);
        loop {
            if self.kept.is_full() {
                if !self.drain_control_when_full()? {
                    self.send_pending()?;
                    return Ok(None);
                }
                if self.must_keep_next(filter) {
                    return Err(self.kept.full());
                }
            }
            let Some(message) = self.next(&mut budget)? else { return Ok(None) };

            if !filter.admits(&message) {
                self.keep(message);
            } else if self.account_received(message.from) {
                return Ok(Some(message));
            }
        }
    }

    /// Returns whether the next message in the ring is one that a call for `filter` must keep.
    fn must_keep_next(&self, filter: Filter) -> bool {
        let next = self.ring.peek();
        next.is_some_and(|message| !filter.admits(&message) && self.accepts(message.from))
    }

    /// Keeps a message from the ring, if it is for this port.
    fn keep(&mut self, message: Message) {
        if self.accept_sender(message.from) {
            self.kept.push(message);
        }
    }

    /// Takes the kept message at a position, and accounts for its credit.
    fn take_kept(&mut self, at: usize) -> Option<Message> {
        let message = self.kept.remove(at);
        if let Some(message) = &message {
            self.account_kept(message.from);
        }
        message
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
            None => self.wait_for_message(filter, deadline, cancel),
        }
    }

    /// Waits for a message that [`Port::poll_for`] did not find at once.
    fn wait_for_message(
        &mut self,
        filter: Filter,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Message, Error> {
        let awaited = filter.from.and_then(|from| Some((from, self.awaited_tenant(from)?)));
        let mut waiter = Waiter::new(self, deadline, cancel);

        loop {
            let paused = waiter.pause(self, "a message");
            let peer_gone = awaited.filter(|(from, tenant)| !tenant.is(self.directory.tenant(*from)));

            // The directory changes after everything that a peer has sent. The ring is therefore
            // polled once more before an error is returned, also when the device has gone away.
            fence(Ordering::Acquire);
            if let Some(message) = self.poll_for(filter)? {
                return Ok(message);
            }

            paused?;
            if let Some((address, _)) = peer_gone {
                return Err(Error::PeerGone { address });
            }
            self.check()?;
        }
    }

    /// Returns the tenant that a call waits for: that of an existing connection, else the present
    /// one.
    fn awaited_tenant(&self, from: Address) -> Option<Tenant> {
        let peer = &self.flow.peers[self.directory.index(from)?];
        let connected = peer.outgoing.receiver.or(peer.incoming.sender);
        connected.or_else(|| self.directory.tenant(from))
    }

    /// Handles control messages, and keeps the messages that have arrived. A process that makes no
    /// other call for long should call it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn progress(&mut self) -> Result<(), Error> {
        let mut budget = TakeBudget::of(&self.ring);
        while !self.kept.is_full()
            && let Some(message) = self.next(&mut budget)?
        {
            self.keep(message);
        }

        self.drain_control_when_full()?;
        self.send_pending()
    }

    /// Returns the number of kept messages.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Handles the control messages at the front of the ring when no more messages can be kept.
    /// Returns whether a message that can't be kept is next.
    pub(crate) fn drain_control_when_full(&mut self) -> Result<bool, Error> {
        if !self.kept.is_full() {
            return Ok(false);
        }

        for _ in 0..self.ring.slots() {
            match self.ring.peek() {
                Some(message) if !self.is_control(&message) => return Ok(true),
                Some(_) => {}
                None => break,
            }

            if let Some(message) = self.ring.take()? {
                self.handle_control(&message);
            }
        }
        Ok(false)
    }

    /// Takes the next message of the application out of the ring. Handles the control messages in
    /// front of it. Returns `None` when the ring is empty or the budget is used up.
    fn next(&mut self, budget: &mut TakeBudget) -> Result<Option<Message>, Error> {
        while budget.spend() {
            let Some(message) = self.ring.take()? else { break };
            if !self.is_control(&message) {
                return Ok(Some(message));
            }
            self.handle_control(&message);
        }

        self.send_pending()?;
        Ok(None)
    }
}
