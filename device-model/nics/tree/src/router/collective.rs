//! Packets with several targets, and packets that are combined.

use nicforge_core::fabric::Packet;
use nicforge_hwi::{
    tree::{Header, PAYLOAD, PORTS},
    tree_dcr::rcfg,
};

use super::{
    Router, RouterContext,
    held::HeldPacket,
    route::{RouteDecision, Source, TO_LOCAL},
};
use crate::{
    alu,
    fifo::{Admission, RowEnd, RowOutcome, SendHead},
};

/// The irq bit of a header.
const IRQ: u32 = Header::point_to_point(0, 0, true).0 & !Header::point_to_point(0, 0, false).0;

impl Router {
    /// Copies a source's held packet to the targets that have room. The packet counts as moved if
    /// any target has taken it.
    pub(super) fn copy_held(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
    ) -> RowOutcome {
        let Some(mut held) = self.held.take(channel, source) else {
            return RowOutcome::nothing(RowEnd::Empty);
        };
        let before = held.targets;

        if held.targets & TO_LOCAL != 0 {
            let admission = context.channels[channel].check_admission(Header(held.packet.header as u32));
            if admission != Admission::Wait {
                self.deliver(context, channel, &held.packet, admission);
                held.targets &= !TO_LOCAL;
            }
        }

        for port in 0..PORTS as u8 {
            let bit = 1 << port;
            let is_usable = held.targets & bit & self.usable_ports(context, channel) != 0;
            if !is_usable || !context.ports.ready(port, channel) {
                continue;
            }

            // The last target gets the packet itself.
            if held.targets == bit {
                self.transmit(context, channel, port, held.packet);
                return self.end_single(channel, source);
            }

            let Ok(copy) = context.ports.copy_packet(&held.packet) else {
                self.starved = true;
                break;
            };

            self.transmit(context, channel, port, copy);
            held.targets &= !bit;
        }

        if held.targets == 0 {
            context.ports.recycle(held.packet);
            return self.end_single(channel, source);
        }

        let any_moved = held.targets != before;
        self.held.put(channel, source, held);
        if any_moved { self.end_single(channel, source) } else { RowOutcome::nothing(RowEnd::Blocked) }
    }

    /// Combines the first packets of a class's sources into one, once every source has one, and
    /// sends the result up. `source` is a source that has one.
    pub(super) fn combine(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
        class: u32,
    ) -> RowOutcome {
        if self.held.has(channel, Source::ALU) {
            return RowOutcome::nothing(RowEnd::Blocked);
        }

        let operands = self.routes.operands(class);
        for operand in Source::all().filter(|operand| operands & operand.bit() != 0) {
            if !self.has_operand(context, channel, operand, class) {
                return RowOutcome::nothing(RowEnd::Blocked);
            }
        }

        // The send FIFO comes first, because only taking from it can fail: it needs a packet of the
        // pool. No operand is lost then.
        let mut result: Option<Packet> = None;
        let in_order = std::iter::once(Source::LOCAL).chain(Source::all().take(PORTS));
        for operand in in_order.filter(|operand| operands & operand.bit() != 0) {
            let Some(packet) = self.take_first(context, channel, operand) else {
                return RowOutcome::nothing(RowEnd::Starved);
            };
            result = Some(match result {
                None => packet,
                Some(result) => self.reduce(context, channel, result, packet),
            });
        }

        let Some(packet) = result else { return RowOutcome::nothing(RowEnd::Blocked) };

        let targets = self.routes.targets_up(class);
        if targets == 0 {
            self.counters[channel].no_target += 1;
        }

        self.held.put(channel, Source::ALU, HeldPacket { packet, targets });
        let _ = self.copy_held(context, channel, Source::ALU);
        self.end_single(channel, source)
    }

    /// Returns whether an operand of the class is first at a source.
    fn has_operand(
        &self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
        class: u32,
    ) -> bool {
        if self.held.has(channel, source) {
            return false;
        }

        let header = match source.port() {
            Some(port) if self.is_source_disabled(channel, port) => None,
            Some(port) => context.ports.peek(port, channel).map(|packet| packet.header),
            None if !context.injecting => None,
            None => match context.channels[channel].poll_send_head() {
                SendHead::Packet(header) => Some(header.0.into()),
                SendHead::Empty | SendHead::Presence { .. } => None,
            },
        };

        header.is_some_and(|header| self.routes.route(source, header) == RouteDecision::Combine { class })
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
        let (result_header, operand_header) = (Header(result.header as u32), Header(operand.header as u32));

        if let (Some(sum), Some(bytes)) =
            (result.bytes_mut().first_chunk_mut::<PAYLOAD>(), operand.bytes().first_chunk::<PAYLOAD>())
        {
            alu::combine(result_header.opcode(), result_header.operand_bytes(), sum, bytes);
        }

        let counters = &mut self.counters[channel];
        counters.combined += 1;
        if (result_header.opcode(), result_header.operand_bytes())
            != (operand_header.opcode(), operand_header.operand_bytes())
        {
            counters.mismatched += 1;
        }

        if operand_header.irq() {
            result.header |= u64::from(IRQ);
        }

        context.ports.recycle(operand);
        result
    }

    /// Returns whether the configuration register disables a port as a source.
    #[inline]
    pub(super) fn is_source_disabled(&self, channel: usize, port: u8) -> bool {
        self.rcfg != 0 && self.rcfg & (rcfg::SRC00 >> (4 * usize::from(port) + channel)) != 0
    }

    /// Returns the ports that the configuration register disables as targets, one bit for each
    /// port.
    #[cold]
    pub(super) fn disabled_targets(&self, channel: usize) -> u8 {
        (0..PORTS)
            .filter(|port| self.rcfg & (rcfg::TGT00 >> (4 * port + channel)) != 0)
            .fold(0, |mask, port| mask | 1 << port)
    }
}
