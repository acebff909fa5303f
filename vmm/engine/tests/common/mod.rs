//! A small device, an engine that serves it on a thread, and helpers for tests.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod neighbour;
pub mod raw;

use std::{
    io::{Read, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::{DmaAccess, DmaError, DmaLease},
    ids::{Address, AttachmentId, DmaToken, FunctionId},
    machine::Machine,
    panic::DeviceMethod,
    posted::Posted,
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
};
use nicforge_engine::{Engine, EngineConfig, EngineHandle, EngineSnapshot, EventLoopKind, Stop};
use nicforge_shm::{Access, SharedMemory};
use nicforge_vfio_user::{
    Client, ClientConfig, ClientError, DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap, Errno, GuestMemory, IrqAction,
    IrqPayload,
    wire::{Command, Header, VersionMessage, build_version},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

/// Longest wait in a test.
pub const LONG: Duration = Duration::from_secs(20);

/// The region of the configuration space, and the PCI command register in it with two of its bits.
pub const CONFIG_REGION: u32 = 7;
pub const COMMAND: u64 = 4;
pub const MEMORY_DECODE: u16 = 2;
pub const BUS_MASTER: u16 = 4;

/// Registers of the test device in BAR 0, 32 or 64 bits wide.
pub mod reg {
    /// Keeps the written value, for each attachment.
    pub const SCRATCH: u64 = 0x00;
    /// A write takes a credit, and stalls without one.
    pub const SEND: u64 = 0x08;
    /// A write adds credits, for all attachments.
    pub const CREDITS: u64 = 0x10;
    /// A write raises the MSI-X vector written.
    pub const RAISE: u64 = 0x18;
    /// Source of a copy by DMA.
    pub const SOURCE: u64 = 0x20;
    /// Target of a copy by DMA.
    pub const TARGET: u64 = 0x28;
    /// A write copies this many bytes, and raises vector 0 at the end.
    pub const COPY: u64 = 0x30;
    /// Reads as the number of copies that succeeded (low half) and failed (high half).
    pub const COPIED: u64 = 0x38;
    /// Value of [`COPIED`] after a single copy, which failed.
    pub const ONE_COPY_FAILED: u64 = 1 << 32;
    /// A write drives INTx.
    pub const LINE: u64 = 0x40;
    /// A write makes the device report work until 0 is written.
    pub const BUSY: u64 = 0x48;
    /// A write leases the page at the written address, and keeps the lease.
    pub const LEASE: u64 = 0x50;
    /// A write releases all leases.
    pub const RELEASE_LEASES: u64 = 0x58;
    /// A write makes the device keep the leases of a client that ends.
    pub const KEEP_LEASES: u64 = 0x70;
    /// A write makes the device panic when one of its methods is called next: that at this index of
    /// [`super::METHODS`].
    pub const PANIC_IN: u64 = 0x60;
    /// A write makes the drop of the device panic.
    pub const PANIC_IN_DROP: u64 = 0x68;
}

/// The methods that [`reg::PANIC_IN`] names.
pub const METHODS: [DeviceMethod; 10] = [
    DeviceMethod::Read,
    DeviceMethod::Write,
    DeviceMethod::Drain,
    DeviceMethod::Step,
    DeviceMethod::DmaDone,
    DeviceMethod::Attached,
    DeviceMethod::Detached,
    DeviceMethod::Reset,
    DeviceMethod::Counters,
    DeviceMethod::LeasesEnded,
];

/// Bytes of an attachment's windows.
const WINDOW: u64 = 0x1_0000;

/// The registers of one attachment.
#[derive(Clone, Copy, Default)]
struct AttachmentState {
    scratch: u32,
    source: u64,
    target: u64,
    copies_done: u32,
    copies_failed: u32,
}

/// Two attachments, credits shared between them, and a DMA engine for each.
#[derive(Default)]
pub struct TestDevice {
    attachments: [AttachmentState; 2],
    leases: [Vec<DmaLease>; 2],
    keeps_leases: bool,
    credits: u64,
    busy: bool,
    sent: u64,
    closed: u64,
    evicted: u64,
    resets: u64,
    panics_in: Option<DeviceMethod>,
    panics_in_drop: bool,
}

impl TestDevice {
    /// Panics if the test asked for it.
    fn panic_if_requested(&self, method: DeviceMethod) {
        assert!(self.panics_in != Some(method), "broken in {}", method.name());
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        assert!(!self.panics_in_drop, "broken in drop");
    }
}

impl Device for TestDevice {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1efc,
            device: 0x7e57,
            subsystem_vendor: 0,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 1,
        };
        let attachments = ["a", "b"].map(|name| AttachmentSpec { name: name.to_owned(), group: 0 }).to_vec();
        FunctionSpec::nic(
            identity,
            attachments,
            NicSizes {
                register_bytes: 0x1000,
                vectors: 4,
                ring_cells: 64,
                window_bytes: WINDOW,
                ..NicSizes::default()
            },
        )
    }

    fn read(&mut self, _: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.panic_if_requested(DeviceMethod::Read);
        let state = &self.attachments[usize::from(from.0)];
        let value = match at.offset {
            reg::SCRATCH => u64::from(state.scratch),
            reg::COPIED => u64::from(state.copies_failed) << 32 | u64::from(state.copies_done),
            _ => return,
        };
        let length = data.len().min(8);
        data[..length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        self.panic_if_requested(DeviceMethod::Write);
        let state = &mut self.attachments[usize::from(from.0)];
        let mut bytes = [0; 8];
        let length = data.len().min(8);
        bytes[..length].copy_from_slice(&data[..length]);
        let value = u64::from_le_bytes(bytes);

        match at.offset {
            reg::SCRATCH => state.scratch = value as u32,
            reg::SEND if self.credits == 0 => return Write::Stalled,
            reg::SEND => {
                self.credits -= 1;
                self.sent += 1;
            }
            reg::CREDITS => self.credits += value,
            reg::RAISE => context.interrupt(from, value as u16),
            reg::SOURCE => state.source = value,
            reg::TARGET => state.target = value,
            reg::COPY => {
                let started = context.dma_read(from, state.source, value as usize, DmaToken(state.target));
                state.copies_failed += u32::from(started.is_err());
            }
            reg::BUSY => self.busy = value != 0,
            reg::LEASE => self.leases[usize::from(from.0)].extend(context.dma_lease(
                from,
                value,
                0x1000,
                DmaAccess::Write,
            )),
            reg::RELEASE_LEASES => self.leases[usize::from(from.0)].clear(),
            reg::KEEP_LEASES => self.keeps_leases = true,
            reg::LINE => context.set_intx(from, value != 0),
            reg::PANIC_IN => self.panics_in = Some(METHODS[value as usize]),
            reg::PANIC_IN_DROP => self.panics_in_drop = true,
            _ => {}
        }
        Write::Accepted
    }

    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        self.panic_if_requested(DeviceMethod::Drain);
        while let Some((at, data)) = posted.next(context) {
            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);
        }
        Write::Accepted
    }

    fn attached(&mut self, _: &mut Context<'_>, _: AttachmentId) {
        self.panic_if_requested(DeviceMethod::Attached);
    }

    fn detached(&mut self, _: &mut Context<'_>, _: AttachmentId, why: Ended) {
        self.panic_if_requested(DeviceMethod::Detached);
        match why {
            Ended::Closed => self.closed += 1,
            Ended::Evicted => self.evicted += 1,
        }
    }

    fn reset(&mut self, _: &mut Context<'_>, reach: Reset) {
        self.panic_if_requested(DeviceMethod::Reset);
        self.resets += 1;
        match reach {
            Reset::Attachment(attachment) => {
                self.attachments[usize::from(attachment.0)] = AttachmentState::default();
                if !self.keeps_leases {
                    self.leases[usize::from(attachment.0)].clear();
                }
            }
            Reset::Function => {
                self.attachments = Default::default();
                self.leases = Default::default();
            }
        }
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.panic_if_requested(DeviceMethod::DmaDone);
        let done = match result {
            Ok(data) => context.dma_write(attachment, token.0, data),
            Err(error) => Err(error),
        };

        let state = &mut self.attachments[usize::from(attachment.0)];
        match done {
            Ok(()) => state.copies_done += 1,
            Err(_) => state.copies_failed += 1,
        }
        context.interrupt(attachment, 0);
    }

    fn leases_ended(&mut self, _: &mut Context<'_>, _: AttachmentId) {
        self.panic_if_requested(DeviceMethod::LeasesEnded);
    }

    fn step(&mut self, _: &mut Context<'_>, _: u32) -> Progress {
        self.panic_if_requested(DeviceMethod::Step);
        if self.busy { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        self.panic_if_requested(DeviceMethod::Counters);
        vec![
            Counter { name: "sent", value: self.sent },
            Counter { name: "closed", value: self.closed },
            Counter { name: "evicted", value: self.evicted },
            Counter { name: "resets", value: self.resets },
        ]
    }
}

pub const FUNCTION: FunctionId = FunctionId(0);
pub const A: AttachmentId = AttachmentId(0);
pub const B: AttachmentId = AttachmentId(1);

/// A machine of test devices that an engine on a thread of its own serves.
pub struct Served {
    pub handle: EngineHandle,
    pub stop: Stop,
    pub dir: tempfile::TempDir,
    pub event_loop: &'static str,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(config: EngineConfig) -> Self {
        Self::start_nodes(config, 1)
    }

    /// Serves a machine of several nodes, each with attachments [`A`] and [`B`].
    pub fn start_nodes(config: EngineConfig, nodes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = Machine::new();
        for node in 0..nodes {
            machine.add_function(&format!("node{node}"), Box::<TestDevice>::default()).unwrap();
        }

        let mut engine = Engine::new(machine, config).unwrap();
        for node in 0..nodes {
            for attachment in [A, B] {
                engine.listen(FunctionId(node), attachment, socket_in(dir.path(), node, attachment)).unwrap();
            }
        }

        let (stop, handle, event_loop) = (Stop::new().unwrap(), engine.handle(), engine.event_loop_name());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || engine.run(&stopped).unwrap());
        Self { handle, stop, dir, event_loop, thread: Some(thread) }
    }

    pub fn path(&self, attachment: AttachmentId) -> PathBuf {
        self.path_of(0, attachment)
    }

    pub fn path_of(&self, node: u32, attachment: AttachmentId) -> PathBuf {
        socket_in(self.dir.path(), node, attachment)
    }

    pub fn client(&self, attachment: AttachmentId) -> Client {
        Client::connect(self.path(attachment), LONG).unwrap()
    }

    pub fn client_with_memory(&self, attachment: AttachmentId, memory: Arc<dyn GuestMemory>) -> Client {
        let config = ClientConfig { timeout: LONG, memory: Some(memory), ..ClientConfig::default() };
        Client::connect_with(self.path(attachment), config).unwrap()
    }

    pub fn snapshot(&self) -> EngineSnapshot {
        self.handle.snapshot(LONG).unwrap()
    }

    /// Takes snapshots until `wanted` returns true for one, and returns that one.
    pub fn wait_until(
        &self,
        description: &str,
        mut wanted: impl FnMut(&EngineSnapshot) -> bool,
    ) -> EngineSnapshot {
        let deadline = Instant::now() + LONG;
        loop {
            let snapshot = self.snapshot();
            if wanted(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "not in time: {description}; {snapshot:#?}");
            std::thread::yield_now();
        }
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.snapshot(), name)
    }

    /// Waits until `attachment` has no client.
    pub fn wait_until_free(&self, attachment: AttachmentId) -> EngineSnapshot {
        self.wait_until("the attachment is free", |snapshot| client_of(snapshot, attachment).is_none())
    }
}

/// Asserts that the client soon notices the end of its connection.
#[track_caller]
pub fn assert_ended(client: &Client) {
    let deadline = Instant::now() + LONG;
    while client.is_alive() {
        assert!(Instant::now() < deadline, "the connection has not ended");
        std::thread::yield_now();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

pub fn client_of(
    snapshot: &EngineSnapshot,
    attachment: AttachmentId,
) -> Option<nicforge_engine::ClientSnapshot> {
    snapshot.functions[0].attachments[usize::from(attachment.0)].client
}

pub fn server_of(snapshot: &EngineSnapshot, attachment: AttachmentId) -> nicforge_engine::ServerCounters {
    snapshot.functions[0].attachments[usize::from(attachment.0)].server
}

pub fn counter(snapshot: &EngineSnapshot, name: &str) -> u64 {
    snapshot.functions[0].counters.iter().find(|counter| counter.name == name).unwrap().value
}

fn socket_in(dir: &Path, node: u32, attachment: AttachmentId) -> PathBuf {
    dir.join(format!("node{node}-{}.sock", attachment.0))
}

/// Returns a configuration with this event loop; `None` where it does not work.
pub fn config(event_loop: EventLoopKind) -> Option<EngineConfig> {
    let config = EngineConfig { event_loop, ..EngineConfig::default() };
    match Engine::new(Machine::new(), config) {
        Ok(_) => Some(config),
        Err(error) => {
            eprintln!("passed over: {error}");
            None
        }
    }
}

pub fn read32(client: &Client, offset: u64) -> u32 {
    let mut data = [0; 4];
    client.region_read(0, offset, &mut data).unwrap();
    u32::from_le_bytes(data)
}

pub fn read64(client: &Client, offset: u64) -> u64 {
    let mut data = [0; 8];
    client.region_read(0, offset, &mut data).unwrap();
    u64::from_le_bytes(data)
}

pub fn write32(client: &Client, offset: u64, value: u32) {
    client.region_write(0, offset, &value.to_le_bytes(), false).unwrap();
}

pub fn write64(client: &Client, offset: u64, value: u64) {
    client.region_write(0, offset, &value.to_le_bytes(), false).unwrap();
}

/// Starts a copy by DMA.
pub fn copy(client: &Client, source: u64, target: u64, length: u32) -> Result<(), ClientError> {
    for (offset, value) in [(reg::SOURCE, source), (reg::TARGET, target)] {
        client.region_write(0, offset, &value.to_le_bytes(), false)?;
    }
    client.region_write(0, reg::COPY, &length.to_le_bytes(), false)
}

/// Enables memory decode and bus mastering.
pub fn enable(client: &Client) {
    let command = (MEMORY_DECODE | BUS_MASTER).to_le_bytes();
    client.region_write(CONFIG_REGION, COMMAND, &command, false).unwrap();
}

pub fn eventfd() -> EventFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
}

/// Makes an eventfd and binds it to interrupt `vector` of type `index`.
pub fn bind(client: &Client, index: u32, vector: u32) -> EventFd {
    let fd = eventfd();
    client.set_irqs(index, vector, IrqAction::Trigger, IrqPayload::EventFd(&[Some(fd.as_fd())])).unwrap();
    fd
}

/// Waits for a signal of the eventfd, clears its count and returns it.
pub fn wait_for(fd: &EventFd) -> u64 {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::try_from(LONG).unwrap()).unwrap();
    assert_eq!(ready, 1, "no interrupt came");
    fd.read().unwrap()
}

pub fn is_unsignalled(fd: &EventFd) -> bool {
    fd.read().is_err()
}

pub fn memory(len: usize) -> SharedMemory {
    SharedMemory::create("client", len).unwrap()
}

/// Returns a range of read-write memory.
pub fn range(address: u64, offset: u64, size: u64) -> DmaMap {
    DmaMap { flags: DMA_FLAG_READ | DMA_FLAG_WRITE, offset, address, size }
}

/// Maps the file behind a BAR.
pub fn map_bar(client: &Client, bar: u32, access: Access) -> SharedMemory {
    let info = client.region_info(bar).unwrap();
    let fd: OwnedFd = info.fd.unwrap();
    SharedMemory::map(fd.as_fd(), info.offset, info.size as usize, access).unwrap()
}

/// Returns a stream on which the version was negotiated.
pub fn negotiated(path: &Path) -> UnixStream {
    let mut raw = UnixStream::connect(path).unwrap();
    raw.set_read_timeout(Some(LONG)).unwrap();

    let version = VersionMessage { major: 0, minor: 0, has_json: false, capabilities: None };
    let payload = build_version(&version);
    raw.write_all(&Header::request(1, Command::Version, payload.len(), false).to_bytes()).unwrap();
    raw.write_all(&payload).unwrap();

    let mut header = [0; 16];
    raw.read_exact(&mut header).unwrap();
    let mut rest = vec![0; Header::parse(&header).unwrap().size as usize - 16];
    raw.read_exact(&mut rest).unwrap();
    raw
}

/// Client memory that is accessed by DMA messages.
pub struct UnmappedMemory(pub std::sync::Mutex<Vec<u8>>);

impl GuestMemory for UnmappedMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        let memory = self.0.lock().unwrap();
        let start = address as usize;
        data.copy_from_slice(memory.get(start..start + data.len()).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        let mut memory = self.0.lock().unwrap();
        let start = address as usize;
        memory.get_mut(start..start + data.len()).ok_or(Errno::EFAULT)?.copy_from_slice(data);
        Ok(())
    }
}

/// The guard of tests that need none: see [`both_loops`].
pub struct NoGuard;

impl NoGuard {
    pub fn hold() -> Self {
        Self
    }
}

/// Makes two tests from one body: with io_uring (where it works) and with epoll. With `holding f;`
/// in front, each test keeps the result of `f()` from its start to its end.
#[macro_export]
macro_rules! both_loops {
    ($(fn $name:ident($config:ident) $body:block)*) => {
        $crate::both_loops! { holding $crate::common::NoGuard::hold; $(fn $name($config) $body)* }
    };
    (holding $guard:path; $(fn $name:ident($config:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn body(#[allow(unused_mut)] mut $config: nicforge_engine::EngineConfig) $body

            #[test]
            fn with_io_uring() {
                let _guard = $guard();
                if let Some(config) = $crate::common::config(nicforge_engine::EventLoopKind::IoUring) {
                    body(config);
                }
            }

            #[test]
            fn with_epoll() {
                let _guard = $guard();
                body($crate::common::config(nicforge_engine::EventLoopKind::Epoll).unwrap());
            }
        }
    )*};
}
