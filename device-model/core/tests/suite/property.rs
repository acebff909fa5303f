//! Property tests: random sequences of operations by clients, operators and time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::common::*;
use nicforge_core::{
    context::MAX_REMOTE,
    device::Ended,
    dma::{DmaBacking, DmaError, DmaPermission},
    ids::{AttachmentId, DmaToken, FunctionId},
    machine::{Machine, Next, Outgoing, region},
    time::Nanos,
};
use nicforge_hwi::attachment::control;
use nicforge_shm::SharedMemory;
use proptest::prelude::*;

const FUNCTIONS: u32 = 3;
const ATTACHMENTS: u16 = 3;
/// IOVA of each client's memory that devices access directly.
const LOCAL: u64 = 0x1_0000;
/// IOVA of each client's memory that devices access by messages.
const REMOTE: u64 = 0x2_0000;
/// Offset that [`Ring::push_number`] writes. The model's trapped writes use others.
const NUMBERS: u64 = 0x10;

/// A client, by its function and attachment.
type ClientId = (FunctionId, AttachmentId);

/// An operation of one client, of its device, of the operator, or of time.
#[derive(Clone, Debug)]
enum Operation {
    Attach,
    Detach(Ended),
    Reset,
    ResetFunction,
    ResetRing,
    /// Post this many numbers.
    Push(u8),
    /// Post a record to a BAR and an offset.
    PushElsewhere(u8, u32),
    /// Read a number of bytes at an offset of a region.
    Read(u32, u64, usize),
    /// Write 8 bytes at an offset of BAR 0.
    Write(u64),
    /// The device stalls this client's writes, until it resumes them.
    Stall,
    Resume,
    /// The device starts this many DMA reads at an IOVA.
    StartReads(u8, u64),
    ForgetReads,
    /// The device starts this many DMA writes.
    StartWrites(u8),
    Interrupt(u16),
    /// Clients answer this many messages, in one of several ways.
    Answer(u8, u8),
    Wake,
    /// Step the machine this much later, with a budget.
    Step(u64, u32),
    Rescan,
    /// The device sets its timer to a later time.
    WakeAt(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let region = prop_oneof![0..6u32, Just(region::CONFIG), any::<u32>()];
    let offset = prop_oneof![0..0x4100u64, 0..0x2_0100u64, any::<u64>()];
    let iova = prop_oneof![Just(LOCAL), Just(REMOTE), Just(REMOTE - 4), Just(0u64)];

    prop_oneof![
        3 => Just(Operation::Attach),
        1 => prop_oneof![Just(Ended::Closed), Just(Ended::Evicted)].prop_map(Operation::Detach),
        1 => Just(Operation::Reset),
        1 => Just(Operation::ResetFunction),
        1 => Just(Operation::ResetRing),
        6 => (1..70u8).prop_map(Operation::Push),
        2 => (1..8u8, prop_oneof![0x1000..0x1100u32, any::<u32>()]).prop_map(|(bar, at)| Operation::PushElsewhere(bar, at)),
        3 => (region, offset, 0..100usize).prop_map(|(region, offset, length)| Operation::Read(region, offset, length)),
        3 => (0x20..0xf00u64).prop_map(Operation::Write),
        2 => Just(Operation::Stall),
        2 => Just(Operation::Resume),
        3 => (1..50u8, iova).prop_map(|(count, iova)| Operation::StartReads(count, iova)),
        1 => Just(Operation::ForgetReads),
        2 => (1..50u8).prop_map(Operation::StartWrites),
        2 => (0..6u16).prop_map(Operation::Interrupt),
        3 => (0..8u8, 0..4u8).prop_map(|(count, kind)| Operation::Answer(count, kind)),
        1 => Just(Operation::Wake),
        8 => (0..200_000u64, 0..70u32).prop_map(|(later, budget)| Operation::Step(later, budget)),
        1 => Just(Operation::Rescan),
        1 => (0..1_000_000u64).prop_map(Operation::WakeAt),
    ]
}

/// The reference state of a client.
struct Client {
    ring: Ring,
    /// Numbers posted that the device has not received.
    posted: VecDeque<u32>,
    /// Tokens of reads that have not ended.
    reads: BTreeSet<u64>,
}

/// A machine, and the state in which the model expects it.
struct World {
    machine: Machine,
    probes: Vec<Probe>,
    clients: HashMap<ClientId, Client>,
    /// Messages that no client has answered.
    sent: VecDeque<Outgoing>,
    next_number: u32,
    next_token: u64,
    now: u64,
}

impl World {
    fn new() -> Self {
        let mut machine = Machine::new();
        let probes =
            (0..FUNCTIONS).map(|number| add(&mut machine, &format!("node{number}"), spec()).1).collect();

        Self {
            machine,
            probes,
            clients: HashMap::new(),
            sent: VecDeque::new(),
            next_number: 0,
            next_token: 0,
            now: 0,
        }
    }

    fn probe(&self, id: ClientId) -> Probe {
        self.probes[id.0.0 as usize].clone()
    }

    fn attach(&mut self, id: ClientId) {
        let (function, attachment) = id;

        assert_eq!(self.machine.attach(function, attachment).is_ok(), !self.clients.contains_key(&id));

        if self.clients.contains_key(&id) {
            return;
        }

        let memory = DmaBacking::Memory(SharedMemory::create("client", 0x1000).unwrap().whole());
        for (iova, backing) in [(LOCAL, memory), (REMOTE, DmaBacking::Remote)] {
            self.machine
                .dma_map(function, attachment, iova, 0x1000, DmaPermission::READ_WRITE, backing)
                .unwrap();
        }

        let ring = Ring::new(&self.machine, function, attachment);
        self.clients.insert(id, Client { ring, posted: VecDeque::new(), reads: BTreeSet::new() });
        self.set_bus_master(id);
    }

    fn set_bus_master(&mut self, id: ClientId) {
        let _ = self.machine.write(id.0, id.1, region::CONFIG, 4, &[6, 0]).unwrap();
    }

    /// Checks the calls that the devices received: posted numbers come in order, each once, and
    /// only reads that were started end.
    fn check_calls(&mut self) {
        for (function, probe) in self.probes.iter().enumerate() {
            let function = FunctionId(function as u32);
            for call in probe.calls() {
                match call {
                    Call::Write(id, at, data) if at.bar == 0 && at.offset == NUMBERS => {
                        let number = u32::from_le_bytes(data.try_into().unwrap());
                        let client = self.clients.get_mut(&(function, id)).unwrap();
                        assert_eq!(client.posted.pop_front(), Some(number));
                    }
                    Call::Done(id, token, _) => {
                        let client = self.clients.get_mut(&(function, id)).unwrap();
                        assert!(client.reads.remove(&token.0), "{token:?} ended twice, or after a reset");
                    }
                    _ => {}
                }
            }
        }
    }

    /// Drops a client's expectations after a reset, and restarts its ring.
    fn clear_expectations(&mut self, id: ClientId, ring_only: bool) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.posted.clear();
            client.ring.restart();
            if !ring_only {
                client.reads.clear();
                self.set_bus_master(id);
            }
        }
    }

    /// Has the device start reads during a trapped write. Reads that it could not start are not
    /// expected to end.
    fn start_reads(&mut self, id: ClientId, count: u8, iova: u64) {
        let started = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (first, list) = (self.next_token, started.clone());
        self.next_token += u64::from(count);
        let tokens = first..self.next_token;
        self.probe(id).queue_action(move |context| {
            let accepted = tokens.filter(|&token| context.dma_read(id.1, iova, 8, DmaToken(token)).is_ok());
            list.lock().unwrap().extend(accepted);
        });

        self.act(id);
        let started = started.lock().unwrap().clone();
        self.clients.get_mut(&id).unwrap().reads.extend(started);
    }

    /// Has the device forget its reads during a trapped write. None of them may end afterwards.
    fn forget_reads(&mut self, id: ClientId) {
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = done.clone();
        self.probe(id).queue_action(move |context| {
            context.forget_reads(id.1);
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        });

        self.act(id);
        self.check_calls();
        // The write stalls after a record that does.
        if done.load(std::sync::atomic::Ordering::Relaxed) {
            self.clients.get_mut(&id).unwrap().reads.clear();
        }
    }

    /// Runs the device's actions during a trapped write.
    fn act(&mut self, id: ClientId) {
        let probe = self.probe(id);
        let stalled = std::mem::take(&mut probe.script().stalled);
        // The write also drains the ring.
        let _ = self.machine.write(id.0, id.1, 0, 0x8, &[1]).unwrap();
        probe.script().stalled = stalled;
        probe.script().actions.clear();
    }

    /// Has clients answer `count` messages: a read with too many bytes (kind 0), with its data (1),
    /// or with an error.
    fn answer(&mut self, count: u8, kind: u8) {
        while let Some(message) = self.machine.pop_outgoing() {
            self.sent.push_back(message);
        }

        for _ in 0..count {
            let Some(message) = self.sent.pop_front() else { break };
            let answered = match (&message, kind) {
                (Outgoing::DmaRead { id, function, attachment, length, .. }, 0) => {
                    self.machine.dma_read_done(*function, *attachment, *id, Ok(&vec![1; length + 1]))
                }
                (Outgoing::DmaRead { id, function, attachment, length, .. }, 1) => {
                    self.machine.dma_read_done(*function, *attachment, *id, Ok(&vec![1; *length]))
                }
                (Outgoing::DmaRead { id, function, attachment, .. }, _) => self.machine.dma_read_done(
                    *function,
                    *attachment,
                    *id,
                    Err(DmaError::Refused { errno: 5 }),
                ),
                (Outgoing::DmaWrite { id, function, attachment, .. }, _) => {
                    self.machine.dma_write_done(*function, *attachment, *id, Ok(()))
                }
            };
            // An answer fails after the client has left.
            let _ = answered;
        }
    }

    /// Carries out an operation, and checks its result and the calls of the devices.
    fn run(&mut self, id: ClientId, operation: Operation) {
        let (function, attachment) = id;
        let is_attached = self.clients.contains_key(&id);
        match operation {
            Operation::Attach => self.attach(id),
            Operation::Detach(why) => {
                assert_eq!(self.machine.detach(function, attachment, why).is_ok(), is_attached);
                // The records of the ring were carried out, unless one stalled.
                self.check_calls();
                self.clients.remove(&id);
            }
            Operation::Reset => {
                assert_eq!(self.machine.reset_attachment(function, attachment).is_ok(), is_attached);
                self.check_calls();
                self.clear_expectations(id, false);
            }
            Operation::ResetFunction => {
                self.machine.reset_function(function).unwrap();
                self.check_calls();
                for attachment in 0..ATTACHMENTS {
                    self.clear_expectations((function, AttachmentId(attachment)), false);
                }
            }
            Operation::ResetRing if is_attached => {
                let at = CONTROL + control::RING_RESET;
                let _ = self.machine.write(function, attachment, 0, at, &[0; 4]).unwrap();
                self.check_calls();
                self.clear_expectations(id, true);
            }
            Operation::Push(count) => {
                let Some(client) = self.clients.get_mut(&id) else { return };
                for _ in 0..count {
                    let number = self.next_number;
                    if client.ring.push(0, NUMBERS as u32, &number.to_le_bytes()).is_ok() {
                        client.posted.push_back(number);
                        self.next_number += 1;
                    }
                }
            }
            Operation::PushElsewhere(bar, offset) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    let _ = client.ring.push(bar & 7, offset, &[0; 9]);
                }
            }
            Operation::Read(region, offset, length) => {
                let result = self.machine.read(function, attachment, region, offset, &mut vec![0; length]);
                assert!(is_attached || result.is_err());
            }
            Operation::Write(offset) if is_attached => {
                let _ = self.machine.write(function, attachment, 0, offset, &[0; 8]).unwrap();
            }
            Operation::Stall => self.probe(id).script().stalled.push(attachment),
            Operation::Resume => self.probe(id).script().stalled.clear(),
            Operation::StartReads(count, iova) if is_attached => self.start_reads(id, count, iova),
            Operation::ForgetReads if is_attached => self.forget_reads(id),
            Operation::StartWrites(count) if is_attached => {
                self.probe(id).queue_action(move |context| {
                    for _ in 0..count {
                        let _ = context.dma_write(attachment, REMOTE, &[1; 8]);
                    }
                });
                self.act(id);
            }
            Operation::Interrupt(vector) if is_attached => {
                self.probe(id).queue_action(move |context| context.interrupt(attachment, vector));
                self.act(id);
            }
            Operation::Answer(count, kind) => self.answer(count, kind),
            Operation::Wake => self.machine.wake(function),
            Operation::Step(later, budget) => {
                self.now += later;
                self.machine.step(Nanos(self.now), budget);
            }
            Operation::Rescan => self.machine.rescan(),
            Operation::WakeAt(later) if is_attached => {
                let time = Nanos(self.now + later);
                self.probe(id).queue_action(move |context| context.wake_at(time));
                self.act(id);
            }
            _ => {}
        }

        self.check_calls();
    }

    /// Ends all stalls, and waits until every record has arrived and every read has ended.
    fn finish(&mut self) {
        for probe in &self.probes {
            probe.script().stalled.clear();
        }

        for _ in 0..1000 {
            self.machine.rescan();
            self.now += 1_000_000;
            let next = self.machine.step(Nanos(self.now), 64);
            self.answer(u8::MAX, 1);
            self.check_calls();
            let idle =
                self.clients.values().all(|client| client.posted.is_empty() && client.reads.is_empty());
            if next != Next::Now && idle && self.sent.is_empty() {
                return;
            }
        }

        panic!("something never ends");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn nothing_posted_is_lost_doubled_or_reordered_and_every_read_ends_once(
        sequence in prop::collection::vec((0..FUNCTIONS, 0..ATTACHMENTS, operation()), 1..250)
    ) {
        let mut world = World::new();
        for attachment in 0..ATTACHMENTS {
            world.attach((F, AttachmentId(attachment)));
        }

        for (function, attachment, operation) in sequence {
            world.run((FunctionId(function), AttachmentId(attachment)), operation);
            let reads_in_flight = world.clients.values().map(|client| client.reads.len()).max().unwrap_or(0);
            prop_assert!(reads_in_flight <= MAX_REMOTE);
        }

        world.finish();
    }

    #[test]
    fn random_writes_of_a_client_break_no_invariant(
        writes in prop::collection::vec(
            (
                prop_oneof![0..5u32, Just(region::CONFIG)],
                prop_oneof![0..0x80u64, 0x1000..0x1020u64, 0..0x4000u64],
                prop::collection::vec(any::<u8>(), 1..40),
                any::<bool>(),
            ),
            1..100
        )
    ) {
        let mut world = World::new();
        let (hostile, other) = ((F, A), (F, B));
        world.attach(hostile);
        world.attach(other);
        let probe = world.probe(hostile);
        for (region, offset, data, step) in writes {
            let _ = world.machine.write(F, A, region, offset, &data);
            let _ = world.machine.read(F, A, region, offset, &mut vec![0; data.len()]);
            if step {
                world.now += 1000;
                world.machine.step(Nanos(world.now), 16);
            }
        }

        probe.calls();

        // The other client is not affected.
        let number = world.next_number;
        world.clients.get_mut(&other).unwrap().ring.push_number(number);
        step_until_idle(&mut world.machine, world.now);

        let was_received = probe.calls().into_iter().any(|call| {
            matches!(call, Call::Write(B, _, data) if data == number.to_le_bytes())
        });

        prop_assert!(was_received);

        world.machine.reset_function(F).unwrap();
        world.machine.detach(F, A, Ended::Evicted).unwrap();
    }
}
