//! *DMA engine*: copies a scatter list within a client's memory and raises an interrupt when it is through.
//!
//! A client writes the address and length of a list, then [`REG_START`] (as a posted write, if it likes), and waits for
//! [`VECTOR_DONE`] or [`VECTOR_ERROR`], or polls [`MIRROR_ENDED`].
//!
//! A device never waits, and the client's memory may be a slow message away. So a read is *started*, and its data comes to
//! [`Device::dma_done`] later. Between the two the device only remembers where it is:
//!
//! ```text
//!   Idle --start--> List --the list came--> Copy --every descriptor copied--> Idle, VECTOR_DONE
//!                    \________________________\___________ any error ______> Idle, VECTOR_ERROR
//! ```
//!
//! A descriptor is copied in pieces of at most [`MAX_DMA`] bytes, one at a time. When the core has no room for an
//! operation it says *busy*: the piece is tried again in a later step.

use std::sync::atomic::Ordering;

use nicforge_core::{
    context::{Busy, Context},
    device::{Address, AttachmentId, Counter, Device, DmaToken, Ended, Progress, Reset, Write},
    dma::{DmaError, MAX_DMA},
    spec::FunctionSpec,
    time::Nanos,
};
use nicforge_hwi::{pci, proof::dma_engine::*};
use nicforge_shm::SharedMemory;
use zerocopy::FromBytes;

use crate::{answer, identity, users, word32, word64};

/// How long to leave the core alone when it was busy, in nanoseconds.
const RETRY: u64 = 20_000;
/// Every read's token: a client has one read under way at a time.
const TOKEN: DmaToken = DmaToken(0);

/// The device. See the module.
#[derive(Default)]
pub struct DmaEngine {
    channels: [Channel; ATTACHMENTS as usize],
    lists: u64,
    bytes: u64,
    errors: u64,
}

/// What one client has.
#[derive(Default)]
struct Channel {
    mirror: Option<SharedMemory>,
    list: u64,
    count: u32,
    status: u32,
    done: u32,
    ended: u64,
    state: State,
    /// The list that is worked on, read once.
    descriptors: Vec<Descriptor>,
    /// The core was busy: nothing is tried before.
    retry_at: Option<Nanos>,
}

/// Where a channel is in its work.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Idle,
    /// The list has to be read.
    List { under_way: bool },
    /// The descriptor number `done` has been copied up to `offset`; the next piece has to be read.
    Copy { offset: u32, under_way: bool },
}

/// What a channel has to do next.
enum Next {
    /// Nothing, or nothing until a read that is under way comes back.
    Nothing,
    /// Start this read.
    Read { iova: u64, length: usize },
    /// Every descriptor is copied.
    Finish,
    /// The list can't go on; the status bit that says why.
    Fail(u32),
}

impl DmaEngine {
    /// The card. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::default()
    }

    fn power_on(&mut self, context: &Context<'_>, who: AttachmentId) {
        self.channels[usize::from(who.0)] = Channel { mirror: context.memory(who, 2), ..Channel::default() };
    }

    /// Do what a channel has to do next.
    fn advance(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        let channel = &mut self.channels[usize::from(who.0)];
        match channel.next() {
            Next::Nothing => {}
            Next::Read { iova, length } => match context.dma_read(who, iova, length, TOKEN) {
                Ok(()) => channel.set_under_way(true),
                Err(Busy) => channel.retry_later(context),
            },
            Next::Finish => self.end(context, who, 0),
            Next::Fail(status) => self.end(context, who, status),
        }
    }

    /// A start is over: with `error` 0 well, else with that status bit.
    fn end(&mut self, context: &mut Context<'_>, who: AttachmentId, error: u32) {
        let channel = &mut self.channels[usize::from(who.0)];
        // A refused start does not disturb the list that is being worked on.
        if error != STATUS_BAD_START {
            channel.state = State::Idle;
            channel.status &= !STATUS_BUSY;
        }
        channel.status |= error;
        channel.ended += 1;
        // The mirror is written before the interrupt is raised, the count last.
        channel.publish();
        if error == 0 {
            self.lists += 1;
            context.interrupt(who, VECTOR_DONE);
        } else {
            self.errors += 1;
            context.interrupt(who, VECTOR_ERROR);
        }
    }
}

impl Device for DmaEngine {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, two vectors, a ring of 64 cells, no windows, 4 KiB of mirror.
        FunctionSpec::nic(identity(pci::DEVICE_DMA_ENGINE), users(ATTACHMENTS), 0x1000, 2, 64, 0, 0x1000)
    }

    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.power_on(context, who);
    }

    fn detached(&mut self, _: &mut Context<'_>, who: AttachmentId, _: Ended) {
        self.channels[usize::from(who.0)] = Channel::default();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        for index in 0..self.channels.len() {
            let who = AttachmentId(index as u16);
            let meant = reach == Reset::Function || reach == Reset::Attachment(who);
            // What was under way does not come back after a reset, so that forgetting it is enough.
            if meant && self.channels[index].mirror.is_some() {
                self.power_on(context, who);
            }
        }
    }

    fn read(&mut self, _: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        let channel = &self.channels[usize::from(from.0)];
        match at.offset {
            REG_LIST => answer(data, channel.list.to_le_bytes()),
            REG_COUNT => answer(data, channel.count.to_le_bytes()),
            REG_STATUS => answer(data, channel.status.to_le_bytes()),
            REG_DONE => answer(data, channel.done.to_le_bytes()),
            _ => {}
        }
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        let channel = &mut self.channels[usize::from(from.0)];
        match (at.offset, word32(data), word64(data)) {
            (REG_LIST, _, Some(value)) => channel.list = value,
            (REG_COUNT, Some(value), _) => channel.count = value,
            (REG_START, Some(1), _) => {
                if channel.start() {
                    self.advance(context, from);
                } else {
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
        who: AttachmentId,
        _: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let channel = &mut self.channels[usize::from(who.0)];
        channel.set_under_way(false);
        let failed = match (channel.state, result) {
            (State::Idle, _) => None,
            (_, Err(_)) => Some(STATUS_DMA_ERROR),
            (State::List { .. }, Ok(bytes)) => {
                channel.load(bytes);
                None
            }
            (State::Copy { .. }, Ok(bytes)) => match context.dma_write(who, channel.destination(), bytes) {
                Ok(()) => {
                    self.bytes += bytes.len() as u64;
                    channel.copied(bytes.len() as u32);
                    None
                }
                // No room for the write now. The data is in the client's memory still, and is read again in a later step.
                Err(DmaError::Busy) => return channel.retry_later(context),
                Err(_) => Some(STATUS_DMA_ERROR),
            },
        };
        match failed {
            None => self.advance(context, who),
            Some(status) => self.end(context, who, status),
        }
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        // Completions drive the copying; here is only what was busy before. Steps come much more often than room for it, and each try costs a read.
        for index in 0..self.channels.len() {
            match self.channels[index].retry_at {
                None => {}
                // The function has one timer, which was for another channel perhaps.
                Some(time) if context.now() < time => context.wake_at(time),
                Some(_) => {
                    self.channels[index].retry_at = None;
                    self.advance(context, AttachmentId(index as u16));
                }
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
    /// Begin with the list that the registers name. False when they make no sense or a list is being worked on.
    fn start(&mut self) -> bool {
        if self.state != State::Idle {
            return false;
        }
        // A start that is refused for its own sake has only its own error.
        self.status = 0;
        let sound = (1..=MAX_DESCRIPTORS).contains(&self.count) && self.list.is_multiple_of(8);
        if !sound {
            return false;
        }
        self.state = State::List { under_way: false };
        self.status = STATUS_BUSY;
        self.done = 0;
        true
    }

    fn next(&mut self) -> Next {
        match self.state {
            State::List { under_way: false } => {
                Next::Read { iova: self.list, length: self.count as usize * size_of::<Descriptor>() }
            }
            State::Copy { offset, under_way: false } => {
                // Descriptors without bytes are done already.
                while self
                    .descriptors
                    .get(self.done as usize)
                    .is_some_and(|descriptor| descriptor.length == 0)
                {
                    self.done += 1;
                }
                match self.descriptors.get(self.done as usize) {
                    None => Next::Finish,
                    Some(descriptor) => match check(descriptor) {
                        Ok(()) => Next::Read {
                            iova: descriptor.source + u64::from(offset),
                            length: ((descriptor.length - offset) as usize).min(MAX_DMA),
                        },
                        Err(status) => Next::Fail(status),
                    },
                }
            }
            _ => Next::Nothing,
        }
    }

    /// The core has no room: have [`Device::step`] try again, but not at once.
    fn retry_later(&mut self, context: &mut Context<'_>) {
        let time = context.now() + RETRY;
        self.retry_at = Some(time);
        context.wake_at(time);
    }

    fn set_under_way(&mut self, now: bool) {
        match &mut self.state {
            State::Idle => {}
            State::List { under_way } | State::Copy { under_way, .. } => *under_way = now,
        }
    }

    /// The list came.
    fn load(&mut self, bytes: &[u8]) {
        let size = size_of::<Descriptor>();
        self.descriptors.clear();
        self.descriptors
            .extend(bytes.chunks_exact(size).filter_map(|bytes| Descriptor::read_from_bytes(bytes).ok()));
        self.state = State::Copy { offset: 0, under_way: false };
    }

    /// Where the piece goes that was read.
    fn destination(&self) -> u64 {
        match (self.state, self.descriptors.get(self.done as usize)) {
            (State::Copy { offset, .. }, Some(descriptor)) => descriptor.destination + u64::from(offset),
            _ => 0,
        }
    }

    /// `length` more bytes of the descriptor are copied.
    fn copied(&mut self, length: u32) {
        let State::Copy { offset, .. } = self.state else { return };
        let offset = offset + length;
        let over =
            self.descriptors.get(self.done as usize).is_none_or(|descriptor| offset >= descriptor.length);
        self.done += u32::from(over);
        self.state = State::Copy { offset: if over { 0 } else { offset }, under_way: false };
    }

    /// Show the client, in its mirror, how the last start ended.
    fn publish(&self) {
        let Some(mirror) = &self.mirror else { return };
        // The places are constants inside a BAR that `spec` asked for.
        let _ = mirror.u32(MIRROR_STATUS).map(|word| word.store(self.status, Ordering::Relaxed));
        let _ = mirror.u32(MIRROR_DONE).map(|word| word.store(self.done, Ordering::Relaxed));
        let _ = mirror.u64(MIRROR_ENDED).map(|word| word.store(self.ended, Ordering::Release));
    }
}

/// Whether a descriptor with bytes makes sense; else the status bit that says why not.
fn check(descriptor: &Descriptor) -> Result<(), u32> {
    if descriptor.length > MAX_LENGTH || descriptor.reserved != 0 {
        return Err(STATUS_BAD_DESCRIPTOR);
    }
    let last = u64::from(descriptor.length) - 1;
    // No address of it may lie behind the end of the address space.
    match (descriptor.source.checked_add(last), descriptor.destination.checked_add(last)) {
        (Some(_), Some(_)) => Ok(()),
        _ => Err(STATUS_DMA_ERROR),
    }
}
