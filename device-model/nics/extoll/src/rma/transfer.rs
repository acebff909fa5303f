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
use crate::{
    atu::{Region, RegionSerial},
    config::MAX_RMA_MTU,
    packet::Endpoint,
    unit::UnitContext,
};

/// Time after which the memory of a client that has not answered a message counts as withdrawn, in
/// nanoseconds.
pub(super) const MAX_ANSWER_TIME: u64 = 100_000_000;

const _: () = assert!(MAX_RMA_MTU as usize <= MAX_DMA);

/// Progress of a packet that is handled in several attempts, and the time since which it waits for
/// a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketProgress {
    /// Number of bytes that were moved or answered.
    pub(super) bytes_done: u32,
    /// The region that these bytes belong to.
    region: RegionSerial,
    /// The time since which the packet waits for a client's answer.
    since: Option<Nanos>,
    /// The generation of the target's notification queue when a put's first part arrived.
    pub(super) queue_generation: Option<u32>,
    /// Whether the packet may not wait any longer.
    pub(super) is_last_attempt: bool,
}

impl PacketProgress {
    /// Begins or continues to wait for a client. Returns whether the packet may wait longer.
    pub(super) fn keep_waiting(&mut self, now: Nanos) -> bool {
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

/// Reasons why data did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveError {
    /// A DMA message has to be answered first.
    Busy,
    /// The memory of one end is gone.
    Withdrawn,
}

impl From<LeaseError> for MoveError {
    fn from(_: LeaseError) -> Self {
        Self::Withdrawn
    }
}

/// Moves `length` bytes of data to a region, where they begin at `offset`. The first `done` bytes
/// have moved earlier; `done` is advanced by the bytes that move now. `scratch` is a buffer for
/// writes by DMA messages.
///
/// # Errors
/// Not all bytes have moved.
fn move_to_region(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    region: &Region,
    offset: u64,
    data: &Data<'_>,
    length: u32,
    done: &mut u32,
) -> Result<(), MoveError> {
    while *done < length {
        let piece =
            region.piece(offset + u64::from(*done), u64::from(length - *done)).ok_or(MoveError::Withdrawn)?;

        match piece.lease {
            Some((target, within)) => copy_to_mapped(data, *done, target, within, piece.length)?,
            None => {
                let owner = AttachmentId(region.owner);
                write_by_message(context, scratch, owner, data, *done, piece.iova, piece.length)?;
            }
        }

        // The length fits: it is at most `length`.
        *done += piece.length as u32;
    }
    Ok(())
}

/// Copies `length` bytes of the data, from byte `done` on, to offset `within` of mapped memory.
#[inline]
fn copy_to_mapped(
    data: &Data<'_>,
    done: u32,
    target: &DmaLease,
    within: u64,
    length: u64,
) -> Result<(), MoveError> {
    match data {
        Data::Memory(source, offset) => source.copy_to(offset + u64::from(done), target, within, length)?,
        Data::Word(bytes) => target.write(within, part_of_word(bytes, done, length)?)?,
        Data::Missing => return Err(MoveError::Withdrawn),
    }
    Ok(())
}

/// Returns `length` bytes of an immediate put's data, from byte `done` on.
fn part_of_word(bytes: &[u8; 8], done: u32, length: u64) -> Result<&[u8], MoveError> {
    let done = done as usize;
    bytes.get(done..done + length as usize).ok_or(MoveError::Withdrawn)
}

/// Writes `length` bytes of the data, from byte `done` on, to an address of the owner's memory that
/// is accessed by DMA messages. `scratch` is a buffer for the bytes.
fn write_by_message(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    owner: AttachmentId,
    data: &Data<'_>,
    done: u32,
    iova: u64,
    length: u64,
) -> Result<(), MoveError> {
    let written = match data {
        Data::Memory(source, offset) => {
            if scratch.is_empty() {
                *scratch = vec![0; MAX_DMA].into_boxed_slice();
            }
            let bytes = scratch.get_mut(..length as usize).ok_or(MoveError::Withdrawn)?;
            source.read(offset + u64::from(done), bytes)?;
            context.dma_write(owner, iova, bytes)
        }
        Data::Word(bytes) => context.dma_write(owner, iova, part_of_word(bytes, done, length)?),
        Data::Missing => return Err(MoveError::Withdrawn),
    };

    written.map_err(|error| match error {
        DmaError::Busy => MoveError::Busy,
        _ => MoveError::Withdrawn,
    })
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
    /// Offset of the data in the command.
    pub(super) offset: u32,
    /// Address of the data in the memory of the client that is read.
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
    /// Number of the last read. A read's token has its number above the lowest bit. An answer to an
    /// earlier read is dropped.
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

    /// Takes the answer to the read with this number.
    fn take_answer(&mut self, generation: u32, result: Result<&[u8], DmaError>) {
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
            if token.0 & 1 == Role::Put as u64 { &mut client.put_staging } else { &mut client.get_staging };
        buffer.take_answer((token.0 >> 1) as u32, result);
    }

    /// Moves the `length` bytes of a part's data to an address in a region of this card. All `rest`
    /// bytes of the command from that address on must lie in the region. Returns the status after
    /// the move, or `None` if the data have to wait.
    pub(super) fn move_in(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        address: u64,
        rest: u64,
        data: &Data<'_>,
        length: u32,
        packet_progress: &mut PacketProgress,
    ) -> Option<u8> {
        let Some((region, offset)) = unit.parts.atu.find(address, rest) else {
            return Some(status::WITHDRAWN);
        };

        let before = packet_progress.bytes_done;
        if before > 0 && packet_progress.region != region.serial {
            return Some(status::WITHDRAWN);
        }

        packet_progress.region = region.serial;
        let done = &mut packet_progress.bytes_done;
        let moved = move_to_region(unit.context, &mut self.scratch, region, offset, data, length, done);
        self.bytes += u64::from(packet_progress.bytes_done - before);

        let client = self.clients.get_mut(AttachmentId(region.owner))?;
        match moved {
            Ok(()) => {
                client.unresponsive = false;
                Some(status::DONE)
            }
            Err(MoveError::Withdrawn) => Some(status::WITHDRAWN),
            Err(MoveError::Busy)
                if !client.unresponsive && packet_progress.keep_waiting(unit.context.now()) =>
            {
                None
            }
            Err(MoveError::Busy) => {
                // A last attempt ends early, which says nothing about the client.
                client.unresponsive |= !packet_progress.is_last_attempt;
                Some(status::WITHDRAWN)
            }
        }
    }
}
