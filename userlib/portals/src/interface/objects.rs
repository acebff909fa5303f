//! Event queues, match entries and memory descriptors.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::seastar::{Command, MAX_EVENTS, NO_HANDLE, command, option};

use super::Interface;
use crate::{
    Access, Criteria, Descriptor, DescriptorId, Error, Event, EventQueue, MatchEntry, Position, Refusal,
    Region, Threshold, Unlink,
    queue::{self, EVENT_BYTES},
};

/// A memory descriptor that this process has made (`ptl_handle_md_t`).
///
/// It knows its memory, so that this library can copy the data of short messages into commands.
/// Dropping it unlinks nothing: see [`Interface::unlink_descriptor`].
#[derive(Clone, Debug)]
pub struct MemoryDescriptor {
    pub(super) id: DescriptorId,
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The descriptor exists and is active, and only calls of this process can change that.
    is_steady: Arc<AtomicBool>,
}

impl MemoryDescriptor {
    /// Makes the object of a descriptor that the card has created. `id` is the result's value.
    fn new(id: u64, values: &Descriptor<'_>) -> Self {
        let Descriptor { region, offset, length, .. } = *values;
        let is_steady = Arc::new(AtomicBool::new(false));
        Self { id: DescriptorId(id as u32), region: region.clone(), offset, length, is_steady }
    }

    /// Returns whether the card cannot refuse a put or get because of the descriptor.
    #[inline]
    pub(super) fn is_steady(&self) -> bool {
        self.is_steady.load(Ordering::Relaxed)
    }

    /// Records that the card can refuse the descriptor from now on.
    ///
    /// A call that unlinks or changes the descriptor makes this record before it takes the
    /// mailbox's lock. Puts read the record under that lock, so that a put whose command comes
    /// after that of the call sees it.
    fn clear_steady(&self) {
        self.is_steady.store(false, Ordering::Relaxed);
    }

    /// Returns the name by which events mention it.
    pub fn id(&self) -> DescriptorId {
        self.id
    }

    /// Returns the region that its memory lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the length of its memory.
    #[allow(clippy::len_without_is_empty, reason = "it is the length of its memory")]
    pub fn len(&self) -> u64 {
        self.length
    }
}

impl Interface {
    /// Allocates an event queue for at least `events` events (`PtlEQAlloc`), at most 65,535.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`]; [`Refusal::Segment`] for too many events; as [`Interface::allocate`].
    pub fn allocate_queue(&self, events: u32) -> Result<EventQueue, Error> {
        const CALL: &str = "PtlEQAlloc";
        // One slot more: the writer may be filling the slot of the next event.
        let events = (u64::from(events) + 1).next_power_of_two().max(2);
        if events > MAX_EVENTS {
            return Err(Error::Refused { call: CALL, reason: Refusal::Segment });
        }

        let memory = self.queue_memory(events * EVENT_BYTES)?;
        let allocate = Command {
            kind: command::ALLOCATE_QUEUE,
            start: memory.address,
            length: events,
            ..Command::default()
        };
        match self.link.call(CALL, &allocate) {
            Ok(result) => Ok(EventQueue::new(&self.link, result.value as u32, memory, events as u32)),
            Err(error) => {
                self.link.release_queue(memory);
                Err(error)
            }
        }
    }

    /// Waits for an event of any of these queues, takes it, and returns the position of its queue
    /// (`PtlEQPoll`). The queues may belong to several interfaces of one process.
    ///
    /// # Errors
    /// As for [`EventQueue::wait`].
    pub fn poll(
        queues: &[&EventQueue],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(usize, Event), Error> {
        queue::wait_any(queues, deadline, cancel)
    }

    /// Adds a match entry to a list (`PtlMEAttach`, `PtlMEInsert`). With [`Unlink::Automatic`] it
    /// is removed with its descriptor.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`], [`Refusal::Portal`], [`Refusal::Entry`].
    pub fn attach_entry(
        &self,
        position: Position,
        criteria: Criteria,
        unlink: Unlink,
    ) -> Result<MatchEntry, Error> {
        let mut attach = Command::default();
        let name = set_position(&mut attach, position);
        set_criteria(&mut attach, criteria);
        if unlink == Unlink::Automatic {
            attach.options |= option::UNLINK;
        }
        Ok(MatchEntry(self.link.call(name, &attach)?.value as u32))
    }

    /// Removes a match entry, with its descriptor if it has one (`PtlMEUnlink`).
    ///
    /// # Errors
    /// [`Refusal::Entry`], [`Refusal::EntryInUse`].
    pub fn unlink_entry(&self, entry: MatchEntry) -> Result<(), Error> {
        let unlink = Command { kind: command::UNLINK_ENTRY, handle: entry.0, ..Command::default() };
        self.link.call("PtlMEUnlink", &unlink).map(drop)
    }

    /// Adds a descriptor to a match entry (`PtlMDAttach`).
    ///
    /// # Errors
    /// [`Refusal::Entry`], [`Refusal::EntryInUse`]; as [`Interface::bind_descriptor`].
    pub fn attach_descriptor(
        &self,
        entry: MatchEntry,
        values: &Descriptor<'_>,
    ) -> Result<MemoryDescriptor, Error> {
        let mut attach = Command { kind: command::ATTACH_DESCRIPTOR, handle: entry.0, ..Command::default() };
        set_descriptor(&mut attach, values)?;
        Ok(MemoryDescriptor::new(self.link.call("PtlMDAttach", &attach)?.value, values))
    }

    /// Makes a descriptor for puts and gets of this process (`PtlMDBind`).
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Refusal::NoSpace`], [`Refusal::Queue`], [`Refusal::Segment`].
    pub fn bind_descriptor(&self, values: &Descriptor<'_>) -> Result<MemoryDescriptor, Error> {
        let mut bind = Command { kind: command::BIND_DESCRIPTOR, ..Command::default() };
        set_descriptor(&mut bind, values)?;
        let bound = MemoryDescriptor::new(self.link.call("PtlMDBind", &bind)?.value, values);
        // No message of another process uses it. Without a threshold it thus stays active.
        bound.is_steady.store(values.threshold == Threshold::Infinite, Ordering::Relaxed);
        Ok(bound)
    }

    /// Removes a descriptor (`PtlMDUnlink`), and its entry if that is unlinked automatically. Gets
    /// that have no reply yet end without an event.
    ///
    /// # Errors
    /// [`Refusal::Descriptor`] also for one that was unlinked automatically;
    /// [`Refusal::DescriptorInUse`].
    pub fn unlink_descriptor(&self, descriptor: &MemoryDescriptor) -> Result<(), Error> {
        descriptor.clear_steady();
        let handle = descriptor.id.0;
        let unlink = Command { kind: command::UNLINK_DESCRIPTOR, handle, ..Command::default() };
        self.link.call("PtlMDUnlink", &unlink).map(drop)
    }

    /// Replaces the values of a descriptor if the tested queue is empty (`PtlMDUpdate`). Its
    /// locally managed offset becomes 0. Returns `false` if the queue has an event or will have
    /// one, or the descriptor has operations in progress (`PTL_MD_NO_UPDATE`).
    ///
    /// # Errors
    /// [`Refusal::Descriptor`]; as [`Interface::bind_descriptor`].
    pub fn update_descriptor(
        &self,
        descriptor: &mut MemoryDescriptor,
        values: &Descriptor<'_>,
        test: Option<&EventQueue>,
    ) -> Result<bool, Error> {
        descriptor.clear_steady();
        let handle = descriptor.id.0;
        let mut update = Command { kind: command::UPDATE_DESCRIPTOR, handle, ..Command::default() };
        set_descriptor(&mut update, values)?;
        set_test(&mut update, test);
        if self.link.call("PtlMDUpdate", &update)?.value == 0 {
            return Ok(false);
        }

        *descriptor = MemoryDescriptor::new(handle.into(), values);
        Ok(true)
    }

    /// Adds a match entry and its descriptor if the tested queue is empty, in one command
    /// (`PtlPost`). Returns `None`, without a change, if the queue has an event or will have one.
    ///
    /// # Errors
    /// As [`Interface::attach_entry`] and [`Interface::bind_descriptor`].
    pub fn post(
        &self,
        position: Position,
        criteria: Criteria,
        unlink: Unlink,
        values: &Descriptor<'_>,
        test: Option<&EventQueue>,
    ) -> Result<Option<(MatchEntry, MemoryDescriptor)>, Error> {
        let mut post = Command { handle: NO_HANDLE, ..Command::default() };
        set_position(&mut post, position);
        // `set_position` has set the kind of a single match entry.
        post.kind = command::POST;
        set_criteria(&mut post, criteria);
        set_descriptor(&mut post, values)?;
        set_test(&mut post, test);
        if unlink == Unlink::Automatic {
            post.options |= option::UNLINK_ENTRY;
        }

        let result = self.link.call("PtlPost", &post)?;
        if result.value == u64::from(NO_HANDLE) {
            return Ok(None);
        }
        Ok(Some((MatchEntry(result.value as u32), MemoryDescriptor::new(result.extra, values))))
    }

    /// Sets an access control entry (`PtlACEntry`). At first entry 0 permits everything, and the
    /// others nothing.
    ///
    /// # Errors
    /// [`Refusal::Access`].
    pub fn set_access(&self, index: u8, access: Access) -> Result<(), Error> {
        let (node, process) = access.initiator.encode();
        let portal = access.portal();
        let kind = command::SET_ACCESS;
        let set = Command { kind, access: index, node, process, portal, ..Command::default() };
        self.link.call("PtlACEntry", &set).map(drop)
    }
}

/// Fills in the kind of the command and the position of the new match entry. Returns the standard's
/// name of the call.
fn set_position(command: &mut Command, position: Position) -> &'static str {
    if matches!(position, Position::Head(_) | Position::Before(_)) {
        command.options |= option::BEFORE;
    }

    match position {
        Position::Head(portal) | Position::Tail(portal) => {
            command.kind = command::ATTACH_ENTRY;
            command.portal = portal;
            "PtlMEAttach"
        }
        Position::Before(base) | Position::After(base) => {
            command.kind = command::INSERT_ENTRY;
            command.handle = base.0;
            "PtlMEInsert"
        }
    }
}

/// Fills in the criteria of a match entry.
fn set_criteria(command: &mut Command, criteria: Criteria) {
    (command.node, command.process) = criteria.initiator.encode();
    command.match_bits = criteria.match_bits;
    command.ignore_bits = criteria.ignore_bits;
}

/// Fills in the values of a descriptor.
fn set_descriptor(command: &mut Command, values: &Descriptor<'_>) -> Result<(), Error> {
    let Descriptor { offset, length, .. } = *values;
    let size = values.region.len();
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Error::OutOfRange { offset, length, size });
    }

    command.start = values.region.address() + offset;
    command.length = length;
    command.threshold = values.threshold.encode();
    command.options |= values.options.bits();
    if let Some(max_size) = values.max_size {
        command.options |= option::MAX_SIZE;
        command.max_size = max_size;
    }

    if values.unlink == Unlink::Automatic {
        command.options |= option::UNLINK;
    }
    command.user_pointer = values.user_pointer;
    command.queue = values.queue.map_or(NO_HANDLE, EventQueue::handle);
    Ok(())
}

/// Fills in the queue that must be empty, if there is one.
fn set_test(command: &mut Command, test: Option<&EventQueue>) {
    command.test_queue = test.map_or(NO_HANDLE, EventQueue::handle);
    command.test_number = test.map_or(0, EventQueue::taken);
}
