//! Connections: opening and closing them, and the control messages of both ends.

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::extoll_velo::address;

use crate::{
    Address, CONTROL_TAG, Error, Message, PeerLink, Port, control::Control, directory::TableEntry,
    flow::IncomingConnect, tenant::Tenant, wait::Waiter,
};

/// Result of an attempt to send the pending control messages of a peer.
enum PendingSent {
    /// All of them are posted, or no longer needed.
    All,
    /// Two credit messages for this peer are in flight.
    PeerBusy,
    /// The posted-write ring is full.
    RingFull,
}

impl Port {
    /// Connects to another port, and waits until a tenant has that address. An existing connection
    /// stays as it is.
    ///
    /// With flow control the peer's credit grant arrives later; [`Port::send`] waits for it.
    ///
    /// # Errors
    /// - [`Error::NoSuchPeer`] when the network has no such address.
    /// - [`Error::Timeout`] and [`Error::Cancelled`] while the address has no tenant, or the
    ///   posted-write ring is full.
    /// - [`Error::Reset`], and errors of the driver.
    pub fn connect(
        &mut self,
        address: Address,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<PeerLink, Error> {
        let (nodes, vpids) = (self.nodes(), self.vpids());
        let index = self.directory.index(address).ok_or(Error::NoSuchPeer { address, nodes, vpids })?;
        let mut waiter = Waiter::new(self, deadline, cancel);

        loop {
            let known = self.flow.peers[index];
            if let Some(tenant) = self.directory.tenant(address) {
                if tenant.is(known.outgoing.receiver) && !known.outgoing.refused {
                    return Ok(self.link_to(address, index, tenant));
                }

                let next = known.outgoing.next(tenant);
                let (own, window) = (self.own.tenant, self.flow.window);
                let connection = next.connection;
                let connect = Control::Connect { own, target: tenant, connection, window };
                // The close of an earlier connection goes out first, so that the peer sees both in
                // order.
                if known.due.close.is_none() && (!self.flow.enabled || self.post_control(address, connect)?) {
                    self.flow.peers[index].outgoing = next;
                    continue;
                }
            }

            self.progress()?;
            waiter.pause(self, "a peer")?;
        }
    }

    /// Returns the link to a tenant.
    fn link_to(&self, address: Address, index: usize, tenant: Tenant) -> PeerLink {
        // The offset fits in 32 bits: the send aperture has 4 GiB.
        let target = address::encode(address.node, address.vpid, 0, 1) as u32;
        PeerLink { address, index: index as u32, tenant, entry: TableEntry::of(address), target }
    }

    /// Closes the sending direction: the peer may grant its credits to others. The link is invalid
    /// afterwards.
    ///
    /// # Errors
    /// Errors of the driver. A peer that is gone is no error.
    pub fn disconnect(&mut self, link: PeerLink) -> Result<(), Error> {
        let index = link.index as usize;
        let Some(peer) = self.flow.peers.get_mut(index) else { return Ok(()) };
        if !link.tenant.is(peer.outgoing.receiver) {
            return Ok(());
        }

        peer.outgoing.receiver = None;
        if !self.flow.enabled {
            return Ok(());
        }

        // When the posted-write ring is full, a later call sends the close.
        peer.due.close = Some(link.tenant);
        self.flow.queue(index);
        self.send_pending()
    }

    /// Sets which addresses may connect. The port grants no credits to an address that is not
    /// admitted, and refuses its connects. All addresses are admitted until the first call. Credits
    /// granted earlier stay valid.
    pub fn admit(&mut self, mut admits: impl FnMut(Address) -> bool) {
        for (index, peer) in self.flow.peers.iter_mut().enumerate() {
            peer.excluded = !admits(self.directory.address_of(index));
        }
    }

    /// Returns whether the peer has refused the connection because it has no credits left to grant.
    #[inline]
    pub fn is_refused(&self, link: PeerLink) -> bool {
        self.flow.peers.get(link.index as usize).is_some_and(|peer| {
            let outgoing = &peer.outgoing;
            link.tenant.is(outgoing.receiver) && outgoing.refused && outgoing.credits == 0
        })
    }

    /// Returns whether the peer has answered the connection by credits or a refusal. Without flow
    /// control no peer answers.
    pub fn has_answered(&self, link: PeerLink) -> bool {
        self.flow.peers.get(link.index as usize).is_some_and(|peer| {
            let outgoing = &peer.outgoing;
            link.tenant.is(outgoing.receiver) && outgoing.answered
        })
    }

    /// Returns the credits of a link: the messages that may be sent now. Returns `None` without
    /// flow control.
    pub fn credits(&self, link: PeerLink) -> Option<u32> {
        let outgoing = &self.flow.peers.get(link.index as usize)?.outgoing;
        let credits = if link.tenant.is(outgoing.receiver) { outgoing.credits } else { 0 };
        self.flow.enabled.then_some(credits)
    }

    /// Posts a control message. Returns false when the posted-write ring is full.
    fn post_control(&mut self, to: Address, control: Control) -> Result<bool, Error> {
        let offset = address::encode(to.node, to.vpid, CONTROL_TAG, 1);
        match self.path.post(offset, &control.encode()) {
            Ok(()) => self.statistics.control += 1,
            Err(Error::WouldBlock) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Handles a received control message.
    #[cold]
    pub(crate) fn handle_control(&mut self, message: &Message) {
        self.statistics.control += 1;

        let index = self.directory.index(message.from);
        let (Some(index), Some(control)) = (index, Control::decode(message.quadword(0))) else {
            // No port sends such a message, so it is ignored. Only its sender is affected.
            return;
        };

        match control {
            Control::Connect { own, target, connection, window } => {
                // A connect is stale when it names an earlier tenant of this port, or when its
                // sender has gone.
                if target == self.own.tenant && own.is(self.directory.tenant(message.from)) {
                    let sender = IncomingConnect { sender: own, connection, window };
                    self.flow.handle_connect(index, sender, &self.directory, &self.kept);
                }
            }
            Control::Credit { addressee, connection, messages } => {
                if addressee == self.own.tenant {
                    let outgoing = &mut self.flow.peers[index].outgoing;
                    outgoing.add_credits(connection, messages, self.flow.window);
                }
            }
            Control::Close { own } => self.flow.handle_close(index, own, &self.directory, &self.kept),
        }
        self.try_send_pending();
    }

    /// Handles a control message that the card's watchdog has dropped. The receive ring of its
    /// receiver was full for too long, although every ring reserves slots for control messages. The
    /// port sends no more credits to that tenant.
    ///
    /// It runs before more control messages are sent. [`Port::check`] still reports the error.
    #[inline]
    pub(crate) fn handle_dropped_control(&mut self) {
        if let Some(word) = self.errors.take_unchecked()
            && self.flow.enabled
            && let Some(to) = word.dropped_control()
            && let Some(index) = self.directory.index(to)
        {
            self.flow.mark_unresponsive(index, &self.directory);
        }
    }

    /// Counts a message of `from` that leaves the ring for the application, and returns credits
    /// when half of the grant is due.
    ///
    /// Returns false when the message is not for this port. Its sender has not connected: it sent
    /// the message to an earlier tenant of this VPID, and the message waited in the sender's card.
    #[inline]
    pub(crate) fn account_received(&mut self, from: Address) -> bool {
        let index = self.directory.index(from);
        // The index of an unknown sender is one that no peer has.
        self.account_received_at(index.unwrap_or(usize::MAX), from)
    }

    /// As [`Port::account_received`], for a caller that knows `index`, the number of `from` in the
    /// directory.
    #[inline]
    pub(crate) fn account_received_at(&mut self, index: usize, from: Address) -> bool {
        self.statistics.received += 1;

        // Without flow control no peer has a grant.
        let Some(peer) = self.flow.peers.get_mut(index) else { return true };
        if !peer.incoming.has_grant() {
            return !self.flow.enabled || self.accept_counted(from);
        }
        if peer.incoming.add_spent() {
            self.return_credits(from);
        }
        true
    }

    /// As [`Port::accept_sender`], for a message that is already counted as received.
    #[cold]
    fn accept_counted(&mut self, from: Address) -> bool {
        let accepted = self.accept_sender(from);
        self.statistics.received -= u64::from(!accepted);
        accepted
    }

    /// Returns whether messages of `from` are for this port.
    pub(crate) fn accepts(&self, from: Address) -> bool {
        let has_connected = |index: usize| self.flow.peers[index].incoming.sender.is_some();
        !self.flow.enabled || self.directory.index(from).is_none_or(has_connected)
    }

    /// As [`Port::accepts`]. Counts a message as dropped if it is not for this port.
    pub(crate) fn accept_sender(&mut self, from: Address) -> bool {
        let accepted = self.accepts(from);
        self.statistics.dropped += u64::from(!accepted);
        accepted
    }

    /// Counts a kept message of `from` that the application has taken.
    pub(crate) fn account_kept(&mut self, from: Address) {
        let Some(index) = self.directory.index(from) else {
            self.account_received(from);
            return;
        };

        // No credit returns to a sender whose grant has ended.
        if self.flow.release_kept(index, &self.directory) {
            self.statistics.received += 1;
            self.try_send_pending();
        } else if self.flow.peers[index].incoming.has_grant() {
            self.account_received(from);
        } else {
            self.statistics.received += 1;
        }
    }

    /// Queues a credit return to `from`, and sends the queued control messages.
    #[inline(never)]
    fn return_credits(&mut self, from: Address) {
        if let Some(index) = self.directory.index(from) {
            self.flow.queue(index);
        }
        self.try_send_pending();
    }

    /// As [`Port::send_pending`], for a call that has taken a message and must return it. After a
    /// failure the control messages stay queued, and a later call reports the error.
    fn try_send_pending(&mut self) {
        let _ = self.send_pending();
    }

    /// Sends the queued credit returns, refusals and closes, as far as the posted-write ring has
    /// room. Runs at most once through the queue.
    pub(crate) fn send_pending(&mut self) -> Result<(), Error> {
        if self.flow.has_waiting() {
            self.flow.regrant_credits_of_ended_tenants(&self.directory);
        }
        if !self.flow.has_pending() {
            return Ok(());
        }

        self.handle_dropped_control();

        // The read pointer first: the card must know of free slots before the peer uses the
        // credits.
        if self.ring.has_unreported() {
            self.ring.report_taken()?;
        }

        for _ in 0..self.flow.pending_peers() {
            let Some(index) = self.flow.next_pending() else { break };

            match self.send_due(index)? {
                PendingSent::All => self.flow.finish_next(),
                PendingSent::PeerBusy => self.flow.postpone_next(),
                PendingSent::RingFull => break,
            }
        }
        Ok(())
    }

    /// Sends the control messages that are due to a peer: a close, then a credit return or refusal.
    fn send_due(&mut self, index: usize) -> Result<PendingSent, Error> {
        let address = self.directory.address_of(index);
        let tenant = self.directory.tenant(address);

        if let Some(receiver) = self.flow.peers[index].due.close {
            let close = Control::Close { own: self.own.tenant };
            if receiver.is(tenant) && !self.post_control(address, close)? {
                return Ok(PendingSent::RingFull);
            }
            self.flow.peers[index].due.close = None;
        }

        let peer = self.flow.peers[index];
        let messages = peer.incoming.unreturned;
        // A sender that is gone needs no credits.
        let Some(addressee) = peer.incoming.sender.filter(|sender| sender.is(tenant)) else {
            return Ok(PendingSent::All);
        };
        if messages == 0 && !peer.due.refusal {
            return Ok(PendingSent::All);
        }

        // A message that waits for slots in a full ring blocks everything posted after it. So at
        // most two credit messages for each peer are in flight.
        let [older, newer] = peer.due.credit_positions;
        if older.is_some_and(|older| !self.path.has_passed(older)) {
            return Ok(PendingSent::PeerBusy);
        }

        let connection = peer.incoming.connection;
        if !self.post_control(address, Control::Credit { addressee, connection, messages })? {
            return Ok(PendingSent::RingFull);
        }
        self.flow.peers[index].due.credit_positions = [newer, self.path.position()];
        Ok(PendingSent::All)
    }
}
