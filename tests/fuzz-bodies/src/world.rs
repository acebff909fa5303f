//! A machine with one function of each kind, and the conditions that hold whatever its clients do.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use nicforge_core::{
    context::{MAX_REMOTE, Outgoing},
    device::Ended,
    dma::{DmaBacking, DmaError, DmaPermission},
    ids::{AttachmentId, FunctionId},
    interrupt::{InterruptSink, MSIX},
    machine::{Access, AccessError, Machine, Next, region},
    time::Nanos,
};
use nicforge_family::Plan;
use nicforge_hwi::{
    attachment::mirror::RING_HEAD,
    idio16,
    proof::{addressed_send, dma_engine, slot_fifo},
    tree::{BAR_MIRROR, BAR_WINDOW, Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window},
};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;
use nicforge_shm::{Producer, SharedCells, SharedMemory};

/// Compute nodes of the pset. The I/O node is function 0, compute node `n` function `n + 1`.
pub const COMPUTE_NODES: u32 = 4;
/// Functions that are tree NICs.
pub const TREE_NODES: u32 = COMPUTE_NODES + 1;
/// The proof device with slot FIFOs.
pub const FIFO: FunctionId = FunctionId(TREE_NODES);
/// The proof device that copies by DMA.
pub const ENGINE: FunctionId = FunctionId(TREE_NODES + 1);
/// The proof device whose sends are encoded in their address.
pub const SEND: FunctionId = FunctionId(TREE_NODES + 2);
/// A card with I/O ports and INTx, and without rings, mirror and MSI-X.
pub const PORTS: FunctionId = FunctionId(TREE_NODES + 3);
/// Number of all functions.
pub const FUNCTIONS: u32 = TREE_NODES + 4;

/// BAR of the attachment's windows, with its posted-write ring at the start.
pub const BAR_RING: u32 = 1;
/// Number of cells of that ring, for every device here.
pub const RING_CELLS: u32 = 64;

/// A client's place: function and attachment.
pub type ClientId = (FunctionId, AttachmentId);

/// Number of steps after which a busy machine is considered never to come to rest.
const MANY_STEPS: u32 = 200_000;
/// More packets than the links and queues of the pset have room for.
const MANY_PACKETS: usize = 4096;

/// The machine, its time, and the DMA messages that are not answered yet.
pub struct World {
    /// The machine.
    pub machine: Machine,
    /// DMA messages, oldest first.
    pub messages: Vec<Outgoing>,
    now: Nanos,
}

/// An interrupt sink that counts its signals.
#[derive(Default)]
pub struct Count(AtomicU64);

impl InterruptSink for Count {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Parses a machine file, once for each text. Otherwise the parser would use most of a fuzzer's
/// time.
pub fn parsed(text: &str) -> Plan {
    static PARSED: Mutex<BTreeMap<String, Plan>> = Mutex::new(BTreeMap::new());

    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = parsed.get(text) {
        return found.clone();
    }

    let plan = parse(text, "world.toml", &families()).unwrap();
    parsed.insert(text.to_owned(), plan.clone());
    plan
}

/// Returns the plan of the machine of [`World`], whose tree FIFOs hold `fifo_depth` packets.
pub fn plan(fifo_depth: u32) -> Plan {
    let mut text =
        format!("name = \"world\"\n[[pset]]\ncompute_nodes = {COMPUTE_NODES}\nfifo_depth = {fifo_depth}\n");
    let functions =
        [("fifo0", "slot-fifo"), ("dma0", "dma-engine"), ("send0", "addressed-send"), ("gpio0", "idio-16")];

    for (name, kind) in functions {
        text += &format!("[[function]]\nname = \"{name}\"\nkind = \"{kind}\"\n");
    }

    parsed(&text)
}

/// Returns a machine in this process, built from a file's text.
pub fn local(text: &str) -> Arc<LocalMachine> {
    LocalMachine::new(build(&parsed(text)).unwrap().0)
}

impl World {
    /// Creates a machine without clients.
    pub fn new(fifo_depth: u32) -> Self {
        let (machine, _) = build(&plan(fifo_depth)).unwrap();
        Self { machine, messages: Vec::new(), now: Nanos::ZERO }
    }

    /// Attaches a client to a free attachment.
    pub fn attach(&mut self, client_id: ClientId) {
        self.machine.attach(client_id.0, client_id.1).unwrap();
    }

    /// Returns whether a client is attached.
    pub fn is_attached(&self, client_id: ClientId) -> bool {
        self.machine.is_attached(client_id.0, client_id.1)
    }

    /// Ends a client. Its unanswered DMA messages are dropped.
    pub fn detach(&mut self, client_id: ClientId, why: Ended) {
        self.machine.detach(client_id.0, client_id.1, why).unwrap();
        self.messages.retain(|message| owner(message) != client_id);
    }

    /// Returns a BAR's memory of an attached client.
    pub fn memory(&self, client_id: ClientId, bar: u32) -> Option<SharedMemory> {
        self.machine.region(client_id.0, client_id.1, bar).unwrap().memory
    }

    /// Makes a trapped read, and checks that it is counted if it was done.
    pub fn read(&mut self, client_id: ClientId, region: u32, offset: u64, data: &mut [u8]) -> Outcome {
        let before = self.accesses(client_id);
        let outcome = self.machine.read(client_id.0, client_id.1, region, offset, data);
        let counted = outcome_is_done(&outcome) && region != region::CONFIG && !data.is_empty();
        let after = self.accesses(client_id);
        assert_eq!(after, before.map(|(reads, writes)| (reads + u64::from(counted), writes)));
        outcome
    }

    /// Makes a trapped write, and checks that it is counted if it was done.
    pub fn write(&mut self, client_id: ClientId, region: u32, offset: u64, data: &[u8]) -> Outcome {
        let before = self.accesses(client_id);
        let outcome = self.machine.write(client_id.0, client_id.1, region, offset, data);
        let counted = outcome_is_done(&outcome) && region != region::CONFIG && !data.is_empty();
        let after = self.accesses(client_id);
        assert_eq!(after, before.map(|(reads, writes)| (reads, writes + u64::from(counted))));
        outcome
    }

    /// Returns the numbers of trapped reads and of trapped writes counted so far.
    fn accesses(&self, client_id: ClientId) -> Option<(u64, u64)> {
        let counters = self.machine.attachment_counters(client_id.0, client_id.1)?;
        Some((counters.trapped_reads, counters.trapped_writes))
    }

    /// Makes one step, `elapsed` nanoseconds after the last one.
    pub fn step(&mut self, elapsed: u64, budget: u32) -> Next {
        self.now = self.now.after(elapsed);
        let next = self.machine.step(self.now, budget);

        while let Some(message) = self.machine.pop_outgoing() {
            self.messages.push(message);
        }

        self.check_bounds();
        next
    }

    /// Checks that bounded quantities are in their bounds.
    pub fn check_bounds(&mut self) {
        assert!(self.machine.fabric().packets_in_use() <= MANY_PACKETS);

        let mut counts = BTreeMap::new();
        for message in &self.messages {
            *counts.entry(owner(message)).or_insert(0) += 1;
        }

        // Reads and writes are counted separately. A reset makes room for new messages while the
        // old ones are still unanswered here.
        assert!(counts.values().all(|&count| count <= 2 * MAX_REMOTE), "{counts:?}");
    }

    /// Drops the unanswered DMA messages of a client whose attachment was reset.
    pub fn forget_messages(&mut self, client_id: ClientId) {
        self.messages.retain(|message| owner(message) != client_id);
    }

    /// Answers the oldest DMA message as its client.
    pub fn answer(&mut self, answer: Answer) {
        if self.messages.is_empty() {
            return;
        }

        // A client that is gone answers no message. The machine reports that, without other
        // effects.
        match (self.messages.remove(0), answer) {
            (Outgoing::DmaRead { id, function, attachment, length, .. }, answer) => {
                let data = match answer {
                    Answer::Good => Ok(vec![0x5a; length]),
                    Answer::Cut(bytes) => Ok(vec![0xa5; length.saturating_sub(bytes)]),
                    Answer::Wrong => Ok(vec![0; length + 1]),
                    Answer::Refused => Err(DmaError::Refused { errno: 14 }),
                };

                let result = data.as_ref().map(Vec::as_slice).map_err(|error| *error);
                let _ = self.machine.dma_read_done(function, attachment, id, result);

                // A second answer to the same message must be refused.
                let _ = self.machine.dma_read_done(function, attachment, id, result);
            }
            (Outgoing::DmaWrite { id, function, attachment, .. }, answer) => {
                let result = match answer {
                    Answer::Refused => Err(DmaError::Refused { errno: 14 }),
                    _ => Ok(()),
                };
                let _ = self.machine.dma_write_done(function, attachment, id, result);
                let _ = self.machine.dma_write_done(function, attachment, id, result);
            }
        }
    }

    /// Steps, answers DMA messages and lets time pass until the machine is at rest.
    pub fn step_until_idle(&mut self) {
        let mut idle_rounds = 0;
        for _ in 0..MANY_STEPS {
            let next = self.step(0, 64);
            let answered = !self.messages.is_empty();

            while !self.messages.is_empty() {
                self.answer(Answer::Good);
            }

            if next == Next::Now || answered {
                idle_rounds = 0;
                continue;
            }

            idle_rounds += 1;
            let event = match next {
                Next::At(time) => time,
                Next::Now | Next::Poll => self.machine.fabric().next_event(),
            };

            if event != Nanos::NEVER {
                self.now = self.now.max(event);
            } else if idle_rounds > 1 {
                return;
            }
        }

        panic!("the machine does not come to rest");
    }

    /// Detaches all clients and resets all functions. Checks that no state is left, and that all
    /// functions work.
    pub fn recover(&mut self) {
        for client_id in client_ids() {
            if self.is_attached(client_id) {
                self.detach(client_id, Ended::Evicted);
            }
        }

        for function in (0..FUNCTIONS).map(FunctionId) {
            self.machine.reset_function(function).unwrap();
        }

        self.messages.clear();
        self.step_until_idle();
        assert_eq!(self.machine.fabric().packets_in_use(), 0);

        self.check_tree(0, 0);
        self.check_fifo(AttachmentId(0));
        self.check_engine();
        self.check_send();
        self.check_ports();
    }

    /// Checks that a card with a loop-back plug sees its outputs at its inputs.
    fn check_ports(&mut self) {
        let client_id = (PORTS, AttachmentId(0));
        self.attach(client_id);
        let mut input = [0];
        let written = self.write(client_id, idio16::PORTS_BAR.into(), idio16::OUTPUTS_LOW, &[0x5a]);
        let read = self.read(client_id, idio16::PORTS_BAR.into(), idio16::INPUTS_LOW, &mut input);

        assert!(outcome_is_done(&written) && outcome_is_done(&read));
        assert_eq!(input, [0x5a]);

        self.detach(client_id, Ended::Closed);
    }

    /// Checks that packets of one channel pass between the I/O node and the last compute node,
    /// which is not its neighbour.
    pub fn check_tree(&mut self, attachment: u16, seed: u32) {
        let [io, compute] = [0, COMPUTE_NODES].map(|node| self.tree_client(node, attachment));
        self.step_until_idle();
        self.check_packets(&io, &compute, seed);
        for client in [io, compute] {
            self.detach(client.client_id, Ended::Closed);
        }
    }

    /// Checks that packets pass both ways between two nodes.
    pub fn check_packets(&mut self, first: &TreeClient, second: &TreeClient, seed: u32) {
        for (number, (from, to)) in [(first, second), (second, first)].into_iter().enumerate() {
            let payload = [(seed as u8).wrapping_add(number as u8 + 1); PAYLOAD];
            assert!(from.send(Header::point_to_point(0, to.node(), false), &payload));
            self.wake(from.client_id);
            self.step_until_idle();
            let received = to.receive().expect("the packet has come");
            self.wake(to.client_id);
            assert_eq!((received.0.target(), received.1), (to.node(), payload));
        }
    }

    /// Attaches a client to a tree NIC.
    pub fn tree_client(&mut self, node: u32, attachment: u16) -> TreeClient {
        let client_id = (FunctionId(node), AttachmentId(attachment));
        self.attach(client_id);
        self.tree_client_of(client_id)
    }

    /// Returns a client for an attachment that is already attached.
    pub fn tree_client_of(&self, client_id: ClientId) -> TreeClient {
        let memory = |bar: u8| self.memory(client_id, bar.into()).expect("a tree NIC has windows");
        TreeClient { client_id, window: memory(BAR_WINDOW), mirror: memory(BAR_MIRROR) }
    }

    /// Wakes the function, which may sleep, after a client's store.
    pub fn wake(&mut self, client_id: ClientId) {
        self.machine.wake(client_id.0);
    }

    /// Checks that a message comes back, and that a posted write has its effect.
    pub fn check_fifo(&mut self, attachment: AttachmentId) {
        let client_id = (FIFO, attachment);
        self.attach(client_id);
        let (send, receive) = (self.memory(client_id, 1).unwrap(), self.memory(client_id, 2).unwrap());
        send.write(slot_fifo::WIN_SEND + 8, &[7; slot_fifo::DATA]).unwrap();
        send.u64(slot_fifo::WIN_SEND).unwrap().store(1, Ordering::Release);
        self.wake(client_id);
        self.step_until_idle();

        let mut data = [0; slot_fifo::DATA];
        assert_eq!(receive.u64(slot_fifo::MIRROR_RECEIVE).unwrap().load(Ordering::Acquire), 1);

        receive.read(slot_fifo::MIRROR_RECEIVE + 8, &mut data).unwrap();
        assert_eq!(data, [7; slot_fifo::DATA]);

        let mut poster = Poster::new(self, client_id);
        poster.post_and_read_back(self, 1);
        poster.post_and_read_back(self, 0);
        self.detach(client_id, Ended::Closed);
    }

    /// Checks that the DMA engine copies between two pages.
    fn check_engine(&mut self) {
        let client_id = (ENGINE, AttachmentId(0));
        self.attach(client_id);
        self.enable_bus_master(client_id);

        let memory = SharedMemory::create("fuzz-clean", 4096).unwrap();
        memory.write(64, &[9; 64]).unwrap();
        let (function, attachment) = client_id;
        let backing = DmaBacking::Memory(memory.whole());

        self.machine.dma_map(function, attachment, 0, 4096, DmaPermission::READ_WRITE, backing).unwrap();
        // One element of the list: source, destination and length.
        for (offset, value) in [(0, 64_u64), (8, 128), (16, 64)] {
            memory.write(offset, &value.to_le_bytes()).unwrap();
        }

        assert!(outcome_is_done(&self.write(client_id, 0, dma_engine::REG_LIST, &0_u64.to_le_bytes())));
        assert!(outcome_is_done(&self.write(client_id, 0, dma_engine::REG_COUNT, &1_u32.to_le_bytes())));
        assert!(outcome_is_done(&self.write(client_id, 0, dma_engine::REG_START, &1_u32.to_le_bytes())));

        self.step_until_idle();
        let mut copied = [0; 64];
        memory.read(128, &mut copied).unwrap();

        assert_eq!(copied, [9; 64]);

        self.detach(client_id, Ended::Closed);
    }

    /// Checks that a message from attachment 0 reaches attachment 1.
    fn check_send(&mut self) {
        let [from, to] = [0, 1].map(|attachment| (SEND, AttachmentId(attachment)));
        self.attach(from);
        self.attach(to);

        let offset = 1 << addressed_send::SEND_TARGET_SHIFT;
        assert!(outcome_is_done(&self.write(from, addressed_send::SEND_BAR.into(), offset, b"message")));

        self.step_until_idle();
        let mailbox = self.memory(to, 2).unwrap();
        let number = mailbox.u64(addressed_send::MIRROR_MAILBOX).unwrap().load(Ordering::Acquire);

        assert_eq!(number, 1);

        self.detach(from, Ended::Closed);
        self.detach(to, Ended::Closed);
    }

    /// Binds every MSI-X vector of an attached client, and enables none.
    pub fn bind(&mut self, client_id: ClientId) {
        let vectors = self.machine.irq_info(client_id.0, client_id.1, MSIX).map_or(0, |info| info.count);
        let sinks = (0..vectors).map(|_| Some(Arc::new(Count::default()) as Arc<_>)).collect();
        self.machine.bind_interrupts(client_id.0, client_id.1, MSIX, 0, sinks).unwrap();
    }

    /// Enables bus mastering of a function, as its driver does.
    pub fn enable_bus_master(&mut self, client_id: ClientId) {
        let _ = self.write(client_id, region::CONFIG, 4, &6_u16.to_le_bytes());
    }
}

/// The result of an access.
pub type Outcome = Result<Access, AccessError>;

/// Returns whether the access was done, not stalled or refused.
pub fn outcome_is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Access::Done))
}

/// How a client answers a DMA message.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Correctly.
    Good,
    /// With this many bytes too few.
    Cut(usize),
    /// With one byte too many.
    Wrong,
    /// With an error.
    Refused,
}

/// Returns every attachment of every function.
pub fn client_ids() -> impl Iterator<Item = ClientId> {
    (0..FUNCTIONS).flat_map(|function| {
        let attachments = match function {
            0..TREE_NODES => 5,
            _ if FunctionId(function) == PORTS => 1,
            _ => 4,
        };
        (0..attachments).map(move |attachment| (FunctionId(function), AttachmentId(attachment)))
    })
}

/// Returns the client that must answer a message.
fn owner(message: &Outgoing) -> ClientId {
    match message {
        Outgoing::DmaRead { function, attachment, .. } | Outgoing::DmaWrite { function, attachment, .. } => {
            (*function, *attachment)
        }
    }
}

/// A well-behaved client that posts writes to the slot FIFO's `REG_HOLD`.
pub struct Poster {
    client_id: ClientId,
    mirror: SharedMemory,
    producer: Producer<SharedCells>,
}

impl Poster {
    /// Creates the client of an attachment that was just attached or reset.
    pub fn new(world: &World, client_id: ClientId) -> Self {
        let cells = world.memory(client_id, BAR_RING).unwrap();
        let cells = cells.window(0, u64::from(RING_CELLS) * nicforge_hwi::posted::CELL as u64).unwrap();
        let producer = Producer::new(SharedCells::new(cells).unwrap());
        Self { client_id, mirror: world.memory(client_id, 2).unwrap(), producer }
    }

    /// Posts a value and reads it back. The read is ordered after the write.
    pub fn post_and_read_back(&mut self, world: &mut World, value: u32) {
        let consumed = || self.mirror.u32(RING_HEAD).unwrap().load(Ordering::Acquire);
        self.producer.try_push(consumed, 0, slot_fifo::REG_HOLD as u32, &value.to_le_bytes()).unwrap();
        let mut bytes = [0; 4];
        assert!(outcome_is_done(&world.read(self.client_id, 0, slot_fifo::REG_HOLD, &mut bytes)));
        assert_eq!(u32::from_le_bytes(bytes), value);
    }
}

/// A client of a tree NIC that uses the slots.
pub struct TreeClient {
    /// Its function and attachment.
    pub client_id: ClientId,
    /// The channel's windows.
    pub window: SharedMemory,
    /// The channel's mirror.
    pub mirror: SharedMemory,
}

impl TreeClient {
    /// Returns the address of its node.
    pub fn node(&self) -> u32 {
        self.mirror_word(mirror::NODE_ADDRESS)
    }

    /// Loads a word of the mirror.
    fn mirror_word(&self, offset: u64) -> u32 {
        self.mirror.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Loads a word of the windows.
    fn window_word(&self, offset: u64) -> u32 {
        self.window.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Stores a word of the windows.
    pub fn store(&self, offset: u64, value: u32) {
        self.window.u32(offset).unwrap().store(value, Ordering::Release);
    }

    /// Writes a packet into the next send slot. Returns false if it is not free.
    pub fn send(&self, header: Header, payload: &[u8; PAYLOAD]) -> bool {
        let depth = self.mirror_word(mirror::SEND_DEPTH);
        let tail = self.window_word(window::SEND_TAIL);
        if tail.wrapping_sub(self.mirror_word(mirror::SEND_HEAD)) >= depth {
            return false;
        }

        let slot = window::SEND + u64::from(tail % depth) * SLOT;
        self.window.write(slot + SLOT_PAYLOAD, payload).unwrap();
        let control = u64::from(tail.wrapping_add(1)) | (u64::from(header.0) << 32);
        self.window.u64(slot + SLOT_CONTROL).unwrap().store(control, Ordering::Release);
        self.store(window::SEND_TAIL, tail.wrapping_add(1));

        true
    }

    /// Takes the next packet from the receive slots.
    pub fn receive(&self) -> Option<(Header, [u8; PAYLOAD])> {
        let depth = self.mirror_word(mirror::RECV_DEPTH);
        let number = self.window_word(window::RECV_HEAD);
        let slot = mirror::RECV + u64::from(number % depth) * SLOT;
        let control = self.mirror.u64(slot + SLOT_CONTROL).unwrap().load(Ordering::Acquire);
        if control as u32 != number.wrapping_add(1) {
            return None;
        }

        let mut payload = [0; PAYLOAD];
        self.mirror.read(slot + SLOT_PAYLOAD, &mut payload).unwrap();
        self.store(window::RECV_HEAD, number.wrapping_add(1));

        Some((Header((control >> 32) as u32), payload))
    }
}
