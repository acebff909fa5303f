//! Reception counters: 8 bytes of memory that direct puts decrement.

use std::sync::atomic::Ordering;

use nicforge_driver::{DmaBuffer, runtime::note_store};
use nicforge_shm::SharedU64;

use crate::{Error, Store, address::check_range, store_offset};

/// A counter in memory. The unit subtracts the length of each packet of a put from it once the
/// packet's data are in memory.
///
/// Software sets the counter to the number of expected bytes, and waits until it is 0. The memory
/// must live as long as puts to the counter may come.
#[derive(Clone, Debug)]
pub struct Counter {
    word: SharedU64,
    address: u64,
}

impl Counter {
    /// Returns the counter at `offset` of a buffer, a multiple of 8.
    ///
    /// # Errors
    /// [`Error::Driver`] for an offset outside the buffer or one that is not aligned;
    /// [`crate::DescriptorError::Address`] for memory that the unit cannot reach.
    pub fn new(buffer: &DmaBuffer, offset: u64) -> Result<Self, Error> {
        let word = buffer.u64(offset)?;
        let address = buffer.iova() + offset;
        check_range(address, 8)?;
        Ok(Self { word, address })
    }

    /// Sets the number of expected bytes.
    pub fn set(&self, bytes: u64) {
        self.word.store(bytes, Ordering::Release);
        note_store();
    }

    /// Adds expected bytes, also while puts arrive.
    pub fn expect(&self, bytes: u64) {
        self.word.fetch_add(bytes, Ordering::AcqRel);
        note_store();
    }

    /// Returns the number of bytes that are still expected. All data of a put are there when its
    /// bytes are no longer in this number.
    #[inline]
    pub fn left(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Returns whether all expected bytes are there.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.left() == 0
    }

    /// Returns the address for the unit.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the offset by which a put names the counter, from a base address of the same
    /// subgroup.
    ///
    /// # Errors
    /// [`crate::DescriptorError`] when the counter lies in front of the base, or at no multiple of
    /// 8 from it.
    pub fn offset(&self, base: u64) -> Result<u64, Error> {
        Ok(store_offset(self.address.wrapping_sub(base), Store::Add)?)
    }
}
