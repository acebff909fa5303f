//! Rows: packets of one FIFO with which no other competes.
//!
//! The priorities and the pseudo-random choice decide packet by packet among FIFOs that wait. Where
//! one FIFO waits alone, its packets go in a row. The FIFO, its route, its memory and the network
//! FIFO are looked up once for a row. The packets and counters are the same as one by one.
//!
//! In: a FIFO without competitors. Out: packets in a network injection FIFO, or in a reception FIFO
//! of a client; moved heads and tails. May touch: client memory by views, network FIFOs.
//!
//! Rows have messages of one packet, whose template is that of the message before, in memory that
//! the views hold. Everything else ends a row and is left to `inject` and `receive`, and so are all
//! faults.

use nicforge_core::{
    context::Context,
    fabric::{Contents, Packet, Ports},
};
use nicforge_hwi::{
    mu::{DESCRIPTOR, RECEPTION_FIFOS, USER_SUBGROUPS},
    mu_dcr::counter,
    mu_packet::{CHUNK, Descriptor, HEADER, MAX_PAYLOAD, PacketHeader, packet_type, routing},
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Identity, Unit,
    inject::place_of,
    message::{LastTemplate, Message},
    ranges::{Access, Ranges},
    ring::Ring,
    subgroup::{Injection, InjectionFifo, ReceptionFifo, owner_of},
    view::View,
};
use crate::network::NetworkUnit;

/// An injection FIFO whose messages are sent in a row.
struct Sender<'a> {
    ring: &'a mut Ring,
    template: &'a LastTemplate,
    descriptors: &'a View,
    payloads: &'a View,
    ranges: &'a Ranges,
    identity: &'a Identity,
    is_system: bool,
    /// Bytes of payload sent.
    bytes: u64,
}

impl Sender<'_> {
    /// Returns the only packet of the next message, and moves the head past its descriptor.
    /// Changes nothing if the message is none of the row.
    #[inline(always)]
    fn next(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let message = self.message()?;
        let (address, bytes) = message.only_payload()?;
        if !self.ranges.permit(self.is_system, address, bytes as u64, Access::Read) {
            return None;
        }

        let mut packet = ports.new_packet(HEADER + bytes.next_multiple_of(CHUNK)).ok()?;
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_header(bytes).as_bytes());
        if let Some(last) = payload.last_chunk_mut::<CHUNK>() {
            *last = [0; CHUNK];
        }
        if !self.payloads.read(address, &mut payload[..bytes]) {
            ports.recycle(packet);
            return None;
        }

        self.ring.consume(DESCRIPTOR);
        self.bytes += bytes as u64;
        Some(packet)
    }

    /// Returns the message of the descriptor at the head, with its mark.
    #[inline(always)]
    fn message(&self) -> Option<Message> {
        let head = self.ring.head;
        let is_permitted = self.ranges.permit(self.is_system, head, DESCRIPTOR, Access::Read);
        if self.ring.is_empty() || !is_permitted {
            return None;
        }

        let mut descriptor = [0; DESCRIPTOR as usize];
        if !self.descriptors.read_array(head, &mut descriptor) {
            return None;
        }
        let descriptor: Descriptor = zerocopy::transmute!(descriptor);
        let mut message = self.template.next_message(&descriptor, self.is_system)?;
        message.set_mark(self.identity.mark_of(&message));
        Some(message)
    }
}

/// A reception FIFO that gets packets in a row.
struct Receiver<'a> {
    ring: &'a mut Ring,
    view: &'a View,
    ranges: &'a Ranges,
    /// What the packets of the row have in common.
    flow: Flow,
    /// Number of packets that may still come.
    most: u32,
    /// Bytes of payload received.
    bytes: u64,
    /// A packet asks for an interrupt.
    interrupts: bool,
}

/// The fields of a header that are the same in all packets of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    channel: u8,
    fifo: u16,
    mark: u16,
}

impl Flow {
    /// Returns the flow of a packet for a reception FIFO, if its length is that of its header.
    #[inline(always)]
    fn of(packet: &Contents) -> Option<(Self, &PacketHeader)> {
        let (header, payload) = PacketHeader::ref_from_prefix(packet.bytes()).ok()?;
        let is_whole = payload.len() <= MAX_PAYLOAD && header.payload_bytes() == payload.len();
        if !is_whole || header.packet_type() != packet_type::FIFO || packet.memory.is_some() {
            return None;
        }

        let mark = u16::from_le_bytes(header.injection_info);
        Some((Self { channel: header.channel(), fifo: header.unit.reception_fifo(), mark }, header))
    }
}

impl Receiver<'_> {
    /// Writes a packet at the tail. Returns false, and changes nothing, if it is none of the row.
    #[inline(always)]
    fn accept(&mut self, packet: &Contents) -> bool {
        let Some((flow, header)) = Flow::of(packet) else { return false };
        let (bytes, length) = (packet.bytes(), packet.len() as u64);
        let fits = self.ring.has_room(length) && length <= self.ring.contiguous();
        let tail = self.ring.tail;
        let is_written = self.most > 0
            && flow == self.flow
            && fits
            && self.ranges.permit(false, tail, length, Access::Write)
            && self.view.write(tail, bytes);
        if !is_written {
            return false;
        }

        // The packet is there, so the tail may show it.
        self.ring.produce(length);
        self.most -= 1;
        self.bytes += length - HEADER as u64;
        self.interrupts |= header.byte2 & routing::INTERRUPT != 0;
        true
    }
}

impl Unit {
    /// Sends messages of an injection FIFO with which no other competes, at most `most`. Returns
    /// their number.
    pub(super) fn send_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        most: u32,
    ) -> u32 {
        let (number, index) = place_of(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return 0 };
        let is_system = owner_of(number).is_system;
        let InjectionFifo { ring, template, view, payload, state, .. } = &mut subgroup.injection[index];
        let is_waiting = matches!(state, Injection::Waiting);
        let Some(route) = template.route().filter(|_| is_waiting && self.timing.is_instant()) else {
            return 0;
        };
        // With a choice of network FIFOs, the packets take turns.
        let engines = route.fifos();
        if !engines.is_power_of_two() || engines & self.control.injection_engines == 0 {
            return 0;
        }

        let (engine, before) = (engines.trailing_zeros() as u8, ring.free());
        let mut sender = Sender {
            ring,
            template,
            descriptors: view,
            payloads: payload,
            ranges: &self.control.ranges,
            identity: &self.identity,
            is_system,
            bytes: 0,
        };
        let (mut left, now, mut ports) = (most, context.now(), context.ports());
        let next = || {
            left = left.checked_sub(1)?;
            sender.next(&mut ports)
        };
        let (sent, refused) = network.inject_row(engine, route, now, next);
        let bytes = sender.bytes;

        if let Some(packet) = refused {
            ports.recycle(packet);
        }
        if sent > 0 {
            self.next_engine = (engine + 1) % 16;
            self.counters[counter::BYTES_SENT] += bytes;
            self.finish_row(fifo, sent, before);
        }
        sent
    }

    /// Ends the messages of a row: the head has moved past their descriptors.
    fn finish_row(&mut self, fifo: u16, sent: u32, before: u64) {
        let (number, index) = place_of(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        subgroup.injection[index].descriptors += u64::from(sent);
        subgroup.injection_moved(index, before);

        let is_for_gets = subgroup.remote_get >> index & 1 == 1;
        self.subgroups.mark_changed(number);
        self.counters[counter::PACKETS_SENT] += u64::from(sent);
        self.counters[counter::DESCRIPTORS] += u64::from(sent);
        if is_for_gets {
            self.engines.wake_injection(fifo);
        }
    }

    /// Writes packets of a network reception FIFO into a user's reception FIFO, at most `most`.
    /// Returns their number.
    pub(super) fn deposit_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        engine: u8,
        most: u32,
    ) -> u32 {
        let now = context.now();
        let Some((flow, header)) = network.front(engine, now).and_then(|packet| Flow::of(packet)) else {
            return 0;
        };
        let is_current = flow.mark == 0 || flow.mark == self.identity.mark_at(self.identity.node, header);
        let (number, index) = (flow.fifo / RECEPTION_FIFOS, usize::from(flow.fifo % RECEPTION_FIFOS));
        let Some(subgroup) = self.subgroups.get_mut(number) else { return 0 };
        let ReceptionFifo { ring, view, is_enabled, .. } = &mut subgroup.reception[index];
        if number >= USER_SUBGROUPS || !is_current || !*is_enabled || !self.timing.is_instant() {
            return 0;
        }

        let before = ring.free();
        let ranges = &self.control.ranges;
        let mut receiver = Receiver { ring, view, ranges, flow, most, bytes: 0, interrupts: false };
        let mut ports = context.ports();
        let taken =
            network.take_row(engine, now, |packet| receiver.accept(packet), |packet| ports.recycle(packet));

        let Receiver { bytes, interrupts, .. } = receiver;
        if taken > 0 {
            subgroup.reception_moved(index, before, interrupts);
            self.subgroups.mark_changed(number);
            self.counters[counter::FIFO_PACKETS] += u64::from(taken);
            self.counters[counter::BYTES_RECEIVED] += bytes;
        }
        taken
    }
}
