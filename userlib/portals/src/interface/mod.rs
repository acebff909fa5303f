//! A network interface: the calls of Portals for one process.

mod messages;

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device, HugePages, Waiter, runtime};
use nicforge_hwi::seastar::{
    Command, MAX_EVENTS, MAX_PIECES, MAX_RANGES, NO_HANDLE, code, command, option, status,
};

use crate::{
    Access, Criteria, Descriptor, DescriptorId, Error, Event, EventQueue, Kernel, KernelConfig, MatchEntry,
    Mode, Position, ProcessId, Refusal, Region, Status, Unlink,
    link::{Link, Path},
    mailbox::{Mailbox, Place},
    queue::{self, EVENT_BYTES, QueueMemory},
    region::Pieces,
};

/// Bytes of a region that event queues share.
const QUEUE_CHUNK: u64 = 64 << 10;
/// Address of the first scattered region. Device addresses lie below.
const SCATTERED: u64 = 1 << 60;
/// Time between two looks for the grant of another program's kernel.
const GRANT_LOOK: Duration = Duration::from_millis(1);
/// Length of the shortest piece of a scattered region.
const LEAST_PIECE: u64 = 4096;

/// A memory descriptor that this process has made (`ptl_handle_md_t`).
///
/// It remembers its memory, so that short messages need no access of the card to it. Dropping it
/// unlinks nothing: [`Interface::unlink_descriptor`].
#[derive(Clone, Debug)]
pub struct MemoryDescriptor {
    id: DescriptorId,
    region: Region,
    offset: u64,
    length: u64,
}

impl MemoryDescriptor {
    fn new(id: u64, values: &Descriptor<'_>) -> Self {
        let Descriptor { region, offset, length, .. } = *values;
        Self { id: DescriptorId(id as u32), region: region.clone(), offset, length }
    }

    /// Returns the name by which events mention it.
    pub fn id(&self) -> DescriptorId {
        self.id
    }

    /// Returns the region that its memory lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the length of its memory.
    #[allow(clippy::len_without_is_empty, reason = "it is the length of its memory")]
    pub fn len(&self) -> u64 {
        self.length
    }
}

/// The memory of an interface.
#[derive(Default)]
struct Memory {
    regions: Vec<Region>,
    /// The region whose rest is free for event queues, and the bytes in use.
    queues: Option<(Region, u64)>,
    /// Bytes of addresses that scattered regions take.
    scattered: u64,
}

/// A process's interface to the network (`ptl_handle_ni_t`). Threads may share it.
///
/// Dropping it ends the process's use of the network: its messages in flight fail.
pub struct Interface {
    link: Arc<Link>,
    id: ProcessId,
    nodes: u32,
    memory: Mutex<Memory>,
}

impl Interface {
    /// Initialises the interface of the process whose attachment `device` is (`PtlNIInit`).
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] if it is no process's attachment, or of another node than `kernel`.
    /// - [`Refusal::Process`] if the process has an interface.
    /// - [`Refusal::NoSpace`] if the card has no room for another process.
    /// - [`Error::is_gone`] names those of a lost card or node.
    pub fn open(kernel: &Arc<Kernel>, device: Device, mode: Mode) -> Result<Self, Error> {
        let (mailbox, place) = Mailbox::open(&device, kernel.timeout())?;
        let wrong = |found: String| Error::WrongDevice { wanted: "a process of this kernel's node", found };
        let process = place.process.ok_or_else(|| wrong("the kernel's attachment".to_owned()))?;
        if place.node != kernel.node() {
            return Err(wrong(format!("a process of node {}", place.node)));
        }

        let life = mailbox.life().clone();
        let path = match mode {
            Mode::NicBased => {
                kernel.start(process)?;
                Path::Mailbox(Mutex::new(mailbox), Some(kernel.clone()))
            }
            Mode::HostBased => Path::Kernel(kernel.clone(), kernel.start_host_based(process)?),
        };
        Ok(Self::new(Link::new(process, life, path), place))
    }

    /// Initialises the interface of a process whose node's kernel is in another program, which has
    /// [granted](Kernel::grant) the process. The mode is NIC-based. The call waits for the grant
    /// until `deadline`.
    ///
    /// The process ends when its device is closed: when the interface and all that was made from it
    /// or from the device is dropped. When the kernel's program ends, calls are refused with
    /// [`Refusal::Interface`]; waits then end by their deadlines.
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] if `device` is no process's attachment.
    /// - [`Refusal::Interface`] if the process is not granted until the deadline.
    /// - [`Error::is_gone`] names those of a lost card or node.
    pub fn attach(device: Device, deadline: Deadline) -> Result<Self, Error> {
        let (mut mailbox, place) = Mailbox::open(&device, KernelConfig::default().timeout)?;
        let wrong = || Error::WrongDevice {
            wanted: "a process's attachment",
            found: "the kernel's attachment".to_owned(),
        };
        let process = place.process.ok_or_else(wrong)?;

        let waiter = Waiter::new(&device, deadline, None);
        let probe = Command { kind: command::STATUS, handle: status::DROP_COUNT, ..Command::default() };
        while mailbox.call(&probe)?.code != code::OK {
            if waiter.check().is_err() {
                return Err(Error::Refused { call: "PtlNIInit", reason: Refusal::Interface });
            }
            runtime::sleep(GRANT_LOOK);
        }

        let life = mailbox.life().clone();
        let path = Path::Mailbox(Mutex::new(mailbox), None);
        Ok(Self::new(Link::new(process, life, path), place))
    }

    fn new(link: Arc<Link>, place: Place) -> Self {
        let id = ProcessId { node: place.node, process: link.process };
        Self { link, id, nodes: place.nodes, memory: Mutex::default() }
    }

    /// Returns the name of the process (`PtlGetId`).
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns the number of nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns where the messages of the process are matched.
    pub fn mode(&self) -> Mode {
        if self.link.is_host_based() { Mode::HostBased } else { Mode::NicBased }
    }

    /// Returns the device of the process.
    pub fn device(&self) -> &Device {
        self.link.device()
    }

    /// Returns how far another process is (`PtlNIDist`): 0 for this process, 1 for another one of
    /// this node, and 2 for one of another node. The card knows nothing closer about the torus.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`].
    pub fn distance(&self, process: ProcessId) -> Result<u32, Error> {
        self.check_node(process.node)?;
        Ok(match process {
            same if same == self.id => 0,
            ProcessId { node, .. } if node == self.id.node => 1,
            _ => 2,
        })
    }

    /// Returns the value of a status register (`PtlNIStatus`).
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn status(&self, register: Status) -> Result<u64, Error> {
        let handle = match register {
            Status::DropCount => status::DROP_COUNT,
            Status::PermissionViolations => status::PERMISSION_VIOLATIONS,
        };
        let read = Command { kind: command::STATUS, handle, ..Command::default() };
        Ok(self.link.call("PtlNIStatus", &read)?.value)
    }

    /// Handles what has arrived for processes in host-based mode. Calls that take events do so too.
    /// In NIC-based mode the card needs no such call.
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn progress(&self) -> Result<(), Error> {
        self.link.progress()
    }
}

/// Memory.
impl Interface {
    /// Allocates a region of `length` bytes, rounded up to whole pages. Its memory is zero.
    ///
    /// # Errors
    /// [`Error::TooManyRegions`] in NIC-based mode; [`Error::Driver`].
    pub fn allocate(&self, length: u64) -> Result<Region, Error> {
        self.allocate_in(&mut runtime::lock(&self.memory), length)
    }

    fn allocate_in(&self, memory: &mut Memory, length: u64) -> Result<Region, Error> {
        if !self.link.is_host_based() && memory.regions.len() >= MAX_RANGES {
            return Err(Error::TooManyRegions);
        }

        let length = usize::try_from(length.max(1)).unwrap_or(usize::MAX);
        let buffer = self.link.device().dma_buffer(length, HugePages::Try)?;
        let (base, length) = (buffer.iova(), buffer.len());
        let pieces = Pieces { base, length, piece: length, buffers: vec![buffer] };
        self.register(memory, pieces)
    }

    /// Allocates a region of pieces of `piece` bytes each, in host-based mode: as the memory of a
    /// Linux process, which is not physically contiguous. A message may have at most
    /// [`MAX_PIECES`] of them.
    ///
    /// # Errors
    /// [`Error::BadPieces`]; [`Error::Driver`].
    pub fn allocate_scattered(&self, length: u64, piece: u64) -> Result<Region, Error> {
        let is_good = piece.is_power_of_two()
            && piece >= LEAST_PIECE
            && length > 0
            && length.div_ceil(piece) <= MAX_PIECES as u64;
        if !is_good || !self.link.is_host_based() {
            return Err(Error::BadPieces { length, piece });
        }

        let count = length.div_ceil(piece);
        let buffers = (0..count).map(|_| self.link.device().dma_buffer(piece as usize, HugePages::Never));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let mut memory = runtime::lock(&self.memory);
        let base = SCATTERED + memory.scattered;
        memory.scattered += (count + 1) * piece;
        self.register(&mut memory, Pieces { base, length: count * piece, piece, buffers })
    }

    fn register(&self, memory: &mut Memory, pieces: Pieces) -> Result<Region, Error> {
        let pieces = Arc::new(pieces);
        runtime::cost(runtime::Cost::Registration, 1);
        self.link.add_memory(&pieces)?;

        let region = Region(pieces);
        memory.regions.push(region.clone());
        Ok(region)
    }

    /// Returns zeroed memory for an event queue.
    fn queue_memory(&self, bytes: u64) -> Result<QueueMemory, Error> {
        if let Some(memory) = self.link.reuse_queue(bytes) {
            memory.window.zero(0, bytes)?;
            return Ok(memory);
        }

        let mut memory = runtime::lock(&self.memory);
        let (region, at) = match memory.queues.take() {
            Some((region, used)) if region.len() - used >= bytes => (region, used),
            _ => (self.allocate_in(&mut memory, bytes.max(QUEUE_CHUNK))?, 0),
        };
        memory.queues = Some((region.clone(), at + bytes));

        let size = region.len();
        let buffer = region.buffer().ok_or(Error::OutOfRange { offset: at, length: bytes, size })?;
        Ok(QueueMemory { window: buffer.window().window(at, bytes)?, address: region.address() + at })
    }
}

/// Event queues, match entries and memory descriptors.
impl Interface {
    /// Allocates an event queue for at least `events` events (`PtlEQAlloc`), at most 65,535.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`]; [`Refusal::Segment`] for too many events; as [`Interface::allocate`].
    pub fn allocate_queue(&self, events: u32) -> Result<EventQueue, Error> {
        const CALL: &str = "PtlEQAlloc";
        // One slot is always free for the writer.
        let events = (u64::from(events) + 1).next_power_of_two().max(2);
        if events > MAX_EVENTS {
            return Err(Error::Refused { call: CALL, reason: Refusal::Segment });
        }

        let memory = self.queue_memory(events * EVENT_BYTES)?;
        let allocate = Command {
            kind: command::ALLOCATE_QUEUE,
            start: memory.address,
            length: events,
            ..Command::default()
        };
        match self.link.call(CALL, &allocate) {
            Ok(result) => Ok(EventQueue::new(&self.link, result.value as u32, memory, events as u32)),
            Err(error) => {
                self.link.release_queue(memory);
                Err(error)
            }
        }
    }

    /// Waits for an event of any of these queues, takes it, and returns the position of its queue
    /// (`PtlEQPoll`). The queues may belong to several interfaces of one process.
    ///
    /// # Errors
    /// As for [`EventQueue::wait`].
    pub fn poll(
        queues: &[&EventQueue],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(usize, Event), Error> {
        queue::wait_any(queues, deadline, cancel)
    }

    /// Adds a match entry to a list (`PtlMEAttach`, `PtlMEInsert`). With [`Unlink::Automatic`] it
    /// is removed with its descriptor.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`], [`Refusal::Portal`], [`Refusal::Entry`].
    pub fn attach_entry(
        &self,
        position: Position,
        criteria: Criteria,
        unlink: Unlink,
    ) -> Result<MatchEntry, Error> {
        let mut attach = Command::default();
        let name = set_position(&mut attach, position);
        set_criteria(&mut attach, criteria);
        if unlink == Unlink::Automatic {
            attach.options |= option::UNLINK;
        }
        Ok(MatchEntry(self.link.call(name, &attach)?.value as u32))
    }

    /// Removes a match entry, with its descriptor if it has one (`PtlMEUnlink`).
    ///
    /// # Errors
    /// [`Refusal::Entry`], [`Refusal::EntryInUse`].
    pub fn unlink_entry(&self, entry: MatchEntry) -> Result<(), Error> {
        let unlink = Command { kind: command::UNLINK_ENTRY, handle: entry.0, ..Command::default() };
        self.link.call("PtlMEUnlink", &unlink).map(drop)
    }

    /// Adds a descriptor to a match entry (`PtlMDAttach`).
    ///
    /// # Errors
    /// [`Refusal::Entry`], [`Refusal::EntryInUse`]; as [`Interface::bind_descriptor`].
    pub fn attach_descriptor(
        &self,
        entry: MatchEntry,
        values: &Descriptor<'_>,
    ) -> Result<MemoryDescriptor, Error> {
        let mut attach = Command { kind: command::ATTACH_DESCRIPTOR, handle: entry.0, ..Command::default() };
        set_descriptor(&mut attach, values)?;
        Ok(MemoryDescriptor::new(self.link.call("PtlMDAttach", &attach)?.value, values))
    }

    /// Makes a descriptor for puts and gets of this process (`PtlMDBind`).
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Refusal::NoSpace`], [`Refusal::Queue`], [`Refusal::Segment`].
    pub fn bind_descriptor(&self, values: &Descriptor<'_>) -> Result<MemoryDescriptor, Error> {
        let mut bind = Command { kind: command::BIND_DESCRIPTOR, ..Command::default() };
        set_descriptor(&mut bind, values)?;
        Ok(MemoryDescriptor::new(self.link.call("PtlMDBind", &bind)?.value, values))
    }

    /// Removes a descriptor (`PtlMDUnlink`), and its entry if that is unlinked automatically. Gets
    /// that have no reply yet end without an event.
    ///
    /// # Errors
    /// [`Refusal::Descriptor`] also for one that was unlinked automatically;
    /// [`Refusal::DescriptorInUse`].
    pub fn unlink_descriptor(&self, descriptor: &MemoryDescriptor) -> Result<(), Error> {
        let handle = descriptor.id.0;
        let unlink = Command { kind: command::UNLINK_DESCRIPTOR, handle, ..Command::default() };
        self.link.call("PtlMDUnlink", &unlink).map(drop)
    }

    /// Replaces the values of a descriptor if the tested queue is empty (`PtlMDUpdate`). Its
    /// locally managed offset becomes 0. Returns `false` if the queue has an event or will have
    /// one, or the descriptor has operations in progress (`PTL_MD_NO_UPDATE`).
    ///
    /// # Errors
    /// [`Refusal::Descriptor`]; as [`Interface::bind_descriptor`].
    pub fn update_descriptor(
        &self,
        descriptor: &mut MemoryDescriptor,
        values: &Descriptor<'_>,
        test: Option<&EventQueue>,
    ) -> Result<bool, Error> {
        let handle = descriptor.id.0;
        let mut update = Command { kind: command::UPDATE_DESCRIPTOR, handle, ..Command::default() };
        set_descriptor(&mut update, values)?;
        set_test(&mut update, test);
        if self.link.call("PtlMDUpdate", &update)?.value == 0 {
            return Ok(false);
        }

        *descriptor = MemoryDescriptor::new(handle.into(), values);
        Ok(true)
    }

    /// Adds a match entry and its descriptor if the tested queue is empty, in one command
    /// (`PtlPost`). Returns `None`, without a change, if the queue has an event or will have one.
    ///
    /// # Errors
    /// As [`Interface::attach_entry`] and [`Interface::bind_descriptor`].
    pub fn post(
        &self,
        position: Position,
        criteria: Criteria,
        unlink: Unlink,
        values: &Descriptor<'_>,
        test: Option<&EventQueue>,
    ) -> Result<Option<(MatchEntry, MemoryDescriptor)>, Error> {
        let mut post = Command { handle: NO_HANDLE, ..Command::default() };
        set_position(&mut post, position);
        post.kind = command::POST;
        set_criteria(&mut post, criteria);
        set_descriptor(&mut post, values)?;
        set_test(&mut post, test);
        if unlink == Unlink::Automatic {
            post.options |= option::UNLINK_ENTRY;
        }

        let result = self.link.call("PtlPost", &post)?;
        if result.value == u64::from(NO_HANDLE) {
            return Ok(None);
        }
        Ok(Some((MatchEntry(result.value as u32), MemoryDescriptor::new(result.extra, values))))
    }

    /// Sets an access control entry (`PtlACEntry`). At first entry 0 permits everything, and the
    /// others nothing.
    ///
    /// # Errors
    /// [`Refusal::Access`].
    pub fn set_access(&self, index: u8, access: Access) -> Result<(), Error> {
        let (node, process) = access.initiator.encode();
        let portal = access.portal();
        let kind = command::SET_ACCESS;
        let set = Command { kind, access: index, node, process, portal, ..Command::default() };
        self.link.call("PtlACEntry", &set).map(drop)
    }
}

/// Fills in the place of a match entry, and returns the standard's name of the call.
fn set_position(command: &mut Command, position: Position) -> &'static str {
    let before = match position {
        Position::Head(_) | Position::Before(_) => option::BEFORE,
        Position::Tail(_) | Position::After(_) => 0,
    };
    command.options |= before;

    match position {
        Position::Head(portal) | Position::Tail(portal) => {
            command.kind = command::ATTACH_ENTRY;
            command.portal = portal;
            "PtlMEAttach"
        }
        Position::Before(base) | Position::After(base) => {
            command.kind = command::INSERT_ENTRY;
            command.handle = base.0;
            "PtlMEInsert"
        }
    }
}

fn set_criteria(command: &mut Command, criteria: Criteria) {
    (command.node, command.process) = criteria.initiator.encode();
    command.match_bits = criteria.match_bits;
    command.ignore_bits = criteria.ignore_bits;
}

/// Fills in the values of a descriptor.
fn set_descriptor(command: &mut Command, values: &Descriptor<'_>) -> Result<(), Error> {
    let Descriptor { offset, length, .. } = *values;
    let size = values.region.len();
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Error::OutOfRange { offset, length, size });
    }

    command.start = values.region.address() + offset;
    command.length = length;
    command.threshold = values.threshold.encode();
    command.options |= values.options.bits();
    if let Some(max_size) = values.max_size {
        command.options |= option::MAX_SIZE;
        command.max_size = max_size;
    }

    if values.unlink == Unlink::Automatic {
        command.options |= option::UNLINK;
    }
    command.user_pointer = values.user_pointer;
    command.queue = values.queue.map_or(NO_HANDLE, EventQueue::handle);
    Ok(())
}

fn set_test(command: &mut Command, test: Option<&EventQueue>) {
    command.test_queue = test.map_or(NO_HANDLE, EventQueue::handle);
    command.test_number = test.map_or(0, EventQueue::taken);
}

impl Drop for Interface {
    fn drop(&mut self) {
        // The memory is dropped after this, so that the card uses it no more.
        self.link.stop();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("id", &self.id).field("mode", &self.mode()).finish()
    }
}
