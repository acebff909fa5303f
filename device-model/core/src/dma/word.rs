//! Words of client memory, which are read and written in one access.

use std::sync::atomic::Ordering;

use nicforge_shm::{MemoryError, SharedU64, Window};

/// A change of a 64-bit word of client memory by one atomic operation: see
/// [`crate::context::Context::update_u64`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordUpdate {
    /// Stores this value.
    Swap(u64),
    /// Adds this value, with wrap-around.
    Add(u64),
    /// Sets the bits of this value.
    SetBits(u64),
    /// Clears the bits of this value.
    ClearBits(u64),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// Value that the word must have.
        expected: u64,
        /// Value to store.
        new: u64,
    },
}

impl WordUpdate {
    /// Changes a word, with acquire and release order. Returns its previous value.
    pub(super) fn apply(self, word: &SharedU64) -> u64 {
        let order = Ordering::AcqRel;
        match self {
            Self::Swap(value) => word.swap(value, order),
            Self::Add(value) => word.fetch_add(value, order),
            Self::SetBits(bits) => word.fetch_or(bits, order),
            Self::ClearBits(bits) => word.fetch_and(!bits, order),
            Self::CompareSwap { expected, new } => {
                match word.compare_exchange(expected, new, order, Ordering::Acquire) {
                    Ok(previous) | Err(previous) => previous,
                }
            }
        }
    }
}

/// Reads from a window. An aligned word of 1, 2, 4 or 8 bytes is one atomic load.
#[inline]
pub(super) fn load(window: &Window, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
    let loaded = match out.len() {
        1 => window.load_u8_relaxed(offset).map(|word| out.copy_from_slice(&[word])),
        2 => window.load_u16_relaxed(offset).map(|word| out.copy_from_slice(&word.to_ne_bytes())),
        4 => window.load_u32_relaxed(offset).map(|word| out.copy_from_slice(&word.to_ne_bytes())),
        8 => window.load_u64_relaxed(offset).map(|word| out.copy_from_slice(&word.to_ne_bytes())),
        _ => return window.read(offset, out),
    };

    match loaded {
        Err(MemoryError::Misaligned { .. }) => window.read(offset, out),
        loaded => loaded,
    }
}

/// Writes to a window. An aligned word of 1, 2, 4 or 8 bytes is one atomic store.
#[inline]
pub(super) fn store(window: &Window, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
    let stored = match *data {
        [byte] => window.store_u8_relaxed(offset, byte),
        [a, b] => window.store_u16_relaxed(offset, u16::from_ne_bytes([a, b])),
        [a, b, c, d] => window.store_u32_relaxed(offset, u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => {
            window.store_u64_relaxed(offset, u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
        }
        _ => return window.write(offset, data),
    };

    match stored {
        Err(MemoryError::Misaligned { .. }) => window.write(offset, data),
        stored => stored,
    }
}
