//! The work of a collective unit on a packet up and a packet down.

use nicforge_core::{
    fabric::{Packet, Ports},
    time::Nanos,
};

use super::{
    CollectiveWord, Flags, Kind, alu,
    unit::{CollectiveUnit, OWN_SHIFT, PacketInService, Slot, inputs_of},
};
use crate::router::RoutedPacket;

impl CollectiveUnit {
    /// Begins the work on a packet that came down, if there is one and the unit works on no other.
    /// Returns the number of packets taken, 0 or 1.
    pub(super) fn begin_down(&mut self, ports: &mut Ports<'_>) -> u32 {
        if self.down.is_some() {
            return 0;
        }

        let inputs = (0..self.link_slots.len()).map(|index| 1 << index);
        let mut waiting = inputs.filter_map(|input| Some((input, self.waiting(input)?)));
        let Some((input, word)) = waiting.find(|(_, word)| word.is_down) else { return 0 };
        let Some((packet, complete)) = self.take_operand(ports, input) else { return 0 };

        let [_, delay_down] = self.spec.delays;
        let (due, complete) = (ports.now().after(delay_down), complete.after(delay_down));
        self.down = Some(self.service_down(packet, &word, due, complete));
        1
    }

    /// Returns the service of a packet on its way down: it goes to the inputs of its class's route,
    /// and to the node itself if the result is for it. `due` and `complete` are those of
    /// [`PacketInService`].
    fn service_down(
        &self,
        packet: Packet,
        word: &CollectiveWord,
        due: Nanos,
        complete: Nanos,
    ) -> PacketInService {
        let route = &self.routes[usize::from(word.class)];
        let is_for_this_node = word.kind != Kind::Reduce || word.target == self.spec.node;
        PacketInService {
            packet,
            ports: route.inputs,
            vc: self.spec.vcs[usize::from(route.channel)].into(),
            fifo: route.fifo.into(),
            is_local: route.is_member && is_for_this_node,
            due,
            complete,
        }
    }

    /// Sends and delivers copies of the packet on its way down, and ends its service after the last
    /// one. Returns the number of copies.
    pub(super) fn advance_down(&mut self, ports: &mut Ports<'_>) -> u32 {
        let Some(mut active) = self.down.take() else { return 0 };
        let now = ports.now();
        let mut moved = 0;

        if active.due <= now {
            moved += self.send_copies(ports, &mut active);
            moved += u32::from(self.deliver_copy(ports, &mut active));
        }

        if active.ports == 0 && !active.is_local {
            ports.recycle(active.packet);
        } else {
            self.down = Some(active);
        }
        moved
    }

    /// Sends copies of the packet on its way down by those of its ports that have credits and an
    /// idle wire. Returns the number of copies.
    fn send_copies(&mut self, ports: &mut Ports<'_>, active: &mut PacketInService) -> u32 {
        let mut sent = 0;
        let targets = active.ports;
        for port in (0..self.spec.ports).filter(|port| targets >> port & 1 == 1) {
            if !self.can_send(ports, port, active.vc) {
                continue;
            }
            let Ok(copy) = ports.copy_packet(&active.packet) else {
                self.starved = true;
                break;
            };
            if let Err(unsent) = ports.send(port, active.vc, copy) {
                ports.recycle(unsent.packet);
                continue;
            }
            active.ports &= !(1 << port);
            self.counters.sent += 1;
            sent += 1;
        }
        sent
    }

    /// Delivers a copy of the packet on its way down to this node, if that is still to be done and
    /// the reception FIFO has room. Returns whether it has delivered one.
    fn deliver_copy(&mut self, ports: &mut Ports<'_>, active: &mut PacketInService) -> bool {
        if !active.is_local || !self.reception[active.fifo].has_room(active.packet.wire_bytes()) {
            return false;
        }
        let Ok(copy) = ports.copy_packet(&active.packet) else {
            self.starved = true;
            return false;
        };

        self.reception[active.fifo].push(copy, active.complete, ports.now());
        self.counters.delivered += 1;
        active.is_local = false;
        true
    }

    /// Returns whether a port has an idle wire, and credits for the longest packet. If not, the
    /// device is woken when it has.
    fn can_send(&self, ports: &mut Ports<'_>, port: u8, vc: usize) -> bool {
        ports.request_wire(port) && ports.request_credits(port, vc, self.longest_credits)
    }

    /// Begins an operation whose operands are all there, if the unit works on no other. Operations
    /// of a lower FIFO go first. Returns the number of packets taken.
    pub(super) fn begin_up(&mut self, ports: &mut Ports<'_>) -> u32 {
        self.release_used_own(ports);
        if self.up.is_some() {
            return 0;
        }

        let own = (0..self.own_slots.len()).map(|fifo| 1 << (OWN_SHIFT as usize + fifo));
        let inputs = own.chain((0..self.link_slots.len()).map(|index| 1 << index));
        let ready = inputs.filter_map(|input| {
            let word = self.waiting(input).filter(|word| !word.is_down)?;
            let operands = if word.kind == Kind::Broadcast { input } else { self.all_operands(&word)? };
            Some((operands, word))
        });

        let first = ready.min_by_key(|(_, word)| self.routes[usize::from(word.class)].fifo);
        match first {
            Some((operands, word)) => self.combine(ports, operands, word),
            None => 0,
        }
    }

    /// Removes the packets of injection FIFOs that no class route expects: their slots are used.
    fn release_used_own(&mut self, ports: &mut Ports<'_>) {
        for (slot, fifo) in self.own_slots.iter_mut().zip(&mut self.injection) {
            if matches!(slot, Slot::Used)
                && let Some(packet) = fifo.pop(ports.now())
            {
                ports.recycle(packet);
                *slot = Slot::Empty;
            }
        }
    }

    /// Returns the set of inputs with the operands of the class of `word`, if each of them has a
    /// packet of a reduction of this class.
    fn all_operands(&self, word: &CollectiveWord) -> Option<u64> {
        let operands = self.operands(&self.routes[usize::from(word.class)]);
        let is_there = |input: u64| {
            let operand = self.waiting(input);
            operand.is_some_and(|other| {
                !other.is_down && other.class == word.class && other.kind != Kind::Broadcast
            })
        };
        inputs_of(operands).all(is_there).then_some(operands)
    }

    /// Combines the packets of a set of inputs, the node's own one first and then by port, and
    /// begins the way up of the result. Returns the number of packets taken.
    fn combine(&mut self, ports: &mut Ports<'_>, operands: u64, mut word: CollectiveWord) -> u32 {
        let own = operands >> OWN_SHIFT << OWN_SHIFT;
        let in_order = inputs_of(own).chain(inputs_of(operands & !own));
        let mut result: Option<Packet> = None;
        let mut complete = ports.now();
        let (mut flags, mut taken) = (Flags::default(), 0);

        for input in in_order {
            let Some(other) = self.waiting(input) else { continue };
            // The first operand is the packet into which the others are combined.
            let Some(mut sum) = result.take() else {
                let Some((first, tail)) = self.take_operand(ports, input) else { return 0 };
                (word, complete, taken) = (other, complete.max(tail), 1);
                result = Some(first);
                continue;
            };

            let (exceptions, tail) = self.add_operand(ports, input, &other, &word, &mut sum);
            flags |= exceptions;
            word.flags |= other.flags;
            complete = complete.max(tail);
            taken += 1;
            result = Some(sum);
        }

        let Some(packet) = result else { return 0 };
        self.counters.combined += u64::from(taken > 1);
        self.counters.exceptions += u64::from(flags != Flags::default());
        self.counters.not_a_number += u64::from(flags.not_a_number);
        self.counters.overflow += u64::from(flags.overflow);
        word.flags |= flags;

        self.up = Some(self.service_up(packet, &word, ports.now(), complete));
        taken
    }

    /// Returns the service of a combined packet on its way up, with its new header. Its tail is
    /// here at `complete`. At the root, it has no port.
    fn service_up(
        &self,
        mut packet: Packet,
        word: &CollectiveWord,
        now: Nanos,
        complete: Nanos,
    ) -> PacketInService {
        let route = &self.routes[usize::from(word.class)];
        let [delay_up, _] = self.spec.delays;
        packet.header = word.bits();
        PacketInService {
            packet,
            ports: route.output.map_or(0, |port| 1 << port),
            vc: self.spec.vcs[usize::from(route.channel)].into(),
            fifo: route.fifo.into(),
            is_local: false,
            due: now.after(delay_up).max(self.up_free),
            complete: complete.after(delay_up),
        }
    }

    /// Takes the packet of an input, with the time at which its tail is here. A packet whose tail
    /// has not arrived stays in its buffer, and the caller gets a copy. Returns `None` if the
    /// fabric has no memory for the copy.
    fn take_operand(&mut self, ports: &mut Ports<'_>, input: u64) -> Option<(Packet, Nanos)> {
        let now = ports.now();
        let index = input.trailing_zeros();
        if let Some(fifo) = index.checked_sub(OWN_SHIFT) {
            self.own_slots[fifo as usize] = Slot::Empty;
            return Some((self.injection[fifo as usize].pop(now)?, now));
        }

        let index = index as usize;
        let (port, vc) = self.port_and_vc(index);
        let Some(tail) = ports.tail_due(port, vc) else {
            let packet = ports.take(port, vc)?;
            self.link_slots[index] = Slot::Empty;
            return Some((packet, now));
        };

        let Some(copy) = ports.copy_head(port, vc) else {
            self.starved = true;
            return None;
        };
        self.link_slots[index] = Slot::Used;
        Some((copy, tail))
    }

    /// Combines the packet of an input, whose word is `other`, into `sum`, and counts it if it
    /// differs from the first operand in length or operation. Returns the exceptions, and the time
    /// at which the packet's tail is here.
    fn add_operand(
        &mut self,
        ports: &mut Ports<'_>,
        input: u64,
        other: &CollectiveWord,
        word: &CollectiveWord,
        sum: &mut Packet,
    ) -> (Flags, Nanos) {
        let now = ports.now();
        let index = input.trailing_zeros() as usize;
        let (port, vc) = self.port_and_vc(index);
        let tail = ports.tail_due(port, vc).unwrap_or(now);

        let mut flags = Flags::default();
        let mut is_alike =
            (other.operation, other.operand, other.kind) == (word.operation, word.operand, word.kind);
        if let Some(packet) = ports.peek_head(port, vc) {
            is_alike &= packet.len() == sum.len();
            let prefix = self.spec.prefix;
            if let (Some(sum), Some(operand)) =
                (sum.bytes_mut().get_mut(prefix..), packet.bytes().get(prefix..))
            {
                flags = alu::combine(word.operation, word.operand, sum, operand);
            }
        }

        self.counters.mismatched += u64::from(!is_alike);
        self.link_slots[index] = Slot::Used;
        (flags, tail)
    }

    /// Sends the packet on its way up, or turns it around at the root. Returns the number of
    /// packets moved, 0 or 1.
    pub(super) fn advance_up(&mut self, ports: &mut Ports<'_>) -> u32 {
        let Some(active) = self.up.take_if(|active| active.due <= ports.now()) else { return 0 };
        if active.ports == 0 {
            return self.turn_at_root(active, ports.now());
        }

        let port = active.ports.trailing_zeros() as u8;
        if !self.can_send(ports, port, active.vc) {
            self.up = Some(active);
            return 0;
        }
        let bytes = active.packet.wire_bytes();
        match ports.send(port, active.vc, active.packet) {
            Ok(()) => {
                self.up_free = self.recovered_at(ports.now(), bytes);
                self.counters.sent += 1;
                1
            }
            Err(unsent) => {
                self.up = Some(PacketInService { packet: unsent.packet, ..active });
                0
            }
        }
    }

    /// Returns the time from which the logic can send the next packet up, after one of `bytes`
    /// bytes at `sent`: when that is on the wire, and [`CollectiveSpec::recovery`] has passed.
    ///
    /// [`CollectiveSpec::recovery`]: super::CollectiveSpec::recovery
    fn recovered_at(&self, sent: Nanos, bytes: u32) -> Nanos {
        if self.spec.recovery == 0 {
            return Nanos::ZERO;
        }
        let bits = u64::from(bytes) * 8;
        let on_wire = (bits * 1_000_000_000).div_ceil(self.spec.link.bits_per_second.max(1));
        sent.after(on_wire + self.spec.recovery)
    }

    /// Turns a packet around at the root, so that it goes down. It waits as long as the unit works
    /// on another packet on its way down. Returns the number of packets moved, 0 or 1.
    fn turn_at_root(&mut self, mut active: PacketInService, now: Nanos) -> u32 {
        if self.down.is_some() {
            self.up = Some(active);
            return 0;
        }

        if let Some(mut word) = CollectiveWord::from_bits(active.packet.header) {
            word.is_down = true;
            active.packet.header = word.bits();
            self.down = Some(self.service_down(active.packet, &word, now, active.complete));
        }
        1
    }
}
