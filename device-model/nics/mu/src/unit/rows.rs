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
use nicforge_network::router::Bypass;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Identity, Unit,
    inject::subgroup_and_index,
    message::{KnownTemplate, Message, PayloadRange},
    ranges::{Access, Permission},
    ring::Ring,
    subgroup::{Injection, InjectionFifo, ReceptionFifo, owner_of},
    view::HeldMemory,
};
use crate::network::{NetworkUnit, Route};

/// An injection FIFO whose messages are sent in a row.
struct RowSender<'a> {
    ring: &'a mut Ring,
    /// The message in service, which has one more packet.
    in_service: Option<Message>,
    template: KnownTemplate<'a>,
    route: Route,
    descriptors: HeldMemory<'a>,
    payloads: HeldMemory<'a>,
    permission: Permission<'a>,
    identity: &'a Identity,
    /// The message before, if there is one.
    checked: Option<CheckedMessage>,
    is_system: bool,
    /// Bytes of payload sent.
    bytes: u64,
}

/// A message of the row that has passed all checks except those of its payload's address. The
/// messages behind it often differ in that address alone.
#[derive(Debug)]
struct CheckedMessage {
    /// The words of its descriptor.
    words: Words,
    /// The header of its packet.
    header: [u8; HEADER],
    /// Bytes of its payload.
    bytes: usize,
}

/// The words of a descriptor, as they lie in memory.
type Words = [u64; DESCRIPTOR as usize / 8];
/// Number of the word with the payload's address.
const ADDRESS: usize = std::mem::offset_of!(Descriptor, pa_payload) / 8;

/// Returns whether two descriptors differ at most in the address of the payload.
#[inline(always)]
fn are_alike(a: &Words, b: &Words) -> bool {
    let mut differences = a[0] ^ b[0];
    for word in (1..a.len()).filter(|&word| word != ADDRESS) {
        differences |= a[word] ^ b[word];
    }
    differences == 0
}

impl RowSender<'_> {
    /// Returns the only packet of the next message, and moves the head past its descriptor.
    /// Changes nothing if the message ends the row.
    #[inline(always)]
    fn next(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        if self.in_service.is_some() {
            return self.last_packet_in_service(ports);
        }

        let words = self.descriptor()?;
        let is_alike = self.checked.as_ref().is_some_and(|last| are_alike(&words, &last.words));
        if !is_alike {
            self.check(words)?;
        }
        let checked = self.checked.as_ref()?;
        let (address, bytes) = (u64::from_le(words[ADDRESS]), checked.bytes);
        // An atomic address is never permitted.
        if !self.permission.permits(address, bytes as u64) {
            return None;
        }

        let mut packet = ports.new_packet(HEADER + bytes.next_multiple_of(CHUNK)).ok()?;
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(&checked.header);
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

    /// Checks a descriptor. Returns `None` if its message ends the row.
    #[inline(never)]
    fn check(&mut self, words: Words) -> Option<()> {
        let descriptor: Descriptor = zerocopy::transmute!(words);
        let template = self.template.of(&descriptor, self.is_system)?;
        let PayloadRange { bytes, .. } = template.single_packet_payload(&descriptor)?;

        let mark = self.identity.mark_on(Some(self.route), &descriptor.packet_header);
        let header = zerocopy::transmute!(template.single_packet_header(&descriptor, mark));
        self.checked = Some(CheckedMessage { words, header, bytes });
        Some(())
    }

    /// Returns the last packet of the message in service, as [`RowSender::next`] does.
    #[inline(never)]
    fn last_packet_in_service(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let message = self.in_service.as_ref()?;
        let PayloadRange { address, bytes } = message.last_payload()?;
        if !self.permission.permits(address, bytes as u64) {
            return None;
        }

        let mut packet = ports.new_packet(HEADER + bytes.next_multiple_of(CHUNK)).ok()?;
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_header(bytes).as_bytes());
        payload[bytes..].fill(0);
        if !self.payloads.read(address, &mut payload[..bytes]) {
            ports.recycle(packet);
            return None;
        }

        self.in_service = None;
        self.ring.consume(DESCRIPTOR);
        self.bytes += bytes as u64;
        Some(packet)
    }

    /// Returns the words of the descriptor at the head.
    #[inline(always)]
    fn descriptor(&self) -> Option<Words> {
        let head = self.ring.head;
        if self.ring.is_empty() || !self.permission.permits(head, DESCRIPTOR) {
            return None;
        }

        let mut descriptor = [0; DESCRIPTOR as usize];
        let is_read = self.descriptors.read_array(head, &mut descriptor);
        is_read.then(|| zerocopy::transmute!(descriptor))
    }
}

/// A reception FIFO that gets packets in a row, until its memory ends.
struct RowReceiver<'a> {
    /// Address of the next packet, and the bytes that fit there. All of them are permitted.
    tail: u64,
    room: u64,
    memory: HeldMemory<'a>,
    /// The fields that the headers of all packets of the row share.
    flow: Flow,
    /// First words of all headers together: a packet asks for an interrupt there.
    options: u64,
}

/// The fields of a header that are the same in all packets of a row: channel, packet type, mark and
/// FIFO. They are in the first two words.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u64,
    second: u64,
}

impl Flow {
    /// The bits of the fields, and the interrupt, in words that are little-endian.
    const CHANNEL: u64 = 0xe0 << 24;
    const PACKET_TYPE: u64 = 0xc0;
    const MARK: u64 = 0xffff << 8;
    const FIFO: u64 = 0xffc0 << 32;
    const INTERRUPT: u64 = (routing::INTERRUPT as u64) << 16;
    /// Number of chunks of payload.
    const CHUNKS: u64 = 0x1f;

    /// Returns the flow of a packet, if its length is that of its header.
    #[inline(always)]
    fn of(packet: &Contents) -> Option<Self> {
        let bytes = packet.bytes();
        let word = |at: usize| {
            let word = bytes.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let (first, second) = (word(0)?, word(8)?);
        let length = HEADER + (second & Self::CHUNKS) as usize * CHUNK;
        let is_whole = bytes.len() == length && length <= HEADER + MAX_PAYLOAD && packet.memory.is_none();
        is_whole.then_some(Self { first, second })
    }

    /// Returns whether two packets have the same fields.
    #[inline(always)]
    fn has_same_fields(self, other: Self) -> bool {
        const SECOND: u64 = Flow::PACKET_TYPE | Flow::MARK | Flow::FIFO;
        (self.first ^ other.first) & Self::CHANNEL == 0 && (self.second ^ other.second) & SECOND == 0
    }
}

impl RowReceiver<'_> {
    /// Writes a packet at the tail. Returns false, and changes nothing, if it ends the row.
    #[inline(always)]
    fn accept(&mut self, packet: &Contents) -> bool {
        let Some(flow) = Flow::of(packet) else { return false };
        let length = packet.len() as u64;
        let is_written = flow.has_same_fields(self.flow)
            && length <= self.room
            && self.memory.write(self.tail, packet.bytes());
        if !is_written {
            return false;
        }

        self.tail += length;
        self.room -= length;
        self.options |= flow.first;
        true
    }
}

impl Unit {
    /// Sends messages of an injection FIFO with which no other competes, at most `limit`. Returns
    /// their number.
    pub(super) fn send_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        limit: u32,
    ) -> u32 {
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return 0 };
        let is_system = owner_of(number).is_system;
        let InjectionFifo { ring, template, view, payload, state, .. } = &mut subgroup.injection[index];
        let Some(template) = template.known() else { return 0 };
        let Some(route) = template.route() else { return 0 };

        // With a choice of network FIFOs, the packets take turns.
        if !route.fifos().is_power_of_two() || ring.is_empty() || !self.timing.is_instant() {
            return 0;
        }
        let engines = route.fifos() & self.control.injection_engines;
        if network.room(engines, context.now()) == 0 {
            return 0;
        }
        let (Some(descriptors), Some(payloads)) = (view.held(), payload.held()) else { return 0 };

        let in_service = match state {
            Injection::Waiting => None,
            Injection::Sending(message) if message.route == Some(route) => Some(*message),
            Injection::Sending(_) | Injection::Disabled | Injection::Draining => return 0,
        };
        let (engine, before) = (engines.trailing_zeros() as u8, ring.free());
        let mut sender = RowSender {
            ring,
            in_service,
            template,
            route,
            descriptors,
            payloads,
            permission: self.control.ranges.permission(is_system, Access::Read),
            identity: &self.identity,
            checked: None,
            is_system,
            bytes: 0,
        };
        let (mut left, now, mut ports) = (limit, context.now(), context.ports());
        let next = || {
            left = left.checked_sub(1)?;
            sender.next(&mut ports)
        };
        let (sent, refused) = network.inject_row(engine, route, now, next);
        let RowSender { in_service, bytes, .. } = sender;

        if let Some(packet) = refused {
            ports.recycle(packet);
        }
        if sent > 0 {
            if in_service.is_none() {
                *state = Injection::Waiting;
            }
            self.next_engine = (engine + 1) % 16;
            self.counters[counter::BYTES_SENT] += bytes;
            self.finish_row(fifo, sent, before);
        }
        sent
    }

    /// Ends the messages of a row: the head has moved past their descriptors.
    fn finish_row(&mut self, fifo: u16, sent: u32, before: u64) {
        let (number, index) = subgroup_and_index(fifo);
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

    /// Writes packets of a network reception FIFO into a user's reception FIFO, at most `limit`.
    /// Returns their number.
    pub(super) fn deposit_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        engine: u8,
        limit: u32,
    ) -> u32 {
        let now = context.now();
        let first = network.front(engine, now);
        let Some((flow, fifo)) = first.and_then(|packet| self.flow_of(packet)) else { return 0 };
        let (mut ports, mut left) = (context.ports(), limit);
        self.deposit((flow, fifo), |receiver| {
            let accept = |packet: &Packet| {
                let is_accepted = left > 0 && receiver.accept(packet);
                left -= u32::from(is_accepted);
                is_accepted
            };
            network.take_row(engine, now, accept, |packet| ports.recycle(packet))
        })
    }

    /// Writes packets of a link into a user's reception FIFO, at most `limit`, as if they had come
    /// through their network reception FIFO. Returns their number.
    pub(crate) fn deposit_bypassing(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        bypass: &mut Bypass,
        limit: u32,
    ) -> u32 {
        let open = self.control.reception_engines & !self.engines.waiting();
        if open >> bypass.fifo & 1 == 0 {
            return 0;
        }

        let (mut passed, mut ports) = (0, context.ports());
        while passed < limit {
            let Some(flow) = bypass.first(&ports).and_then(|packet| self.flow_of(packet)) else { break };
            let row = self.deposit(flow, |receiver| {
                network.bypass_row(&mut ports, bypass, limit - passed, |packet| receiver.accept(packet))
            });
            if row == 0 {
                break;
            }
            passed += row;
        }

        if passed > 0 {
            self.engines.turn = (bypass.fifo + 1) % 16;
        }
        passed
    }

    /// Returns the flow of a packet for a user's reception FIFO, and the FIFO, if the tenant that
    /// the packet is for is the present one.
    #[inline]
    fn flow_of(&self, packet: &Contents) -> Option<(Flow, u16)> {
        let (header, _) = PacketHeader::ref_from_prefix(packet.bytes()).ok()?;
        let fifo = header.unit.reception_fifo();
        if header.packet_type() != packet_type::FIFO || fifo / RECEPTION_FIFOS >= USER_SUBGROUPS {
            return None;
        }

        let mark = u16::from_le_bytes(header.injection_info);
        let is_current = mark == 0 || mark == self.identity.mark_at(self.identity.node, header);
        Flow::of(packet).filter(|_| is_current).map(|flow| (flow, fifo))
    }

    /// Calls `take` with a receiver that writes packets of a flow into a FIFO. Returns the number
    /// of packets that it has accepted.
    #[inline(always)]
    fn deposit(&mut self, (flow, fifo): (Flow, u16), take: impl FnOnce(&mut RowReceiver<'_>) -> u32) -> u32 {
        let (number, index) = (fifo / RECEPTION_FIFOS, usize::from(fifo % RECEPTION_FIFOS));
        let Some(subgroup) = self.subgroups.get_mut(number) else { return 0 };
        let ReceptionFifo { ring, view, is_enabled, .. } = &mut subgroup.reception[index];
        let Some(memory) = view.held().filter(|_| *is_enabled && self.timing.is_instant()) else { return 0 };

        // One byte of a FIFO always stays free.
        let (before, tail) = (ring.free(), ring.tail);
        let room = before.saturating_sub(1).min(ring.contiguous());
        if !self.control.ranges.permit(false, tail, room, Access::Write) {
            return 0;
        }

        let mut receiver = RowReceiver { tail, room, memory, flow, options: 0 };
        let taken = take(&mut receiver);

        let RowReceiver { tail: end, options, .. } = receiver;
        if taken > 0 {
            // The packets are in memory, so the tail may move past them.
            ring.produce(end - tail);
            subgroup.reception_moved(index, before, options & Flow::INTERRUPT != 0);
            self.subgroups.mark_changed(number);
            self.counters[counter::FIFO_PACKETS] += u64::from(taken);
            self.counters[counter::BYTES_RECEIVED] += end - tail - u64::from(taken) * HEADER as u64;
        }
        taken
    }
}
