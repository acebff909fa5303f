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

/// Returns the address and the length of the memory that a command gives to its process's objects.
/// It must lie in the process's address map. `None` means that the command names no memory, and
/// `Some` may name 0 bytes.
pub fn memory(command: &Command) -> Option<(u64, u64)> {
    match command.kind {
        command::ALLOCATE_QUEUE => {
            Some((command.start, command.length.saturating_mul(size_of::<EventRecord>() as u64)))
        }
        command::ATTACH_DESCRIPTOR
        | command::BIND_DESCRIPTOR
        | command::UPDATE_DESCRIPTOR
        | command::POST => Some((command.start, command.length)),
        _ => None,
    }
}

impl Process {
    /// Carries out a command that starts no operation. The caller has checked [`memory`]. The
    /// number of the result is not filled in.
    pub fn command(&mut self, command: &Command) -> CommandResult {
        let done = match command.kind {
            command::ALLOCATE_QUEUE => {
                self.allocate_queue(command.start, command.length).map(|queue| (u64::from(queue.0), 0))
            }
            command::FREE_QUEUE => self.free_queue(QueueHandle(command.handle)).map(|()| (0, 0)),
            command::ATTACH_ENTRY | command::INSERT_ENTRY => self.command_entry(command),
            command::UNLINK_ENTRY => self.unlink_entry(EntryHandle(command.handle)).map(|()| (0, 0)),
            command::ATTACH_DESCRIPTOR => self
                .attach_descriptor(EntryHandle(command.handle), &descriptor(command, command.options))
                .map(|created| (u64::from(created.0), 0)),
            command::BIND_DESCRIPTOR => self
                .bind_descriptor(&descriptor(command, command.options))
                .map(|created| (u64::from(created.0), 0)),
            command::UNLINK_DESCRIPTOR => {
                self.unlink_descriptor(DescriptorHandle(command.handle)).map(|()| (0, 0))
            }
            command::UPDATE_DESCRIPTOR => {
                let values = descriptor(command, command.options);
                self.update_descriptor(DescriptorHandle(command.handle), &values, test(command))
                    .map(|is_updated| (u64::from(is_updated), 0))
            }
            command::SET_ACCESS => self.set_access(command.access, access(command)).map(|()| (0, 0)),
            command::POST => self.command_post(command),
            command::STATUS => self.status(command.handle).map(|value| (value, 0)),
            _ => Err(Refusal(code::COMMAND_INVALID)),
        };

        match done {
            Ok((value, extra)) => CommandResult { value, extra, ..CommandResult::default() },
            Err(Refusal(code)) => CommandResult { code, ..CommandResult::default() },
        }
    }

    fn command_entry(&mut self, command: &Command) -> Result<(u64, u64), Refusal> {
        let is_before = command.options & option::BEFORE != 0;
        if command.options & !(option::BEFORE | option::UNLINK) != 0 {
            return Err(Refusal(code::COMMAND_INVALID));
        }

        let position = if command.kind == command::ATTACH_ENTRY {
            in_portal(command.portal, is_before)
        } else {
            beside(EntryHandle(command.handle), is_before)
        };
        let entry = self.add_entry(position, criteria(command), command.options & option::UNLINK != 0)?;
        Ok((u64::from(entry.0), 0))
    }

    fn command_post(&mut self, command: &Command) -> Result<(u64, u64), Refusal> {
        let is_before = command.options & option::BEFORE != 0;
        let unlinks = command.options & option::UNLINK_ENTRY != 0;
        let position = match command.handle {
            NO_HANDLE => in_portal(command.portal, is_before),
            base => beside(EntryHandle(base), is_before),
        };

        let values = descriptor(command, command.options & !(option::BEFORE | option::UNLINK_ENTRY));
        let posted = self.post(position, criteria(command), unlinks, &values, test(command))?;
        Ok(posted.map_or((u64::from(NO_HANDLE), u64::from(NO_HANDLE)), |posted| {
            (u64::from(posted.entry.0), u64::from(posted.descriptor.0))
        }))
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

fn in_portal(portal: u8, is_before: bool) -> Position {
    if is_before { Position::Head(portal) } else { Position::Tail(portal) }
}

fn beside(base: EntryHandle, is_before: bool) -> Position {
    if is_before { Position::Before(base) } else { Position::After(base) }
}

fn criteria(command: &Command) -> Criteria {
    Criteria {
        match_bits: command.match_bits,
        ignore_bits: command.ignore_bits,
        node: command.node,
        process: command.process,
    }
}

fn access(command: &Command) -> AccessEntry {
    AccessEntry { node: command.node, process: command.process, portal: command.portal }
}

fn test(command: &Command) -> Option<QueueTest> {
    (command.test_queue != NO_HANDLE)
        .then_some(QueueTest { queue: QueueHandle(command.test_queue), taken: command.test_number })
}

fn descriptor(command: &Command, options: u16) -> MemoryDescriptor {
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
