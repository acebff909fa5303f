//! The receiving half: a buffer that grows with what arrives, and the descriptors that came along.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::descriptor::{Closer, PeerFd};
use super::sys::{self, Control};
use super::timing::CallTimes;
use super::{FrameError, MAX_PENDING_FDS};
use crate::wire::{HEADER_SIZE, Header, MessageType};

/// First size of the buffer, in bytes. It doubles when a message has filled it, up to the limit.
const INITIAL_BUFFER: usize = 16 * 1024;

/// Maximum number of reads with descriptors that are remembered one by one. The descriptors of
/// further reads are added to the last one.
const MAX_BATCHES: usize = 2 * MAX_PENDING_FDS;

/// Limits of the descriptors that a receiver keeps for messages that were not taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingFds {
    /// Number of kept descriptors from which on the receiver reads no more ahead of the message
    /// that is being served.
    pub(crate) read_ahead: usize,
    /// Descriptors beyond this number are closed on arrival.
    pub(crate) maximum: usize,
}

impl PendingFds {
    /// A receiver that keeps no descriptor at all.
    pub(crate) const NONE: Self = Self { read_ahead: 0, maximum: 0 };

    /// Enough for pipelined messages of `max_fds` descriptors each: reading ahead ends while there
    /// is room for the descriptors of one more message.
    pub(crate) fn for_messages_of(max_fds: usize) -> Self {
        Self { read_ahead: max_fds.max(1), maximum: 2 * max_fds }
    }
}

/// A message that was taken off the stream.
#[derive(Debug)]
pub struct Message<'a> {
    /// Its header.
    pub header: Header,
    /// The bytes after the header.
    pub payload: &'a [u8],
    /// The descriptors that came with the message; dropping them closes them.
    pub fds: Vec<PeerFd>,
    /// Whether descriptors are missing from `fds` because more came than could be kept.
    pub fds_lost: bool,
    /// Stream position after the message.
    pub(crate) end: u64,
}

/// Result of one read from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Bytes came.
    Data {
        /// Whether the socket had no more bytes at that time.
        drained: bool,
    },
    /// The socket has no bytes now.
    WouldBlock,
    /// The peer has closed its end; no more bytes will come.
    End,
    /// The buffer is full of messages that were not taken.
    Full,
}

/// Descriptors that came with one read.
#[derive(Debug)]
struct Batch {
    /// Stream position after the bytes that came with the descriptors.
    end: u64,
    fds: Vec<PeerFd>,
    /// Whether descriptors of this read are missing from `fds`.
    fds_lost: bool,
}

/// The receiving half of a stream: the bytes and descriptors that were received and not taken.
///
/// A *stream position* is the number of bytes that the peer sent before a byte.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The bytes from `start` to `end` were received and not taken.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Maximum size of a message, in bytes.
    limit: usize,
    /// Maximum number of descriptors of a message.
    max_fds: usize,
    /// Stream position of the byte at `start`.
    position: u64,
    /// The descriptors that were received and not taken.
    batches: VecDeque<Batch>,
    /// Number of descriptors in `batches`.
    pending_fds: usize,
    pending_limit: PendingFds,
    closer: Option<Arc<dyn Closer>>,
    /// Room for the control messages of one read.
    control: Box<Control>,
    pub(super) times: CallTimes,
}

impl Receiver {
    pub(super) fn new(limit: usize, max_fds: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            limit: limit.max(HEADER_SIZE),
            max_fds,
            position: 0,
            batches: VecDeque::new(),
            pending_fds: 0,
            pending_limit: PendingFds { read_ahead: MAX_PENDING_FDS, maximum: MAX_PENDING_FDS },
            closer: None,
            control: Box::new(sys::EMPTY_CONTROL),
            times: CallTimes::default(),
        }
    }

    pub(super) fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.closer = Some(closer);
    }

    pub(crate) fn set_pending_limit(&mut self, limit: PendingFds) {
        self.pending_limit = limit;
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(HEADER_SIZE);
    }

    /// Returns the number of bytes that were received and not taken.
    pub(crate) fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Returns the stream position of the next message.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether another [`Self::fill`] has room for bytes and descriptors.
    pub(crate) fn has_room(&self) -> bool {
        self.buffered() < self.capacity() && self.pending_fds < self.pending_limit.read_ahead.max(1)
    }

    /// Returns the largest buffer, in bytes. A small limit still gets a buffer worth a system call.
    fn capacity(&self) -> usize {
        self.limit.max(INITIAL_BUFFER)
    }

    /// Reads the bytes in the socket, without waiting.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<ReadOutcome, FrameError> {
        self.fill_once(socket, false)
    }

    /// As [`Self::fill`], but blocks until bytes come or the socket's own receive time-out ends. On
    /// a non-blocking socket it does not wait.
    pub(crate) fn wait_and_fill(&mut self, socket: BorrowedFd<'_>) -> Result<ReadOutcome, FrameError> {
        self.fill_once(socket, true)
    }

    /// Reads the socket once into the buffer. With `may_block` it waits for bytes.
    fn fill_once(&mut self, socket: BorrowedFd<'_>, may_block: bool) -> Result<ReadOutcome, FrameError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }

        if self.end == self.buffer.len() && !self.make_room() {
            return Ok(ReadOutcome::Full);
        }

        let mut fds = Vec::new();
        let available = &mut self.buffer[self.end..];
        let requested = available.len();
        let control = &mut self.control;
        let received = match self
            .times
            .measure(|| sys::receive(socket, available, control, &mut fds, may_block))
        {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadOutcome::WouldBlock),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(ReadOutcome::Data { drained: false });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(ReadOutcome::End),
            Err(error) => return Err(error.into()),
        };
        if received.len == 0 {
            return Ok(ReadOutcome::End);
        }

        self.end += received.len;
        // The kernel ends a read after descriptors, so a short read does not prove an empty socket
        // then.
        let drained = received.len < requested && fds.is_empty() && !received.fds_lost;
        let fds = fds.into_iter().map(|fd| PeerFd::new(fd, self.closer.clone())).collect();
        self.keep_fds(fds, received.fds_lost);
        Ok(ReadOutcome::Data { drained })
    }

    /// Makes room after `end`, by moving the bytes to the front or by doubling the buffer. Returns
    /// false when the buffer is full at its largest size.
    fn make_room(&mut self) -> bool {
        let length = self.buffer.len();
        // A move is worth its copy if it frees half of the buffer. Otherwise the buffer grows while
        // it may.
        let prefers_move = self.start >= length / 2 || length >= self.capacity();
        if self.start > 0 && prefers_move {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            return true;
        }

        let grown = (length * 2).clamp(INITIAL_BUFFER, self.capacity());
        if grown <= length {
            return false;
        }
        self.buffer.resize(grown, 0);
        true
    }

    /// Keeps the descriptors that came with a read until their message is taken. Those beyond the
    /// limit are dropped, and then the message reports lost descriptors.
    fn keep_fds(&mut self, mut fds: Vec<PeerFd>, mut fds_lost: bool) {
        if fds.is_empty() && !fds_lost {
            return;
        }

        let available = self.pending_limit.maximum.saturating_sub(self.pending_fds);
        if fds.len() > available {
            fds.truncate(available);
            fds_lost = true;
        }

        self.pending_fds += fds.len();
        let end = self.position + self.buffered() as u64;
        let is_full = self.batches.len() >= MAX_BATCHES;
        match self.batches.back_mut() {
            // A peer may send descriptors with each byte of a message. The list stays bounded.
            Some(last) if is_full => {
                last.end = end;
                last.fds_lost |= fds_lost;
                last.fds.append(&mut fds);
            }
            _ => self.batches.push_back(Batch { end, fds, fds_lost }),
        }
    }

    /// Returns the next message and its descriptors, or `None` until all of its bytes have come.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message<'_>>, FrameError> {
        let Some(header) = self.checked_header(self.start)? else { return Ok(None) };
        let size = header.size as usize;
        if size > self.buffered() {
            return Ok(None);
        }

        let start = self.start;
        self.start += size;
        self.position += size as u64;
        let (fds, fds_lost) = self.take_fds();
        let payload = &self.buffer[start + HEADER_SIZE..start + size];
        Ok(Some(Message { header, payload, fds, fds_lost, end: self.position }))
    }

    /// Returns whether [`Self::next_message`] would return a whole message or an error.
    pub(crate) fn has_message(&self) -> bool {
        match self.checked_header(self.start) {
            Ok(Some(header)) => header.size as usize <= self.buffered(),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Returns the header of the message at a stream position, if that message is whole and
    /// well-formed.
    pub(crate) fn header_at(&self, position: u64) -> Option<Header> {
        let offset = self.start + usize::try_from(position.checked_sub(self.position)?).ok()?;
        let header = self.checked_header(offset).ok()??;
        (header.size as usize <= self.end - offset).then_some(header)
    }

    /// Returns the payload of the whole message that starts at a stream position and has this
    /// header.
    pub(crate) fn payload_at(&self, position: u64, header: &Header) -> Option<&[u8]> {
        let offset = self.start + usize::try_from(position.checked_sub(self.position)?).ok()?;
        let bytes = self.buffer.get(offset..self.end)?.get(..header.size as usize)?;
        bytes.get(HEADER_SIZE..)
    }

    /// Removes whole messages from the stream, as if they had never come. `removed` holds their
    /// stream positions in ascending order. The remaining bytes move up once, and the descriptors
    /// of the removed messages are dropped.
    pub(crate) fn remove(&mut self, removed: &[Range<u64>]) {
        let buffer_offset = |position: u64| {
            let offset = usize::try_from(position.saturating_sub(self.position)).unwrap_or(usize::MAX);
            self.start.saturating_add(offset).min(self.end)
        };

        // The bytes between a removed message and the next one move behind those that are kept.
        let mut end_of_kept = None;
        for (index, message) in removed.iter().enumerate() {
            let next = removed.get(index + 1).map_or(self.end, |next| buffer_offset(next.start));
            let (start, end) = (buffer_offset(message.start), buffer_offset(message.end));
            let to = end_of_kept.unwrap_or(start);
            self.buffer.copy_within(end..next.max(end), to);
            end_of_kept = Some(to + next.saturating_sub(end));
        }
        self.end = end_of_kept.unwrap_or(self.end);

        // Descriptors belong to the message in which the bytes of their read end.
        let mut dropped_fds = 0;
        self.batches.retain_mut(|batch| {
            let before = removed.iter().take_while(|message| message.end < batch.end);
            let moved: u64 = before.map(|message| message.end - message.start).sum();
            let is_removed =
                removed.iter().any(|message| message.start < batch.end && batch.end <= message.end);
            batch.end -= moved;
            dropped_fds += if is_removed { batch.fds.len() } else { 0 };
            !is_removed
        });
        self.pending_fds -= dropped_fds;
    }

    /// Returns the header at an offset of the buffer, or `None` if it is not complete.
    ///
    /// # Errors
    /// [`FrameError`] when the header is malformed.
    fn checked_header(&self, offset: usize) -> Result<Option<Header>, FrameError> {
        let bytes = self.buffer.get(offset..self.end).unwrap_or_default();
        let Some(header) = Header::parse(bytes) else { return Ok(None) };

        if (header.size as usize) < HEADER_SIZE {
            return Err(FrameError::TooShort { size: header.size });
        }
        if header.size as usize > self.limit {
            return Err(FrameError::TooLong { size: header.size, limit: self.limit });
        }
        match header.message_type() {
            MessageType::Unknown(kind) => Err(FrameError::Type { kind }),
            _ => Ok(Some(header)),
        }
    }

    /// Returns the descriptors of the message that ends at `position`, and whether some were lost.
    fn take_fds(&mut self) -> (Vec<PeerFd>, bool) {
        let mut fds = Vec::new();
        let mut fds_lost = false;
        while self.batches.front().is_some_and(|batch| batch.end <= self.position) {
            let Some(batch) = self.batches.pop_front() else { break };
            self.pending_fds -= batch.fds.len();
            fds_lost |= batch.fds_lost;
            fds.extend(batch.fds);
        }

        if fds.len() > self.max_fds {
            fds.truncate(self.max_fds);
            fds_lost = true;
        }
        (fds, fds_lost)
    }
}
