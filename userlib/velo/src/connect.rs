//! Peers: connecting, and what each was promised.

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::extoll_velo::address;

use crate::{
    Address, CONTROL_TAG, Error, Link, Message, Port,
    flow::{Control, Peer, REFUSALS, STRIKES},
    receive::Waiter,
};

impl Port {
    /// Connects to another port, and waits until there is one. With flow control its promise comes a little later: [`Port::send`] waits for it.
    /// A connection that is there already stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`]; [`Error::Timeout`], [`Error::Cancelled`] while nobody has the address, or the way to the card is full; [`Error::Reset`]; what
    /// the driver says.
    pub fn connect(
        &mut self,
        address: Address,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Link, Error> {
        let (nodes, vpids) = (self.nodes, self.vpids);
        let index = self.index(address).ok_or(Error::NoSuchPeer { address, nodes, vpids })?;
        let mut waiter = Waiter::new(self, deadline, cancel);
        loop {
            let generation = self.tenant(address);
            let known = self.peers[index];
            if generation & 1 != 0 && known.to == generation && !known.refused {
                return Ok(Link { address, index: index as u32, generation });
            }
            // Behind the end of an earlier connection, which is to be known first.
            if generation & 1 != 0 && known.closing == 0 {
                let (own, window) = (self.generation, self.config.window);
                let connect = Control::Connect { own, target: generation, window };
                if !self.config.flow_control || self.post_control(address, connect)? {
                    self.peers[index] = Peer { to: generation, credits: 0, refused: false, ..known };
                    continue;
                }
            }
            self.pump()?;
            waiter.turn(self, "a peer")?;
        }
    }

    /// Tells the other end that nothing more will be sent: what it has promised is free for others. The link is of no use any more.
    ///
    /// # Errors
    /// What the driver says. A peer that is gone is no error.
    pub fn disconnect(&mut self, link: Link) -> Result<(), Error> {
        let index = link.index as usize;
        if self.peers.get(index).is_none_or(|peer| peer.to != link.generation) {
            return Ok(());
        }
        self.peers[index].to = 0;
        if !self.config.flow_control {
            return Ok(());
        }
        // When the way is full, a later call tells it.
        self.peers[index].closing = link.generation;
        self.owe(index);
        self.pay()
    }

    /// Says who may connect: who is not admitted is promised nothing, and refused. All are, until this is called. What was promised before stays.
    pub fn admit(&mut self, mut admits: impl FnMut(Address) -> bool) {
        for index in 0..self.peers.len() {
            self.peers[index].stranger = !admits(self.address_of(index as u32));
        }
    }

    /// Whether the other end of a link has said that it has no room for another connection.
    #[inline]
    pub fn is_refused(&self, link: Link) -> bool {
        self.peers
            .get(link.index as usize)
            .is_some_and(|peer| peer.to == link.generation && peer.refused && peer.credits == 0)
    }

    /// Messages that may be sent on a link now; `None` when nobody counts.
    pub fn credits(&self, link: Link) -> Option<u32> {
        let peer = self.peers.get(link.index as usize)?;
        self.config.flow_control.then_some(if peer.to == link.generation { peer.credits } else { 0 })
    }

    /// Sends a control message. False when the way is full.
    pub(crate) fn post_control(&mut self, to: Address, control: Control) -> Result<bool, Error> {
        let offset = address::encode(to.node, to.vpid, CONTROL_TAG, 1);
        let posted = self.post(offset, &control.encode())?;
        self.statistics.control += u64::from(posted);
        Ok(posted)
    }

    /// A control message came.
    #[cold]
    pub(crate) fn heard(&mut self, message: &Message) -> Result<(), Error> {
        self.statistics.control += 1;
        let (Some(index), Some(control)) = (self.index(message.from), Control::decode(message.quadword(0)))
        else {
            // No port sends such a thing; what somebody else does is its own loss.
            return Ok(());
        };
        match control {
            Control::Connect { own, target, window } => {
                let known = self.peers[index];
                // One for a tenant before this one, or by one that has gone meanwhile, is nobody's. One that has its promise has it once.
                let current = target == self.generation && own & 1 != 0 && own == self.tenant(message.from);
                let has = known.of == own && known.promised > 0;
                if current && !has && known.deaf != own && known.strikes < STRIKES {
                    if known.of != own {
                        self.end_promise(index);
                    }
                    let peer = &mut self.peers[index];
                    (peer.of, peer.asked) = (own, window);
                    if peer.refused_tenant != own {
                        (peer.refused_tenant, peer.refusals) = (own, 0);
                    }
                    self.promise(index);
                }
            }
            Control::Credit { addressee, messages } => {
                let peer = &mut self.peers[index];
                if addressee == self.generation && peer.to != 0 {
                    peer.credits = peer.credits.saturating_add(messages);
                    peer.refused = messages == 0;
                }
            }
            Control::Close { own } => {
                if self.peers[index].of == own {
                    self.end_promise(index);
                    self.peers[index].of = 0;
                    self.welcome(message.from.node as usize);
                }
            }
        }
        self.pay()
    }

    /// Promises a peer that has connected what is free, and tells it.
    fn promise(&mut self, index: usize) {
        let node = index / self.vpids as usize;
        if self.promised[node] >= self.budget {
            self.take_back_of_the_dead(node as u32);
        }
        let free = self.budget.saturating_sub(self.promised[node]);
        let peer = &mut self.peers[index];
        let admitted = if peer.stranger { 0 } else { free };
        let promised = admitted.min(peer.asked).min(self.config.window.max(1));
        peer.waits = promised == 0 && peer.refusals >= REFUSALS;
        if peer.waits {
            return;
        }
        peer.refuse = promised == 0;
        peer.refusals = if peer.refuse { peer.refusals + 1 } else { 0 };
        (peer.promised, peer.owed) = (promised, promised);
        self.promised[node] += promised;
        self.owe(index);
    }

    /// There is room: those of a node that wait for some get it.
    fn welcome(&mut self, node: usize) {
        let first = node * self.vpids as usize;
        for index in first..first + self.vpids as usize {
            let peer = self.peers[index];
            let room = self.promised[node] < self.budget;
            if room && peer.waits && peer.of != 0 && peer.of == self.tenant(self.address_of(index as u32)) {
                self.promise(index);
            }
        }
    }

    /// The card has dropped a control message, since the ring of whom it was for was full for long, where a port has room for those. Who only has
    /// connected to us is told nothing any more.
    #[cold]
    pub(crate) fn fall_silent(&mut self, to: Address) {
        let Some(index) = self.index(to) else { return };
        let peer = &mut self.peers[index];
        if peer.to != 0 {
            return;
        }
        peer.strikes = peer.strikes.saturating_add(u8::from(peer.deaf != peer.of));
        peer.deaf = peer.of;
        // What still comes of it was promised before.
        self.free_promise(index);
    }

    /// What a tenant was promised is free. Its messages were in front of the news; those that nobody has taken are kept, and go on taking room.
    fn end_promise(&mut self, index: usize) {
        let (from, node) = (self.address_of(index as u32), index / self.vpids as usize);
        let kept = self.kept.iter().filter(|kept| kept.from == from).count() as u32;
        self.free_promise(index);
        let peer = &mut self.peers[index];
        let more = kept.saturating_sub(peer.lingering);
        peer.lingering += more;
        self.promised[node] += more;
    }

    /// What a peer was promised is free.
    fn free_promise(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let node = index / self.vpids as usize;
        self.promised[node] = self.promised[node].saturating_sub(peer.promised);
        (peer.promised, peer.owed, peer.refuse) = (0, 0, false);
    }

    fn take_back_of_the_dead(&mut self, node: u32) {
        for vpid in 0..self.vpids as u16 {
            let address = Address { node, vpid };
            if let Some(index) = self.index(address)
                && self.peers[index].of != 0
                && self.peers[index].of != self.tenant(address)
            {
                // Messages of it may be in the ring: whose they are stays known.
                self.free_promise(index);
            }
        }
    }

    /// A message of `from` was taken out of the ring for the application. False when it is not for this port: who has not connected to it has sent it to
    /// somebody before, and waited in its card since.
    #[inline]
    pub(crate) fn count(&mut self, from: Address) -> Result<bool, Error> {
        self.statistics.received += 1;
        if !self.config.flow_control {
            return Ok(true);
        }
        let Some(peer) = self.index(from).and_then(|index| self.peers.get_mut(index)) else {
            return Ok(true);
        };
        if peer.promised == 0 {
            return Ok(self.is_known(from));
        }
        peer.owed += 1;
        // In batches of half a promise: its sender goes on meanwhile.
        if peer.owed < peer.promised.div_ceil(2) {
            return Ok(true);
        }
        self.pay_batch(from)?;
        Ok(true)
    }

    #[cold]
    fn is_known(&mut self, from: Address) -> bool {
        let known = self.is_expected(from);
        self.statistics.received -= u64::from(!known);
        known
    }

    /// Whether messages of `from` are for this port. One that is not is counted.
    pub(crate) fn is_expected(&mut self, from: Address) -> bool {
        let expected =
            !self.config.flow_control || self.index(from).is_none_or(|index| self.peers[index].of != 0);
        self.statistics.dropped += u64::from(!expected);
        expected
    }

    /// The application has taken a message of `from` that was kept.
    pub(crate) fn count_kept(&mut self, from: Address) -> Result<(), Error> {
        let node = from.node as usize;
        match self.index(from).map(|index| &mut self.peers[index]) {
            // Nobody is owed anything for it. What it took is free for others.
            Some(peer) if peer.lingering > 0 => {
                peer.lingering -= 1;
                self.promised[node] = self.promised[node].saturating_sub(1);
                self.statistics.received += 1;
                self.welcome(node);
                self.pay()
            }
            Some(peer) if peer.promised == 0 => {
                self.statistics.received += 1;
                Ok(())
            }
            _ => self.count(from).map(drop),
        }
    }

    #[inline(never)]
    fn pay_batch(&mut self, from: Address) -> Result<(), Error> {
        if let Some(index) = self.index(from) {
            self.owe(index);
        }
        self.pay()
    }

    fn owe(&mut self, index: usize) {
        if !self.peers[index].due {
            self.peers[index].due = true;
            self.due.push_back(index as u32);
        }
    }

    /// Tells peers what they are owed, as far as there is room on the way to the card.
    pub(crate) fn pay(&mut self) -> Result<(), Error> {
        if self.due.is_empty() {
            return Ok(());
        }
        self.notice();
        // The slots first: the card must know of them before the peer uses the credit.
        if self.untold > 0 {
            self.tell_taken()?;
        }
        for _ in 0..self.due.len() {
            let Some(&index) = self.due.front() else { break };
            let (address, peer) = (self.address_of(index), self.peers[index as usize]);
            if peer.closing != 0 {
                let close = Control::Close { own: self.generation };
                if self.tenant(address) == peer.closing && !self.post_control(address, close)? {
                    return Ok(());
                }
                self.peers[index as usize].closing = 0;
            }
            if (peer.owed > 0 || peer.refuse) && peer.of != 0 && self.tenant(address) == peer.of {
                // All that is behind what waits for a peer that does not read waits as long.
                let [before, last] = peer.told;
                if before.is_some_and(|before| !self.way.with(|poster| poster.has_passed(before))) {
                    self.due.rotate_left(1);
                    continue;
                }
                let credit = Control::Credit { addressee: peer.of, messages: peer.owed };
                if !self.post_control(address, credit)? {
                    return Ok(());
                }
                self.peers[index as usize].told = [last, self.way.with(|poster| poster.mark())];
            }
            self.due.pop_front();
            let peer = &mut self.peers[index as usize];
            (peer.owed, peer.refuse, peer.due) = (0, false, false);
        }
        Ok(())
    }
}
