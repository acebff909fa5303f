//! The MSI-X table and its pending bits.

use std::ops::Range;

/// Bytes of a table entry: message address (8), message data (4), vector control (4).
const ENTRY: usize = 16;
/// Offset of the vector control word in an entry. Bit 0 masks the vector.
const CONTROL: usize = 12;
/// Bit of the vector control word that masks the vector.
const MASK: u8 = 1;

/// Largest number of bytes that one write changes. Bytes beyond it are ignored.
pub const MAX_TABLE_WRITE: usize = 512;

/// The table of a function's vectors (1 to 2048), and their pending bits.
pub struct MsixTable {
    entries: Vec<[u8; ENTRY]>,
    pending: Vec<u64>,
}

/// Pending vectors that a write unmasked. They can be delivered unless the function mask is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmasked {
    /// Vector that bit 0 of `bits` stands for.
    first: usize,
    /// Bit `i` stands for vector `first + i`. A write of [`MAX_TABLE_WRITE`] bytes touches fewer
    /// than 64 entries.
    bits: u64,
}

impl Iterator for Unmasked {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.bits == 0 {
            return None;
        }

        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;

        u16::try_from(self.first + bit).ok()
    }
}

impl MsixTable {
    /// Returns a table in which every vector is masked.
    pub fn new(vectors: u16) -> Self {
        let vectors = usize::from(vectors);
        let mut table = Self { entries: vec![[0; ENTRY]; vectors], pending: vec![0; vectors.div_ceil(64)] };
        table.reset();
        table
    }

    /// Returns the number of vectors.
    pub fn vectors(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Reads the table at a byte offset. Bytes after its end read as zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (position, byte) in data.iter_mut().enumerate() {
            *byte = byte_offset(offset, position)
                .and_then(|at| Some(self.entries.get(at / ENTRY)?[at % ENTRY]))
                .unwrap_or(0);
        }
    }

    /// Writes the table at a byte offset, at most [`MAX_TABLE_WRITE`] bytes. Reserved bits stay
    /// zero. Bytes after the end are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Unmasked {
        let first = usize::try_from(offset).map_or(usize::MAX, |offset| offset / ENTRY);
        let mut unmasked = Unmasked { first, bits: 0 };
        for (position, byte) in data.iter().take(MAX_TABLE_WRITE).enumerate() {
            let Some(at) = byte_offset(offset, position) else { break };
            let Some(entry) = self.entries.get_mut(at / ENTRY) else { break };

            let writable = match at % ENTRY {
                // The message address is a multiple of 4.
                0 => 0xfc,
                CONTROL => MASK,
                // The other bytes of vector control are reserved.
                13..=15 => 0,
                _ => 0xff,
            };

            let old = std::mem::replace(&mut entry[at % ENTRY], byte & writable);
            let clears_mask = at % ENTRY == CONTROL && old & !byte & MASK != 0;
            if clears_mask && self.is_pending((at / ENTRY) as u16) {
                unmasked.bits |= 1 << (at / ENTRY - first);
            }
        }

        unmasked
    }

    /// Reads the pending bits at a byte offset. Bytes after their end read as zero. Software can't
    /// write them.
    pub fn read_pba(&self, offset: u64, data: &mut [u8]) {
        for (position, byte) in data.iter_mut().enumerate() {
            *byte = byte_offset(offset, position)
                .and_then(|at| Some(self.pending.get(at / 8)?.to_le_bytes()[at % 8]))
                .unwrap_or(0);
        }
    }

    /// Returns whether a vector may not be delivered, given the function mask of the capability. A
    /// vector that does not exist counts as masked.
    pub fn is_masked(&self, vector: u16, function_masked: bool) -> bool {
        function_masked
            || self.entries.get(usize::from(vector)).is_none_or(|entry| entry[CONTROL] & MASK != 0)
    }

    /// Sets a vector's pending bit.
    pub fn set_pending(&mut self, vector: u16) {
        if vector < self.vectors() {
            self.pending[usize::from(vector) / 64] |= 1 << (vector % 64);
        }
    }

    /// Clears a vector's pending bit. Returns whether it was set.
    pub fn clear_pending(&mut self, vector: u16) -> bool {
        let was_pending = self.is_pending(vector);
        if was_pending {
            self.pending[usize::from(vector) / 64] &= !(1 << (vector % 64));
        }
        was_pending
    }

    /// Returns whether a vector's pending bit is set.
    pub fn is_pending(&self, vector: u16) -> bool {
        self.pending.get(usize::from(vector) / 64).is_some_and(|word| word & (1 << (vector % 64)) != 0)
    }

    /// Returns the pending vectors whose own mask is clear. They can be delivered when the function
    /// mask is cleared or MSI-X is enabled.
    pub fn deliverable(&self) -> impl Iterator<Item = u16> {
        self.pending
            .iter()
            .enumerate()
            .flat_map(|(word_index, &bits)| Unmasked { first: word_index * 64, bits })
            .filter(|&vector| !self.is_masked(vector, false))
    }

    /// Returns the message address and data of a vector, or zeros if it does not exist.
    pub fn address_data(&self, vector: u16) -> (u64, u32) {
        self.entries.get(usize::from(vector)).map_or((0, 0), |entry| {
            (u64::from_le_bytes(bytes(entry, 0..8)), u32::from_le_bytes(bytes(entry, 8..12)))
        })
    }

    /// Clears all pending bits. Masks stay.
    pub fn clear_all_pending(&mut self) {
        self.pending.fill(0);
    }

    /// Masks every vector, zeroes its address and data, and clears all pending bits.
    pub fn reset(&mut self) {
        self.clear_all_pending();
        for entry in &mut self.entries {
            *entry = [0; ENTRY];
            entry[CONTROL] = MASK;
        }
    }
}

/// Returns `offset + position`, or `None` on overflow.
fn byte_offset(offset: u64, position: usize) -> Option<usize> {
    usize::try_from(offset).ok()?.checked_add(position)
}

/// Returns `N` bytes of a table entry. `range` has this length.
fn bytes<const N: usize>(entry: &[u8; ENTRY], range: Range<usize>) -> [u8; N] {
    let mut out = [0; N];
    for (out, byte) in out.iter_mut().zip(&entry[range]) {
        *out = *byte;
    }
    out
}
