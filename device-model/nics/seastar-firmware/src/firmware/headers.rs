//! Arrivals from other nodes: messages, acknowledgements of flow control, ends of streams.
//!
//! A *stale* message was meant for another incarnation; an *implicit* one needs no acknowledgement.
//! A pair of nodes is in the *abnormal state* from a dropped message to its repetition.

use nicforge_hwi::seastar::{
    HeaderPacket, INLINE, KernelEvent, MessageHeader, Piece, TrustedHeader, failure, kernel_event, message,
    option, trusted_flag,
};

use super::{
    Firmware, NO_FAILURE,
    kernel::SlotSource,
    node::{Node, write_events},
    outbox::Message,
    pending::{Owner, Quota},
    process::{Process, client_of},
    streams::{Reception, ReservedAnswer, Streams},
};
use crate::{
    chip::{
        Channel, Chip, Client, Halted, Incarnation, Pieces, Stream, TransferStatus, Transmission, Transmit,
    },
    costs,
    matching::{Accepted, Answer, DropReason, Identity, Incoming},
    protocol::{self, Reaction, Response, Sequence, WIRE_MODULUS},
};

/// Whether a message was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acceptance {
    /// The message is accepted, and its data are wanted.
    Yes,
    /// No process has a match: the message is accepted, and its data are discarded.
    Unwanted,
    /// A table or queue is full: the message must be sent again.
    Full,
}

/// Kind of a message that is sent, and the bytes of data that it carries.
#[derive(Clone, Copy)]
pub(super) struct Content {
    /// One of [`message`].
    pub(super) kind: u8,
    pub(super) length: u32,
}

/// Returns the sequence number in a header.
fn sequence_of(trusted: &TrustedHeader) -> Sequence<WIRE_MODULUS> {
    // Each value of 16 bits is a number on the wire.
    Sequence::new(trusted.sequence).unwrap_or(Sequence::INITIAL)
}

/// Returns whether a header has one of [`trusted_flag`].
fn has_flag(trusted: &TrustedHeader, flag: u8) -> bool {
    trusted.flags & flag != 0
}

/// Returns the pieces of a message that lies in one contiguous range of a client's memory.
pub(super) fn one_piece(client: Client, address: u64, length: u32) -> Pieces {
    match length {
        0 => Pieces::None,
        _ => Pieces::One(Piece { address, length, attachment: client.0, reserved: 0 }),
    }
}

/// Returns whether the target of a message answers it if it matches.
fn needs_answer(packet: &HeaderPacket) -> bool {
    match packet.trusted.kind {
        message::GET => true,
        message::PUT => packet.message.options & option::ACK != 0,
        _ => false,
    }
}

/// Returns whether a message can wait for a kernel that refuses its node. A reply or an
/// acknowledgement ends an operation of this node, for which the kernel may be waiting. An implicit
/// message would be lost, so that it is refused only if it adds to the answers.
fn can_be_refused(packet: &HeaderPacket) -> bool {
    let HeaderPacket { trusted, .. } = packet;
    let is_request = matches!(trusted.kind, message::PUT | message::GET);
    is_request && (needs_answer(packet) || !has_flag(trusted, trusted_flag::IMPLICIT))
}

impl Firmware {
    /// Handles the header of a message.
    pub(super) fn handle_header<C: Chip>(
        &mut self,
        chip: &mut C,
        packet: &HeaderPacket,
        incarnation: Incarnation,
        stream: Option<Stream>,
    ) -> Result<(), Halted> {
        let trusted = &packet.trusted;
        let is_for_this_incarnation = self.incarnation() == Some(incarnation);
        if trusted.kind >= message::FIRST_CONTROL {
            if is_for_this_incarnation {
                self.handle_acknowledgement(chip, trusted);
            }
            return stream.map_or(Ok(()), |stream| self.discard(chip, stream));
        }

        chip.charge(costs::HEADER);
        let Some(node) = self.node.as_mut().filter(|_| is_for_this_incarnation) else {
            stream.map_or(Ok(()), |stream| self.discard(chip, stream))?;
            return self.handle_stale(chip, packet);
        };
        if trusted.source_node >= node.nodes {
            return stream.map_or(Ok(()), |stream| self.discard(chip, stream));
        }

        // The sequence number is checked only in the abnormal state.
        let sequence = sequence_of(trusted);
        let resynchronizes = has_flag(trusted, trusted_flag::RESYNCHRONIZE);
        let mut receiver = node.pairs.receiver(trusted.source_node);
        let is_in_sequence = receiver.takes(sequence, resynchronizes);
        let acceptance = if is_in_sequence {
            node.accept(chip, &mut self.streams, packet, stream)?
        } else {
            Acceptance::Full
        };

        let is_implicit = has_flag(trusted, trusted_flag::IMPLICIT);
        if is_implicit && acceptance == Acceptance::Full {
            // The sender does not repeat an implicit message. The pair must not enter the abnormal
            // state, in which the receiver waits for the repetition.
            self.statistics.refused += 1;
            self.statistics.lost += 1;
            return stream.map_or(Ok(()), |stream| self.discard(chip, stream));
        }
        // A message without room is judged like one that the hardware has dropped.
        let judgement = if is_in_sequence && acceptance == Acceptance::Full {
            receiver.judge_dropped(sequence, resynchronizes)
        } else {
            receiver.judge_header(sequence, resynchronizes)
        };
        let place_in_line = node.pairs.store(trusted.source_node, receiver, judgement);

        self.statistics.messages += u64::from(judgement.taken);
        self.statistics.without_process += u64::from(acceptance == Acceptance::Unwanted);
        self.statistics.refused += u64::from(!judgement.taken);
        if let Some(stream) = stream.filter(|_| acceptance != Acceptance::Yes) {
            self.discard(chip, stream)?;
        }
        if is_implicit {
            return Ok(());
        }
        self.send_acknowledgement(chip, trusted, judgement.answer, place_in_line)
    }

    /// Handles the header of a message that the hardware has dropped.
    pub(super) fn handle_dropped<C: Chip>(
        &mut self,
        chip: &mut C,
        packet: &HeaderPacket,
        incarnation: Incarnation,
    ) -> Result<(), Halted> {
        let trusted = &packet.trusted;
        chip.charge(costs::HEADER);
        let is_for_this_incarnation = self.incarnation() == Some(incarnation);
        let Some(node) = self.node.as_mut().filter(|_| is_for_this_incarnation) else {
            return self.handle_stale(chip, packet);
        };
        if trusted.source_node >= node.nodes {
            return Ok(());
        }

        self.statistics.dropped += 1;
        if has_flag(trusted, trusted_flag::IMPLICIT) {
            // Without flow control, messages of all lengths are implicit: the sender does not
            // repeat this one.
            self.statistics.lost += 1;
            return Ok(());
        }

        let mut receiver = node.pairs.receiver(trusted.source_node);
        let resynchronizes = has_flag(trusted, trusted_flag::RESYNCHRONIZE);
        let judgement = receiver.judge_dropped(sequence_of(trusted), resynchronizes);
        let place_in_line = node.pairs.store(trusted.source_node, receiver, judgement);
        self.send_acknowledgement(chip, trusted, judgement.answer, place_in_line)
    }

    /// Handles the header of a message for another incarnation of this node, or before its boot.
    pub(super) fn handle_stale<C: Chip>(
        &mut self,
        chip: &mut C,
        packet: &HeaderPacket,
    ) -> Result<(), Halted> {
        let trusted = &packet.trusted;
        let needs_answer =
            trusted.kind < message::FIRST_CONTROL && !has_flag(trusted, trusted_flag::IMPLICIT);
        self.statistics.stale += 1;
        if !needs_answer || trusted.source_node >= chip.nodes() {
            return Ok(());
        }
        self.send_acknowledgement(chip, trusted, protocol::Answer::PrebootAck, 0)
    }

    /// Handles the end of a stream.
    pub(super) fn handle_received<C: Chip>(
        &mut self,
        chip: &mut C,
        stream: Stream,
        status: TransferStatus,
    ) -> Result<(), Halted> {
        chip.charge(costs::RECEIVED);
        let reception = self.streams.take(stream);
        let Some(node) = &mut self.node else { return Ok(()) };
        let failure_code = match status {
            TransferStatus::Complete => NO_FAILURE,
            TransferStatus::Corrupt | TransferStatus::Cut => failure::DATA,
            TransferStatus::MemoryFault => failure::MEMORY,
        };

        match reception {
            Reception::None | Reception::Orphan => Ok(()),
            Reception::Process { process, operation, answer } => {
                node.end_operation(chip, process, operation, failure_code)?;
                if let Some(ReservedAnswer { answer, node: target_node, process: target_process }) = answer {
                    node.outbox.quotas.reserved = node.outbox.quotas.reserved.saturating_sub(1);
                    if failure_code == NO_FAILURE {
                        let target = Identity { node: target_node, process: target_process };
                        node.send_put_acknowledgement(chip, process, &answer, target);
                    }
                }
                Ok(())
            }
            // The kernel has not set a destination, so that no data were kept.
            Reception::Waiting { token, .. } => node.report_data_end(chip, token, 0, failure::DATA),
            Reception::Kernel { token, kept, .. } => {
                let moved = if failure_code == NO_FAILURE { kept } else { 0 };
                node.report_data_end(chip, token, moved, failure_code)
            }
        }
    }

    /// Handles an acknowledgement of flow control.
    fn handle_acknowledgement<C: Chip>(&mut self, chip: &mut C, trusted: &TrustedHeader) {
        let response = match trusted.kind {
            message::ACK => Response::Ack,
            message::NACK => Response::Nack,
            message::PREBOOT_ACK => Response::PrebootAck,
            message::FIRST_POSTBOOT_ACK => Response::FirstPostbootAck,
            _ => return,
        };
        let Some(node) = &mut self.node else { return };

        chip.charge(costs::ACKNOWLEDGEMENT);
        // A negative acknowledgement carries the sender's place in line in the field of the length.
        let place_in_line = trusted.length;
        let (source, sequence) = (trusted.source_node, sequence_of(trusted));
        let reaction = node.outbox.respond(source, response, place_in_line, sequence, chip.now());
        self.statistics.repetitions += u64::from(reaction == Reaction::Repeat);
    }

    /// Sends the acknowledgement of flow control for the message with header `trusted`.
    fn send_acknowledgement<C: Chip>(
        &mut self,
        chip: &mut C,
        trusted: &TrustedHeader,
        answer: protocol::Answer,
        place_in_line: u16,
    ) -> Result<(), Halted> {
        let (kind, length) = match answer {
            protocol::Answer::Ack => (message::ACK, 0),
            protocol::Answer::Nack => (message::NACK, u32::from(place_in_line)),
            protocol::Answer::PrebootAck => (message::PREBOOT_ACK, 0),
            protocol::Answer::FirstPostbootAck => (message::FIRST_POSTBOOT_ACK, 0),
        };
        let answer = TrustedHeader {
            source_node: chip.node(),
            length,
            sequence: trusted.sequence,
            kind,
            ..TrustedHeader::default()
        };

        chip.charge(costs::SEND_ACKNOWLEDGEMENT);
        chip.transmit(&Transmit {
            // No event reports the end of a control message, so that it needs no name.
            name: Transmission(u32::MAX),
            target: trusted.source_node,
            target_incarnation: chip.incarnation(trusted.source_node).unwrap_or(Incarnation(0)),
            channel: Channel::Control,
            packet: HeaderPacket { trusted: answer, ..HeaderPacket::default() },
            pieces: Pieces::None,
        })
    }
}

impl Node {
    /// Accepts a message, unless a table or queue is full.
    fn accept<C: Chip>(
        &mut self,
        chip: &mut C,
        streams: &mut Streams,
        packet: &HeaderPacket,
        stream: Option<Stream>,
    ) -> Result<Acceptance, Halted> {
        let kind = packet.trusted.kind;
        if !(message::PUT..=message::PORTALS_ACK).contains(&kind) {
            // A void message stands for one whose process has ended: it only uses up a sequence
            // number.
            let is_void = kind == message::VOID && stream.is_none();
            return Ok(if is_void { Acceptance::Yes } else { Acceptance::Unwanted });
        }

        match self.processes.get(usize::from(packet.trusted.target_process)) {
            Some(Some(Process::HostBased)) => self.report_arrival(chip, streams, packet, stream),
            Some(Some(Process::NicBased(_))) => self.match_message(chip, streams, packet, stream),
            Some(None) | None => Ok(Acceptance::Unwanted),
        }
    }

    /// Accepts a message for a process in host-based mode: reports it to the kernel, if its event
    /// queue has room for that and for the end of the data, and the kernel takes the message.
    fn report_arrival<C: Chip>(
        &mut self,
        chip: &mut C,
        streams: &mut Streams,
        packet: &HeaderPacket,
        stream: Option<Stream>,
    ) -> Result<Acceptance, Halted> {
        let has_room = self.kernel.has_room(1 + u32::from(stream.is_some()));
        if !has_room || self.pairs.is_refused(packet.trusted.source_node) && can_be_refused(packet) {
            return Ok(Acceptance::Full);
        }

        let token = streams.new_token(stream);
        let TrustedHeader { length, target_process: process, .. } = packet.trusted;
        if let Some(stream) = stream {
            self.kernel.reserve();
            streams.set(stream, Reception::Waiting { token, process, length });
        }
        let has_fault = has_flag(&packet.trusted, trusted_flag::INLINE_FAULT);
        let event = KernelEvent {
            packet: *packet,
            token,
            moved: if stream.is_none() { length } else { 0 },
            failure: if has_fault { failure::DATA } else { NO_FAILURE },
            kind: kernel_event::MESSAGE,
            ..KernelEvent::default()
        };
        self.post_kernel_event(chip, event, SlotSource::Free)?;
        Ok(Acceptance::Yes)
    }

    /// Reports to the kernel that the data of a message have been received: `moved` bytes of them
    /// are in memory.
    fn report_data_end<C: Chip>(
        &mut self,
        chip: &mut C,
        token: u32,
        moved: u32,
        failure: u16,
    ) -> Result<(), Halted> {
        let event =
            KernelEvent { token, moved, failure, kind: kernel_event::RECEIVED, ..KernelEvent::default() };
        self.post_kernel_event(chip, event, SlotSource::Reserved)
    }

    /// Accepts a message for a process in NIC-based mode, if a descriptor matches it: begins the
    /// operation, and moves the data of a put or reply or sends the reply to a get.
    fn match_message<C: Chip>(
        &mut self,
        chip: &mut C,
        streams: &mut Streams,
        packet: &HeaderPacket,
        stream: Option<Stream>,
    ) -> Result<Acceptance, Halted> {
        let HeaderPacket { trusted, message: header, .. } = packet;
        chip.charge(costs::PORTALS_HEADER);
        if needs_answer(packet) && !self.has_room_for_answer(trusted.source_node) {
            return Ok(Acceptance::Full);
        }

        let process = trusted.target_process;
        let Some(nic_based) = self.nic_based(process) else { return Ok(Acceptance::Unwanted) };
        let incoming = match trusted.kind {
            message::REPLY => nic_based.portals.reply(trusted, header),
            message::PORTALS_ACK => {
                let events = nic_based.portals.acknowledgement(trusted, header);
                write_events(chip, process, &events)?;
                return Ok(if stream.is_none() { Acceptance::Yes } else { Acceptance::Unwanted });
            }
            _ => nic_based.portals.incoming(trusted, header),
        };

        let accepted = match incoming {
            Incoming::Accepted(accepted) => accepted,
            Incoming::Dropped(dropped) => {
                chip.charge(costs::MATCH_ENTRY * dropped.traversed);
                let is_busy = dropped.reason == DropReason::Busy;
                return Ok(if is_busy { Acceptance::Full } else { Acceptance::Unwanted });
            }
        };
        chip.charge(costs::MATCH_ENTRY * accepted.traversed);
        write_events(chip, process, &accepted.events)?;
        if trusted.kind == message::GET {
            self.send_reply(chip, process, &accepted, trusted)?;
            // A get carries no data: those of a malformed one are discarded.
            return Ok(if stream.is_none() { Acceptance::Yes } else { Acceptance::Unwanted });
        }

        match stream {
            Some(stream) => {
                // The put's acknowledgement is sent when the data are in memory.
                let answer = accepted.answer.map(|answer| ReservedAnswer {
                    answer,
                    node: trusted.source_node,
                    process: trusted.source_process,
                });
                self.outbox.quotas.reserved += u16::from(answer.is_some());
                streams.set(stream, Reception::Process { process, operation: accepted.operation, answer });
                let pieces = one_piece(client_of(process), accepted.address, accepted.length);
                chip.charge(costs::RECEIVE);
                chip.receive(stream, accepted.length, pieces)?;
            }
            None => self.deposit_inline(chip, process, &accepted, packet)?,
        }
        Ok(Acceptance::Yes)
    }

    /// Writes the data of a header packet to a process's memory, and ends the operation.
    fn deposit_inline<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        accepted: &Accepted,
        packet: &HeaderPacket,
    ) -> Result<(), Halted> {
        let trusted = &packet.trusted;
        let length = (accepted.length as usize).min(INLINE);
        let has_fault = has_flag(trusted, trusted_flag::INLINE_FAULT);
        if let Some(data) = packet.inline.get(..length).filter(|data| !data.is_empty() && !has_fault) {
            chip.charge(costs::INLINE_DEPOSIT);
            chip.write_host(client_of(process), accepted.address, data)?;
        }

        let failure_code = if has_fault { failure::DATA } else { NO_FAILURE };
        self.end_operation(chip, process, accepted.operation, failure_code)?;
        if let Some(answer) = accepted.answer.filter(|_| !has_fault) {
            let target = Identity { node: trusted.source_node, process: trusted.source_process };
            self.send_put_acknowledgement(chip, process, &answer, target);
        }
        Ok(())
    }

    /// Sends the reply to a get.
    fn send_reply<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        accepted: &Accepted,
        get: &TrustedHeader,
    ) -> Result<(), Halted> {
        let Some(answer) = accepted.answer else { return Ok(()) };
        let owner = Owner::Operation { process, operation: accepted.operation };
        let pieces = one_piece(client_of(process), accepted.address, answer.length);
        let target = Identity { node: get.source_node, process: get.source_process };

        if self.send_answer(chip, process, &answer, target, owner, pieces) {
            return Ok(());
        }
        self.end_operation(chip, process, accepted.operation, failure::NODE)
    }

    /// Sends the Portals acknowledgement of a put. The caller has reserved space for it.
    fn send_put_acknowledgement<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        answer: &Answer,
        target: Identity,
    ) {
        let owner = Owner::Acknowledgement { process };
        self.send_answer(chip, process, answer, target, owner, Pieces::None);
    }

    /// Puts an answer at the end of the send queue of its node. Returns whether there was space.
    fn send_answer<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        answer: &Answer,
        target: Identity,
        owner: Owner,
        pieces: Pieces,
    ) -> bool {
        let content = Content { kind: answer.kind, length: answer.length };
        let packet = self.make_packet(process, target, content, answer.header);
        let message = Message { node: target.node, packet, pieces, owner, quota: Quota::Answer };
        chip.charge(costs::SUBMIT);
        self.outbox.submit(&mut self.pairs, message, chip.now())
    }

    /// Makes the header packet of a message from a process of this node. Its sequence number and
    /// flags are set when it is sent.
    pub(super) fn make_packet(
        &self,
        process: u16,
        target: Identity,
        Content { kind, length }: Content,
        header: MessageHeader,
    ) -> HeaderPacket {
        let trusted = TrustedHeader {
            source_node: self.number,
            source_process: process,
            target_process: target.process,
            length,
            kind,
            ..TrustedHeader::default()
        };
        HeaderPacket { trusted, message: header, inline: [0; INLINE] }
    }
}
