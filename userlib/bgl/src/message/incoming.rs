//! A message that arrives, and the unpacketizer.

use std::ops::Range;

use zerocopy::{FromZeros, IntoBytes};

use super::{
    Buffer, MatchInformation,
    carving::Carving,
    connection::ConnectionIndex,
    pool::Payload,
    slab::NONE,
    wire::{
        ANNOUNCEMENT, Control, Details, INFORMATION, Kind, MAX_MESSAGE, MAX_SINGLE, MessageId, Protocol,
        SoftwareHeader,
    },
};
use crate::packet::PayloadReader;

/// A packet violates the protocol. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The description of a message in a packet of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) information: MatchInformation,
    pub(super) length: usize,
    /// Bytes before the body, as the sender has cut the message.
    pub(super) head: usize,
    pub(super) protocol: Protocol,
}

/// Where the bytes of a message go.
#[derive(Debug)]
pub(super) enum Target {
    /// The message was not presented yet.
    Unknown,
    /// The program decides later.
    Postponed,
    /// They are copied.
    Buffer(Buffer),
    /// They are discarded.
    Discard,
    /// All have arrived, and the message waits to acknowledge its request.
    Ended,
}

/// The state of a message's acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledge {
    /// It is not due yet, or the protocol has none.
    NotDue,
    /// It must be sent.
    Due,
    /// It was sent, so the sender may send solicited packets.
    Sent,
}

/// A message that has arrived in part.
#[derive(Debug)]
pub(super) struct IncomingMessage {
    pub(super) connection: ConnectionIndex,
    pub(super) id: MessageId,
    /// The sender's description, once a packet with it has arrived.
    pub(super) announcement: Option<Announcement>,
    pub(super) target: Target,
    pub(super) acknowledge: Acknowledge,
    /// The cut of the bytes that are expected. It is valid once the target is decided.
    pub(super) carving: Carving,
    /// Number of bytes that have arrived, and were copied or discarded.
    pub(super) arrived: usize,
    /// Places that it holds.
    pub(super) places: u8,
    /// The first of its packets in the pool, or [`NONE`].
    pub(super) stored: u32,
    /// The next message of the connection, or [`NONE`].
    pub(super) next: u32,
}

impl IncomingMessage {
    /// Returns a message of which nothing is known.
    pub(super) fn new(connection: ConnectionIndex, id: MessageId, next: u32) -> Self {
        Self {
            connection,
            id,
            announcement: None,
            target: Target::Unknown,
            acknowledge: Acknowledge::NotDue,
            carving: Carving::new(0, 0),
            arrived: 0,
            places: 0,
            stored: NONE,
            next,
        }
    }

    /// Returns whether bytes can be unpacked.
    pub(super) fn is_decided(&self) -> bool {
        matches!(self.target, Target::Buffer(_) | Target::Discard)
    }

    /// Returns whether all bytes have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.is_decided() && self.arrived == self.carving.length()
    }

    /// Unpacks a packet: copies its bytes to where the program wants them.
    pub(super) fn unpack(&mut self, header: SoftwareHeader, payload: &impl Payload) -> Result<(), Malformed> {
        let protocol = self.announcement.ok_or(Malformed)?.protocol;
        let carving = self.carving;
        match (header.kind, protocol) {
            (Kind::Single, _) => self.copy(payload, INFORMATION, 0..carving.length()),
            (Kind::Lead, Protocol::Eager | Protocol::MidSize) => {
                self.copy_ends(payload, ANNOUNCEMENT)?;
                let prefix = carving.lead_prefix();
                self.copy(payload, prefix, carving.part(0, prefix))
            }
            (Kind::Repeat, Protocol::MidSize) => {
                self.copy_part(payload, ANNOUNCEMENT, carving.part(header.field, ANNOUNCEMENT))
            }
            (Kind::Eager, Protocol::Eager) | (Kind::Data, Protocol::MidSize | Protocol::Rendezvous) => {
                self.copy_part(payload, 0, carving.part(header.field, 0))
            }
            (Kind::Ends, Protocol::Rendezvous) if carving.ends() != 0 => self.copy_ends(payload, 0),
            _ => Err(Malformed),
        }
    }

    /// Copies the ends of the message, which begin at `offset` of a payload.
    fn copy_ends(&mut self, payload: &impl Payload, offset: usize) -> Result<(), Malformed> {
        let (head, tail) = (self.carving.head_range(), self.carving.tail_range());
        self.copy(payload, offset, head.clone())?;
        self.copy(payload, offset + head.len(), tail)
    }

    /// Copies a part of the body, of which a packet must have some.
    #[inline]
    fn copy_part(
        &mut self,
        payload: &impl Payload,
        offset: usize,
        part: Range<usize>,
    ) -> Result<(), Malformed> {
        if part.is_empty() { Err(Malformed) } else { self.copy(payload, offset, part) }
    }

    /// Copies a range of the message from `offset` of a payload. Bytes beyond the program's buffer
    /// are counted only.
    #[inline]
    fn copy(&mut self, payload: &impl Payload, offset: usize, range: Range<usize>) -> Result<(), Malformed> {
        let has_all = offset + range.len() <= payload.len();
        let arrived = self.arrived + range.len();
        if !has_all || arrived > self.carving.length() {
            return Err(Malformed);
        }

        self.arrived = arrived;
        if let Target::Buffer(buffer) = &mut self.target {
            // The payload has these bytes.
            buffer.fill(range, |at, piece| {
                let _ = payload.copy_to(offset + at, piece);
            });
        }
        Ok(())
    }
}
/// Copies control information from a payload.
pub(super) fn read(payload: &PayloadReader<'_>, offset: usize, out: &mut [u8]) -> Result<(), Malformed> {
    if payload.copy_to(offset, out) { Ok(()) } else { Err(Malformed) }
}

/// Returns a packet's description of its message, and checks it. A packet of kind `Eager` has none.
pub(super) fn read_announcement(
    packet: SoftwareHeader,
    payload: &PayloadReader<'_>,
) -> Result<Option<Announcement>, Malformed> {
    if packet.kind == Kind::Eager {
        return Ok(None);
    }

    let mut information = [0; INFORMATION];
    read(payload, 0, &mut information)?;
    if packet.kind == Kind::Single {
        let length = usize::from(Control::decode(packet.field).length);
        let is_valid = length <= MAX_SINGLE && INFORMATION + length <= payload.len();
        let announcement = Announcement { information, length, head: 0, protocol: Protocol::Eager };
        return if is_valid { Ok(Some(announcement)) } else { Err(Malformed) };
    }

    let mut details = Details::new_zeroed();
    read(payload, INFORMATION, details.as_mut_bytes())?;
    let (length, head) = (details.length.get() as usize, usize::from(details.head));
    let protocol = details.protocol().ok_or(Malformed)?;
    let is_valid = match packet.kind {
        Kind::Lead => protocol != Protocol::Rendezvous,
        Kind::Repeat => protocol == Protocol::MidSize,
        _ => protocol == Protocol::Rendezvous,
    };
    if !is_valid || length > MAX_MESSAGE || head != Carving::new(length, head).head() {
        return Err(Malformed);
    }
    Ok(Some(Announcement { information, length, head, protocol }))
}
