//! A process: its tables, and what creates, changes and removes their objects.

use nicforge_hwi::seastar::{
    Event as EventRecord, MAX_EVENTS, PORTALS, THRESHOLD_INFINITE, code, option, status,
};

use super::access::{AccessEntry, AccessTable};
use super::limits::{Identity, Limits};
use super::list::MatchList;
use super::objects::{
    Criteria, Descriptor, DescriptorHandle, Entry, EntryHandle, Kind, MemoryDescriptor, Operation, Position,
    Queue, QueueHandle, QueueTest,
};
use super::table::{NONE, Table};

/// Options that a descriptor can have.
const DESCRIPTOR_OPTIONS: u16 = option::UNLINK
    | option::OP_PUT
    | option::OP_GET
    | option::MANAGE_REMOTE
    | option::TRUNCATE
    | option::ACK_DISABLE
    | option::START_DISABLE
    | option::END_DISABLE
    | option::MAX_SIZE;

/// Refusal of a call: one of [`code`]. The call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u32);

/// The objects that [`Process::post`] has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The match entry.
    pub entry: EntryHandle,
    /// Its descriptor.
    pub descriptor: DescriptorHandle,
}

/// The Portals state of a process.
#[derive(Debug)]
pub struct Process {
    pub(super) identity: Identity,
    pub(super) limits: Limits,
    pub(super) portals: [MatchList; PORTALS as usize],
    pub(super) access: AccessTable,
    pub(super) entries: Table<Entry>,
    pub(super) descriptors: Table<Descriptor>,
    pub(super) queues: Table<Queue>,
    pub(super) operations: Table<Operation>,
    /// Operations in progress that others have started.
    pub(super) incoming: u16,
    /// Operations in progress that the process has started.
    pub(super) outgoing: u16,
    /// Link of the latest operation or acknowledgement: see [`Process::next_link`].
    pub(super) last_link: u32,
    /// Messages that no descriptor took.
    pub(super) drops: u64,
    /// Messages that access control refused.
    pub(super) violations: u64,
    /// Generation of the first object at each index.
    generation: u16,
}

impl Process {
    /// Makes a process without objects, and allocates all memory that it will use.
    pub fn new(identity: Identity, limits: Limits) -> Self {
        Self::with_generation(identity, limits, 1)
    }

    /// Makes a process that comes after another one of the same name. `generation` is the former
    /// process's [`Process::next_generation`], so that handles of the former are invalid here.
    pub fn with_generation(identity: Identity, limits: Limits, generation: u16) -> Self {
        // The generation of an entry that exists is odd.
        let generation = generation | 1;
        let operations = limits.incoming.saturating_add(limits.outgoing);
        Self {
            identity,
            limits,
            portals: [MatchList { head: NONE, tail: NONE }; PORTALS as usize],
            access: AccessTable::new(),
            entries: Table::new(limits.entries, generation),
            descriptors: Table::new(limits.descriptors, generation),
            queues: Table::new(limits.queues, generation),
            operations: Table::new(operations, generation),
            incoming: 0,
            outgoing: 0,
            last_link: 0,
            drops: 0,
            violations: 0,
            generation,
        }
    }

    /// Returns the generation of a process that comes after this one.
    pub fn next_generation(&self) -> u16 {
        // Only handles of operations and descriptors are in messages, which can arrive late.
        let used = self.operations.used_generations().max(self.descriptors.used_generations());
        self.generation.wrapping_add(used)
    }

    /// Returns the name of the process.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the number of operations that the process can start beside those in progress.
    pub fn room_for_operations(&self) -> u16 {
        self.limits.outgoing.saturating_sub(self.outgoing)
    }

    /// Returns the number of operations in progress, incoming and outgoing.
    pub fn operations(&self) -> u32 {
        u32::from(self.incoming) + u32::from(self.outgoing)
    }

    /// Adds an event queue (`PtlEQAlloc`) of `events` slots: a power of two from 2 to
    /// [`MAX_EVENTS`]. The process has filled its memory with zeros.
    ///
    /// A slot is overwritten when the queue wraps around. The process recognises that by the number
    /// of the event.
    ///
    /// # Errors
    /// `SEGMENT_VIOLATION` for a wrong number, or an address that is no multiple of 64; `NO_SPACE`.
    pub fn allocate_queue(&mut self, start: u64, events: u64) -> Result<QueueHandle, Refusal> {
        let has_good_size = events.is_power_of_two() && (2..=MAX_EVENTS).contains(&events);
        let bytes = size_of::<EventRecord>() as u64;
        if !has_good_size || !start.is_multiple_of(bytes) || start.checked_add(events * bytes).is_none() {
            return Err(Refusal(code::SEGMENT_VIOLATION));
        }

        let queue = Queue { start, mask: events as u32 - 1, written: 0, in_progress: 0, users: 0 };
        let index = self.queues.insert(queue).ok_or(Refusal(code::NO_SPACE))?;
        Ok(QueueHandle(self.queues.handle(index)))
    }

    /// Removes an event queue (`PtlEQFree`).
    ///
    /// # Errors
    /// `QUEUE_INVALID`; `QUEUE_IN_USE` if descriptors use it.
    pub fn free_queue(&mut self, queue: QueueHandle) -> Result<(), Refusal> {
        let index = self.find_queue(queue)?;
        if self.queues[index].users > 0 {
            return Err(Refusal(code::QUEUE_IN_USE));
        }

        self.queues.remove(index);
        Ok(())
    }

    /// Adds a match entry to a list (`PtlMEAttach`, `PtlMEInsert`). With `unlinks`, it is removed
    /// with its descriptor.
    ///
    /// # Errors
    /// `PORTAL_INVALID`, `ENTRY_INVALID` (the base), `NO_SPACE`.
    pub fn add_entry(
        &mut self,
        position: Position,
        criteria: Criteria,
        unlinks: bool,
    ) -> Result<EntryHandle, Refusal> {
        let neighbours = self.neighbours(position)?;
        let index = self.insert_at(neighbours, criteria, unlinks)?;
        Ok(EntryHandle(self.entries.handle(index)))
    }

    /// Removes a match entry, with its descriptor if it has one (`PtlMEUnlink`).
    ///
    /// # Errors
    /// `ENTRY_INVALID`; `ENTRY_IN_USE` if its descriptor has operations in progress.
    pub fn unlink_entry(&mut self, entry: EntryHandle) -> Result<(), Refusal> {
        let index = self.entries.find(entry.0).ok_or(Refusal(code::ENTRY_INVALID))?;
        let descriptor = self.entries[index].descriptor;
        if descriptor == NONE {
            self.remove_entry(index);
            return Ok(());
        }

        if self.descriptors[descriptor].in_progress > 0 {
            return Err(Refusal(code::ENTRY_IN_USE));
        }
        // The entry is removed with its descriptor, whether or not it unlinks by itself.
        self.entries[index].unlinks = true;
        self.remove_descriptor(descriptor);
        Ok(())
    }

    /// Adds a descriptor to a match entry (`PtlMDAttach`).
    ///
    /// # Errors
    /// `ENTRY_INVALID`; `ENTRY_IN_USE` if the entry has one; as for [`Process::bind_descriptor`].
    pub fn attach_descriptor(
        &mut self,
        entry: EntryHandle,
        values: &MemoryDescriptor,
    ) -> Result<DescriptorHandle, Refusal> {
        let entry = self.entries.find(entry.0).ok_or(Refusal(code::ENTRY_INVALID))?;
        if self.entries[entry].descriptor != NONE {
            return Err(Refusal(code::ENTRY_IN_USE));
        }

        let index = self.add_descriptor(values, entry)?;
        self.entries[entry].descriptor = index;
        Ok(DescriptorHandle(self.descriptors.handle(index)))
    }

    /// Adds a descriptor without a match entry (`PtlMDBind`), for outgoing operations.
    ///
    /// # Errors
    /// `DESCRIPTOR_ILLEGAL` for a threshold or options that do not exist; `SEGMENT_VIOLATION` for
    /// memory that wraps around; `QUEUE_INVALID`; `NO_SPACE`.
    pub fn bind_descriptor(&mut self, values: &MemoryDescriptor) -> Result<DescriptorHandle, Refusal> {
        let index = self.add_descriptor(values, NONE)?;
        Ok(DescriptorHandle(self.descriptors.handle(index)))
    }

    /// Removes a descriptor (`PtlMDUnlink`), and its entry if that unlinks. Gets that wait for a
    /// reply end without an event.
    ///
    /// # Errors
    /// `DESCRIPTOR_INVALID`; `DESCRIPTOR_IN_USE` if it has operations in progress.
    pub fn unlink_descriptor(&mut self, descriptor: DescriptorHandle) -> Result<(), Refusal> {
        let index = self.find_descriptor(descriptor)?;
        if self.descriptors[index].in_progress > 0 {
            return Err(Refusal(code::DESCRIPTOR_IN_USE));
        }

        self.remove_descriptor(index);
        Ok(())
    }

    /// Replaces the values of a descriptor (`PtlMDUpdate`). Its locally managed offset becomes 0.
    /// Returns `false`, and changes nothing, if the tested queue is not empty, or operations of the
    /// descriptor are in progress.
    ///
    /// # Errors
    /// `DESCRIPTOR_INVALID`; `QUEUE_INVALID`; as for [`Process::bind_descriptor`].
    pub fn update_descriptor(
        &mut self,
        descriptor: DescriptorHandle,
        values: &MemoryDescriptor,
        test: Option<QueueTest>,
    ) -> Result<bool, Refusal> {
        let index = self.find_descriptor(descriptor)?;
        let queue = self.check_descriptor(values)?;
        let is_idle = self.descriptors[index].in_progress == 0 && self.descriptors[index].waiting == 0;
        if !self.is_empty(test)? || !is_idle {
            return Ok(false);
        }

        self.release_queue(self.descriptors[index].queue);
        self.use_queue(queue);
        let entry = self.descriptors[index].entry;
        self.descriptors[index] = Descriptor::new(values, queue, entry);
        Ok(true)
    }

    /// Adds a match entry and its descriptor in one step (`PtlPost`). Returns `None`, and changes
    /// nothing, if the tested queue is not empty.
    ///
    /// # Errors
    /// As for [`Process::add_entry`] and [`Process::bind_descriptor`].
    pub fn post(
        &mut self,
        position: Position,
        criteria: Criteria,
        unlinks: bool,
        values: &MemoryDescriptor,
        test: Option<QueueTest>,
    ) -> Result<Option<Posted>, Refusal> {
        let neighbours = self.neighbours(position)?;
        self.check_descriptor(values)?;
        if self.entries.room() == 0 || self.descriptors.room() == 0 {
            return Err(Refusal(code::NO_SPACE));
        }
        if !self.is_empty(test)? {
            return Ok(None);
        }

        let entry = self.insert_at(neighbours, criteria, unlinks)?;
        let descriptor = self.add_descriptor(values, entry)?;
        self.entries[entry].descriptor = descriptor;
        Ok(Some(Posted {
            entry: EntryHandle(self.entries.handle(entry)),
            descriptor: DescriptorHandle(self.descriptors.handle(descriptor)),
        }))
    }

    /// Sets an access control entry (`PtlACEntry`).
    ///
    /// # Errors
    /// `ACCESS_INVALID` if there is no entry of this index.
    pub fn set_access(&mut self, index: u8, entry: AccessEntry) -> Result<(), Refusal> {
        self.access.set(index, entry)
    }

    /// Returns the value of a status register (`PtlNIStatus`): one of [`status`].
    ///
    /// # Errors
    /// `STATUS_INVALID`.
    pub fn status(&self, register: u32) -> Result<u64, Refusal> {
        match register {
            status::DROP_COUNT => Ok(self.drops),
            status::PERMISSION_VIOLATIONS => Ok(self.violations),
            _ => Err(Refusal(code::STATUS_INVALID)),
        }
    }

    /// Returns the index of a descriptor.
    pub(super) fn find_descriptor(&self, descriptor: DescriptorHandle) -> Result<u16, Refusal> {
        self.descriptors.find(descriptor.0).ok_or(Refusal(code::DESCRIPTOR_INVALID))
    }

    /// Returns the index of an event queue.
    fn find_queue(&self, queue: QueueHandle) -> Result<u16, Refusal> {
        self.queues.find(queue.0).ok_or(Refusal(code::QUEUE_INVALID))
    }

    /// Returns whether the tested queue is empty and stays empty until another operation begins, or
    /// there is no test.
    fn is_empty(&self, test: Option<QueueTest>) -> Result<bool, Refusal> {
        let Some(test) = test else { return Ok(true) };
        let queue = &self.queues[self.find_queue(test.queue)?];
        Ok(queue.written == test.taken && queue.in_progress == 0)
    }

    /// Checks a descriptor's values, and returns the index of its queue.
    fn check_descriptor(&self, values: &MemoryDescriptor) -> Result<u16, Refusal> {
        if values.options & !DESCRIPTOR_OPTIONS != 0 || values.threshold < THRESHOLD_INFINITE {
            return Err(Refusal(code::DESCRIPTOR_ILLEGAL));
        }
        if values.start.checked_add(values.length).is_none() {
            return Err(Refusal(code::SEGMENT_VIOLATION));
        }
        values.queue.map_or(Ok(NONE), |queue| self.find_queue(queue))
    }

    /// Adds a descriptor with these values for the entry at an index, or [`NONE`]. The caller links
    /// the entry to it.
    fn add_descriptor(&mut self, values: &MemoryDescriptor, entry: u16) -> Result<u16, Refusal> {
        let queue = self.check_descriptor(values)?;
        let index =
            self.descriptors.insert(Descriptor::new(values, queue, entry)).ok_or(Refusal(code::NO_SPACE))?;
        self.use_queue(queue);
        Ok(index)
    }

    /// Removes a descriptor without operations in progress, and its entry if that unlinks.
    pub(super) fn remove_descriptor(&mut self, index: u16) {
        if self.descriptors[index].waiting > 0 {
            self.abandon_gets(index);
        }

        let Descriptor { queue, entry, .. } = self.descriptors[index];
        self.release_queue(queue);
        self.descriptors.remove(index);
        if entry == NONE {
            return;
        }

        self.entries[entry].descriptor = NONE;
        if self.entries[entry].unlinks {
            self.remove_entry(entry);
        }
    }

    /// Removes the gets of a descriptor that wait for a reply.
    fn abandon_gets(&mut self, descriptor: u16) {
        for index in 0..self.operations.end() {
            let operation = &self.operations[index];
            if self.operations.is_used(index)
                && operation.kind == Kind::Get
                && operation.descriptor == descriptor
            {
                self.remove_operation(index);
            }
        }
        self.descriptors[descriptor].waiting = 0;
    }

    /// Counts a descriptor at its queue, if it has one.
    fn use_queue(&mut self, queue: u16) {
        if queue != NONE {
            self.queues[queue].users += 1;
        }
    }

    /// Ends the count of a descriptor at its queue, if it has one.
    fn release_queue(&mut self, queue: u16) {
        if queue != NONE {
            self.queues[queue].users -= 1;
        }
    }
}
