//! Requests in the other direction: `DMA_READ` and `DMA_WRITE` to a client that shares no memory.
//! They go out on the second socket where the client proposed one, and otherwise between the
//! replies.
//!
//! An operation is cut into messages of the client's `max_data_xfer_size`, of which one is in
//! flight at a time. So a tiny size makes that client's operations slow and has no other effect.

use zerocopy::IntoBytes;

use super::handler::{Handler, Token};
use crate::Errno;
use crate::socket::{FrameError, SendHalf};
use crate::types::DmaUnmap;
use crate::wire::{Command, DmaAccess, HEADER_SIZE, Header, parse_prefix};

/// Why an operation was not started.
#[derive(Debug, thiserror::Error)]
pub enum DmaError {
    /// All slots are taken, or too many bytes wait for the socket; try again after a completion.
    #[error("{outstanding} operations are outstanding and {queued} bytes wait for the socket: try later")]
    Busy {
        /// Operations that have not ended.
        outstanding: usize,
        /// Bytes that wait for the socket.
        queued: usize,
    },
    /// The range is empty, longer than 16 MiB, or runs over the end of the address space.
    #[error("a DMA operation of {len} bytes at {address:#x} is empty, too long, or overflows")]
    Range {
        /// First address.
        address: u64,
        /// Size in bytes.
        len: usize,
    },
    /// The connection has not been negotiated, or has ended.
    #[error("the connection is not established")]
    NotConnected,
    /// The request could not be sent.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Largest operation, in bytes.
pub(super) const MAX_LENGTH: usize = 16 << 20;

/// Whether the client's memory is read or written, and the data.
#[derive(Debug)]
enum Direction {
    /// A read, with the data received so far. It stays empty if one message brings all data.
    Read(Vec<u8>),
    /// A write, with the data behind its first message.
    Write(Vec<u8>),
}

/// A read or write of client memory, in as many messages as its length needs, one after the other.
#[derive(Debug)]
struct Operation {
    /// Message id of all its requests.
    id: u16,
    /// The handler's token.
    token: Token,
    /// First DMA address.
    address: u64,
    /// Size in bytes.
    len: usize,
    /// Bytes whose requests were answered.
    answered: usize,
    /// Bytes of the request in flight, which follow those that were answered.
    in_flight: usize,
    /// Whether the reply to the request in flight ends it early, because its memory was unmapped.
    ends_with_reply: bool,
    direction: Direction,
}

/// The operations in flight.
#[derive(Debug)]
pub(super) struct DmaTable {
    operations: Vec<Operation>,
    capacity: usize,
    /// The message id that was used last.
    last_id: u16,
}

impl DmaTable {
    pub(super) fn new(capacity: usize) -> Self {
        // Fewer operations than message ids, so that a free one is always found.
        let capacity = capacity.min(usize::from(u16::MAX));
        Self { operations: Vec::new(), capacity, last_id: 0 }
    }

    /// Returns the number of operations that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        self.operations.len()
    }

    /// Whether a write has bytes that no message has carried yet. A write that starts now overtakes
    /// them.
    pub(super) fn has_unsent_writes(&self) -> bool {
        self.operations.iter().any(|operation| {
            matches!(operation.direction, Direction::Write(_))
                && operation.answered + operation.in_flight < operation.len
        })
    }

    /// Returns an error if no operation on `len` bytes at `address` can start: the range is
    /// invalid, all slots are taken, or `max_queued` bytes or more are queued for the socket.
    fn check_start(
        &self,
        address: u64,
        len: usize,
        queued: usize,
        max_queued: usize,
    ) -> Result<(), DmaError> {
        if len == 0 || len > MAX_LENGTH || address.checked_add(len as u64 - 1).is_none() {
            return Err(DmaError::Range { address, len });
        }
        if self.operations.len() >= self.capacity || queued >= max_queued {
            return Err(DmaError::Busy { outstanding: self.operations.len(), queued });
        }
        Ok(())
    }

    /// Returns a message id that no operation has.
    fn fresh_id(&mut self) -> u16 {
        // There are fewer operations than ids, so the loop finds a free one.
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.operations.iter().all(|operation| operation.id != self.last_id) {
                return self.last_id;
            }
        }
    }

    /// Starts a read of client memory, whose result has `token`. It is sent in pieces, one after
    /// the other.
    pub(super) fn read(
        &mut self,
        out: &mut SendHalf<'_>,
        limits: DmaLimits,
        address: u64,
        len: usize,
        token: Token,
    ) -> Result<(), DmaError> {
        self.check_start(address, len, out.queued(), limits.max_queued)?;
        let id = self.fresh_id();
        let in_flight = len.min(limits.max_transfer);
        send_read(out, id, address, in_flight)?;

        self.operations.push(Operation {
            id,
            token,
            address,
            len,
            answered: 0,
            in_flight,
            ends_with_reply: false,
            direction: Direction::Read(Vec::new()),
        });
        Ok(())
    }

    /// Starts a write of client memory, whose result has `token`. It is sent in pieces, one after
    /// the other.
    pub(super) fn write(
        &mut self,
        out: &mut SendHalf<'_>,
        limits: DmaLimits,
        address: u64,
        data: &[u8],
        token: Token,
    ) -> Result<(), DmaError> {
        let len = data.len();
        self.check_start(address, len, out.queued(), limits.max_queued)?;
        let id = self.fresh_id();
        let (first_part, rest) = data.split_at(len.min(limits.max_transfer));
        send_write(out, id, address, first_part)?;

        self.operations.push(Operation {
            id,
            token,
            address,
            len,
            answered: 0,
            in_flight: first_part.len(),
            ends_with_reply: false,
            direction: Direction::Write(rest.to_vec()),
        });
        Ok(())
    }

    /// Returns the index of the operation that waits for this reply.
    fn find_expecting(&self, header: &Header) -> Option<usize> {
        self.operations.iter().position(|operation| {
            let command = match operation.direction {
                Direction::Read(_) => Command::DmaRead,
                Direction::Write(_) => Command::DmaWrite,
            };
            operation.id == header.id && command == header.command
        })
    }

    /// Whether an operation waits for this reply.
    pub(super) fn expects(&self, header: &Header) -> bool {
        self.find_expecting(header).is_some()
    }

    /// Takes the reply to the message in flight of an operation, and sends its next message or
    /// reports its end to the handler. Returns `Ok(false)` when no operation waits for the reply.
    pub(super) fn on_reply(
        &mut self,
        out: &mut SendHalf<'_>,
        limits: DmaLimits,
        header: &Header,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<bool, FrameError> {
        let Some(index) = self.find_expecting(header) else { return Ok(false) };
        // A client that reads its requests before it answers them leaves no more than this.
        let max_queued = limits.max_queued.saturating_add(self.capacity.saturating_mul(limits.max_transfer));
        let operation = &mut self.operations[index];
        let result = match header.reply_error() {
            Some(errno) => Err(errno),
            // The client answers requests that it has not read yet. Each answer would add a request
            // to the queue.
            None if out.queued() > max_queued => Err(Errno::EPROTO),
            None if operation.ends_with_reply => Err(Errno::EFAULT),
            None => operation.accept_reply(payload),
        };

        if result.is_ok() && operation.answered < operation.len {
            operation.in_flight = (operation.len - operation.answered).min(limits.max_transfer);
            let (id, length) = (operation.id, operation.in_flight);
            let address = operation.address + operation.answered as u64;
            match &mut operation.direction {
                Direction::Read(_) => send_read(out, id, address, length)?,
                Direction::Write(rest) => {
                    // `rest` lacks the data of the first message.
                    let from = rest.len() - (operation.len - operation.answered);
                    send_write(out, id, address, &rest[from..from + length])?;
                }
            }
            return Ok(true);
        }

        let operation = self.operations.swap_remove(index);
        match (operation.direction, result) {
            (Direction::Read(_), Err(errno)) => handler.dma_read_done(operation.token, Err(errno)),
            // One message has brought all data, so they were not copied.
            (Direction::Read(data), Ok(())) if data.is_empty() => {
                handler.dma_read_done(operation.token, Ok(&payload[size_of::<DmaAccess>()..]));
            }
            (Direction::Read(data), Ok(())) => handler.dma_read_done(operation.token, Ok(&data)),
            (Direction::Write(_), result) => handler.dma_write_done(operation.token, result),
        }
        Ok(true)
    }

    /// Removes an operation, whose reply will be ignored. Returns false when there is none with
    /// this token.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        let found = self.operations.iter().position(|operation| operation.token == token);
        found.map(|index| self.operations.swap_remove(index)).is_some()
    }

    /// Ends, with an error, the operations that would send further messages about memory that the
    /// client has unmapped. An operation whose last message is in flight continues: that message
    /// went out before the answer to the unmap does.
    pub(super) fn end_unmapped(&mut self, unmap: &DmaUnmap, handler: &mut dyn Handler) {
        for operation in self.operations.extract_if(.., |operation| operation.would_continue_in(unmap)) {
            operation.report_error(Errno::EFAULT, handler);
        }
    }

    /// As [`Self::end_unmapped`], for messages on the second socket: each operation ends with the
    /// reply to its message in flight. Returns whether any operation touches the memory, so that
    /// the answer to the unmap must wait.
    pub(super) fn end_unmapped_after_reply(&mut self, unmap: &DmaUnmap) -> bool {
        for operation in &mut self.operations {
            operation.ends_with_reply |= operation.would_continue_in(unmap);
        }
        self.touches(unmap)
    }

    /// Returns whether an operation accesses memory that the client has unmapped.
    pub(super) fn touches(&self, unmap: &DmaUnmap) -> bool {
        self.operations.iter().any(|operation| unmap.touches(operation.address, operation.len))
    }

    /// Ends all operations with an error.
    pub(super) fn fail_all(&mut self, errno: Errno, handler: &mut dyn Handler) {
        for operation in std::mem::take(&mut self.operations) {
            operation.report_error(errno, handler);
        }
    }
}

impl Operation {
    /// Returns whether further messages would follow the one in flight, about memory that the
    /// client has unmapped.
    fn would_continue_in(&self, unmap: &DmaUnmap) -> bool {
        self.answered + self.in_flight < self.len && unmap.touches(self.address, self.len)
    }

    /// Reports an error to the handler.
    fn report_error(self, errno: Errno, handler: &mut dyn Handler) {
        match self.direction {
            Direction::Read(_) => handler.dma_read_done(self.token, Err(errno)),
            Direction::Write(_) => handler.dma_write_done(self.token, Err(errno)),
        }
    }

    /// Checks the reply to the message in flight, and collects its data.
    fn accept_reply(&mut self, payload: &[u8]) -> Result<(), Errno> {
        if let Direction::Read(data) = &mut self.direction {
            let (access, bytes) = parse_prefix::<DmaAccess>(payload).map_err(|_| Errno::EPROTO)?;
            if access.count.get() != self.in_flight as u64 || bytes.len() != self.in_flight {
                return Err(Errno::EPROTO);
            }
            // Data of a single message are passed to the handler without a copy.
            if self.in_flight < self.len {
                data.extend_from_slice(bytes);
            }
        }
        self.answered += self.in_flight;
        Ok(())
    }
}

/// Limits of the requests to this client.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmaLimits {
    /// Maximum number of bytes of data in one request: the client's `max_data_xfer_size`.
    pub(super) max_transfer: usize,
    /// Number of bytes that wait for the socket from which on no operation starts.
    pub(super) max_queued: usize,
}

fn send_read(out: &mut SendHalf<'_>, id: u16, address: u64, count: usize) -> Result<(), FrameError> {
    out.send(&request_head(Command::DmaRead, id, address, count, 0), &[], &[])
}

fn send_write(out: &mut SendHalf<'_>, id: u16, address: u64, data: &[u8]) -> Result<(), FrameError> {
    out.send(&request_head(Command::DmaWrite, id, address, data.len(), data.len()), data, &[])
}

/// Returns header and fixed part of a DMA request for `count` bytes at `address`. The caller sends
/// `data_len` bytes of data after it.
fn request_head(
    command: Command,
    id: u16,
    address: u64,
    count: usize,
    data_len: usize,
) -> [u8; HEADER_SIZE + size_of::<DmaAccess>()] {
    let access = DmaAccess { address: address.into(), count: (count as u64).into() };
    let header = Header::request(id, command, size_of::<DmaAccess>() + data_len, false);
    let mut bytes = [0; HEADER_SIZE + size_of::<DmaAccess>()];
    bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
    bytes[HEADER_SIZE..].copy_from_slice(access.as_bytes());
    bytes
}
