//! The sender's side of the protocols: the queues of messages, and what each connection sends next.

use nicforge_driver::runtime::{Cost, charge};
use nicforge_hwi::torus::QUAD;
use zerocopy::IntoBytes;

use super::{
    Buffer, Callbacks, MatchInformation, SendHandle, Sent,
    carving::Carving,
    connection::ConnectionIndex,
    incoming::Malformed,
    outgoing::{OutgoingMessage, Plan, Stage},
    slab::{Key, NONE},
    state::State,
    wire::{Acknowledgement, Control, Kind, MessageId, Oldest, Protocol},
};
use crate::{
    Error,
    packet::{PacketDevice, Rank},
};

/// Maximum number of packets that a connection sends before the next one has its turn.
const QUANTUM: u32 = 8;

/// Outcome of an attempt to send the next packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A packet was sent.
    Sent,
    /// The message waits for its acknowledgement. Later messages need not wait.
    Waiting,
    /// All packets were sent before.
    Ended,
    /// The receiver must free places first, or no message may begin.
    Held,
    /// The packet device has no room.
    NoRoom,
}

/// Outcome of sending a connection's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Nothing can be sent before the peer does something.
    Idle,
    /// The connection has sent its share, and may have more.
    More,
    /// The packet device has no room.
    NoRoom,
}

impl State {
    /// Adds a message to the queue of a connection.
    pub(super) fn enqueue(
        &mut self,
        index: ConnectionIndex,
        information: MatchInformation,
        buffer: Buffer,
    ) -> Key {
        charge(Cost::SendMessage, 1);
        let carving = Carving::new(buffer.len(), buffer.head());
        let key = self.sends.insert(OutgoingMessage {
            connection: index,
            id: None,
            information,
            plan: Plan::of(&self.config, buffer.len()),
            buffer,
            stage: Stage::Unsolicited { packets: 0, quads: 0 },
            carving,
            next: NONE,
        });

        if let Some(connection) = self.connections.get_mut(index) {
            let last = std::mem::replace(&mut connection.outgoing.last, key.index);
            match self.sends.get_mut(last) {
                Some(last) => last.next = key.index,
                None => connection.outgoing.first = key.index,
            }
        }
        self.connections.make_ready(index);
        key
    }

    /// Sends the first packets of a message, if it is the only one of its connection. The callbacks
    /// come later.
    pub(super) fn send_at_once<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
        number: u32,
    ) -> Result<(), Error> {
        let is_only =
            self.connections.get(index).is_some_and(|connection| connection.outgoing.first == number);
        let mut packets = 0;
        while is_only && packets < QUANTUM && self.send_next(device, index, number)? == Step::Sent {
            packets += 1;
        }
        Ok(())
    }

    /// Sends what the ready connections have to send, each up to its share.
    pub(super) fn send_ready<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &mut D,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        let mut has_room = true;
        for _ in 0..self.connections.ready_len() {
            let Some(index) = self.connections.take_ready() else { break };
            let mut has_more = !self.send_acknowledgements(device, index)?;

            // Acknowledgements and credit of other connections have a FIFO of their own, so they go
            // on without room for messages.
            if has_room {
                let flow = self.send_messages(device, index, callbacks)?;
                has_room = flow != Flow::NoRoom;
                has_more |= flow != Flow::Idle;
            } else {
                has_more |=
                    self.connections.get(index).is_some_and(|connection| connection.outgoing.first != NONE);
            }

            has_more |= !self.send_markers(device, index)?;
            // Another packet may have carried the credit.
            has_more |= !self.send_credit(device, index)?;
            if has_more {
                self.connections.make_ready(index);
            }
        }
        Ok(())
    }

    /// Sends packets of a connection's messages, in the order of the messages.
    fn send_messages<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
        callbacks: &mut C,
    ) -> Result<Flow, Error> {
        let first = self.connections.get(index).map_or(NONE, |connection| connection.outgoing.first);
        let (mut previous, mut number, mut packets) = (NONE, first, 0);

        while number != NONE {
            match self.send_next(device, index, number)? {
                Step::Sent if packets + 1 >= QUANTUM => return Ok(Flow::More),
                Step::Sent => packets += 1,
                Step::Waiting => {
                    previous = number;
                    number = self.sends.get(number).map_or(NONE, |message| message.next);
                }
                Step::Ended => number = self.end_send(index, previous, number, callbacks),
                Step::Held => return Ok(Flow::Idle),
                Step::NoRoom => return Ok(Flow::NoRoom),
            }
        }
        Ok(Flow::Idle)
    }

    /// Sends the next packet of a message.
    fn send_next<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
        number: u32,
    ) -> Result<Step, Error> {
        let (Some(connection), Some(message)) = (self.connections.get(index), self.sends.get(number)) else {
            return Ok(Step::Waiting);
        };
        let Some(kind) = message.next_kind() else {
            return Ok(if message.stage == Stage::Sent { Step::Ended } else { Step::Waiting });
        };
        let message_begins = message.id.is_none();
        let id = message.id.unwrap_or(connection.outgoing.next_id);
        let has_credit = !kind.is_unsolicited() || connection.outgoing.may_send(id);
        if !has_credit || message_begins && self.is_draining {
            return Ok(Step::Held);
        }

        let details = message.details();
        let ends = if matches!(kind, Kind::Lead | Kind::Ends) { message.ends() } else { [0; 2 * QUAD] };
        let ends = &ends[..message.carving.ends().next_multiple_of(QUAD)];
        let (information, details) = (message.information.as_slice(), details.as_bytes());
        let prefix = match kind {
            Kind::Single => [information, &[], &[]],
            Kind::Lead => [information, details, ends],
            Kind::Repeat | Kind::Request => [information, details, &[]],
            Kind::Ends => [ends, &[], &[]],
            _ => [&[] as &[u8]; 3],
        };
        let part = message.part(kind);

        let carries_credit = matches!(kind, Kind::Single | Kind::Lead | Kind::Request);
        let field = if carries_credit {
            let length = if kind == Kind::Single { message.buffer.len() as u8 } else { 0 };
            Control { length, freed: connection.incoming.freed() }.encode()
        } else {
            message.quads()
        };

        let mut header = self.header(connection, kind, id, field);
        if kind == Kind::Lead && self.config.lead_has_priority {
            header = header.high_priority();
        }
        if !device.send(header, prefix.into_iter().chain(message.buffer.pieces(part.clone())))? {
            self.statistics.stalls += 1;
            return Ok(Step::NoRoom);
        }

        self.statistics.packets_sent += 1;
        if let Some(connection) = self.connections.get_mut(index) {
            if kind.is_unsolicited() {
                connection.outgoing.spend_credit();
            }
            if message_begins {
                connection.outgoing.next_id = id.next();
            }
            if carries_credit {
                connection.incoming.mark_reported();
            }
        }
        if let Some(message) = self.sends.get_mut(number) {
            message.id = Some(id);
            message.advance(kind, &part, self.repeated_packets);
        }
        Ok(Step::Sent)
    }

    /// Removes a message whose packets were all sent, and calls `senddone`. Returns the next
    /// message.
    fn end_send<C: Callbacks>(
        &mut self,
        index: ConnectionIndex,
        previous: u32,
        number: u32,
        callbacks: &mut C,
    ) -> u32 {
        let Some(key) = self.sends.key(number) else { return NONE };
        let Some(message) = self.sends.remove(number) else { return NONE };
        let next = message.next;
        if let Some(previous) = self.sends.get_mut(previous) {
            previous.next = next;
        }

        let Some(connection) = self.connections.get_mut(index) else { return NONE };
        if previous == NONE {
            connection.outgoing.first = next;
        }
        if next == NONE {
            connection.outgoing.last = previous;
        }

        self.statistics.messages_sent += 1;
        let destination = connection.rank;
        callbacks.senddone(Sent {
            handle: SendHandle(key),
            destination,
            buffer: message.buffer,
            result: Ok(()),
        });
        next
    }

    /// Ends all messages from `number` on with the error that the peer is gone.
    pub(super) fn fail_sends<C: Callbacks>(&mut self, peer: Rank, mut number: u32, callbacks: &mut C) {
        while let Some(key) = self.sends.key(number) {
            let Some(message) = self.sends.remove(number) else { return };
            number = message.next;
            let result = Err(Error::PeerGone { rank: peer.0 });
            callbacks.senddone(Sent {
                handle: SendHandle(key),
                destination: peer,
                buffer: message.buffer,
                result,
            });
        }
    }

    /// Sends a packet with credit if one is due. Returns `false` if there was no room for it.
    fn send_credit<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
    ) -> Result<bool, Error> {
        let is_due = self.connections.get(index).is_some_and(|connection| {
            connection.is_open && (connection.incoming.is_credit_due() || connection.incoming.is_oldest_due)
        });
        if !is_due {
            return Ok(true);
        }

        let oldest = self.oldest_incomplete(index);
        let payload = Oldest { id: oldest.number().into(), reserved: [0; 14] };
        if !self.send_control(device, index, (Kind::Credit, MessageId::new(0)), payload.as_bytes())? {
            return Ok(false);
        }

        self.statistics.credits_sent += 1;
        if let Some(connection) = self.connections.get_mut(index) {
            connection.incoming.mark_oldest_reported(oldest);
        }
        Ok(true)
    }

    /// Handles an acknowledgement from the peer of a connection.
    pub(super) fn on_acknowledge(
        &mut self,
        index: ConnectionIndex,
        id: MessageId,
        acknowledgement: Acknowledgement,
    ) -> Result<(), Malformed> {
        let mut number = self.connections.get(index).ok_or(Malformed)?.outgoing.first;
        while self.sends.get(number).is_some_and(|message| message.id != Some(id)) {
            number = self.sends.get(number).map_or(NONE, |message| message.next);
        }

        // The packets of a message of the mid-size protocol may all have been sent, and then it is
        // no longer there.
        let Some(message) = self.sends.get_mut(number) else { return Ok(()) };
        debug_assert_eq!(message.connection, index);
        message.stage = match (message.plan, message.stage) {
            (Plan::Several(Protocol::Rendezvous), Stage::Waiting { .. }) => {
                let (wanted, head) =
                    (acknowledgement.wanted.get() as usize, usize::from(acknowledgement.head));
                if wanted > message.buffer.len() || head >= QUAD {
                    return Err(Malformed);
                }
                message.carving = Carving::new(wanted, head);
                match wanted {
                    0 => Stage::Sent,
                    _ => Stage::Solicited { ends_due: message.carving.ends() != 0, quads: 0 },
                }
            }
            (
                Plan::Several(Protocol::MidSize),
                Stage::Unsolicited { packets: 1.., quads } | Stage::Waiting { quads },
            ) => Stage::Solicited { ends_due: false, quads },
            (_, Stage::Sent) => Stage::Sent,
            _ => return Err(Malformed),
        };
        self.connections.make_ready(index);
        Ok(())
    }
}
