//! Messages that come to the process.

use nicforge_hwi::seastar::{
    Event as EventRecord, MAX_MESSAGE, MessageHeader, TrustedHeader, event, message, option,
};

use super::events::{Events, NO_FAILURE, NO_FLAGS, UNLINKED};
use super::objects::{DescriptorHandle, DescriptorRange, Kind, Operation, OperationHandle};
use super::process::Process;
use super::table::NONE;

/// The message that answers an incoming one. It goes to the sender of that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// [`message::REPLY`] or [`message::PORTALS_ACK`].
    pub kind: u8,
    /// Its header.
    pub header: MessageHeader,
    /// Bytes of data that it carries: those of [`Accepted::address`] and [`Accepted::length`] for a
    /// reply, and none for an acknowledgement.
    pub length: u32,
}

/// A message that the process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The operation, for [`Process::end`].
    pub operation: OperationHandle,
    /// The descriptor.
    pub descriptor: DescriptorHandle,
    /// Offset of the data in the descriptor.
    pub offset: u64,
    /// Device address of the data in the process's memory.
    pub address: u64,
    /// Bytes to move. The rest of a longer message is discarded.
    pub length: u32,
    /// Match entries that the search has visited.
    pub traversed: u32,
    /// Of a get: the reply, to be sent now. Of a put that asks for it: the acknowledgement, to be
    /// sent when the data are in memory, and not if that fails.
    pub answer: Option<Answer>,
    /// Events to write now.
    pub events: Events,
}

/// Reason why a process does not take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is no put or get, or its length is beyond the limit.
    Kind,
    /// The portal does not exist. The process counts the message as dropped.
    Portal,
    /// Access control refuses it. The process counts the message as a violation.
    Access,
    /// No match entry accepts it. The process counts the message as dropped.
    NoMatch,
    /// The reply or acknowledgement belongs to no operation any more.
    Stale,
    /// As many operations are in progress as the process can have. The message must be sent again.
    Busy,
}

/// A message that the process does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The reason.
    pub reason: DropReason,
    /// Match entries that the search has visited.
    pub traversed: u32,
}

/// Result of matching a put, a get, or a reply that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it lives on the stack for the time of a call")]
pub enum Incoming {
    /// The process accepts the message.
    Accepted(Accepted),
    /// The process does not accept the message.
    Dropped(Dropped),
}

impl Incoming {
    fn dropped(reason: DropReason, traversed: u32) -> Self {
        Self::Dropped(Dropped { reason, traversed })
    }
}

/// A put or get in search of a descriptor.
struct Arrival<'a> {
    trusted: &'a TrustedHeader,
    header: &'a MessageHeader,
    /// Bytes that the initiator asks for.
    requested: u32,
    /// The option that permits the operation, which the descriptor must have: [`option::OP_PUT`] or
    /// [`option::OP_GET`].
    permission: u16,
}

/// The descriptor that accepts a message, and the range of its memory that the message uses.
struct MatchedDescriptor {
    descriptor: u16,
    range: DescriptorRange,
}

/// Result of a search.
struct SearchResult {
    matched: Option<MatchedDescriptor>,
    /// Match entries that the search has visited.
    traversed: u32,
}

impl Process {
    /// Handles the header of a put or get: finds the descriptor that accepts it (section 2.2), and
    /// begins the operation.
    pub fn incoming(&mut self, trusted: &TrustedHeader, header: &MessageHeader) -> Incoming {
        let (requested, permission) = match trusted.kind {
            message::PUT => (u64::from(trusted.length), option::OP_PUT),
            message::GET => (header.header_data, option::OP_GET),
            _ => return Incoming::dropped(DropReason::Kind, 0),
        };
        if requested > u64::from(MAX_MESSAGE) {
            return Incoming::dropped(DropReason::Kind, 0);
        }
        if self.incoming >= self.limits.incoming {
            return Incoming::dropped(DropReason::Busy, 0);
        }

        let Some(list) = self.portals.get(usize::from(header.portal)) else {
            self.drops += 1;
            return Incoming::dropped(DropReason::Portal, 0);
        };
        let head = list.head;
        if !self.access.permits(header.access, trusted.source_node, trusted.source_process, header.portal) {
            self.violations += 1;
            return Incoming::dropped(DropReason::Access, 0);
        }

        let arrival = Arrival { trusted, header, requested: requested as u32, permission };
        let SearchResult { matched, traversed } = self.search(head, &arrival);
        match matched {
            Some(matched) => self.begin_incoming(&arrival, matched, traversed),
            None => self.no_match(traversed),
        }
    }

    /// Counts and drops a message that no match entry accepts, or for which there is no operation.
    #[cold]
    fn no_match(&mut self, traversed: u32) -> Incoming {
        self.drops += 1;
        Incoming::dropped(DropReason::NoMatch, traversed)
    }

    /// Walks a match list to the first descriptor that accepts a message.
    fn search(&self, head: u16, arrival: &Arrival<'_>) -> SearchResult {
        let (bits, requested) = (arrival.header.match_bits, u64::from(arrival.requested));
        let (node, process) = (arrival.trusted.source_node, arrival.trusted.source_process);
        let (mut next, mut traversed) = (head, 0);

        while next != NONE {
            let entry = &self.entries[next];
            next = entry.next;
            traversed += 1;
            if entry.descriptor == NONE || !entry.criteria.accept(bits, node, process) {
                continue;
            }

            let descriptor = &self.descriptors[entry.descriptor];
            if descriptor.inactive || !descriptor.has(arrival.permission) {
                continue;
            }
            if let Some(range) = descriptor.range_for(requested, arrival.header.offset) {
                let matched = MatchedDescriptor { descriptor: entry.descriptor, range };
                return SearchResult { matched: Some(matched), traversed };
            }
        }
        SearchResult { matched: None, traversed }
    }

    /// Begins the operation of a message on the descriptor that was found. Drops the message if the
    /// table of operations is full.
    #[inline]
    fn begin_incoming(
        &mut self,
        arrival: &Arrival<'_>,
        matched: MatchedDescriptor,
        traversed: u32,
    ) -> Incoming {
        let Arrival { trusted, header, requested, .. } = *arrival;
        let is_put = arrival.permission == option::OP_PUT;
        let MatchedDescriptor { descriptor, range: DescriptorRange { offset, length } } = matched;
        let link = self.next_link();
        let operation = Operation {
            match_bits: header.match_bits,
            header_data: if is_put { header.header_data } else { 0 },
            offset,
            requested,
            moved: length as u32,
            node: trusted.source_node,
            link,
            process: trusted.source_process,
            descriptor,
            portal: header.portal,
            kind: if is_put { Kind::IncomingPut } else { Kind::IncomingGet },
            is_lost: false,
        };
        let Some(index) = self.add_operation(operation) else { return self.no_match(traversed) };

        self.count_begin(descriptor);
        let taken = &mut self.descriptors[descriptor];
        taken.count_operation();
        taken.advance_offset(offset + length);
        let address = taken.start + offset;

        let kind = if is_put { event::PUT_START } else { event::GET_START };
        Incoming::Accepted(Accepted {
            operation: OperationHandle(self.operations.handle(index)),
            descriptor: DescriptorHandle(self.descriptors.handle(descriptor)),
            offset,
            address,
            length: length as u32,
            traversed,
            answer: self.answer(arrival, index),
            events: self.event_unless(option::START_DISABLE, index, kind, NO_FAILURE, NO_FLAGS),
        })
    }

    /// Returns the answer to a put or get that was taken.
    #[inline]
    fn answer(&self, arrival: &Arrival<'_>, operation: u16) -> Option<Answer> {
        // Most puts ask for no acknowledgement.
        let is_wanted = arrival.header.options & option::ACK != 0;
        if arrival.permission != option::OP_GET && !is_wanted {
            return None;
        }

        let Operation { offset, requested, moved, descriptor, .. } = self.operations[operation];
        let header = MessageHeader {
            match_bits: arrival.header.match_bits,
            offset,
            operation: arrival.header.operation,
            portal: arrival.header.portal,
            ..MessageHeader::default()
        };
        if arrival.permission == option::OP_GET {
            return Some(Answer { kind: message::REPLY, header, length: moved });
        }

        if self.descriptors[descriptor].has(option::ACK_DISABLE) {
            return None;
        }
        // The acknowledgement carries both lengths in its header data.
        let header_data = u64::from(requested) << 32 | u64::from(moved);
        Some(Answer {
            kind: message::PORTALS_ACK,
            header: MessageHeader { header_data, ..header },
            length: 0,
        })
    }

    /// Handles the header of a reply. Returns [`Incoming::Accepted`] if a get waits for it, and
    /// [`DropReason::Stale`] otherwise.
    pub fn reply(&mut self, trusted: &TrustedHeader, header: &MessageHeader) -> Incoming {
        let is_expected = |operation: &Operation| {
            operation.kind == Kind::Get
                && !operation.is_lost
                && operation.node == trusted.source_node
                && operation.process == trusted.source_process
        };
        let Some(index) =
            self.operations.find(header.operation).filter(|&index| is_expected(&self.operations[index]))
        else {
            return Incoming::dropped(DropReason::Stale, 0);
        };

        let operation = &mut self.operations[index];
        operation.kind = Kind::Reply;
        operation.moved = trusted.length.min(operation.requested);
        let Operation { descriptor, offset, moved, .. } = *operation;
        // The get waited for its reply; from now on it is in progress.
        self.descriptors[descriptor].waiting -= 1;
        self.count_begin(descriptor);

        Incoming::Accepted(Accepted {
            operation: OperationHandle(header.operation),
            descriptor: DescriptorHandle(self.descriptors.handle(descriptor)),
            offset,
            address: self.descriptors[descriptor].start + offset,
            length: moved,
            traversed: 0,
            answer: None,
            events: self.event_unless(option::START_DISABLE, index, event::REPLY_START, NO_FAILURE, NO_FLAGS),
        })
    }

    /// Handles Portals' acknowledgement of a put, and returns its events. An acknowledgement for a
    /// descriptor that is inactive or unlinked has none.
    pub fn acknowledgement(&mut self, trusted: &TrustedHeader, header: &MessageHeader) -> Events {
        let mut events = Events::default();
        let Some(index) =
            self.descriptors.find(header.operation).filter(|&index| !self.descriptors[index].inactive)
        else {
            return events;
        };

        self.descriptors[index].count_operation();
        let is_last = self.descriptors[index].is_finished();
        let record = EventRecord {
            match_bits: header.match_bits,
            offset: header.offset,
            requested: (header.header_data >> 32) as u32,
            moved: header.header_data as u32,
            node: trusted.source_node,
            process: trusted.source_process,
            portal: header.portal,
            kind: event::ACK,
            flags: if is_last { UNLINKED } else { NO_FLAGS },
            link: self.next_link(),
            ..EventRecord::default()
        };

        self.add_descriptor_event(&mut events, index, record);
        if is_last {
            self.add_descriptor_event(&mut events, index, EventRecord { kind: event::UNLINK, ..record });
            self.remove_descriptor(index);
        }
        events
    }
}
