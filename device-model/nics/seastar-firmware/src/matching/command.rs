//! Commands of the untrusted mailbox, as calls.

use nicforge_hwi::seastar::{
    ACCESS_ENTRIES, Command, CommandResult, Event as EventRecord, NO_HANDLE, code, command, option,
};

use super::access::AccessEntry;
use super::limits::Identity;
use super::objects::{
    Criteria, DescriptorHandle, EntryHandle, MemoryDescriptor, Position, QueueHandle, QueueTest,
};
use super::outgoing::Request;
use super::process::{Process, Refusal};

/// Memory that a command gives to an event queue or a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandMemory {
    /// Device address of its start.
    pub start: u64,
    /// Bytes, possibly none.
    pub length: u64,
}

/// Returns the memory that a command names, or `None` if it names none. The memory must lie in the
/// process's address map, which the caller checks.
pub fn memory_of(command: &Command) -> Option<CommandMemory> {
    match command.kind {
        // The length of a queue is its number of events.
        command::ALLOCATE_QUEUE => Some(CommandMemory {
            start: command.start,
            length: command.length.saturating_mul(size_of::<EventRecord>() as u64),
        }),
        command::ATTACH_DESCRIPTOR
        | command::BIND_DESCRIPTOR
        | command::UPDATE_DESCRIPTOR
        | command::POST => Some(CommandMemory { start: command.start, length: command.length }),
        _ => None,
    }
}

impl Process {
    /// Carries out a command that starts no operation. The caller has checked the memory that it
    /// names ([`memory_of`]), and fills in the number of the result.
    pub fn carry_out(&mut self, command: &Command) -> CommandResult {
        let handle = command.handle;
        let outcome = match command.kind {
            command::ALLOCATE_QUEUE => {
                self.allocate_queue(command.start, command.length).map(|queue| Values::of(queue.0))
            }
            command::FREE_QUEUE => self.free_queue(QueueHandle(handle)).map(|()| Values::NONE),
            command::ATTACH_ENTRY | command::INSERT_ENTRY => self.add_entry_of(command),
            command::UNLINK_ENTRY => self.unlink_entry(EntryHandle(handle)).map(|()| Values::NONE),
            command::ATTACH_DESCRIPTOR => self
                .attach_descriptor(EntryHandle(handle), &descriptor_of(command, command.options))
                .map(|descriptor| Values::of(descriptor.0)),
            command::BIND_DESCRIPTOR => self
                .bind_descriptor(&descriptor_of(command, command.options))
                .map(|descriptor| Values::of(descriptor.0)),
            command::UNLINK_DESCRIPTOR => {
                self.unlink_descriptor(DescriptorHandle(handle)).map(|()| Values::NONE)
            }
            command::UPDATE_DESCRIPTOR => {
                let values = descriptor_of(command, command.options);
                self.update_descriptor(DescriptorHandle(handle), &values, queue_test_of(command))
                    .map(|is_updated| Values::of(u32::from(is_updated)))
            }
            command::SET_ACCESS => {
                self.set_access(command.access, access_entry_of(command)).map(|()| Values::NONE)
            }
            command::POST => self.post_of(command),
            command::STATUS => self.status(handle).map(|value| Values { value, extra: 0 }),
            _ => Err(Refusal(code::COMMAND_INVALID)),
        };

        match outcome {
            Ok(Values { value, extra }) => CommandResult { value, extra, ..CommandResult::default() },
            Err(Refusal(code)) => CommandResult { code, ..CommandResult::default() },
        }
    }

    /// Adds the match entry of a [`command::ATTACH_ENTRY`] or [`command::INSERT_ENTRY`].
    fn add_entry_of(&mut self, command: &Command) -> Result<Values, Refusal> {
        let is_before = command.options & option::BEFORE != 0;
        if command.options & !(option::BEFORE | option::UNLINK) != 0 {
            return Err(Refusal(code::COMMAND_INVALID));
        }

        let position = if command.kind == command::ATTACH_ENTRY {
            at_end_of_list(command.portal, is_before)
        } else {
            beside(EntryHandle(command.handle), is_before)
        };
        let unlinks = command.options & option::UNLINK != 0;
        let entry = self.add_entry(position, criteria_of(command), unlinks)?;
        Ok(Values::of(entry.0))
    }

    /// Carries out a [`command::POST`]: adds a match entry with its descriptor, unless the tested
    /// queue has an event.
    fn post_of(&mut self, command: &Command) -> Result<Values, Refusal> {
        let is_before = command.options & option::BEFORE != 0;
        let unlinks = command.options & option::UNLINK_ENTRY != 0;
        let position = match command.handle {
            NO_HANDLE => at_end_of_list(command.portal, is_before),
            base => beside(EntryHandle(base), is_before),
        };

        // The other options are the descriptor's.
        let descriptor_options = command.options & !(option::BEFORE | option::UNLINK_ENTRY);
        let values = descriptor_of(command, descriptor_options);
        let posted = self.post(position, criteria_of(command), unlinks, &values, queue_test_of(command))?;
        let (entry, descriptor) =
            posted.map_or((NO_HANDLE, NO_HANDLE), |posted| (posted.entry.0, posted.descriptor.0));
        Ok(Values { value: entry.into(), extra: descriptor.into() })
    }
}

/// The values that the result of a command carries.
struct Values {
    value: u64,
    extra: u64,
}

impl Values {
    /// Values of a command that returns nothing.
    const NONE: Self = Self { value: 0, extra: 0 };

    /// Returns a single value, such as a handle.
    fn of(value: u32) -> Self {
        Self { value: value.into(), extra: 0 }
    }
}

impl Request {
    /// Returns the request of a [`command::PUT`] or [`command::GET`].
    ///
    /// # Errors
    /// `COMMAND_INVALID` for options that the command does not have; `ACCESS_INVALID`.
    pub fn from_command(command: &Command) -> Result<Self, Refusal> {
        let allowed = if command.kind == command::PUT { option::ACK | option::INLINE } else { 0 };
        if command.options & !allowed != 0 {
            return Err(Refusal(code::COMMAND_INVALID));
        }
        if command.access >= ACCESS_ENTRIES {
            return Err(Refusal(code::ACCESS_INVALID));
        }

        Ok(Self {
            descriptor: DescriptorHandle(command.handle),
            local_offset: command.local_offset,
            length: command.length,
            target: Identity { node: command.node, process: command.process },
            portal: command.portal,
            access: command.access,
            match_bits: command.match_bits,
            offset: command.offset,
            header_data: command.header_data,
            acknowledge: command.options & option::ACK != 0,
            inline: (command.options & option::INLINE != 0).then_some(command.inline),
        })
    }
}

/// Returns the position of a new entry at the head of a portal's list, or at its tail.
fn at_end_of_list(portal: u8, is_before: bool) -> Position {
    if is_before { Position::Head(portal) } else { Position::Tail(portal) }
}

/// Returns the position of a new entry in front of another one, or after it.
fn beside(base: EntryHandle, is_before: bool) -> Position {
    if is_before { Position::Before(base) } else { Position::After(base) }
}

/// Returns the criteria of a match entry in a command.
fn criteria_of(command: &Command) -> Criteria {
    Criteria {
        match_bits: command.match_bits,
        ignore_bits: command.ignore_bits,
        node: command.node,
        process: command.process,
    }
}

/// Returns the access control entry in a command.
fn access_entry_of(command: &Command) -> AccessEntry {
    AccessEntry { node: command.node, process: command.process, portal: command.portal }
}

/// Returns the condition of an update or post, if the command has one.
fn queue_test_of(command: &Command) -> Option<QueueTest> {
    (command.test_queue != NO_HANDLE)
        .then_some(QueueTest { queue: QueueHandle(command.test_queue), taken: command.test_number })
}

/// Returns the values of a descriptor in a command. `options` are those of the command's options
/// that concern the descriptor.
fn descriptor_of(command: &Command, options: u16) -> MemoryDescriptor {
    MemoryDescriptor {
        start: command.start,
        length: command.length,
        threshold: command.threshold,
        max_size: command.max_size,
        options,
        user_pointer: command.user_pointer,
        queue: (command.queue != NO_HANDLE).then_some(QueueHandle(command.queue)),
    }
}
