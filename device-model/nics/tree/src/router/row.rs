//! Rows of packets. A single packet is a row of one.
//!
//! A row is a sequence of packets from one source that leave to the same target. They share the
//! lookup of the route, the check of link and FIFO, the credits, and the wake-up of the next node.
//!
//! Packets with several targets, presence symbols, and packets that the ALU combines are moved one
//! by one.

use nicforge_core::fabric::{ForwardedRow, Packet};
use nicforge_hwi::tree::Header;

use super::{
    Router, RouterContext,
    held::HeldPacket,
    route::{RouteDecision, Source},
};
use crate::fifo::{Admission, RowEnd, RowOutcome, SendHead};

/// The result where a source has no packets.
const EMPTY: RowOutcome = RowOutcome::nothing(RowEnd::Empty);
/// The result where the first packet of a source has to wait.
const BLOCKED: RowOutcome = RowOutcome::nothing(RowEnd::Blocked);
/// The result where the pool has no packet left to carry the first packet of the send FIFO.
const STARVED: RowOutcome = RowOutcome::nothing(RowEnd::Starved);

/// A request to move a row: which packets may move, and through which ports. It fits a register.
#[derive(Clone, Copy)]
struct RowRequest {
    /// Maximum number of packets to move, at least 1.
    limit: u32,
    channel: u8,
    source: Source,
    /// Ports that packets may leave through, one bit for each port.
    usable_ports: u8,
}

impl RowRequest {
    #[inline]
    fn channel(self) -> usize {
        usize::from(self.channel)
    }
}

impl Router {
    /// Moves the first packets of a source to the target of the very first one, at most `limit`.
    #[inline]
    pub(super) fn move_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
        limit: u32,
    ) -> RowOutcome {
        if self.held.has(channel, source) {
            return self.copy_held(context, channel, source);
        }

        let usable_ports = self.usable_ports(context, channel);
        let request = RowRequest { limit, channel: channel as u8, source, usable_ports };
        match source.port() {
            Some(port) => self.move_port_row(context, port, request),
            None if source == Source::LOCAL => self.move_injected_row(context, request),
            None => EMPTY,
        }
    }

    /// Returns the ports through which a packet may leave if there is a credit, one bit for each
    /// port. A port where a presence symbol waits is not among them, because the symbol goes first.
    #[inline]
    pub(super) fn usable_ports(&self, context: &RouterContext<'_, '_>, channel: usize) -> u8 {
        let usable = self.routes.connected() & !context.presence.ports_waiting(channel);
        if self.rcfg == 0 { usable } else { usable & !self.disabled_targets(channel) }
    }

    /// Moves packets that have arrived at a port. Packets for another port move as soon as their
    /// head has arrived.
    #[inline(never)]
    fn move_port_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        port: u8,
        request: RowRequest,
    ) -> RowOutcome {
        let RowRequest { limit, source, usable_ports, .. } = request;
        let channel = request.channel();
        if self.is_source_disabled(channel, port) {
            return RowOutcome::nothing(RowEnd::Other);
        }

        let routes = &self.routes;
        // The header of the packets that were forwarded, or else the decision about the first
        // packet, and its header.
        let (mut row_header, mut not_forwarded) = (0, None);

        let forwarded = context.ports.forward_row(port, channel, limit, |first| {
            let header = first.header;
            match routes.route(source, header) {
                RouteDecision::Port(exit) if usable_ports & (1 << exit) != 0 => {
                    row_header = header;
                    // The packets of a stream have equal headers, so one comparison decides.
                    Some((exit, move |packet: &Packet| packet.header == header))
                }
                other => {
                    not_forwarded = Some((other, header));
                    None
                }
            }
        });

        if let Some(ForwardedRow { moved, has_more }) = forwarded {
            self.counters[channel].forwarded += u64::from(moved);
            let end = if has_more {
                RowEnd::before(context.ports.peek_head(port, channel), row_header)
            } else {
                RowEnd::Empty
            };
            return RowOutcome { moved, end };
        }

        match not_forwarded {
            None => EMPTY,
            Some((RouteDecision::Port(_), _)) => BLOCKED,
            // Only the head of the packet has arrived. The tail wakes this node.
            Some(_) if context.ports.arrived(channel) & u64::from(source.bit()) == 0 => EMPTY,
            Some((RouteDecision::Local, header)) => {
                self.receive_row(context, port, request, Header(header as u32))
            }
            Some((RouteDecision::Symbol { node, presence_word }, _)) => {
                if let Some(packet) = context.ports.take(port, channel) {
                    context.ports.recycle(packet);
                }
                self.update_presence(context, channel, node, presence_word, Some(port));
                self.end_single(channel, source)
            }
            Some((decision, _)) => self.move_one(context, channel, source, decision),
        }
    }

    /// Moves packets from a port into the receive FIFO, or discards them if their receiver is gone.
    /// `first` is the header of the first one.
    #[inline(never)]
    fn receive_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        port: u8,
        request: RowRequest,
        first: Header,
    ) -> RowOutcome {
        let (channel, limit) = (request.channel(), request.limit);
        let fifo = &mut context.channels[channel];

        match fifo.check_admission(first) {
            Admission::Wait => BLOCKED,
            Admission::Discard => {
                let row_header = u64::from(first.0);
                let dropped =
                    context.ports.take_while(port, channel, limit, |packet| packet.header == row_header);
                self.counters[channel].discarded += u64::from(dropped);
                RowOutcome { moved: dropped, end: RowEnd::Other }
            }
            Admission::Accept => {
                let row = fifo.put_received_row(context.ports, port, limit, first);
                self.counters[channel].received += u64::from(row.moved);
                row
            }
        }
    }

    /// Moves a row out of the send FIFO. A presence symbol at the head is processed here, and
    /// counts as a row of one.
    #[inline(never)]
    fn move_injected_row(&mut self, context: &mut RouterContext<'_, '_>, request: RowRequest) -> RowOutcome {
        let RowRequest { source, usable_ports, .. } = request;
        let channel = request.channel();
        if !context.injecting {
            return EMPTY;
        }

        let header = match context.channels[channel].poll_send_head() {
            SendHead::Empty => return EMPTY,
            SendHead::Packet(header) => header,
            SendHead::Presence { core, generation } => {
                context.channels[channel].take_presence();
                let presence_word = context.presence.with_core(channel, self.address, core, generation);
                self.update_presence(context, channel, self.address, presence_word, None);
                return self.end_single(channel, source);
            }
        };

        match self.routes.route(source, header.0.into()) {
            RouteDecision::Port(port) if usable_ports & (1 << port) != 0 => {
                self.send_row(context, port, request, header)
            }
            RouteDecision::Port(_) => BLOCKED,
            RouteDecision::Local => self.loop_back(context, channel, header),
            decision => self.move_one(context, channel, source, decision),
        }
    }

    /// Moves packets from the send FIFO to a port. `first` is the header of the first one, which
    /// goes there.
    ///
    /// Rows go straight from the slots into the link's packets. [`Router::send_one`] does the rest,
    /// and could do all: it costs 372 instructions for each packet, and a row 114 (rows of 8
    /// packets on a link without delay, counted by callgrind). The test of a stream of many kinds
    /// in `tests/routing.rs` runs both on the same packets.
    #[inline]
    fn send_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        port: u8,
        request: RowRequest,
        first: Header,
    ) -> RowOutcome {
        let RowRequest { limit, source, .. } = request;
        let channel = request.channel();

        if let Some(mut run) = context.ports.run(port, channel) {
            let routes = &self.routes;
            let belongs_to_row = |header: Header| {
                header == first || routes.route(source, header.0.into()) == RouteDecision::Port(port)
            };
            let row = context.channels[channel].send_row(&mut run, limit, belongs_to_row);
            if row.moved > 0 || row.end != RowEnd::Other {
                let counters = &mut self.counters[channel];
                counters.sent += u64::from(row.moved);
                counters.forwarded += u64::from(row.moved);
                return row;
            }
        }

        self.send_one(context, port, channel)
    }

    /// Moves the first packet of the send FIFO to a port: one of the side queue, one with a
    /// checksum, or one for a link that takes time.
    #[inline(never)]
    fn send_one(&mut self, context: &mut RouterContext<'_, '_>, port: u8, channel: usize) -> RowOutcome {
        if !context.ports.ready(port, channel) {
            return BLOCKED;
        }

        let Some(packet) = self.take_first(context, channel, Source::LOCAL) else { return STARVED };
        self.transmit(context, channel, port, packet);
        self.end_single(channel, Source::LOCAL)
    }

    /// Moves the first packet of the send FIFO, whose header is `header`, into the receive FIFO.
    fn loop_back(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        header: Header,
    ) -> RowOutcome {
        let admission = context.channels[channel].check_admission(header);
        if admission == Admission::Wait {
            return BLOCKED;
        }

        let Some(packet) = self.take_first(context, channel, Source::LOCAL) else { return STARVED };
        self.deliver(context, channel, &packet, admission);
        context.ports.recycle(packet);
        self.end_single(channel, Source::LOCAL)
    }

    /// Moves the first packet of a source if it goes to several targets or to the ALU, and drops it
    /// if it has no target. Such packets do not move in rows.
    #[inline(never)]
    fn move_one(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
        decision: RouteDecision,
    ) -> RowOutcome {
        if let RouteDecision::Combine { class } = decision {
            return self.combine(context, channel, source, class);
        }

        let Some(packet) = self.take_first(context, channel, source) else { return STARVED };
        if let RouteDecision::Several(targets) = decision {
            self.held.put(channel, source, HeldPacket { packet, targets });
            // A target that has no room now gets its copy later.
            let _ = self.copy_held(context, channel, source);
            return self.end_single(channel, source);
        }

        // The packet has no target.
        let header = packet.header;
        context.ports.recycle(packet);
        self.counters[channel].no_target += 1;
        if source == Source::LOCAL {
            context.channels[channel].events.no_route(header);
        }
        self.end_single(channel, source)
    }

    /// Returns the outcome for a packet that was moved alone. Requests another pass over the
    /// sources if the packet came from the ALU or a packet is still held, since either may let
    /// another source continue.
    pub(super) fn end_single(&mut self, channel: usize, source: Source) -> RowOutcome {
        self.needs_another_pass |= source == Source::ALU || self.held.mask(channel) != 0;
        RowOutcome { moved: 1, end: RowEnd::Other }
    }

    /// Takes the first packet out of a port or the send FIFO. Returns `None` if the source has
    /// none, or if the packet pool (in `ports`) has no packet to hold the send FIFO's.
    #[inline]
    pub(super) fn take_first(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: Source,
    ) -> Option<Packet> {
        match source.port() {
            Some(port) => context.ports.take(port, channel),
            None => {
                let packet = context.channels[channel].take_send_head(context.ports);
                self.counters[channel].sent += u64::from(packet.is_some());
                packet
            }
        }
    }

    /// Puts a packet into the receive FIFO, or drops it where `admission` says that its receiver is
    /// gone.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        packet: &Packet,
        admission: Admission,
    ) {
        if admission == Admission::Accept {
            context.channels[channel].put_received(Header(packet.header as u32), packet.bytes());
            self.counters[channel].received += 1;
        } else {
            self.counters[channel].discarded += 1;
        }
    }

    /// Sends a packet through a port. The packet is dropped if the port does not accept it, so the
    /// caller must have checked that it is ready.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        port: u8,
        packet: Packet,
    ) {
        match context.ports.send(port, channel, packet) {
            Ok(()) => self.counters[channel].forwarded += 1,
            Err(unsent) => context.ports.recycle(unsent.packet),
        }
    }
}
