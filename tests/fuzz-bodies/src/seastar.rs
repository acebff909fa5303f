//! A SeaStar against hostile software with one of its mailboxes.
//!
//! The software has the untrusted mailbox of a process, or a node of its own with its trusted
//! mailbox and that of a process. It writes arbitrary commands, counts of commands and registers,
//! resets its attachments, and ends at any point.
//!
//! Checked: messages between two other processes arrive all, unchanged, once and in order. Memory
//! outside of an address map does not change. With the software gone, no stream of its messages is
//! left, and its mailbox works for another client.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nicforge_driver::{Deadline, Device, DmaBuffer, HugePages, OpenOptions};
use nicforge_hwi::seastar::{
    ANY_NODE, ANY_PROCESS, BAR_MIRROR, BAR_WINDOW, COMMAND_BYTES, Command, CommandResult, KernelCommand,
    KernelEvent, NO_HANDLE, Piece, RESULT_BYTES, SLOTS, THRESHOLD_INFINITE, code, command, kernel_command,
    kernel_event, kernel_flag, mirror, option, window,
};
use nicforge_machine::in_process::LocalMachine;
use nicforge_portals::{
    Ack, Criteria, Descriptor, Event, EventKind, EventQueue, Initiator, Interface, Kernel, KernelConfig,
    MemoryDescriptor, Mode, Options, Position, ProcessId, Refusal, Region, Target, Unlink,
};
use nicforge_shm::Window;
use zerocopy::{FromBytes, IntoBytes};

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 150;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of each buffer of the hostile software.
const SHARED: usize = 1 << 14;
/// The value of bytes that no message may change.
const UNTOUCHED: u8 = 0xc5;
/// Bytes that the receiver of the good messages has for each of them.
const SLOT_BYTES: u64 = 4096;
/// Bytes of a well-behaved process's memory.
const SINK: u64 = 2 * SLOT_BYTES;
/// Nodes of the network.
const NODES: u32 = 3;
/// The node of hostile software that has a trusted mailbox.
const HOSTILE_NODE: u32 = NODES - 1;
/// Events of the hostile kernel's queue.
const KERNEL_EVENTS: u32 = 16;
/// Handles and names of messages that the hostile software remembers.
const REMEMBERED: usize = 16;
/// The portal of all messages that fit the rules.
const PORTAL: u8 = 4;
/// The lowest match bits of the well-behaved processes' messages.
const BITS: u64 = 0x1234;

/// Opens an attachment of a node's SeaStar.
fn open(machine: &Arc<LocalMachine>, node: u32, attachment: &str) -> Device {
    let backing = machine.open_named(&format!("ss{node}"), attachment).unwrap();
    Device::open(backing, OpenOptions::default()).unwrap()
}

/// Boots a node with a well-behaved kernel.
fn boot(machine: &Arc<LocalMachine>, node: u32) -> Arc<Kernel> {
    Kernel::boot(open(machine, node, "kernel"), KernelConfig::default()).unwrap()
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = world::local(&format!("name = \"seastar\"\n[[seastar]]\ntorus = [{NODES}]\nmtu = 1024\n"));
    let kernels = [0, 1].map(|node| boot(&machine, node));
    let modes = [(); 2].map(|()| input.pick(&[Mode::NicBased, Mode::HostBased]));
    let mut traffic = Traffic::new([
        Process::new(&machine, &kernels[0], 1, modes[0]),
        Process::new(&machine, &kernels[1], 0, modes[1]),
    ]);

    let is_trusted = input.flag();
    let start = |input: &mut Input<'_>| {
        let mut hostile = match is_trusted {
            true => Hostile::with_node(&machine, input.below(4) > 0),
            false => Hostile::with_process(&machine, &kernels[0]),
        };
        machine.settle(64);
        hostile.prepare(&machine, input);
        hostile
    };
    let mut hostile = start(&mut input);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        match input.below(16) {
            0 if input.below(4) == 0 => {
                hostile.end();
                hostile = start(&mut input);
            }
            0..=1 => traffic.poll_once(u64::MAX),
            _ => hostile.act(&mut input),
        }
        machine.settle(input.below(8));
    }

    hostile.end();
    traffic.finish();
    recover(&machine, is_trusted, &kernels, traffic);
    await_free_streams(&machine);
}

/// Checks that the hostile software's mailbox works for another client.
fn recover(machine: &Arc<LocalMachine>, is_trusted: bool, kernels: &[Arc<Kernel>; 2], traffic: Traffic) {
    let [_, other] = traffic.ends;
    let next = if is_trusted {
        let kernel = boot(machine, HOSTILE_NODE);
        Process::new(machine, &kernel, 0, Mode::NicBased)
    } else {
        Process::new(machine, &kernels[0], 0, Mode::NicBased)
    };

    let mut traffic = Traffic::new([next, other]);
    traffic.finish();
    traffic.ends.reverse();
    Traffic::new(traffic.ends).finish();
}

/// Waits until no message is being received.
fn await_free_streams(machine: &LocalMachine) {
    let deadline = Deadline::after(LIMIT);
    let streams = || {
        machine.with(|machine| {
            let functions = (0..machine.functions()).map(nicforge_core::ids::FunctionId);
            let counters = functions.flat_map(|function| machine.counters(function));
            counters.filter(|counter| counter.name == "streams").map(|counter| counter.value).sum::<u64>()
        })
    };
    while streams() > 0 {
        assert!(!deadline.has_passed(), "streams are left");
        machine.settle(64);
    }
}

/// A well-behaved process.
struct Process {
    interface: Interface,
    queue: EventQueue,
    memory: Region,
}

impl Process {
    /// Starts process `number` of the kernel's node.
    fn new(machine: &Arc<LocalMachine>, kernel: &Arc<Kernel>, number: u16, mode: Mode) -> Self {
        let device = open(machine, kernel.node(), &format!("p{number}"));
        let interface = Interface::open(kernel, device, mode).unwrap();
        let queue = interface.allocate_queue(200).unwrap();
        let memory = interface.allocate(SINK).unwrap();
        Self { interface, queue, memory }
    }
}

/// Returns whether an event belongs to an acknowledgement that the hostile kernel has forged.
/// Kernels trust each other, so a kernel that guesses a handle reaches its descriptor.
fn is_forged(event: &Event) -> bool {
    event.kind == EventKind::Ack && event.peer.node == HOSTILE_NODE
}

/// Messages from the first process to the second one.
struct Traffic {
    ends: [Process; 2],
    /// The sender's memory.
    from: MemoryDescriptor,
    /// Match bits of these messages.
    bits: u64,
    /// Messages that were sent, have ended at their sender, and have arrived.
    sent: u64,
    ended: u64,
    arrived: u64,
}

impl Traffic {
    /// Lets the second process receive, and the first one send.
    fn new(ends: [Process; 2]) -> Self {
        let [local, remote] = &ends;
        for (end, value) in ends.iter().zip([0, UNTOUCHED]) {
            end.memory.write(0, &[value; SINK as usize]).unwrap();
        }

        // A process that received earlier still has the match entry of those messages. It does not
        // match here, since these bits depend on the sender.
        let ProcessId { node, process } = local.interface.id();
        let bits = BITS + u64::from(node) * 8 + u64::from(process);
        let initiator = Initiator { node: Some(node), process: Some(process) };
        let options = Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE;
        let sink = Descriptor { options, queue: Some(&remote.queue), ..Descriptor::over(&remote.memory) };
        let criteria = Criteria { initiator, ..Criteria::bits(bits) };
        let posted =
            remote.interface.post(Position::Tail(PORTAL), criteria, Unlink::Retain, &sink, None).unwrap();
        assert!(posted.is_some());

        let source = Descriptor { queue: Some(&local.queue), ..Descriptor::over(&local.memory) };
        let from = local.interface.bind_descriptor(&source).unwrap();
        Self { ends, from, bits, sent: 0, ended: 0, arrived: 0 }
    }

    /// Returns the length of a message: another one for each number.
    fn length(number: u64) -> u64 {
        number * 613 % SLOT_BYTES
    }

    /// Sends a message if the previous one has ended, and checks the received data.
    fn poll_once(&mut self, maximum: u64) {
        let [local, remote] = &self.ends;
        if self.sent < maximum && self.sent == self.ended && self.sent == self.arrived {
            let length = Self::length(self.sent);
            local.memory.write(0, &vec![self.sent as u8; length as usize]).unwrap();
            let target = Target::new(remote.interface.id(), PORTAL, self.bits);
            match local.interface.put_region(&self.from, 0, length, Ack::No, &target, self.sent) {
                Ok(()) => self.sent += 1,
                Err(error) => assert_eq!(error.refusal(), Some(Refusal::NoSpace)),
            }
        }
        self.ends.iter().for_each(|end| end.interface.progress().unwrap());

        while let Some(event) = local.queue.get().unwrap() {
            if is_forged(&event) {
                continue;
            }
            assert_eq!(event.failure, None);
            self.ended += u64::from(event.kind == EventKind::SendEnd);
        }
        while let Some(event) = remote.queue.get().unwrap() {
            if is_forged(&event) {
                continue;
            }
            let length = Self::length(self.arrived);
            assert_eq!((event.kind, event.failure), (EventKind::PutEnd, None));
            assert_eq!((event.peer, event.message.header_data), (local.interface.id(), self.arrived));
            assert_eq!(u64::from(event.message.moved), length);

            let mut bytes = [0; SINK as usize];
            remote.memory.read(0, &mut bytes).unwrap();
            let (data, rest) = bytes.split_at(length as usize);
            assert!(data.iter().all(|byte| *byte == self.arrived as u8), "the message came as it was sent");
            assert!(rest[(SLOT_BYTES - length) as usize..].iter().all(|byte| *byte == UNTOUCHED));
            self.arrived += 1;
        }
    }

    /// Sends some more messages, and waits for the end of all.
    fn finish(&mut self) {
        let (deadline, total) = (Deadline::after(LIMIT), self.sent + 10);
        let device = self.ends[0].interface.device().clone();
        let mut relax = device.new_relax();
        while self.arrived < total || self.ended < total {
            assert!(!deadline.has_passed(), "{} sent, {} arrived", self.sent, self.arrived);
            self.poll_once(total);
            device.relax(&mut relax).unwrap();
        }
    }
}

/// A mailbox that is used without the library.
struct Mailbox {
    device: Device,
    windows: Window,
    mirrors: Window,
    /// Commands that the card has been told of.
    next: u32,
    /// Memory that the card may reach if the kernel's map allows it.
    memory: DmaBuffer,
}

impl Mailbox {
    /// Continues with the commands of the mailbox's earlier user.
    fn new(device: Device) -> Self {
        let windows = device.bar(BAR_WINDOW).unwrap().window(window::BASE, window::SIZE).unwrap();
        let mirrors = device.bar(BAR_MIRROR).unwrap().window(mirror::BASE, mirror::SIZE).unwrap();
        let next = windows.u32(window::COMMAND_TAIL).unwrap().load(Ordering::Acquire);
        let memory = device.dma_buffer(SHARED, HugePages::Never).unwrap();
        Self { device, windows, mirrors, next, memory }
    }

    /// Writes a command into the mailbox, and increments the command count.
    fn post(&mut self, bytes: &[u8]) {
        let slot = u64::from(self.next % SLOTS);
        self.windows.write(window::COMMANDS + slot * COMMAND_BYTES as u64, bytes).unwrap();
        self.next = self.next.wrapping_add(1);
        self.set_tail(self.next);
    }

    /// Stores the count of commands, and rings the doorbell.
    fn set_tail(&self, value: u32) {
        self.windows.u32(window::COMMAND_TAIL).unwrap().store(value, Ordering::Release);
        self.device.doorbell().after_store().unwrap();
    }

    /// Returns the result of the last command, if it has arrived.
    fn result(&self) -> Option<CommandResult> {
        let slot = u64::from(self.next.wrapping_sub(1) % SLOTS);
        let mut bytes = [0; RESULT_BYTES];
        self.mirrors.read(mirror::RESULTS + slot * RESULT_BYTES as u64, &mut bytes).unwrap();
        let result = CommandResult::read_from_bytes(&bytes).unwrap();
        (result.number == self.next).then_some(result)
    }

    /// Stores or reads something arbitrary in the mailbox or in another region, or resets it.
    fn disturb(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..=1 => {
                let tail = match input.below(4) {
                    0 => self.next.wrapping_add(input.below(2 * SLOTS)),
                    1 => self.next.wrapping_sub(input.below(SLOTS)),
                    2 => self.next,
                    _ => input.number32(),
                };
                self.set_tail(tail);
                // The card takes the commands that a valid count covers.
                if tail.wrapping_sub(self.next) <= SLOTS {
                    self.next = tail;
                }
            }
            2..=3 => {
                let at = u64::from(input.below((window::SIZE / 8) as u32)) * 8;
                self.windows.write(at, &input.number().to_le_bytes()).unwrap();
                self.device.doorbell().after_store().unwrap();
            }
            4 if input.below(4) == 0 => {
                self.device.reset().unwrap();
                self.next = self.windows.u32(window::COMMAND_TAIL).unwrap().load(Ordering::Acquire);
            }
            5 => {
                let bar = self.device.bar(0).unwrap();
                let _ = bar.write32(u64::from(input.below(0x400)) * 4, input.number32());
            }
            _ => {
                let mut data = vec![0; input.pick(&[4, 8, 1, 16, 64])];
                let _ = self.device.backing().read(input.below(4), input.number(), &mut data);
            }
        }
    }
}

/// The state of the hostile software's access to its node.
enum Rights {
    /// A process of a node whose kernel is well-behaved. The interface keeps the process started.
    Process { _interface: Interface, allowed: Region },
    /// A node with its kernel, which remembers the tokens of arrived messages.
    Node { kernel: Mailbox, taken_events: u32, tokens: VecDeque<u32> },
}

/// Hostile software.
struct Hostile {
    process: Mailbox,
    /// Handles that the process's commands have returned.
    handles: VecDeque<u32>,
    rights: Rights,
}

impl Hostile {
    /// Starts the hostile software as a process of node 0.
    fn with_process(machine: &Arc<LocalMachine>, kernel: &Arc<Kernel>) -> Self {
        let device = open(machine, 0, "p0");
        let interface = Interface::open(kernel, device.clone(), Mode::NicBased).unwrap();
        let allowed = interface.allocate(SHARED as u64).unwrap();
        let process = Mailbox::new(device);
        process.memory.write(0, &[UNTOUCHED; SHARED]).unwrap();
        Self { process, handles: VecDeque::new(), rights: Rights::Process { _interface: interface, allowed } }
    }

    /// Starts the hostile software with a node of its own. If `ready`, it boots the node and starts
    /// its processes.
    fn with_node(machine: &Arc<LocalMachine>, ready: bool) -> Self {
        let [mut kernel, process] =
            ["kernel", "p0"].map(|attachment| Mailbox::new(open(machine, HOSTILE_NODE, attachment)));
        if ready {
            let memory = &process.memory;
            let length = memory.len() as u32;
            let map = Piece { address: memory.iova(), length, attachment: 1, reserved: 0 };
            let mut start =
                KernelCommand { kind: kernel_command::START_PROCESS, count: 1, ..KernelCommand::default() };
            start.pieces[0] = map;
            let host_based = KernelCommand {
                kind: kernel_command::START_PROCESS,
                process: 1,
                flags: kernel_flag::HOST_BASED,
                ..KernelCommand::default()
            };

            let (list, length) = (kernel.memory.iova(), KERNEL_EVENTS);
            let boot = KernelCommand { kind: kernel_command::BOOT, list, length, ..KernelCommand::default() };
            for command in [boot, start, host_based] {
                kernel.post(command.as_bytes());
            }
        }
        let rights = Rights::Node { kernel, taken_events: 0, tokens: VecDeque::new() };
        Self { process, handles: VecDeque::new(), rights }
    }

    /// Makes an event queue, and descriptors to send from and to receive in, so that its puts get
    /// further. It also tries memory that no address map has.
    fn prepare(&mut self, machine: &LocalMachine, input: &mut Input<'_>) {
        let (allowed, own_memory) = (self.allowed(), self.process.memory.iova());
        let region = |input: &mut Input<'_>| if input.flag() { allowed } else { own_memory };

        let start = region(input);
        let allocate = Command { kind: command::ALLOCATE_QUEUE, start, length: 16, ..Command::default() };
        let queue = self.call(machine, &allocate).map_or(NO_HANDLE, |result| result.value as u32);

        let descriptor = Command {
            start: allowed,
            length: SHARED as u64,
            threshold: THRESHOLD_INFINITE,
            queue,
            ..Command::default()
        };
        self.call(machine, &Command { kind: command::BIND_DESCRIPTOR, ..descriptor });

        let receive = Command {
            kind: command::POST,
            handle: NO_HANDLE,
            start: region(input),
            portal: PORTAL,
            node: ANY_NODE,
            process: ANY_PROCESS,
            ignore_bits: u64::MAX,
            options: option::OP_PUT | option::OP_GET | option::MANAGE_REMOTE,
            test_queue: NO_HANDLE,
            ..descriptor
        };
        self.call(machine, &receive);
    }

    /// Writes a command, and returns its result if it was carried out soon.
    fn call(&mut self, machine: &LocalMachine, command: &Command) -> Option<CommandResult> {
        self.process.post(command.as_bytes());
        machine.settle(64);
        self.remember_handles();
        self.process.result().filter(|result| result.code == code::OK)
    }

    /// Returns the address of memory that the process may name.
    fn allowed(&self) -> u64 {
        match &self.rights {
            Rights::Process { allowed, .. } => allowed.address(),
            Rights::Node { .. } => self.process.memory.iova(),
        }
    }

    /// Ends the hostile software, and checks that nothing outside of an address map was written.
    fn end(self) {
        if let Rights::Process { .. } = self.rights {
            let mut bytes = vec![0; SHARED];
            self.process.memory.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "memory outside of the map was written");
        }
    }

    /// Writes a command into one of the mailboxes, or disturbs one.
    fn act(&mut self, input: &mut Input<'_>) {
        self.remember_handles();
        match input.below(8) {
            0 => self.process.disturb(input),
            1..=3 if matches!(self.rights, Rights::Node { .. }) => self.command_node(input),
            _ => {
                let command = self.command(input);
                self.process.post(&corrupt_one_byte(command.as_bytes(), input));
            }
        }
    }

    /// Remembers the handles in the last result, and the token in the next event if it has come.
    fn remember_handles(&mut self) {
        if let Some(result) = self.process.result().filter(|result| result.code == code::OK) {
            remember(&mut self.handles, result.value as u32);
            remember(&mut self.handles, result.extra as u32);
        }

        let Rights::Node { kernel, taken_events, tokens } = &mut self.rights else { return };
        let slot = (*taken_events % KERNEL_EVENTS) as usize * size_of::<KernelEvent>();
        let mut bytes = [0; size_of::<KernelEvent>()];
        kernel.memory.read(slot as u64, &mut bytes).unwrap();
        let event = KernelEvent::read_from_bytes(&bytes).unwrap();
        if event.number == taken_events.wrapping_add(1) {
            *taken_events += 1;
            if event.kind == kernel_event::MESSAGE {
                remember(tokens, event.token);
            }
        }
    }

    /// Writes a command into the trusted mailbox, or disturbs it.
    fn command_node(&mut self, input: &mut Input<'_>) {
        let Rights::Node { kernel, taken_events, tokens } = &mut self.rights else { return };
        if input.below(8) == 0 {
            return kernel.disturb(input);
        }

        let kind = if input.flag() { kernel_command::SEND } else { input.below(9) as u16 };
        let mut command = KernelCommand { kind, taken: *taken_events as u16, ..KernelCommand::default() };
        let memories = [&kernel.memory, &self.process.memory];
        let piece = |input: &mut Input<'_>| {
            let attachment = input.below(2);
            let address = match input.below(8) {
                0 => input.number(),
                _ => memories[attachment as usize].iova() + u64::from(input.below(SHARED as u32)),
            };
            let length = if input.below(8) > 0 { input.below(5000) } else { input.number32() };
            Piece { address, length, attachment: attachment as u16, reserved: 0 }
        };

        match kind {
            kernel_command::BOOT => {
                command.taken = 0;
                command.list = memories[0].iova();
                command.length = if input.below(4) > 0 { KERNEL_EVENTS } else { input.number32() };
            }
            kernel_command::START_PROCESS | kernel_command::MAP => {
                command.process = input.below(3) as u16;
                command.flags = u8::from(input.flag());
                command.count = if command.flags == 0 { input.below(3) as u16 } else { 0 };
                (0..usize::from(command.count)).for_each(|index| command.pieces[index] = piece(input));
            }
            kernel_command::STOP_PROCESS => command.process = input.below(3) as u16,
            kernel_command::SEND | kernel_command::RECEIVE => {
                command.token = match tokens.len() {
                    0 => input.number32(),
                    count => tokens[input.below(count as u32) as usize],
                };
                command.count = input.pick(&[1, 1, 2, 4, 0, 5]);
                if command.count > 4 {
                    command.list = memories[0].iova() + 8192;
                }
                (0..usize::from(command.count.min(4))).for_each(|index| command.pieces[index] = piece(input));
                let pieces = command.pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>();
                command.length = if input.below(4) > 0 { pieces as u32 } else { input.below(20) };
                if kind == kernel_command::SEND {
                    command.process = 1;
                    command.node = input.below(NODES);
                    command.target = input.below(3) as u16;
                    command.message = 1 + input.below(4) as u8;
                    command.header.portal = PORTAL;
                    command.header.match_bits = BITS + u64::from(input.below(16));
                    command.header.operation = input.pick(&[0x1_0000, 0x1_0001, 0, u32::MAX]);
                    command.header.header_data = input.number();
                    command.header.options = input.u16();
                }
            }
            _ => {}
        }
        kernel.post(&corrupt_one_byte(command.as_bytes(), input));
    }

    /// Returns a command of a process whose fields mostly fit its kind.
    fn command(&self, input: &mut Input<'_>) -> Command {
        let kind = if input.flag() { command::PUT } else { input.below(16) as u16 };
        let handle = match self.handles.len() {
            0 => input.pick(&[0x1_0000, 0x1_0001, NO_HANDLE]),
            count => self.handles[input.below(count as u32) as usize],
        };
        let (start, length) = self.range(input);
        let is_post = kind == command::POST;
        let command = Command { kind, ..Command::default() };
        let criteria = |input: &mut Input<'_>, command: Command| Command {
            portal: input.pick(&[PORTAL, PORTAL, 0, 64]),
            node: input.pick(&[u32::MAX, 0, 1]),
            process: input.pick(&[u16::MAX, 0, 1]),
            match_bits: BITS,
            ignore_bits: input.pick(&[u64::MAX, 0]),
            ..command
        };
        let memory = |input: &mut Input<'_>, command: Command| Command {
            queue: if input.flag() { handle } else { NO_HANDLE },
            start,
            length,
            threshold: input.pick(&[-1, 1, 2, 0, -2]),
            options: input.u16() & input.pick(&[0xff, 0x3ff, u16::MAX]),
            max_size: u64::from(input.below(100)),
            ..command
        };

        match kind {
            command::ALLOCATE_QUEUE => {
                Command { start: start & !0x3f, length: input.pick(&[2, 16, 64, 3, 1 << 16]), ..command }
            }
            command::ATTACH_ENTRY => criteria(input, command),
            command::INSERT_ENTRY => criteria(input, Command { handle, ..command }),
            command::ATTACH_DESCRIPTOR => memory(input, Command { handle, ..command }),
            command::BIND_DESCRIPTOR => memory(input, command),
            command::UPDATE_DESCRIPTOR | command::POST => {
                let handle = if is_post && input.flag() { NO_HANDLE } else { handle };
                let command = Command { handle, test_queue: NO_HANDLE, ..memory(input, command) };
                if is_post { criteria(input, command) } else { command }
            }
            command::SET_ACCESS => {
                Command { access: input.below(9) as u8, node: input.below(3), portal: PORTAL, ..command }
            }
            command::PUT | command::GET => Command {
                handle,
                local_offset: u64::from(input.below(64)),
                length: if input.below(8) > 0 { u64::from(input.below(5000)) } else { input.number() },
                node: input.below(NODES + 1),
                process: input.below(3) as u16,
                portal: PORTAL,
                match_bits: BITS + u64::from(input.below(16)),
                options: input.pick(&[0, 0x400, 0x800, 0xffff]),
                ..command
            },
            _ => Command { handle, ..command },
        }
    }

    /// Returns the address and length of a range, which the process mostly may name.
    fn range(&self, input: &mut Input<'_>) -> (u64, u64) {
        let allowed = self.allowed();
        match input.below(8) {
            0 => (input.number(), input.number()),
            // Memory that the card can reach, and that is in no address map of a good kernel.
            1 => (self.process.memory.iova() + u64::from(input.below(SHARED as u32)), 64),
            2 => (allowed + SHARED as u64 - 8, u64::from(input.below(20))),
            _ => (allowed + u64::from(input.below(8)) * 0x400, u64::from(input.below(0x2000))),
        }
    }
}

/// Returns a command's bytes, in one case of eight with one of them changed.
fn corrupt_one_byte(bytes: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if input.below(8) == 7 {
        let at = input.below(COMMAND_BYTES as u32) as usize;
        bytes[at] = input.u8();
    }
    bytes
}

/// Keeps a value, unless it is 0 or known.
fn remember(values: &mut VecDeque<u32>, value: u32) {
    if value == 0 || values.contains(&value) {
        return;
    }
    if values.len() == REMEMBERED {
        values.pop_front();
    }
    values.push_back(value);
}
