//! Messages that are received: order, the unpacketizer, and the receiver's side of the protocols.

use std::ops::Range;

use nicforge_driver::runtime::{Cost, charge};
use nicforge_hwi::torus::PacketHeader;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    Arrival, Buffer, Callbacks, Disposition, MatchInformation, ReceiveHandle, Received,
    carving::Carving,
    connection::ConnectionIndex,
    pool::Payload,
    slab::{Key, NONE},
    state::{Claim, State},
    wire::{
        ANNOUNCEMENT, Acknowledgement, Control, Details, INFORMATION, Kind, MAX_MESSAGE, MAX_SINGLE,
        MessageId, Oldest, Protocol, SoftwareHeader, WINDOW,
    },
};
use crate::{
    Error,
    packet::{PacketDevice, PayloadReader, Rank, Verdict},
};

/// A packet violates the protocol. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a packet says of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announcement {
    information: MatchInformation,
    length: usize,
    /// Bytes before the body, as the sender has cut the message.
    head: usize,
    protocol: Protocol,
}

/// What becomes of the bytes of a message.
#[derive(Debug)]
enum Target {
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
enum Acknowledge {
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
    connection: ConnectionIndex,
    id: MessageId,
    /// What the sender says of it, once such a packet has arrived.
    announcement: Option<Announcement>,
    target: Target,
    acknowledge: Acknowledge,
    /// The cut of the bytes that are expected. It is valid once the target is decided.
    carving: Carving,
    /// Number of bytes that have arrived, and were copied or discarded.
    arrived: usize,
    /// Places that it holds.
    places: u8,
    /// The first of its packets in the pool, or [`NONE`].
    stored: u32,
    /// The next message of the connection, or [`NONE`].
    next: u32,
}

impl IncomingMessage {
    /// Returns a message of which nothing is known.
    fn new(connection: ConnectionIndex, id: MessageId, next: u32) -> Self {
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
    fn is_decided(&self) -> bool {
        matches!(self.target, Target::Buffer(_) | Target::Discard)
    }

    /// Returns whether all bytes have arrived.
    fn is_complete(&self) -> bool {
        self.is_decided() && self.arrived == self.carving.length()
    }

    /// Unpacks a packet: copies its bytes to where the program wants them.
    fn unpack(&mut self, header: SoftwareHeader, payload: &impl Payload) -> Result<(), Malformed> {
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

impl State {
    /// Handles a packet from the device.
    pub(super) fn on_packet<C: Callbacks>(
        &mut self,
        header: PacketHeader,
        payload: PayloadReader<'_>,
        callbacks: &mut C,
    ) -> Verdict {
        let Some(packet) = SoftwareHeader::decode(header.software) else {
            return self.drop_malformed();
        };
        let claim = Claim { rank: packet.source, life: packet.life };
        let connection = self.connections.find(claim.rank).filter(|&index| {
            self.connections.get(index).is_some_and(|connection| connection.is_with(claim.life))
        });

        let Some(index) = connection else {
            if self.stale == Some(claim) {
                self.statistics.packets_received += 1;
                self.statistics.stale += 1;
                return Verdict::Taken;
            }
            // The device must be asked who this is, which it can't be in a packet's handler.
            self.unsettled = Some(claim);
            return Verdict::Left;
        };

        self.statistics.packets_received += 1;
        if self.dispatch(index, packet, &payload, callbacks).is_err() {
            self.statistics.malformed += 1;
        }
        Verdict::Taken
    }

    /// Counts a packet that violates the protocol.
    fn drop_malformed(&mut self) -> Verdict {
        self.statistics.packets_received += 1;
        self.statistics.malformed += 1;
        Verdict::Taken
    }

    /// Handles a packet from the peer of a connection.
    fn dispatch<C: Callbacks>(
        &mut self,
        index: ConnectionIndex,
        packet: SoftwareHeader,
        payload: &PayloadReader<'_>,
        callbacks: &mut C,
    ) -> Result<(), Malformed> {
        match packet.kind {
            Kind::Eager | Kind::Repeat => self.on_unsolicited(index, packet, payload, callbacks),
            Kind::Single | Kind::Lead | Kind::Request => {
                self.add_credit(index, packet);
                self.on_unsolicited(index, packet, payload, callbacks)
            }
            Kind::Data | Kind::Ends => self.on_solicited(index, packet, payload, callbacks),
            Kind::Acknowledge => {
                self.add_credit(index, packet);
                let mut acknowledgement = Acknowledgement::new_zeroed();
                read(payload, 0, acknowledgement.as_mut_bytes())?;
                self.on_acknowledge(index, packet.id, acknowledgement)
            }
            Kind::Credit => {
                self.add_credit(index, packet);
                let mut oldest = Oldest::new_zeroed();
                read(payload, 0, oldest.as_mut_bytes())?;

                let connection = self.connections.get_mut(index).ok_or(Malformed)?;
                if connection.outgoing.advance_oldest(MessageId::new(oldest.id.get())) {
                    self.connections.make_ready(index);
                }
                Ok(())
            }
        }
    }

    /// Takes over the credit that a packet carries.
    fn add_credit(&mut self, index: ConnectionIndex, packet: SoftwareHeader) {
        let freed = Control::decode(packet.field).freed;
        let is_news =
            self.connections.get_mut(index).is_some_and(|connection| connection.outgoing.add_credit(freed));
        if is_news {
            self.connections.make_ready(index);
        }
    }

    /// Handles a packet that holds a place.
    fn on_unsolicited<C: Callbacks>(
        &mut self,
        index: ConnectionIndex,
        packet: SoftwareHeader,
        payload: &PayloadReader<'_>,
        callbacks: &mut C,
    ) -> Result<(), Malformed> {
        let announcement = read_announcement(packet, payload)?;
        let number = self.find_or_begin(index, packet.id)?;
        let message = self.receives.get_mut(number).ok_or(Malformed)?;

        let is_first = message.announcement.is_none();
        match (announcement, message.announcement) {
            // One message has one of these.
            (Some(_), Some(_)) if matches!(packet.kind, Kind::Single | Kind::Request) => {
                return Err(Malformed);
            }
            (Some(new), Some(old)) if new != old => return Err(Malformed),
            (Some(new), None) => message.announcement = Some(new),
            _ => {}
        }

        message.places += 1;
        let connection = self.connections.get_mut(index).ok_or(Malformed)?;
        connection.incoming.take_place();
        let is_next = packet.id == connection.incoming.next_id;

        // A packet that can be unpacked at once is not stored.
        if is_first && announcement.is_some() && is_next {
            self.present(index, number, callbacks);
        }
        let result = self.unpack_or_store(index, number, packet, payload, callbacks);
        if is_next {
            self.present_next(index, callbacks);
        }
        self.announce_credit(index);
        result
    }

    /// Unpacks a packet if its message is decided, and stores it otherwise.
    fn unpack_or_store<C: Callbacks>(
        &mut self,
        index: ConnectionIndex,
        number: u32,
        packet: SoftwareHeader,
        payload: &PayloadReader<'_>,
        callbacks: &mut C,
    ) -> Result<(), Malformed> {
        // A message whose request was decided may have ended already.
        let Some(message) = self.receives.get_mut(number).filter(|message| message.connection == index)
        else {
            return Ok(());
        };
        if packet.kind == Kind::Request || message.id != packet.id {
            return Ok(());
        }

        if message.is_decided() {
            let result = message.unpack(packet, payload);
            self.free_surplus_places(index, number);
            self.end_if_complete(number, callbacks);
            return result;
        }

        message.stored = self.pool.store(packet, payload, message.stored).ok_or(Malformed)?;
        self.statistics.packets_stored += 1;
        Ok(())
    }

    /// Returns the message with an id. Begins it if it can be a new one and there is a place.
    fn find_or_begin(&mut self, index: ConnectionIndex, id: MessageId) -> Result<u32, Malformed> {
        let connection = self.connections.get(index).ok_or(Malformed)?;
        if !connection.incoming.has_place() {
            return Err(Malformed);
        }
        if let Some(number) = self.find_receive(index, id) {
            return Ok(number);
        }

        // Each message that was not presented holds a place, so its id is not further ahead.
        if id.distance_from(connection.incoming.next_id) >= WINDOW.into() {
            return Err(Malformed);
        }

        let connection = self.connections.get_mut(index).ok_or(Malformed)?;
        let key = self.receives.insert(IncomingMessage::new(index, id, connection.incoming.first));
        connection.incoming.first = key.index;
        Ok(key.index)
    }

    /// Returns the message of a connection with an id, if it is in progress.
    #[inline]
    fn find_receive(&self, index: ConnectionIndex, id: MessageId) -> Option<u32> {
        let mut number = self.connections.get(index)?.incoming.first;
        while let Some(message) = self.receives.get(number) {
            if message.id == id {
                return Some(number);
            }
            number = message.next;
        }
        None
    }

    /// Handles a packet for which the receiver has memory.
    fn on_solicited<C: Callbacks>(
        &mut self,
        index: ConnectionIndex,
        packet: SoftwareHeader,
        payload: &PayloadReader<'_>,
        callbacks: &mut C,
    ) -> Result<(), Malformed> {
        let number = self.find_receive(index, packet.id).ok_or(Malformed)?;
        let message = self.receives.get_mut(number).ok_or(Malformed)?;
        if message.acknowledge != Acknowledge::Sent || !message.is_decided() {
            return Err(Malformed);
        }

        message.unpack(packet, payload)?;
        self.end_if_complete(number, callbacks);
        self.announce_credit(index);
        Ok(())
    }

    /// Presents the messages whose turn it is.
    fn present_next<C: Callbacks>(&mut self, index: ConnectionIndex, callbacks: &mut C) {
        // Messages that were not presented hold places, which bounds the loop.
        while let Some(next_id) = self.connections.get(index).map(|connection| connection.incoming.next_id) {
            let found = self.find_receive(index, next_id).filter(|&number| {
                self.receives.get(number).is_some_and(|message| message.announcement.is_some())
            });
            let Some(number) = found else { return };
            self.present(index, number, callbacks);
        }
    }

    /// Presents a message to the program.
    fn present<C: Callbacks>(&mut self, index: ConnectionIndex, number: u32, callbacks: &mut C) {
        let (Some(message), Some(connection)) = (self.receives.get(number), self.connections.get_mut(index))
        else {
            return;
        };
        let (Some(announcement), Some(key)) = (message.announcement, self.receives.key(number)) else {
            return;
        };

        connection.incoming.next_id = message.id.next();
        let arrival = Arrival {
            handle: ReceiveHandle(key),
            source: connection.rank,
            information: announcement.information,
            length: announcement.length,
        };
        charge(Cost::ReceiveMessage, 1);
        let disposition = callbacks.recvnew(&arrival);
        self.decide(number, disposition, callbacks);
    }

    /// Decides about a message that the program has postponed.
    pub(super) fn decide_later<C: Callbacks>(
        &mut self,
        key: Key,
        disposition: Disposition,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        let message = self.receives.get(key.index).filter(|_| self.receives.key(key.index) == Some(key));
        let Some(index) = message
            .filter(|message| matches!(message.target, Target::Postponed))
            .map(|message| message.connection)
        else {
            return Err(Error::NoSuchMessage);
        };

        self.decide(key.index, disposition, callbacks);
        self.announce_credit(index);
        Ok(())
    }

    /// Applies the program's decision about a message: prepares its acknowledgement, and unpacks
    /// what was stored.
    fn decide<C: Callbacks>(&mut self, number: u32, disposition: Disposition, callbacks: &mut C) {
        let Some(message) = self.receives.get_mut(number) else { return };
        let (index, Some(announcement)) = (message.connection, message.announcement) else { return };
        let (target, wanted, head) = match disposition {
            Disposition::Receive(buffer) => {
                let (wanted, head) = (buffer.len().min(announcement.length), buffer.head());
                (Target::Buffer(buffer), wanted, head)
            }
            Disposition::Discard => (Target::Discard, 0, 0),
            Disposition::Later => {
                message.target = Target::Postponed;
                return;
            }
        };

        message.target = target;
        message.carving = match announcement.protocol {
            // The receiver's memory determines the cut, and the sender sends no more than wanted.
            Protocol::Rendezvous => Carving::new(wanted, head),
            Protocol::Eager | Protocol::MidSize => Carving::new(announcement.length, announcement.head),
        };
        if announcement.protocol != Protocol::Eager {
            message.acknowledge = Acknowledge::Due;
            if let Some(connection) = self.connections.get_mut(index) {
                connection.incoming.acknowledgements_due += 1;
            }
            self.connections.make_ready(index);
        }

        self.unpack_stored(number);
        self.free_surplus_places(index, number);
        self.end_if_complete(number, callbacks);
    }

    /// Unpacks the packets of a message that are in the pool.
    fn unpack_stored(&mut self, number: u32) {
        let Some(message) = self.receives.get_mut(number) else { return };
        let mut stored = std::mem::replace(&mut message.stored, NONE);
        while let Some(packet) = self.pool.get(stored) {
            if message.unpack(packet.header, packet).is_err() {
                self.statistics.malformed += 1;
            }
            stored = self.pool.free(stored);
        }
    }

    /// Frees all places of a message but the one that it holds while it is in progress.
    fn free_surplus_places(&mut self, index: ConnectionIndex, number: u32) {
        if let (Some(message), Some(connection)) =
            (self.receives.get_mut(number), self.connections.get_mut(index))
        {
            let surplus = message.places.saturating_sub(1);
            message.places -= surplus;
            connection.incoming.free_places(surplus);
        }
    }

    /// Calls `recvdone` for a message if all its bytes have arrived. Removes the message unless it
    /// must still acknowledge a request.
    fn end_if_complete<C: Callbacks>(&mut self, number: u32, callbacks: &mut C) {
        let Some(message) = self.receives.get_mut(number).filter(|message| message.is_complete()) else {
            return;
        };
        let stored = message.carving.length();
        let target = std::mem::replace(&mut message.target, Target::Ended);
        let (index, announcement, acknowledge) =
            (message.connection, message.announcement, message.acknowledge);
        let (Some(announcement), Some(key)) = (announcement, self.receives.key(number)) else { return };
        let Some(connection) = self.connections.get_mut(index) else { return };
        let source = connection.rank;

        match acknowledge {
            Acknowledge::Due if announcement.protocol == Protocol::Rendezvous => {}
            Acknowledge::Due => {
                // The sender has sent all without it.
                connection.incoming.acknowledgements_due -= 1;
                self.remove_receive(number);
            }
            Acknowledge::NotDue | Acknowledge::Sent => self.remove_receive(number),
        }

        self.statistics.messages_received += 1;
        let buffer = match target {
            Target::Buffer(buffer) => Some(buffer),
            _ => None,
        };
        callbacks.recvdone(Received {
            handle: ReceiveHandle(key),
            source,
            information: announcement.information,
            length: announcement.length,
            stored: buffer.as_ref().map_or(0, |buffer| buffer.len().min(stored)),
            buffer,
            result: Ok(()),
        });
    }

    /// Removes a message, and frees its places.
    fn remove_receive(&mut self, number: u32) {
        let Some(message) = self.receives.remove(number) else { return };
        let Some(connection) = self.connections.get_mut(message.connection) else { return };
        connection.incoming.free_places(message.places);

        if connection.incoming.first == number {
            connection.incoming.first = message.next;
        } else {
            let mut at = connection.incoming.first;
            while let Some(before) = self.receives.get_mut(at) {
                if before.next == number {
                    before.next = message.next;
                    break;
                }
                at = before.next;
            }
        }

        // Ids of later messages must stay distinguishable from those of messages in progress.
        let is_overdue = self
            .connections
            .get(message.connection)
            .is_some_and(|connection| connection.incoming.is_report_overdue());
        if is_overdue {
            let oldest = self.oldest_incomplete(message.connection);
            if let Some(connection) = self.connections.get_mut(message.connection) {
                connection.incoming.update_oldest_due(oldest);
            }
        }
    }

    /// Makes a connection ready if it owes credit to the sender.
    fn announce_credit(&mut self, index: ConnectionIndex) {
        let is_due = self
            .connections
            .get(index)
            .is_some_and(|connection| connection.incoming.is_credit_due || connection.incoming.is_oldest_due);
        if is_due {
            self.connections.make_ready(index);
        }
    }

    /// Returns the first message of a connection that is not complete.
    pub(super) fn oldest_incomplete(&self, index: ConnectionIndex) -> MessageId {
        let Some(connection) = self.connections.get(index) else { return MessageId::default() };
        let next_id = connection.incoming.next_id;
        let (mut oldest, mut number) = (next_id, connection.incoming.first);

        while let Some(message) = self.receives.get(number) {
            let age = next_id.distance_from(message.id);
            let is_presented = age <= MessageId::COUNT / 2;
            if is_presented && age > next_id.distance_from(oldest) {
                oldest = message.id;
            }
            number = message.next;
        }
        oldest
    }

    /// Sends the acknowledgements that are due. Returns `false` if there was no room for one.
    pub(super) fn send_acknowledgements<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
    ) -> Result<bool, Error> {
        let Some(connection) = self.connections.get(index) else { return Ok(true) };
        let mut number =
            if connection.incoming.acknowledgements_due == 0 { NONE } else { connection.incoming.first };

        while let Some(message) = self.receives.get(number) {
            let (this, next) = (number, message.next);
            if message.acknowledge == Acknowledge::Due {
                let payload = Acknowledgement {
                    wanted: (message.carving.length() as u32).into(),
                    head: message.carving.head() as u8,
                    reserved: [0; 11],
                };
                if !self.send_control(device, index, (Kind::Acknowledge, message.id), payload.as_bytes())? {
                    return Ok(false);
                }
                self.mark_acknowledged(index, this);
            }
            number = next;
        }
        Ok(true)
    }

    /// Records that a message's acknowledgement was sent. Removes the message if it has ended.
    fn mark_acknowledged(&mut self, index: ConnectionIndex, number: u32) {
        self.statistics.acknowledgements_sent += 1;
        if let Some(connection) = self.connections.get_mut(index) {
            connection.incoming.acknowledgements_due -= 1;
        }

        let Some(message) = self.receives.get_mut(number) else { return };
        message.acknowledge = Acknowledge::Sent;
        if matches!(message.target, Target::Ended) {
            self.remove_receive(number);
        }
    }

    /// Ends all messages from `number` on with the error that the peer is gone. Messages that were
    /// not presented end without a callback.
    pub(super) fn fail_receives<C: Callbacks>(&mut self, peer: Rank, mut number: u32, callbacks: &mut C) {
        while let Some(key) = self.receives.key(number) {
            let Some(message) = self.receives.remove(number) else { return };
            number = message.next;

            let mut stored = message.stored;
            while stored != NONE {
                stored = self.pool.free(stored);
            }

            let buffer = match message.target {
                Target::Unknown | Target::Ended => continue,
                Target::Postponed | Target::Discard => None,
                Target::Buffer(buffer) => Some(buffer),
            };
            let Some(announcement) = message.announcement else { continue };
            callbacks.recvdone(Received {
                handle: ReceiveHandle(key),
                source: peer,
                information: announcement.information,
                length: announcement.length,
                stored: 0,
                buffer,
                result: Err(Error::PeerGone { rank: peer.0 }),
            });
        }
    }
}

/// Copies control information from a payload.
fn read(payload: &PayloadReader<'_>, offset: usize, out: &mut [u8]) -> Result<(), Malformed> {
    if payload.copy_to(offset, out) { Ok(()) } else { Err(Malformed) }
}

/// Returns what a packet says of its message, and checks it.
fn read_announcement(
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
