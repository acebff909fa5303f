//! A virtqueue of the split format (2.7) in client memory.
//!
//! `virtio-queue` keeps the rings' positions and reads the descriptors. This module checks what it
//! yields: a chain that ends early, is too long, or leaves memory is a [`QueueError`], after which
//! the device needs a reset. Each call does a bounded amount of work and allocates nothing.

use std::sync::atomic::{Ordering, fence};

use nicforge_core::dma::{DmaError, GuestMemoryView, MAX_DMA};
use thiserror::Error;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use crate::registers::{MAX_CHAIN, MAX_QUEUE_SIZE};

/// Bit of the available ring's flags: the driver wants no interrupt (2.7.6).
const AVAILABLE_NO_INTERRUPT: u16 = 1;

/// Reason why a queue can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The size is no power of two up to the largest, or a ring is misaligned.
    #[error("the queue's size or the alignment of its parts is wrong")]
    Layout,
    /// The available index runs ahead of the device by more than the queue's size.
    #[error("the available index has jumped by more than the size of the queue")]
    Index,
    /// The rings, a table or a buffer lie in memory that the device can't reach.
    #[error("the queue refers to memory that the device can't reach: {0}")]
    Memory(DmaError),
    /// A chain of descriptors has a loop or no end, or an index outside its table.
    #[error("a chain of descriptors does not end")]
    Chain,
    /// A descriptor has no bytes, or the wrong direction, or a buffer is too short or too long.
    #[error("a buffer has the wrong length or direction")]
    Buffer,
}

/// The direction of all buffers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads them.
    Read,
    /// The device writes them.
    Write,
    /// The device reads a first part, and writes a second one. Either may have no bytes.
    Both,
}

/// One piece of a buffer: the memory of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    iova: u64,
    length: u32,
}

/// The pieces of a buffer.
#[derive(Debug)]
pub struct Pieces {
    /// Those that the device may read.
    readable: Vec<Piece>,
    /// Those that the device may write, which follow the others in the chain.
    writable: Vec<Piece>,
}

/// The addresses and the size of a queue, as the driver sets them in registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLayout {
    /// Number of entries.
    pub size: u16,
    /// IOVA of the descriptor table.
    pub descriptors: u64,
    /// IOVA of the available ring.
    pub available: u64,
    /// IOVA of the used ring.
    pub used: u64,
}

/// A queue that the driver has enabled.
pub struct SplitQueue {
    ring: Queue,
    direction: Direction,
    /// The pieces of the buffer taken last.
    pieces: Pieces,
    /// The driver was asked to notify the device of new buffers.
    notifying: bool,
    /// The driver may have offered buffers since [`SplitQueue::take_or_ask`] found none.
    may_have_buffers: bool,
    /// Buffers were returned since the last check for an interrupt.
    returned: bool,
}

/// A buffer that the driver made available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Buffer {
    /// Number of its first descriptor in the table, which names the buffer in both rings.
    head: u16,
    /// Bytes that the device may read.
    pub readable: u64,
    /// Bytes that the device may write.
    pub writable: u64,
}

impl SplitQueue {
    /// Returns a queue whose positions are at the start of its rings. `event_index` says whether
    /// the driver has accepted that feature.
    ///
    /// # Errors
    /// [`QueueError::Layout`].
    pub fn new(layout: QueueLayout, direction: Direction, event_index: bool) -> Result<Self, QueueError> {
        let refusal = |_| QueueError::Layout;
        let mut ring = Queue::new(MAX_QUEUE_SIZE).map_err(refusal)?;
        ring.try_set_size(layout.size).map_err(refusal)?;
        ring.try_set_desc_table_address(GuestAddress(layout.descriptors)).map_err(refusal)?;
        ring.try_set_avail_ring_address(GuestAddress(layout.available)).map_err(refusal)?;
        ring.try_set_used_ring_address(GuestAddress(layout.used)).map_err(refusal)?;
        ring.set_event_idx(event_index);
        ring.set_ready(true);

        Ok(Self {
            ring,
            direction,
            pieces: Pieces::default(),
            // A zeroed used ring asks for notifications.
            notifying: true,
            may_have_buffers: true,
            returned: false,
        })
    }

    /// Takes the next buffer, if there is one, and asks the driver to send no notifications from
    /// then on. [`SplitQueue::descriptors`] returns the number of the buffer's descriptors.
    ///
    /// # Errors
    /// [`QueueError::Index`], [`QueueError::Memory`], [`QueueError::Chain`] and
    /// [`QueueError::Buffer`].
    pub fn take(&mut self, memory: &GuestMemoryView<'_>) -> Result<Option<Buffer>, QueueError> {
        self.pieces.clear();
        let mut available = self.ring.iter(memory).map_err(|error| queue_error(memory, &error))?;
        let Some(chain) = available.next() else {
            return memory.error().map_or(Ok(None), |error| Err(QueueError::Memory(error)));
        };

        let mut buffer = Buffer { head: chain.head_index(), readable: 0, writable: 0 };
        // The iterator of `virtio-queue` ends at the chain's end, but also at any error. The chain
        // is complete if its last descriptor has no successor.
        let mut is_complete = false;
        for descriptor in chain {
            if self.pieces.len() == MAX_CHAIN {
                return Err(QueueError::Chain);
            }

            let piece = Piece { iova: descriptor.addr().0, length: descriptor.len() };
            self.pieces.push(piece, descriptor.is_write_only(), self.direction)?;
            let bytes = if descriptor.is_write_only() { &mut buffer.writable } else { &mut buffer.readable };
            *bytes += u64::from(piece.length);
            is_complete = !descriptor.has_next();
        }

        // A table that can't be reached also ends the chain. Its error is the better reason.
        if let Some(error) = memory.error() {
            return Err(QueueError::Memory(error));
        }
        if !is_complete {
            return Err(QueueError::Chain);
        }

        self.suppress_notifications(memory)?;

        Ok(Some(buffer))
    }

    /// Puts the buffer taken last back, so that the next call takes it again.
    pub fn put_back(&mut self) {
        self.ring.go_to_previous_position();
    }

    /// Takes the next buffer as [`SplitQueue::take`] does. If there is none, the driver is asked
    /// for a notification of the next one, and the rings are not read again before it.
    ///
    /// The rings are left alone because a driver that has stopped may use their memory for other
    /// data long before another driver resets the device, as firmware does when it leaves a disk
    /// to the kernel.
    ///
    /// # Errors
    /// Those of [`SplitQueue::take`].
    pub fn take_or_ask(&mut self, memory: &GuestMemoryView<'_>) -> Result<Option<Buffer>, QueueError> {
        if !self.may_have_buffers {
            return Ok(None);
        }

        // A buffer that came before the driver saw the request has no notification, so it is taken
        // now.
        let mut taken = self.take(memory)?;
        if taken.is_none() && self.ask_for_notification(memory)? {
            taken = self.take(memory)?;
        }
        self.may_have_buffers = taken.is_some();

        Ok(taken)
    }

    /// Records a notification of the driver, after which the rings may be read again.
    pub(crate) fn record_notification(&mut self) {
        self.may_have_buffers = true;
    }

    /// Returns the number of descriptors of the buffer taken last.
    pub fn descriptors(&self) -> usize {
        self.pieces.len()
    }

    /// Copies bytes that the device may read of the buffer taken last, from `offset` on, to `out`.
    ///
    /// # Errors
    /// Those of [`Pieces::read`].
    #[inline]
    pub fn read(&self, memory: &GuestMemoryView<'_>, offset: u64, out: &mut [u8]) -> Result<(), QueueError> {
        self.pieces.read(memory, offset, out)
    }

    /// Copies `data` to the buffer taken last, from `offset` of the bytes that the device may
    /// write.
    ///
    /// # Errors
    /// Those of [`Pieces::read`].
    #[inline]
    pub fn write(&self, memory: &GuestMemoryView<'_>, offset: u64, data: &[u8]) -> Result<(), QueueError> {
        self.pieces.write(memory, offset, data)
    }

    /// Exchanges the pieces of the buffer taken last with others, so that the device can use them
    /// after further buffers were taken.
    pub fn swap_pieces(&mut self, pieces: &mut Pieces) {
        std::mem::swap(&mut self.pieces, pieces);
    }

    /// Returns a buffer to the driver. `written` is the number of bytes that the device has written
    /// without a gap from the first byte on that it may write (2.7.8.2).
    ///
    /// # Errors
    /// [`QueueError::Memory`].
    pub fn give_back(
        &mut self,
        memory: &GuestMemoryView<'_>,
        buffer: Buffer,
        written: u32,
    ) -> Result<(), QueueError> {
        self.returned = true;
        self.ring.add_used(memory, buffer.head, written).map_err(|error| queue_error(memory, &error))
    }

    /// Returns whether the driver wants an interrupt for the buffers returned since the last call.
    pub fn needs_interrupt(&mut self, memory: &GuestMemoryView<'_>) -> Result<bool, QueueError> {
        if !std::mem::take(&mut self.returned) {
            return Ok(false);
        }
        if self.ring.event_idx_enabled() {
            return self.ring.needs_notification(memory).map_err(|error| queue_error(memory, &error));
        }

        // The used index must be visible before the flags are read: the driver clears the flag, and
        // then looks at the index again.
        fence(Ordering::SeqCst);
        let flags = memory.load::<u16>(GuestAddress(self.ring.avail_ring()), Ordering::Relaxed);
        let flags = flags.map_err(|_| access_error(memory))?;

        Ok(u16::from_le(flags) & AVAILABLE_NO_INTERRUPT == 0)
    }

    /// Returns whether the driver was asked to notify the device of new buffers.
    pub fn is_notifying(&self) -> bool {
        self.notifying
    }

    /// Asks the driver for no notifications, because the device polls the queue.
    fn suppress_notifications(&mut self, memory: &GuestMemoryView<'_>) -> Result<(), QueueError> {
        if std::mem::take(&mut self.notifying) {
            self.ring.disable_notification(memory).map_err(|error| queue_error(memory, &error))?;
        }
        Ok(())
    }

    /// Asks the driver for a notification of the next buffer, until one is taken. Returns whether a
    /// buffer came in the meantime, of which there may be no notification.
    pub fn ask_for_notification(&mut self, memory: &GuestMemoryView<'_>) -> Result<bool, QueueError> {
        if self.notifying {
            return Ok(false);
        }

        self.notifying = true;
        self.ring.enable_notification(memory).map_err(|error| queue_error(memory, &error))
    }
}

impl Default for Pieces {
    /// Returns the pieces of no buffer, with room for those of the longest chain.
    fn default() -> Self {
        Self { readable: Vec::with_capacity(MAX_CHAIN), writable: Vec::with_capacity(MAX_CHAIN) }
    }
}

impl Pieces {
    /// Removes all pieces.
    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }

    /// Returns the number of pieces.
    fn len(&self) -> usize {
        self.readable.len() + self.writable.len()
    }

    /// Adds the next piece of a chain. It fails if the piece has no bytes, if the queue has no
    /// buffers of its direction, or if it is readable and follows a writable one.
    #[inline]
    fn push(&mut self, piece: Piece, is_writable: bool, direction: Direction) -> Result<(), QueueError> {
        let pieces = match (direction, is_writable) {
            (Direction::Write | Direction::Both, true) => &mut self.writable,
            (Direction::Read | Direction::Both, false) if self.writable.is_empty() => &mut self.readable,
            _ => return Err(QueueError::Buffer),
        };
        if piece.length == 0 {
            return Err(QueueError::Buffer);
        }
        pieces.push(piece);
        Ok(())
    }

    /// Copies bytes that the device may read, from `offset` on, to `out`.
    ///
    /// # Errors
    /// [`QueueError::Memory`], and [`QueueError::Buffer`] if the buffer is shorter.
    pub fn read(&self, memory: &GuestMemoryView<'_>, offset: u64, out: &mut [u8]) -> Result<(), QueueError> {
        let mut rest = out;
        for_pieces(&self.readable, offset, rest.len(), |iova, length| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(length);
            rest = behind;
            memory.copy_from(iova, part)
        })
    }

    /// Copies `data` to the bytes that the device may write, from `offset` on.
    ///
    /// # Errors
    /// Those of [`Pieces::read`].
    pub fn write(&self, memory: &GuestMemoryView<'_>, offset: u64, data: &[u8]) -> Result<(), QueueError> {
        let mut rest = data;
        for_pieces(&self.writable, offset, data.len(), |iova, length| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            memory.copy_to(iova, part)
        })
    }
}

/// Calls `copy` with the address and length of each part of a buffer's bytes from `offset` to
/// `offset + length`. A part has at most [`MAX_DMA`] bytes.
#[inline]
fn for_pieces(
    pieces: &[Piece],
    offset: u64,
    length: usize,
    mut copy: impl FnMut(u64, usize) -> Result<(), DmaError>,
) -> Result<(), QueueError> {
    // Bytes to skip from the start of the current piece, and bytes that are left to copy.
    let (mut skip, mut remaining) = (offset, length);
    for piece in pieces {
        let size = u64::from(piece.length);
        if skip >= size {
            skip -= size;
            continue;
        }

        while remaining > 0 && skip < size {
            let count = remaining.min((size - skip) as usize).min(MAX_DMA);
            // A sum beyond the address space is an address where nothing is mapped.
            let iova = piece.iova.saturating_add(skip);
            copy(iova, count).map_err(QueueError::Memory)?;
            (skip, remaining) = (skip + count as u64, remaining - count);
        }
        if remaining == 0 {
            break;
        }
        skip = 0;
    }

    if remaining == 0 { Ok(()) } else { Err(QueueError::Buffer) }
}

/// Returns the reason why a queue can't be used any more, for an error of `virtio-queue`.
#[cold]
fn queue_error(memory: &GuestMemoryView<'_>, error: &virtio_queue::Error) -> QueueError {
    match error {
        virtio_queue::Error::InvalidAvailRingIndex => QueueError::Index,
        virtio_queue::Error::InvalidDescriptorIndex => QueueError::Chain,
        _ => access_error(memory),
    }
}

/// Returns the reason why an access to the rings failed. The memory has recorded an error, unless
/// the accessed word crosses two mappings or is misaligned.
#[cold]
fn access_error(memory: &GuestMemoryView<'_>) -> QueueError {
    memory.error().map_or(QueueError::Layout, QueueError::Memory)
}
