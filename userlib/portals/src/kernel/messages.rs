//! Messages of processes in host-based mode: matching, receiving, sending.

use nicforge_driver::runtime;
use nicforge_hwi::seastar::{
    HeaderPacket, INLINE, KernelCommand, MessageHeader, code, failure, kernel_command, message, trusted_flag,
};
use nicforge_seastar_firmware::matching::{
    Accepted, Answer, DropReason, Identity, Incoming, OperationHandle,
};

use super::{
    lists::{NoScatter, Scatter},
    state::State,
};
use crate::Error;

/// Where the data of a message are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// It has none.
    None,
    /// In its process's memory.
    Memory(u64),
    /// In this value.
    Inline([u8; INLINE]),
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingMessage {
    /// The process, and the number of its start.
    pub(super) process: u16,
    pub(super) start: u32,
    /// The operation that ends with the message, if any.
    pub(super) operation: Option<OperationHandle>,
    /// For a get's request: its success does not end the operation, because the reply does.
    pub(super) ends_only_on_failure: bool,
    pub(super) target: Identity,
    pub(super) kind: u8,
    pub(super) header: MessageHeader,
    pub(super) length: u32,
    pub(super) source: Source,
}

/// A message in flight.
pub(super) struct Sending {
    outgoing: OutgoingMessage,
    scatter: Scatter,
}

/// A message that is being received.
pub(super) struct Receiving {
    process: u16,
    start: u32,
    operation: OperationHandle,
    address: u64,
    length: u32,
    /// The acknowledgement to send, and its target.
    answer: Option<(Answer, Identity)>,
    scatter: Scatter,
}

impl State {
    /// Handles a new message.
    pub(super) fn arrived(&mut self, packet: &HeaderPacket, token: u32) -> Result<(), Error> {
        let maximum = self.most_waiting;
        let target = usize::from(packet.trusted.target_process);
        let Some(Some(process)) = self.processes.get_mut(target) else { return self.discard(packet, token) };

        if !process.waiting.is_empty() {
            if process.waiting.len() < maximum {
                process.waiting.push_back((*packet, token));
                return Ok(());
            }
            return self.discard(packet, token);
        }
        let is_taken = self.matched(packet, token)?;
        if !is_taken && let Some(Some(process)) = self.processes.get_mut(target) {
            process.waiting.push_back((*packet, token));
        }
        Ok(())
    }

    /// Matches the messages that wait for a process.
    fn match_waiting(&mut self, process: u16) -> Result<(), Error> {
        while let Some(Some(entry)) = self.processes.get(usize::from(process))
            && let Some(&(packet, token)) = entry.waiting.front()
            && self.matched(&packet, token)?
        {
            if let Some(Some(entry)) = self.processes.get_mut(usize::from(process)) {
                entry.waiting.pop_front();
            }
        }
        Ok(())
    }

    /// Matches a message of a process that exists. Returns `false` if it must wait until another
    /// operation has ended.
    fn matched(&mut self, packet: &HeaderPacket, token: u32) -> Result<bool, Error> {
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
                self.take(packet, token, &accepted).map(|()| true)
            }
            Incoming::Dropped(dropped) if dropped.reason == DropReason::Busy => Ok(false),
            Incoming::Dropped(dropped) => {
                runtime::charge(runtime::Cost::Match, dropped.traversed as usize);
                self.discard(packet, token).map(|()| true)
            }
        }
    }

    /// Begins to receive a message, or to answer a get.
    fn take(&mut self, packet: &HeaderPacket, token: u32, accepted: &Accepted) -> Result<(), Error> {
        let HeaderPacket { trusted, inline, .. } = packet;
        let number = trusted.target_process;
        let Some(Some(process)) = self.processes.get_mut(usize::from(number)) else { return Ok(()) };
        let start = process.start;
        let sender = Identity { node: trusted.source_node, process: trusted.source_process };

        if trusted.kind == message::GET {
            self.answer(number, start, accepted.answer, sender, Some(accepted));
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

        let has_fault = trusted.flags & trusted_flag::INLINE_FAULT != 0;
        process.write_inline(accepted.address, inline, accepted.length)?;
        let events = process.matching.end(accepted.operation, if has_fault { failure::DATA } else { 0 });
        process.write_events(&events)?;
        if !has_fault {
            self.answer(number, start, accepted.answer, sender, None);
        }
        Ok(())
    }

    /// Queues the answer to a message: the acknowledgement of a put, or the reply to a get, which
    /// `accepted_get` describes. The get's operation here ends when its reply has been sent.
    fn answer(
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
        self.outbox.push_back(OutgoingMessage {
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
        // The message may have ended meanwhile.
        self.try_command(receive).map(drop)
    }

    /// Tells the firmware where the data of a message go.
    fn receive(&mut self, token: u32, mut receiving: Receiving) -> Result<(), Error> {
        let Receiving { process: number, start, address, length, .. } = receiving;
        let scatter = match self.scatter(number, start, address, length) {
            Ok(scatter) => scatter,
            Err(NoScatter::Later) => {
                self.unlisted.push_back((token, receiving));
                return Ok(());
            }
            Err(NoScatter::Never) => Scatter::default(),
        };

        // Memory with too many pieces takes nothing.
        let is_lost = length > 0 && scatter.count == 0;
        let receive = KernelCommand {
            kind: kernel_command::RECEIVE,
            token,
            length: if is_lost { 0 } else { length },
            count: scatter.count,
            list: scatter.address,
            pieces: scatter.pieces,
            ..KernelCommand::default()
        };
        receiving.scatter = scatter;
        let result = self.try_command(receive)?;

        if is_lost || result.code != code::OK {
            return self.end_receiving(receiving, failure::MEMORY);
        }
        self.receives.insert(token, receiving);
        Ok(())
    }

    /// Receives messages whose data waited for a command list.
    pub(super) fn receive_unlisted(&mut self) -> Result<(), Error> {
        for _ in 0..self.unlisted.len() {
            let Some((token, receiving)) = self.unlisted.pop_front() else { break };
            self.receive(token, receiving)?;
        }
        Ok(())
    }

    /// Handles the end of a message that was received.
    pub(super) fn received(&mut self, token: u32, failure: u16) -> Result<(), Error> {
        match self.receives.remove(&token) {
            Some(receiving) => self.end_receiving(receiving, failure),
            None => Ok(()),
        }
    }

    fn end_receiving(&mut self, receiving: Receiving, failure: u16) -> Result<(), Error> {
        let Receiving { process: number, start, operation, answer, scatter, .. } = receiving;
        self.lists.release(&scatter);
        let Some(process) = self.process(number, start) else { return Ok(()) };

        let events = process.matching.end(operation, failure);
        process.write_events(&events)?;
        if failure == 0
            && let Some((answer, sender)) = answer
        {
            self.answer(number, start, Some(answer), sender, None);
        }
        self.match_waiting(number)
    }

    /// Handles the end of a message that was sent.
    pub(super) fn sent(&mut self, token: u32, failure: u16) -> Result<(), Error> {
        let Some(Sending { outgoing, scatter }) = self.sends.get_mut(token as usize).and_then(Option::take)
        else {
            return Ok(());
        };
        self.free_tokens.push(token as u16);
        self.lists.release(&scatter);
        self.end_message(&outgoing, failure)
    }

    /// Ends the operation of a message that was sent, or could not be sent.
    fn end_message(&mut self, outgoing: &OutgoingMessage, failure: u16) -> Result<(), Error> {
        let Some(operation) = outgoing.operation else { return Ok(()) };
        if outgoing.ends_only_on_failure && failure == 0 {
            return Ok(());
        }
        let Some(process) = self.process(outgoing.process, outgoing.start) else { return Ok(()) };

        let events = process.matching.end(operation, failure);
        process.write_events(&events)?;
        self.match_waiting(outgoing.process)
    }

    /// Ends the gets that wait for replies of a node whose incarnation has ended.
    pub(super) fn node_down(&mut self, node: u32) -> Result<(), Error> {
        for process in self.processes.iter_mut().flatten() {
            while let Some(operation) = process.matching.waiting_get(node) {
                let events = process.matching.end(operation, failure::NODE);
                process.write_events(&events)?;
            }
        }
        Ok(())
    }

    /// Sends as many messages as the firmware has room for.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        while let Some(&outgoing) = self.outbox.front() {
            let Some(&token) = self.free_tokens.last() else { return Ok(()) };
            let scatter = match outgoing.source {
                Source::None => Ok(Scatter::default()),
                Source::Memory(address) => {
                    self.scatter(outgoing.process, outgoing.start, address, outgoing.length)
                }
                Source::Inline(data) => Ok(self.lists.store_inline(token, &data, outgoing.length)?),
            };
            let scatter = match scatter {
                Ok(scatter) => scatter,
                Err(NoScatter::Later) => return Ok(()),
                Err(NoScatter::Never) => {
                    self.outbox.pop_front();
                    self.end_message(&outgoing, failure::MEMORY)?;
                    continue;
                }
            };

            let result = self.try_command(send(&outgoing, token, &scatter))?;
            if result.code == code::NO_SPACE {
                self.lists.release(&scatter);
                return Ok(());
            }
            self.outbox.pop_front();
            if result.code == code::OK {
                self.free_tokens.pop();
                self.sends[usize::from(token)] = Some(Sending { outgoing, scatter });
            } else {
                self.lists.release(&scatter);
                self.end_message(&outgoing, failure::NODE)?;
            }
        }
        Ok(())
    }

    /// Describes memory of a process to the DMA engine.
    fn scatter(&mut self, process: u16, start: u32, address: u64, length: u32) -> Result<Scatter, NoScatter> {
        let length = u64::from(length);
        let part = self.process(process, start).and_then(|process| {
            process.region(address, length).map(|(region, offset)| (region.clone(), offset))
        });
        match part {
            Some((region, offset)) => self.lists.scatter(process, &region, offset, length),
            None if length == 0 => Ok(Scatter::default()),
            None => Err(NoScatter::Never),
        }
    }
}

/// Makes the command for a message.
fn send(outgoing: &OutgoingMessage, token: u16, scatter: &Scatter) -> KernelCommand {
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
