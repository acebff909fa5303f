//! Operations in progress: their counts, their end, and the events that they write.

use core::ops::Deref;

use nicforge_hwi::seastar::{Event as EventRecord, event, option};

use super::objects::{Descriptor, Kind, Operation, OperationHandle, QueueSlot};
use super::process::Process;
use super::table::NONE;

/// Bit of an event's flags: its operation has unlinked the descriptor.
pub(super) const UNLINKED: u16 = 1;
/// Flags of an event without any.
pub(super) const NO_FLAGS: u16 = 0;
/// Failure of an event whose operation has not failed, beside those of
/// [`nicforge_hwi::seastar::failure`].
pub(super) const NO_FAILURE: u16 = 0;

/// An event to write to an event queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Device address of the slot for it in the process's memory.
    pub address: u64,
    /// Handle of its queue.
    pub queue: u32,
    /// The content to write there.
    pub record: EventRecord,
}

/// The events of one step of an operation, at most two, in the order in which they must be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(List);

/// A list of events. Most have none or one: room for two would be filled with zeros each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a list lives on the stack for the time of a call")]
enum List {
    #[default]
    Empty,
    One([Event; 1]),
    Two([Event; 2]),
}

impl Events {
    /// Adds an event. A full list stays as it is.
    #[inline]
    fn push(&mut self, event: Event) {
        self.0 = match self.0 {
            List::Empty => List::One([event]),
            List::One([first]) => List::Two([first, event]),
            List::Two(_) => return,
        };
    }
}

impl Deref for Events {
    type Target = [Event];

    #[inline]
    fn deref(&self) -> &[Event] {
        match &self.0 {
            List::Empty => &[],
            List::One(events) => events,
            List::Two(events) => events,
        }
    }
}

impl Process {
    /// Ends an operation and returns its last events. `failure` is 0, or one of
    /// [`nicforge_hwi::seastar::failure`]. The operation may have ended already; then there are no
    /// events.
    pub fn end(&mut self, operation: OperationHandle, failure: u16) -> Events {
        match self.operations.find(operation.0) {
            Some(index) => self.end_at(index, failure),
            None => Events::default(),
        }
    }

    /// Ends the operation at an index and returns its last events, as [`Process::end`] does.
    fn end_at(&mut self, index: u16, failure: u16) -> Events {
        let Operation { descriptor, kind, .. } = self.operations[index];
        self.count_end(descriptor, kind);

        // The end of its last operation unlinks a descriptor that is used up.
        let is_last = self.descriptors[descriptor].is_finished();
        let flags = if is_last { UNLINKED } else { NO_FLAGS };
        let event_kind = match kind {
            Kind::Put => event::SEND_END,
            Kind::Get | Kind::Reply => event::REPLY_END,
            Kind::IncomingPut => event::PUT_END,
            Kind::IncomingGet => event::GET_END,
        };
        let mut events = self.event_unless(option::END_DISABLE, index, event_kind, failure, flags);
        if is_last {
            self.add_event(&mut events, index, event::UNLINK, NO_FAILURE, flags);
        }

        self.remove_operation(index);
        if is_last {
            self.remove_descriptor(descriptor);
        }
        events
    }

    /// Returns a get that waits for a reply from a node, if there is one. After the node's
    /// incarnation has ended, the caller ends such operations one by one.
    pub fn waiting_get(&self, node: u32) -> Option<OperationHandle> {
        (0..self.operations.end())
            .find(|&index| {
                let operation = &self.operations[index];
                self.operations.is_used(index) && operation.kind == Kind::Get && operation.node == node
            })
            .map(|index| OperationHandle(self.operations.handle(index)))
    }

    /// Marks the gets that wait for a reply from a node as lost, and returns whether there are any.
    /// The caller ends them one by one: see [`Process::lost_get`]. Gets that begin later, to the
    /// node's next incarnation, are not lost.
    pub fn lose_gets(&mut self, node: u32) -> bool {
        let mut has_lost = false;
        for index in 0..self.operations.end() {
            let is_used = self.operations.is_used(index);
            let operation = &mut self.operations[index];
            if is_used && operation.kind == Kind::Get && operation.node == node {
                operation.is_lost = true;
                has_lost = true;
            }
        }
        has_lost
    }

    /// Returns a get that [`Process::lose_gets`] has marked as lost, if one is left.
    pub fn lost_get(&self) -> Option<OperationHandle> {
        (0..self.operations.end())
            .find(|&index| self.operations.is_used(index) && self.operations[index].is_lost)
            .map(|index| OperationHandle(self.operations.handle(index)))
    }

    /// Returns an event of the operation at an index, if the operation's descriptor has a queue and
    /// not the option `disabled_by`. `kind` is one of [`event`].
    #[inline]
    pub(super) fn event_unless(
        &mut self,
        disabled_by: u16,
        operation: u16,
        kind: u8,
        failure: u16,
        flags: u16,
    ) -> Events {
        // Most descriptors of sends have no queue: the record need not be made.
        let descriptor = &self.descriptors[self.operations[operation].descriptor];
        if descriptor.queue == NONE || descriptor.has(disabled_by) {
            return Events::default();
        }

        let mut events = Events::default();
        self.add_event(&mut events, operation, kind, failure, flags);
        events
    }

    /// Adds an event of the operation at an index to a list, if the operation's descriptor has a
    /// queue. `kind` is one of [`event`].
    fn add_event(&mut self, events: &mut Events, operation: u16, kind: u8, failure: u16, flags: u16) {
        let operation = &self.operations[operation];
        let descriptor = operation.descriptor;
        let record = EventRecord {
            match_bits: operation.match_bits,
            header_data: operation.header_data,
            offset: operation.offset,
            requested: operation.requested,
            moved: operation.moved,
            node: operation.node,
            process: operation.process,
            portal: operation.portal,
            kind,
            failure,
            flags,
            link: operation.link,
            ..EventRecord::default()
        };
        self.add_descriptor_event(events, descriptor, record);
    }

    /// Adds an event of a descriptor to a list, if the descriptor has a queue. Fills in the fields
    /// that the queue and the descriptor determine.
    #[inline]
    pub(super) fn add_descriptor_event(
        &mut self,
        events: &mut Events,
        descriptor: u16,
        mut record: EventRecord,
    ) {
        let Descriptor { queue, user_pointer, .. } = self.descriptors[descriptor];
        if queue == NONE {
            return;
        }

        let QueueSlot { number, address } = self.queues[queue].take_slot();
        record.number = number;
        record.user_pointer = user_pointer;
        record.descriptor = self.descriptors.handle(descriptor);
        events.push(Event { address, queue: self.queues.handle(queue), record });
    }

    /// Counts an operation that is in progress from now on, at its descriptor and its queue.
    #[inline]
    pub(super) fn count_begin(&mut self, descriptor: u16) {
        let descriptor = &mut self.descriptors[descriptor];
        descriptor.in_progress += 1;
        let queue = descriptor.queue;
        if queue != NONE {
            self.queues[queue].in_progress += 1;
        }
    }

    /// Ends the count of an operation at its descriptor and its queue. A get without a reply counts
    /// only as waiting.
    #[inline]
    pub(super) fn count_end(&mut self, descriptor: u16, kind: Kind) {
        let descriptor = &mut self.descriptors[descriptor];
        if kind == Kind::Get {
            descriptor.waiting -= 1;
            return;
        }

        descriptor.in_progress -= 1;
        let queue = descriptor.queue;
        if queue != NONE {
            self.queues[queue].in_progress -= 1;
        }
    }

    /// Adds an operation to the table, and returns its index, or `None` if the table is full. The
    /// caller counts the operation at its descriptor.
    pub(super) fn add_operation(&mut self, operation: Operation) -> Option<u16> {
        let is_outgoing = operation.kind.is_outgoing();
        let index = self.operations.insert(operation)?;
        if is_outgoing {
            self.outgoing += 1;
        } else {
            self.incoming += 1;
        }
        Some(index)
    }

    /// Removes an operation from the table, and from the count of those in progress.
    pub(super) fn remove_operation(&mut self, index: u16) {
        if self.operations[index].kind.is_outgoing() {
            self.outgoing -= 1;
        } else {
            self.incoming -= 1;
        }
        self.operations.remove(index);
    }

    /// Returns the link of a new operation: a number that all its events show.
    pub(super) fn next_link(&mut self) -> u32 {
        self.last_link = self.last_link.wrapping_add(1);
        self.last_link
    }
}
