//! The two ends of a posted-write ring. [`nicforge_hwi::posted`] defines its layout.
//!
//! A client *pushes* register writes. The engine *peeks* at the oldest, replays it, and *pops* it
//! once the device has taken it. One word flows back, in a page that the client can't write: the
//! number of cells consumed.
//!
//! Either end can be hostile. The consumer reads each record once and trusts nothing in it. The
//! producer ignores any count that would let it overwrite unread cells.
//!
//! Both ends are generic over [`Cells`], so that a model checker can replace the memory.
//! [`SharedCells`] implements it for shared memory.

mod cells;
mod consumer;
mod producer;

pub use cells::{RingError, SharedCells};
pub use consumer::{Consumer, Peek, RecordRef, RingHead};
pub use producer::{Producer, PushError};

use nicforge_hwi::posted::CELL_DATA;

/// Number of 64-bit words of data in a cell.
pub const CELL_WORDS: usize = CELL_DATA / 8;

/// The memory of a ring: `count` cells of a header and [`CELL_WORDS`] words of data.
///
/// A cell is named by a *position*, a running count of cells: its number is the position modulo
/// [`Cells::count`]. Headers are atomic 64-bit words. Data is not atomic: the headers order it.
pub trait Cells {
    /// Returns the number of cells: a power of two, at most 2^30, the same at each call.
    fn count(&self) -> usize;
    /// Loads a header with acquire order.
    fn header_acquire(&self, position: u32) -> u64;
    /// Stores a header with release order.
    fn set_header_release(&self, position: u32, header: u64);
    /// Stores a header with relaxed order.
    fn set_header_relaxed(&self, position: u32, header: u64);
    /// Reads the data of a cell, each byte once.
    fn data_read(&self, position: u32, data: &mut [u64; CELL_WORDS]);
    /// Writes the data of a cell.
    fn data_write(&self, position: u32, data: &[u64; CELL_WORDS]);

    /// Reads the first word of a cell's data once.
    #[inline]
    fn first_word(&self, position: u32) -> u64 {
        let mut data = [0; CELL_WORDS];
        self.data_read(position, &mut data);
        data[0]
    }

    /// Loads the header of a cell with acquire order. If it is `header`, reads and returns the
    /// first word of the cell's data.
    #[inline(always)]
    fn first_word_if(&self, position: u32, header: u64) -> Option<u64> {
        (self.header_acquire(position) == header).then(|| self.first_word(position))
    }

    /// Writes the first bytes of a cell's data, at most [`CELL_DATA`]. The content of the others is
    /// unspecified afterwards.
    #[inline]
    fn data_write_bytes(&self, position: u32, bytes: &[u8]) {
        let mut data = [0u64; CELL_WORDS];
        let buffer = zerocopy::IntoBytes::as_mut_bytes(&mut data);
        for (to, from) in buffer.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.data_write(position, &data);
    }

    /// Writes the first bytes of a cell's data, as [`Cells::data_write_bytes`] does, and then its
    /// header with release order.
    #[inline(always)]
    fn publish(&self, position: u32, header: u64, bytes: &[u8]) {
        self.data_write_bytes(position, bytes);
        self.set_header_release(position, header);
    }
}

/// Returns the phase of the cell at a position, as a header bit. The phase changes with each lap
/// around the ring: it is 1 in the first.
#[inline]
fn phase_of(position: u32, cell_count: u32) -> u64 {
    if position & cell_count == 0 { nicforge_hwi::posted::PHASE } else { 0 }
}
