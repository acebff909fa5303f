//! A message: a descriptor that has passed all checks, and how far it has been sent.
//!
//! In: descriptors. Out: the header and the source of each packet. May touch: its own state.

use nicforge_core::time::Nanos;
use nicforge_hwi::{
    mu::{ADDRESS_BITS, DESCRIPTOR, atomic, fault},
    mu_dcr::error,
    mu_packet::{Descriptor, MAX_PAYLOAD, PacketHeader, channel, fifo_map, kind, packet_type, routing},
};

use super::reference;
use crate::network::{NetworkUnit, Route};
use zerocopy::IntoBytes;

/// Bits of an address or a put offset, without the indicator of an atomic one.
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// The kinds of messages, by the use of their payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The payload goes into a reception FIFO.
    Fifo,
    /// The payload is written to memory.
    Put,
    /// The payload is descriptors, for an injection FIFO of the target.
    Get,
    /// The payload is read, and nothing is sent.
    Prefetch,
}

/// Location of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadSource {
    /// Memory from this address on.
    Memory(u64),
    /// The result of an operation on the word at this address.
    Atomic { address: u64, operation: u64 },
}

/// The memory of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PayloadRange {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// The reason why a descriptor is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// Reason why the FIFO stops: one of [`fault`].
    pub(crate) fault: u64,
    /// The number of the error in the set of descriptor errors.
    pub(crate) error: u8,
}

impl Rejected {
    /// Returns the rejection of a descriptor with an impossible field.
    fn descriptor(error: u8) -> Self {
        Self { fault: fault::DESCRIPTOR, error }
    }

    /// Returns the rejection of a user's descriptor that names something of the system.
    fn permission(error: u8) -> Self {
        Self { fault: fault::PERMISSION, error }
    }
}

/// The result of the checks of a descriptor's header template: the fields that messages with the
/// same template share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    kind: Kind,
    /// Maximum number of bytes of payload of a packet.
    packet_bytes: u16,
    /// `None` if nothing is sent.
    route: Option<Route>,
}

impl Template {
    /// Checks the fields of a descriptor other than those of its payload and its put offset.
    fn new(descriptor: &Descriptor, network: &NetworkUnit, is_system: bool) -> Result<Self, Rejected> {
        let kind = kind_of(descriptor)?;
        let packet_bytes = packet_bytes(&descriptor.packet_header)?;
        if kind == Kind::Prefetch {
            return Ok(Self { kind, packet_bytes, route: None });
        }

        check_permission(descriptor, is_system)?;
        let route = Some(route(descriptor, &header_of(descriptor, 0), network, is_system)?);
        Ok(Self { kind, packet_bytes, route })
    }

    /// Checks the fields of the payload and the put offset. Returns the location of the payload.
    #[inline(always)]
    fn check_payload(&self, descriptor: &Descriptor) -> Result<PayloadSource, Rejected> {
        let length = descriptor.message_length;
        check_length(self.kind, length, self.packet_bytes)?;
        let source = payload_source(descriptor.pa_payload, length, self.kind)?;

        let offset = descriptor.packet_header.unit.put_offset() & ADDRESS_MASK;
        if self.kind == Kind::Put && offset + length > 1 << ADDRESS_BITS {
            return Err(Rejected::descriptor(error::MCSRAM_OFFSET));
        }
        Ok(source)
    }

    /// Returns a message's payload in memory. Returns `None` if a check refuses the descriptor, the
    /// payload is the result of an atomic operation, or the message has more than one packet.
    #[inline(always)]
    pub(crate) fn single_packet_payload(&self, descriptor: &Descriptor) -> Option<PayloadRange> {
        match self.check_payload(descriptor) {
            Ok(PayloadSource::Memory(address)) if descriptor.message_length <= self.packet_bytes.into() => {
                Some(PayloadRange { address, bytes: descriptor.message_length as usize })
            }
            _ => None,
        }
    }

    /// Returns the header of a message's only packet. `mark` names the tenant that the packet is
    /// for.
    #[inline]
    pub(crate) fn single_packet_header(&self, descriptor: &Descriptor, mark: u16) -> PacketHeader {
        let (header, bytes) = (header_of(descriptor, mark), descriptor.message_length as usize);
        packet_header(header, self.kind, bytes, wants_interrupt(descriptor, self.kind))
    }
}

/// Returns the header that all packets of a message share. `mark` names the tenant that they are
/// for; it is 0 if that is not known yet.
#[inline(always)]
fn header_of(descriptor: &Descriptor, mark: u16) -> PacketHeader {
    let mut header = descriptor.packet_header;
    // Only the last packet may ask for an interrupt. The bit is the same in collective headers.
    header.byte2 &= !routing::INTERRUPT;
    header.injection_info = mark.to_le_bytes();
    header
}

/// Returns whether the last packet of a message asks for an interrupt.
#[inline(always)]
fn wants_interrupt(descriptor: &Descriptor, kind: Kind) -> bool {
    kind == Kind::Fifo && descriptor.interrupt & 1 == 1
}

/// Returns the header of a packet with `bytes` bytes of payload. `interrupts` says whether it asks
/// for an interrupt.
#[inline(always)]
fn packet_header(mut header: PacketHeader, kind: Kind, bytes: usize, interrupts: bool) -> PacketHeader {
    header.set_payload_bytes(bytes);
    if kind == Kind::Put {
        header.unit.set_valid_bytes(bytes as u16);
    }
    if interrupts {
        header.byte2 |= routing::INTERRUPT;
    }
    header
}

/// The template of a FIFO's last message from one node to another, with the result of its checks.
/// Many messages differ from the one before only in payload and put offset, so that their template
/// needs no second check.
#[derive(Debug, Default)]
pub(crate) struct LastTemplate(Option<(TemplateKey, Template)>);

/// The fields of a descriptor that the checks of its template depend on, in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TemplateKey {
    /// First 8 bytes of the header: header type, hints, options, channel and destination.
    header: u64,
    /// Byte 8 of the header: packet type and size.
    byte8: u8,
    prefetch_only: u32,
    /// Network injection FIFOs that the packets may use.
    fifo_map: u64,
    is_system: bool,
}

impl TemplateKey {
    /// Returns the key of a descriptor's template.
    #[inline]
    fn new(descriptor: &Descriptor, is_system: bool) -> Self {
        let header = &descriptor.packet_header;
        Self {
            header: header.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            byte8: header.byte8,
            prefetch_only: descriptor.prefetch_only,
            fifo_map: descriptor.torus_fifo_map,
            is_system,
        }
    }
}

impl LastTemplate {
    /// Returns the template that is kept, if there is one.
    #[inline]
    pub(crate) fn known(&self) -> Option<KnownTemplate<'_>> {
        self.0.as_ref().map(|(key, template)| KnownTemplate { key, template })
    }

    /// Returns the result of the checks of a descriptor's template: the kept one if it is the same
    /// template, else that of `check`.
    #[inline]
    fn get_or_check(
        &mut self,
        descriptor: &Descriptor,
        is_system: bool,
        check: impl FnOnce() -> Result<Template, Rejected>,
    ) -> Result<Template, Rejected> {
        let key = TemplateKey::new(descriptor, is_system);
        match &self.0 {
            Some((last, template)) if *last == key => Ok(*template),
            _ => self.check_and_keep(key, check),
        }
    }

    /// Checks a template, and keeps the result if it stays the same for later messages.
    fn check_and_keep(
        &mut self,
        key: TemplateKey,
        check: impl FnOnce() -> Result<Template, Rejected>,
    ) -> Result<Template, Rejected> {
        let template = check()?;
        // Collective messages are checked each time, because software can change class routes.
        let header_type = key.header.to_le_bytes()[0];
        if header_type == kind::POINT_TO_POINT {
            self.0 = Some((key, template));
        }
        Ok(template)
    }
}

/// The template of a FIFO's last message, for messages that have the same one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownTemplate<'a> {
    key: &'a TemplateKey,
    template: &'a Template,
}

impl<'a> KnownTemplate<'a> {
    /// Returns the kind of its messages.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.template.kind
    }

    /// Returns the route of its messages; `None` if nothing is sent.
    #[inline]
    pub(crate) fn route(&self) -> Option<Route> {
        self.template.route
    }

    /// Returns the message of a descriptor that has the same template. Returns `None` if a check of
    /// its other fields refuses it.
    #[inline]
    pub(crate) fn message(&self, descriptor: &Descriptor) -> Option<Message> {
        Message::of_template(descriptor, self.template).ok()
    }

    /// Returns the template if a descriptor has the same one.
    #[inline(always)]
    pub(crate) fn if_same(&self, descriptor: &Descriptor, is_system: bool) -> Option<&'a Template> {
        (*self.key == TemplateKey::new(descriptor, is_system)).then_some(self.template)
    }
}

/// A message that is being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// The header of the next packet, without size and interrupt.
    header: PacketHeader,
    pub(crate) route: Option<Route>,
    pub(crate) kind: Kind,
    pub(crate) source: PayloadSource,
    /// Bytes that have not been sent.
    pub(crate) left: u64,
    /// Time from which its first packet can be sent.
    pub(crate) ready: Nanos,
    /// Maximum number of bytes of payload of a packet.
    packet_bytes: u16,
    /// The last packet asks for an interrupt.
    interrupts: bool,
    /// Packets may refer to the payload instead of carrying it.
    pub(crate) may_refer: bool,
}

impl Message {
    /// Checks a descriptor of a user's or the system's FIFO.
    ///
    /// # Errors
    /// [`Rejected`]: the FIFO stops.
    #[inline]
    pub(crate) fn new(
        descriptor: &Descriptor,
        last: &mut LastTemplate,
        network: &NetworkUnit,
        is_system: bool,
    ) -> Result<Self, Rejected> {
        let template =
            last.get_or_check(descriptor, is_system, || Template::new(descriptor, network, is_system))?;
        Self::of_template(descriptor, &template)
    }

    /// Checks the fields of a descriptor that are not part of its template.
    #[inline(always)]
    fn of_template(descriptor: &Descriptor, template: &Template) -> Result<Self, Rejected> {
        let source = template.check_payload(descriptor)?;
        let Template { kind, packet_bytes, route } = *template;
        let (header, left) = (header_of(descriptor, 0), descriptor.message_length);

        let interrupts = wants_interrupt(descriptor, kind);
        // References are for packets with one receiver: no collective ones, and none that leave
        // copies.
        let may_refer = kind == Kind::Put
            && left >= reference::SHORTEST
            && header.data_packet_type == self::kind::POINT_TO_POINT
            && header.byte2 & routing::DEPOSIT == 0;
        let ready = Nanos::ZERO;
        Ok(Self { header, route, kind, source, left, ready, packet_bytes, interrupts, may_refer })
    }

    /// Sets the mark of the packets, which names the tenant that they are for.
    pub(crate) fn set_mark(&mut self, mark: u16) {
        self.header.injection_info = mark.to_le_bytes();
    }

    /// Returns the header that all packets of the message share.
    #[inline]
    pub(crate) fn header(&self) -> &PacketHeader {
        &self.header
    }

    /// Returns the payload of the message's last packet. Returns `None` if more packets are left,
    /// if packets may refer to the payload, or if it is the result of an atomic operation.
    #[inline]
    pub(crate) fn last_payload(&self) -> Option<PayloadRange> {
        match self.source {
            PayloadSource::Memory(address) if !self.may_refer && self.left <= self.packet_bytes.into() => {
                Some(PayloadRange { address, bytes: self.left as usize })
            }
            _ => None,
        }
    }

    /// Returns the number of bytes of payload of the next packet.
    #[inline]
    pub(crate) fn next_bytes(&self) -> usize {
        self.left.min(self.packet_bytes.into()) as usize
    }

    /// Returns the header of the next packet, which has `bytes` bytes of payload.
    #[inline]
    pub(crate) fn next_header(&self, bytes: usize) -> PacketHeader {
        packet_header(self.header, self.kind, bytes, self.interrupts && bytes as u64 == self.left)
    }

    /// Returns the header of the next packet, which refers to its payload.
    pub(crate) fn next_reference_header(&self) -> PacketHeader {
        let mut header = self.header;
        header.set_payload_bytes(size_of::<reference::PayloadPlace>());
        header
    }

    /// Records that a packet with `bytes` bytes of payload has been sent. Returns whether it was
    /// the last one.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) -> bool {
        self.left -= bytes;
        if let PayloadSource::Memory(address) = &mut self.source {
            *address += bytes;
        }
        if matches!(self.kind, Kind::Put | Kind::Fifo) {
            let unit = &mut self.header.unit;
            unit.set_put_offset(unit.put_offset().wrapping_add(bytes));
        }
        self.left == 0
    }
}

/// Returns the kind of a descriptor's message.
fn kind_of(descriptor: &Descriptor) -> Result<Kind, Rejected> {
    if descriptor.prefetch_only & 1 == 1 {
        return Ok(Kind::Prefetch);
    }
    match descriptor.packet_header.packet_type() {
        packet_type::FIFO => Ok(Kind::Fifo),
        packet_type::PUT => Ok(Kind::Put),
        packet_type::GET => Ok(Kind::Get),
        _ => Err(Rejected::descriptor(error::MCSRAM_PACKET_TYPE)),
    }
}

/// Returns the maximum number of bytes of payload of a message's packets. The template states it in
/// chunks; 0 stands for the longest packet.
fn packet_bytes(header: &PacketHeader) -> Result<u16, Rejected> {
    match header.payload_bytes() {
        0 => Ok(MAX_PAYLOAD as u16),
        bytes if bytes <= MAX_PAYLOAD => Ok(bytes as u16),
        _ => Err(Rejected::descriptor(error::MCSRAM_PACKET_SIZE)),
    }
}

/// Checks the length of a message against its kind.
fn check_length(kind: Kind, length: u64, packet_bytes: u16) -> Result<(), Rejected> {
    let error = match kind {
        Kind::Put | Kind::Get | Kind::Prefetch if length == 0 => error::MCSRAM_NO_PAYLOAD,
        Kind::Get if !length.is_multiple_of(DESCRIPTOR) => error::MCSRAM_GET_LENGTH,
        Kind::Get if !u64::from(packet_bytes).is_multiple_of(DESCRIPTOR) => error::MCSRAM_GET_PACKET_SIZE,
        _ if length > 1 << ADDRESS_BITS => error::MCSRAM_PAYLOAD_END,
        _ => return Ok(()),
    };
    Err(Rejected::descriptor(error))
}

/// Returns the location of the payload of `length` bytes at an address, which may be an atomic one.
fn payload_source(address: u64, length: u64, kind: Kind) -> Result<PayloadSource, Rejected> {
    if address >> ADDRESS_BITS == 0 {
        let fits = address + length <= 1 << ADDRESS_BITS;
        return if fits {
            Ok(PayloadSource::Memory(address))
        } else {
            Err(Rejected::descriptor(error::MCSRAM_PAYLOAD_END))
        };
    }

    // The bit above those of an address marks an atomic one. Higher bits do not exist.
    let error = match kind {
        _ if address >> ADDRESS_BITS != 1 => error::MCSRAM_PAYLOAD_END,
        Kind::Get | Kind::Prefetch => error::MCSRAM_GET_ATOMIC,
        _ if length != 8 => error::MCSRAM_ATOMIC_LENGTH,
        _ => {
            let operation = address & atomic::OPERATION;
            let address = address & ADDRESS_MASK & !atomic::OPERATION;
            return Ok(PayloadSource::Atomic { address, operation });
        }
    };
    Err(Rejected::descriptor(error))
}

/// Checks that a user's descriptor names nothing of the system.
fn check_permission(descriptor: &Descriptor, is_system: bool) -> Result<(), Rejected> {
    if is_system {
        return Ok(());
    }
    if descriptor.torus_fifo_map & (fifo_map::SYSTEM | fifo_map::COLLECTIVE_SYSTEM) != 0 {
        return Err(Rejected::permission(error::MCSRAM_SYSTEM_FIFO));
    }
    match descriptor.packet_header.channel() {
        channel::SYSTEM | channel::SYSTEM_COLLECTIVE => {
            Err(Rejected::permission(error::MCSRAM_SYSTEM_CHANNEL))
        }
        _ => Ok(()),
    }
}

/// Checks the header and the FIFO map with the network, and returns the route of the packets.
fn route(
    descriptor: &Descriptor,
    header: &PacketHeader,
    network: &NetworkUnit,
    is_system: bool,
) -> Result<Route, Rejected> {
    let map = descriptor.torus_fifo_map;
    if map == 0 {
        return Err(Rejected::descriptor(error::MCSRAM_FIFO_MAP));
    }

    // The error registers distinguish fewer reasons than the network does.
    network.route(header, map, is_system).map_err(|refused| {
        let error = match refused.fault() {
            fault::PERMISSION => error::MCSRAM_SYSTEM_CHANNEL,
            fault::DESTINATION => error::MCSRAM_CHANNEL,
            _ if header.data_packet_type != kind::POINT_TO_POINT => error::MCSRAM_CHANNEL,
            _ => error::MCSRAM_FIFO_MAP,
        };
        Rejected { fault: refused.fault(), error }
    })
}
