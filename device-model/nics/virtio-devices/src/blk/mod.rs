//! The block device (5.2): a disk whose contents are a file of the host.
//!
//! The device takes requests from its queue, at most [`MAX_IN_FLIGHT`] at a time. A companion reads
//! and writes the file, so that a slow disk holds up nothing but its own driver:
//!
//! ```text
//!   queue --request, bytes to write--> companion --bytes read, status--> the request's buffer
//! ```
//!
//! - The companion does one request after the other, in the order in which they were taken.
//! - A reset forgets the requests in flight. Those that the companion has already got are done, and
//!   their answers are dropped.
//! - While the companion is halted every request fails. A reset begins a new incarnation of it.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the device: requests and their answers |
//! | `registers.rs` | registers, requests and bits |
//! | `image.rs` | the file, and what was changed |
//! | `companion.rs` | the companion |

mod companion;
pub mod image;
pub mod registers;

use std::{io, sync::Arc};

use nicforge_core::{
    companion::{DeviceEnd, SendError},
    context::Context,
    device::Counter,
    dma::GuestMemoryView,
    warning::Warning,
};
use nicforge_kit::CountWatch;
use nicforge_virtio::{
    Backend, Buffer, Direction, Function, Model, Pieces, QueueError, SplitQueue, USER, VirtioDevice,
};
use zerocopy::IntoBytes;

use self::{
    companion::{Job, Operation, SPEC, Worker},
    image::SECTOR,
    registers::{
        CLASS, DEVICE_TYPE, DeviceConfig, FLUSH, GET_ID, HEADER, ID_BYTES, IN, MAX_DATA, OFFERED, OUT,
        REQUESTS, RequestHeader, SEG_MAX, SIZE_MAX, Status, feature,
    },
};

/// Maximum number of requests that the companion works on.
pub const MAX_IN_FLIGHT: usize = 16;

/// The contents of a disk. [`Image`](image::Image) is a file of the host.
///
/// The companion calls [`Store::read`] and [`Store::write`]. They may wait, for less than the
/// machine's limit of a companion. A companion that hung may still be in a call when the next one
/// makes its first.
pub trait Store: Send + Sync + 'static {
    /// Returns the size in sectors of [`SECTOR`] bytes, which never changes.
    fn sectors(&self) -> u64;

    /// Returns whether every write fails, which never changes.
    fn is_read_only(&self) -> bool;

    /// Reads bytes from `offset` on. They lie within the disk.
    ///
    /// # Errors
    /// Any error fails the request.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes bytes from `offset` on. They lie within the disk. After an error a part may be
    /// written.
    ///
    /// # Errors
    /// Any error fails the request.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
}

/// The device; the module's documentation describes it.
pub struct VirtioBlk {
    store: Arc<dyn Store>,
    config: DeviceConfig,
    /// The disk's name, which the driver can ask for, filled up with zeros.
    id: [u8; ID_BYTES],
    companion: Option<DeviceEnd<Job, Job>>,
    requests: Requests,
    statistics: Statistics,
    failed: CountWatch,
}

/// The requests that are in flight.
struct Requests {
    /// Number of the driver's incarnation, which each reset ends.
    incarnation: u64,
    slots: Vec<Slot>,
    /// A job that waits for room in the FIFO of commands. Until it is sent, no further request is
    /// taken.
    unsent: Option<Job>,
    /// Memory of jobs that have ended, for reuse.
    spare: Vec<Vec<u8>>,
}

/// The place of a request in flight.
#[derive(Default)]
struct Slot {
    /// The request's buffer, if there is a request.
    buffer: Option<Buffer>,
    /// The pieces of that buffer.
    pieces: Pieces,
}

/// Statistics of the disk. A request that fails counts as an error, and not as a read or write.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    flushes: u64,
    io_errors: u64,
    /// Requests of a kind that the device does not have.
    unsupported: u64,
}

/// The device's action on a request.
enum RequestAction {
    /// The device answers the request at once, with a status and this number of bytes of its name.
    Answer(Status, usize),
    /// The device sends a job to the companion, which carries the request out.
    Job(Job),
}

impl VirtioBlk {
    /// Builds a disk in the state of power-on. `name` is what the driver sees as its serial number,
    /// of which the first [`ID_BYTES`] bytes count.
    pub fn device(store: impl Store, name: &str) -> VirtioDevice<Self> {
        let config = DeviceConfig {
            capacity: store.sectors().to_le_bytes(),
            size_max: SIZE_MAX.to_le_bytes(),
            seg_max: SEG_MAX.to_le_bytes(),
            geometry: [0; 4],
            block_size: (SECTOR as u32).to_le_bytes(),
        };
        let mut id = [0; ID_BYTES];
        id.iter_mut().zip(name.bytes()).for_each(|(byte, of_name)| *byte = of_name);

        VirtioDevice::new(Self {
            store: Arc::new(store),
            config,
            id,
            companion: None,
            requests: Requests::new(),
            statistics: Statistics::default(),
            failed: CountWatch::default(),
        })
    }

    /// Starts the companion if there is none. Without one, requests fail.
    fn ensure_companion(&mut self, context: &mut Context<'_>) {
        if self.companion.is_none() {
            let worker = Worker { store: Arc::clone(&self.store), unsent: None };
            self.companion = context.start_companion(SPEC, worker).ok();
        }
    }

    /// Returns whether the companion runs and takes jobs.
    fn takes_jobs(&self) -> bool {
        self.companion.as_ref().is_some_and(|companion| companion.halt().is_none())
    }

    /// Answers requests that the companion has done, about `budget` descriptors. If it is halted,
    /// all requests in flight fail. Returns the number of descriptors used.
    fn answer_done(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        let Some((queue, memory)) = function.queue_with_memory(context, REQUESTS) else { return Ok(0) };

        let mut work = 0;
        while work < budget
            && let Some(job) = self.companion.as_mut().and_then(DeviceEnd::receive)
        {
            work += copy_cost(&job);
            // The driver may have been reset since, and then there is no request.
            if let Some((buffer, pieces)) = self.requests.end(&job) {
                self.statistics.count(&job);
                let data = if job.operation == Operation::Read { &job.bytes[..] } else { &[] };
                answer(queue, &memory, buffer, pieces, job.status, data)?;
            }
            self.requests.recycle(job.bytes);
        }

        if !self.takes_jobs() {
            self.requests.unsent = None;
            for slot in &mut self.requests.slots {
                let Some(buffer) = slot.buffer.take() else { continue };
                work += 1;
                self.statistics.io_errors += 1;
                answer(queue, &memory, buffer, &slot.pieces, Status::IoError, &[])?;
            }
        }
        Ok(work)
    }

    /// Takes requests, about `budget` descriptors, while there is a place for them. Returns the
    /// number of descriptors used.
    fn take_requests(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        let Some((queue, memory)) = function.queue_with_memory(context, REQUESTS) else { return Ok(0) };

        let mut work = 0;
        while work < budget && self.send_unsent() {
            let Some(index) = self.requests.free_slot() else { break };
            let Some(buffer) = queue.take_or_ask(&memory)? else { break };
            work += queue.descriptors() as u32;
            queue.swap_pieces(&mut self.requests.slots[index].pieces);

            match self.examine(&memory, buffer, index)? {
                RequestAction::Answer(status, bytes) => {
                    self.statistics.count_status(status);
                    let pieces = &self.requests.slots[index].pieces;
                    answer(queue, &memory, buffer, pieces, status, &self.id[..bytes])?;
                }
                RequestAction::Job(job) => {
                    // The data of a write was copied now. That of a read is copied with the answer.
                    if job.operation == Operation::Write {
                        work += copy_cost(&job);
                    }
                    self.requests.slots[index].buffer = Some(buffer);
                    self.requests.unsent = Some(job);
                }
            }
        }

        self.send_unsent();
        Ok(work)
    }

    /// Sends the job that waits for room in the FIFO, if there is one. Returns whether the next
    /// request can be taken.
    fn send_unsent(&mut self) -> bool {
        let Some(job) = self.requests.unsent.take() else { return true };
        let Some(companion) = &mut self.companion else { return true };

        match companion.send(job) {
            Ok(()) => true,
            Err(SendError::Full(job)) => {
                self.requests.unsent = Some(job);
                false
            }
            // The request fails when the halt is noticed.
            Err(SendError::Ended(_)) => false,
        }
    }

    /// Checks the request of a buffer, and copies the data of a write. Returns what to do with the
    /// request.
    ///
    /// # Errors
    /// [`QueueError`] if the buffer has no room for a header and a status, or is not in memory.
    fn examine(
        &mut self,
        memory: &GuestMemoryView<'_>,
        buffer: Buffer,
        slot: usize,
    ) -> Result<RequestAction, QueueError> {
        if buffer.readable < HEADER || buffer.writable == 0 {
            return Err(QueueError::Buffer);
        }

        let pieces = &self.requests.slots[slot].pieces;
        let mut header = RequestHeader::default();
        pieces.read(memory, 0, header.as_mut_bytes())?;

        // The last byte is for the status.
        let available = buffer.writable - 1;
        let (operation, bytes) = match u32::from_le_bytes(header.kind) {
            IN => (Operation::Read, available),
            OUT => (Operation::Write, buffer.readable - HEADER),
            FLUSH => {
                // Changes need no flush: they are in a file that is gone with the device.
                self.statistics.flushes += 1;
                return Ok(RequestAction::Answer(Status::Ok, 0));
            }
            GET_ID => return Ok(RequestAction::Answer(Status::Ok, available.min(ID_BYTES as u64) as usize)),
            _ => return Ok(RequestAction::Answer(Status::Unsupported, 0)),
        };

        let sector = u64::from_le_bytes(header.sector);
        let is_refused = operation == Operation::Write && self.store.is_read_only();
        if is_refused || !self.takes_jobs() || !fits(self.store.sectors(), sector, bytes) {
            return Ok(RequestAction::Answer(Status::IoError, 0));
        }

        let mut data = self.requests.spare.pop().unwrap_or_default();
        data.resize(bytes as usize, 0);
        if operation == Operation::Write {
            let pieces = &self.requests.slots[slot].pieces;
            pieces.read(memory, HEADER, &mut data)?;
        }

        let incarnation = self.requests.incarnation;
        Ok(RequestAction::Job(Job {
            incarnation,
            slot,
            operation,
            sector,
            bytes: data,
            status: Status::IoError,
        }))
    }
}

impl Requests {
    /// Returns no requests.
    fn new() -> Self {
        let slots = (0..MAX_IN_FLIGHT).map(|_| Slot::default()).collect();
        Self { incarnation: 0, slots, unsent: None, spare: Vec::with_capacity(MAX_IN_FLIGHT) }
    }

    /// Returns a place that no request has.
    fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.buffer.is_none())
    }

    /// Ends the request of a job, and returns its buffer. A job of an earlier incarnation has none.
    fn end(&mut self, job: &Job) -> Option<(Buffer, &Pieces)> {
        if job.incarnation != self.incarnation {
            return None;
        }
        let slot = self.slots.get_mut(job.slot)?;
        Some((slot.buffer.take()?, &slot.pieces))
    }

    /// Keeps the memory of a job for reuse.
    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < MAX_IN_FLIGHT {
            self.spare.push(bytes);
        }
    }

    /// Begins the driver's next incarnation: forgets all requests.
    fn begin_incarnation(&mut self) {
        self.incarnation += 1;
        self.unsent = None;
        for slot in &mut self.slots {
            slot.buffer = None;
        }
    }
}

impl Statistics {
    /// Counts the request of a job that is done.
    fn count(&mut self, job: &Job) {
        let bytes = job.bytes.len() as u64;
        match (job.status, job.operation) {
            (Status::Ok, Operation::Read) => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            (Status::Ok, Operation::Write) => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            (status, _) => self.count_status(status),
        }
    }

    /// Counts a request if it failed.
    fn count_status(&mut self, status: Status) {
        match status {
            Status::Ok => {}
            Status::IoError => self.io_errors += 1,
            Status::Unsupported => self.unsupported += 1,
        }
    }
}

/// Returns whether a request for `bytes` bytes from `first_sector` on has whole sectors, is not too
/// long, and lies within a disk of `sectors` sectors.
fn fits(sectors: u64, first_sector: u64, bytes: u64) -> bool {
    let is_whole = (SECTOR..=MAX_DATA).contains(&bytes) && bytes.is_multiple_of(SECTOR);
    is_whole && first_sector.checked_add(bytes / SECTOR).is_some_and(|end| end <= sectors)
}

/// Returns the number of descriptors of the budget that the copy of a job's bytes takes.
fn copy_cost(job: &Job) -> u32 {
    1 + job.bytes.len() as u32 / SIZE_MAX
}

/// Returns a request's buffer to the driver: with `data`, unless it failed, and with the status as
/// its last byte.
///
/// The used length is that of the bytes written without a gap from the buffer's start on (2.7.8.2).
/// The status is among them only if the data reach it.
fn answer(
    queue: &mut SplitQueue,
    memory: &GuestMemoryView<'_>,
    buffer: Buffer,
    pieces: &Pieces,
    status: Status,
    data: &[u8],
) -> Result<(), QueueError> {
    let data = if status == Status::Ok { data } else { &[] };
    pieces.write(memory, 0, data)?;
    let status_offset = buffer.writable - 1;
    pieces.write(memory, status_offset, &[status as u8])?;

    let is_whole = data.len() as u64 == status_offset;
    queue.give_back(memory, buffer, data.len() as u32 + u32::from(is_whole))
}

impl Backend for VirtioBlk {
    fn model(&self) -> Model {
        let access = if self.store.is_read_only() { feature::READ_ONLY } else { feature::FLUSH };
        Model {
            device_type: DEVICE_TYPE,
            class: CLASS,
            features: OFFERED | access,
            queues: &[Direction::Both],
            config_bytes: size_of::<DeviceConfig>(),
        }
    }

    fn config(&self) -> &[u8] {
        self.config.as_bytes()
    }

    fn serve(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        self.ensure_companion(context);
        let mut work = self.answer_done(context, function, budget)?;
        work += self.take_requests(context, function, budget)?;
        self.failed.check(context, Some(USER), self.statistics.io_errors, || {
            Warning::failed(&"a request lies on the disk, and the disk's file can be read or written")
        });

        function.interrupt_for_used_buffers(context, REQUESTS)?;
        Ok(work)
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        self.requests.begin_incarnation();
        if !self.takes_jobs() {
            self.companion = None;
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let Statistics { reads, read_bytes, writes, written_bytes, flushes, io_errors, unsupported } =
            self.statistics;
        [
            ("reads", reads),
            ("read_bytes", read_bytes),
            ("writes", writes),
            ("written_bytes", written_bytes),
            ("flushes", flushes),
            ("io_errors", io_errors),
            ("unsupported", unsupported),
        ]
        .map(|(name, value)| Counter { name, value })
        .to_vec()
    }
}
