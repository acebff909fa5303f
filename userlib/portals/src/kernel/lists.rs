//! The kernel's memory for the DMA engines: command lists, and data of short messages.

use nicforge_driver::{Device, DmaBuffer, HugePages};
use nicforge_hwi::seastar::{INLINE, KERNEL, KERNEL_MESSAGES, MAX_PIECES, PIECES, Piece, STREAMS};
use zerocopy::IntoBytes;

use crate::{Error, region::Pieces};

/// Number of command lists for messages that are received: one for each stream of the card.
const RECEIVE_LISTS: u16 = STREAMS;
/// Number of command lists for messages that are sent: as many as can be in flight.
const SEND_LISTS: u16 = KERNEL_MESSAGES;
/// Number of all command lists, which take 5 MiB.
const LISTS: u16 = RECEIVE_LISTS + SEND_LISTS;
/// Number of command lists in a buffer of 1 MiB. In a guest with the shim a buffer is contiguous,
/// so that there is none for all lists.
const LISTS_OF_BUFFER: u16 = 64;
/// Maximum number of messages in flight that the kernel has sent.
pub(crate) const MAX_SENDS: u16 = 1024;
/// Bytes of a command list.
const LIST_BYTES: u64 = (MAX_PIECES * size_of::<Piece>()) as u64;

/// The pieces of a message's memory, as a command describes them to the DMA engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scatter {
    /// The pieces, if they are not in a command list.
    pub(crate) pieces: [Piece; PIECES],
    /// Number of pieces.
    pub(crate) count: u16,
    /// Address of the command list, or 0 without one.
    pub(crate) address: u64,
    /// Index of the command list, which is in use until the message has ended.
    pub(crate) list: Option<u16>,
}

/// Direction of a message. Each has command lists of its own: the acknowledgements that free those
/// of messages that are sent come behind the data of messages that are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// Reason why memory can't be described to the DMA engine.
pub(crate) enum NoScatter {
    /// All command lists of the direction are in use. It is possible later.
    Later,
    /// The memory has too many pieces, or is not the process's.
    Never,
}

/// The kernel's memory for the DMA engines.
pub(crate) struct Lists {
    /// All command lists, [`LISTS_OF_BUFFER`] in each: first those for receiving, then those for
    /// sending.
    lists: Vec<DmaBuffer>,
    /// Indices of the free command lists for messages that are received.
    free_for_receives: Vec<u16>,
    /// Indices of the free command lists for messages that are sent.
    free_for_sends: Vec<u16>,
    /// Data of short messages, one slot for each message in flight.
    inline: DmaBuffer,
}

impl Lists {
    /// Allocates the memory from the kernel's attachment.
    pub(crate) fn allocate(device: &Device) -> Result<Self, Error> {
        let bytes = usize::from(LISTS_OF_BUFFER) * LIST_BYTES as usize;
        let lists = (0..LISTS).step_by(LISTS_OF_BUFFER.into());
        Ok(Self {
            lists: lists.map(|_| device.dma_buffer(bytes, HugePages::Try)).collect::<Result<_, _>>()?,
            free_for_receives: (0..RECEIVE_LISTS).rev().collect(),
            free_for_sends: (RECEIVE_LISTS..LISTS).rev().collect(),
            inline: device.dma_buffer(usize::from(MAX_SENDS) * INLINE, HugePages::Never)?,
        })
    }

    /// Describes a range of a region of a process to the DMA engine, for a message of a direction.
    pub(crate) fn scatter(
        &mut self,
        direction: Direction,
        process: u16,
        region: &Pieces,
        offset: u64,
        length: u64,
    ) -> Result<Scatter, NoScatter> {
        if length == 0 {
            return Ok(Scatter::default());
        }

        let count = if region.buffers.len() == 1 {
            1
        } else {
            (offset + length - 1) / region.piece - offset / region.piece + 1
        };
        if count > MAX_PIECES as u64 {
            return Err(NoScatter::Never);
        }
        let mut scatter = Scatter { count: count as u16, ..Scatter::default() };
        if count > PIECES as u64 {
            let free = match direction {
                Direction::Receive => &mut self.free_for_receives,
                Direction::Send => &mut self.free_for_sends,
            };
            let list = free.pop().ok_or(NoScatter::Later)?;
            scatter.list = Some(list);
            let (buffer, offset) = self.place_of(list);
            scatter.address = buffer.iova() + offset;
        }

        let filled = self.fill(&mut scatter, process, region, offset, length);
        if filled.is_err() {
            self.release(&scatter);
            return Err(NoScatter::Never);
        }
        Ok(scatter)
    }

    /// Returns the buffer of a command list, and its offset there.
    fn place_of(&self, list: u16) -> (&DmaBuffer, u64) {
        let buffer = &self.lists[usize::from(list / LISTS_OF_BUFFER)];
        (buffer, u64::from(list % LISTS_OF_BUFFER) * LIST_BYTES)
    }

    /// Writes the pieces of a range into the command, or into its command list if it has one.
    fn fill(
        &self,
        scatter: &mut Scatter,
        process: u16,
        region: &Pieces,
        offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let mut index = 0;
        region.for_each_part(offset, length, |buffer, at, length| {
            let piece = Piece {
                address: buffer.iova() + at,
                length: length as u32,
                attachment: process + 1,
                reserved: 0,
            };

            match scatter.list {
                Some(list) => {
                    let (buffer, offset) = self.place_of(list);
                    buffer.write(offset + (index * size_of::<Piece>()) as u64, piece.as_bytes())?;
                }
                None => {
                    if let Some(slot) = scatter.pieces.get_mut(index) {
                        *slot = piece;
                    }
                }
            }
            index += 1;
            Ok(())
        })
    }

    /// Puts the data of a short message into the slot of its token, and describes the slot to the
    /// DMA engine.
    pub(crate) fn store_inline(
        &self,
        token: u16,
        data: &[u8; INLINE],
        length: u32,
    ) -> Result<Scatter, Error> {
        let slot = u64::from(token) * INLINE as u64;
        self.inline.write(slot, data)?;

        let mut scatter = Scatter { count: 1, ..Scatter::default() };
        let address = self.inline.iova() + slot;
        scatter.pieces[0] = Piece { address, length, attachment: KERNEL, reserved: 0 };
        Ok(scatter)
    }

    /// Frees the command list of a message that has ended.
    pub(crate) fn release(&mut self, scatter: &Scatter) {
        let Some(list) = scatter.list else { return };
        let free = if list < RECEIVE_LISTS { &mut self.free_for_receives } else { &mut self.free_for_sends };
        free.push(list);
    }
}
