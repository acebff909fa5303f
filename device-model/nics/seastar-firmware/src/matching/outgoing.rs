//! Operations that the process starts: put and get.

use nicforge_hwi::seastar::{
    ANY_NODE, ANY_PROCESS, INLINE, MAX_MESSAGE, MessageHeader, PORTALS, code, event, message, option,
};

use super::events::{Events, NO_FAILURE, NO_FLAGS};
use super::limits::Identity;
use super::objects::{DescriptorHandle, Kind, Operation, OperationHandle};
use super::process::{Process, Refusal};

/// A put or get that the process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The local descriptor.
    pub descriptor: DescriptorHandle,
    /// Offset of the data in it.
    pub local_offset: u64,
    /// Bytes of the message.
    pub length: u64,
    /// The target.
    pub target: Identity,
    /// Portal of the target.
    pub portal: u8,
    /// Access control entry of the target.
    pub access: u8,
    /// Match bits.
    pub match_bits: u64,
    /// Offset at the target.
    pub offset: u64,
    /// Data that the target's event of a put shows. A get ignores it.
    pub header_data: u64,
    /// Whether a put asks for an acknowledgement. A get ignores it.
    pub acknowledge: bool,
    /// Data of a put of at most [`INLINE`] bytes, if they are not read from the descriptor.
    pub inline: Option<[u8; INLINE]>,
}

/// Where the data of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The message has none.
    None,
    /// In the process's memory, at this device address.
    Memory(u64),
    /// In the message itself: these bytes.
    Inline([u8; INLINE]),
}

/// An operation that has begun: the message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The operation, for [`Process::end`].
    pub operation: OperationHandle,
    /// [`message::PUT`] or [`message::GET`].
    pub kind: u8,
    /// The target.
    pub target: Identity,
    /// The process's part of the header.
    pub header: MessageHeader,
    /// Bytes of data that the message carries.
    pub length: u32,
    /// Where these bytes are.
    pub source: Source,
    /// Events to write.
    pub events: Events,
}

impl Process {
    /// Begins a put (`PtlPut`, `PtlPutRegion`). The caller sends the message, and calls
    /// [`Process::end`] when it was accepted or has failed.
    ///
    /// # Errors
    /// `DESCRIPTOR_INVALID` also for an inactive descriptor; `DESCRIPTOR_ILLEGAL` for bytes beyond
    /// its end; `SEGMENT_VIOLATION` for a length beyond the limit; `PORTAL_INVALID`;
    /// `PROCESS_INVALID` for a wildcard; `NO_SPACE` with [`super::Limits::outgoing`] in progress.
    pub fn put(&mut self, request: &Request) -> Result<Outgoing, Refusal> {
        let descriptor = self.check_request(request)?;
        let length = request.length as u32;
        let source = match request.inline {
            _ if length == 0 => Source::None,
            Some(_) if request.length > INLINE as u64 => return Err(Refusal(code::SEGMENT_VIOLATION)),
            Some(bytes) => Source::Inline(bytes),
            None => Source::Memory(self.descriptors[descriptor].start + request.local_offset),
        };

        let index = self.begin_outgoing(request, descriptor, Kind::Put)?;
        self.count_begin(descriptor);
        let events = self.event_unless(option::START_DISABLE, index, event::SEND_START, NO_FAILURE, NO_FLAGS);

        // The target's acknowledgement names the descriptor.
        let mut header = request.header(request.descriptor.0);
        header.header_data = request.header_data;
        header.options = if request.acknowledge { option::ACK } else { 0 };
        let operation = OperationHandle(self.operations.handle(index));
        Ok(Outgoing { operation, kind: message::PUT, target: request.target, header, length, source, events })
    }

    /// Begins a get (`PtlGet`, `PtlGetRegion`). The caller sends the message. If it fails, the
    /// caller calls [`Process::end`]; otherwise the operation waits for [`Process::reply`].
    ///
    /// # Errors
    /// As for [`Process::put`].
    pub fn get(&mut self, request: &Request) -> Result<Outgoing, Refusal> {
        let descriptor = self.check_request(request)?;
        let index = self.begin_outgoing(request, descriptor, Kind::Get)?;
        self.descriptors[descriptor].waiting += 1;

        let operation = OperationHandle(self.operations.handle(index));
        // The target's reply names the operation. The header data of a get are its length.
        let mut header = request.header(operation.0);
        header.header_data = request.length;
        Ok(Outgoing {
            operation,
            kind: message::GET,
            target: request.target,
            header,
            length: 0,
            source: Source::None,
            events: Events::default(),
        })
    }

    /// Checks what a put and a get have in common, and returns the index of the descriptor.
    fn check_request(&self, request: &Request) -> Result<u16, Refusal> {
        let index = self.find_descriptor(request.descriptor)?;
        let descriptor = &self.descriptors[index];
        if descriptor.inactive {
            return Err(Refusal(code::DESCRIPTOR_INVALID));
        }
        if request.length > u64::from(MAX_MESSAGE) {
            return Err(Refusal(code::SEGMENT_VIOLATION));
        }
        if request.local_offset.checked_add(request.length).is_none_or(|end| end > descriptor.length) {
            return Err(Refusal(code::DESCRIPTOR_ILLEGAL));
        }

        if request.portal >= PORTALS {
            return Err(Refusal(code::PORTAL_INVALID));
        }
        if request.target.node == ANY_NODE || request.target.process == ANY_PROCESS {
            return Err(Refusal(code::PROCESS_INVALID));
        }
        if self.outgoing >= self.limits.outgoing {
            return Err(Refusal(code::NO_SPACE));
        }
        Ok(index)
    }

    /// Adds the operation of a checked request, and counts it at the descriptor's threshold.
    fn begin_outgoing(&mut self, request: &Request, descriptor: u16, kind: Kind) -> Result<u16, Refusal> {
        let link = self.next_link();
        let length = request.length as u32;
        let operation = Operation {
            match_bits: request.match_bits,
            header_data: if kind == Kind::Put { request.header_data } else { 0 },
            offset: request.local_offset,
            requested: length,
            moved: length,
            node: request.target.node,
            link,
            process: request.target.process,
            descriptor,
            portal: request.portal,
            kind,
            is_lost: false,
        };

        let index = self.add_operation(operation).ok_or(Refusal(code::NO_SPACE))?;
        self.descriptors[descriptor].count_operation();
        Ok(index)
    }
}

impl Request {
    /// Returns the fields of the header that a put and a get have in common. `handle` comes back
    /// with the target's answer: it names the descriptor of a put, or the operation of a get.
    fn header(&self, handle: u32) -> MessageHeader {
        MessageHeader {
            match_bits: self.match_bits,
            offset: self.offset,
            operation: handle,
            portal: self.portal,
            access: self.access,
            ..MessageHeader::default()
        }
    }
}
