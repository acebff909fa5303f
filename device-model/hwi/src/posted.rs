//! The posted-write ring, by which a client writes registers with side effects without a trap.
//!
//! A ring is an array of 64-byte *cells* in mapped BAR memory; their number is a power of two. A
//! *record* is one register write {BAR, offset, length, data}. It takes one or more consecutive
//! cells, modulo the ring. Each cell starts with an 8-byte header and carries 56 bytes of data.
//!
//! Bit 63 of the header is the *phase*. The ring starts zeroed. The producer publishes with phase 1
//! on its first lap, 0 on its second, and so on. A cell is valid if its phase is that of the
//! consumer's lap.
//!
//! The producer publishes the cells of a record last to first, and the first cell with release
//! order. The consumer reads the first header with acquire order; the whole record is then visible.
//!
//! The engine publishes the number of cells consumed in [`crate::attachment::mirror::RING_HEAD`].

/// Size of a cell in bytes.
pub const CELL: usize = 64;
/// Size of a cell's data in bytes.
pub const CELL_DATA: usize = 56;
/// Largest size of a record's data in bytes.
pub const MAX_DATA: usize = 512;
/// Largest number of cells of a record.
pub const MAX_CELLS: usize = MAX_DATA.div_ceil(CELL_DATA);
/// Smallest number of cells of a ring.
pub const MIN_RING_CELLS: usize = 64;
/// Largest number of cells of a ring.
pub const MAX_RING_CELLS: usize = 1 << 16;

/// Header bit 63: the phase.
pub const PHASE: u64 = 1 << 63;
/// Header bits 31..0: offset in the BAR in bytes. It is 0 in a continuation cell.
pub const OFFSET_MASK: u64 = 0xffff_ffff;
/// Header bits 41..32: length of the data in bytes, 1 to [`MAX_DATA`]. It is 0 in a continuation
/// cell.
pub const LENGTH_SHIFT: u32 = 32;
/// Mask of the length once shifted.
pub const LENGTH_MASK: u64 = 0x3ff;
/// Header bits 46..44: number of the BAR.
pub const BAR_SHIFT: u32 = 44;
/// Mask of the BAR once shifted.
pub const BAR_MASK: u64 = 0x7;

/// Returns the header of a record's first cell, without the phase.
#[inline]
pub const fn header(bar: u8, offset: u32, length: usize) -> u64 {
    offset as u64 | ((length as u64 & LENGTH_MASK) << LENGTH_SHIFT) | ((bar as u64 & BAR_MASK) << BAR_SHIFT)
}

/// The register write that the header of a record's first cell describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Number of the BAR.
    pub bar: u8,
    /// Offset in the BAR in bytes.
    pub offset: u32,
    /// Length of the data in bytes.
    pub length: usize,
}

/// Returns the fields of the header of a record's first cell.
#[inline]
pub const fn decode(header: u64) -> RecordHeader {
    RecordHeader {
        bar: ((header >> BAR_SHIFT) & BAR_MASK) as u8,
        offset: (header & OFFSET_MASK) as u32,
        length: ((header >> LENGTH_SHIFT) & LENGTH_MASK) as usize,
    }
}

/// Returns the number of cells of a record with `length` bytes of data.
#[inline]
pub const fn cells(length: usize) -> usize {
    if length <= CELL_DATA { 1 } else { length.div_ceil(CELL_DATA) }
}
