//! The posted-write ring: how a client writes registers that have effects without a trap.
//!
//! A ring is an array of 64-byte *cells* in mapped BAR memory, a power of two of them. A *record*
//! is one register write {BAR, offset, length, data} and takes one or more consecutive cells
//! (modulo the ring). Each cell starts with an 8-byte header and carries 56 bytes of data. Bit 63
//! of the header is the *phase*: the ring starts zeroed, the producer publishes with phase 1 on its
//! first lap, 0 on its second, and so on, so that a cell is valid when its phase bit is the one of
//! the consumer's lap. The cells of a record are published last to first, the first with release
//! order; the consumer reads the first header with acquire order and then knows that the whole
//! record is there.
//!
//! The engine tells how many cells it has consumed in [`crate::attachment::mirror::RING_HEAD`].

/// Bytes in a cell.
pub const CELL: usize = 64;
/// Bytes of data in a cell.
pub const CELL_DATA: usize = 56;
/// The longest record's data in bytes.
pub const MAX_DATA: usize = 512;
/// The most cells a record takes.
pub const MAX_CELLS: usize = MAX_DATA.div_ceil(CELL_DATA);
/// The fewest cells a ring may have.
pub const MIN_RING_CELLS: usize = 64;
/// The most cells a ring may have.
pub const MAX_RING_CELLS: usize = 1 << 16;

/// Header bit 63: the phase.
pub const PHASE: u64 = 1 << 63;
/// Header bits 31..0: offset in the BAR in bytes. In a cell that continues a record: 0.
pub const OFFSET_MASK: u64 = 0xffff_ffff;
/// Header bits 41..32: length of the data in bytes, 1 to [`MAX_DATA`]. In a cell that continues a
/// record: 0.
pub const LENGTH_SHIFT: u32 = 32;
/// Mask of the length once shifted.
pub const LENGTH_MASK: u64 = 0x3ff;
/// Header bits 46..44: the BAR.
pub const BAR_SHIFT: u32 = 44;
/// Mask of the BAR once shifted.
pub const BAR_MASK: u64 = 0x7;

/// The header of a record's first cell, without the phase.
#[inline]
pub const fn header(bar: u8, offset: u32, length: usize) -> u64 {
    offset as u64 | ((length as u64 & LENGTH_MASK) << LENGTH_SHIFT) | ((bar as u64 & BAR_MASK) << BAR_SHIFT)
}

/// {BAR, offset, length} of a header.
#[inline]
pub const fn fields(header: u64) -> (u8, u32, usize) {
    (
        ((header >> BAR_SHIFT) & BAR_MASK) as u8,
        (header & OFFSET_MASK) as u32,
        ((header >> LENGTH_SHIFT) & LENGTH_MASK) as usize,
    )
}

/// Cells that a record of `length` bytes of data takes.
#[inline]
pub const fn cells(length: usize) -> usize {
    if length <= CELL_DATA { 1 } else { length.div_ceil(CELL_DATA) }
}
