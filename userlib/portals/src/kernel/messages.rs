//! Messages of processes in host-based mode: matching, receiving, sending.

use nicforge_driver::runtime;
use nicforge_hwi::seastar::{
    HeaderPacket, INLINE, KernelCommand, MessageHeader, code, failure, kernel_command, message, trusted_flag,
};
use nicforge_seastar_firmware::matching::{
    Accepted, Answer, DropReason, Identity, Incoming, OperationHandle,
};

use super::{
    host::Arrival,
    lists::{Direction, NoScatter, Scatter},
    state::State,
};
use crate::Error;

/// Failure code of an operation that has succeeded, beside those of [`failure`].
const NO_FAILURE: u16 = 0;

/// Where the data of a message are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The message has none.
    None,
    /// In its process's memory, at this address.
    Memory(u64),
    /// In the message itself: these bytes.
    Inline([u8; INLINE]),
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingMessage {
    /// The process that sends it.
    pub(super) process: u16,
    /// Number of that process's start.
    pub(super) start: u32,
    /// The operation that ends with the message, if any.
    pub(super) operation: Option<OperationHandle>,
    /// It is the request of a get: the reply ends the operation, unless the request fails.
    pub(super) ends_only_on_failure: bool,
    pub(super) target: Identity,
    /// One of [`message`].
    pub(super) kind: u8,
    pub(super) header: MessageHeader,
    /// Bytes of its data.
    pub(super) length: u32,
    pub(super) source: Source,
}

/// A message that was passed to the firmware, and whose end it has not reported.
pub(super) struct Sending {
    outgoing: OutgoingMessage,
    /// Where its data are.
    scatter: Scatter,
}

/// A message that is being received.
pub(super) struct Receiving {
    /// The process that it is for.
    process: u16,
    /// Number of that process's start.
    start: u32,
    operation: OperationHandle,
    /// Address of the destination.
    address: u64,
    /// Bytes that are kept.
    length: u32,
    /// The acknowledgement to send when the data are in memory, and its target.
    answer: Option<(Answer, Identity)>,
    /// The destination, once it is described to the DMA engine.
    scatter: Scatter,
}

impl State {
    /// Handles a message that has arrived: matches it at once, or lets it wait behind others. A
    /// reply or an acknowledgement belongs to an operation that has begun, so it never waits.
    pub(super) fn handle_arrival(&mut self, packet: &HeaderPacket, token: u32) -> Result<(), Error> {
        let max_waiting = self.max_waiting;
        let target = usize::from(packet.trusted.target_process);
        let Some(Some(process)) = self.processes.get_mut(target) else { return self.discard(packet, token) };

        let ends_operation = matches!(packet.trusted.kind, message::REPLY | message::PORTALS_ACK);
        if !process.waiting.is_empty() && !ends_operation {
            if process.waiting.has_room(packet.trusted.source_node, max_waiting) {
                process.waiting.push(Arrival { packet: *packet, token });
                return Ok(());
            }
            return self.discard(packet, token);
        }
        let is_matched = self.match_message(packet, token)?;
        if !is_matched && let Some(Some(process)) = self.processes.get_mut(target) {
            process.waiting.push(Arrival { packet: *packet, token });
            return Ok(());
        }
        // The message may have ended an operation, for which others wait.
        self.match_waiting(packet.trusted.target_process)
    }

    /// Matches messages that wait for a process, until one has to wait on. A message that ends at
    /// once does not call this: the loop goes on with the next one, and must find its own front.
    fn match_waiting(&mut self, process: u16) -> Result<(), Error> {
        while let Some(Some(entry)) = self.processes.get(usize::from(process))
            && let Some(Arrival { packet, token }) = entry.waiting.front()
            && self.match_message(&packet, token)?
        {
            if let Some(Some(entry)) = self.processes.get_mut(usize::from(process)) {
                entry.waiting.pop();
            }
        }
        Ok(())
    }

    /// Matches a message with the match entries of its process. Returns `false` if the message must
    /// wait until an operation of the process has ended; a message that nothing matches is
    /// discarded.
    fn match_message(&mut self, packet: &HeaderPacket, token: u32) -> Result<bool, Error> {
        let HeaderPacket { trusted, message: header, .. } = packet;
        let number = trusted.target_process;
        let Some(Some(process)) = self.processes.get_mut(usize::from(number)) else {
            return self.discard(packet, token).map(|()| true);
        };

        let incoming = match trusted.kind {
            message::REPLY => process.matching.reply(trusted, header),
            message::PORTALS_ACK => {
                let events = process.matching.acknowledgement(trusted, header);
                process.write_events(&events)?;
                return self.discard(packet, token).map(|()| true);
            }
            _ => process.matching.incoming(trusted, header),
        };
        match incoming {
            Incoming::Accepted(accepted) => {
                runtime::charge(runtime::Cost::Match, accepted.traversed as usize);
                process.write_events(&accepted.events)?;
                self.accept(packet, token, &accepted).map(|()| true)
            }
            Incoming::Dropped(dropped) if dropped.reason == DropReason::Busy => Ok(false),
            Incoming::Dropped(dropped) => {
                runtime::charge(runtime::Cost::Match, dropped.traversed as usize);
                self.discard(packet, token).map(|()| true)
            }
        }
    }

    /// Begins to receive the data of a message that a descriptor has accepted, or answers a get.
    fn accept(&mut self, packet: &HeaderPacket, token: u32, accepted: &Accepted) -> Result<(), Error> {
        let HeaderPacket { trusted, inline, .. } = packet;
        let number = trusted.target_process;
        let Some(Some(process)) = self.processes.get_mut(usize::from(number)) else { return Ok(()) };
        let start = process.start;
        let sender = Identity { node: trusted.source_node, process: trusted.source_process };

        if trusted.kind == message::GET {
            self.queue_answer(number, start, accepted.answer, sender, Some(accepted));
            return self.discard(packet, token);
        }
        if trusted.length > INLINE as u32 {
            return self.receive(
                token,
                Receiving {
                    process: number,
                    start,
                    operation: accepted.operation,
                    address: accepted.address,
                    length: accepted.length,
                    answer: accepted.answer.map(|answer| (answer, sender)),
                    scatter: Scatter::default(),
                },
            );
        }

        // The header packet has all data: the operation ends here.
        let has_fault = trusted.flags & trusted_flag::INLINE_FAULT != 0;
        process.write_inline(accepted.address, inline, accepted.length)?;
        let events =
            process.matching.end(accepted.operation, if has_fault { failure::DATA } else { NO_FAILURE });
        process.write_events(&events)?;
        if !has_fault {
            self.queue_answer(number, start, accepted.answer, sender, None);
        }
        Ok(())
    }

    /// Queues the answer to a message, if it has one: the acknowledgement of a put, or the reply to
    /// a get. `accepted_get` is the get's operation at this process, which ends with the reply.
    fn queue_answer(
        &mut self,
        process: u16,
        start: u32,
        answer: Option<Answer>,
        target: Identity,
        accepted_get: Option<&Accepted>,
    ) {
        let Some(Answer { kind, header, length }) = answer else { return };
        let source = match accepted_get {
            Some(get) if length > 0 => Source::Memory(get.address),
            _ => Source::None,
        };

        let operation = accepted_get.map(|get| get.operation);
        self.outbox.push(OutgoingMessage {
            process,
            start,
            operation,
            ends_only_on_failure: false,
            target,
            kind,
            header,
            length,
            source,
        });
    }

    /// Tells the firmware to discard the data of a message, if they have a stream.
    pub(super) fn discard(&mut self, packet: &HeaderPacket, token: u32) -> Result<(), Error> {
        if packet.trusted.length <= INLINE as u32 {
            return Ok(());
        }
        let receive = KernelCommand { kind: kernel_command::RECEIVE, token, ..KernelCommand::default() };
        // The firmware refuses this if the data have ended meanwhile.
        self.try_command(receive).map(drop)
    }

    /// Tells the firmware where the data of a message go. The operation ends at once if the
    /// firmware refuses that, or if the data have no place. The caller then matches messages that
    /// wait.
    fn receive(&mut self, token: u32, mut receiving: Receiving) -> Result<(), Error> {
        let Receiving { process: number, start, address, length, .. } = receiving;
        let scatter = match self.scatter(Direction::Receive, number, start, address, length) {
            Ok(scatter) => scatter,
            Err(NoScatter::Later) => {
                self.awaiting_list.push_back((token, receiving));
                return Ok(());
            }
            Err(NoScatter::Never) => Scatter::default(),
        };

        // The data are discarded if their memory has too many pieces.
        let is_discarded = length > 0 && scatter.count == 0;
        let receive = KernelCommand {
            kind: kernel_command::RECEIVE,
            token,
            length: if is_discarded { 0 } else { length },
            count: scatter.count,
            list: scatter.address,
            pieces: scatter.pieces,
            ..KernelCommand::default()
        };
        receiving.scatter = scatter;
        let result = self.try_command(receive)?;

        if is_discarded || result.code != code::OK {
            return self.end_receiving(receiving, failure::MEMORY);
        }
        self.receives.insert(token, receiving);
        Ok(())
    }

    /// Tries again to receive the messages whose data wait for a command list.
    pub(super) fn retry_awaiting_list(&mut self) -> Result<(), Error> {
        for _ in 0..self.awaiting_list.len() {
            let Some((token, receiving)) = self.awaiting_list.pop_front() else { break };
            let process = receiving.process;
            self.receive(token, receiving)?;
            self.match_waiting(process)?;
        }
        Ok(())
    }

    /// Handles the end of a message that was received.
    pub(super) fn handle_received(&mut self, token: u32, failure: u16) -> Result<(), Error> {
        let Some(receiving) = self.receives.remove(&token) else { return Ok(()) };
        let process = receiving.process;
        self.end_receiving(receiving, failure)?;
        self.match_waiting(process)
    }

    /// Ends the operation of a message that was received, and queues its acknowledgement. `failure`
    /// is [`NO_FAILURE`] or one of [`failure`].
    fn end_receiving(&mut self, receiving: Receiving, failure: u16) -> Result<(), Error> {
        let Receiving { process: number, start, operation, answer, scatter, .. } = receiving;
        self.lists.release(&scatter);
        let Some(process) = self.process(number, start) else { return Ok(()) };

        let events = process.matching.end(operation, failure);
        process.write_events(&events)?;
        if failure == NO_FAILURE
            && let Some((answer, sender)) = answer
        {
            self.queue_answer(number, start, Some(answer), sender, None);
        }
        Ok(())
    }

    /// Handles the end of a message that was sent.
    pub(super) fn handle_sent(&mut self, token: u32, failure: u16) -> Result<(), Error> {
        let Some(Sending { outgoing, scatter }) = self.sends.get_mut(token as usize).and_then(Option::take)
        else {
            return Ok(());
        };
        self.free_tokens.push(token as u16);
        self.lists.release(&scatter);
        self.outbox.end(&outgoing);
        self.end_message(&outgoing, failure)
    }

    /// Ends the operation of a message that was sent, or could not be sent.
    fn end_message(&mut self, outgoing: &OutgoingMessage, failure: u16) -> Result<(), Error> {
        let Some(operation) = outgoing.operation else { return Ok(()) };
        if outgoing.ends_only_on_failure && failure == NO_FAILURE {
            return Ok(());
        }
        let Some(process) = self.process(outgoing.process, outgoing.start) else { return Ok(()) };

        let events = process.matching.end(operation, failure);
        process.write_events(&events)?;
        self.match_waiting(outgoing.process)
    }

    /// Ends the gets that wait for replies of a node whose incarnation has ended.
    pub(super) fn handle_node_down(&mut self, node: u32) -> Result<(), Error> {
        for process in self.processes.iter_mut().flatten() {
            while let Some(operation) = process.matching.waiting_get(node) {
                let events = process.matching.end(operation, failure::NODE);
                process.write_events(&events)?;
            }
        }
        Ok(())
    }

    /// Passes queued messages to the firmware, as many as it has room for.
    pub(super) fn send_queued(&mut self) -> Result<(), Error> {
        while let Some(outgoing) = self.outbox.next() {
            let Some(&token) = self.free_tokens.last() else { return Ok(()) };
            // The data are described to the DMA engine.
            let scatter = match outgoing.source {
                Source::None => Ok(Scatter::default()),
                Source::Memory(address) => {
                    let OutgoingMessage { process, start, length, .. } = outgoing;
                    self.scatter(Direction::Send, process, start, address, length)
                }
                Source::Inline(data) => Ok(self.lists.store_inline(token, &data, outgoing.length)?),
            };
            let scatter = match scatter {
                Ok(scatter) => scatter,
                Err(NoScatter::Later) => return Ok(()),
                Err(NoScatter::Never) => {
                    self.outbox.take(false);
                    self.end_message(&outgoing, failure::MEMORY)?;
                    continue;
                }
            };

            let result = self.try_command(send_command(&outgoing, token, &scatter))?;
            if result.code == code::NO_SPACE {
                self.lists.release(&scatter);
                return Ok(());
            }
            let is_sent = result.code == code::OK;
            self.outbox.take(is_sent);
            if is_sent {
                self.free_tokens.pop();
                self.sends[usize::from(token)] = Some(Sending { outgoing, scatter });
            } else {
                self.lists.release(&scatter);
                self.end_message(&outgoing, failure::NODE)?;
            }
        }
        Ok(())
    }

    /// Describes memory of a process to the DMA engine: all `length` bytes from `address` on.
    fn scatter(
        &mut self,
        direction: Direction,
        process: u16,
        start: u32,
        address: u64,
        length: u32,
    ) -> Result<Scatter, NoScatter> {
        let length = u64::from(length);
        let range = self.process(process, start).and_then(|process| {
            process.region(address, length).map(|(region, offset)| (region.clone(), offset))
        });
        match range {
            Some((region, offset)) => self.lists.scatter(direction, process, &region, offset, length),
            None if length == 0 => Ok(Scatter::default()),
            None => Err(NoScatter::Never),
        }
    }
}

/// Makes the command that sends a message.
fn send_command(outgoing: &OutgoingMessage, token: u16, scatter: &Scatter) -> KernelCommand {
    KernelCommand {
        kind: kernel_command::SEND,
        message: outgoing.kind,
        process: outgoing.process,
        target: outgoing.target.process,
        token: token.into(),
        count: scatter.count,
        list: scatter.address,
        node: outgoing.target.node,
        length: outgoing.length,
        header: outgoing.header,
        pieces: scatter.pieces,
        ..KernelCommand::default()
    }
}
