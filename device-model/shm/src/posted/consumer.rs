//! The reading end.

use nicforge_hwi::posted::{self, CELL_DATA, MAX_CELLS, MAX_DATA, PHASE};
use zerocopy::IntoBytes;

use super::{CELL_WORDS, Cells, phase_of};

/// What is at the head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// Nothing.
    Empty,
    /// A record.
    Record(RecordRef<'a>),
    /// A header that no record has: a length of 0 or above [`MAX_DATA`], or more cells than the ring. It takes one cell.
    Malformed {
        /// The header as it was read.
        header: u64,
    },
}

/// A register write, as read from the ring into the consumer's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// The BAR, 0 to 7: 6 and 7 are for the caller to refuse.
    pub bar: u8,
    /// Offset in the BAR in bytes, which nobody has checked yet.
    pub offset: u32,
    /// What is written, 1 to [`MAX_DATA`] bytes.
    pub data: &'a [u8],
}

/// What was read and not popped yet.
#[derive(Clone, Copy, Debug)]
enum Pending {
    None,
    Record { bar: u8, offset: u32, len: usize },
    Malformed { header: u64 },
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<C: Cells> {
    cells: C,
    count: u32,
    /// Cells consumed so far, modulo 2^32.
    consumed: u32,
    pending: Pending,
    buffer: [[u64; CELL_WORDS]; MAX_CELLS],
}

impl<C: Cells> Consumer<C> {
    /// Of a ring that is zeroed and that nobody wrote yet.
    pub fn new(cells: C) -> Self {
        let count = cells.count() as u32;
        let buffer = [[0; CELL_WORDS]; MAX_CELLS];
        Consumer { cells, count, consumed: 0, pending: Pending::None, buffer }
    }

    /// The oldest record. The memory is read once a record: until it is popped, this gives the same bytes.
    #[inline]
    pub fn peek(&mut self) -> Peek<'_> {
        if matches!(self.pending, Pending::None) {
            let header = self.cells.header_acquire((self.consumed & (self.count - 1)) as usize);
            if header & PHASE != phase_of(self.consumed, self.count) {
                return Peek::Empty;
            }
            self.read(header);
        }
        match self.pending {
            Pending::None => Peek::Empty,
            Pending::Record { bar, offset, len } => {
                Peek::Record(RecordRef { bar, offset, data: &self.buffer.as_bytes()[..len] })
            }
            Pending::Malformed { header } => Peek::Malformed { header },
        }
    }

    #[inline]
    fn read(&mut self, header: u64) {
        let (bar, offset, len) = posted::fields(header);
        let cells = posted::cells(len);
        if len == 0 || len > MAX_DATA || cells > self.count as usize {
            self.pending = Pending::Malformed { header };
            return;
        }
        for (index, data) in self.buffer[..cells].iter_mut().enumerate() {
            let position = self.consumed.wrapping_add(index as u32);
            self.cells.data_read((position & (self.count - 1)) as usize, data);
        }
        self.pending = Pending::Record { bar, offset, len };
    }

    /// Goes past what [`Consumer::peek`] returned. Does nothing when that was [`Peek::Empty`].
    #[inline]
    pub fn pop(&mut self) {
        let cells = match self.pending {
            Pending::None => 0,
            Pending::Record { len, .. } => posted::cells(len) as u32,
            Pending::Malformed { .. } => 1,
        };
        self.consumed = self.consumed.wrapping_add(cells);
        self.pending = Pending::None;
    }

    /// Cells consumed so far, modulo 2^32, to be published with *release* order in the mirror's `RING_HEAD`.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// {cell, phase} expected next: what the control page's `RING_STATE` shows.
    pub fn state(&self) -> (u32, bool) {
        (self.consumed & (self.count - 1), phase_of(self.consumed, self.count) == PHASE)
    }

    /// Empties the ring: clears all headers, and starts again at cell 0 with phase 1 and a count of 0, which has to be
    /// published before the producer goes on. What was in it, and a record peeked and not popped, is lost.
    pub fn reset(&mut self) {
        for cell in 0..self.count as usize {
            self.cells.set_header_relaxed(cell, 0);
        }
        self.consumed = 0;
        self.pending = Pending::None;
    }

    /// The ring's memory.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}

const _: () = assert!(MAX_CELLS * CELL_DATA >= MAX_DATA);
