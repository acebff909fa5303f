//! The consumer of a ring.

use nicforge_hwi::posted::{self, CELL_DATA, MAX_CELLS, MAX_DATA, PHASE, RecordHeader};
use zerocopy::IntoBytes;

use super::{CELL_WORDS, Cells, phase_of};

/// Content of the head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// The ring is empty.
    Empty,
    /// A complete record.
    Record(RecordRef<'a>),
    /// An invalid header: a length of 0 or above [`MAX_DATA`], or more cells than the ring. It
    /// takes one cell.
    Malformed {
        /// The header as read.
        header: u64,
    },
}

/// A register write, copied from the ring into the consumer's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Number of the BAR, 0 to 7. The caller must refuse 6 and 7.
    pub bar: u8,
    /// Offset in the BAR in bytes, unchecked.
    pub offset: u32,
    /// Data to write, 1 to [`MAX_DATA`] bytes.
    pub data: &'a [u8],
}

/// The consumer of a ring.
#[derive(Debug)]
pub struct Consumer<C: Cells> {
    cells: C,
    /// Number of cells of the ring.
    cell_count: u32,
    /// Cells consumed so far, modulo 2^32.
    consumed: u32,
    /// Header of the record that was read and not popped.
    header: u64,
    /// Number of cells of that record, or 0 if no record was read. A malformed record counts as one
    /// cell.
    peeked_cells: u32,
    /// Length of that record's data in bytes. 0 marks a malformed record: a valid one has data.
    len: u32,
    /// The data of that record, in the pieces of its cells.
    buffer: [[u64; CELL_WORDS]; MAX_CELLS],
}

/// The head of a ring: the part of a [`Consumer`] that shows whether the ring is empty.
///
/// A poller of many rings keeps their heads side by side. A head is correct from
/// [`RingHead::follow`] until its consumer peeks, takes or resets.
#[derive(Clone, Debug)]
pub struct RingHead<C> {
    cells: C,
    /// The position of the next record.
    position: u32,
    /// The phase of the next record, as a header bit.
    phase: u64,
    /// The consumer has read the next record.
    has_peeked: bool,
}

impl<C: Cells> RingHead<C> {
    /// Moves to the position of the ring's consumer.
    #[inline]
    pub fn follow(&mut self, consumer: &Consumer<C>) {
        self.position = consumer.consumed;
        self.phase = phase_of(consumer.consumed, consumer.cell_count);
        self.has_peeked = consumer.peeked_cells != 0;
    }

    /// Returns whether the ring is empty. It reads a header at most.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_peeked && self.cells.header_acquire(self.position) & PHASE != self.phase
    }
}

impl<C: Cells> Consumer<C> {
    /// Returns the consumer of a ring that is zeroed and unwritten.
    pub fn new(cells: C) -> Self {
        let cell_count = cells.count() as u32;
        let buffer = [[0; CELL_WORDS]; MAX_CELLS];
        Consumer { cells, cell_count, consumed: 0, header: 0, peeked_cells: 0, len: 0, buffer }
    }

    /// Returns the oldest record.
    ///
    /// The memory of a record is read once, so a client that rewrites the cell can't change a
    /// record that was already checked. Until the record is popped, this returns the same bytes.
    #[inline]
    pub fn peek(&mut self) -> Peek<'_> {
        if self.peeked_cells == 0 && !self.read_head() {
            return Peek::Empty;
        }

        // `read_head` marks a malformed record with a length of 0.
        if self.len == 0 {
            return Peek::Malformed { header: self.header };
        }

        let RecordHeader { bar, offset, .. } = posted::decode(self.header);
        Peek::Record(RecordRef { bar, offset, data: self.data() })
    }

    /// Returns whether the ring is empty. It reads at most a header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.peeked_cells == 0
            && self.cells.header_acquire(self.consumed) & PHASE != phase_of(self.consumed, self.cell_count)
    }

    /// Returns the head of the ring, by which another thread can poll whether the ring is empty.
    pub fn head(&self) -> RingHead<C>
    where
        C: Clone,
    {
        let mut head = RingHead { cells: self.cells.clone(), position: 0, phase: 0, has_peeked: false };
        head.follow(self);
        head
    }

    /// Reads the record at the head into `buffer`. Returns false if the ring is empty. A malformed
    /// record counts as true.
    #[inline]
    fn read_head(&mut self) -> bool {
        let header = self.cells.header_acquire(self.consumed);
        if header & PHASE != phase_of(self.consumed, self.cell_count) {
            return false;
        }

        self.header = header;
        let len = posted::decode(header).length;
        if fits_one_cell(len) {
            self.cells.data_read(self.consumed, &mut self.buffer[0]);
            (self.peeked_cells, self.len) = (1, len as u32);
        } else {
            self.read_longer_record(len);
        }

        true
    }

    /// Reads a record of several cells, or marks the record as malformed by a length of 0.
    #[inline(never)]
    fn read_longer_record(&mut self, len: usize) {
        let cells = posted::cells(len);
        if len == 0 || len > MAX_DATA || cells > self.cell_count as usize {
            (self.peeked_cells, self.len) = (1, 0);
            return;
        }

        for (index, data) in self.buffer[..cells].iter_mut().enumerate() {
            self.cells.data_read(self.consumed.wrapping_add(index as u32), data);
        }

        (self.peeked_cells, self.len) = (cells as u32, len as u32);
    }

    /// Passes the oldest records to `accept`, in order, until it returns false. A record for which
    /// it returns true is popped. Returns the number of popped records.
    ///
    /// At most `limit` records are passed, and only records of one cell. [`Consumer::peek`] then
    /// returns the record that ended the run. The second argument of `accept` is true if the record
    /// has the BAR, offset and length of the record that was popped just before.
    #[inline]
    pub fn take_while(&mut self, limit: u32, mut accept: impl FnMut(RecordRef<'_>, bool) -> bool) -> u32 {
        if limit == 0 || self.peeked_cells == 0 && !self.read_head() {
            return 0;
        }
        if self.peeked_cells != 1 || self.len == 0 {
            return 0;
        }

        let (first, cell_count) = (self.consumed, self.cell_count);
        // The position after the last record that may be passed.
        let end = first.wrapping_add(limit);
        // The record at `position`, whose data are in the buffer.
        let (mut header, mut len, mut is_repeat) = (self.header, self.len as usize, false);
        let mut position = first;
        // The position after this lap's last cell, or `end` if that comes first.
        let cells_of_lap = cell_count - (first & (cell_count - 1));
        let mut lap_end = first.wrapping_add(limit.min(cells_of_lap));

        // The loop ends with true if `accept` refused the record at `position`, and with false if
        // no record of one cell follows, or the limit is reached.
        let refused = 'records: loop {
            let RecordHeader { bar, offset, .. } = posted::decode(header);
            let data = &self.buffer[0].as_bytes()[..len.min(CELL_DATA)];
            if !accept(RecordRef { bar, offset, data }, is_repeat) {
                break true;
            }
            position = position.wrapping_add(1);

            // The most frequent case: short records of this lap with the same header.
            while len <= size_of::<u64>()
                && position != lap_end
                && let Some(word) = self.cells.first_word_if(position, header)
            {
                if !accept(RecordRef { bar, offset, data: &word.as_bytes()[..len] }, true) {
                    self.buffer[0][0] = word;
                    break 'records true;
                }
                position = position.wrapping_add(1);
            }

            if position == lap_end {
                if position == end {
                    break false;
                }
                // An equal record in the next lap has the other phase.
                header ^= PHASE;
                lap_end = position.wrapping_add(cell_count.min(end.wrapping_sub(position)));
            }

            let last_header = header;
            header = self.cells.header_acquire(position);
            is_repeat = header == last_header;
            if !is_repeat {
                if header & PHASE != phase_of(position, cell_count) {
                    break false;
                }
                len = posted::decode(header).length;
                if !fits_one_cell(len) {
                    break false;
                }
            }
            if len <= size_of::<u64>() {
                self.buffer[0][0] = self.cells.first_word(position);
            } else {
                self.cells.data_read(position, &mut self.buffer[0]);
            }
        };

        self.consumed = position;
        if refused {
            // The refused record counts as read: `peek` returns it.
            (self.header, self.peeked_cells, self.len) = (header, 1, len as u32);
        } else {
            (self.peeked_cells, self.len) = (0, 0);
        }

        position.wrapping_sub(first)
    }

    /// Returns the data of the record that [`Consumer::peek`] returned, or nothing if it returned
    /// none.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.buffer.as_bytes().get(..self.len as usize).unwrap_or_default()
    }

    /// Removes the record that [`Consumer::peek`] returned. Has no effect if that was
    /// [`Peek::Empty`].
    #[inline]
    pub fn pop(&mut self) {
        self.consumed = self.consumed.wrapping_add(self.peeked_cells);
        (self.peeked_cells, self.len) = (0, 0);
    }

    /// Returns the number of cells consumed so far, modulo 2^32. The caller must publish it with
    /// *release* order in `RING_HEAD` of the read-only mirror page.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Returns the number of the cell of the next record, and whether its phase is 1. The control
    /// page's `RING_STATE` shows both.
    pub fn state(&self) -> (u32, bool) {
        (self.consumed & (self.cell_count - 1), phase_of(self.consumed, self.cell_count) == PHASE)
    }

    /// Returns the number of cells of the records that the producer has published and that are not
    /// popped. It reads their headers, and a client that changes them meanwhile changes the number
    /// alone, which is at most that of the ring.
    pub fn count_filled(&self) -> u32 {
        let mut filled = 0;
        while filled < self.cell_count {
            let position = self.consumed.wrapping_add(filled);
            let header = self.cells.header_acquire(position);
            if header & PHASE != phase_of(position, self.cell_count) {
                break;
            }

            // A malformed record takes one cell.
            let length = posted::decode(header).length;
            filled += if length > MAX_DATA { 1 } else { posted::cells(length) as u32 };
        }

        filled.min(self.cell_count)
    }

    /// Empties the ring. It clears all headers, and restarts at cell 0 with phase 1 and a count of
    /// 0. The caller must publish the count before the producer continues. All records, also one
    /// that was peeked and not popped, are lost.
    pub fn reset(&mut self) {
        for cell in 0..self.cell_count {
            self.cells.set_header_relaxed(cell, 0);
        }

        self.consumed = 0;
        (self.peeked_cells, self.len) = (0, 0);
    }

    /// Returns the ring's memory.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}

/// Returns whether data of `len` bytes are valid and fit one cell.
#[inline(always)]
fn fits_one_cell(len: usize) -> bool {
    // A length of 0 wraps to the largest number, so one comparison checks both limits.
    len.wrapping_sub(1) < CELL_DATA
}

const _: () = assert!(MAX_CELLS * CELL_DATA >= MAX_DATA);
