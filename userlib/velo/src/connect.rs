//! Peers: connecting, and what each was promised.

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::extoll_velo::address;

use crate::{
    Address, CONTROL_TAG, Error, Link, Message, Port,
    flow::{Control, Peer},
    receive::Waiter,
};

impl Port {
    /// Connects to another port, and waits until there is one. With flow control its promise comes a little later: [`Port::send`] waits for it.
    /// A connection that is there already stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`]; [`Error::Timeout`], [`Error::Cancelled`] while nobody has the address, or the way to the card is full; what
    /// [`Port::check`] reports; what the driver says.
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
            if generation & 1 != 0 {
                let connect = Control::Connect { own: self.generation, window: self.config.window };
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
        if self.config.flow_control && self.tenant(link.address) == link.generation {
            // When the way is full the promise stays as it is until this port closes.
            self.post_control(link.address, Control::Close { own: self.generation })?;
        }
        Ok(())
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
            Control::Connect { own, window } => {
                self.take_back(index);
                let node = message.from.node as usize;
                if self.promised[node] >= self.budget {
                    self.take_back_of_the_dead(message.from.node);
                }
                let free = self.budget.saturating_sub(self.promised[node]);
                let promised = free.min(window).min(self.config.window.max(1));
                self.promised[node] += promised;
                let peer = &mut self.peers[index];
                (peer.of, peer.promised, peer.owed) = (own, promised, promised);
                self.owe(index);
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
                    self.take_back(index);
                }
            }
        }
        self.pay()
    }

    /// What a peer was promised is free.
    fn take_back(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let node = index / self.vpids as usize;
        self.promised[node] = self.promised[node].saturating_sub(peer.promised);
        (peer.of, peer.promised, peer.owed) = (0, 0, 0);
    }

    fn take_back_of_the_dead(&mut self, node: u32) {
        for vpid in 0..self.vpids as u16 {
            let address = Address { node, vpid };
            if let Some(index) = self.index(address)
                && self.peers[index].of != 0
                && self.peers[index].of != self.tenant(address)
            {
                self.take_back(index);
            }
        }
    }

    /// The application has taken a message of `from`.
    #[inline]
    pub(crate) fn count(&mut self, from: Address) -> Result<(), Error> {
        self.statistics.received += 1;
        if !self.config.flow_control {
            return Ok(());
        }
        let Some(peer) = self.index(from).and_then(|index| self.peers.get_mut(index)) else { return Ok(()) };
        if peer.promised == 0 {
            return Ok(());
        }
        peer.owed += 1;
        // In batches of half a promise: its sender goes on meanwhile.
        if peer.owed < (peer.promised / 2).max(1) {
            return Ok(());
        }
        self.pay_batch(from)
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
        // The slots first: the card must know of them before the peer uses the credit.
        self.tell_taken()?;
        while let Some(&index) = self.due.front() {
            let (address, peer) = (self.address_of(index), self.peers[index as usize]);
            if peer.of != 0 && self.tenant(address) == peer.of {
                let credit = Control::Credit { addressee: peer.of, messages: peer.owed };
                if !self.post_control(address, credit)? {
                    return Ok(());
                }
            }
            self.due.pop_front();
            let peer = &mut self.peers[index as usize];
            (peer.owed, peer.due) = (0, false);
        }
        Ok(())
    }
}
