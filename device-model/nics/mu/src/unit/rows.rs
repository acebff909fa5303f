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
    Identity, Unit, engine_after,
    inject::subgroup_and_index,
    message::{KnownTemplate, Message, PayloadRange},
    ranges::{Access, Permission},
    receive::reception_subgroup_and_index,
    ring::Ring,
    subgroup::{Injection, InjectionFifo, ReceptionFifo, owner_of},
    view::HeldMemory,
};
use crate::network::{NetworkUnit, Route};

/// An injection FIFO whose messages are sent in a row.
struct RowSender<'a> {
    ring: &'a mut Ring,
    /// The message that is in service when the row begins. It belongs to the row if one packet is
    /// left of it.
    in_service: Option<Message>,
    /// The template that all messages of the row have.
    template: KnownTemplate<'a>,
    route: Route,
    /// The memory of the descriptors.
    descriptors: HeldMemory<'a>,
    /// The memory of the payloads.
    payloads: HeldMemory<'a>,
    permission: Permission<'a>,
    identity: &'a Identity,
    /// The last message whose descriptor was checked, if there is one.
    last_checked: Option<CheckedMessage>,
    is_system: bool,
    /// Bytes of payload sent.
    bytes_sent: u64,
}

/// A message of the row that has passed all checks except those of its payload's address. The
/// messages behind it often differ from it in that address alone.
#[derive(Debug)]
struct CheckedMessage {
    /// The words of its descriptor.
    words: DescriptorWords,
    /// The header of its packet.
    header: [u8; HEADER],
    /// Bytes of its payload.
    payload_bytes: usize,
}

/// The words of a descriptor, as they lie in memory.
type DescriptorWords = [u64; DESCRIPTOR as usize / 8];
/// Number of the descriptor's word with the payload's address.
const ADDRESS_WORD: usize = std::mem::offset_of!(Descriptor, pa_payload) / 8;

/// A row of messages that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentRow {
    /// Number of messages; 0 where a row is not possible.
    pub(super) messages: u32,
    /// The FIFO's state after the row, as far as it is known.
    pub(super) end: RowEnd,
}

/// The state of an injection FIFO after a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowEnd {
    /// It has no more descriptors.
    Empty,
    /// The next message is like the last one of the row, and these network FIFOs, to which it may
    /// go, have no room.
    Full(u16),
    /// It has to be served to find out, or has spent its budget and stays a candidate.
    Unknown,
}

impl SentRow {
    /// A row is not possible.
    const NONE: Self = Self { messages: 0, end: RowEnd::Unknown };
}

/// Returns whether two descriptors differ at most in the address of the payload.
#[inline(always)]
fn differ_in_address_alone(a: &DescriptorWords, b: &DescriptorWords) -> bool {
    let mut differences = a[0] ^ b[0];
    for word in (1..a.len()).filter(|&word| word != ADDRESS_WORD) {
        differences |= a[word] ^ b[word];
    }
    differences == 0
}

impl RowSender<'_> {
    /// Returns the only packet of the next message, and moves the head past its descriptor. Returns
    /// `None`, and leaves the message alone, if the row ends before it.
    #[inline(always)]
    fn next(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        if self.in_service.is_some() {
            return self.last_packet_in_service(ports);
        }

        let words = self.next_descriptor()?;
        let last = self.last_checked.as_ref();
        let needs_check = !last.is_some_and(|last| differ_in_address_alone(&words, &last.words));
        if needs_check {
            self.check(words)?;
        }
        let checked = self.last_checked.as_ref()?;
        let (address, bytes) = (u64::from_le(words[ADDRESS_WORD]), checked.payload_bytes);
        // The address of an atomic operation is beyond all ranges, so it ends the row here.
        if !self.permission.permits(address, bytes as u64) {
            return None;
        }

        let mut packet = ports.new_packet(HEADER + bytes.next_multiple_of(CHUNK)).ok()?;
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(&checked.header);
        // Zeros pad the last chunk. The payload then overwrites the chunk's beginning.
        if let Some(last) = payload.last_chunk_mut::<CHUNK>() {
            *last = [0; CHUNK];
        }
        if !self.payloads.read(address, &mut payload[..bytes]) {
            ports.recycle(packet);
            return None;
        }

        self.ring.consume(DESCRIPTOR);
        self.bytes_sent += bytes as u64;
        Some(packet)
    }

    /// Returns whether the next message has passed all checks: it differs from the last one in the
    /// address of its payload alone, which is permitted.
    #[inline]
    fn has_next_like_last(&self) -> bool {
        let (Some(words), Some(last)) = (self.next_descriptor(), &self.last_checked) else { return false };
        let address = u64::from_le(words[ADDRESS_WORD]);
        differ_in_address_alone(&words, &last.words)
            && self.permission.permits(address, last.payload_bytes as u64)
    }

    /// Checks a descriptor, and keeps the result in `last_checked`. Returns `None` if the row ends
    /// before its message.
    #[inline(never)]
    fn check(&mut self, words: DescriptorWords) -> Option<()> {
        let descriptor: Descriptor = zerocopy::transmute!(words);
        let template = self.template.if_same(&descriptor, self.is_system)?;
        let PayloadRange { bytes, .. } = template.single_packet_payload(&descriptor)?;

        // The mark names the tenant that the packet is for.
        let mark = self.identity.mark_on(Some(self.route), &descriptor.packet_header);
        let header = zerocopy::transmute!(template.single_packet_header(&descriptor, mark));
        self.last_checked = Some(CheckedMessage { words, header, payload_bytes: bytes });
        Some(())
    }

    /// Does what [`RowSender::next`] does for the last packet of the message in service.
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
        self.bytes_sent += bytes as u64;
        Some(packet)
    }

    /// Returns the words of the descriptor at the head. Returns `None` if there is none, or its
    /// memory can't be read here.
    #[inline(always)]
    fn next_descriptor(&self) -> Option<DescriptorWords> {
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
    /// Address at which the next packet is written.
    tail: u64,
    /// Bytes that fit there, all of which are permitted.
    room: u64,
    memory: HeldMemory<'a>,
    /// The header of the first packet, with which the others must share some fields.
    header: HeaderWords,
    /// The bitwise or of the first words of all headers: its interrupt bit is set if one of the
    /// packets asks for an interrupt.
    first_words: u64,
}

/// The first two little-endian words of a packet's header. They have the fields that all packets of
/// a row share: channel, packet type, mark and FIFO.
#[derive(Clone, Copy, Debug)]
struct HeaderWords {
    first: u64,
    second: u64,
}

impl HeaderWords {
    /// First word: the virtual channel, in byte 3 of the header.
    const CHANNEL: u64 = 0xe0 << 24;
    /// First word: the request for an interrupt, in byte 2.
    const INTERRUPT: u64 = (routing::INTERRUPT as u64) << 16;
    /// Second word: the packet type, in byte 8.
    const PACKET_TYPE: u64 = 0xc0;
    /// Second word: the number of chunks of payload, in byte 8.
    const CHUNKS: u64 = 0x1f;
    /// Second word: the mark, in bytes 9 and 10.
    const MARK: u64 = 0xffff << 8;
    /// Second word: the reception FIFO, in bytes 12 and 13.
    const FIFO: u64 = 0xffc0 << 32;

    /// Returns the words of a packet that carries its payload and has the length that its header
    /// states.
    #[inline(always)]
    fn of(packet: &Contents) -> Option<Self> {
        let bytes = packet.bytes();
        let word = |at: usize| {
            let word = bytes.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let (first, second) = (word(0)?, word(8)?);
        let length = HEADER + (second & Self::CHUNKS) as usize * CHUNK;
        let is_valid = bytes.len() == length && length <= HEADER + MAX_PAYLOAD && packet.memory.is_none();
        is_valid.then_some(Self { first, second })
    }

    /// Returns whether the packets of two headers can be in one row.
    #[inline(always)]
    fn is_same_row(self, other: Self) -> bool {
        const SECOND: u64 = HeaderWords::PACKET_TYPE | HeaderWords::MARK | HeaderWords::FIFO;
        (self.first ^ other.first) & Self::CHANNEL == 0 && (self.second ^ other.second) & SECOND == 0
    }
}

impl RowReceiver<'_> {
    /// Writes a packet at the tail. Returns false, and changes nothing, if it ends the row.
    #[inline(always)]
    fn accept(&mut self, packet: &Contents) -> bool {
        let Some(header) = HeaderWords::of(packet) else { return false };
        let length = packet.len() as u64;
        let is_written = header.is_same_row(self.header)
            && length <= self.room
            && self.memory.write(self.tail, packet.bytes());
        if !is_written {
            return false;
        }

        self.tail += length;
        self.room -= length;
        self.first_words |= header.first;
        true
    }
}

/// The reception FIFO of a row of packets, and the header of the first one.
struct RowTarget {
    fifo: u16,
    header: HeaderWords,
}

impl Unit {
    /// Sends messages of an injection FIFO with which no other competes, at most `limit`.
    pub(super) fn send_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        limit: u32,
    ) -> SentRow {
        const NONE: SentRow = SentRow::NONE;
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return NONE };
        let is_system = owner_of(subgroup_id).is_system;
        let InjectionFifo { ring, template, view, payload_view, state, .. } = &mut subgroup.injection[index];
        let Some(template) = template.known() else { return NONE };
        let Some(route) = template.route() else { return NONE };

        // Packets with a choice of network FIFOs take turns among these, so they make no row. With
        // a clock, each packet takes time of its own.
        if !route.fifos().is_power_of_two() || ring.is_empty() || !self.timing.is_instant() {
            return NONE;
        }
        let (engines, now) = (route.fifos() & self.control.injection_engines, context.now());
        if network.room(engines, now) == 0 {
            return NONE;
        }
        let (Some(descriptors), Some(payloads)) = (view.held(), payload_view.held()) else { return NONE };

        let in_service = match state {
            Injection::Waiting => None,
            Injection::Sending(message) if message.route == Some(route) => Some(*message),
            Injection::Sending(_) | Injection::Disabled | Injection::Draining => return NONE,
        };
        let (engine, free_before) = (engines.trailing_zeros() as u8, ring.free());
        let mut sender = RowSender {
            ring,
            in_service,
            template,
            route,
            descriptors,
            payloads,
            permission: self.control.ranges.permission(is_system, Access::Read),
            identity: &self.identity,
            last_checked: None,
            is_system,
            bytes_sent: 0,
        };

        let (mut left, mut ports) = (limit, context.ports());
        let next_packet = || {
            left = left.checked_sub(1)?;
            sender.next(&mut ports)
        };
        let (sent, refused) = network.inject_row(engine, route, now, next_packet);

        let end = if sent == limit {
            RowEnd::Unknown
        } else if sender.ring.is_empty() {
            RowEnd::Empty
        } else if network.room(engines, now) == 0 && sender.has_next_like_last() {
            RowEnd::Full(route.fifos())
        } else {
            RowEnd::Unknown
        };
        let RowSender { in_service, bytes_sent, .. } = sender;

        if let Some(packet) = refused {
            ports.recycle(packet);
        }
        if sent > 0 {
            // The row began with the last packet of the message in service, if there was one.
            if in_service.is_none() {
                *state = Injection::Waiting;
            }
            self.next_engine = engine_after(engine);
            self.counters[counter::BYTES_SENT] += bytes_sent;
            self.finish_row(fifo, sent, free_before);
        }
        SentRow { messages: sent, end }
    }

    /// Ends the `sent` messages of a row: the head has moved past their descriptors. `free_before`
    /// is the free space of the FIFO before the row.
    fn finish_row(&mut self, fifo: u16, sent: u32, free_before: u64) {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        subgroup.injection[index].descriptors_done += u64::from(sent);
        subgroup.injection_moved(index, free_before);

        // A remote get may wait for the room of these descriptors.
        let is_for_gets = subgroup.remote_get >> index & 1 == 1;
        self.subgroups.mark_changed(subgroup_id);
        self.counters[counter::PACKETS_SENT] += u64::from(sent);
        self.counters[counter::DESCRIPTORS] += u64::from(sent);
        if is_for_gets {
            self.reception_waits.wake_for_injection(fifo);
        }
    }

    /// Writes packets of an engine's network reception FIFO into a user's reception FIFO, at most
    /// `limit`. Returns their number, which is 0 where a row is not possible.
    pub(super) fn deposit_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        engine: u8,
        limit: u32,
    ) -> u32 {
        let now = context.now();
        let first = network.front(engine, now);
        let Some(target) = first.and_then(|packet| self.row_target(packet)) else { return 0 };
        let (mut ports, mut left) = (context.ports(), limit);
        self.deposit_packets(target, |receiver| {
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
        let open_engines = self.control.reception_engines & !self.reception_waits.waiting();
        if open_engines >> bypass.fifo & 1 == 0 {
            return 0;
        }

        let (mut passed, mut ports) = (0, context.ports());
        while passed < limit {
            let first = bypass.first(&ports);
            let Some(target) = first.and_then(|packet| self.row_target(packet)) else { break };
            let row = self.deposit_packets(target, |receiver| {
                network.bypass_row(&mut ports, bypass, limit - passed, |packet| receiver.accept(packet))
            });
            if row == 0 {
                break;
            }
            passed += row;
        }

        if passed > 0 {
            self.reception_waits.turn = engine_after(bypass.fifo);
        }
        passed
    }

    /// Returns the target of a row that begins with a packet. Returns `None` if the packet is not
    /// for a user's reception FIFO, or is for a former tenant.
    #[inline]
    fn row_target(&self, packet: &Contents) -> Option<RowTarget> {
        let (header, _) = PacketHeader::ref_from_prefix(packet.bytes()).ok()?;
        let fifo = header.unit.reception_fifo();
        if header.packet_type() != packet_type::FIFO || fifo / RECEPTION_FIFOS >= USER_SUBGROUPS {
            return None;
        }

        // The mark names the tenant that the packet was sent to; 0 stands for any.
        let mark = u16::from_le_bytes(header.injection_info);
        let is_current = mark == 0 || mark == self.identity.mark_at(self.identity.node, header);
        HeaderWords::of(packet).filter(|_| is_current).map(|header| RowTarget { fifo, header })
    }

    /// Calls `pass_packets` with a receiver for the packets of a row. It passes packets to the
    /// receiver, and returns the number of those that were accepted. Moves the tail past these
    /// packets, and returns their number.
    #[inline(always)]
    fn deposit_packets(
        &mut self,
        RowTarget { fifo, header }: RowTarget,
        pass_packets: impl FnOnce(&mut RowReceiver<'_>) -> u32,
    ) -> u32 {
        let (subgroup_id, index) = reception_subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return 0 };
        let ReceptionFifo { ring, view, is_enabled, .. } = &mut subgroup.reception[index];
        let Some(memory) = view.held().filter(|_| *is_enabled && self.timing.is_instant()) else { return 0 };

        // One byte of a FIFO always stays free.
        let (free_before, tail) = (ring.free(), ring.tail);
        let room = free_before.saturating_sub(1).min(ring.contiguous_at_tail());
        if !self.control.ranges.permit(false, tail, room, Access::Write) {
            return 0;
        }

        let mut receiver = RowReceiver { tail, room, memory, header, first_words: 0 };
        let accepted = pass_packets(&mut receiver);

        let RowReceiver { tail: end, first_words, .. } = receiver;
        if accepted > 0 {
            // The packets are in memory, so the tail may move past them.
            ring.produce(end - tail);
            let packet_interrupts = first_words & HeaderWords::INTERRUPT != 0;
            subgroup.reception_moved(index, free_before, packet_interrupts);
            self.subgroups.mark_changed(subgroup_id);
            self.counters[counter::FIFO_PACKETS] += u64::from(accepted);
            self.counters[counter::BYTES_RECEIVED] += end - tail - u64::from(accepted) * HEADER as u64;
        }
        accepted
    }
}
