//! The receiving half: a buffer that grows with what arrives, and the descriptors that came along.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::descriptor::{Closer, PeerFd};
use super::sys::{self, Control};
use super::timing::CallTimes;
use super::{FrameError, MAX_PENDING_FDS};
use crate::wire::{HEADER_SIZE, Header, MessageType};

/// First size of the buffer, in bytes. It doubles when a message has filled it, up to the limit.
const INITIAL_BUFFER: usize = 16 * 1024;

/// Maximum number of reads with descriptors that are remembered one by one.
const MAX_BATCHES: usize = 2 * MAX_PENDING_FDS;

/// Which descriptors of messages that are not taken yet a receiver keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingFds {
    /// From this number on, no more is read ahead of the message that is being served.
    pub(crate) read_ahead: usize,
    /// Descriptors beyond this number are closed on arrival.
    pub(crate) maximum: usize,
}

impl PendingFds {
    /// A receiver that keeps no descriptor at all.
    pub(crate) const NONE: Self = Self { read_ahead: 0, maximum: 0 };

    /// Enough for pipelined messages of `max_fds` descriptors each: reading ahead ends before a
    /// whole message's worth would be lost.
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
    lost: bool,
}

/// The receiving half of a stream: the bytes and descriptors that were received and not taken.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    max_fds: usize,
    /// Stream position of `start`.
    position: u64,
    batches: VecDeque<Batch>,
    pending_fds: usize,
    pending_limit: PendingFds,
    closer: Option<Arc<dyn Closer>>,
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

    /// Whether another [`Self::fill`] has room for bytes and descriptors.
    pub(crate) fn has_room(&self) -> bool {
        self.buffered() < self.capacity() && self.pending_fds < self.pending_limit.read_ahead.max(1)
    }

    /// Returns the largest buffer, in bytes. A small limit still gets a buffer worth a system call.
    fn capacity(&self) -> usize {
        self.limit.max(INITIAL_BUFFER)
    }

    /// Reads the bytes in the socket, without waiting.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<ReadOutcome, FrameError> {
        self.fill_by(socket, false)
    }

    /// As [`Self::fill`], but blocks until bytes come or the socket's own receive time-out ends. On
    /// a non-blocking socket it does not wait.
    pub(crate) fn wait_and_fill(&mut self, socket: BorrowedFd<'_>) -> Result<ReadOutcome, FrameError> {
        self.fill_by(socket, true)
    }

    /// Reads the socket once into the buffer. With `wait`, the read blocks.
    fn fill_by(&mut self, socket: BorrowedFd<'_>, wait: bool) -> Result<ReadOutcome, FrameError> {
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
        let received = match self.times.measure(|| sys::receive(socket, available, control, &mut fds, wait)) {
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
        self.keep(fds, received.fds_lost);
        Ok(ReadOutcome::Data { drained })
    }

    /// Makes room after `end`, by moving the bytes to the front or by doubling the buffer. Returns
    /// false when the buffer is full at its largest size.
    fn make_room(&mut self) -> bool {
        let length = self.buffer.len();
        let worthwhile = self.start >= length / 2 || length >= self.capacity();
        if self.start > 0 && worthwhile {
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

    /// Keeps received descriptors until their message is complete. Those beyond the limit are
    /// closed, and the message is marked.
    fn keep(&mut self, mut fds: Vec<PeerFd>, mut lost: bool) {
        if fds.is_empty() && !lost {
            return;
        }

        let available = self.pending_limit.maximum.saturating_sub(self.pending_fds);
        if fds.len() > available {
            fds.truncate(available);
            lost = true;
        }

        self.pending_fds += fds.len();
        let end = self.position + self.buffered() as u64;
        let full = self.batches.len() >= MAX_BATCHES;
        match self.batches.back_mut() {
            // A peer that sends bytes with descriptors piecemeal into one message makes the list no
            // longer.
            Some(last) if full => {
                last.end = end;
                last.lost |= lost;
                last.fds.append(&mut fds);
            }
            _ => self.batches.push_back(Batch { end, fds, lost }),
        }
    }

    /// Returns the next message and its descriptors, or `None` until all of its bytes have come.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message<'_>>, FrameError> {
        let Some(header) = self.checked_header(self.start)? else { return Ok(None) };
        let size = header.size as usize;
        if size > self.buffered() {
            return Ok(None);
        }

        let from = self.start;
        self.start += size;
        self.position += size as u64;
        let (fds, fds_lost) = self.take_fds();
        let payload = &self.buffer[from + HEADER_SIZE..from + size];
        Ok(Some(Message { header, payload, fds, fds_lost, end: self.position }))
    }

    /// Whether [`Self::next_message`] would return a whole message or an error.
    pub(crate) fn has_message(&self) -> bool {
        match self.checked_header(self.start) {
            Ok(Some(header)) => header.size as usize <= self.buffered(),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Returns the header at stream position `from`, if that message is whole and well-formed.
    pub(crate) fn header_at(&self, from: u64) -> Option<Header> {
        let at = self.start + usize::try_from(from.checked_sub(self.position)?).ok()?;
        let header = self.checked_header(at).ok()??;
        (header.size as usize <= self.end - at).then_some(header)
    }

    /// Returns the payload of the whole message that starts at stream position `from` and has this
    /// header.
    pub(crate) fn payload_at(&self, from: u64, header: &Header) -> Option<&[u8]> {
        let at = self.start + usize::try_from(from.checked_sub(self.position)?).ok()?;
        let bytes = self.buffer.get(at..self.end)?.get(..header.size as usize)?;
        bytes.get(HEADER_SIZE..)
    }

    /// Removes whole messages from the stream, as if they had never come. `removed` holds their
    /// stream positions in ascending order, each as first byte and byte after the last. The
    /// remaining bytes move up once, and the descriptors of the removed messages are dropped.
    pub(crate) fn remove(&mut self, removed: &[(u64, u64)]) {
        let buffer_offset = |position: u64| {
            let offset = usize::try_from(position.saturating_sub(self.position)).unwrap_or(usize::MAX);
            self.start.saturating_add(offset).min(self.end)
        };

        let mut end_of_kept = None;
        for (index, &(_, end)) in removed.iter().enumerate() {
            let next = removed.get(index + 1).map_or(self.end, |&(from, _)| buffer_offset(from));
            let (from, end) = (buffer_offset(removed[index].0), buffer_offset(end));
            let to = end_of_kept.unwrap_or(from);
            self.buffer.copy_within(end..next.max(end), to);
            end_of_kept = Some(to + next.saturating_sub(end));
        }
        self.end = end_of_kept.unwrap_or(self.end);

        let mut dropped = 0;
        self.batches.retain_mut(|batch| {
            let before = removed.iter().take_while(|&&(_, end)| end < batch.end);
            let moved: u64 = before.map(|&(from, end)| end - from).sum();
            let inside = removed.iter().any(|&(from, end)| from < batch.end && batch.end <= end);
            batch.end -= moved;
            dropped += if inside { batch.fds.len() } else { 0 };
            !inside
        });
        self.pending_fds -= dropped;
    }

    /// Returns the header at an offset of the buffer, or `None` if it is not complete.
    fn checked_header(&self, at: usize) -> Result<Option<Header>, FrameError> {
        let bytes = self.buffer.get(at..self.end).unwrap_or_default();
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
        let mut lost = false;
        while self.batches.front().is_some_and(|batch| batch.end <= self.position) {
            let Some(batch) = self.batches.pop_front() else { break };
            self.pending_fds -= batch.fds.len();
            lost |= batch.lost;
            fds.extend(batch.fds);
        }

        if fds.len() > self.max_fds {
            fds.truncate(self.max_fds);
            lost = true;
        }
        (fds, lost)
    }
}
