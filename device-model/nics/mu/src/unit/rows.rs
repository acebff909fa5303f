//! Rows: messages of one injection FIFO with which no other competes.
//!
//! The priorities and the pseudo-random choice decide packet by packet among FIFOs that wait. Where
//! one FIFO waits alone, its packets go in a row. The FIFO, its route, its memory and the network
//! FIFO are looked up once for a row. The packets and counters are the same as one by one.
//!
//! In: a FIFO without competitors. Out: packets in a network injection FIFO, and a moved head. May
//! touch: client memory by views, network FIFOs.
//!
//! Rows have messages of one packet, whose template is that of the message before, in memory that
//! the views hold. Everything else ends a row and is left to `inject`, and so are all faults.

use nicforge_core::{
    context::Context,
    fabric::{Packet, Ports},
};
use nicforge_hwi::{
    mu::DESCRIPTOR,
    mu_dcr::counter,
    mu_packet::{CHUNK, Descriptor, HEADER},
};
use zerocopy::IntoBytes;

use super::{
    Identity, Unit, engine_after,
    inject::subgroup_and_index,
    message::{Kind, KnownTemplate, Message, PayloadRange},
    ranges::{Access, Permission},
    ring::Ring,
    subgroup::{Injection, InjectionFifo, owner_of},
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
    /// The FIFO is for remote gets, so that its descriptors can have stamps.
    is_for_gets: bool,
    /// The messages are remote gets, whose descriptors get stamps.
    is_of_gets: bool,
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
    /// The next message has been fetched, and these network FIFOs, to which it may go, have no
    /// room.
    Full(u16),
    /// The FIFO has to be served to find out, or has spent its budget and stays a candidate.
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
        if self.is_of_gets {
            self.identity.stamp(&mut payload[..bytes]);
        }

        self.ring.consume(DESCRIPTOR);
        self.bytes_sent += bytes as u64;
        Some(packet)
    }

    /// Fetches the next message, if its descriptor differs from the last one in the address of the
    /// payload alone. The head stays at the descriptor.
    fn fetch_like_last(&self) -> Option<Message> {
        let (words, last) = (self.next_descriptor()?, self.last_checked.as_ref()?);
        if !differ_in_address_alone(&words, &last.words) {
            return None;
        }

        let descriptor: Descriptor = zerocopy::transmute!(words);
        let mut message = self.template.message(&descriptor)?;
        let header = &descriptor.packet_header;
        message.set_mark(self.identity.mark_of(message.route, header, self.is_for_gets));
        Some(message)
    }

    /// Checks a descriptor, and keeps the result in `last_checked`. Returns `None` if the row ends
    /// before its message.
    #[inline(never)]
    fn check(&mut self, words: DescriptorWords) -> Option<()> {
        let descriptor: Descriptor = zerocopy::transmute!(words);
        let template = self.template.if_same(&descriptor, self.is_system)?;
        let PayloadRange { bytes, .. } = template.single_packet_payload(&descriptor)?;

        // The mark names the tenant that the packet is for.
        let mark = self.identity.mark_of(Some(self.route), &descriptor.packet_header, self.is_for_gets);
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
        if self.is_of_gets {
            self.identity.stamp(&mut payload[..bytes]);
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
        let is_for_gets = subgroup.remote_get >> index & 1 == 1;
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
            is_for_gets,
            is_of_gets: template.kind() == Kind::Get,
            bytes_sent: 0,
        };

        let (mut left, mut ports) = (limit, context.ports());
        let next_packet = || {
            left = left.checked_sub(1)?;
            sender.next(&mut ports)
        };
        let (sent, refused) = network.inject_row(engine, route, now, next_packet);

        let is_full = sent < limit && network.room(engines, now) == 0;
        let fetched = if is_full { sender.fetch_like_last() } else { None };
        let end = if fetched.is_some() {
            RowEnd::Full(route.fifos())
        } else if sent < limit && sender.ring.is_empty() {
            RowEnd::Empty
        } else {
            RowEnd::Unknown
        };
        let RowSender { in_service, bytes_sent, .. } = sender;

        if let Some(packet) = refused {
            ports.recycle(packet);
        }
        if sent > 0 {
            // The row began with the last packet of the message in service, if there was one.
            match fetched {
                Some(message) => *state = Injection::Sending(message),
                None if in_service.is_none() => *state = Injection::Waiting,
                None => {}
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
}
