//! The work of a collective unit on a packet up and a packet down.

use nicforge_core::{
    fabric::{Packet, Ports},
    time::Nanos,
};

use super::{
    CollectiveWord, Flags, Kind, alu,
    unit::{CollectiveUnit, OWN, PacketInService, Slot, inputs_of},
};
use crate::router::RoutedPacket;

impl CollectiveUnit {
    /// Begins with a packet that came down, if there is one and the unit works on no other. Returns
    /// the number of packets taken.
    pub(super) fn begin_down(&mut self, ports: &mut Ports<'_>) -> u32 {
        if self.down.is_some() {
            return 0;
        }

        let inputs = (0..self.slots.len()).map(|index| 1 << index);
        let came_down = inputs.filter_map(|input| Some((input, self.waiting(input)?)));
        let Some((input, word)) = came_down.into_iter().find(|(_, word)| word.is_down) else { return 0 };
        let Some((packet, complete)) = self.take_operand(ports, input) else { return 0 };

        let delay = self.spec.delays[1];
        self.down = Some(self.active_down(packet, &word, complete.after(delay), ports.now().after(delay)));
        1
    }

    /// Returns a packet on its way down from here.
    fn active_down(
        &self,
        packet: Packet,
        word: &CollectiveWord,
        complete: Nanos,
        due: Nanos,
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

    /// Sends the copies of the packet on its way down. Returns the number of packets moved.
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

    /// Sends copies through ports that have room and an idle wire.
    fn send_copies(&mut self, ports: &mut Ports<'_>, active: &mut PacketInService) -> u32 {
        let mut sent = 0;
        let targets = active.ports;
        for port in (0..self.spec.ports).filter(|port| targets >> port & 1 == 1) {
            if !self.has_way(ports, port, active.vc) {
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

    /// Delivers a copy of the packet on its way down, if the reception FIFO has room.
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

    /// Returns whether the longest packet can leave by a port now.
    fn has_way(&self, ports: &mut Ports<'_>, port: u8, vc: usize) -> bool {
        ports.request_wire(port) && ports.request_credits(port, vc, self.longest_credits)
    }

    /// Begins with the operation of a class whose operands are all there, if the unit works on no
    /// other. Returns the number of packets taken.
    pub(super) fn begin_up(&mut self, ports: &mut Ports<'_>) -> u32 {
        self.drop_own(ports);
        if self.up.is_some() {
            return 0;
        }

        let own = (0..self.own.len()).map(|fifo| 1 << (OWN as usize + fifo));
        let inputs = own.chain((0..self.slots.len()).map(|index| 1 << index));
        let ready = inputs.filter_map(|input| {
            let word = self.waiting(input).filter(|word| !word.is_down)?;
            let set = if word.kind == Kind::Broadcast { input } else { self.complete_set(&word)? };
            Some((set, word))
        });

        let first = ready.min_by_key(|(_, word)| self.routes[usize::from(word.class)].fifo);
        match first {
            Some((set, word)) => self.combine(ports, set, word),
            None => 0,
        }
    }

    /// Removes own packets that no class route expects.
    fn drop_own(&mut self, ports: &mut Ports<'_>) {
        for (slot, fifo) in self.own.iter_mut().zip(&mut self.injection) {
            if matches!(slot, Slot::Used)
                && let Some(packet) = fifo.pop(ports.now())
            {
                ports.recycle(packet);
                *slot = Slot::Empty;
            }
        }
    }

    /// Returns the operands of a class if all of them are there.
    fn complete_set(&self, word: &CollectiveWord) -> Option<u64> {
        let set = self.operands(&self.routes[usize::from(word.class)]);
        let is_there = |input: u64| {
            let operand = self.waiting(input);
            operand.is_some_and(|other| {
                !other.is_down && other.class == word.class && other.kind != Kind::Broadcast
            })
        };
        inputs_of(set).all(is_there).then_some(set)
    }

    /// Combines a set of operands, the own one first and then by port. Returns the number of
    /// packets taken.
    fn combine(&mut self, ports: &mut Ports<'_>, set: u64, mut word: CollectiveWord) -> u32 {
        let own = set >> OWN << OWN;
        let in_order = inputs_of(own).chain(inputs_of(set & !own));
        let mut result: Option<Packet> = None;
        let mut complete = ports.now();
        let (mut flags, mut taken) = (Flags::default(), 0);

        for input in in_order {
            let Some(other) = self.waiting(input) else { continue };
            let Some(mut sum) = result.take() else {
                let Some((first, tail)) = self.take_operand(ports, input) else { return 0 };
                (word, complete, taken) = (other, complete.max(tail), 1);
                result = Some(first);
                continue;
            };

            let (exceptions, tail) = self.add_operand(ports, input, &word, &mut sum);
            let is_alike =
                (other.operation, other.operand, other.kind) == (word.operation, word.operand, word.kind);
            self.counters.mismatched += u64::from(!is_alike);
            flags |= exceptions;
            word.flags |= other.flags;
            complete = complete.max(tail);
            taken += 1;
            result = Some(sum);
        }

        let Some(mut packet) = result else { return 0 };
        self.counters.combined += u64::from(taken > 1);
        self.counters.exceptions += u64::from(flags != Flags::default());
        self.counters.not_a_number += u64::from(flags.not_a_number);
        self.counters.overflow += u64::from(flags.overflow);
        word.flags |= flags;
        packet.header = word.bits();

        let route = &self.routes[usize::from(word.class)];
        let ports_up = route.output.map_or(0, |port| 1 << port);
        let (vc, fifo) = (self.spec.vcs[usize::from(route.channel)].into(), route.fifo.into());
        let delay = self.spec.delays[0];
        let (due, complete) = (ports.now().after(delay).max(self.up_free), complete.after(delay));
        self.up = Some(PacketInService { packet, ports: ports_up, vc, fifo, is_local: false, due, complete });
        taken
    }

    /// Takes the packet of an input, with the time at which its tail is here. A packet whose tail
    /// has not arrived stays in its buffer, and the caller gets a copy.
    fn take_operand(&mut self, ports: &mut Ports<'_>, input: u64) -> Option<(Packet, Nanos)> {
        let now = ports.now();
        let index = input.trailing_zeros();
        if let Some(fifo) = index.checked_sub(OWN) {
            self.own[fifo as usize] = Slot::Empty;
            return Some((self.injection[fifo as usize].pop(now)?, now));
        }

        let index = index as usize;
        let (port, vc) = self.place(index);
        let Some(tail) = ports.tail_due(port, vc) else {
            let packet = ports.take(port, vc)?;
            self.slots[index] = Slot::Empty;
            return Some((packet, now));
        };

        let Some(copy) = ports.copy_head(port, vc) else {
            self.starved = true;
            return None;
        };
        self.slots[index] = Slot::Used;
        Some((copy, tail))
    }

    /// Combines the packet of an input into `sum`. Returns the exceptions, and the time at which
    /// the packet's tail is here.
    fn add_operand(
        &mut self,
        ports: &mut Ports<'_>,
        input: u64,
        word: &CollectiveWord,
        sum: &mut Packet,
    ) -> (Flags, Nanos) {
        let now = ports.now();
        let index = input.trailing_zeros() as usize;
        let (port, vc) = self.place(index);
        let tail = ports.tail_due(port, vc).unwrap_or(now);

        let mut flags = Flags::default();
        if let Some(packet) = ports.peek_head(port, vc) {
            self.counters.mismatched += u64::from(packet.len() != sum.len());
            let prefix = self.spec.prefix;
            if let (Some(sum), Some(other)) =
                (sum.bytes_mut().get_mut(prefix..), packet.bytes().get(prefix..))
            {
                flags = alu::combine(word.operation, word.operand, sum, other);
            }
        }

        self.slots[index] = Slot::Used;
        (flags, tail)
    }

    /// Sends the packet on its way up, or turns it around at the root. Returns the number of
    /// packets moved.
    pub(super) fn advance_up(&mut self, ports: &mut Ports<'_>) -> u32 {
        let Some(active) = self.up.take_if(|active| active.due <= ports.now()) else { return 0 };
        if active.ports == 0 {
            return self.turn_at_root(active, ports.now());
        }

        let port = active.ports.trailing_zeros() as u8;
        if !self.has_way(ports, port, active.vc) {
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

    /// Returns the time from which the logic can send the packet after one of `bytes` bytes.
    fn recovered_at(&self, sent: Nanos, bytes: u32) -> Nanos {
        if self.spec.recovery == 0 {
            return Nanos::ZERO;
        }
        let bits = u64::from(bytes) * 8;
        let on_wire = (bits * 1_000_000_000).div_ceil(self.spec.link.bits_per_second.max(1));
        sent.after(on_wire + self.spec.recovery)
    }

    /// Turns a packet around at the root, unless the unit works on another one on its way down: the
    /// packet waits for that. Returns the number of packets moved.
    fn turn_at_root(&mut self, mut active: PacketInService, now: Nanos) -> u32 {
        if self.down.is_some() {
            self.up = Some(active);
            return 0;
        }

        if let Some(mut word) = CollectiveWord::from_bits(active.packet.header) {
            word.is_down = true;
            active.packet.header = word.bits();
            self.down = Some(self.active_down(active.packet, &word, active.complete, now));
        }
        1
    }
}
