//! Commands of the trusted mailbox and of the untrusted ones.

use nicforge_hwi::seastar::{
    COMMAND_BYTES, Command, CommandResult, KERNEL, KernelCommand, Piece, code, command, kernel_command,
    kernel_flag, message, process_messages,
};
use zerocopy::{FromBytes, transmute};

use super::{
    CommandOutcome, Firmware,
    headers::{Content, one_piece},
    kernel::{self, KernelQueue},
    node::{NetworkPosition, Node, write_events},
    outbox::Message,
    pending::{Owner, Quota},
    process::{self, Map, NicBased, Process, client_of, process_of},
    streams::{Reception, WaitingMessage},
};
use crate::{
    chip::{Chip, Client, Halted, Pieces},
    costs,
    matching::{self, Identity, Outgoing, Request, Source},
};

/// Returns the result of a command that is refused with one of [`code`].
fn refusal(code: u32) -> CommandResult {
    CommandResult { code, ..CommandResult::default() }
}

impl Firmware {
    /// Carries out a command of the trusted mailbox.
    pub(super) fn kernel_command<C: Chip>(
        &mut self,
        chip: &mut C,
        number: u32,
        bytes: &[u8; COMMAND_BYTES],
    ) -> Result<(), Halted> {
        chip.charge(costs::KERNEL_COMMAND);
        let result = match KernelCommand::read_from_bytes(bytes) {
            Ok(command) if kernel::unused_fields_are_zero(&command) => self.carry_out(chip, &command)?,
            _ => Err(code::COMMAND_INVALID),
        };

        self.statistics.refused_commands += u64::from(result.is_err());
        let result = result.map_or_else(refusal, |()| CommandResult::default());
        chip.answer(Client(KERNEL), number, result)
    }

    /// Carries out a well-formed command of the trusted mailbox. `Ok(Err(code))` refuses it.
    fn carry_out<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> CommandOutcome<()> {
        if command.kind == kernel_command::BOOT {
            return self.boot(chip, command);
        }
        let Some(node) = &mut self.node else { return Ok(Err(code::NO_INTERFACE)) };

        // Each command also says how many events the kernel has taken from its queue.
        if let Err(code) = node.kernel.record_taken(command.taken) {
            return Ok(Err(code));
        }
        node.retry_kernel_reports();

        Ok(match command.kind {
            kernel_command::START_PROCESS => self.start_process(command),
            kernel_command::MAP => node.add_ranges(command),
            kernel_command::STOP_PROCESS => {
                self.stop_process(chip, command.process).then_some(()).ok_or(code::PROCESS_INVALID)
            }
            kernel_command::SEND => node.send(chip, command),
            kernel_command::RECEIVE => return self.receive(chip, command),
            kernel_command::TAKE => Ok(()),
            kernel_command::REFUSE => node.set_refused(command.node, true),
            kernel_command::ADMIT => node.set_refused(command.node, false),
            _ => Err(code::COMMAND_INVALID),
        })
    }

    /// Begins an incarnation of the node, with the kernel's event queue at the command's list.
    fn boot<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> CommandOutcome<()> {
        let queue = match KernelQueue::new(command.list, command.length) {
            Ok(queue) if command.taken == 0 => queue,
            Ok(_) => return Ok(Err(code::SEGMENT_VIOLATION)),
            Err(code) => return Ok(Err(code)),
        };
        if self.node.is_some() {
            return Ok(Err(code::COMMAND_INVALID));
        }

        let position = NetworkPosition { node: chip.node(), nodes: chip.nodes() };
        let generation = self.generation.wrapping_add(1);
        let Ok(mut node) = Node::new(self.settings, position, queue, generation, &mut self.scratch) else {
            return Ok(Err(code::NO_SPACE));
        };
        chip.charge(costs::BOOT_NODE * position.nodes);
        chip.set_booted(true)?;

        // The chip has numbered the incarnation that began with the call above.
        let Some(incarnation) = chip.incarnation(position.node) else {
            node.give_back(&mut self.scratch);
            return Ok(Err(code::NO_SPACE));
        };
        node.incarnation = incarnation;
        self.generation = generation;
        self.node = Some(node);
        Ok(Ok(()))
    }

    /// Starts a process in the mode that the command's flags name. From now on it may use the
    /// network.
    fn start_process(&mut self, command: &KernelCommand) -> Result<(), u32> {
        let Some(node) = &mut self.node else { return Err(code::NO_INTERFACE) };
        let has_known_flags = command.flags & !(kernel_flag::HOST_BASED | kernel_flag::PERMANENT) == 0;
        if command.process >= node.max_processes || !has_known_flags {
            return Err(code::PROCESS_INVALID);
        }
        let slot = node.processes.get_mut(usize::from(command.process)).ok_or(code::PROCESS_INVALID)?;
        if slot.is_some() {
            return Err(code::PROCESS_INVALID);
        }

        let ranges = ranges_of(command)?;
        let is_permanent = command.flags & kernel_flag::PERMANENT != 0;
        if command.flags & kernel_flag::HOST_BASED != 0 {
            if !ranges.is_empty() {
                return Err(code::SEGMENT_VIOLATION);
            }
            if is_permanent {
                return Err(code::PROCESS_INVALID);
            }
            *slot = Some(Process::HostBased);
            return Ok(());
        }

        let mut map = Map::default();
        map.add(client_of(command.process), ranges)?;
        self.start_nic_based(command.process, map, is_permanent)
    }

    /// Starts a process in NIC-based mode. Its tables get an equal share of the free scratch
    /// memory: what is left is for the processes that have not started.
    fn start_nic_based(&mut self, process: u16, map: Map, is_permanent: bool) -> Result<(), u32> {
        let Some(node) = &mut self.node else { return Err(code::NO_INTERFACE) };
        let slots = node.processes.iter().take(usize::from(node.max_processes));
        let shares = slots.filter(|slot| slot.is_none()).count() as u16;
        let identity = Identity { node: node.number, process };
        let max_outgoing = process_messages(node.max_processes);

        let generation = node.generations.get(usize::from(process)).copied().unwrap_or_default();
        let mut started = NicBased::new(identity, generation, map, max_outgoing, shares, &mut self.scratch)
            .map_err(|_| code::NO_SPACE)?;
        started.is_permanent = is_permanent;
        if let Some(slot) = node.processes.get_mut(usize::from(process)) {
            *slot = Some(Process::NicBased(started.into()));
        }
        Ok(())
    }

    /// Ends the process of a client that has detached. A permanent one starts again.
    pub(super) fn process_detached<C: Chip>(&mut self, chip: &mut C, process: u16) {
        let nic_based = self.node.as_mut().and_then(|node| node.nic_based(process));
        let permanent_map = nic_based.filter(|ended| ended.is_permanent).map(|ended| ended.map);

        self.stop_process(chip, process);
        if let Some(map) = permanent_map {
            chip.charge(costs::KERNEL_COMMAND);
            // The process that has just ended has left room for the share of its successor.
            let _ = self.start_nic_based(process, map, true);
        }
    }

    /// Sets the destination of a message for a process in host-based mode, which waits in its
    /// stream.
    fn receive<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> CommandOutcome<()> {
        let Some(WaitingMessage { stream, process, length }) = self.streams.waiting(command.token) else {
            return Ok(Err(code::TOKEN_INVALID));
        };
        if command.length > length {
            return Ok(Err(code::SEGMENT_VIOLATION));
        }
        let pieces = match kernel::pieces_of(command, command.length, self.settings.processes + 1) {
            Ok(pieces) => pieces,
            Err(code) => return Ok(Err(code)),
        };

        // The engine need not read a list for no data.
        let pieces = if command.length == 0 { Pieces::None } else { pieces };
        self.streams.set(stream, Reception::Kernel { token: command.token, process, kept: command.length });
        chip.charge(costs::RECEIVE);
        chip.receive(stream, command.length, pieces)?;
        Ok(Ok(()))
    }

    /// Carries out a command of an untrusted mailbox.
    pub(super) fn process_command<C: Chip>(
        &mut self,
        chip: &mut C,
        client: Client,
        number: u32,
        bytes: &[u8; COMMAND_BYTES],
    ) -> Result<(), Halted> {
        chip.charge(costs::COMMAND);
        // Every bit pattern is a command, so that no result of a conversion has to be copied.
        let command: Command = transmute!(*bytes);
        let result = match (process_of(client), &mut self.node) {
            _ if !process::unused_fields_are_zero(&command) => Err(code::COMMAND_INVALID),
            (Some(process), Some(node)) => node.carry_out(chip, process, &command)?,
            _ => Err(code::NO_INTERFACE),
        };

        let result = result.unwrap_or_else(refusal);
        self.statistics.refused_commands += u64::from(result.code != code::OK);
        chip.answer(client, number, result)
    }
}

/// Returns the ranges that a command adds to an address map.
fn ranges_of(command: &KernelCommand) -> Result<&[Piece], u32> {
    command.pieces.get(..usize::from(command.count)).ok_or(code::SEGMENT_VIOLATION)
}

impl Node {
    /// Adds ranges to the address map of a process.
    fn add_ranges(&mut self, command: &KernelCommand) -> Result<(), u32> {
        let process = self.nic_based(command.process).ok_or(code::PROCESS_INVALID)?;
        process.map.add(client_of(command.process), ranges_of(command)?)
    }

    /// Refuses puts and gets of another node to processes in host-based mode, or takes them again.
    fn set_refused(&mut self, node: u32, is_refused: bool) -> Result<(), u32> {
        if node >= self.nodes {
            return Err(code::PROCESS_INVALID);
        }
        self.pairs.set_refused(node, is_refused);
        Ok(())
    }

    /// Sends a message of a process in host-based mode.
    fn send<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> Result<(), u32> {
        let is_host_based =
            matches!(self.processes.get(usize::from(command.process)), Some(Some(Process::HostBased)));
        if !is_host_based || command.node >= self.nodes {
            return Err(code::PROCESS_INVALID);
        }
        if !(message::PUT..=message::PORTALS_ACK).contains(&command.message) {
            return Err(code::COMMAND_INVALID);
        }
        let pieces = kernel::pieces_of(command, command.length, self.max_processes + 1)?;
        if !self.has_room_for_kernel(command.node) {
            return Err(code::NO_SPACE);
        }

        let target = Identity { node: command.node, process: command.target };
        let content = Content { kind: command.message, length: command.length };
        let packet = self.make_packet(command.process, target, content, command.header);
        let owner = Owner::Kernel { token: command.token };
        let message = Message { node: command.node, packet, pieces, owner, quota: Quota::Kernel };
        chip.charge(costs::SUBMIT);
        if !self.outbox.submit(&mut self.pairs, message, chip.now()) {
            return Err(code::NO_SPACE);
        }
        // The message's end will need a slot of the kernel's event queue.
        self.kernel.reserve();
        Ok(())
    }

    /// Carries out a well-formed command of a process. `Ok(Err(code))` refuses it.
    fn carry_out<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        command: &Command,
    ) -> CommandOutcome<CommandResult> {
        if matches!(command.kind, command::PUT | command::GET) {
            return self.start_operation(chip, process, command);
        }
        let Some(process) = self.nic_based(process) else { return Ok(Err(code::NO_INTERFACE)) };

        let is_in_map = matching::memory_of(command)
            .is_none_or(|memory| process.map.contains(memory.start, memory.length));
        if !is_in_map {
            return Ok(Err(code::SEGMENT_VIOLATION));
        }
        Ok(Ok(process.portals.carry_out(command)))
    }

    /// Starts a put or a get. The result's value is the number of further operations for which the
    /// process has space. The number stays valid until the process starts them, because other
    /// processes do not use its share.
    fn start_operation<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        command: &Command,
    ) -> CommandOutcome<CommandResult> {
        let share = process_messages(self.max_processes);
        let remaining = share.saturating_sub(self.outbox.quotas.of_process(process));
        let has_room = remaining > 0 && self.outbox.has_room(command.node);
        let nodes = self.nodes;
        let Some(nic_based) = self.nic_based(process) else { return Ok(Err(code::NO_INTERFACE)) };
        let request = match Request::from_command(command) {
            Ok(request) => request,
            Err(refused) => return Ok(Err(refused.0)),
        };
        if request.target.node >= nodes {
            return Ok(Err(code::PROCESS_INVALID));
        }
        if !has_room {
            return Ok(Err(code::NO_SPACE));
        }

        let started = match command.kind {
            command::PUT => nic_based.portals.put(&request),
            _ => nic_based.portals.get(&request),
        };
        // The operation is not moved out of the result, which would copy it.
        let Outgoing { operation, kind, target, header, length, source, events } = match &started {
            Ok(outgoing) => outgoing,
            Err(refused) => return Ok(Err(refused.0)),
        };
        let (operation, kind, target, length) = (*operation, *kind, *target, *length);
        let further_operations = nic_based.portals.room_for_operations().min(remaining - 1);
        write_events(chip, process, events)?;

        let mut packet = self.make_packet(process, target, Content { kind, length }, *header);
        let pieces = match *source {
            Source::None => Pieces::None,
            Source::Memory(address) => one_piece(client_of(process), address, length),
            Source::Inline(bytes) => {
                packet.inline = bytes;
                Pieces::None
            }
        };
        let owner = Owner::Operation { process, operation };
        let quota = Quota::Process(process);
        let message = Message { node: target.node, packet, pieces, owner, quota };
        chip.charge(costs::SUBMIT);
        self.outbox.submit(&mut self.pairs, message, chip.now());
        Ok(Ok(CommandResult { value: further_operations.into(), ..CommandResult::default() }))
    }
}
