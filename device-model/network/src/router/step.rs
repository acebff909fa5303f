//! The work of a step: decisions on new packets, deliveries, and the outputs.

use nicforge_core::{
    cache::{prefetch, prefetch_entry},
    time::Nanos,
};

use super::{
    Candidates, Decision, Fifos, Links, Outcome, Policy, RoutedPacket, Router, Source, Targets,
    requests::{Inputs, bits, next_in_turn},
};

/// Nanoseconds after which a router tries again whose fabric had no packet for a copy.
const STARVED_RETRY: u64 = 1000;

impl<P: Policy, K: RoutedPacket> Router<P, K> {
    /// Prefetches the tables that the next [`Router::step`] will use. `arrived` are the inputs with
    /// a new packet, and `freed` the ports at which a wait has ended. The tables of a large network
    /// are in no cache.
    #[inline(always)]
    pub fn prefetch(&self, arrived: u64, freed: u64) {
        prefetch(&*self.heads.exits);
        let mut inputs = arrived & !self.heads.decided;
        while inputs != 0 {
            prefetch_entry::<1, _>(&self.heads.inputs, inputs.trailing_zeros() as usize);
            inputs &= inputs - 1;
        }
        let mut ports = freed & self.outputs.wanted;
        while ports != 0 {
            prefetch_entry::<1, _>(&self.outputs.ports, ports.trailing_zeros() as usize);
            ports &= ports - 1;
        }
    }

    /// Moves packets, until none can move or `budget` are moved. The last round may move more.
    #[inline]
    pub fn step<L: Links<Packet = K>>(&mut self, ports: &mut L, budget: u32) -> Outcome {
        self.counters.lacked_packets = false;
        self.outputs.update_blocked(ports);

        let mut moved = 0;
        self.heads.exposed = 0;
        let mut new = self.new_inputs(ports);
        let has_more = loop {
            let before = moved;
            if !L::TAKES_TIME && self.plan.rules.has_rows && (new != 0 || self.outputs.open() != 0) {
                let (packets, others) = self.move_rows(ports, new, budget.saturating_sub(moved).max(1));
                (moved, new) = (moved + packets, others);
            }
            if new != 0 {
                moved += self.decide_on_heads(ports, new);
            }
            if (self.heads.local | self.heads.dropped) & self.heads.arrived != 0 {
                moved += self.deliver(ports);
            }
            if self.outputs.open() != 0 {
                moved += self.serve_outputs(ports);
            }

            if moved == before {
                break false;
            }
            if moved >= budget.max(1) {
                break true;
            }

            // A packet behind one that has left is the head of its input now, and may go on.
            new = std::mem::take(&mut self.heads.exposed);
            if new == 0 && self.outputs.open() == 0 && !self.counters.lacked_packets {
                break false;
            }
        };

        Outcome { moved, has_more, wake: self.next_wake(ports.now()) }
    }

    /// Decides on the packet whose head has arrived at an input, ahead of the next step. Returns
    /// whether the router needs a step for it now. A packet that waits for a wire or for its tail
    /// needs none until the function is woken.
    ///
    /// The call is optional. It costs less than a step. Routers whose policy has packets with
    /// several exits to choose from decide in their steps alone.
    #[inline]
    pub fn arrive<L: Links<Packet = K>>(&mut self, ports: &mut L, input: u8) -> bool {
        let (layout, input) = (&self.plan.layout, usize::from(input));
        let is_decided = input >= layout.links || self.heads.decided >> input & 1 == 1;
        if (!L::TAKES_TIME && self.plan.rules.has_rows) || self.policy.has_candidates() || is_decided {
            return true;
        }

        let from = layout.link_input(input);
        let source = Source::Link { port: from.port, vc: from.vc };
        let Some((word, bytes)) = ports.route_head(from) else { return true };
        if let Some(exit) = self.policy.only_exit(word, source)
            && exit.port < layout.ports
            && exit.vc < layout.vcs
        {
            self.outputs.add_one(input, exit);
            self.heads.become_single(input, exit, ports.now(), bytes);
            return !self.outputs.is_busy(exit.port) && self.await_output(ports, exit.port);
        }

        self.arrive_other(ports, (input, source), (word, bytes))
    }

    /// Does the work of [`Router::arrive`] for a packet that need not have one exit.
    #[inline(never)]
    fn arrive_other<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        (input, source): (usize, Source),
        (word, bytes): (u64, u32),
    ) -> bool {
        let is_local = self.policy.is_local(word, source);
        let is_to_deliver = is_local && self.decide_to_deliver(ports, (input, source), (word, bytes));
        !is_to_deliver || self.heads.arrived >> input & 1 == 1
    }

    /// Returns the time at which the router has to run again.
    #[inline]
    fn next_wake(&mut self, now: Nanos) -> Nanos {
        if self.fifos.complete <= now {
            self.fifos.update_complete(now);
        }

        let Fifos { complete, .. } = &self.fifos;
        if self.counters.lacked_packets { (*complete).min(now.after(STARVED_RETRY)) } else { *complete }
    }

    /// Returns the inputs that have a first packet without a decision. Records those whose first
    /// packet has arrived as a whole.
    #[inline(always)]
    fn new_inputs<L: Links<Packet = K>>(&mut self, ports: &L) -> Inputs {
        let layout = &self.plan.layout;
        let [whole, heads] = ports.arrived_inputs(layout.ports, layout.vcs);
        self.heads.arrived = whole | layout.injection;
        let mut new = (whole | heads) & !self.heads.decided;
        if self.fifos.waiting != 0 && self.fifos.served_until <= ports.now() {
            new |= self.fifos.served(ports.now()) << layout.links;
        }
        new
    }

    /// Decides on packets that have become the first of their input. Returns the number of packets
    /// that have left by that.
    #[inline]
    fn decide_on_heads<L: Links<Packet = K>>(&mut self, ports: &mut L, mut new: Inputs) -> u32 {
        let mut moved = 0;
        while new != 0 {
            let input = new.trailing_zeros() as usize;
            new &= new - 1;
            if self.decide(ports, input) {
                moved += 1;
            }
        }
        moved
    }

    /// Decides on the first packet of an input. Returns whether a packet has left by that.
    #[inline(always)]
    fn decide<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> bool {
        if input >= self.plan.layout.links {
            return self.decide_on_injected(ports, input);
        }
        let from = self.plan.layout.link_input(input);
        let Some(head) = ports.route_head(from) else { return false };
        let source = Source::Link { port: from.port, vc: from.vc };
        self.decide_on(ports, (input, source), head)
    }

    /// Decides on the first packet of an injection FIFO.
    #[inline(never)]
    fn decide_on_injected<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> bool {
        let source = self.plan.layout.source(input);
        let Source::Injection { fifo } = source else { return false };
        self.fifos.waiting &= !(1 << fifo);
        let Some(head) = self.fifos.first(fifo) else { return false };
        self.decide_on(ports, (input, source), head)
    }

    /// Decides on a packet that has become the first of its input. Returns whether a packet has
    /// left by that.
    #[inline(always)]
    fn decide_on<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        (input, source): (usize, Source),
        (word, bytes): (u64, u32),
    ) -> bool {
        // Most packets have one exit. One that does not exist is dropped further down.
        let layout = &self.plan.layout;
        if let Some(exit) = self.policy.only_exit(word, source)
            && exit.port < layout.ports
            && exit.vc < layout.vcs
        {
            self.outputs.add_one(input, exit);
            self.heads.become_single(input, exit, ports.now(), bytes);
            return false;
        }
        self.decide_other(ports, input, (word, bytes))
    }

    /// Decides on a packet that need not have one exit. Returns whether a packet has left by that.
    #[inline(never)]
    fn decide_other<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (word, bytes): (u64, u32),
    ) -> bool {
        let source = self.plan.layout.source(input);
        if self.policy.is_local(word, source) && self.decide_to_deliver(ports, (input, source), (word, bytes))
        {
            return false;
        }
        let mut decision = self.checked(self.policy.decide(word, source));

        let bit = 1 << input;
        let mut fifo = 0;
        match decision {
            Decision::One(_) | Decision::Any(_) | Decision::Many(Targets { local: false, .. }) => {}
            Decision::Drop => self.heads.dropped |= bit,
            Decision::Local | Decision::Many(_) => {
                fifo = self.policy.reception(word, source);
                if usize::from(fifo) < self.fifos.reception.len() {
                    self.heads.local |= bit;
                } else {
                    decision = Decision::Drop;
                    self.heads.dropped |= bit;
                }
            }
        }

        // A packet that is forwarded alone need not arrive as a whole.
        if let Source::Link { .. } = source
            && (self.heads.local | self.heads.dropped) & bit != 0
        {
            let is_whole = ports.await_tail(self.plan.layout.link_input(input));
            self.heads.arrived = self.heads.arrived & !bit | Inputs::from(is_whole) << input;
        }

        self.outputs.add(input, &decision);
        self.heads.become_first(input, decision, ports.now(), bytes, fifo);

        match decision {
            Decision::Any(candidates) => self.serve_least_loaded(ports, &candidates),
            _ => false,
        }
    }

    /// Decides to deliver a packet, if its reception FIFO exists.
    #[inline(always)]
    fn decide_to_deliver<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        (input, source): (usize, Source),
        (word, bytes): (u64, u32),
    ) -> bool {
        let fifo = self.policy.reception(word, source);
        if usize::from(fifo) >= self.fifos.reception.len() {
            return false;
        }

        self.heads.local |= 1 << input;
        self.heads.become_first(input, Decision::Local, ports.now(), bytes, fifo);
        if let Source::Link { .. } = source {
            let is_whole = ports.await_tail(self.plan.layout.link_input(input));
            self.heads.arrived = self.heads.arrived & !(1 << input) | Inputs::from(is_whole) << input;
        }
        true
    }

    /// Returns a decision without the ports and virtual channels that the router does not have.
    #[inline]
    fn checked(&self, decision: Decision) -> Decision {
        let (ports, vcs) = (self.plan.layout.ports, self.plan.layout.vcs);
        match decision {
            Decision::One(exit) if exit.port >= ports || exit.vc >= vcs => Decision::Drop,
            Decision::Any(candidates) => self.checked_candidates(candidates),
            Decision::Many(targets) => {
                let known = targets.ports & self.plan.layout.all_ports;
                match (known, targets.local) {
                    (0, true) => Decision::Local,
                    (0, false) => Decision::Drop,
                    _ if targets.vc >= vcs => Decision::Drop,
                    _ => Decision::Many(Targets { ports: known, ..targets }),
                }
            }
            other => other,
        }
    }

    /// Returns candidates without the ports and virtual channels that the router does not have.
    #[inline(never)]
    fn checked_candidates(&self, candidates: Candidates) -> Decision {
        let vcs = self.plan.layout.vcs;
        let known = ((1_u32 << vcs) - 1) as u16;
        let escape = candidates.escape.filter(|exit| exit.port < self.plan.layout.ports && exit.vc < vcs);
        let dynamic = candidates.vcs & known;
        // Without a channel, the ports would be requested for nothing.
        let ports = if dynamic == 0 { 0 } else { candidates.ports & self.plan.layout.all_ports };

        if ports == 0 && escape.is_none() {
            return Decision::Drop;
        }
        Decision::Any(Candidates { ports, vcs: dynamic, escape })
    }

    /// Serves the least loaded port of a new packet's candidates first. Returns whether it has sent
    /// a packet.
    #[inline(never)]
    fn serve_least_loaded<L: Links<Packet = K>>(&mut self, ports: &mut L, candidates: &Candidates) -> bool {
        let idle = self.outputs.maybe_idle(candidates.ports);
        if idle & idle.wrapping_sub(1) == 0 {
            // With one port or none there is no choice, and the outputs follow.
            return false;
        }

        let mut best = None;
        for port in bits(idle) {
            let vcs = bits(candidates.vcs.into());
            let credits = vcs.map(|vc| ports.credits(port, vc)).max().unwrap_or(0);
            if best.is_none_or(|(most, _)| credits > most) {
                best = Some((credits, port));
            }
        }
        best.is_some_and(|(_, port)| self.serve_output(ports, port))
    }

    /// Delivers packets whose tails have arrived, and drops those without a route. Returns the
    /// number of packets that have left their input or have been copied.
    #[inline(never)]
    fn deliver<L: Links<Packet = K>>(&mut self, ports: &mut L) -> u32 {
        let complete = self.heads.arrived;
        let dropped = if self.heads.dropped == 0 { 0 } else { self.drop_packets(ports, complete) };
        dropped + self.deliver_packets(ports, complete)
    }

    /// Delivers packets of inputs whose first packet is complete.
    fn deliver_packets<L: Links<Packet = K>>(&mut self, ports: &mut L, complete: Inputs) -> u32 {
        let mut delivered = 0;
        let mut full_fifos = 0_u64;
        let mut waiting = self.heads.local & complete;

        if waiting & waiting.wrapping_sub(1) == 0 && waiting != 0 {
            return u32::from(self.deliver_from(ports, waiting.trailing_zeros() as usize));
        }
        while waiting != 0 {
            // Inputs of one reception FIFO take turns.
            let first = waiting.trailing_zeros() as usize;
            let fifo = self.heads.inputs[first].fifo;
            let same = bits(waiting)
                .filter(|&input| self.heads.inputs[usize::from(input)].fifo == fifo)
                .fold(0, |set, input| set | 1 << input);
            let input = next_in_turn(same, self.fifos.reception[usize::from(fifo)].last);

            if full_fifos >> fifo & 1 == 0 && self.deliver_from(ports, input) {
                delivered += 1;
                waiting &= !(1 << input);
            } else {
                full_fifos |= 1 << fifo;
                waiting &= !same;
            }
        }
        delivered
    }

    /// Delivers the first packet of an input, which is complete, or a copy of it. Returns false if
    /// that is not possible now.
    #[inline]
    fn deliver_from<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> bool {
        let now = ports.now();
        let decision = self.heads.decision(input);
        let head = &mut self.heads.inputs[input];
        let fifo = usize::from(head.fifo);
        if !self.fifos.reception[fifo].has_room(head.bytes) {
            self.counters.router.full += u64::from(!head.found_full);
            head.found_full = true;
            return false;
        }

        if decision != Decision::Local {
            return self.deliver_copy(ports, input, fifo);
        }

        let Some(packet) = self.take_first(ports, input) else { return false };
        self.put_delivered((input, fifo), packet, now);
        // The packet has wanted no output.
        self.heads.leave(input, now);
        self.show_next_injected(self.plan.layout.source(input), input, now);
        true
    }

    /// Delivers a copy of the first packet of an input, for which its reception FIFO has room.
    #[inline(never)]
    fn deliver_copy<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize, fifo: usize) -> bool {
        let Some(copy) = self.copy_first(ports, input) else { return false };
        self.put_delivered((input, fifo), copy, ports.now());
        true
    }

    /// Puts a packet of an input into its reception FIFO, which has room for it.
    #[inline(always)]
    fn put_delivered(&mut self, (input, fifo): (usize, usize), packet: K, now: Nanos) {
        let queue = &mut self.fifos.reception[fifo];
        queue.last = input as u8;
        queue.push(packet, now, now);
        self.fifos.received |= 1 << fifo;
        self.counters.router.delivered += 1;
        self.heads.local &= !(1 << input);
    }

    /// Drops the first packets without a route of inputs whose first packet is complete.
    fn drop_packets<L: Links<Packet = K>>(&mut self, ports: &mut L, complete: Inputs) -> u32 {
        let mut dropped = 0;
        for input in bits(self.heads.dropped & complete) {
            let input = usize::from(input);
            let Some(packet) = self.take_first(ports, input) else { continue };
            ports.recycle(packet);
            self.heads.dropped &= !(1 << input);
            self.leave(input, ports.now());
            self.counters.router.dropped += 1;
            dropped += 1;
        }
        dropped
    }

    /// Takes the first packet of an input, if it is complete.
    #[inline(always)]
    fn take_first<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> Option<K> {
        match self.plan.layout.source(input) {
            Source::Link { .. } => {
                let (packet, has_next) = ports.take_first(self.plan.layout.link_input(input))?;
                if has_next {
                    self.heads.exposed |= 1 << input;
                }
                Some(packet)
            }
            Source::Injection { fifo } => self.fifos.injection[usize::from(fifo)].pop(ports.now()),
        }
    }

    /// Returns a copy of the first packet of an input, whose head has arrived. Returns `None` if
    /// the fabric has no packet; [`Router::step`] then requests a retry.
    pub(super) fn copy_first<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> Option<K> {
        let source = self.plan.layout.source(input);
        let copy = match source {
            Source::Link { port, vc } => ports.copy_head(port, vc),
            Source::Injection { fifo } => {
                self.fifos.injection[usize::from(fifo)].front().and_then(|packet| ports.copy(packet))
            }
        };
        if copy.is_none() {
            self.counters.lacked_packets = true;
            self.counters.router.starved += 1;
        }
        copy
    }

    /// Records that the first packet of an input has left it.
    #[inline(always)]
    pub(super) fn leave(&mut self, input: usize, now: Nanos) {
        self.outputs.remove(input, &self.heads.decision(input));
        self.heads.leave(input, now);
        self.show_next_injected(self.plan.layout.source(input), input, now);
    }

    /// Considers the next packet of an injection FIFO, if the first packet of one has left.
    #[inline(always)]
    pub(super) fn show_next_injected(&mut self, source: Source, input: usize, now: Nanos) {
        if let Source::Injection { fifo } = source
            && !self.fifos.injection[usize::from(fifo)].is_empty()
        {
            let busy_until = self.fifos.add_waiting(fifo);
            if busy_until <= now {
                self.heads.exposed |= 1 << input;
            }
        }
    }
}
