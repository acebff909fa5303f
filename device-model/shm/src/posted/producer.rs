//! The writing end.

use nicforge_hwi::posted::{self, CELL_DATA, MAX_CELLS, MAX_DATA, PHASE};
use thiserror::Error;

use super::{Cells, phase_of};

/// Why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// Not enough cells are free: try again when the engine has consumed some.
    #[error("the posted-write ring is full")]
    Full,
    /// A record has 1 to [`MAX_DATA`] bytes, and no more than the ring.
    #[error("a posted write of {len} bytes: 1 to {MAX_DATA} fit a record, and no more than the ring holds")]
    BadLength {
        /// Bytes of data.
        len: usize,
    },
    /// A function has BARs 0 to 5; 6 and 7 name other regions.
    #[error("posted write to BAR {bar}: a record names BARs 0 to 7")]
    BadBar {
        /// The BAR.
        bar: u8,
    },
}

/// The writing end of a ring. One for a lock domain: whoever orders writes by a lock shares one.
#[derive(Debug)]
pub struct Producer<C: Cells> {
    cells: C,
    count: u32,
    /// Cells written so far. Its low bits are the cell and the lap that come next; the others may
    /// differ from the consumer's count, so that differences are taken modulo two laps.
    produced: u32,
    /// Cells that may be written before the consumer must be asked again.
    room: u32,
}

impl<C: Cells> Producer<C> {
    /// Of a ring that is zeroed, or was reset, and that nobody wrote since.
    pub fn new(cells: C) -> Self {
        let count = cells.count() as u32;
        // What is free is asked with the first record.
        Producer { cells, count, produced: 0, room: 0 }
    }

    /// Of a ring that another producer wrote and the consumer has emptied up to `cell`, where it
    /// expects `phase`: what the control page's `RING_STATE` says. A cell that the ring does not
    /// have is taken modulo the ring.
    ///
    /// A record that the other left half written is lost; one that was complete but not consumed
    /// may come out mangled.
    pub fn resume(cells: C, cell: u32, phase: bool) -> Self {
        let mut producer = Self::new(cells);
        let count = producer.count;
        producer.produced = (cell & (count - 1)) | if phase { 0 } else { count };

        // Half a record is cells that continue it, valid already, behind a first one that is not.
        // They would be taken for records when the consumer gets there.
        for index in 0..(MAX_CELLS as u32).min(count) {
            let position = producer.produced.wrapping_add(index);
            let stale = phase_of(position, count) ^ PHASE;
            producer.cells.set_header_relaxed((position & (count - 1)) as usize, stale);
        }

        producer
    }

    /// Pushes the write of `data` to `offset` in `bar`, or says why not.
    ///
    /// `consumed` loads the consumer's count ([`super::Consumer::consumed`], in the mirror's
    /// `RING_HEAD`) with *acquire* order. It is called when the cells known to be free do not
    /// suffice, at most once.
    ///
    /// # Errors
    /// [`PushError::Full`], also when the count makes no sense; [`PushError::BadLength`],
    /// [`PushError::BadBar`].
    #[inline]
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
            return self.push_long(consumed, bar, offset, data);
        }

        if self.room == 0 && !self.make_room(consumed(), 1) {
            return Err(PushError::Full);
        }

        let cell = (self.produced & (self.count - 1)) as usize;
        self.cells.data_write_bytes(cell, data);
        let header = posted::header(bar, offset, data.len()) | phase_of(self.produced, self.count);
        self.cells.set_header_release(cell, header);
        self.produced = self.produced.wrapping_add(1);
        self.room -= 1;

        Ok(())
    }

    /// Records of several cells.
    fn push_long(
        &mut self,
        consumed: impl FnOnce() -> u32,
        bar: u8,
        offset: u32,
        data: &[u8],
    ) -> Result<(), PushError> {
        let needed = posted::cells(data.len()) as u32;
        if data.is_empty() || data.len() > MAX_DATA || needed > self.count {
            return Err(PushError::BadLength { len: data.len() });
        }

        if self.room < needed && !self.make_room(consumed(), needed) {
            return Err(PushError::Full);
        }

        // Last to first, so that the header which the consumer waits for is the last thing written.
        for (index, piece) in data.chunks(CELL_DATA).enumerate().rev() {
            let position = self.produced.wrapping_add(index as u32);
            let cell = (position & (self.count - 1)) as usize;
            let phase = phase_of(position, self.count);
            self.cells.data_write_bytes(cell, piece);
            if index == 0 {
                self.cells.set_header_release(cell, posted::header(bar, offset, data.len()) | phase);
            } else {
                self.cells.set_header_relaxed(cell, phase);
            }
        }

        self.produced = self.produced.wrapping_add(needed);
        self.room -= needed;

        Ok(())
    }

    /// Whether `needed` cells are free by the consumer's count.
    #[cold]
    fn make_room(&mut self, consumed: u32, needed: u32) -> bool {
        let used = self.used(consumed);
        // More than a lap: the count is bogus, and nothing is known to be free.
        self.room = self.count.saturating_sub(used);
        self.room >= needed
    }

    fn used(&self, consumed: u32) -> u32 {
        self.produced.wrapping_sub(consumed) & (2 * self.count - 1)
    }

    /// Whether the consumer, with that count, has consumed all that was pushed.
    pub fn is_drained(&self, consumed: u32) -> bool {
        self.used(consumed) == 0
    }

    /// Cells written so far, modulo 2^32: what [`Producer::has_passed`] is asked about.
    pub fn position(&self) -> u32 {
        self.produced
    }

    /// Whether the consumer, with that count, has consumed all that was pushed before
    /// [`Producer::position`] was `position`.
    pub fn has_passed(&self, consumed: u32, position: u32) -> bool {
        self.used(consumed) <= self.produced.wrapping_sub(position)
    }

    /// {cell, phase} that the next record starts with.
    pub fn state(&self) -> (u32, bool) {
        (self.produced & (self.count - 1), phase_of(self.produced, self.count) == PHASE)
    }

    /// The ring's memory.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}
