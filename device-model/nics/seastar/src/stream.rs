//! A stream of the demultiplexer: a message that is being received.

use crc32fast::Hasher;
use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::seastar::Piece;
use nicforge_seastar_firmware::chip::{Pieces, TransferStatus};

use crate::{
    leased::WriteLease,
    memory::{Access, Cursor, MemoryOwner, Reader, Run, Tenants},
    reference::{MAX_LEASE, Reference, is_over},
    wait_budgets::Wait,
};

/// A stream of the demultiplexer.
pub(crate) struct Stream {
    pub(crate) state: State,
    /// The sender's node.
    pub(crate) source: u32,
    pub(crate) source_incarnation: u32,
    /// Bytes of data of the message.
    pub(crate) length: u32,
    /// Bytes in packets that were taken.
    pub(crate) arrived: u32,
    /// Bytes of the packet in front of the FIFO that are in client memory already.
    pub(crate) deposited: usize,
    pub(crate) destination: Destination,
    /// The end-to-end check so far, if there is one.
    pub(crate) check: Option<Hasher>,
    /// Data of the message are wrong: there were more than its length, or the sender's memory was
    /// withdrawn.
    pub(crate) is_corrupt: bool,
    /// How the message has ended, until that is reported to the firmware.
    pub(crate) status: Option<TransferStatus>,
}

/// State of a stream. The module of the receive engine shows the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has no message.
    Free,
    /// The firmware has not set the destination.
    Waiting,
    /// The destination is set: data are moved to it.
    Moving,
    /// It was cut, and the firmware has not set the destination.
    Cut,
    /// It was cut and had a destination: its end must be reported to the firmware.
    Ending,
}

/// Where the data of a stream go.
pub(crate) struct Destination {
    /// Where the next data go.
    pub(crate) cursor: Cursor,
    /// Bytes that are kept. The rest of a longer message is discarded.
    pub(crate) length: u32,
    /// Its memory could not be accessed: no more data are moved to it.
    pub(crate) is_faulty: bool,
    /// The attachment whose memory data were last copied to, and the lease of that memory.
    pub(crate) lease: Option<(u16, WriteLease)>,
    /// Attachments that may not have answered all writes of data by message, as a bit mask.
    posted: u16,
}

/// The parts of the engine that a deposit needs besides its stream.
pub(crate) struct Memory<'a> {
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) reader: &'a mut Reader,
    /// The wait of the deposit for its client, if it waits.
    pub(crate) wait: &'a mut Option<Wait>,
    /// Buffer for data that go to memory that only messages reach.
    pub(crate) buffer: &'a mut Vec<u8>,
}

/// Maximum number of bytes that one message writes.
const MAX_BY_MESSAGE: usize = 8 << 10;

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
            status: None,
        }
    }

    /// Writes the data of a packet to client memory, as far as they are kept. After
    /// [`Access::Wait`], the caller must repeat the call. A fault of the memory is recorded in the
    /// destination.
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
            let owner = destination.owner_of(&piece);
            match tenants.write(context, owner, piece.address, part, wait) {
                Access::Done => {
                    destination.note_written(context, owner.attachment_id);
                    destination.cursor.advance(bytes);
                    self.deposited += bytes;
                }
                Access::Wait => return Access::Wait,
                Access::Fault => destination.is_faulty = true,
            }
        }
        Access::Done
    }

    /// Drops the lease of the receiver's memory, and with it the memory's file, after the message.
    pub(crate) fn release_lease(&mut self) {
        self.destination.lease = None;
    }

    /// Drops the lease of the receiver's memory if it is over, and with it the memory's file.
    pub(crate) fn release_lease_if_over(&mut self) {
        self.destination.lease.take_if(|(_, lease)| lease.is_over());
    }

    /// Copies the data of a packet that refers to the sender's memory, up to the destination's
    /// length. It continues where an earlier call had to wait. For memory that the sender has
    /// withdrawn, zeros are written, and the message counts as corrupt.
    pub(crate) fn copy_referenced(
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

            let owner = destination.owner_of(&piece);
            if !tenants.is_known(owner.attachment_id, owner.latest_tenant) {
                destination.is_faulty = true;
                break;
            }

            let mut bytes = (piece.length as usize).min(kept - self.deposited);
            let source_offset = reference.offset.saturating_add(self.deposited as u64);
            if !destination.copy_direct(context, &piece, bytes, source, source_offset) {
                // A direct copy is not possible: the receiver's memory is not mapped here and is
                // written by messages, or the memory of one side was unmapped.
                bytes = bytes.min(MAX_BY_MESSAGE);
                self.is_corrupt |= !read_or_zero(source, source_offset, bytes, buffer);
                match tenants.write(context, owner, piece.address, buffer, wait) {
                    Access::Done => destination.note_written(context, owner.attachment_id),
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

        // The hardware reads data that are not kept, too. So it notices that their memory is gone.
        self.is_corrupt |= is_over(source);
        Access::Done
    }

    /// Counts the data of a packet whose deposit is complete, and adds them to the end-to-end
    /// check.
    pub(crate) fn count_data(&mut self, data: &[u8]) {
        self.count_bytes(data.len());
        if let Some(check) = &mut self.check {
            check.update(data);
        }
    }

    /// Counts the bytes of a packet whose deposit is complete.
    pub(crate) fn count_bytes(&mut self, bytes: usize) {
        self.deposited = 0;
        self.is_corrupt |= bytes > (self.length - self.arrived) as usize;
        self.arrived = self.arrived.saturating_add(bytes as u32).min(self.length);
    }

    /// Returns how the message has ended. `check` is the end-to-end check that came with it, and
    /// `is_corrupt` the sender's flag in the last packet.
    pub(crate) fn finish(&mut self, check: &[u8], is_corrupt: bool) -> TransferStatus {
        let expected = self.check.take().map(|check| check.finalize().to_le_bytes());
        let check_fits = expected.is_none_or(|expected| expected == check);
        let is_whole = self.arrived == self.length && !self.is_corrupt;

        if is_corrupt || !check_fits || !is_whole {
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

    /// Returns the client whose memory a piece is, as the call that set the destination knew it.
    fn owner_of(&self, piece: &Piece) -> MemoryOwner {
        let attachment_id = AttachmentId(piece.attachment);
        MemoryOwner { attachment_id, latest_tenant: self.cursor.latest_tenant() }
    }

    /// Records that data were written to a client: its answers must be awaited if writes by message
    /// are in flight. While they are, no data are copied directly.
    fn note_written(&mut self, context: &Context<'_>, attachment_id: AttachmentId) {
        self.posted |= u16::from(context.has_writes_in_flight(attachment_id)) << attachment_id.0;
    }

    /// Checks whether the clients have answered all writes of data by message. After
    /// [`Access::Wait`], the caller must repeat the call.
    pub(crate) fn await_answers(
        &mut self,
        context: &mut Context<'_>,
        tenants: &mut Tenants,
        wait: &mut Option<Wait>,
    ) -> Access {
        while self.posted != 0 {
            let attachment_id = AttachmentId(self.posted.trailing_zeros() as u16);
            let owner = MemoryOwner { attachment_id, latest_tenant: self.cursor.latest_tenant() };
            match tenants.await_answers(context, owner, wait) {
                // Clears the lowest bit, which is this client's.
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

    /// Copies `bytes` bytes at `source_offset` of the sender's lease to the start of a piece,
    /// through a lease of the receiver's memory that is kept for the next call. Returns false if
    /// that has failed, and possibly has written a part of the bytes.
    #[inline]
    fn copy_direct(
        &mut self,
        context: &mut Context<'_>,
        piece: &Piece,
        bytes: usize,
        source: &DmaLease,
        source_offset: u64,
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
        let is_copied = self.lease.as_ref().zip(at).is_some_and(|((_, lease), at)| {
            source.copy_to(source_offset, &lease.memory, at, bytes as u64).is_ok()
        });
        if !is_copied {
            self.lease = None;
        }
        is_copied
    }
}

/// Reads `bytes` bytes at an offset of a lease into a buffer. If the lease is over, fills the
/// buffer with zeros and returns false.
fn read_or_zero(source: &DmaLease, offset: u64, bytes: usize, buffer: &mut Vec<u8>) -> bool {
    buffer.resize(bytes, 0);
    let is_read = source.read(offset, buffer).is_ok();
    if !is_read {
        buffer.fill(0);
    }
    is_read
}
