//! The state of a kernel: its mailbox, its event queue, and the processes in host-based mode.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use nicforge_driver::{Device, DmaBuffer, HugePages, runtime};
use nicforge_hwi::seastar::{
    Command, CommandResult, KernelCommand, KernelEvent, code, command, kernel_command, kernel_event,
};
use nicforge_seastar_firmware::matching::{self, Identity, Request};
use zerocopy::FromBytes;

use super::{
    host::{Arrival, HostProcess},
    lists::{Lists, MAX_SENDS},
    messages::{OutgoingMessage, Receiving, Sending, Source},
    outbox::Outbox,
};
use crate::{
    Error, KernelConfig, Refusal,
    mailbox::{Mailbox, NetworkPosition},
    region::Pieces,
};

/// Bytes of an event of the kernel.
const EVENT_BYTES: u64 = size_of::<KernelEvent>() as u64;
/// Offset of the number in an event of the kernel, which is written last.
const NUMBER_OFFSET: u64 = EVENT_BYTES - 4;

/// First generation of processes in host-based mode. The card's processes begin far from it, so
/// that no message for a process in one mode names an object of its successor in the other one.
const FIRST_GENERATION: u16 = 0x8001;

/// The kernel's event queue.
struct Queue {
    memory: DmaBuffer,
    /// Number of its slots less one; the number is a power of two.
    mask: u32,
    /// Number of events taken, modulo 2^32.
    taken: u32,
    /// The value of `taken` that was last reported to the firmware.
    reported: u32,
}

impl Queue {
    /// Takes the next event, or returns `None` if there is none yet.
    fn take(&mut self) -> Result<Option<KernelEvent>, Error> {
        let slot = u64::from(self.taken & self.mask) * EVENT_BYTES;
        let number = self.taken.wrapping_add(1);
        if self.memory.window().load_u32_acquire(slot + NUMBER_OFFSET)? != number {
            return Ok(None);
        }

        let mut bytes = [0; EVENT_BYTES as usize];
        self.memory.window().read_array(slot, &mut bytes)?;
        self.taken = number;
        Ok(Some(KernelEvent::read_from_bytes(&bytes).unwrap_or_default()))
    }

    /// Returns whether the number of taken events must be reported to the firmware: for more than a
    /// quarter of the slots, it does not know that they are free.
    fn is_report_due(&self) -> bool {
        self.taken.wrapping_sub(self.reported) > self.mask / 4
    }
}

/// The state of a kernel.
pub(crate) struct State {
    /// The trusted mailbox.
    mailbox: Mailbox,
    queue: Queue,
    /// Number of the node.
    node: u32,
    /// Processes in host-based mode, by number.
    pub(super) processes: Vec<Option<HostProcess>>,
    /// Generation of the first handles of each process at its next start.
    generations: Vec<u16>,
    /// Number of starts of processes so far.
    starts: u32,
    /// Maximum number of messages that wait for each process.
    pub(super) max_waiting: usize,
    pub(super) lists: Lists,
    /// Messages that were not passed to the firmware yet.
    pub(super) outbox: Outbox,
    /// Messages in flight. The index is the token by which the firmware reports their end.
    pub(super) sends: Vec<Option<Sending>>,
    /// Tokens of no message in flight.
    pub(super) free_tokens: Vec<u16>,
    /// Messages that are being received, by the firmware's tokens.
    pub(super) receives: HashMap<u32, Receiving>,
    /// Messages whose data wait for a command list, with the firmware's tokens.
    pub(super) awaiting_list: VecDeque<(u32, Receiving)>,
}

impl State {
    /// Boots a node. Returns the state of its kernel, and its position in the network.
    pub(super) fn boot(device: &Device, config: &KernelConfig) -> Result<(Self, NetworkPosition), Error> {
        let (mailbox, position) = Mailbox::open(device, config.timeout)?;
        if position.process.is_some() {
            let found = "the attachment of a process".to_owned();
            return Err(Error::WrongDevice { wanted: "the admin attachment of a SeaStar", found });
        }

        let bytes = u64::from(config.events) * EVENT_BYTES;
        let memory = device.dma_buffer(bytes as usize, HugePages::Never)?;
        let queue = Queue { memory, mask: config.events - 1, taken: 0, reported: 0 };
        let mut state = Self {
            mailbox,
            queue,
            node: position.node,
            processes: Vec::new(),
            generations: Vec::new(),
            starts: 0,
            max_waiting: config.waiting,
            lists: Lists::allocate(device)?,
            outbox: Outbox::new(position.nodes),
            sends: (0..MAX_SENDS).map(|_| None).collect(),
            free_tokens: (0..MAX_SENDS).rev().collect(),
            receives: HashMap::new(),
            awaiting_list: VecDeque::new(),
        };
        state.processes.resize_with(position.processes.min(u16::MAX.into()) as usize, || None);
        state.generations.resize(state.processes.len(), FIRST_GENERATION);

        let (list, length) = (state.queue.memory.iova(), config.events);
        let boot = KernelCommand { kind: kernel_command::BOOT, list, length, ..KernelCommand::default() };
        state.command("boot", boot)?;
        Ok((state, position))
    }

    /// Has the firmware carry out a command of the trusted mailbox. Returns its result, which may
    /// be a refusal. The command also reports the number of events taken.
    pub(super) fn try_command(&mut self, mut command: KernelCommand) -> Result<CommandResult, Error> {
        command.taken = self.queue.taken as u16;
        self.queue.reported = self.queue.taken;
        self.mailbox.call(&command)
    }

    /// Has the firmware carry out a command of the trusted mailbox. A refusal is an error of the
    /// call named `call`.
    pub(super) fn command(
        &mut self,
        call: &'static str,
        command: KernelCommand,
    ) -> Result<CommandResult, Error> {
        let result = self.try_command(command)?;
        match result.code {
            code::OK => Ok(result),
            refused => Err(Error::Refused { call, reason: Refusal::of_code(refused) }),
        }
    }

    /// Adds a process in host-based mode. Returns the number of its start.
    pub(super) fn add_process(&mut self, process: u16, config: &KernelConfig) -> u32 {
        self.starts = self.starts.wrapping_add(1);
        let identity = Identity { node: self.node, process };
        let generation = self.generations.get(usize::from(process)).copied().unwrap_or_default();
        let matching = matching::Process::with_generation(identity, config.limits, generation);
        let created = HostProcess::new(self.starts, matching);
        if let Some(slot) = self.processes.get_mut(usize::from(process)) {
            *slot = Some(created);
        }
        self.starts
    }

    /// Adds memory of a process in host-based mode.
    pub(super) fn add_region(&mut self, process: u16, pieces: &Arc<Pieces>) {
        if let Some(Some(process)) = self.processes.get_mut(usize::from(process)) {
            process.add_region(pieces);
        }
    }

    /// Removes a process in host-based mode. Its messages that wait are discarded.
    pub(super) fn remove_process(&mut self, process: u16, start: u32) {
        if self.process(process, start).is_none() {
            return;
        }
        let removed = self.processes.get_mut(usize::from(process)).and_then(Option::take);
        if let (Some(removed), Some(generation)) = (&removed, self.generations.get_mut(usize::from(process)))
        {
            *generation = removed.matching.next_generation();
        }
        self.outbox.remove_process(start);

        for Arrival { packet, token } in
            removed.into_iter().flat_map(|mut process| process.waiting.take_all())
        {
            // This fails on a lost card alone, which has lost the message, too.
            let _ = self.discard(&packet, token);
        }
    }

    /// Returns a process, unless it was stopped since its start with this number.
    pub(super) fn process(&mut self, process: u16, start: u32) -> Option<&mut HostProcess> {
        let process = self.processes.get_mut(usize::from(process))?.as_mut()?;
        (process.start == start).then_some(process)
    }

    /// Handles up to `maximum` events, and passes messages on that waited for them. Returns the
    /// number of events handled.
    pub(super) fn progress(&mut self, maximum: usize) -> Result<usize, Error> {
        let mut handled = 0;
        while handled < maximum {
            let Some(event) = self.queue.take()? else { break };
            handled += 1;
            runtime::charge(runtime::Cost::InterruptWake, 1);
            self.handle(&event)?;
        }

        if handled == 0 && self.outbox.is_idle() {
            self.mailbox.incarnation().check()?;
            return Ok(0);
        }
        self.retry_awaiting_list()?;
        self.refuse_and_admit()?;
        // The firmware may have room for these messages now.
        self.send_queued()?;
        if self.queue.is_report_due() {
            self.try_command(KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() })?;
        }
        Ok(handled)
    }

    /// Tells the firmware which nodes' puts and gets it refuses from now on, and which it takes
    /// again.
    fn refuse_and_admit(&mut self) -> Result<(), Error> {
        while let Some((node, is_refused)) = self.outbox.next_due() {
            let kind = if is_refused { kernel_command::REFUSE } else { kernel_command::ADMIT };
            self.try_command(KernelCommand { kind, node, ..KernelCommand::default() })?;
        }
        Ok(())
    }

    /// Handles an event of the kernel's queue.
    fn handle(&mut self, event: &KernelEvent) -> Result<(), Error> {
        match event.kind {
            kernel_event::MESSAGE => self.handle_arrival(&event.packet, event.token),
            kernel_event::RECEIVED => self.handle_received(event.token, event.failure),
            kernel_event::SENT => self.handle_sent(event.token, event.failure),
            // The event has the node's number in the field of the token.
            kernel_event::NODE_DOWN => self.handle_node_down(event.token),
            _ => Ok(()),
        }
    }

    /// Carries out a call of a process in host-based mode. Returns `None` if the process with
    /// number `number` was stopped since its start with number `start`.
    pub(super) fn process_command(
        &mut self,
        number: u16,
        start: u32,
        command: &Command,
    ) -> Result<Option<CommandResult>, Error> {
        let Some(process) = self.process(number, start) else { return Ok(None) };
        if matches!(command.kind, command::PUT | command::GET) {
            return self.process_request(number, start, command).map(Some);
        }

        // The memory must lie in one region of the process. The events of a queue are written
        // directly, so that it must lie in one buffer of the region, too.
        let is_usable = matching::memory_of(command).is_none_or(|memory| {
            let is_queue = command.kind == command::ALLOCATE_QUEUE;
            let is_whole = |region: &Pieces| !is_queue || region.buffers.len() == 1;
            memory.length == 0
                || process.region(memory.start, memory.length).is_some_and(|(region, _)| is_whole(region))
        });
        if !is_usable {
            return Ok(Some(refused(code::SEGMENT_VIOLATION)));
        }
        Ok(Some(process.matching.carry_out(command)))
    }

    /// Starts a put or get of a process.
    fn process_request(
        &mut self,
        number: u16,
        start: u32,
        command: &Command,
    ) -> Result<CommandResult, Error> {
        if !self.outbox.has_node(command.node) {
            return Ok(refused(code::PROCESS_INVALID));
        }
        let Some(process) = self.process(number, start) else { return Ok(refused(code::NO_INTERFACE)) };
        let started = Request::from_command(command).and_then(|request| {
            if command.kind == command::PUT {
                process.matching.put(&request)
            } else {
                process.matching.get(&request)
            }
        });
        let started = match started {
            Ok(started) => started,
            Err(matching::Refusal(code)) => return Ok(refused(code)),
        };

        process.write_events(&started.events)?;
        let source = match started.source {
            matching::Source::None => Source::None,
            matching::Source::Memory(address) => Source::Memory(address),
            matching::Source::Inline(data) => Source::Inline(data),
        };
        self.outbox.push(OutgoingMessage {
            process: number,
            start,
            operation: Some(started.operation),
            ends_only_on_failure: command.kind == command::GET,
            target: started.target,
            kind: started.kind,
            header: started.header,
            length: started.length,
            source,
        });
        self.send_queued()?;
        Ok(CommandResult::default())
    }
}

/// Returns the result of a command that is refused with one of [`code`].
fn refused(code: u32) -> CommandResult {
    CommandResult { code, ..CommandResult::default() }
}
