//! *Checksum*: sums bytes of client memory by a companion, and raises an interrupt at the end.
//!
//! A client writes the address and number of the bytes, then [`REG_START`]. It waits for
//! [`VECTOR_DONE`] or [`VECTOR_ERROR`], or polls [`MIRROR_ENDED`].
//!
//! Summing takes too long for a device's method, so a [`Companion`] does it. The device reads the
//! bytes by DMA and sends them to the companion in a command; the sum returns in an event. The
//! bytes are in a buffer that the messages own, and that goes back and forth.
//!
//! ```text
//!   Idle --start--> Begin --> Reading --the bytes came--> Waiting --room in the FIFO--> Summing
//!    ^_______________________________ the sum came, or any error ____________________________|
//! ```
//!
//! - A sum that belongs to an earlier start of its client is recognized by its serial number.
//! - While the companion is halted, each start fails with [`STATUS_HALTED`]. A reset of the
//!   function starts a new epoch.

use std::sync::{Arc, atomic::Ordering};

use nicforge_core::{
    companion::{
        Companion, CompanionEnd, CompanionError, CompanionMode, CompanionSpec, DeviceEnd, SendError,
    },
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    fabric::Ports,
    ids::{Address, AttachmentId, DmaToken},
    register::Register,
    spec::{FunctionSpec, NicSizes},
    warning::Warning,
};
use nicforge_hwi::{pci, proof::checksum::*};
use nicforge_kit::{RegisterValue, retry};
use nicforge_shm::SharedMemory;

use crate::{identity, users};

/// The companion. It needs one command and one event for each client.
const COMPANION: CompanionSpec = CompanionSpec {
    name: "checksum",
    commands: ATTACHMENTS as usize,
    events: ATTACHMENTS as usize,
    mode: CompanionMode::Threads,
};
/// Maximum number of buffers that are kept for reuse.
const MAX_SPARE: usize = ATTACHMENTS as usize;

/// A function that sums bytes.
pub type Algorithm = Arc<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// Returns the FNV-1a hash of 64 bits, which the card uses unless it is built with another
/// function.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// A command to the companion, and with the sum the event that answers it.
struct Job {
    /// The client's attachment.
    attachment: AttachmentId,
    /// Number of the start to which the job belongs.
    serial: u64,
    /// The bytes to sum.
    bytes: Vec<u8>,
    /// The result, once the job is done.
    sum: u64,
}

/// The companion, which sums the bytes of jobs.
struct Summer {
    algorithm: Algorithm,
    /// A job that is done and waits for room in the FIFO of events.
    unsent: Option<Job>,
}

impl Companion for Summer {
    type Command = Job;
    type Event = Job;

    fn poll(&mut self, end: &mut CompanionEnd<Job, Job>, budget: u32) -> Progress {
        for _ in 0..budget {
            if let Some(job) = self.unsent.take()
                && let Err(SendError::Full(job)) = end.send(job)
            {
                self.unsent = Some(job);
                return Progress::Idle;
            }

            let Some(mut job) = end.receive() else { return Progress::Idle };
            job.sum = (self.algorithm)(&job.bytes);
            self.unsent = Some(job);
        }

        Progress::Busy
    }
}

/// The device; the module's documentation describes it.
pub struct Checksum {
    algorithm: Algorithm,
    companion: Option<DeviceEnd<Job, Job>>,
    channels: [Channel; ATTACHMENTS as usize],
    /// Number of the last start of any client.
    serial: u64,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// Number of starts that ended with a sum.
    sums: u64,
    /// Number of starts that ended with an error or were refused.
    errors: u64,
}

/// The state of one client.
#[derive(Default)]
struct Channel {
    /// The client's mirror. `None` while the attachment has no client.
    mirror: Option<SharedMemory>,
    /// IOVA of the bytes.
    address: u64,
    /// Number of the bytes.
    length: u32,
    /// Bits `STATUS_*` of the last start.
    status: u32,
    /// The last sum.
    sum: u64,
    /// Number of starts that have ended or were refused.
    ended: u64,
    state: State,
}

/// Progress of a channel. Each state but the first has the number of its start.
#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// The bytes have to be read.
    Begin(u64),
    /// The bytes are being read.
    Reading(u64),
    /// The job waits for room in the FIFO.
    Waiting(Job),
    /// The companion has the job.
    Summing(u64),
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

impl Checksum {
    /// Builds the card in the state of power-on. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::with_algorithm(Arc::new(fnv1a))
    }

    /// Builds a card that sums by another function. A panic of the function halts the companion.
    pub fn with_algorithm(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            companion: None,
            channels: Default::default(),
            serial: 0,
            spare: Vec::new(),
            sums: 0,
            errors: 0,
        }
    }

    /// Starts a new epoch of the companion. If that fails, every start fails until the next reset.
    fn start_companion(&mut self, context: &mut Context<'_>) -> Result<(), CompanionError> {
        // The earlier epoch ends first, so that it does not hold its thread longer than needed.
        self.companion = None;
        let body = Summer { algorithm: self.algorithm.clone(), unsent: None };
        self.companion = Some(context.start_companion(COMPANION, body)?);

        Ok(())
    }

    /// Starts the companion if there is none. Returns whether it takes jobs.
    fn ensure_companion(&mut self, context: &mut Context<'_>) -> bool {
        let is_missing = self.companion.is_none();
        if is_missing && self.start_companion(context).is_err() {
            return false;
        }
        self.companion.as_ref().is_some_and(|companion| companion.halt().is_none())
    }

    /// Starts a sum, or refuses to if the registers are invalid or a sum is in progress.
    fn start(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        let is_idle = matches!(channel.state, State::Idle);
        if !is_idle || !(1..=MAX_LENGTH).contains(&channel.length) {
            let rule = &"a start has 1 byte to the longest sum, and no sum is in progress";
            context.warn(attachment, Warning::refused(rule).value(channel.length.into()));
            return self.refuse(context, attachment);
        }

        self.serial += 1;
        channel.status = STATUS_BUSY;
        channel.state = State::Begin(self.serial);
        if self.ensure_companion(context) {
            self.advance(context, attachment);
        } else {
            self.end(context, attachment, Err(STATUS_HALTED));
        }
    }

    /// Reports a start that is invalid. A sum in progress continues.
    fn refuse(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        channel.status |= STATUS_BAD_START;
        channel.ended += 1;
        channel.publish();
        self.errors += 1;
        context.interrupt(attachment, VECTOR_ERROR);
    }

    /// Takes a channel's next step, unless it waits for data or a sum: starts the DMA read of its
    /// bytes, or sends its job to the companion.
    fn advance(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        match std::mem::take(&mut channel.state) {
            State::Begin(serial) => {
                let token = DmaToken(serial);
                let started = context.dma_read(attachment, channel.address, channel.length as usize, token);
                channel.state = match started {
                    Ok(()) => State::Reading(serial),
                    // The memory is busy. All other errors come to `dma_done`.
                    Err(_) => {
                        context.wake_at(context.now() + retry::MEMORY_BUSY);
                        State::Begin(serial)
                    }
                };
            }
            State::Waiting(job) => self.send_job(context, attachment, job),
            other => channel.state = other,
        }
    }

    /// Sends a channel's job to the companion. If there is no room, the job waits in the channel.
    fn send_job(&mut self, context: &mut Context<'_>, attachment: AttachmentId, job: Job) {
        let serial = job.serial;
        let sent = match &mut self.companion {
            Some(companion) => companion.send(job),
            None => Err(SendError::Ended(job)),
        };

        let state = &mut self.channels[usize::from(attachment.0)].state;
        match sent {
            Ok(()) => *state = State::Summing(serial),
            // A step follows when the companion has answered.
            Err(SendError::Full(job)) => *state = State::Waiting(job),
            Err(SendError::Ended(_)) => self.end(context, attachment, Err(STATUS_HALTED)),
        }
    }

    /// Handles a job that the companion has done.
    fn finish_job(&mut self, context: &mut Context<'_>, job: Job) {
        let Job { attachment, serial, bytes, sum } = job;
        if self.spare.len() < MAX_SPARE {
            self.spare.push(bytes);
        }

        // If the client was reset since, the sum belongs to no start.
        let state = self.channels.get(usize::from(attachment.0)).map(|channel| &channel.state);
        if matches!(state, Some(State::Summing(current)) if *current == serial) {
            self.end(context, attachment, Ok(sum));
        }
    }

    /// Ends a start: with a sum, or with an error as a status bit.
    fn end(&mut self, context: &mut Context<'_>, attachment: AttachmentId, result: Result<u64, u32>) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        channel.state = State::Idle;
        channel.status &= !STATUS_BUSY;
        channel.ended += 1;
        match result {
            Ok(sum) => channel.sum = sum,
            Err(error) => channel.status |= error,
        }

        // The mirror is written before the interrupt is raised, with the count last.
        channel.publish();
        let vector = if result.is_ok() { VECTOR_DONE } else { VECTOR_ERROR };
        self.sums += u64::from(result.is_ok());
        self.errors += u64::from(result.is_err());
        context.interrupt(attachment, vector);
    }

    /// Sets a channel to the state of power-on.
    fn reset_attachment(&mut self, context: &Context<'_>, attachment: AttachmentId) {
        self.channels[usize::from(attachment.0)] =
            Channel { mirror: context.memory(attachment, 2), ..Channel::default() };
    }
}

impl Device for Checksum {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, two vectors, a ring of 64 cells, no windows, 4 KiB of mirror.
        FunctionSpec::nic(
            identity(pci::DEVICE_CHECKSUM),
            users(ATTACHMENTS),
            NicSizes {
                register_bytes: 0x1000,
                vectors: 2,
                ring_cells: 64,
                mirror_bytes: 0x1000,
                ..NicSizes::default()
            },
        )
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        0
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.reset_attachment(context, attachment);
    }

    fn detached(&mut self, _: &mut Context<'_>, attachment: AttachmentId, _: Ended) {
        self.channels[usize::from(attachment.0)] = Channel::default();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        for index in 0..self.channels.len() {
            let attachment = AttachmentId(index as u16);
            if reach.reaches(attachment) && self.channels[index].mirror.is_some() {
                self.reset_attachment(context, attachment);
            }
        }

        if reach == Reset::Function && self.companion.is_some() {
            // The next start tries again if it fails.
            let _ = self.start_companion(context);
        }
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, _: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let channel = &self.channels[usize::from(from.0)];
        match at.offset {
            REG_ADDRESS => channel.address.answer_read(data),
            REG_LENGTH => channel.length.answer_read(data),
            REG_STATUS => channel.status.answer_read(data),
            REG_EPOCH => self.companion.as_ref().map_or(0, DeviceEnd::epoch).answer_read(data),
            REG_SUM => channel.sum.answer_read(data),
            _ => return false,
        }
        true
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        let channel = &mut self.channels[usize::from(from.0)];
        match (at.offset, u32::from_write(data), u64::from_write(data)) {
            (REG_ADDRESS, _, Some(value)) => channel.address = value,
            (REG_LENGTH, Some(value), _) => channel.length = value,
            (REG_START, Some(1), _) => self.start(context, from),
            _ => {}
        }
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        // Data of an earlier start are dropped.
        let state = &self.channels[usize::from(attachment.0)].state;
        if !matches!(state, State::Reading(serial) if *serial == token.0) {
            return;
        }

        match result {
            Ok(data) => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(data);
                self.send_job(context, attachment, Job { attachment, serial: token.0, bytes, sum: 0 });
            }
            Err(_) => self.end(context, attachment, Err(STATUS_DMA_ERROR)),
        }
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        // The companion's FIFO bounds the number of finished jobs.
        while let Some(job) = self.companion.as_mut().and_then(DeviceEnd::receive) {
            self.finish_job(context, job);
        }

        let is_halted = self.companion.as_ref().is_some_and(|companion| companion.halt().is_some());
        for attachment in (0..ATTACHMENTS).map(AttachmentId) {
            let is_idle = matches!(self.channels[usize::from(attachment.0)].state, State::Idle);
            if is_halted && !is_idle {
                self.end(context, attachment, Err(STATUS_HALTED));
            } else {
                self.advance(context, attachment);
            }
        }

        Progress::Idle
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "sums", value: self.sums }, Counter { name: "errors", value: self.errors }]
    }
}

impl Channel {
    /// Shows the outcome of the last start in the client's mirror.
    fn publish(&self) {
        let Some(mirror) = &self.mirror else { return };
        // The offsets are constants inside a BAR that `spec` asks for, so this succeeds.
        let _ = mirror.u64(MIRROR_SUM).map(|word| word.store(self.sum, Ordering::Relaxed));
        let _ = mirror.u64(MIRROR_ENDED).map(|word| word.store(self.ended, Ordering::Release));
    }
}
