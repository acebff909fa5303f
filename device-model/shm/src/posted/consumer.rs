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
    /// A header that no record has: a length of 0 or above [`MAX_DATA`], or more cells than the
    /// ring. It takes one cell.
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

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<C: Cells> {
    cells: C,
    count: u32,
    /// Cells consumed so far, modulo 2^32.
    consumed: u32,
    /// What was read and not popped yet: its header, how many cells it takes (0: there is nothing),
    /// and how many bytes (0: it is malformed).
    header: u64,
    taken: u32,
    len: u32,
    buffer: [[u64; CELL_WORDS]; MAX_CELLS],
}

impl<C: Cells> Consumer<C> {
    /// Of a ring that is zeroed and that nobody wrote yet.
    pub fn new(cells: C) -> Self {
        let count = cells.count() as u32;
        let buffer = [[0; CELL_WORDS]; MAX_CELLS];
        Consumer { cells, count, consumed: 0, header: 0, taken: 0, len: 0, buffer }
    }

    /// The oldest record. The memory is read once a record: until it is popped, this gives the same
    /// bytes.
    #[inline]
    pub fn peek(&mut self) -> Peek<'_> {
        if self.taken == 0 && !self.look() {
            return Peek::Empty;
        }

        if self.len == 0 {
            return Peek::Malformed { header: self.header };
        }

        let (bar, offset, _) = posted::fields(self.header);

        Peek::Record(RecordRef { bar, offset, data: self.data() })
    }

    /// Whether there is nothing, without reading more than a header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let cell = (self.consumed & (self.count - 1)) as usize;
        self.taken == 0 && self.cells.header_acquire(cell) & PHASE != phase_of(self.consumed, self.count)
    }

    /// Reads what is at the head. False when there is nothing.
    #[inline]
    fn look(&mut self) -> bool {
        let cell = (self.consumed & (self.count - 1)) as usize;
        let header = self.cells.header_acquire(cell);
        if header & PHASE != phase_of(self.consumed, self.count) {
            return false;
        }

        self.header = header;
        let (.., len) = posted::fields(header);
        if len.wrapping_sub(1) < CELL_DATA {
            self.cells.data_read(cell, &mut self.buffer[0]);
            (self.taken, self.len) = (1, len as u32);
        } else {
            self.look_further(len);
        }

        true
    }

    /// Reads a record that takes several cells, or that is none.
    #[inline(never)]
    fn look_further(&mut self, len: usize) {
        let cells = posted::cells(len);
        if len == 0 || len > MAX_DATA || cells > self.count as usize {
            (self.taken, self.len) = (1, 0);
            return;
        }

        for (index, data) in self.buffer[..cells].iter_mut().enumerate() {
            let position = self.consumed.wrapping_add(index as u32);
            self.cells.data_read((position & (self.count - 1)) as usize, data);
        }

        (self.taken, self.len) = (cells as u32, len as u32);
    }

    /// Shows `take` the records of one cell in front, in order, at most `most`, until it refuses
    /// one; goes past those that it takes. Gives how many. Whatever stopped it is what
    /// [`Consumer::peek`] gives.
    ///
    /// The second argument of `take` says that BAR, offset and length are those of the record
    /// before, which it took.
    #[inline]
    pub fn take_while(&mut self, most: u32, mut take: impl FnMut(RecordRef<'_>, bool) -> bool) -> u32 {
        // What was peeked at is the first one, if it is a record of one cell; it was read already.
        let mut read = self.taken != 0;
        if read && (self.taken != 1 || self.len == 0) {
            return 0;
        }

        let (mut header, mut refused) = (self.header, false);
        let (first, count) = (self.consumed, self.count);

        // No header without its phase has all bits set.
        let (mut last, mut len) = (u64::MAX, self.len as usize);
        let mut done = 0;
        while done < most {
            let position = first.wrapping_add(done);
            let cell = (position & (count - 1)) as usize;
            if !read {
                header = self.cells.header_acquire(cell);
                if header & PHASE != phase_of(position, count) {
                    break;
                }
                if header & !PHASE != last {
                    (.., len) = posted::fields(header);
                    if len.wrapping_sub(1) >= CELL_DATA {
                        break;
                    }
                }
                self.cells.data_read_bytes(cell, &mut self.buffer[0], len);
            }
            read = false;
            let (bar, offset, _) = posted::fields(header);
            let data = self.buffer[0].as_bytes().get(..len).unwrap_or_default();
            if !take(RecordRef { bar, offset, data }, header & !PHASE == last) {
                refused = true;
                break;
            }
            last = header & !PHASE;
            done += 1;
        }

        self.consumed = first.wrapping_add(done);
        if refused || read {
            (self.header, self.taken, self.len) = (header, 1, len as u32);
        } else {
            (self.taken, self.len) = (0, 0);
        }

        done
    }

    /// The data of the record that [`Consumer::peek`] gave; nothing when it gave none.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.buffer.as_bytes().get(..self.len as usize).unwrap_or_default()
    }

    /// Goes past what [`Consumer::peek`] returned. Does nothing when that was [`Peek::Empty`].
    #[inline]
    pub fn pop(&mut self) {
        self.consumed = self.consumed.wrapping_add(self.taken);
        (self.taken, self.len) = (0, 0);
    }

    /// Cells consumed so far, modulo 2^32, to be published with *release* order in the mirror's
    /// `RING_HEAD`.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// {cell, phase} expected next: what the control page's `RING_STATE` shows.
    pub fn state(&self) -> (u32, bool) {
        (self.consumed & (self.count - 1), phase_of(self.consumed, self.count) == PHASE)
    }

    /// Empties the ring: clears all headers, and starts again at cell 0 with phase 1 and a count of
    /// 0, which has to be published before the producer goes on. What was in it, and a record
    /// peeked and not popped, is lost.
    pub fn reset(&mut self) {
        for cell in 0..self.count as usize {
            self.cells.set_header_relaxed(cell, 0);
        }
        self.consumed = 0;
        (self.taken, self.len) = (0, 0);
    }

    /// The ring's memory.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}

const _: () = assert!(MAX_CELLS * CELL_DATA >= MAX_DATA);
