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
pub fn memory(given: &Command) -> Option<(u64, u64)> {
    match given.kind {
        command::ALLOCATE_QUEUE => {
            Some((given.start, given.length.saturating_mul(size_of::<EventRecord>() as u64)))
        }
        command::ATTACH_DESCRIPTOR
        | command::BIND_DESCRIPTOR
        | command::UPDATE_DESCRIPTOR
        | command::POST => Some((given.start, given.length)),
        _ => None,
    }
}

impl Process {
    /// Carries out a command that starts no operation. The caller has checked [`memory`]. The
    /// number of the result is not filled in.
    pub fn command(&mut self, given: &Command) -> CommandResult {
        let done = match given.kind {
            command::ALLOCATE_QUEUE => {
                self.allocate_queue(given.start, given.length).map(|queue| (u64::from(queue.0), 0))
            }
            command::FREE_QUEUE => self.free_queue(QueueHandle(given.handle)).map(|()| (0, 0)),
            command::ATTACH_ENTRY | command::INSERT_ENTRY => self.command_entry(given),
            command::UNLINK_ENTRY => self.unlink_entry(EntryHandle(given.handle)).map(|()| (0, 0)),
            command::ATTACH_DESCRIPTOR => self
                .attach_descriptor(EntryHandle(given.handle), &descriptor(given, given.options))
                .map(|made| (u64::from(made.0), 0)),
            command::BIND_DESCRIPTOR => {
                self.bind_descriptor(&descriptor(given, given.options)).map(|made| (u64::from(made.0), 0))
            }
            command::UNLINK_DESCRIPTOR => {
                self.unlink_descriptor(DescriptorHandle(given.handle)).map(|()| (0, 0))
            }
            command::UPDATE_DESCRIPTOR => {
                let values = descriptor(given, given.options);
                self.update_descriptor(DescriptorHandle(given.handle), &values, test(given))
                    .map(|is_updated| (u64::from(is_updated), 0))
            }
            command::SET_ACCESS => self.set_access(given.access, access(given)).map(|()| (0, 0)),
            command::POST => self.command_post(given),
            command::STATUS => self.status(given.handle).map(|value| (value, 0)),
            _ => Err(Refusal(code::COMMAND_INVALID)),
        };

        match done {
            Ok((value, extra)) => CommandResult { value, extra, ..CommandResult::default() },
            Err(Refusal(code)) => CommandResult { code, ..CommandResult::default() },
        }
    }

    fn command_entry(&mut self, given: &Command) -> Result<(u64, u64), Refusal> {
        let is_before = given.options & option::BEFORE != 0;
        if given.options & !(option::BEFORE | option::UNLINK) != 0 {
            return Err(Refusal(code::COMMAND_INVALID));
        }

        let position = if given.kind == command::ATTACH_ENTRY {
            in_portal(given.portal, is_before)
        } else {
            beside(EntryHandle(given.handle), is_before)
        };
        let entry = self.add_entry(position, criteria(given), given.options & option::UNLINK != 0)?;
        Ok((u64::from(entry.0), 0))
    }

    fn command_post(&mut self, given: &Command) -> Result<(u64, u64), Refusal> {
        let is_before = given.options & option::BEFORE != 0;
        let unlinks = given.options & option::UNLINK_ENTRY != 0;
        let position = match given.handle {
            NO_HANDLE => in_portal(given.portal, is_before),
            base => beside(EntryHandle(base), is_before),
        };

        let values = descriptor(given, given.options & !(option::BEFORE | option::UNLINK_ENTRY));
        let posted = self.post(position, criteria(given), unlinks, &values, test(given))?;
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
    pub fn from_command(given: &Command) -> Result<Self, Refusal> {
        let allowed = if given.kind == command::PUT { option::ACK | option::INLINE } else { 0 };
        if given.options & !allowed != 0 {
            return Err(Refusal(code::COMMAND_INVALID));
        }
        if given.access >= ACCESS_ENTRIES {
            return Err(Refusal(code::ACCESS_INVALID));
        }

        Ok(Self {
            descriptor: DescriptorHandle(given.handle),
            local_offset: given.local_offset,
            length: given.length,
            target: Identity { node: given.node, process: given.process },
            portal: given.portal,
            access: given.access,
            match_bits: given.match_bits,
            offset: given.offset,
            header_data: given.header_data,
            acknowledge: given.options & option::ACK != 0,
            inline: (given.options & option::INLINE != 0).then_some(given.inline),
        })
    }
}

fn in_portal(portal: u8, is_before: bool) -> Position {
    if is_before { Position::Head(portal) } else { Position::Tail(portal) }
}

fn beside(base: EntryHandle, is_before: bool) -> Position {
    if is_before { Position::Before(base) } else { Position::After(base) }
}

fn criteria(given: &Command) -> Criteria {
    Criteria {
        match_bits: given.match_bits,
        ignore_bits: given.ignore_bits,
        node: given.node,
        process: given.process,
    }
}

fn access(given: &Command) -> AccessEntry {
    AccessEntry { node: given.node, process: given.process, portal: given.portal }
}

fn test(given: &Command) -> Option<QueueTest> {
    (given.test_queue != NO_HANDLE)
        .then_some(QueueTest { queue: QueueHandle(given.test_queue), taken: given.test_number })
}

fn descriptor(given: &Command, options: u16) -> MemoryDescriptor {
    MemoryDescriptor {
        start: given.start,
        length: given.length,
        threshold: given.threshold,
        max_size: given.max_size,
        options,
        user_pointer: given.user_pointer,
        queue: (given.queue != NO_HANDLE).then_some(QueueHandle(given.queue)),
    }
}
