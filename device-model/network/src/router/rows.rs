//! Rows: packets with one route word that follow each other through a router, over links that take
//! no time.
//!
//! The router decides once on a row, looks once for room, and moves as many packets as have it. The
//! packets, credits and counters are those of [`Router::step`] without rows. A row is moved only
//! where nothing else can come between its packets: no other input has a packet that the router has
//! not delivered, or the row is delivered and no other one is.
//!
//! A packet that finds no room, and everything else, is left to the other parts of a step.

use nicforge_core::{
    fabric::{Packet, PortChannel, Ports},
    time::Nanos,
};

use super::{
    Decision, Exit, FifoRoom, LinkInput, Links, Policy, Room, RoutedPacket, Router, Source, outputs::Choice,
    requests::Inputs,
};

/// Packets that have moved in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of packets.
    pub packets: u32,
    /// Their bytes with the framing.
    pub bytes: u64,
}

impl Row {
    /// Adds a packet of so many bytes with its framing.
    #[inline(always)]
    pub(super) fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

/// Returns whether a set has one input.
#[inline(always)]
fn is_one(inputs: Inputs) -> bool {
    inputs != 0 && inputs & (inputs - 1) == 0
}

/// The packets of a link that the device can take at once, past the reception FIFO:
/// [`Router::bypass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bypass {
    from: PortChannel,
    input: usize,
    /// The route word of the packets. Those with another one may be for other nodes.
    word: u64,
    /// The reception FIFO.
    pub fifo: u8,
    /// Number of packets of the longest kind for which the FIFO has room.
    room: u32,
}

impl Bypass {
    /// Returns the first packet of the link, if it can bypass the FIFO.
    #[inline]
    pub fn first<'a>(&self, ports: &'a Ports<'_>) -> Option<&'a Packet> {
        ports.peek(self.from.port, self.from.channel).filter(|packet| packet.header == self.word)
    }
}

impl<P: Policy> Router<P> {
    /// Returns the packets that [`Router::step`] would put into a reception FIFO first, if the
    /// router has nothing else to do and all reception FIFOs are empty. Returns `None` if
    /// `is_wanted` returns false for the first packet.
    #[inline]
    pub fn bypass(&self, ports: &Ports<'_>, is_wanted: impl FnOnce(&Packet) -> bool) -> Option<Bypass> {
        let layout = &self.plan.layout;
        if !self.plan.rules.has_rows || self.fifos.received != 0 || !self.awaits_arrivals() {
            return None;
        }
        let [whole, heads] = ports.arrived_inputs(layout.ports, layout.vcs);
        if !is_one(whole) || heads != 0 {
            return None;
        }

        let input = whole.trailing_zeros() as usize;
        let source = layout.source(input);
        let Source::Link { port, vc } = source else { return None };
        let word = ports.peek(port, vc.into()).filter(|packet| is_wanted(packet))?.header;
        let fifo = self.policy.reception(word, source);
        let free = self.fifos.reception.get(usize::from(fifo))?.room();
        let room = free.packets.min(free.bytes / self.fifos.longest.max(1));
        let is_local = self.policy.decide(word, source) == Decision::Local;
        let from = PortChannel { port, channel: vc.into() };
        is_local.then_some(Bypass { from, input, word, fifo, room })
    }

    /// Passes up to `limit` packets to `accept`, in order, until it returns false, or a packet has
    /// another route word. Those for which it returns true leave the link. They are counted as if
    /// they had gone through the reception FIFO. Returns their number.
    ///
    /// Their places in the FIFO count as used until [`Router::end_bypass`]. If packets are left,
    /// the caller must call [`Router::step`] before that.
    #[inline(always)]
    pub fn bypass_row(
        &mut self,
        ports: &mut Ports<'_>,
        bypass: &mut Bypass,
        limit: u32,
        mut accept: impl FnMut(&Packet) -> bool,
    ) -> u32 {
        let Bypass { from, input, word, fifo, room } = *bypass;
        let mut row = Row::default();
        let longest = self.fifos.longest;
        row.packets = ports.take_while(from.port, from.channel, room.min(limit), |packet| {
            let bytes = packet.wire_bytes();
            let is_accepted = packet.header == word && bytes <= longest && accept(packet);
            row.bytes += if is_accepted { bytes.into() } else { 0 };
            is_accepted
        });

        let Some(queue) = self.fifos.reception.get_mut(usize::from(fifo)) else { return 0 };
        if row.packets > 0 {
            bypass.room -= row.packets;
            queue.count_bypassed(input as u8, row);
            self.counters.router.delivered += u64::from(row.packets);
            self.heads.inputs[input].counters.add(row);
        }
        row.packets
    }

    /// Takes the first packet of the link, which is counted as those of [`Router::bypass_row`] are.
    /// Returns `None` if `is_wanted` returns false for it, or it can't bypass the FIFO.
    /// [`Router::end_bypass`] must follow.
    #[inline]
    pub fn bypass_one(
        &mut self,
        ports: &mut Ports<'_>,
        bypass: &mut Bypass,
        is_wanted: impl FnOnce(&Packet) -> bool,
    ) -> Option<Packet> {
        let longest = self.fifos.longest;
        let bytes = bypass.first(ports).filter(|packet| is_wanted(packet))?.wire_bytes();
        let queue = self.fifos.reception.get_mut(usize::from(bypass.fifo))?;
        if bypass.room == 0 || bytes > longest {
            return None;
        }
        let packet = Ports::take(ports, bypass.from.port, bypass.from.channel)?;

        let row = Row { packets: 1, bytes: bytes.into() };
        bypass.room -= 1;
        queue.count_bypassed(bypass.input as u8, row);
        self.counters.router.delivered += 1;
        self.heads.inputs[bypass.input].counters.add(row);
        Some(packet)
    }

    /// Puts the packet that [`Router::bypass_one`] has returned last into the FIFO, because the
    /// device can't use it now. The caller does so before [`Router::end_bypass`], and lets no
    /// packet behind it bypass the FIFO.
    #[cold]
    pub fn put_in_fifo(&mut self, bypass: &Bypass, packet: Packet, now: Nanos) {
        let Some(queue) = self.fifos.reception.get_mut(usize::from(bypass.fifo)) else { return };
        queue.remove_bypassed(packet.wire_bytes());
        queue.push(packet, now, now);
        self.fifos.received |= 1 << bypass.fifo;
    }

    /// Frees the places of the packets that have bypassed the FIFO.
    #[inline]
    pub fn end_bypass(&mut self, bypass: &Bypass) {
        if let Some(queue) = self.fifos.reception.get_mut(usize::from(bypass.fifo)) {
            queue.end_bypass();
        }
    }
}

impl<P: Policy, K: RoutedPacket> Router<P, K> {
    /// Puts packets that `next` returns into an injection FIFO, as [`Router::inject`] does, while
    /// it has room for a packet of the longest kind. Returns their number, and the packet that
    /// ended the row because it is longer than the router's links permit, if there is one.
    #[inline]
    pub fn inject_row(
        &mut self,
        fifo: u8,
        now: Nanos,
        mut next: impl FnMut() -> Option<K>,
    ) -> (u32, Option<K>) {
        let Some(queue) = self.fifos.injection.get_mut(usize::from(fifo)) else { return (0, None) };
        let longest = self.fifos.longest;
        let FifoRoom { bytes: mut room, packets: mut places } = queue.room(now);

        let (mut packets, mut refused) = (0, None);
        while room >= longest
            && places > 0
            && let Some(packet) = next()
        {
            let bytes = packet.wire_bytes();
            if bytes > longest {
                refused = Some(packet);
                break;
            }
            queue.add(packet);
            (room, places, packets) = (room - bytes, places - 1, packets + 1);
        }

        if packets > 0 {
            queue.note_level(now);
            if self.heads.decided >> (self.plan.layout.links + usize::from(fifo)) & 1 == 0 {
                self.fifos.add_waiting(fifo);
            }
        }
        (packets, refused)
    }

    /// Passes the complete packets of a reception FIFO to `accept`, in order, until it returns
    /// false. Those for which it returns true leave the FIFO, and `recycle` takes them: it returns
    /// them to the fabric. Returns their number.
    #[inline]
    pub fn take_row(
        &mut self,
        fifo: u8,
        now: Nanos,
        mut accept: impl FnMut(&K) -> bool,
        mut recycle: impl FnMut(K),
    ) -> u32 {
        let Some(queue) = self.fifos.reception.get_mut(usize::from(fifo)) else { return 0 };
        let mut packets = 0;
        while let Some((packet, complete)) = queue.front()
            && complete <= now
            && accept(packet)
            && let Some(packet) = queue.remove()
        {
            recycle(packet);
            packets += 1;
        }

        if packets > 0 {
            queue.note_level(now);
            self.note_front(fifo, now);
        }
        packets
    }

    /// Takes the first packet of a reception FIFO into account after others have left it.
    #[inline]
    pub(super) fn note_front(&mut self, fifo: u8, now: Nanos) {
        match self.fifos.reception.get(usize::from(fifo)).and_then(|queue| queue.front()) {
            None => self.fifos.received &= !(1 << fifo),
            // The time of a packet behind another one was not taken into account.
            Some((_, complete)) if complete > now => {
                self.fifos.complete = self.fifos.complete.min(complete);
            }
            Some(_) => {}
        }
    }

    /// Moves rows from inputs whose first packets have no decision, of `budget` packets at most
    /// each. Returns the number of packets, and those of the inputs that still have one.
    #[inline(never)]
    pub(super) fn move_rows<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        mut new: Inputs,
        budget: u32,
    ) -> (u32, Inputs) {
        let mut moved = 0;
        if new == 0 && is_one(self.heads.decided) && self.outputs.open() != 0 {
            let row;
            (row, new) = self.resume_row(ports, budget);
            moved += row.packets;
        }

        let from_links = new & !self.plan.layout.injection;
        if is_one(from_links) && (self.heads.local | self.heads.dropped) == 0 {
            let input = from_links.trailing_zeros() as usize;
            let row = self.deliver_row(ports, input, budget);
            moved += row.packets;
            new = self.without_empty(ports, new, input, row);
        }

        if is_one(new) && self.heads.decided == 0 {
            let input = new.trailing_zeros() as usize;
            if let Some((word, exit)) = self.exit_of(ports, input) {
                let (row, is_full) = self.send_row(ports, input, (word, exit), budget);
                moved += row.packets;
                let is_stalled = is_full && self.stall_row(ports, input, (word, exit));
                new = if is_stalled { 0 } else { self.without_empty(ports, new, input, row) };
            }
        }
        (moved, new)
    }

    /// Sends the first packet of the only input with a decision, which has waited for room, and
    /// those after it. Returns them, and the input if it has more.
    #[inline]
    fn resume_row<L: Links<Packet = K>>(&mut self, ports: &mut L, budget: u32) -> (Row, Inputs) {
        let input = self.heads.decided.trailing_zeros() as usize;
        let (decision, since) = (self.heads.decision(input), self.heads.inputs[input].since);
        let Some((word, exit)) = self.exit_of(ports, input) else { return (Row::default(), 0) };
        // The policy may have changed since the decision.
        if decision != Decision::One(exit) {
            return (Row::default(), 0);
        }

        let (row, is_full) = self.send_row(ports, input, (word, exit), budget);
        if row.packets == 0 {
            return (row, 0);
        }

        self.heads.inputs[input].counters.waited += ports.now().0 - since.0;
        if is_full && self.stall_row(ports, input, (word, exit)) {
            return (row, 0);
        }

        self.heads.decided &= !(1 << input);
        self.outputs.remove(input, &decision);
        if let Source::Injection { fifo } = self.plan.layout.source(input) {
            self.fifos.add_waiting(fifo);
        }
        (row, self.without_empty(ports, 1 << input, input, row))
    }

    /// Has the rest of a row wait for room behind its exit, which the packets before have used up,
    /// while no other input has a packet to send. Returns false if the next packet of the input is
    /// not of the row.
    ///
    /// A decision on the next packet would be the same, and would find the same room.
    #[inline]
    fn stall_row<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (word, exit): (u64, Exit),
    ) -> bool {
        let bytes = match self.head_of(ports, input) {
            Some((next, bytes)) if next == word => bytes,
            _ => return false,
        };
        if let Source::Injection { fifo } = self.plan.layout.source(input) {
            self.fifos.waiting &= !(1 << fifo);
        }

        self.outputs.add_one(input, exit);
        self.heads.become_single(input, exit, ports.now(), bytes);
        self.outputs.note_full(exit.port);
        // No other input has a decision, so none waits for another virtual channel of the port.
        self.request_room_on(ports, exit.port, exit.vc);
        true
    }

    /// Returns the route word of the first packet of an input, and its bytes with the framing.
    #[inline]
    fn head_of<L: Links<Packet = K>>(&self, ports: &mut L, input: usize) -> Option<(u64, u32)> {
        match self.plan.layout.source(input) {
            Source::Link { port, vc } => ports.route_head(LinkInput { number: input as u8, port, vc }),
            Source::Injection { fifo } => self.fifos.first(fifo),
        }
    }

    /// Returns the route word of the first packet of an input, and its exit if it has only one.
    #[inline]
    fn exit_of<L: Links<Packet = K>>(&self, ports: &mut L, input: usize) -> Option<(u64, Exit)> {
        let (word, _) = self.head_of(ports, input)?;
        match self.policy.decide(word, self.plan.layout.source(input)) {
            Decision::One(exit) => Some((word, exit)),
            _ => None,
        }
    }

    /// Returns some inputs without the one that a row has left empty.
    #[inline(always)]
    fn without_empty<L: Links<Packet = K>>(
        &mut self,
        ports: &L,
        inputs: Inputs,
        input: usize,
        row: Row,
    ) -> Inputs {
        if row.packets == 0 {
            return inputs;
        }

        let is_empty = match self.plan.layout.source(input) {
            Source::Link { port, vc } => !ports.has_head(port, vc),
            Source::Injection { fifo } => {
                let is_empty = self.fifos.injection[usize::from(fifo)].is_empty();
                self.fifos.waiting &= !(u64::from(is_empty) << fifo);
                is_empty
            }
        };
        inputs & !(Inputs::from(is_empty) << input)
    }

    /// Delivers the first packets of a link's input, if they are for this node.
    #[inline]
    fn deliver_row<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize, budget: u32) -> Row {
        let source = self.plan.layout.source(input);
        let Source::Link { port, vc } = source else { return Row::default() };
        let from = LinkInput { number: input as u8, port, vc };
        let Some((word, _)) = ports.route_head(from) else { return Row::default() };
        if self.policy.decide(word, source) != Decision::Local {
            return Row::default();
        }

        let fifo = self.policy.reception(word, source);
        let Some(queue) = self.fifos.reception.get_mut(usize::from(fifo)) else { return Row::default() };
        let (now, FifoRoom { bytes: mut room, packets: places }) = (ports.now(), queue.room());
        let fits = |packet: &K| {
            let bytes = packet.wire_bytes();
            let fits = packet.word() == word && bytes <= room;
            room -= if fits { bytes } else { 0 };
            fits
        };

        let from = PortChannel { port, channel: vc.into() };
        let row = ports.take_row(from, places.min(budget), fits, |packet| queue.add(packet, now));
        if row.packets > 0 {
            queue.end_row(input as u8, now);
            self.fifos.received |= 1 << fifo;
            self.counters.router.delivered += u64::from(row.packets);
            self.heads.inputs[input].counters.add(row);
        }
        row
    }

    /// Sends the first packets of an input with a route word through its exit. Returns them, and
    /// whether they have used up the room behind the exit.
    #[inline]
    fn send_row<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (word, exit): (u64, Exit),
        budget: u32,
    ) -> (Row, bool) {
        let places = self.places_behind(ports, exit);
        let limit = places.min(budget);
        if limit == 0 {
            return (Row::default(), false);
        }

        let to = PortChannel { port: exit.port, channel: exit.vc.into() };
        let row = match self.plan.layout.source(input) {
            Source::Link { port, vc } => {
                ports.forward_row(PortChannel { port, channel: vc.into() }, to, limit, word)
            }
            Source::Injection { fifo } => {
                let queue = &mut self.fifos.injection[usize::from(fifo)];
                let (row, refused) = ports.send_row(to, limit, || queue.pop_of_row(word));
                if row.packets > 0 {
                    queue.end_row(ports.now());
                }
                if let Some(packet) = refused {
                    queue.put_back(packet, ports.now());
                }
                row
            }
        };
        self.note_sent(input, exit, row);
        (row, row.packets == places)
    }

    /// Returns the number of packets that can be sent through an exit now.
    #[inline]
    fn places_behind<L: Links<Packet = K>>(&mut self, ports: &mut L, exit: Exit) -> u32 {
        let Exit { port, vc, room } = exit;
        let is_known = port < self.plan.layout.ports && vc < self.plan.layout.vcs;
        if !is_known || self.outputs.is_blocked(port) || ports.await_wire(port) > ports.now() {
            return 0;
        }

        let credits = ports.update_credits(port, vc);
        let bubble_channels = &self.plan.bubble_channels;
        if !bubble_channels.has(vc.into()) {
            return credits;
        }
        let free = self.outputs.slots.free(bubble_channels, port, vc.into(), credits);
        credits.min(if room == Room::Two { free.saturating_sub(1) } else { free })
    }

    /// Counts the packets of a row that was sent through an exit.
    #[inline]
    fn note_sent(&mut self, input: usize, exit: Exit, row: Row) {
        if row.packets == 0 {
            return;
        }

        if self.plan.bubble_channels.has(exit.vc.into()) {
            // On links that take no time, each packet takes one credit.
            self.outputs.slots.take_row(&self.plan.bubble_channels, exit.port, exit.vc.into(), row.packets);
        }
        let choice = Choice::only(&self.plan.rules, input);
        self.outputs.ports[usize::from(exit.port)].count_row(choice, row.packets);
        self.heads.inputs[input].counters.add(row);
    }
}
