//! The producer of a ring.

use nicforge_hwi::posted::{self, CELL_DATA, MAX_CELLS, MAX_DATA, PHASE};
use thiserror::Error;

use super::{Cells, phase_of};

/// Reason why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// Too few cells are free. The caller can retry when the engine has consumed some.
    #[error("the posted-write ring is full")]
    Full,
    /// The length is not 1 to [`MAX_DATA`] bytes, or more than the ring holds.
    #[error("a posted write of {len} bytes: 1 to {MAX_DATA} fit a record, and no more than the ring holds")]
    BadLength {
        /// Bytes of data.
        len: usize,
    },
    /// The BAR number does not fit a record, which can name 0 to 7. A function has BARs 0 to 5.
    #[error("posted write to BAR {bar}: a record names BARs 0 to 7")]
    BadBar {
        /// Number of the BAR.
        bar: u8,
    },
}

/// The producer of a ring. Threads that order their writes by one lock can share a producer.
#[derive(Debug)]
pub struct Producer<C: Cells> {
    cells: C,
    /// Number of cells of the ring.
    cell_count: u32,
    /// Number of cells written so far. Its low bits are the next cell and lap. The others may
    /// differ from the consumer's count, so that differences are taken modulo two laps.
    produced: u32,
    /// Number of cells that may be written before the consumer's count must be read again. All of
    /// them are of the present lap.
    free_cells: u32,
    /// The phase of the present lap, while there are free cells.
    phase: u64,
}

impl<C: Cells> Producer<C> {
    /// Returns the producer of a ring that is zeroed or was reset, and is unwritten since.
    pub fn new(cells: C) -> Self {
        let cell_count = cells.count() as u32;
        // The first record reads the consumer's count.
        Producer { cells, cell_count, produced: 0, free_cells: 0, phase: 0 }
    }

    /// Returns the producer of a ring that another producer wrote and the consumer has emptied up
    /// to `cell`, where it expects `phase`. The control page's `RING_STATE` shows both. `cell` is
    /// taken modulo the ring.
    ///
    /// A record that the other producer left half written is lost. One that was complete but not
    /// consumed may be corrupted.
    pub fn resume(cells: C, cell: u32, phase: bool) -> Self {
        let mut producer = Self::new(cells);
        let cell_count = producer.cell_count;
        producer.produced = (cell & (cell_count - 1)) | if phase { 0 } else { cell_count };

        // A half-written record is a number of valid continuation cells after an invalid first
        // cell. The consumer would later take them for records.
        for index in 0..(MAX_CELLS as u32).min(cell_count) {
            let position = producer.produced.wrapping_add(index);
            let invalid_phase = phase_of(position, cell_count) ^ PHASE;
            producer.cells.set_header_relaxed(position, invalid_phase);
        }

        producer
    }

    /// Pushes the write of `data` to `offset` in `bar`.
    ///
    /// `consumed` must load the consumer's count ([`super::Consumer::consumed`], in `RING_HEAD` of
    /// the read-only mirror page) with *acquire* order. It is called at most once, and only if too
    /// few cells are known to be free, or at the end of a lap.
    ///
    /// # Errors
    /// [`PushError::Full`], also if the count is invalid; [`PushError::BadLength`],
    /// [`PushError::BadBar`].
    // Inlined, so that a write of a constant length is stored by one instruction instead of a loop.
    #[inline(always)]
    pub fn try_push(
        &mut self,
        consumed: impl FnOnce() -> u32,
        bar: u8,
        offset: u32,
        data: &[u8],
    ) -> Result<(), PushError> {
        if bar as u64 > posted::BAR_MASK {
            return Err(PushError::BadBar { bar });
        }

        if data.is_empty() || data.len() > CELL_DATA {
            return self.push_cells(consumed, bar, offset, data);
        }

        if self.free_cells == 0 && !self.refresh_free_cells(consumed(), 1) {
            return Err(PushError::Full);
        }

        let header = posted::header(bar, offset, data.len()) | self.phase;
        self.cells.publish(self.produced, header, data);

        self.produced = self.produced.wrapping_add(1);
        self.free_cells -= 1;

        Ok(())
    }

    /// Pushes a record of several cells. Refuses an invalid length.
    fn push_cells(
        &mut self,
        consumed: impl FnOnce() -> u32,
        bar: u8,
        offset: u32,
        data: &[u8],
    ) -> Result<(), PushError> {
        let needed = posted::cells(data.len()) as u32;
        if data.is_empty() || data.len() > MAX_DATA || needed > self.cell_count {
            return Err(PushError::BadLength { len: data.len() });
        }

        if self.free_cells < needed && !self.refresh_free_cells(consumed(), needed) {
            return Err(PushError::Full);
        }

        // The cells are written last to first: the header that the consumer waits for comes last.
        for (index, piece) in data.chunks(CELL_DATA).enumerate().rev() {
            let position = self.produced.wrapping_add(index as u32);
            let phase = phase_of(position, self.cell_count);
            self.cells.data_write_bytes(position, piece);
            if index == 0 {
                self.cells.set_header_release(position, posted::header(bar, offset, data.len()) | phase);
            } else {
                self.cells.set_header_relaxed(position, phase);
            }
        }

        self.produced = self.produced.wrapping_add(needed);
        // A record that has passed the end of the lap leaves no free cell of the old one.
        self.free_cells = self.free_cells.saturating_sub(needed);

        Ok(())
    }

    /// Updates the number of free cells from the consumer's count, up to the end of the lap, and
    /// the phase. Returns whether `needed` cells are free, in this lap and the next one.
    #[cold]
    fn refresh_free_cells(&mut self, consumed: u32, needed: u32) -> bool {
        let in_use = self.cells_in_use(consumed);
        // More than a lap in use means that the count is invalid. No cell counts as free then.
        let free = self.cell_count.saturating_sub(in_use);
        let cells_of_lap = self.cell_count - (self.produced & (self.cell_count - 1));
        self.free_cells = free.min(cells_of_lap);
        self.phase = phase_of(self.produced, self.cell_count);
        free >= needed
    }

    /// Returns the number of cells that a consumer with this count has not consumed. The high bits
    /// of the two counts may differ, so the difference is taken modulo two laps.
    fn cells_in_use(&self, consumed: u32) -> u32 {
        self.produced.wrapping_sub(consumed) & (2 * self.cell_count - 1)
    }

    /// Returns whether a consumer with this count has consumed all records.
    pub fn is_drained(&self, consumed: u32) -> bool {
        self.cells_in_use(consumed) == 0
    }

    /// Returns the number of cells written so far, modulo 2^32, for [`Producer::has_passed`].
    pub fn position(&self) -> u32 {
        self.produced
    }

    /// Returns whether a consumer with this count has consumed all records pushed before
    /// [`Producer::position`] was `position`.
    pub fn has_passed(&self, consumed: u32, position: u32) -> bool {
        self.cells_in_use(consumed) <= self.produced.wrapping_sub(position)
    }

    /// Returns the number of the next record's first cell, and whether its phase is 1.
    pub fn state(&self) -> (u32, bool) {
        (self.produced & (self.cell_count - 1), phase_of(self.produced, self.cell_count) == PHASE)
    }

    /// Returns the ring's memory.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}
