//! Connections: opening and closing them, granting credits, and returning credits.
//!
//! Each direction of a connection has one granting end, the receiver, and one spending end, the
//! sender. The granting end keeps `sender`, `granted` and `unreturned` of [`Peer`]; the spending
//! end keeps `receiver`, `credits` and `refused`. These invariants hold:
//!
//! - A sender spends one credit for each message, and sends nothing without a credit.
//! - The receiver grants credits once for each connection. Later credits only return those that the
//!   sender has spent.
//! - The outstanding grants to all VPIDs of one node never exceed [`Port::budget`].
//! - A control message names the generation that it is meant for, so a stale one changes nothing.

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::extoll_velo::address;

use crate::{
    Address, CONTROL_TAG, Error, Message, PeerLink, Port,
    flow::{Control, MAX_REFUSALS, MAX_UNRESPONSIVE, Peer},
    receive::Waiter,
};

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
        let (nodes, vpids) = (self.nodes, self.vpids);
        let index = self.index(address).ok_or(Error::NoSuchPeer { address, nodes, vpids })?;
        let mut waiter = Waiter::new(self, deadline, cancel);

        loop {
            // The directory shows an odd generation while the address has a tenant.
            let generation = self.tenant(address);
            let known = self.peers[index];
            if generation & 1 != 0 && known.receiver == generation && !known.refused {
                return Ok(PeerLink { address, index: index as u32, generation });
            }
            // The close of an earlier connection goes out first, so that the peer sees both in
            // order.
            if generation & 1 != 0 && known.closing == 0 {
                let (own, window) = (self.generation, self.config.window);
                let connect = Control::Connect { own, target: generation, window };
                if !self.config.flow_control || self.post_control(address, connect)? {
                    self.peers[index] = Peer { receiver: generation, credits: 0, refused: false, ..known };
                    continue;
                }
            }

            self.pump()?;
            waiter.turn(self, "a peer")?;
        }
    }

    /// Closes the sending direction: the peer may grant its credits to others. The link is invalid
    /// afterwards.
    ///
    /// # Errors
    /// Errors of the driver. A peer that is gone is no error.
    pub fn disconnect(&mut self, link: PeerLink) -> Result<(), Error> {
        let index = link.index as usize;
        if self.peers.get(index).is_none_or(|peer| peer.receiver != link.generation) {
            return Ok(());
        }

        self.peers[index].receiver = 0;
        if !self.config.flow_control {
            return Ok(());
        }

        // When the posted-write ring is full, a later call sends the close.
        self.peers[index].closing = link.generation;
        self.queue_peer(index);
        self.send_pending()
    }

    /// Sets which addresses may connect. The port grants no credits to an address that is not
    /// admitted, and refuses its connects. All addresses are admitted until the first call. Credits
    /// granted earlier stay valid.
    pub fn admit(&mut self, mut admits: impl FnMut(Address) -> bool) {
        for index in 0..self.peers.len() {
            self.peers[index].excluded = !admits(self.address_of(index as u32));
        }
    }

    /// Returns whether the peer has refused the connection because it has no credits left to grant.
    #[inline]
    pub fn is_refused(&self, link: PeerLink) -> bool {
        self.peers
            .get(link.index as usize)
            .is_some_and(|peer| peer.receiver == link.generation && peer.refused && peer.credits == 0)
    }

    /// Returns the credits of a link: the messages that may be sent now. Returns `None` without
    /// flow control.
    pub fn credits(&self, link: PeerLink) -> Option<u32> {
        let peer = self.peers.get(link.index as usize)?;
        self.config.flow_control.then_some(if peer.receiver == link.generation { peer.credits } else { 0 })
    }

    /// Posts a control message. Returns false when the posted-write ring is full.
    pub(crate) fn post_control(&mut self, to: Address, control: Control) -> Result<bool, Error> {
        let offset = address::encode(to.node, to.vpid, CONTROL_TAG, 1);
        let posted = self.post(offset, &control.encode())?;

        self.statistics.control += u64::from(posted);
        Ok(posted)
    }

    /// Handles a received control message.
    #[cold]
    pub(crate) fn handle_control(&mut self, message: &Message) -> Result<(), Error> {
        self.statistics.control += 1;
        let (Some(index), Some(control)) = (self.index(message.from), Control::decode(message.quadword(0)))
        else {
            // No port sends such a message, so it is ignored. Only its sender is affected.
            return Ok(());
        };

        match control {
            Control::Connect { own, target, window } => {
                let known = self.peers[index];
                // A connect is stale when it names an earlier tenant of this port, or when its
                // sender has gone. A tenant that has a grant receives no second one.
                let current = target == self.generation && own & 1 != 0 && own == self.tenant(message.from);
                let has_grant = known.sender == own && known.granted > 0;

                if current
                    && !has_grant
                    && known.unresponsive != own
                    && known.unresponsive_tenants < MAX_UNRESPONSIVE
                {
                    if known.sender != own {
                        self.end_grant(index);
                    }

                    let peer = &mut self.peers[index];
                    (peer.sender, peer.requested) = (own, window);

                    if peer.refused_tenant != own {
                        (peer.refused_tenant, peer.refusals) = (own, 0);
                    }
                    self.grant(index);
                }
            }
            Control::Credit { addressee, messages } => {
                let peer = &mut self.peers[index];
                if addressee == self.generation && peer.receiver != 0 {
                    peer.credits = peer.credits.saturating_add(messages);
                    peer.refused = messages == 0;
                }
            }
            Control::Close { own } => {
                if self.peers[index].sender == own {
                    self.end_grant(index);
                    self.peers[index].sender = 0;
                    self.grant_waiting(message.from.node as usize);
                }
            }
        }
        self.send_pending()
    }

    /// Grants a connecting peer as many credits as are free, and queues the grant. The grant is 0,
    /// a refusal, when none are free.
    fn grant(&mut self, index: usize) {
        let node = index / self.vpids as usize;
        if self.reserved[node] >= self.budget {
            self.release_grants_of_gone_tenants(node as u32);
        }

        let free = self.budget.saturating_sub(self.reserved[node]);
        let peer = &mut self.peers[index];
        let admitted = if peer.excluded { 0 } else { free };
        let granted = admitted.min(peer.requested).min(self.config.window.max(1));

        peer.awaits_grant = granted == 0 && peer.refusals >= MAX_REFUSALS;
        if peer.awaits_grant {
            return;
        }

        peer.refusal_pending = granted == 0;
        peer.refusals = if peer.refusal_pending { peer.refusals + 1 } else { 0 };
        (peer.granted, peer.unreturned) = (granted, granted);
        self.reserved[node] += granted;
        self.queue_peer(index);
    }

    /// Grants credits that have become free to those peers of a node that wait for them.
    fn grant_waiting(&mut self, node: usize) {
        let first = node * self.vpids as usize;
        for index in first..first + self.vpids as usize {
            let peer = self.peers[index];
            let room = self.reserved[node] < self.budget;

            if room
                && peer.awaits_grant
                && peer.sender != 0
                && peer.sender == self.tenant(self.address_of(index as u32))
            {
                self.grant(index);
            }
        }
    }

    /// Handles a control message that the card's watchdog has dropped. The receive ring of `to` was
    /// full for too long, although every ring reserves slots for control messages. The port sends
    /// no more credits to that tenant. A peer that this port has itself connected to is left as it
    /// is, and [`Port::check`] reports the error.
    #[cold]
    pub(crate) fn mark_unresponsive(&mut self, to: Address) {
        let Some(index) = self.index(to) else { return };
        let peer = &mut self.peers[index];
        if peer.receiver != 0 {
            return;
        }

        peer.unresponsive_tenants =
            peer.unresponsive_tenants.saturating_add(u8::from(peer.unresponsive != peer.sender));
        peer.unresponsive = peer.sender;

        // Messages that still arrive from it were covered by the earlier grant.
        self.release_grant(index);
    }

    /// Ends the grant to a tenant. Its close is behind its messages, so all of them have left the
    /// ring. Kept messages that the application has not taken continue to use up the node's budget.
    fn end_grant(&mut self, index: usize) {
        let (from, node) = (self.address_of(index as u32), index / self.vpids as usize);
        let kept = self.kept.iter().filter(|kept| kept.from == from).count() as u32;

        self.release_grant(index);

        let peer = &mut self.peers[index];
        let more = kept.saturating_sub(peer.kept_without_grant);
        peer.kept_without_grant += more;
        self.reserved[node] += more;
    }

    /// Releases the credits granted to a peer.
    fn release_grant(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let node = index / self.vpids as usize;

        self.reserved[node] = self.reserved[node].saturating_sub(peer.granted);
        (peer.granted, peer.unreturned, peer.refusal_pending) = (0, 0, false);
    }

    /// Releases the credits granted to tenants of a node that have gone.
    fn release_grants_of_gone_tenants(&mut self, node: u32) {
        for vpid in 0..self.vpids as u16 {
            let address = Address { node, vpid };
            if let Some(index) = self.index(address)
                && self.peers[index].sender != 0
                && self.peers[index].sender != self.tenant(address)
            {
                // Messages of it may still be in the ring, so `sender` continues to name them.
                self.release_grant(index);
            }
        }
    }

    /// Counts a message of `from` that leaves the ring for the application, and returns credits
    /// when half of the grant is due.
    ///
    /// Returns false when the message is not for this port. Its sender has not connected: it sent
    /// the message to an earlier tenant of this VPID, and the message waited in the sender's card.
    #[inline]
    pub(crate) fn account_received(&mut self, from: Address) -> Result<bool, Error> {
        self.statistics.received += 1;

        if !self.config.flow_control {
            return Ok(true);
        }

        let Some(peer) = self.index(from).and_then(|index| self.peers.get_mut(index)) else {
            return Ok(true);
        };

        if peer.granted == 0 {
            return Ok(self.accept_counted(from));
        }

        peer.unreturned += 1;
        // Credits return in batches of half a grant; the sender spends the other half meanwhile.
        if peer.unreturned < peer.granted.div_ceil(2) {
            return Ok(true);
        }

        self.return_credits(from)?;
        Ok(true)
    }

    /// As [`Port::accept_sender`], for a message that is already counted as received.
    #[cold]
    fn accept_counted(&mut self, from: Address) -> bool {
        let accepted = self.accept_sender(from);
        self.statistics.received -= u64::from(!accepted);
        accepted
    }

    /// Returns whether messages of `from` are for this port. Counts a message as dropped otherwise.
    pub(crate) fn accept_sender(&mut self, from: Address) -> bool {
        let accepted =
            !self.config.flow_control || self.index(from).is_none_or(|index| self.peers[index].sender != 0);
        self.statistics.dropped += u64::from(!accepted);
        accepted
    }

    /// Counts a kept message of `from` that the application has taken.
    pub(crate) fn account_kept(&mut self, from: Address) -> Result<(), Error> {
        let node = from.node as usize;

        match self.index(from).map(|index| &mut self.peers[index]) {
            // The sender's grant has ended, so no credit returns. The budget that the message used
            // is free again.
            Some(peer) if peer.kept_without_grant > 0 => {
                peer.kept_without_grant -= 1;
                self.reserved[node] = self.reserved[node].saturating_sub(1);
                self.statistics.received += 1;
                self.grant_waiting(node);
                self.send_pending()
            }
            Some(peer) if peer.granted == 0 => {
                self.statistics.received += 1;
                Ok(())
            }
            _ => self.account_received(from).map(drop),
        }
    }

    /// Queues a credit return to `from`, and sends what is queued.
    #[inline(never)]
    fn return_credits(&mut self, from: Address) -> Result<(), Error> {
        if let Some(index) = self.index(from) {
            self.queue_peer(index);
        }
        self.send_pending()
    }

    /// Queues a peer for [`Port::send_pending`]. A peer is in the queue at most once.
    fn queue_peer(&mut self, index: usize) {
        if !self.peers[index].queued {
            self.peers[index].queued = true;
            self.pending.push_back(index as u32);
        }
    }

    /// Sends the queued credit returns, refusals and closes, as far as the posted-write ring has
    /// room. Runs at most once through the queue.
    pub(crate) fn send_pending(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }

        self.handle_dropped_control();

        // The read pointer first: the card must know of free slots before the peer uses the
        // credits.
        if self.unreported > 0 {
            self.report_taken()?;
        }

        for _ in 0..self.pending.len() {
            let Some(&index) = self.pending.front() else { break };
            let (address, peer) = (self.address_of(index), self.peers[index as usize]);

            if peer.closing != 0 {
                let close = Control::Close { own: self.generation };
                if self.tenant(address) == peer.closing && !self.post_control(address, close)? {
                    return Ok(());
                }
                self.peers[index as usize].closing = 0;
            }

            if (peer.unreturned > 0 || peer.refusal_pending)
                && peer.sender != 0
                && self.tenant(address) == peer.sender
            {
                // A message that waits for slots in a full ring blocks everything posted behind it.
                // So at most two credit messages for each peer are in flight.
                let [before, last] = peer.credit_marks;
                if before.is_some_and(|before| !self.poster.with(|poster| poster.has_passed(before))) {
                    self.pending.rotate_left(1);
                    continue;
                }

                let credit = Control::Credit { addressee: peer.sender, messages: peer.unreturned };
                if !self.post_control(address, credit)? {
                    return Ok(());
                }
                self.peers[index as usize].credit_marks = [last, self.poster.with(|poster| poster.mark())];
            }

            self.pending.pop_front();
            let peer = &mut self.peers[index as usize];
            (peer.unreturned, peer.refusal_pending, peer.queued) = (0, false, false);
        }

        Ok(())
    }
}
