//! A network of SeaStars whose program a test writes, and the clients of its nodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    task::Waker,
    time::{Duration, Instant},
};

use nicforge_core::{
    companion::CompanionMode,
    fabric::LinkId,
    ids::{AttachmentId, FunctionId},
    machine::Next,
    time::Nanos,
};
use nicforge_hwi::seastar::{
    BAR_MIRROR, BAR_WINDOW, COMMAND_BYTES, CommandResult, HeaderPacket, KERNEL, MessageHeader, Piece, SLOTS,
    TrustedHeader, message, mirror, window,
};
use nicforge_seastar::{Network, Options, SeaStar};
use nicforge_seastar_firmware::chip::{
    Channel, Chip, Event, Halted, Incarnation, Pieces, Polled, Program, TransferStatus, Transmission,
    Transmit,
};
use nicforge_shm::SharedMemory;
use nicforge_test_kit::{BUDGET, Client, Testbed};

/// Both places in which the firmware runs.
pub(crate) const BOTH: [CompanionMode; 2] = [CompanionMode::Stepped, CompanionMode::Threads];
/// Longest wait of a test.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Address of each client's memory, and its length.
pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 4 << 20;
/// Maximum number of nanoseconds that the clock advances in a step without an event.
const TICK: u64 = 1_000;

/// The work of a command of a test on the processor.
type Action = Box<dyn FnOnce(&mut dyn Chip) + Send>;
/// The work of the program at an event.
type Handler = Box<dyn FnMut(&mut dyn Chip, &Event) + Send>;

/// The program of a node, as the test sees it.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<ScriptState>>);

#[derive(Default)]
pub(crate) struct ScriptState {
    actions: BTreeMap<u64, Action>,
    handler: Option<Handler>,
    /// Events with the processor's time at their end.
    pub(crate) events: Vec<(u64, Event)>,
    /// Cycles of a poll that handles an event.
    pub(crate) charge: u32,
    /// Incarnations of the processor so far.
    pub(crate) starts: u32,
}

impl Script {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ScriptState> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn on_event(&self, handler: impl FnMut(&mut dyn Chip, &Event) + Send + 'static) {
        self.lock().handler = Some(Box::new(handler));
    }

    /// Returns the events so far, without those of commands and tenants.
    pub(crate) fn events(&self) -> Vec<Event> {
        let is_shown = |event: &Event| {
            !matches!(event, Event::Command { .. } | Event::Attached { .. } | Event::Detached { .. })
        };
        self.lock().events.iter().map(|(_, event)| *event).filter(is_shown).collect()
    }

    pub(crate) fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.lock().events.iter().filter(|(_, event)| matches(event)).count()
    }

    /// Returns how the data of each received message ended.
    pub(crate) fn received(&self) -> Vec<TransferStatus> {
        let status = |event| if let Event::Received { status, .. } = event { Some(status) } else { None };
        self.events().into_iter().filter_map(status).collect()
    }

    /// Returns the name of each transmission that has ended, and how it ended.
    pub(crate) fn transmitted(&self) -> Vec<(u32, TransferStatus)> {
        let mut transfers = Vec::new();
        for event in self.events() {
            if let Event::Transmitted { names, status } = event {
                transfers.extend(names.names().iter().map(|name| (name.0, status)));
            }
        }
        transfers
    }
}

impl Program for Script {
    fn poll<C: Chip>(&mut self, chip: &mut C, event: Option<&Event>) -> Result<Polled, Halted> {
        let Some(&event) = event else { return Ok(Polled::Idle) };
        let (action, handler) = {
            let mut state = self.lock();
            chip.charge(state.charge);
            let action = match &event {
                Event::Command { bytes, .. } => {
                    state.actions.remove(&u64::from_le_bytes(bytes[..8].try_into().unwrap()))
                }
                _ => None,
            };
            (action, state.handler.take())
        };

        if let Event::Command { client, number, .. } = event {
            chip.answer(client, number, CommandResult { value: number.into(), ..CommandResult::default() })?;
        }
        // The lock is free during these calls, so that a test can look while they hang.
        if let Some(action) = action {
            action(chip);
        }
        let handler = handler.map(|mut handler| {
            handler(chip, &event);
            handler
        });

        let mut state = self.lock();
        if state.handler.is_none() {
            state.handler = handler;
        }
        state.events.push((chip.now(), event));
        Ok(Polled::Busy)
    }
}

/// A client of a node, with memory.
pub(crate) struct User {
    pub(crate) client: Client,
    pub(crate) memory: SharedMemory,
    window: SharedMemory,
    mirror: SharedMemory,
    commands: u32,
}

impl User {
    pub(crate) fn attach(bed: &mut Testbed, function: FunctionId, attachment: u16) -> Self {
        let client = Client::attach(bed, function, AttachmentId(attachment));
        let memory = client.map(bed, MEMORY, MEMORY_BYTES);
        let window = client.memory(bed, BAR_WINDOW.into());
        let mirror = client.memory(bed, BAR_MIRROR.into());
        Self { client, memory, window, mirror, commands: 0 }
    }

    /// Writes a command, and returns its number.
    pub(crate) fn post(&mut self, bytes: &[u8; COMMAND_BYTES]) -> u32 {
        let number = self.commands;
        let slot = u64::from(number % SLOTS) * COMMAND_BYTES as u64;
        self.window.write(window::BASE + window::COMMANDS + slot, bytes).unwrap();
        self.commands += 1;
        self.set_tail(self.commands);
        number
    }

    pub(crate) fn set_tail(&mut self, tail: u32) {
        let word = self.window.u32(window::BASE + window::COMMAND_TAIL).unwrap();
        word.store(tail, Ordering::Release);
    }

    /// Starts again from command 0, after a reset.
    pub(crate) fn restart(&mut self) {
        self.commands = 0;
    }

    /// Returns the result of a command, if the program has answered it.
    pub(crate) fn result(&self, number: u32) -> Option<u64> {
        let slot = mirror::BASE + mirror::RESULTS + u64::from(number % SLOTS) * 32;
        let is_there = self.mirror.u32(slot + 28).unwrap().load(Ordering::Acquire) == number.wrapping_add(1);
        is_there.then(|| self.mirror.u64(slot).unwrap().load(Ordering::Acquire))
    }

    /// Returns the code and the value of a command's result, if the program has answered the
    /// command.
    pub(crate) fn answer(&self, number: u32) -> Option<(u32, u64)> {
        let value = self.result(number)?;
        let slot = mirror::RESULTS + u64::from(number % SLOTS) * 32;
        Some((self.shown(slot + 16), value))
    }

    /// Returns a word of the mirror.
    pub(crate) fn shown(&self, offset: u64) -> u32 {
        self.mirror.u32(mirror::BASE + offset).unwrap().load(Ordering::Acquire)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset as u64, bytes).unwrap();
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset as u64, &mut bytes).unwrap();
        bytes
    }
}

/// A network.
pub(crate) struct Rig {
    pub(crate) bed: Testbed,
    pub(crate) functions: Vec<FunctionId>,
    pub(crate) links: Vec<LinkId>,
    pub(crate) scripts: Vec<Script>,
    /// The kernel of each node.
    pub(crate) kernels: Vec<User>,
    mode: CompanionMode,
    actions: u64,
}

impl Rig {
    /// Returns a network whose kernels have attached and booted.
    pub(crate) fn new(mode: CompanionMode, lengths: &[u32], options: Options) -> Self {
        let mut rig = Self::powered_on(mode, lengths, options);
        for node in 0..rig.functions.len() {
            rig.boot(node);
        }
        rig
    }

    /// Returns a network whose kernels have attached.
    pub(crate) fn powered_on(mode: CompanionMode, lengths: &[u32], options: Options) -> Self {
        let network = Network::torus(lengths, &[], options).unwrap();
        let mut bed = Testbed::new();
        bed.set_companions(mode, Waker::noop().clone());
        bed.set_companion_limit(LONG.as_nanos() as u64);

        let (mut functions, mut scripts) = (Vec::new(), Vec::new());
        for node in 0..network.nodes() {
            let script = Script::default();
            let program = script.clone();
            let make = move |_| {
                program.lock().starts += 1;
                program.clone()
            };
            functions.push(bed.add(&format!("s{node}"), SeaStar::new(&network, node, make).unwrap()));
            scripts.push(script);
        }
        let mut links = Vec::new();
        for cable in network.cables() {
            let end = |end: nicforge_network::shape::CableEnd| (functions[end.node as usize], end.port);
            links.push(bed.connect(end(cable.a), end(cable.b), network.options().link.clone()));
        }

        let kernels = functions.iter().map(|&function| User::attach(&mut bed, function, KERNEL)).collect();
        Self { bed, functions, links, scripts, kernels, mode, actions: 0 }
    }

    pub(crate) fn boot(&mut self, node: usize) {
        self.act(node, |chip| chip.set_booted(true).unwrap());
    }

    /// Runs an action on a node's processor, and waits for its result.
    #[track_caller]
    pub(crate) fn act(&mut self, node: usize, action: impl FnOnce(&mut dyn Chip) + Send + 'static) {
        let number = self.start(node, action);
        self.until(|rig| rig.kernels[node].result(number).is_some());
    }

    /// Starts an action on a node's processor. Returns the number of its command.
    pub(crate) fn start(&mut self, node: usize, action: impl FnOnce(&mut dyn Chip) + Send + 'static) -> u32 {
        self.actions += 1;
        self.scripts[node].lock().actions.insert(self.actions, Box::new(action));
        let mut bytes = [0; COMMAND_BYTES];
        bytes[..8].copy_from_slice(&self.actions.to_le_bytes());
        let number = self.kernels[node].post(&bytes);
        self.bed.rescan();
        number
    }

    /// Steps the machine until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LONG;
        self.bed.rescan();
        while !condition(self) {
            assert!(Instant::now() < deadline, "not in time");
            self.step();
        }
    }

    /// Steps once, and advances the clock to the next event.
    pub(crate) fn step(&mut self) {
        let (now, next) = (self.bed.now(), self.bed.step(BUDGET));
        let event = self.bed.fabric().next_event().min(now.after(TICK));
        match next {
            Next::Now => {}
            Next::Poll => self.bed.advance_to(event),
            Next::At(time) => self.bed.advance_to(time.min(event)),
        }
        if self.mode == CompanionMode::Threads {
            std::thread::yield_now();
        }
    }

    /// Steps until nothing has happened for a while. A machine with DMA messages that wait for the
    /// test is busy all the time.
    pub(crate) fn settle(&mut self) {
        self.bed.rescan();
        let mut quiet = 0;
        for _ in 0..5000 {
            if quiet == 200 {
                return;
            }
            let is_busy = self.bed.step(BUDGET) == Next::Now;
            quiet = if is_busy { 0 } else { quiet + 1 };
            let event = self.bed.fabric().next_event().min(self.bed.now().after(TICK));
            if !is_busy {
                self.bed.advance_to(event);
            }
            if self.mode == CompanionMode::Threads {
                std::thread::sleep(Duration::from_micros(10));
            }
        }
    }

    /// Sends a message of the kernel's memory, and does not wait.
    pub(crate) fn send(&mut self, from: usize, message: Message) {
        self.start(from, move |chip| message.transmit(chip));
    }

    pub(crate) fn counter(&mut self, node: usize, name: &str) -> u64 {
        let counters = self.bed.counters(self.functions[node]);
        counters.iter().find(|counter| counter.name == name).unwrap().value
    }

    pub(crate) fn now(&self) -> Nanos {
        self.bed.now()
    }
}

/// A message of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) name: u32,
    pub(crate) target: u32,
    pub(crate) length: u32,
    pub(crate) pieces: Pieces,
    pub(crate) kind: u8,
    pub(crate) channel: Channel,
    /// Its incarnation of the target; the one that the sender sees if it is 0.
    pub(crate) incarnation: u32,
}

impl Message {
    /// Returns a put of the first bytes of the kernel's memory from `offset` on.
    pub(crate) fn put(name: u32, target: usize, offset: usize, length: usize) -> Self {
        Self {
            name,
            target: target as u32,
            length: length as u32,
            pieces: if length == 0 { Pieces::None } else { Pieces::One(piece(KERNEL, offset, length)) },
            kind: message::PUT,
            channel: Channel::Data,
            incarnation: 0,
        }
    }

    /// Returns an acknowledgement.
    pub(crate) fn ack(name: u32, target: usize) -> Self {
        let kind = message::ACK;
        Self { kind, channel: Channel::Control, ..Self::put(name, target, 0, 0) }
    }

    pub(crate) fn transmit(self, chip: &mut dyn Chip) {
        let Self { name, target, length, pieces, kind, channel, incarnation } = self;
        let incarnation = if incarnation == 0 {
            chip.incarnation(target).unwrap_or(Incarnation(0))
        } else {
            Incarnation(incarnation)
        };
        let trusted = TrustedHeader { source_node: chip.node(), length, kind, ..TrustedHeader::default() };
        let header = MessageHeader { match_bits: name.into(), ..MessageHeader::default() };
        let packet = HeaderPacket { trusted, message: header, ..HeaderPacket::default() };
        let name = Transmission(name);
        chip.transmit(&Transmit { name, target, target_incarnation: incarnation, channel, packet, pieces })
            .unwrap();
    }
}

/// Returns a piece of a client's memory.
pub(crate) fn piece(attachment: u16, offset: usize, length: usize) -> Piece {
    Piece { address: MEMORY + offset as u64, length: length as u32, attachment, reserved: 0 }
}

/// Bytes that differ from those of other seeds.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// Returns a handler that receives each message at `offset` of the kernel's memory.
pub(crate) fn receive_at(offset: usize) -> impl FnMut(&mut dyn Chip, &Event) + Send + 'static {
    move |chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            let length = packet.trusted.length;
            let place = Pieces::One(piece(KERNEL, offset, length as usize));
            chip.receive(stream, length, place).unwrap();
        }
    }
}
