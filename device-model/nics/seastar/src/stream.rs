//! A stream of the demultiplexer: a message that is being received.

use crc32fast::Hasher;
use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::seastar::Piece;
use nicforge_seastar_firmware::chip::{Pieces, TransferStatus};

use crate::{
    leased::WriteLease,
    memory::{Access, Cursor, Reader, Run, Tenants},
    reference::{MAX_LEASE, Reference, is_over},
    wait_budgets::Wait,
};

/// A stream of the demultiplexer.
pub(crate) struct Stream {
    pub(crate) state: State,
    pub(crate) source: u32,
    pub(crate) source_incarnation: u32,
    /// Bytes of the message, and those that have arrived.
    pub(crate) length: u32,
    pub(crate) arrived: u32,
    /// Bytes of the first packet in the FIFO that are in client memory.
    pub(crate) deposited: usize,
    pub(crate) destination: Destination,
    /// The end-to-end check so far, if there is one.
    pub(crate) check: Option<Hasher>,
    pub(crate) is_corrupt: bool,
    /// The message has ended so, and the firmware has not seen it.
    pub(crate) end: Option<TransferStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// The firmware has not set the destination.
    Waiting,
    Moving,
    /// The sender's incarnation has ended. The firmware has not set the destination.
    Cut,
    /// The sender's incarnation has ended, and the firmware has to see that.
    Ending,
}

/// Where the data of a stream go.
pub(crate) struct Destination {
    pub(crate) cursor: Cursor,
    /// Bytes that are kept.
    pub(crate) length: u32,
    pub(crate) is_faulty: bool,
    /// Memory of the attachment that data were copied to at last.
    pub(crate) lease: Option<(u16, WriteLease)>,
    /// Attachments to which data were written by messages, as a bit mask.
    posted: u16,
}

/// The parts that a deposit needs besides its stream.
pub(crate) struct Memory<'a> {
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) reader: &'a mut Reader,
    pub(crate) wait: &'a mut Option<Wait>,
    /// Data that go to memory that only messages reach.
    pub(crate) buffer: &'a mut Vec<u8>,
}

/// Maximum number of bytes that are written by a message.
const BY_MESSAGE: usize = 8 << 10;

impl Stream {
    /// Returns a stream that is free.
    pub(crate) fn unused() -> Self {
        Self {
            state: State::Free,
            source: 0,
            source_incarnation: 0,
            length: 0,
            arrived: 0,
            deposited: 0,
            destination: Destination::new(Cursor::new(&Pieces::None, 0), 0),
            check: None,
            is_corrupt: false,
            end: None,
        }
    }

    /// Moves the data of a packet to client memory, as far as they are kept.
    pub(crate) fn deposit(&mut self, context: &mut Context<'_>, memory: Memory<'_>, data: &[u8]) -> Access {
        let Memory { tenants, reader, wait, .. } = memory;
        let destination = &mut self.destination;
        let kept = (destination.length.saturating_sub(self.arrived) as usize).min(data.len());

        while self.deposited < kept && !destination.is_faulty {
            let piece = match destination.cursor.run(context, tenants, reader) {
                Run::Piece(piece) => piece,
                Run::Wait => return Access::Wait,
                Run::End => {
                    destination.is_faulty = true;
                    break;
                }
            };

            let bytes = (piece.length as usize).min(kept - self.deposited);
            let part = &data[self.deposited..self.deposited + bytes];
            let owner = (AttachmentId(piece.attachment), destination.cursor.latest_tenant());
            match tenants.write(context, owner, piece.address, part, wait) {
                Access::Done => {
                    destination.note_written(context, owner.0);
                    destination.cursor.advance(bytes);
                    self.deposited += bytes;
                }
                Access::Wait => return Access::Wait,
                Access::Fault => destination.is_faulty = true,
            }
        }
        Access::Done
    }

    /// Copies the data of a packet that refers to the sender's memory, up to the destination's
    /// length. It continues where an earlier call had to wait. For memory that the sender has
    /// withdrawn, zeros are written, and the message counts as corrupt.
    pub(crate) fn copy(
        &mut self,
        context: &mut Context<'_>,
        memory: Memory<'_>,
        reference: Reference,
        source: &DmaLease,
    ) -> Access {
        let Memory { tenants, reader, wait, buffer } = memory;
        let destination = &mut self.destination;
        let kept = destination.length.saturating_sub(self.arrived).min(reference.length) as usize;

        while self.deposited < kept && !destination.is_faulty {
            let piece = match destination.cursor.run(context, tenants, reader) {
                Run::Piece(piece) => piece,
                Run::Wait => return Access::Wait,
                Run::End => {
                    destination.is_faulty = true;
                    break;
                }
            };

            let owner = (AttachmentId(piece.attachment), destination.cursor.latest_tenant());
            if !tenants.is_known(owner.0, owner.1) {
                destination.is_faulty = true;
                break;
            }

            let mut bytes = (piece.length as usize).min(kept - self.deposited);
            let from = reference.offset.saturating_add(self.deposited as u64);
            if !destination.copy(context, &piece, bytes, source, from) {
                // A direct copy is not possible: the receiver's memory is not mapped here and is
                // written by messages, or one of both has been unmapped.
                bytes = bytes.min(BY_MESSAGE);
                self.is_corrupt |= !read_or_zero(source, from, bytes, buffer);
                match tenants.write(context, owner, piece.address, buffer, wait) {
                    Access::Done => destination.note_written(context, owner.0),
                    Access::Wait => return Access::Wait,
                    Access::Fault => {
                        destination.is_faulty = true;
                        break;
                    }
                }
            }

            destination.cursor.advance(bytes);
            self.deposited += bytes;
        }

        // Data that are not kept are read all the same in the hardware.
        self.is_corrupt |= is_over(source);
        Access::Done
    }

    /// Counts the data of a packet that was moved.
    pub(crate) fn count(&mut self, data: &[u8]) {
        self.count_bytes(data.len());
        if let Some(check) = &mut self.check {
            check.update(data);
        }
    }

    /// Counts bytes that were moved.
    pub(crate) fn count_bytes(&mut self, bytes: usize) {
        self.deposited = 0;
        self.is_corrupt |= bytes > (self.length - self.arrived) as usize;
        self.arrived = self.arrived.saturating_add(bytes as u32).min(self.length);
    }

    /// Returns how the message has ended. `check` is the end-to-end check that came with it.
    pub(crate) fn finish(&mut self, check: &[u8], is_corrupt: bool) -> TransferStatus {
        let expected = self.check.take().map(|check| check.finalize().to_le_bytes());
        let is_checked = expected.is_none_or(|expected| expected == check);
        let is_whole = self.arrived == self.length && !self.is_corrupt;

        if is_corrupt || !is_checked || !is_whole {
            TransferStatus::Corrupt
        } else if self.destination.is_faulty {
            TransferStatus::MemoryFault
        } else {
            TransferStatus::Complete
        }
    }
}

impl Destination {
    /// Returns a destination of which no byte has arrived.
    pub(crate) fn new(cursor: Cursor, length: u32) -> Self {
        Self { cursor, length, is_faulty: false, lease: None, posted: 0 }
    }

    /// Records that data were written. A copy is made only while no write by message is in flight.
    fn note_written(&mut self, context: &Context<'_>, attachment_id: AttachmentId) {
        self.posted |= u16::from(context.has_writes_in_flight(attachment_id)) << attachment_id.0;
    }

    /// Waits until the clients have answered all writes of data by message.
    pub(crate) fn await_answers(
        &mut self,
        context: &mut Context<'_>,
        tenants: &mut Tenants,
        wait: &mut Option<Wait>,
    ) -> Access {
        while self.posted != 0 {
            let attachment = self.posted.trailing_zeros() as u16;
            let owner = (AttachmentId(attachment), self.cursor.latest_tenant());
            match tenants.await_answers(context, owner, wait) {
                Access::Done => self.posted &= self.posted - 1,
                other => return other,
            }
        }
        Access::Done
    }

    /// Returns the client whose answers [`Self::await_answers`] waits for.
    pub(crate) fn awaited(&self) -> Option<AttachmentId> {
        (self.posted != 0).then(|| AttachmentId(self.posted.trailing_zeros() as u16))
    }

    /// Copies `bytes` at `from` of the sender's lease to a piece's begin, through a lease of the
    /// receiver's memory that is kept for the next call. Returns false if that failed; a part of
    /// the bytes may be there.
    #[inline]
    fn copy(
        &mut self,
        context: &mut Context<'_>,
        piece: &Piece,
        bytes: usize,
        source: &DmaLease,
        from: u64,
    ) -> bool {
        let find = |lease: &Option<(u16, WriteLease)>| {
            let (attachment, lease) = lease.as_ref()?;
            lease.find(piece.address, bytes).filter(|_| *attachment == piece.attachment)
        };
        if find(&self.lease).is_none() {
            let (attachment, length) = (piece.attachment, piece.length.min(MAX_LEASE).into());
            let lease = WriteLease::new(context, AttachmentId(attachment), piece.address, length);
            self.lease = lease.map(|lease| (attachment, lease));
        }

        let at = find(&self.lease);
        let is_copied =
            self.lease.as_ref().zip(at).is_some_and(|((_, lease), at)| {
                source.copy_to(from, &lease.memory, at, bytes as u64).is_ok()
            });
        if !is_copied {
            self.lease = None;
        }
        is_copied
    }
}

/// Reads `bytes` bytes of a lease into a buffer. If the lease is over, fills the buffer with zeros
/// and returns false.
fn read_or_zero(source: &DmaLease, from: u64, bytes: usize, buffer: &mut Vec<u8>) -> bool {
    buffer.resize(bytes, 0);
    let is_read = source.read(from, buffer).is_ok();
    if !is_read {
        buffer.fill(0);
    }
    is_read
}
