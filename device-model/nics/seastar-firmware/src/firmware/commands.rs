//! Commands of the trusted mailbox and of the untrusted ones.

use nicforge_hwi::seastar::{
    COMMAND_BYTES, Command, CommandResult, KERNEL, KernelCommand, Piece, code, command, kernel_command,
    kernel_flag, message, process_messages,
};
use zerocopy::{FromBytes, transmute};

use super::{
    Firmware,
    headers::one_piece,
    kernel::{self, KernelQueue},
    node::{Node, write_events},
    outbox::Message,
    pending::{Owner, Quota},
    process::{self, Map, NicBased, Process, client_of, process_of},
    streams::Reception,
};
use crate::{
    chip::{Chip, Client, Halted, Pieces},
    costs,
    matching::{self, Identity, Outgoing, Request, Source},
};

/// Returns the result of a command with one of [`code`].
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
            Ok(command) if kernel::has_no_other_fields(&command) => self.carry_out(chip, &command)?,
            _ => Err(code::COMMAND_INVALID),
        };

        self.statistics.refused_commands += u64::from(result.is_err());
        let result = result.map_or_else(refusal, |()| CommandResult::default());
        chip.answer(Client(KERNEL), number, result)
    }

    fn carry_out<C: Chip>(
        &mut self,
        chip: &mut C,
        command: &KernelCommand,
    ) -> Result<Result<(), u32>, Halted> {
        if command.kind == kernel_command::BOOT {
            return self.boot(chip, command);
        }
        let Some(node) = &mut self.node else { return Ok(Err(code::NO_INTERFACE)) };
        if let Err(code) = node.kernel.note_taken(command.taken) {
            return Ok(Err(code));
        }
        node.note_taken();

        Ok(match command.kind {
            kernel_command::START_PROCESS => self.start_process(command),
            kernel_command::MAP => node.add_ranges(command),
            kernel_command::STOP_PROCESS => {
                self.stop(chip, command.process).then_some(()).ok_or(code::PROCESS_INVALID)
            }
            kernel_command::SEND => node.send(chip, command),
            kernel_command::RECEIVE => return self.receive(chip, command),
            kernel_command::TAKE => Ok(()),
            _ => Err(code::COMMAND_INVALID),
        })
    }

    /// Begins an incarnation of the node.
    fn boot<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> Result<Result<(), u32>, Halted> {
        let queue = match KernelQueue::new(command.list, command.length) {
            Ok(queue) if command.taken == 0 => queue,
            Ok(_) => return Ok(Err(code::SEGMENT_VIOLATION)),
            Err(code) => return Ok(Err(code)),
        };
        if self.node.is_some() {
            return Ok(Err(code::COMMAND_INVALID));
        }

        let place = (chip.node(), chip.nodes());
        let generation = self.generation.wrapping_add(1);
        let Ok(mut node) = Node::new(self.settings, place, queue, generation, &mut self.scratch) else {
            return Ok(Err(code::NO_SPACE));
        };
        chip.charge(costs::BOOT_NODE * place.1);
        chip.set_booted(true)?;

        let Some(incarnation) = chip.incarnation(place.0) else {
            node.give_back(&mut self.scratch);
            return Ok(Err(code::NO_SPACE));
        };
        node.incarnation = incarnation;
        self.generation = generation;
        self.node = Some(node);
        Ok(Ok(()))
    }

    /// Lets a process use the network.
    fn start_process(&mut self, command: &KernelCommand) -> Result<(), u32> {
        let Some(node) = &mut self.node else { return Err(code::NO_INTERFACE) };
        let is_known = command.flags & !(kernel_flag::HOST_BASED | kernel_flag::PERMANENT) == 0;
        if command.process >= node.limit || !is_known {
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
        self.begin_process(command.process, map, is_permanent)
    }

    /// Begins a process in NIC-based mode.
    fn begin_process(&mut self, process: u16, map: Map, is_permanent: bool) -> Result<(), u32> {
        let Some(node) = &mut self.node else { return Err(code::NO_INTERFACE) };
        let free = node.processes.iter().take(usize::from(node.limit)).filter(|slot| slot.is_none()).count();
        let identity = Identity { node: node.number, process };
        let outgoing = process_messages(node.limit);

        let generation = node.generations.get(usize::from(process)).copied().unwrap_or_default();
        let mut begun = NicBased::new((identity, generation), map, outgoing, free as u16, &mut self.scratch)
            .map_err(|_| code::NO_SPACE)?;
        begun.is_permanent = is_permanent;
        if let Some(slot) = node.processes.get_mut(usize::from(process)) {
            *slot = Some(Process::NicBased(begun.into()));
        }
        Ok(())
    }

    /// Ends the process of a client that has detached. A permanent one starts again.
    pub(super) fn process_detached<C: Chip>(&mut self, chip: &mut C, process: u16) {
        let nic_based = self.node.as_mut().and_then(|node| node.nic_based(process));
        let permanent_map = nic_based.filter(|ended| ended.is_permanent).map(|ended| ended.map);

        self.stop(chip, process);
        if let Some(map) = permanent_map {
            chip.charge(costs::KERNEL_COMMAND);
            // The process that has ended leaves room for an equal share.
            let _ = self.begin_process(process, map, true);
        }
    }

    /// Sets the destination of a message for a process in host-based mode.
    fn receive<C: Chip>(&mut self, chip: &mut C, command: &KernelCommand) -> Result<Result<(), u32>, Halted> {
        let Some((stream, process, length)) = self.streams.waiting(command.token) else {
            return Ok(Err(code::TOKEN_INVALID));
        };
        if command.length > length {
            return Ok(Err(code::SEGMENT_VIOLATION));
        }
        let pieces = match kernel::pieces_of(command, command.length, self.settings.processes + 1) {
            Ok(pieces) => pieces,
            Err(code) => return Ok(Err(code)),
        };

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
        // All bytes are a command. A filtered `Option` would be copied twice.
        let command: Command = transmute!(*bytes);
        let result = match (process_of(client), &mut self.node) {
            _ if !process::has_no_other_fields(&command) => Err(code::COMMAND_INVALID),
            (Some(process), Some(node)) => node.command(chip, process, &command)?,
            _ => Err(code::NO_INTERFACE),
        };

        let result = result.unwrap_or_else(refusal);
        self.statistics.refused_commands += u64::from(result.code != code::OK);
        chip.answer(client, number, result)
    }
}

/// Returns the ranges of an address map in a command.
fn ranges_of(command: &KernelCommand) -> Result<&[Piece], u32> {
    command.pieces.get(..usize::from(command.count)).ok_or(code::SEGMENT_VIOLATION)
}

impl Node {
    /// Adds ranges to the address map of a process.
    fn add_ranges(&mut self, command: &KernelCommand) -> Result<(), u32> {
        let process = self.nic_based(command.process).ok_or(code::PROCESS_INVALID)?;
        process.map.add(client_of(command.process), ranges_of(command)?)
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
        let pieces = kernel::pieces_of(command, command.length, self.limit + 1)?;
        if !self.has_room_for_kernel(command.node) {
            return Err(code::NO_SPACE);
        }

        let content = (command.message, command.length);
        let packet = self.packet(command.process, command.target, content, command.header);
        let owner = Owner::Kernel { token: command.token };
        let message = Message { node: command.node, packet, pieces, owner, quota: Quota::Kernel };
        chip.charge(costs::SUBMIT);
        if !self.outbox.submit(&mut self.pairs, message, chip.now()) {
            return Err(code::NO_SPACE);
        }
        self.kernel.reserve();
        Ok(())
    }

    /// Carries out a command of a process.
    fn command<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        given: &Command,
    ) -> Result<Result<CommandResult, u32>, Halted> {
        if matches!(given.kind, command::PUT | command::GET) {
            return self.start_operation(chip, process, given);
        }
        let Some(process) = self.nic_based(process) else { return Ok(Err(code::NO_INTERFACE)) };

        let is_in_map =
            matching::memory(given).is_none_or(|(start, length)| process.map.contains(start, length));
        if !is_in_map {
            return Ok(Err(code::SEGMENT_VIOLATION));
        }
        Ok(Ok(process.portals.command(given)))
    }

    /// Starts a put or a get. The result's value is the number of further operations for which the
    /// process has space. The number stays valid until the process starts them, because other
    /// processes do not use its share.
    fn start_operation<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        command: &Command,
    ) -> Result<Result<CommandResult, u32>, Halted> {
        let share = process_messages(self.limit);
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

        let begun = match command.kind {
            command::PUT => nic_based.portals.put(&request),
            _ => nic_based.portals.get(&request),
        };
        let Outgoing { operation, kind, target, header, length, source, events } = match begun {
            Ok(outgoing) => outgoing,
            Err(refused) => return Ok(Err(refused.0)),
        };
        let available = nic_based.portals.room_for_operations().min(remaining - 1);
        write_events(chip, process, &events)?;

        let mut packet = self.packet(process, target.process, (kind, length), header);
        let pieces = match source {
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
        Ok(Ok(CommandResult { value: available.into(), ..CommandResult::default() }))
    }
}
