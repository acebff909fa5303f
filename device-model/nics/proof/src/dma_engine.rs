//! *DMA engine*: copies a scatter list within a client's memory and raises an interrupt at the end.
//!
//! A client writes the address and length of a list, then [`REG_START`], which may be a posted
//! write. It waits for [`VECTOR_DONE`] or [`VECTOR_ERROR`], or polls [`MIRROR_ENDED`].
//!
//! A device never waits, and the client's memory may be reached only by a slow message. So a read
//! is *started*, and its data arrive in [`Device::dma_done`] later. In between, the device keeps
//! only its state:
//!
//! ```text
//!   Idle --start--> List --the list came--> Copy --every descriptor copied--> Idle, VECTOR_DONE
//!                    \________________________\___________ any error ______> Idle, VECTOR_ERROR
//! ```
//!
//! A descriptor is copied in pieces of at most [`MAX_DMA`] bytes, one at a time. If the core has no
//! room for an operation, it reports *busy*, and a later step retries the piece.

use std::sync::atomic::Ordering;

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::{DmaError, MAX_DMA},
    fabric::Ports,
    ids::{Address, AttachmentId, DmaToken},
    register::Register,
    spec::{FunctionSpec, NicSizes},
    time::Nanos,
    warning::Warning,
};
use nicforge_hwi::{pci, proof::dma_engine::*};
use nicforge_kit::{RegisterValue, retry};
use nicforge_shm::SharedMemory;
use zerocopy::FromBytes;

use crate::{identity, users};

/// The token of every read. A client has one read in flight at a time.
const TOKEN: DmaToken = DmaToken(0);

/// The device; the module's documentation describes it.
#[derive(Default)]
pub struct DmaEngine {
    channels: [Channel; ATTACHMENTS as usize],
    /// Number of lists that were copied.
    lists: u64,
    /// Number of bytes that were copied.
    bytes: u64,
    /// Number of starts that ended with an error or were refused.
    errors: u64,
}

/// The state of one client.
#[derive(Default)]
struct Channel {
    /// The client's mirror. `None` while the attachment has no client.
    mirror: Option<SharedMemory>,
    /// IOVA of the list.
    list: u64,
    /// Number of descriptors of the list.
    count: u32,
    /// Bits `STATUS_*` of the last start.
    status: u32,
    /// Number of descriptors of the list that are copied.
    done: u32,
    /// Number of starts that have ended or were refused.
    ended: u64,
    state: State,
    /// The list that is being processed, read once.
    descriptors: Vec<Descriptor>,
    /// Time of the next attempt, if the core was busy.
    retry_at: Option<Nanos>,
}

/// Progress of a channel.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Idle,
    /// The list has to be read. `in_flight` says whether the read was started.
    List { in_flight: bool },
    /// Descriptor number `done` has been copied up to `offset`, and the next piece has to be read.
    Copy { offset: u32, in_flight: bool },
}

/// The next action of a channel.
enum Next {
    /// Wait for a start, or for the data of the read in flight.
    Wait,
    /// Start a read of the client's memory.
    Read { iova: u64, length: usize },
    /// End successfully: all descriptors are copied.
    Finish,
    /// End with this status bit: the list can't be continued.
    Fail(u32),
}

impl DmaEngine {
    /// Builds the card in the state of power-on. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a channel to the state of power-on.
    fn reset_attachment(&mut self, context: &Context<'_>, attachment: AttachmentId) {
        self.channels[usize::from(attachment.0)] =
            Channel { mirror: context.memory(attachment, 2), ..Channel::default() };
    }

    /// Performs the next action of a channel.
    fn advance(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        match channel.next() {
            Next::Wait => {}
            Next::Read { iova, length } => match context.dma_read(attachment, iova, length, TOKEN) {
                Ok(()) => channel.set_in_flight(true),
                // The memory is busy. All other errors come to `dma_done`.
                Err(_) => channel.retry_later(context),
            },
            Next::Finish => self.end(context, attachment, 0),
            Next::Fail(status) => {
                let rule = &"a descriptor's length is permitted, its bytes have addresses, and no reserved bit is set";
                context.warn(attachment, Warning::refused(rule).value(channel.done.into()));
                self.end(context, attachment, status);
            }
        }
    }

    /// Ends a start: successfully if `error` is 0, otherwise with that status bit. Publishes the
    /// outcome, and raises an interrupt.
    fn end(&mut self, context: &mut Context<'_>, attachment: AttachmentId, error: u32) {
        let channel = &mut self.channels[usize::from(attachment.0)];

        // A refused start does not disturb the list that is being processed.
        if error != STATUS_BAD_START {
            channel.state = State::Idle;
            channel.status &= !STATUS_BUSY;
        }

        channel.status |= error;
        channel.ended += 1;

        // The mirror is written before the interrupt is raised, with the count last.
        channel.publish();

        if error == 0 {
            self.lists += 1;
            context.interrupt(attachment, VECTOR_DONE);
        } else {
            self.errors += 1;
            context.interrupt(attachment, VECTOR_ERROR);
        }
    }
}

impl Device for DmaEngine {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, two vectors, a ring of 64 cells, no windows, 4 KiB of mirror.
        FunctionSpec::nic(
            identity(pci::DEVICE_DMA_ENGINE),
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
            // The answer to a read in flight does not arrive after a reset, so dropping the state
            // is enough.
            if reach.reaches(attachment) && self.channels[index].mirror.is_some() {
                self.reset_attachment(context, attachment);
            }
        }
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, _: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let channel = &self.channels[usize::from(from.0)];
        match at.offset {
            REG_LIST => channel.list.answer_read(data),
            REG_COUNT => channel.count.answer_read(data),
            REG_STATUS => channel.status.answer_read(data),
            REG_DONE => channel.done.answer_read(data),
            _ => return false,
        }
        true
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        let channel = &mut self.channels[usize::from(from.0)];
        match (at.offset, u32::from_write(data), u64::from_write(data)) {
            (REG_LIST, _, Some(value)) => channel.list = value,
            (REG_COUNT, Some(value), _) => channel.count = value,
            (REG_START, Some(1), _) => {
                if channel.start() {
                    self.advance(context, from);
                } else {
                    let rule = &"a start has a list of valid length at an aligned address, and no list is in progress";
                    context.warn(from, Warning::refused(rule).register(at).written(data));
                    self.end(context, from, STATUS_BAD_START);
                }
            }
            _ => {}
        }
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        _: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let channel = &mut self.channels[usize::from(attachment.0)];
        channel.set_in_flight(false);

        let failure = match (channel.state, result) {
            // The read belongs to no list that is being processed.
            (State::Idle, _) => None,
            (_, Err(_)) => Some(STATUS_DMA_ERROR),
            (State::List { .. }, Ok(bytes)) => {
                channel.store_list(bytes);
                None
            }
            (State::Copy { .. }, Ok(bytes)) => {
                match context.dma_write(attachment, channel.destination(), bytes) {
                    Ok(()) => {
                        self.bytes += bytes.len() as u64;
                        channel.record_copied(bytes.len() as u32);
                        None
                    }
                    // There is no room for the write now. A later step reads the piece again.
                    Err(DmaError::Busy) => return channel.retry_later(context),
                    Err(_) => Some(STATUS_DMA_ERROR),
                }
            }
        };

        match failure {
            None => self.advance(context, attachment),
            Some(status) => self.end(context, attachment, status),
        }
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        // Completions drive the copying; a step only retries channels for which the core was busy.
        // The delay avoids a read in every step.
        for index in 0..self.channels.len() {
            if let Some(time) = self.channels[index].retry_at
                && retry::is_due(context, time)
            {
                self.channels[index].retry_at = None;
                self.advance(context, AttachmentId(index as u16));
            }
        }
        Progress::Idle
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            Counter { name: "lists", value: self.lists },
            Counter { name: "bytes", value: self.bytes },
            Counter { name: "errors", value: self.errors },
        ]
    }
}

impl Channel {
    /// Starts with the list that the registers name. Returns false if they are invalid or a list
    /// is being processed.
    fn start(&mut self) -> bool {
        if self.state != State::Idle {
            return false;
        }

        // A new start clears the errors of earlier ones, even if it is refused.
        self.status = 0;
        let is_valid = (1..=MAX_DESCRIPTORS).contains(&self.count) && self.list.is_multiple_of(8);
        if !is_valid {
            return false;
        }

        self.state = State::List { in_flight: false };
        self.status = STATUS_BUSY;
        self.done = 0;
        true
    }

    /// Returns the next action of the channel. Moves past descriptors without bytes.
    fn next(&mut self) -> Next {
        match self.state {
            State::List { in_flight: false } => {
                Next::Read { iova: self.list, length: self.count as usize * size_of::<Descriptor>() }
            }
            State::Copy { offset, in_flight: false } => {
                // Descriptors without bytes need no copy.
                while self
                    .descriptors
                    .get(self.done as usize)
                    .is_some_and(|descriptor| descriptor.length == 0)
                {
                    self.done += 1;
                }

                match self.descriptors.get(self.done as usize) {
                    None => Next::Finish,
                    Some(descriptor) => match check_descriptor(descriptor) {
                        Ok(()) => Next::Read {
                            iova: descriptor.source + u64::from(offset),
                            length: ((descriptor.length - offset) as usize).min(MAX_DMA),
                        },
                        Err(status) => Next::Fail(status),
                    },
                }
            }
            _ => Next::Wait,
        }
    }

    /// Schedules a retry by [`Device::step`] after a delay, because the core is busy.
    fn retry_later(&mut self, context: &mut Context<'_>) {
        let time = context.now().after(retry::MEMORY_BUSY);
        self.retry_at = Some(time);
        context.wake_at(time);
    }

    /// Records whether a read is in flight.
    fn set_in_flight(&mut self, is_in_flight: bool) {
        match &mut self.state {
            State::Idle => {}
            State::List { in_flight } | State::Copy { in_flight, .. } => *in_flight = is_in_flight,
        }
    }

    /// Stores the descriptors of the list that was read.
    fn store_list(&mut self, bytes: &[u8]) {
        let size = size_of::<Descriptor>();
        self.descriptors.clear();
        self.descriptors
            .extend(bytes.chunks_exact(size).filter_map(|bytes| Descriptor::read_from_bytes(bytes).ok()));
        self.state = State::Copy { offset: 0, in_flight: false };
    }

    /// Returns the IOVA to which the piece that was read must be written.
    fn destination(&self) -> u64 {
        match (self.state, self.descriptors.get(self.done as usize)) {
            (State::Copy { offset, .. }, Some(descriptor)) => descriptor.destination + u64::from(offset),
            _ => 0,
        }
    }

    /// Records that `length` more bytes of the descriptor are copied.
    fn record_copied(&mut self, length: u32) {
        let State::Copy { offset, .. } = self.state else { return };

        let offset = offset + length;
        // Whether this was the last piece of the descriptor.
        let is_copied =
            self.descriptors.get(self.done as usize).is_none_or(|descriptor| offset >= descriptor.length);

        self.done += u32::from(is_copied);
        self.state = State::Copy { offset: if is_copied { 0 } else { offset }, in_flight: false };
    }

    /// Shows the outcome of the last start in the client's mirror.
    fn publish(&self) {
        let Some(mirror) = &self.mirror else { return };
        // The offsets are constants inside a BAR that `spec` asks for, so this succeeds.
        let _ = mirror.u32(MIRROR_STATUS).map(|word| word.store(self.status, Ordering::Relaxed));
        let _ = mirror.u32(MIRROR_DONE).map(|word| word.store(self.done, Ordering::Relaxed));
        let _ = mirror.u64(MIRROR_ENDED).map(|word| word.store(self.ended, Ordering::Release));
    }
}

/// Checks a descriptor. Its length must not be 0: the caller has skipped descriptors without bytes.
///
/// # Errors
/// Returns the status bit to report.
fn check_descriptor(descriptor: &Descriptor) -> Result<(), u32> {
    if descriptor.length > MAX_LENGTH || descriptor.reserved != 0 {
        return Err(STATUS_BAD_DESCRIPTOR);
    }

    // No byte may lie beyond the end of the address space.
    let last = u64::from(descriptor.length) - 1;
    match (descriptor.source.checked_add(last), descriptor.destination.checked_add(last)) {
        (Some(_), Some(_)) => Ok(()),
        _ => Err(STATUS_DMA_ERROR),
    }
}
