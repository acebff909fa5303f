//! The grants: inputs that have room behind an output, and the transmission.

use nicforge_core::fabric::PortChannel;

use super::{
    Candidates, Decision, Exit, Links, Policy, Room, RoutedPacket, Router, Source, Targets,
    plan::Plan,
    requests::{Inputs, bits},
};

/// The inputs that a port can serve now.
#[derive(Clone, Copy, Debug)]
struct EligibleInputs {
    inputs: Inputs,
    /// There are packets for which the port is the escape alone, and which have room elsewhere.
    has_early_escapes: bool,
    /// The virtual channel with the most room among those of adaptive packets, if any has enough.
    least_loaded: Option<u8>,
}

impl<P: Policy, K: RoutedPacket> Router<P, K> {
    /// Sends packets through all ports that are not blocked. Returns their number.
    #[inline]
    pub(super) fn serve_outputs<L: Links<Packet = K>>(&mut self, ports: &mut L) -> u32 {
        let mut sent = 0;
        let mut open = self.outputs.open();
        while open != 0 {
            let port = open.trailing_zeros() as u8;
            if self.await_output(ports, port) && self.serve_idle_output(ports, port) {
                sent += 1;
                open &= self.outputs.wanted;
            } else {
                open &= open - 1;
            }
        }
        sent
    }

    /// Returns whether the wire of a port is idle. The function is woken when it falls idle.
    #[inline(always)]
    pub(super) fn await_output<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> bool {
        let idle_at = ports.await_wire(port);
        let is_idle = idle_at <= ports.now();
        if !is_idle {
            self.outputs.note_busy(idle_at, port);
        }
        is_idle
    }

    /// Sends a packet through a port that inputs want, if its wire is idle. Returns false if there
    /// is none to send now; the function is then woken when that may have changed.
    pub(super) fn serve_output<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> bool {
        self.await_output(ports, port) && self.serve_idle_output(ports, port)
    }

    /// Sends a packet as [`Router::serve_output`] does. The wire is idle.
    #[inline(always)]
    fn serve_idle_output<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> bool {
        // The adaptive channels are those that packets have wanted so far.
        (self.outputs.adaptive_vcs == 0 && self.send_fixed(ports, port)) || self.serve_one_of(ports, port)
    }

    /// Sends the packet of one of the inputs that want a port. The wire is idle. Returns false if
    /// none has room.
    #[inline(never)]
    fn serve_one_of<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> bool {
        let eligible = self.inputs_with_room(ports, port);
        if eligible.inputs == 0 && !eligible.has_early_escapes {
            self.outputs.note_full(port);
        }

        let mut inputs = eligible.inputs;
        while inputs != 0 {
            let choice = self.outputs.choose(&self.plan.rules, inputs, port);
            if self.send_from(ports, choice.input.into(), port, eligible.least_loaded) {
                self.outputs.ports[usize::from(port)].count_sent(choice);
                return true;
            }
            inputs &= !(1 << choice.input);
        }

        self.request_room(ports, port);
        false
    }

    /// Returns the inputs that want a port and have room behind it.
    #[inline]
    fn inputs_with_room<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> EligibleInputs {
        if self.outputs.adaptive_vcs == 0 {
            let requesting = self.outputs.fixed(port);
            let inputs = self.fixed_inputs(ports, port, requesting);
            EligibleInputs { inputs, has_early_escapes: false, least_loaded: None }
        } else {
            self.eligible_with_adaptive(ports, port)
        }
    }

    /// Returns the inputs that a port can serve now, in a router that has had adaptive packets.
    #[inline(never)]
    fn eligible_with_adaptive<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> EligibleInputs {
        let (fixed_vcs, adaptive_vcs) = self.outputs.requested_vcs(&self.heads.exits, port);
        let (mut open, mut best) = (0, None);
        for vc in bits(adaptive_vcs.into()) {
            let credits = ports.update_credits(port, vc);
            if credits >= self.plan.longest_credits {
                open |= 1 << vc;
                if best.is_none_or(|(most, _)| credits > most) {
                    best = Some((credits, vc));
                }
            }
        }

        let mut inputs = self.adaptive_with_room(port, open, adaptive_vcs);
        let mut early = 0;
        for vc in bits(fixed_vcs.into()) {
            // Packets that have room on an adaptive channel need no other.
            let fixed = self.outputs.fixed(port) & !inputs;
            let requesting = self.heads.exits.matching(fixed, |exit| exit.vc == vc);
            if requesting != 0 {
                let with_room = self.fixed_with_room(ports, port, vc, requesting);
                early |= self.early_escapes(ports, port, with_room);
                inputs |= with_room & !early;
            }
        }

        EligibleInputs { inputs, has_early_escapes: early != 0, least_loaded: best.map(|(_, vc)| vc) }
    }

    /// Returns those of the inputs that want a port which have room behind it, in a router that has
    /// no adaptive packets.
    #[inline(never)]
    fn fixed_inputs<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8, requesting: Inputs) -> Inputs {
        let (mut inputs, mut left) = (0, requesting);
        while left != 0 {
            let Exit { vc, .. } = self.heads.exits.of(left.trailing_zeros() as usize);
            let of_vc = self.heads.exits.matching(left, |exit| exit.vc == vc);
            inputs |= self.fixed_with_room(ports, port, vc, of_vc);
            left &= !of_vc;
        }
        inputs
    }

    /// Returns those inputs for which a port is the escape alone, and which have room on an
    /// adaptive channel of another port. They wait for its wire.
    #[inline]
    fn early_escapes<L: Links<Packet = K>>(&self, ports: &mut L, port: u8, inputs: Inputs) -> Inputs {
        if self.outputs.adaptive_vcs == 0 {
            return 0;
        }

        let mut early = 0;
        for input in bits(inputs) {
            if let Decision::Any(candidates) = self.heads.decision(input.into())
                && candidates.ports >> port & 1 == 0
            {
                let vcs = || bits(candidates.vcs.into());
                let has_room = bits(candidates.ports)
                    .any(|port| vcs().any(|vc| ports.update_credits(port, vc) >= self.plan.longest_credits));
                early |= u64::from(has_room) << input;
            }
        }
        early
    }

    /// Returns those inputs that have room on a virtual channel, which they want as their exit.
    #[inline(always)]
    fn fixed_with_room<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        port: u8,
        vc: u8,
        requesting: Inputs,
    ) -> Inputs {
        let bubble_channels = &self.plan.bubble_channels;
        if !bubble_channels.has(vc.into()) {
            return if ports.update_room(port, vc, self.plan.longest_credits) { requesting } else { 0 };
        }
        let credits = ports.update_credits(port, vc);
        match self.outputs.slots.free(bubble_channels, port, vc.into(), credits) {
            0 => 0,
            1 => self.heads.exits.matching(requesting, |exit| exit.room == Room::One),
            _ => requesting,
        }
    }

    /// Returns the inputs that have a port among their candidates and want one of its virtual
    /// channels that are open. `all` are those that any adaptive packet has requested.
    #[inline]
    fn adaptive_with_room(&self, port: u8, open: u16, all: u16) -> Inputs {
        let inputs = self.outputs.adaptive(port);
        if open == 0 || open == all {
            return if open == 0 { 0 } else { inputs };
        }

        let has_room = |input: &u8| match self.heads.decision(usize::from(*input)) {
            Decision::Any(candidates) => candidates.vcs & open != 0,
            _ => false,
        };
        bits(inputs).filter(has_room).fold(0, |set, input| set | 1 << input)
    }

    /// Asks that the router's node is woken when the virtual channels that inputs want have more
    /// room.
    #[inline(never)]
    pub(super) fn request_room<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) {
        let (fixed_vcs, adaptive_vcs) = self.outputs.requested_vcs(&self.heads.exits, port);
        for vc in bits((fixed_vcs | adaptive_vcs).into()) {
            self.request_room_on(ports, port, vc);
        }
    }

    /// Asks that the router's node is woken when a virtual channel has more room.
    #[inline]
    pub(super) fn request_room_on<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8, vc: u8) {
        let Plan { bubble_channels, longest_credits, .. } = &*self.plan;
        let channel = usize::from(vc);
        if !bubble_channels.has(channel) {
            ports.request_credits(port, vc, *longest_credits);
            return;
        }

        let credits = ports.update_credits(port, vc);
        let slots = &mut self.outputs.slots;
        let free = slots.free(bubble_channels, port, channel, credits);
        // By the bubble rule no packet needs more than two free slots.
        if free < 2 {
            let needed = slots.credits_until(bubble_channels, (port, channel), credits, free + 1);
            ports.request_credits(port, vc, needed);
        }
    }

    /// Sends the first packet of an input through a port, which it wants and where it has room.
    #[inline]
    fn send_from<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        port: u8,
        least_loaded: Option<u8>,
    ) -> bool {
        match self.heads.decision(input) {
            Decision::One(exit) => self.move_to(ports, input, port, exit.vc),
            decision => self.send_one_of(ports, input, (port, decision), least_loaded),
        }
    }

    /// Sends a packet that has several exits through one of them.
    #[inline(never)]
    fn send_one_of<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (port, decision): (u8, Decision),
        least_loaded: Option<u8>,
    ) -> bool {
        match decision {
            Decision::Any(candidates) => {
                let wanted = least_loaded
                    .filter(|&vc| candidates.vcs >> vc & 1 == 1 && candidates.ports >> port & 1 == 1);
                let Some(vc) = wanted.or_else(|| self.vc_for(ports, input, port, &candidates)) else {
                    return false;
                };
                self.move_to(ports, input, port, vc)
            }
            Decision::Many(targets) => self.send_to_many(ports, input, port, targets),
            Decision::One(_) | Decision::Local | Decision::Drop => false,
        }
    }

    /// Returns the virtual channel of a port on which a packet with candidates leaves, if it does
    /// not take the least loaded one: another of its own with the most room, or the escape channel.
    #[inline(never)]
    fn vc_for<L: Links<Packet = K>>(
        &mut self,
        ports: &L,
        input: usize,
        port: u8,
        candidates: &Candidates,
    ) -> Option<u8> {
        let own = if candidates.ports >> port & 1 == 1 { candidates.vcs } else { 0 };
        let with_credits = bits(own.into()).map(|vc| (ports.credits(port, vc), vc));
        let with_room = with_credits.filter(|&(credits, _)| credits >= self.plan.longest_credits);
        if let Some((_, vc)) = with_room.max_by_key(|&(credits, _)| credits) {
            return Some(vc);
        }

        // The port was found to have room for the packet, so the escape channel has it.
        let escape = candidates.escape.filter(|exit| exit.port == port)?;
        let came_by = self.plan.layout.source(input);
        let leaves = !matches!(came_by, Source::Link { vc, .. } if vc == escape.vc);
        self.counters.router.escaped += u64::from(leaves);
        Some(escape.vc)
    }

    /// Moves the first packet of an input to a virtual channel of a port.
    #[inline(never)]
    fn move_to<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize, port: u8, vc: u8) -> bool {
        let to = PortChannel { port, channel: vc.into() };
        let has_bubble = self.plan.bubble_channels.has(to.channel);
        let credits = if has_bubble { ports.credits(port, vc) } else { 0 };
        let is_sent = match self.plan.layout.source(input) {
            Source::Link { port, vc } => {
                let has_next = ports.forward_first(PortChannel { port, channel: vc.into() }, to);
                self.heads.exposed |= Inputs::from(has_next == Some(true)) << input;
                has_next.is_some()
            }
            Source::Injection { fifo } => self.send_injected(ports, fifo, to),
        };

        if is_sent {
            if has_bubble {
                let taken = credits - ports.credits(port, vc);
                self.outputs.slots.take(&self.plan.bubble_channels, port, to.channel, taken);
            }
            self.leave(input, ports.now());
        }
        is_sent
    }

    /// Sends the first packet of an injection FIFO.
    #[inline(always)]
    pub(super) fn send_injected<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        fifo: u8,
        to: PortChannel,
    ) -> bool {
        let now = ports.now();
        let queue = &mut self.fifos.injection[usize::from(fifo)];
        let Some(packet) = queue.pop(now) else { return false };

        match ports.send(to, packet) {
            Ok(()) => {
                // The node is woken when the place of the packet is free.
                queue.serve_until(ports.await_wire(to.port));
                true
            }
            Err(unsent) => {
                queue.put_back(unsent, now);
                false
            }
        }
    }

    /// Sends a packet with several targets through one port: a copy, or the packet itself if this
    /// is the last target.
    fn send_to_many<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        port: u8,
        targets: Targets,
    ) -> bool {
        if targets.ports != 1 << port {
            return self.send_copy(ports, input, port, targets);
        }

        let waits_for_delivery = self.heads.local >> input & 1 == 1;
        if waits_for_delivery && !self.deliver_ahead(ports, input) {
            return false;
        }
        self.move_to(ports, input, port, targets.vc)
    }

    /// Sends a copy of the first packet of an input through one of several ports.
    fn send_copy<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        port: u8,
        targets: Targets,
    ) -> bool {
        let to = PortChannel { port, channel: targets.vc.into() };
        let credits = ports.credits(port, targets.vc);
        let Some(copy) = self.copy_first(ports, input) else { return false };

        if let Err(unsent) = ports.send(to, copy) {
            ports.recycle(unsent);
            return false;
        }

        if self.plan.bubble_channels.has(to.channel) {
            let taken = credits - ports.credits(port, targets.vc);
            self.outputs.slots.take(&self.plan.bubble_channels, port, to.channel, taken);
        }
        self.outputs.forget(input, port);
        let left = Targets { ports: targets.ports & !(1 << port), ..targets };
        self.heads.inputs[input].decision = Decision::Many(left);
        true
    }

    /// Delivers a copy of a packet whose tail has not arrived. It is complete when the tail has.
    fn deliver_ahead<L: Links<Packet = K>>(&mut self, ports: &mut L, input: usize) -> bool {
        let now = ports.now();
        let Source::Link { port, vc } = self.plan.layout.source(input) else { return false };
        let Some(complete) = ports.tail_due(port, vc) else { return false };

        let (fifo, bytes) = (usize::from(self.heads.inputs[input].fifo), self.heads.inputs[input].bytes);
        if !self.fifos.reception[fifo].has_room(bytes) {
            return false;
        }
        let Some(copy) = self.copy_first(ports, input) else { return false };

        self.fifos.reception[fifo].push(copy, complete, now);
        self.fifos.received |= 1 << fifo;
        self.fifos.complete = self.fifos.complete.min(complete);
        self.counters.router.delivered += 1;
        self.heads.local &= !(1 << input);
        true
    }
}
