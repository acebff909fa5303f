//! A network of firmwares on fake chips. A schedule chooses which node is polled, and which packet
//! moves next.

use std::collections::{BTreeMap, VecDeque};

use nicforge_hwi::seastar::{
    Command, CommandResult, Event as EventRecord, HeaderPacket, INLINE, KERNEL, KernelCommand, KernelEvent,
    NO_HANDLE, PIECES, Piece, THRESHOLD_INFINITE, code, command, kernel_command, kernel_flag, option,
    trusted_flag,
};
use nicforge_seastar_firmware::{
    chip::{Client, Event, Incarnation, Pieces, Polled, Program, Stream, TransferStatus, Transmissions},
    firmware::{Firmware, Settings},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::chip::{FakeChip, Input, MEMORY, Receiving};

/// Address of the kernel's event queue, and its number of events.
pub(crate) const KERNEL_QUEUE: u64 = 0;
pub(crate) const KERNEL_EVENTS: u32 = 64;
/// Address of the event queue of a process, and its number of events.
pub(crate) const QUEUE: u64 = 0;
pub(crate) const EVENTS: u64 = 128;
/// Address of a process's buffer to receive into, and of the one to send from.
pub(crate) const RECEIVE: u64 = 0x4000;
pub(crate) const SEND: u64 = 0x8000;
/// End of the memory that a process may name.
pub(crate) const MAPPED: u64 = 0xc000;

/// A packet, or the rest of a message, on its way.
#[derive(Debug)]
enum Item {
    Header { packet: HeaderPacket, source_incarnation: u32, target_incarnation: Incarnation },
    Body { source: u32, source_incarnation: u32, data: Vec<u8>, end: TransferStatus },
}

/// A node: firmware, chip, and the state of its clients.
pub(crate) struct Node {
    pub(crate) firmware: Firmware,
    pub(crate) chip: FakeChip,
    settings: Settings,
    /// Number of commands of each client.
    commands: BTreeMap<u16, u32>,
    /// Number of events that each client has taken.
    taken: BTreeMap<u16, u32>,
    /// Handle of the event queue of each process.
    pub(crate) queues: BTreeMap<u16, u32>,
    /// The node is off: nothing comes from it, and nothing arrives.
    pub(crate) is_off: bool,
}

/// The network.
pub(crate) struct Network {
    pub(crate) nodes: Vec<Node>,
    /// Packets between nodes, by source, target and channel.
    wires: BTreeMap<(u32, u32, bool), VecDeque<Item>>,
    /// State of the schedule.
    random: u64,
    /// A long message is dropped with one of this many headers, although there are streams.
    pub(crate) drop_one_of: Option<u64>,
    /// Packets on the control channel.
    pub(crate) control_packets: u64,
    /// Number of drops that are left.
    pub(crate) drops_left: u32,
}

/// The fields of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) node: u32,
    pub(crate) process: u16,
    pub(crate) match_bits: u64,
    pub(crate) local_offset: u64,
    pub(crate) length: u64,
    pub(crate) options: u16,
    pub(crate) header_data: u64,
}

impl Put {
    pub(crate) fn new(node: u32, match_bits: u64, length: u64) -> Self {
        Self { node, process: 0, match_bits, local_offset: 0, length, options: 0, header_data: 0 }
    }
}

impl Network {
    pub(crate) fn new(nodes: u32, streams: usize, seed: u64) -> Self {
        Self::with(nodes, streams, seed, Settings::default())
    }

    /// Returns two nodes with four streams, whose processes receive everything, and the descriptor
    /// from which process 0 of node 0 sends.
    pub(crate) fn pair(seed: u64) -> (Self, u32) {
        let mut network = Self::new(2, 4, seed);
        network.start_all();
        let descriptor = network.bind(0, 0);
        (network, descriptor)
    }

    pub(crate) fn with(nodes: u32, streams: usize, seed: u64, settings: Settings) -> Self {
        let node = |number| Node {
            firmware: Firmware::new(settings),
            chip: FakeChip::new(number, nodes, streams),
            settings,
            commands: BTreeMap::new(),
            taken: BTreeMap::new(),
            queues: BTreeMap::new(),
            is_off: false,
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            wires: BTreeMap::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            drop_one_of: None,
            control_packets: 0,
            drops_left: u32::MAX,
        }
    }

    /// Returns a number below `limit` (xorshift64).
    pub(crate) fn choose(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit.max(1)
    }

    /// Polls a node once. Returns whether it had work.
    pub(crate) fn poll(&mut self, node: u32) -> bool {
        let entry = &mut self.nodes[node as usize];
        if entry.is_off {
            return false;
        }
        if entry.chip.timer.is_some_and(|time| time <= entry.chip.now) {
            entry.chip.timer = None;
            entry.chip.push(Event::Timer);
        }

        entry.chip.calls = 0;
        let event = entry.chip.next_event();
        let polled = entry.firmware.poll(&mut entry.chip, event.as_ref()).expect("the chip never halts");
        if core::mem::take(&mut entry.chip.changed) {
            self.announce(node);
        }
        polled == Polled::Busy
    }

    /// Shows all other nodes a node's incarnation, and ends its streams.
    fn announce(&mut self, node: u32) {
        let chip = &mut self.nodes[node as usize].chip;
        let incarnation = chip.incarnation_number();
        if incarnation == 0 {
            for stream in 0..chip.streams.len() {
                chip.cut(stream);
            }
            let remaining: Vec<_> =
                chip.sending.take().map(|(message, ..)| message.name).into_iter().collect();
            let waiting: Vec<_> = chip.data.drain(..).map(|(message, _)| message.name).collect();
            for name in remaining.into_iter().chain(waiting) {
                chip.push(Event::Transmitted {
                    names: Transmissions::one(name),
                    status: TransferStatus::Cut,
                });
            }
        }

        for other in 0..self.nodes.len() as u32 {
            if other == node {
                continue;
            }
            let chip = &mut self.nodes[other as usize].chip;
            for stream in 0..chip.streams.len() {
                let is_over = chip.streams[stream]
                    .as_ref()
                    .is_some_and(|entry| entry.source == node && entry.source_incarnation != incarnation);
                if is_over {
                    chip.cut(stream);
                }
            }
            chip.inputs.push_back(Input::Incarnation { node, incarnation });
        }
    }

    /// Resets a node: its firmware starts again, without an incarnation.
    pub(crate) fn reset(&mut self, node: u32) {
        let nodes = self.nodes.len() as u32;
        let incarnations: Vec<u32> = self.nodes.iter().map(|other| other.chip.incarnation_number()).collect();
        let entry = &mut self.nodes[node as usize];
        let (streams, now, count) = (entry.chip.streams.len(), entry.chip.now, entry.chip.incarnations);

        entry.chip = FakeChip::new(node, nodes, streams);
        entry.chip.now = now;
        entry.chip.incarnations = count;
        entry.chip.seen = incarnations;
        entry.firmware = Firmware::new(entry.settings);
        entry.commands.clear();
        entry.taken.clear();
        entry.queues.clear();
        self.announce(node);
    }

    /// Performs one random step of the network. Returns whether it changed something.
    pub(crate) fn step(&mut self) -> bool {
        let count = self.nodes.len() as u64;
        let node = self.choose(count) as u32;
        match self.choose(4) {
            0 | 1 => self.poll(node),
            2 => self.send(node),
            _ => {
                let place = self.choose(self.wires.len() as u64) as usize;
                let Some(wire) = self.wires.keys().nth(place).copied() else { return false };
                self.arrive(wire)
            }
        }
    }

    /// Performs random steps until none changes anything. Timers make the clocks advance.
    pub(crate) fn settle(&mut self) {
        self.settle_with(|_| {});
    }

    /// As [`Network::settle`]. Calls `now_and_then` after some of the steps.
    pub(crate) fn settle_with(&mut self, mut now_and_then: impl FnMut(&mut Self)) {
        let mut idle = 0;
        for round in 0..4_000_000_u64 {
            if round % 64 == 0 {
                now_and_then(self);
            }
            idle = if self.step() { 0 } else { idle + 1 };
            if idle < 400 && idle < 40 * self.nodes.len() {
                continue;
            }
            if self.sweep() {
                idle = 0;
            } else if !self.advance() {
                return;
            }
        }
        panic!("the network does not settle");
    }

    /// Performs random steps, and advances the clocks now and then, until a condition holds.
    pub(crate) fn settle_until(&mut self, condition: impl Fn(&Self) -> bool) {
        for round in 0..4_000_000_u64 {
            if condition(self) {
                return;
            }
            self.step();
            if round % 400 == 0 {
                self.advance();
            }
        }
        panic!("the condition is not met");
    }

    /// Tries each step once. Returns whether one of them changed something.
    fn sweep(&mut self) -> bool {
        let mut moved = false;
        for node in 0..self.nodes.len() as u32 {
            moved |= self.poll(node);
            moved |= self.send(node);
        }
        let wires: Vec<_> = self.wires.keys().copied().collect();
        for wire in wires {
            moved |= self.arrive(wire);
        }
        moved
    }

    /// Lets the clock of each node advance to its timer.
    fn advance(&mut self) -> bool {
        let mut moved = false;
        for node in &mut self.nodes {
            if let Some(time) = node.chip.timer.filter(|_| !node.is_off) {
                node.chip.now = node.chip.now.max(time);
                moved = true;
            }
        }
        moved
    }

    /// Sends the header of a node's next message, and lets it arrive.
    pub(crate) fn begin(&mut self, node: u32, target: u32) {
        if self.nodes[node as usize].chip.sending.is_none() {
            self.send(node);
        }
        self.arrive((node, target, false));
    }

    /// Begins a node's next message. Its header stays on its way.
    pub(crate) fn start_sending(&mut self, node: u32) {
        while self.nodes[node as usize].chip.sending.is_none() {
            self.poll(node);
            self.send(node);
        }
    }

    /// Ends the message that a node's data engine sends. Its data arrive later.
    pub(crate) fn finish_sending(&mut self, node: u32) {
        while self.nodes[node as usize].chip.sending.is_some() {
            self.send(node);
        }
    }

    /// Sends the control messages of a node, and lets those for `target` arrive.
    pub(crate) fn answer(&mut self, node: u32, target: u32) {
        while !self.nodes[node as usize].chip.control.is_empty() {
            self.send(node);
        }
        while self.arrive((node, target, true)) {}
    }

    /// Moves a node's engines by one step.
    fn send(&mut self, node: u32) -> bool {
        let chip = &mut self.nodes[node as usize].chip;
        if let Some((message, incarnation)) = chip.control.pop_front() {
            self.control_packets += 1;
            let item = Item::Header {
                packet: message.packet,
                source_incarnation: incarnation,
                target_incarnation: message.target_incarnation,
            };
            self.wires.entry((node, message.target, true)).or_default().push_back(item);
            return true;
        }

        if let Some((message, source_incarnation, data, end)) = chip.sending.take() {
            chip.push(Event::Transmitted { names: Transmissions::one(message.name), status: end });
            if data.len() > INLINE {
                let end = if end == TransferStatus::Complete { end } else { TransferStatus::Corrupt };
                let item = Item::Body { source: node, source_incarnation, data, end };
                self.wires.entry((node, message.target, false)).or_default().push_back(item);
            }
            return true;
        }

        let Some((mut message, source_incarnation)) = chip.data.pop_front() else { return false };
        let length = message.packet.trusted.length as usize;
        let (data, end) = match message.pieces {
            Pieces::None => (Vec::new(), TransferStatus::Complete),
            pieces => chip.gather(&pieces, length),
        };
        if length <= INLINE && !data.is_empty() {
            message.packet.inline[..length].copy_from_slice(&data);
        }
        if length <= INLINE && end == TransferStatus::MemoryFault {
            message.packet.trusted.flags |= trusted_flag::INLINE_FAULT;
        }
        assert!(length <= INLINE || !data.is_empty());
        let item = Item::Header {
            packet: message.packet,
            source_incarnation,
            target_incarnation: message.target_incarnation,
        };
        self.wires.entry((node, message.target, false)).or_default().push_back(item);
        chip.sending = Some((message, source_incarnation, data, end));
        true
    }

    /// Lets the next packet of a wire arrive.
    fn arrive(&mut self, wire: (u32, u32, bool)) -> bool {
        let Some(item) = self.wires.get_mut(&wire).and_then(VecDeque::pop_front) else { return false };
        let source_chip = &self.nodes[wire.0 as usize].chip;
        let present_incarnation = source_chip.incarnation_number();
        let may_drop = self.drops_left > 0;
        let drops = may_drop && self.drop_one_of.is_some_and(|limit| self.choose(limit) == 0);
        let node = &mut self.nodes[wire.1 as usize];
        if node.is_off {
            return true;
        }
        let chip = &mut node.chip;

        match item {
            Item::Header { packet, source_incarnation, target_incarnation } => {
                let is_control = wire.2;
                if source_incarnation != present_incarnation && !(is_control && source_incarnation == 0) {
                    return true;
                }
                let incarnation = chip.incarnation_number();
                if incarnation == 0 || target_incarnation.0 != incarnation {
                    chip.push(Event::Stale { packet });
                    return true;
                }

                let is_long = packet.trusted.length as usize > INLINE && !is_control;
                let free = chip.streams.iter().position(Option::is_none);
                match (is_long, free.filter(|_| !drops)) {
                    (false, _) => {
                        chip.push(Event::Header { packet, incarnation: target_incarnation, stream: None })
                    }
                    (true, None) => {
                        self.drops_left -= u32::from(drops);
                        chip.push(Event::Dropped { packet, incarnation: target_incarnation });
                    }
                    (true, Some(stream)) => {
                        chip.streams[stream] = Some(Receiving {
                            source: wire.0,
                            source_incarnation,
                            destination: None,
                            data: None,
                        });
                        let stream = Some(Stream(stream as u16));
                        chip.push(Event::Header { packet, incarnation: target_incarnation, stream });
                    }
                }
            }
            Item::Body { source, source_incarnation, data, end } => {
                let is_of = |entry: &Receiving| {
                    entry.source == source
                        && entry.source_incarnation == source_incarnation
                        && entry.data.is_none()
                };
                let stream = chip.streams.iter().position(|entry| entry.as_ref().is_some_and(is_of));
                if let Some(stream) = stream {
                    if let Some(entry) = &mut chip.streams[stream] {
                        entry.data = Some((data, end));
                    }
                    chip.finish(stream);
                }
            }
        }
        true
    }

    /// Attaches a client.
    pub(crate) fn attach(&mut self, node: u32, client: u16) {
        self.nodes[node as usize].chip.push(Event::Attached { client: Client(client), epoch: 1 });
    }

    /// Detaches a client.
    pub(crate) fn detach(&mut self, node: u32, client: u16) {
        let entry = &mut self.nodes[node as usize];
        entry.commands.remove(&client);
        entry.taken.remove(&client);
        entry.queues.remove(&client.wrapping_sub(1));
        entry.chip.gone.insert(client);
        entry.chip.results.retain(|(other, _), _| *other != client);
        entry.chip.push(Event::Detached { client: Client(client), epoch: 1 });
    }

    /// Posts a command to the firmware. Returns its number.
    pub(crate) fn post(&mut self, node: u32, client: u16, bytes: &[u8]) -> u32 {
        let entry = &mut self.nodes[node as usize];
        let count = entry.commands.entry(client).or_default();
        let number = *count;
        *count += 1;
        let bytes = bytes.try_into().expect("a command has 128 bytes");
        entry.chip.push(Event::Command { client: Client(client), number, bytes });
        number
    }

    /// Posts a command and polls the firmware until it has answered.
    pub(crate) fn ask(&mut self, node: u32, client: u16, bytes: &[u8]) -> CommandResult {
        let number = self.post(node, client, bytes);
        for _ in 0..100_000 {
            if let Some(result) = self.nodes[node as usize].chip.results.remove(&(client, number)) {
                return result;
            }
            self.poll(node);
        }
        panic!("a command has no answer");
    }

    /// Posts a command of the kernel, with the number of events that it has taken.
    pub(crate) fn kernel(&mut self, node: u32, command: KernelCommand) -> CommandResult {
        let taken = self.nodes[node as usize].taken.get(&KERNEL).copied().unwrap_or(0) as u16;
        self.ask(node, KERNEL, KernelCommand { taken, ..command }.as_bytes())
    }

    /// Posts a command of a process.
    pub(crate) fn process(&mut self, node: u32, process: u16, command: Command) -> CommandResult {
        self.ask(node, process + 1, command.as_bytes())
    }

    /// Boots a node.
    pub(crate) fn boot(&mut self, node: u32) {
        self.attach(node, KERNEL);
        let boot = KernelCommand {
            kind: kernel_command::BOOT,
            list: KERNEL_QUEUE,
            length: KERNEL_EVENTS,
            ..KernelCommand::default()
        };
        assert_eq!(self.kernel(node, boot).code, code::OK);
    }

    /// Starts a process in NIC-based mode, with a queue.
    pub(crate) fn start(&mut self, node: u32, process: u16) {
        self.attach(node, process + 1);
        let mut start = KernelCommand {
            kind: kernel_command::START_PROCESS,
            process,
            count: 1,
            ..KernelCommand::default()
        };
        start.pieces[0] = Piece { address: 0, length: MAPPED as u32, attachment: process + 1, reserved: 0 };
        assert_eq!(self.kernel(node, start).code, code::OK);
        self.nodes[node as usize].chip.mapped.insert(process + 1, MAPPED);

        let allocate =
            Command { kind: command::ALLOCATE_QUEUE, start: QUEUE, length: EVENTS, ..Command::default() };
        let result = self.process(node, process, allocate);
        assert_eq!(result.code, code::OK);
        self.nodes[node as usize].queues.insert(process, result.value as u32);
    }

    /// Starts a process in host-based mode.
    pub(crate) fn start_host_based(&mut self, node: u32, process: u16) {
        let start = KernelCommand {
            kind: kernel_command::START_PROCESS,
            process,
            flags: kernel_flag::HOST_BASED,
            ..KernelCommand::default()
        };
        assert_eq!(self.kernel(node, start).code, code::OK);
    }

    /// Boots all nodes and starts process 0 of each in NIC-based mode.
    pub(crate) fn start_all(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            self.boot(node);
            self.start(node, 0);
            self.receive_all(node, 0);
        }
        self.settle();
    }

    /// Lets a process take puts and answer gets with any match bits, again and again.
    pub(crate) fn receive_all(&mut self, node: u32, process: u16) {
        let queue = self.nodes[node as usize].queues[&process];
        let post = Command {
            kind: command::POST,
            handle: NO_HANDLE,
            portal: 4,
            node: u32::MAX,
            process: u16::MAX,
            ignore_bits: u64::MAX,
            start: RECEIVE,
            length: SEND - RECEIVE,
            threshold: THRESHOLD_INFINITE,
            options: option::OP_PUT | option::OP_GET | option::MANAGE_REMOTE | option::START_DISABLE,
            queue,
            test_queue: NO_HANDLE,
            user_pointer: 7,
            ..Command::default()
        };
        let result = self.process(node, process, post);
        assert_eq!(result.code, code::OK);
    }

    /// Binds a descriptor of the buffer to send from.
    pub(crate) fn bind(&mut self, node: u32, process: u16) -> u32 {
        let queue = self.nodes[node as usize].queues[&process];
        let bind = Command {
            kind: command::BIND_DESCRIPTOR,
            start: SEND,
            length: MAPPED - SEND,
            threshold: THRESHOLD_INFINITE,
            options: option::START_DISABLE,
            queue,
            user_pointer: 9,
            ..Command::default()
        };
        let result = self.process(node, process, bind);
        assert_eq!(result.code, code::OK);
        result.value as u32
    }

    /// Posts a put. Returns the code of the result.
    pub(crate) fn put(&mut self, node: u32, process: u16, descriptor: u32, put: Put) -> u32 {
        self.request(command::PUT, node, process, descriptor, put)
    }

    /// Posts a get, with the fields of a put. Returns the code of the result.
    pub(crate) fn get(&mut self, node: u32, process: u16, descriptor: u32, put: Put) -> u32 {
        self.request(command::GET, node, process, descriptor, Put { options: 0, ..put })
    }

    fn request(&mut self, kind: u16, node: u32, process: u16, descriptor: u32, put: Put) -> u32 {
        let command = Command {
            kind,
            handle: descriptor,
            local_offset: put.local_offset,
            length: put.length,
            node: put.node,
            process: put.process,
            portal: 4,
            match_bits: put.match_bits,
            options: put.options,
            header_data: put.header_data,
            ..Command::default()
        };
        self.process(node, process, command).code
    }

    /// Takes the new events of a process.
    pub(crate) fn events(&mut self, node: u32, process: u16) -> Vec<EventRecord> {
        let entry = &mut self.nodes[node as usize];
        let taken = entry.taken.entry(process + 1).or_default();
        let memory = entry.chip.memory.entry(process + 1).or_insert_with(|| vec![0; MEMORY]);
        let mut events = Vec::new();
        loop {
            let slot = QUEUE as usize + (u64::from(*taken) % EVENTS) as usize * 64;
            let event = EventRecord::read_from_bytes(&memory[slot..slot + 64]).expect("64 bytes");
            if event.number != taken.wrapping_add(1) {
                return events;
            }
            *taken = taken.wrapping_add(1);
            events.push(event);
        }
    }

    /// Takes the new events of the kernel.
    pub(crate) fn kernel_events(&mut self, node: u32) -> Vec<KernelEvent> {
        let entry = &mut self.nodes[node as usize];
        let taken = entry.taken.entry(KERNEL).or_default();
        let memory = entry.chip.memory.entry(KERNEL).or_insert_with(|| vec![0; MEMORY]);
        let mut events = Vec::new();
        loop {
            let slot = KERNEL_QUEUE as usize + (*taken % KERNEL_EVENTS) as usize * 128;
            let event = KernelEvent::read_from_bytes(&memory[slot..slot + 128]).expect("128 bytes");
            if event.number != taken.wrapping_add(1) {
                return events;
            }
            *taken = taken.wrapping_add(1);
            events.push(event);
        }
    }

    /// Returns the kernel's command that sends `length` bytes of its memory at `address`.
    pub(crate) fn host_send(token: u32, process: u16, node: u32, address: u64, length: u32) -> KernelCommand {
        let mut pieces = [Piece::default(); PIECES];
        pieces[0] = Piece { address, length, attachment: KERNEL, reserved: 0 };
        KernelCommand {
            kind: kernel_command::SEND,
            token,
            process,
            node,
            message: nicforge_hwi::seastar::message::PUT,
            length,
            count: u16::from(length > 0),
            pieces: if length > 0 { pieces } else { [Piece::default(); PIECES] },
            ..KernelCommand::default()
        }
    }
}
