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

/// Bits of a put offset without the indicator of an atomic address.
const OFFSET: u64 = (1 << ADDRESS_BITS) - 1;

/// Uses of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It goes into a reception FIFO.
    Fifo,
    /// It is written to memory.
    Put,
    /// It is descriptors.
    Get,
    /// It is read and not sent.
    Prefetch,
}

/// Location of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
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
    /// The error of the set of descriptors.
    pub(crate) error: u8,
}

impl Rejected {
    fn descriptor(error: u8) -> Self {
        Self { fault: fault::DESCRIPTOR, error }
    }

    fn permission(error: u8) -> Self {
        Self { fault: fault::PERMISSION, error }
    }
}

/// The result of the checks of a descriptor's template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    kind: Kind,
    /// Maximum number of bytes of payload of a packet.
    packet_bytes: u16,
    /// `None` if nothing is sent.
    route: Option<Route>,
}

impl Template {
    /// Checks the fields of a descriptor other than those of payload and target.
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

    /// Checks the fields of payload and target. Returns the location of the payload.
    #[inline(always)]
    fn check(&self, descriptor: &Descriptor) -> Result<Source, Rejected> {
        let length = descriptor.message_length;
        check_length(self.kind, length, self.packet_bytes)?;
        let source = source(descriptor.pa_payload, length, self.kind)?;

        let offset = descriptor.packet_header.unit.put_offset() & OFFSET;
        if self.kind == Kind::Put && offset + length > 1 << ADDRESS_BITS {
            return Err(Rejected::descriptor(error::MCSRAM_OFFSET));
        }
        Ok(source)
    }

    /// Returns a message's payload, if all checks accept it, it is in memory, and the message has
    /// one packet.
    #[inline(always)]
    pub(crate) fn single_packet_payload(&self, descriptor: &Descriptor) -> Option<PayloadRange> {
        match self.check(descriptor) {
            Ok(Source::Memory(address)) if descriptor.message_length <= self.packet_bytes.into() => {
                Some(PayloadRange { address, bytes: descriptor.message_length as usize })
            }
            _ => None,
        }
    }

    /// Returns the header, with a mark, of a message's only packet.
    #[inline]
    pub(crate) fn single_packet_header(&self, descriptor: &Descriptor, mark: u16) -> PacketHeader {
        let (header, bytes) = (header_of(descriptor, mark), descriptor.message_length as usize);
        packet_header(header, self.kind, bytes, interrupts(descriptor, self.kind))
    }
}

/// Returns the header that all packets of a message share.
#[inline(always)]
fn header_of(descriptor: &Descriptor, mark: u16) -> PacketHeader {
    let mut header = descriptor.packet_header;
    // In a collective header, the same bit asks for the interrupt.
    header.byte2 &= !routing::INTERRUPT;
    header.injection_info = mark.to_le_bytes();
    header
}

/// Returns whether the last packet of a message asks for an interrupt.
#[inline(always)]
fn interrupts(descriptor: &Descriptor, kind: Kind) -> bool {
    kind == Kind::Fifo && descriptor.interrupt & 1 == 1
}

/// Returns the header of a packet with so many bytes of payload.
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
/// Many messages differ from the one before in payload and target alone.
#[derive(Debug, Default)]
pub(crate) struct LastTemplate(Option<(TemplateKey, Template)>);

/// The fields of a descriptor that the checks of its template depend on, in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TemplateKey {
    /// Header type, hints, options, channel and destination.
    header: u64,
    /// Packet type and size.
    byte8: u8,
    prefetch_only: u32,
    map: u64,
    is_system: bool,
}

impl TemplateKey {
    #[inline]
    fn new(descriptor: &Descriptor, is_system: bool) -> Self {
        let header = &descriptor.packet_header;
        Self {
            header: header.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            byte8: header.byte8,
            prefetch_only: descriptor.prefetch_only,
            map: descriptor.torus_fifo_map,
            is_system,
        }
    }
}

impl LastTemplate {
    /// Returns the template of the last message, if it was sent from one node to another.
    #[inline]
    pub(crate) fn known(&self) -> Option<KnownTemplate<'_>> {
        self.0.as_ref().map(|(key, template)| KnownTemplate { key, template })
    }

    /// Returns the result of the checks of a template. `check` makes them if the template is not
    /// that of the last message.
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
            _ => self.check(key, check),
        }
    }

    fn check(
        &mut self,
        key: TemplateKey,
        check: impl FnOnce() -> Result<Template, Rejected>,
    ) -> Result<Template, Rejected> {
        let template = check()?;
        // Software can change class routes, so that collective messages are always checked.
        let is_fixed = key.header.to_le_bytes()[0] == kind::POINT_TO_POINT;
        if is_fixed {
            self.0 = Some((key, template));
        }
        Ok(template)
    }
}

/// The template of a FIFO's last message, for messages that follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownTemplate<'a> {
    key: &'a TemplateKey,
    template: &'a Template,
}

impl<'a> KnownTemplate<'a> {
    /// Returns the route of its messages; `None` if nothing is sent.
    #[inline]
    pub(crate) fn route(&self) -> Option<Route> {
        self.template.route
    }

    /// Returns the template, if it is that of a descriptor.
    #[inline(always)]
    pub(crate) fn of(&self, descriptor: &Descriptor, is_system: bool) -> Option<&'a Template> {
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
    pub(crate) source: Source,
    /// Bytes that have not been sent.
    pub(crate) left: u64,
    /// Time from which its first packet can be sent.
    pub(crate) ready: Nanos,
    /// Maximum number of bytes of payload of a packet.
    packet_bytes: u16,
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
        let source = template.check(descriptor)?;
        let Template { kind, packet_bytes, route } = *template;
        let (header, left) = (header_of(descriptor, 0), descriptor.message_length);

        let interrupts = interrupts(descriptor, kind);
        let may_refer = kind == Kind::Put
            && left >= reference::SHORTEST
            && header.data_packet_type == self::kind::POINT_TO_POINT
            && header.byte2 & routing::DEPOSIT == 0;
        let ready = Nanos::ZERO;
        Ok(Self { header, route, kind, source, left, ready, packet_bytes, interrupts, may_refer })
    }

    /// Sets the mark of the packets, which tells for which tenant they are.
    pub(crate) fn set_mark(&mut self, mark: u16) {
        self.header.injection_info = mark.to_le_bytes();
    }

    /// Returns the header that all packets of the message share.
    #[inline]
    pub(crate) fn header(&self) -> &PacketHeader {
        &self.header
    }

    /// Returns the payload that is left, if it is in memory, and the message has one more packet,
    /// which carries it.
    #[inline]
    pub(crate) fn last_payload(&self) -> Option<PayloadRange> {
        match self.source {
            Source::Memory(address) if !self.may_refer && self.left <= self.packet_bytes.into() => {
                Some(PayloadRange { address, bytes: self.left as usize })
            }
            _ => None,
        }
    }

    /// Returns the bytes of payload of the next packet.
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
        header.set_payload_bytes(size_of::<reference::Place>());
        header
    }

    /// Records that the next packet has been sent. Returns whether it was the last one.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) -> bool {
        self.left -= bytes;
        if let Source::Memory(address) = &mut self.source {
            *address += bytes;
        }
        if matches!(self.kind, Kind::Put | Kind::Fifo) {
            let unit = &mut self.header.unit;
            unit.set_put_offset(unit.put_offset().wrapping_add(bytes));
        }
        self.left == 0
    }
}

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

/// Returns the most bytes of payload of a packet. The template states it in chunks; 0 stands for
/// the longest packet.
fn packet_bytes(header: &PacketHeader) -> Result<u16, Rejected> {
    match header.payload_bytes() {
        0 => Ok(MAX_PAYLOAD as u16),
        bytes if bytes <= MAX_PAYLOAD => Ok(bytes as u16),
        _ => Err(Rejected::descriptor(error::MCSRAM_PACKET_SIZE)),
    }
}

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

/// Returns the location of the payload.
fn source(address: u64, length: u64, kind: Kind) -> Result<Source, Rejected> {
    if address >> ADDRESS_BITS == 0 {
        let fits = address + length <= 1 << ADDRESS_BITS;
        return if fits {
            Ok(Source::Memory(address))
        } else {
            Err(Rejected::descriptor(error::MCSRAM_PAYLOAD_END))
        };
    }

    let error = match kind {
        _ if address >> ADDRESS_BITS != 1 => error::MCSRAM_PAYLOAD_END,
        Kind::Get | Kind::Prefetch => error::MCSRAM_GET_ATOMIC,
        _ if length != 8 => error::MCSRAM_ATOMIC_LENGTH,
        _ => {
            let operation = address & atomic::OPERATION;
            let address = address & OFFSET & !atomic::OPERATION;
            return Ok(Source::Atomic { address, operation });
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

/// Returns the route of the packets.
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

    // The size of a header is that of each packet, so the check gets a whole one.
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
