//! A stream of the demultiplexer: a message that is being received.

use crc32fast::Hasher;
use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_seastar_firmware::chip::{DataEnd, Pieces};

use crate::memory::{Access, Cursor, Reader, Run, Tenants};

/// A stream of the demultiplexer.
pub(crate) struct Stream {
    pub(crate) state: State,
    pub(crate) source: u32,
    pub(crate) source_life: u32,
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
    pub(crate) end: Option<DataEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// The firmware has not set the destination.
    Waiting,
    Moving,
    /// The sender's life has ended. The firmware has not set the destination.
    Cut,
    /// The sender's life has ended, and the firmware has to see that.
    Ending,
}

/// Where the data of a stream go.
pub(crate) struct Destination {
    pub(crate) cursor: Cursor,
    /// Bytes that are kept.
    pub(crate) length: u32,
    pub(crate) is_faulty: bool,
}

/// The parts that a deposit needs besides its stream.
pub(crate) struct Memory<'a> {
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) reader: &'a mut Reader,
    pub(crate) waits_since: &'a mut Option<Nanos>,
}

impl Stream {
    /// Returns a stream that is free.
    pub(crate) fn unused() -> Self {
        Self {
            state: State::Free,
            source: 0,
            source_life: 0,
            length: 0,
            arrived: 0,
            deposited: 0,
            destination: Destination { cursor: Cursor::new(&Pieces::None, 0), length: 0, is_faulty: false },
            check: None,
            is_corrupt: false,
            end: None,
        }
    }

    /// Moves the data of a packet to client memory, as far as they are kept.
    pub(crate) fn deposit(&mut self, context: &mut Context<'_>, memory: Memory<'_>, data: &[u8]) -> Access {
        let Memory { tenants, reader, waits_since } = memory;
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
            let owner = (AttachmentId(piece.attachment), destination.cursor.seen());
            match tenants.write(context, owner, piece.address, part, waits_since) {
                Access::Done => {
                    destination.cursor.advance(bytes);
                    self.deposited += bytes;
                }
                Access::Wait => return Access::Wait,
                Access::Fault => destination.is_faulty = true,
            }
        }
        Access::Done
    }

    /// Counts the data of a packet that was moved.
    pub(crate) fn count(&mut self, data: &[u8]) {
        self.deposited = 0;
        self.is_corrupt |= data.len() > (self.length - self.arrived) as usize;
        self.arrived = self.arrived.saturating_add(data.len() as u32).min(self.length);
        if let Some(check) = &mut self.check {
            check.update(data);
        }
    }

    /// Returns how the message has ended. `check` is the end-to-end check that came with it.
    pub(crate) fn finish(&mut self, check: &[u8], is_corrupt: bool) -> DataEnd {
        let expected = self.check.take().map(|check| check.finalize().to_le_bytes());
        let is_checked = expected.is_none_or(|expected| expected == check);
        let is_whole = self.arrived == self.length && !self.is_corrupt;

        if is_corrupt || !is_checked || !is_whole {
            DataEnd::Corrupt
        } else if self.destination.is_faulty {
            DataEnd::MemoryFault
        } else {
            DataEnd::Complete
        }
    }
}
