//! Data movement.
//!
//! Mapped memory is copied once, from the source directly to the destination.
//!
//! Memory that is accessed by DMA messages is read into a [`StagingBuffer`] of this card, which
//! takes the place of the source. It is written by messages of at most `MAX_DMA` bytes. Each 64 KiB
//! cost two copies and one more round trip of a message.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    dma::{DmaError, DmaLease, LeaseError, MAX_DMA, Term},
    ids::{AttachmentId, DmaToken},
    time::Nanos,
};
use nicforge_hwi::extoll_rma::status;
use nicforge_shm::{SharedMemory, Window};

use super::{Rma, side_queue::SideQueue};
use crate::{atu::Region, config::MAX_RMA_MTU, unit::UnitContext, wire::Endpoint};

/// Time after which the memory of a client that has not answered a message counts as withdrawn, in
/// nanoseconds.
pub(super) const MAX_ANSWER_TIME: u64 = 100_000_000;

const _: () = assert!(MAX_RMA_MTU as usize <= MAX_DMA);

/// Progress of a packet, and the time since which it waits for a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// Number of bytes that were moved or answered.
    pub(super) done: u32,
    /// Number of the region that these bytes belong to.
    region: u64,
    /// The time since which the packet waits for a client's answer.
    since: Option<Nanos>,
    /// The generation of the target's notification queue when a put's first part arrived.
    pub(super) queue_generation: Option<u32>,
    /// Whether the packet may not wait any longer.
    pub(super) is_last_attempt: bool,
}

impl Waiting {
    /// Begins or continues to wait. Returns whether there is time left.
    pub(super) fn wait(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        !self.is_last_attempt && now < since.after(MAX_ANSWER_TIME)
    }

    /// Returns whether the packet has waited for a client.
    pub(super) fn has_waited(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the number of nanoseconds for which the packet has waited.
    pub(super) fn waited(&self, now: Nanos) -> u64 {
        self.since.map_or(0, |since| now.0.saturating_sub(since.0))
    }
}

/// The data of a part.
pub(super) enum Data<'a> {
    /// The data are in memory, from this offset on.
    Memory(&'a DmaLease, u64),
    /// The data of an immediate put.
    Word([u8; 8]),
    /// There are no data: the packet is not one that a card sends.
    Missing,
}

/// The outcome of an attempt to move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    /// All bytes have moved.
    Done,
    /// A message has to be answered first.
    Wait,
    /// The memory of one end is gone.
    Withdrawn,
}

/// Reasons why bytes did not move.
enum Failed {
    /// A DMA message has to be answered first.
    Busy,
    /// The memory of one end is gone.
    Withdrawn,
}

impl From<LeaseError> for Failed {
    fn from(_: LeaseError) -> Self {
        Self::Withdrawn
    }
}

/// Moves `length` bytes to an offset of a region, from byte `done` on, and advances `done`.
pub(super) fn deposit(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    (region, offset): (&Region, u64),
    data: &Data<'_>,
    length: u32,
    done: &mut u32,
) -> MoveOutcome {
    while *done < length {
        let Some(piece) = region.piece(offset + u64::from(*done), u64::from(length - *done)) else {
            return MoveOutcome::Withdrawn;
        };

        let moved = match piece.lease {
            Some((target, within)) => copy(data, *done, target, within, piece.length),
            None => {
                write(context, scratch, AttachmentId(region.owner), data, *done, (piece.iova, piece.length))
            }
        };

        match moved {
            // The length fits: it is at most `length`.
            Ok(()) => *done += piece.length as u32,
            Err(Failed::Busy) => return MoveOutcome::Wait,
            Err(Failed::Withdrawn) => return MoveOutcome::Withdrawn,
        }
    }
    MoveOutcome::Done
}

/// Copies `length` bytes of the data, from byte `done` on, to mapped memory.
#[inline]
fn copy(data: &Data<'_>, done: u32, target: &DmaLease, within: u64, length: u64) -> Result<(), Failed> {
    match data {
        Data::Memory(source, offset) => source.copy_to(offset + u64::from(done), target, within, length)?,
        Data::Word(bytes) => target.write(within, word(bytes, done, length)?)?,
        Data::Missing => return Err(Failed::Withdrawn),
    }
    Ok(())
}

/// Returns `length` bytes of an immediate put's data, from byte `done` on.
fn word(bytes: &[u8; 8], done: u32, length: u64) -> Result<&[u8], Failed> {
    let done = done as usize;
    bytes.get(done..done + length as usize).ok_or(Failed::Withdrawn)
}

/// Writes `length` bytes of the data, from byte `done` on, to memory that is accessed by DMA
/// messages.
fn write(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    owner: AttachmentId,
    data: &Data<'_>,
    done: u32,
    (iova, length): (u64, u64),
) -> Result<(), Failed> {
    let written = match data {
        Data::Memory(source, offset) => {
            if scratch.is_empty() {
                *scratch = vec![0; MAX_DMA].into_boxed_slice();
            }
            let bytes = scratch.get_mut(..length as usize).ok_or(Failed::Withdrawn)?;
            source.read(offset + u64::from(done), bytes)?;
            context.dma_write(owner, iova, bytes)
        }
        Data::Word(bytes) => context.dma_write(owner, iova, word(bytes, done, length)?),
        Data::Missing => return Err(Failed::Withdrawn),
    };

    written.map_err(|error| if error == DmaError::Busy { Failed::Busy } else { Failed::Withdrawn })
}

/// The contents of a staging buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    Nothing,
    /// The read of these data has been started.
    Reading(ReadKey),
    /// The data are in the buffer.
    Ready(ReadKey),
    /// The data could not be read.
    Failed(ReadKey),
}

/// The identity of data that are read by DMA messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadKey {
    pub(super) requester: Endpoint,
    /// The requester's number for the command.
    pub(super) id: u32,
    /// Offset in the command.
    pub(super) at: u32,
    pub(super) iova: u64,
    pub(super) length: u32,
}

/// A buffer of the card for data that are read by DMA messages, as large as the data of one packet.
/// Its memory is created when it is first needed.
#[derive(Default)]
pub(super) struct StagingBuffer {
    memory: Option<Window>,
    /// Term of the lease.
    term: Term,
    /// The lease that packets refer to. While a packet holds it, no new read starts.
    lease: Option<Arc<DmaLease>>,
    content: Content,
    /// Number of the last read. An answer to an earlier one is dropped.
    generation: u32,
}

impl StagingBuffer {
    /// Empties the buffer. An expected answer is dropped, and packets that refer to the buffer lose
    /// their data.
    pub(super) fn abandon(&mut self) {
        self.term.end();
        self.term = Term::default();
        self.lease = None;
        self.content = Content::Nothing;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Drops the data of a command that no longer needs them.
    pub(super) fn drop_data(&mut self, requester: Endpoint, id: u32) {
        let (Content::Reading(read_key) | Content::Ready(read_key) | Content::Failed(read_key)) =
            self.content
        else {
            return;
        };

        if (read_key.requester, read_key.id) == (requester, id) {
            self.content = Content::Nothing;
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Returns a lease of the requested data if they have been read. The buffer stays in use until
    /// the caller's lease is dropped. Otherwise starts the read if the buffer is free, and returns
    /// `Ok(None)`.
    ///
    /// # Errors
    /// The data can't be read.
    pub(super) fn fetch(
        &mut self,
        context: &mut Context<'_>,
        owner: AttachmentId,
        role: Role,
        read_key: ReadKey,
    ) -> Result<Option<Arc<DmaLease>>, Unreadable> {
        match self.content {
            Content::Ready(content_key) if content_key == read_key => {
                self.content = Content::Nothing;
                return Ok(self.lease.clone());
            }
            Content::Failed(content_key) if content_key == read_key => {
                self.content = Content::Nothing;
                return Err(Unreadable);
            }
            // The buffer serves this request, or one in another queue, which will fetch its data or
            // give them up.
            Content::Reading(_) | Content::Ready(_) | Content::Failed(_) => return Ok(None),
            Content::Nothing => {}
        }

        if self.lease.as_ref().is_some_and(|lease| Arc::strong_count(lease) > 1) {
            return Ok(None);
        }

        if self.memory.is_none() {
            let memory = SharedMemory::create("rma-stage", MAX_DMA).map_err(|_| Unreadable)?;
            self.memory = Some(memory.whole());
        }

        if let (Some(memory), None) = (&self.memory, &self.lease) {
            self.lease = Some(Arc::new(DmaLease::new(memory.clone(), self.term.clone())));
        }

        self.generation = self.generation.wrapping_add(1);
        let token = DmaToken(u64::from(self.generation) << 1 | role as u64);
        if context.dma_read(owner, read_key.iova, read_key.length as usize, token).is_ok() {
            self.content = Content::Reading(read_key);
        }
        Ok(None)
    }

    /// Takes the answer to a read.
    fn arrived(&mut self, generation: u32, result: Result<&[u8], DmaError>) {
        let Content::Reading(read_key) = self.content else { return };
        if generation != self.generation {
            return;
        }

        let is_complete = match (result, &self.memory) {
            (Ok(bytes), Some(memory)) => {
                bytes.len() == read_key.length as usize && memory.write(0, bytes).is_ok()
            }
            _ => false,
        };

        self.content = if is_complete { Content::Ready(read_key) } else { Content::Failed(read_key) };
    }
}

/// Memory that a packet refers to.
pub(super) struct PacketMemory {
    pub(super) lease: Arc<DmaLease>,
    /// Offset of the data in the lease.
    pub(super) offset: u64,
    /// Length of the data in bytes.
    pub(super) length: u32,
    /// Whether the memory is a staging buffer.
    pub(super) staged: bool,
}

/// The memory can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// The command for which a staging buffer is used. It is the lowest bit of the read's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A put from the client's memory.
    Put = 0,
    /// A get from the client's memory.
    Get = 1,
}

impl Rma {
    /// Handles the reply to a read by DMA messages. After an answer without an error, the client
    /// counts as responsive again.
    pub(crate) fn read_answered(
        &mut self,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let Some(client) = self.client(attachment) else { return };
        client.unresponsive &= result.is_err();
        client.side_queues.iter_mut().for_each(SideQueue::retry_now);

        let buffer =
            if token.0 & 1 == Role::Put as u64 { &mut client.data_reads } else { &mut client.answer_reads };
        buffer.arrived((token.0 >> 1) as u32, result);
    }

    /// Moves the data of a part to an address of a region of this card; `rest` are the bytes of the
    /// command from that address on. Returns the status after the move, or `None` if the data have
    /// to wait.
    pub(super) fn move_in(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        (address, rest): (u64, u64),
        data: &Data<'_>,
        length: u32,
        waiting: &mut Waiting,
    ) -> Option<u8> {
        let Some((region, offset)) = unit.parts.atu.find(address, rest) else {
            return Some(status::WITHDRAWN);
        };

        let before = waiting.done;
        if before > 0 && waiting.region != region.serial {
            return Some(status::WITHDRAWN);
        }

        waiting.region = region.serial;
        let to = (region, offset);
        let moved = deposit(unit.context, &mut self.scratch, to, data, length, &mut waiting.done);
        self.bytes += u64::from(waiting.done - before);

        let client = self.clients.get_mut(AttachmentId(region.owner))?;
        match moved {
            MoveOutcome::Done => {
                client.unresponsive = false;
                Some(status::DONE)
            }
            MoveOutcome::Withdrawn => Some(status::WITHDRAWN),
            MoveOutcome::Wait if !client.unresponsive && waiting.wait(unit.context.now()) => None,
            MoveOutcome::Wait => {
                client.unresponsive |= !waiting.is_last_attempt;
                Some(status::WITHDRAWN)
            }
        }
    }
}
