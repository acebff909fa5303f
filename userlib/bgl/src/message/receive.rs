//! The receiver's side of the protocols: packets are dispatched, unpacked, or stored until their
//! message is known and decided.

use nicforge_hwi::torus::PacketHeader;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    Callbacks, MAX_SETTLED,
    connection::ConnectionIndex,
    incoming::{Acknowledge, IncomingMessage, Malformed, Target, read, read_announcement},
    state::{Claim, State},
    wire::{Acknowledgement, Control, Kind, MessageId, Oldest, Protocol, SoftwareHeader, WINDOW},
};
use crate::packet::{PayloadReader, Verdict};

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
            if self.stale.contains(&claim) {
                self.statistics.packets_received += 1;
                self.statistics.stale += 1;
                return Verdict::Taken;
            }
            // The device must be asked who this is, which it can't be in a packet's handler.
            if self.unsettled.len() < MAX_SETTLED && !self.unsettled.contains(&claim) {
                self.unsettled.push(claim);
            }
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
            Kind::Marker => {
                self.add_credit(index, packet);
                self.on_marker(index, packet.id)
            }
            Kind::MarkerAcknowledge => {
                self.add_credit(index, packet);
                self.on_marker_acknowledge(index, packet.id)
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
        if matches!(message.target, Target::Ended) {
            return Err(Malformed);
        }

        let is_first = message.announcement.is_none();
        match (announcement, message.announcement) {
            // One message has one of these.
            (Some(_), Some(_)) if matches!(packet.kind, Kind::Single | Kind::Request) => {
                return Err(Malformed);
            }
            (Some(new), Some(old)) if new != old => return Err(Malformed),
            // The request is the only packet of a rendezvous that holds a place. A message that has
            // ended would free the places of others, but not their memory.
            (None, Some(old)) if old.protocol == Protocol::Rendezvous => return Err(Malformed),
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
    pub(super) fn find_receive(&self, index: ConnectionIndex, id: MessageId) -> Option<u32> {
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
}
