//! A device that records its calls and runs a test's actions, and the test kit for a machine with
//! it as function 0.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
};

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    ids::{Address, AttachmentId, DmaToken, FunctionId},
    machine::{Access, AccessError, Machine, Next},
    spec::{Area, AreaKind, AttachmentSpec, BarKind, BarSpec, FunctionSpec, Identity, NicSizes, Scope},
    time::Nanos,
};
use nicforge_hwi::attachment::{control, mirror};
use nicforge_shm::SharedMemory;
use nicforge_test_kit::Client;
pub use nicforge_test_kit::{
    InterruptCount as Count, PostedRing as Ring, message_id as id_of, take_messages as outgoing,
};

/// The first function of a machine, and its attachments.
pub const F: FunctionId = FunctionId(0);
pub const A: AttachmentId = AttachmentId(0);
pub const B: AttachmentId = AttachmentId(1);
pub const C: AttachmentId = AttachmentId(2);

/// Offsets in BAR 0 of [`spec`].
pub const CONTROL: u64 = 0x1000;
pub const MSIX_TABLE: u64 = 0x2000;
pub const PENDING_BITS: u64 = 0x3000;
/// Offset of the windows in BAR 1, which has the ring before them.
pub const WINDOWS: u64 = 0x1_0000;
/// Number of cells of the ring, and of interrupt vectors.
pub const RING_CELLS: u32 = 64;
pub const VECTORS: u16 = 4;
/// BAR of the group's memory, and BAR with an area between registers.
pub const BAR_GROUP: u32 = 3;
pub const BAR_MIXED: u32 = 4;

/// Returns a description with registers, a ring, windows, a mirror, memory of the group, and a BAR
/// of which a part is memory. Attachments 0 and 1 are one group, 2 is another.
pub fn spec() -> FunctionSpec {
    let identity = Identity {
        vendor: 0x1234,
        device: 0x5678,
        subsystem_vendor: 0x1234,
        subsystem: 1,
        class: 0x02_80_00,
        revision: 1,
    };

    let attachments = [("a", 0), ("b", 0), ("c", 1)]
        .map(|(name, group)| AttachmentSpec { name: name.to_owned(), group })
        .to_vec();
    let mut spec = FunctionSpec::nic(
        identity,
        attachments,
        NicSizes {
            register_bytes: 0x1000,
            vectors: VECTORS,
            ring_cells: RING_CELLS,
            window_bytes: 0x1_0000,
            mirror_bytes: 0x1000,
        },
    );
    spec.bars[3] = Some(BarSpec::memory(0x1000, AreaKind::Mapped, Scope::Group));
    spec.bars[4] = Some(BarSpec {
        size: 0x4000,
        kind: BarKind::Memory32,
        scope: Scope::Attachment,
        areas: vec![Area { offset: 0x1000, length: 0x1000, kind: AreaKind::Mapped }],
    });

    spec
}

/// A call that the device received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Attached(AttachmentId),
    Detached(AttachmentId, Ended),
    Reset(Reset),
    Read(AttachmentId, Address, usize),
    Write(AttachmentId, Address, Vec<u8>),
    Done(AttachmentId, DmaToken, Result<Vec<u8>, DmaError>),
    Step(Nanos),
}

type Action = Box<dyn FnOnce(&mut Context<'_>) + Send>;

/// State that a test shares with its device.
#[derive(Default)]
pub struct Script {
    pub calls: Vec<Call>,
    /// Actions that the device carries out in its next step, or in the next write of its registers.
    pub actions: VecDeque<Action>,
    /// Attachments whose writes stall.
    pub stalled: Vec<AttachmentId>,
    /// Result of steps: busy, or idle.
    pub busy: bool,
    /// The device panics when a DMA read ends.
    pub panics_in_done: bool,
    /// The machine may leave the function's clients asleep. It reads this when it adds the device.
    pub lets_clients_sleep: bool,
}

/// A test's access to its device.
#[derive(Clone, Default)]
pub struct Probe(Arc<Mutex<Script>>);

impl Probe {
    /// Locks the shared state.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    /// Adds an action for the device's next step or register write.
    pub fn queue_action(&self, action: impl FnOnce(&mut Context<'_>) + Send + 'static) {
        self.script().actions.push_back(Box::new(action));
    }

    /// Takes the calls since the last query of any kind, and returns those that are not steps.
    pub fn calls(&self) -> Vec<Call> {
        let calls = std::mem::take(&mut self.script().calls);
        calls.into_iter().filter(|call| !matches!(call, Call::Step(_))).collect()
    }

    /// Takes the calls since the last query of any kind, and returns the number of steps.
    pub fn steps(&self) -> usize {
        let calls = std::mem::take(&mut self.script().calls);
        calls.iter().filter(|call| matches!(call, Call::Step(_))).count()
    }

    /// Takes the calls since the last query of any kind, and returns the data of accepted writes.
    pub fn written(&self) -> Vec<Vec<u8>> {
        let write = |call| if let Call::Write(_, _, data) = call { Some(data) } else { None };
        self.calls().into_iter().filter_map(write).collect()
    }

    /// Takes the calls since the last query of any kind, and returns the DMA reads that ended, by
    /// their tokens.
    pub fn done(&self) -> Vec<(u64, Result<Vec<u8>, DmaError>)> {
        let done =
            |call| if let Call::Done(_, token, result) = call { Some((token.0, result)) } else { None };
        self.calls().into_iter().filter_map(done).collect()
    }
}

struct ProbeDevice {
    spec: FunctionSpec,
    probe: Probe,
}

impl ProbeDevice {
    fn note(&self, call: Call) {
        self.probe.script().calls.push(call);
    }

    fn act(&self, context: &mut Context<'_>) {
        let actions = std::mem::take(&mut self.probe.script().actions);
        for action in actions {
            action(context);
        }
    }
}

impl Device for ProbeDevice {
    fn spec(&self) -> FunctionSpec {
        self.spec.clone()
    }

    fn lets_clients_sleep(&self) -> bool {
        self.probe.script().lets_clients_sleep
    }

    /// Returns the low byte of the offset for each byte.
    fn read(&mut self, _: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.note(Call::Read(from, at, data.len()));
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = (at.offset as usize + index) as u8;
        }
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        if self.probe.script().stalled.contains(&from) {
            return Write::Stalled;
        }
        self.note(Call::Write(from, at, data.to_vec()));
        self.act(context);
        Write::Accepted
    }

    fn attached(&mut self, _: &mut Context<'_>, attachment_id: AttachmentId) {
        self.note(Call::Attached(attachment_id));
    }

    fn detached(&mut self, _: &mut Context<'_>, attachment_id: AttachmentId, why: Ended) {
        self.note(Call::Detached(attachment_id, why));
    }

    fn reset(&mut self, _: &mut Context<'_>, reach: Reset) {
        self.note(Call::Reset(reach));
    }

    fn dma_done(
        &mut self,
        _: &mut Context<'_>,
        attachment_id: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let panics = self.probe.script().panics_in_done;
        assert!(!panics, "broken");
        self.note(Call::Done(attachment_id, token, result.map(<[u8]>::to_vec)));
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        self.note(Call::Step(context.now()));
        self.act(context);
        if self.probe.script().busy { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "probes", value: 1 }]
    }
}

/// Adds a device with this description.
pub fn add(machine: &mut Machine, name: &str, spec: FunctionSpec) -> (FunctionId, Probe) {
    let probe = Probe::default();
    (add_with(machine, name, spec, &probe), probe)
}

/// Adds a device with this description, which shares a probe's state.
pub fn add_with(machine: &mut Machine, name: &str, spec: FunctionSpec, probe: &Probe) -> FunctionId {
    let device = ProbeDevice { spec, probe: probe.clone() };
    machine.add_function(name, Box::new(device)).unwrap()
}

/// Returns a machine of one function without clients.
pub fn machine() -> (Machine, Probe) {
    let mut machine = Machine::new();
    let (_, probe) = add(&mut machine, "node0", spec());
    (machine, probe)
}

/// Returns a machine of one function whose first attachment has a client that may start DMA.
pub fn attached() -> (Machine, Probe) {
    let (mut machine, probe) = machine();
    attach(&mut machine, A);
    probe.calls();
    (machine, probe)
}

/// Attaches a client to the first function, and permits DMA.
#[track_caller]
pub fn attach(machine: &mut Machine, attachment_id: AttachmentId) {
    Client::attach(machine, F, attachment_id);
}

/// Permits DMA of a client of the first function, for example after a reset.
pub fn set_bus_master(machine: &mut Machine, attachment_id: AttachmentId) {
    client(attachment_id).enable_bus_master(machine);
}

/// Returns the first function's client of this attachment.
pub const fn client(attachment_id: AttachmentId) -> Client {
    Client::new(F, attachment_id)
}

/// Writes, and checks that the write was carried out.
#[track_caller]
pub fn write(machine: &mut Machine, attachment_id: AttachmentId, region: u32, offset: u64, data: &[u8]) {
    client(attachment_id).write(machine, region, offset, data);
}

/// Reads `N` bytes, and checks that the read was carried out.
#[track_caller]
pub fn read<const N: usize>(
    machine: &mut Machine,
    attachment_id: AttachmentId,
    region: u32,
    offset: u64,
) -> [u8; N] {
    client(attachment_id).read(machine, region, offset)
}

/// Reads `length` bytes as the client of the first attachment, and returns only the outcome.
pub fn try_read(
    machine: &mut Machine,
    region: u32,
    offset: u64,
    length: usize,
) -> Result<Access, AccessError> {
    client(A).try_read(machine, region, offset, &mut vec![0; length])
}

/// Reads a register of the control page.
#[track_caller]
pub fn read_control(machine: &mut Machine, attachment_id: AttachmentId, register: u64) -> u32 {
    client(attachment_id).read32(machine, 0, CONTROL + register)
}

/// Writes a register of the control page.
#[track_caller]
pub fn write_control(machine: &mut Machine, attachment_id: AttachmentId, register: u64, value: u32) {
    client(attachment_id).write32(machine, 0, CONTROL + register, value);
}

/// Returns the memory behind a BAR, as a client sees it.
#[track_caller]
pub fn memory(machine: &Machine, attachment_id: AttachmentId, bar: u32) -> SharedMemory {
    client(attachment_id).memory(machine, bar)
}

/// Returns a word of a client's mirror.
pub fn mirror_word(memory: &SharedMemory, offset: u64) -> u32 {
    memory.u32(offset).unwrap().load(Ordering::Acquire)
}

/// Returns whether a client's mirror says that the machine does not poll its memory.
pub fn is_sleeping(memory: &SharedMemory) -> bool {
    mirror_word(memory, mirror::SLEEPING) != 0
}

/// Numbers in a ring, for [`numbers`].
pub trait PushNumber {
    /// Posts this number to a register of the device.
    fn push_number(&mut self, number: u32);
}

impl PushNumber for Ring {
    fn push_number(&mut self, number: u32) {
        self.push32(0, 0x10, number);
    }
}

/// Returns the numbers of [`PushNumber::push_number`] that the device took since the last query.
pub fn numbers(probe: &Probe) -> Vec<u32> {
    let number = |data: Vec<u8>| u32::from_le_bytes(data.try_into().unwrap());
    probe.written().into_iter().map(number).collect()
}

/// Maps client memory at `iova` that the device reaches directly.
#[track_caller]
pub fn map_local(
    machine: &mut Machine,
    attachment_id: AttachmentId,
    iova: u64,
    length: usize,
) -> SharedMemory {
    client(attachment_id).map(machine, iova, length)
}

/// Maps client memory that the device reaches by messages.
#[track_caller]
pub fn map_remote(machine: &mut Machine, attachment_id: AttachmentId, iova: u64, length: u64) {
    client(attachment_id).map_remote(machine, iova, length);
}

/// Binds one interrupt of an index.
#[track_caller]
pub fn bind(machine: &mut Machine, attachment_id: AttachmentId, index: u32, vector: u32) -> Arc<Count> {
    client(attachment_id).bind(machine, index, vector)
}

/// Steps at one time until the machine has nothing to do at once. Returns the result of the last
/// step.
#[track_caller]
pub fn step_until_idle(machine: &mut Machine, now: u64) -> Next {
    nicforge_test_kit::settle(machine, Nanos(now))
}

/// Steps the machine until all functions are cold: their memory is no longer polled. Returns the
/// time at which they are.
pub fn go_cold(machine: &mut Machine, now: u64) -> u64 {
    step_until_idle(machine, now);
    let later = now + 1_000_000;
    step_until_idle(machine, later);
    assert_eq!(machine.hot_functions(), 0);
    later
}

pub const GENERATION: u64 = control::GENERATION;
