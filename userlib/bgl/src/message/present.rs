//! Messages that arrive are presented in order, decided about, acknowledged, and ended.

use nicforge_driver::runtime::{Cost, charge};
use zerocopy::IntoBytes;

use super::{
    Arrival, Callbacks, Disposition, ReceiveHandle, Received,
    carving::Carving,
    connection::ConnectionIndex,
    incoming::{Acknowledge, Target},
    slab::{Key, NONE},
    state::State,
    wire::{Acknowledgement, Kind, MessageId, Protocol},
};
use crate::{
    Error,
    packet::{PacketDevice, Rank},
};

impl State {
    /// Presents the messages whose turn it is.
    pub(super) fn present_next<C: Callbacks>(&mut self, index: ConnectionIndex, callbacks: &mut C) {
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
    pub(super) fn present<C: Callbacks>(&mut self, index: ConnectionIndex, number: u32, callbacks: &mut C) {
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
            life: connection.life(),
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
    /// the packets that were stored.
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
    pub(super) fn free_surplus_places(&mut self, index: ConnectionIndex, number: u32) {
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
    pub(super) fn end_if_complete<C: Callbacks>(&mut self, number: u32, callbacks: &mut C) {
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

    /// Removes a message, and frees its places with the packets in them.
    fn remove_receive(&mut self, number: u32) {
        let Some(message) = self.receives.remove(number) else { return };
        self.free_stored(message.stored);
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

        // A marker may wait for the end of the message.
        if connection.incoming.marker.is_some() {
            self.connections.make_ready(message.connection);
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

    /// Frees a list of packets in the pool.
    fn free_stored(&mut self, mut stored: u32) {
        while stored != NONE {
            stored = self.pool.free(stored);
        }
    }

    /// Makes a connection ready if it owes credit to the sender.
    pub(super) fn announce_credit(&mut self, index: ConnectionIndex) {
        let is_due = self.connections.get(index).is_some_and(|connection| {
            connection.incoming.is_credit_due() || connection.incoming.is_oldest_due
        });
        if is_due {
            self.connections.make_ready(index);
        }
    }

    /// Returns the first message of a connection that is not complete.
    pub(super) fn oldest_incomplete(&self, index: ConnectionIndex) -> MessageId {
        let Some(connection) = self.connections.get(index) else { return MessageId::new(0) };
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

            self.free_stored(message.stored);

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
