//! Packets with several targets, and packets that are combined.

use nicforge_core::fabric::Packet;
use nicforge_hwi::{
    tree::{Header, PAYLOAD, PORTS},
    tree_dcr::rcfg,
};

use super::{ALU, Held, LOCAL, Move, Router, RouterContext, TO_LOCAL, up_targets};
use crate::{
    alu,
    config::ClassRoute,
    fifo::{Head, Room},
    presence,
};

impl Router {
    /// Keeps a packet of a source until all its targets have it.
    pub(super) fn hold(&mut self, channel: usize, source: usize, held: Held) {
        self.held[channel][source] = Some(held);
        self.held_mask[channel] |= 1 << source;
    }

    /// Copies a held packet to the targets that have room.
    pub(super) fn advance_held(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
    ) -> Move {
        self.held_mask[channel] &= !(1 << source);
        let Some(mut held) = self.held[channel][source].take() else { return Move::Empty };
        let before = held.targets;

        if held.targets & TO_LOCAL != 0 {
            let room = context.channels[channel].room(Header(held.packet.header as u32));
            if room != Room::No {
                self.deliver(context, channel, &held.packet, room);
                held.targets &= !TO_LOCAL;
            }
        }

        for port in 0..PORTS {
            let bit = 1u8 << port;
            if held.targets & bit == 0 || !self.port_ready(context, channel, port) {
                continue;
            }

            if held.targets == bit {
                self.transmit(context, channel, port, held.packet);
                return Move::Moved;
            }

            let Some(mut copy) = context.ports.new_packet(PAYLOAD) else {
                self.starved = true;
                break;
            };

            copy.bytes_mut().copy_from_slice(held.packet.bytes());
            copy.header = held.packet.header;
            copy.framing = held.packet.framing;
            self.transmit(context, channel, port, copy);
            held.targets &= !bit;
        }

        if held.targets == 0 {
            context.ports.recycle(held.packet);
            return Move::Moved;
        }

        let moved = if held.targets == before { Move::Blocked } else { Move::Moved };
        self.hold(channel, source, held);
        moved
    }

    /// Combines the packets of a class once every source of the class has one.
    pub(super) fn combine(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        route: ClassRoute,
        header: Header,
    ) -> Move {
        if self.held[channel][ALU].is_some() {
            return Move::Blocked;
        }

        let sources = route.children() & self.connected | if route.sends() { TO_LOCAL } else { 0 };
        for source in 0..=LOCAL {
            if sources & (1 << source) != 0 && !self.has_operand(context, channel, source, header.class()) {
                return Move::Blocked;
            }
        }

        // The send FIFO comes first: only taking from it can fail, when the pool has no packet
        // left.
        let mut result: Option<Packet> = None;
        for source in [LOCAL, 0, 1, 2] {
            if sources & (1 << source) == 0 {
                continue;
            }
            let Some(operand) = self.take(context, channel, source) else { return Move::Blocked };
            result = Some(match result {
                None => operand,
                Some(result) => self.reduce(context, channel, result, operand),
            });
        }

        let Some(packet) = result else { return Move::Blocked };

        let targets = up_targets(route) & (self.connected | TO_LOCAL);
        if targets == 0 {
            self.counters[channel].no_target += 1;
        }

        self.hold(channel, ALU, Held { packet, targets });
        let _ = self.advance_held(context, channel, ALU);
        Move::Moved
    }

    /// Returns whether an operand of the class is first at a source.
    fn has_operand(
        &self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        class: u32,
    ) -> bool {
        let disabled = source < PORTS && self.rcfg & (rcfg::SRC00 >> (4 * source + channel)) != 0;
        if disabled || self.held[channel][source].is_some() {
            return false;
        }

        let header = if source == LOCAL {
            match context.channels[channel].head() {
                Head::Packet(header) if context.injecting => header,
                _ => return false,
            }
        } else {
            match context.ports.peek(source as u8, channel) {
                Some(packet) if presence::parse(packet.header).is_none() => Header(packet.header as u32),
                _ => return false,
            }
        };

        !header.is_point_to_point() && header.class() == class && alu::combines(header.opcode())
    }

    /// Combines an operand into a result and recycles its packet. The result keeps its own
    /// operation, and its irq bit is set if either packet has it.
    fn reduce(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        mut result: Packet,
        operand: Packet,
    ) -> Packet {
        let (header, other) = (Header(result.header as u32), Header(operand.header as u32));

        if let (Some(sum), Some(bytes)) =
            (result.bytes_mut().first_chunk_mut::<PAYLOAD>(), operand.bytes().first_chunk::<PAYLOAD>())
        {
            alu::combine(header.opcode(), header.operand_bytes(), sum, bytes);
        }

        let counters = &mut self.counters[channel];
        counters.combined += 1;
        if (header.opcode(), header.operand_bytes()) != (other.opcode(), other.operand_bytes()) {
            counters.mismatched += 1;
        }

        if other.irq() {
            result.header |=
                u64::from(Header::point_to_point(0, 0, true).0 & !Header::point_to_point(0, 0, false).0);
        }

        context.ports.recycle(operand);
        result
    }
}
