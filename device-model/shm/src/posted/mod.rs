//! The two ends of a posted-write ring. Its layout is [`nicforge_hwi::posted`]'s.
//!
//! A client *pushes* register writes; the engine *peeks* at the oldest, replays it, and *pops* it
//! once the device took it. What flows back is one word, the number of cells consumed, in a page
//! that the client cannot write. Either end can be hostile: the consumer reads each record once and
//! takes nothing in it for granted; the producer believes no count that would let it overwrite what
//! may not have been read.
//!
//! Both ends are generic over [`Cells`], so that a model checker can stand in for the memory.
//! [`SharedCells`] is the implementation that shared memory has.

mod cells;
mod consumer;
mod producer;

pub use cells::{RingError, SharedCells};
pub use consumer::{Consumer, Peek, RecordRef};
pub use producer::{Producer, PushError};

use nicforge_hwi::posted::CELL_DATA;

/// 64-bit words of data in a cell.
pub const CELL_WORDS: usize = CELL_DATA / 8;

/// The memory of a ring: `count` cells of a header and [`CELL_WORDS`] words of data.
///
/// An implementation must accept every cell number below [`Cells::count`], and may do what it likes
/// but fault with others. Headers are atomic 64-bit words. Data is not: the headers order it.
pub trait Cells {
    /// How many cells there are: a power of two, at most 2^30, the same at each call.
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

    /// Reads the first `len` bytes of a cell's data, at most [`CELL_DATA`], each once; the others
    /// are arbitrary.
    #[inline]
    fn data_read_bytes(&self, cell: usize, data: &mut [u64; CELL_WORDS], len: usize) {
        let _ = len;
        self.data_read(cell, data);
    }

    /// Writes the first bytes of a cell's data, at most [`CELL_DATA`]; the others keep or lose what
    /// they were.
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

/// The phase of the lap that a running count of cells is in, as header bit.
#[inline]
fn phase_of(position: u32, count: u32) -> u64 {
    if position & count == 0 { nicforge_hwi::posted::PHASE } else { 0 }
}
