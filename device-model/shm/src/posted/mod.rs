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
/// An implementation must accept every cell number below [`Cells::count`]. With other numbers it
/// may do anything except fault. Headers are atomic 64-bit words. Data is not atomic: the headers
/// order it.
pub trait Cells {
    /// Returns the number of cells: a power of two, at most 2^30, the same at each call.
    fn count(&self) -> usize;
    /// Loads a header with acquire order.
    fn header_acquire(&self, cell: usize) -> u64;
    /// Stores a header with release order.
    fn set_header_release(&self, cell: usize, header: u64);
    /// Stores a header with relaxed order.
    fn set_header_relaxed(&self, cell: usize, header: u64);
    /// Reads the data of a cell, each byte once.
    fn data_read(&self, cell: usize, data: &mut [u64; CELL_WORDS]);
    /// Writes the data of a cell.
    fn data_write(&self, cell: usize, data: &[u64; CELL_WORDS]);

    /// Reads the first `len` bytes of a cell's data, at most [`CELL_DATA`], each once. The rest of
    /// `data` is arbitrary afterwards.
    #[inline]
    fn data_read_bytes(&self, cell: usize, data: &mut [u64; CELL_WORDS], len: usize) {
        let _ = len;
        self.data_read(cell, data);
    }

    /// Writes the first bytes of a cell's data, at most [`CELL_DATA`]. The content of the others is
    /// unspecified afterwards.
    #[inline]
    fn data_write_bytes(&self, cell: usize, bytes: &[u8]) {
        let mut data = [0u64; CELL_WORDS];
        let buffer = zerocopy::IntoBytes::as_mut_bytes(&mut data);
        for (to, from) in buffer.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.data_write(cell, &data);
    }
}

/// Returns the phase of a running count of cells, as a header bit. The phase changes with each lap
/// around the ring.
#[inline]
fn phase_of(position: u32, cell_count: u32) -> u64 {
    if position & cell_count == 0 { nicforge_hwi::posted::PHASE } else { 0 }
}
