//! The notification queue: the card produces entries, the port consumes them.

use std::sync::atomic::Ordering;

use nicforge_driver::{Device, DmaBuffer, HugePages, runtime::note_store};
use nicforge_hwi::extoll_rma::{self as hw, MAX_ENTRIES, MIN_ENTRIES};
use nicforge_shm::SharedU64;

use crate::Error;

/// Bytes of an entry.
const ENTRY: u64 = size_of::<hw::Notification>() as u64;
/// Offset of the address in an entry, after the head.
const ENTRY_ADDRESS: u64 = 8;

/// The consumer's side of the notification queue.
pub(crate) struct Queue {
    buffer: DmaBuffer,
    entries: u64,
    /// Number of entries taken so far.
    taken: u64,
    /// The read pointer, which the card reads to find free entries.
    pointer: SharedU64,
}

impl Queue {
    /// Allocates an empty queue of `entries` entries, which the card does not know yet. `pointer`
    /// is the read pointer.
    ///
    /// # Errors
    /// [`Error::QueueLength`], and errors of the driver.
    pub(crate) fn new(device: &Device, entries: u32, pointer: SharedU64) -> Result<Self, Error> {
        if !entries.is_power_of_two() || !(MIN_ENTRIES..=MAX_ENTRIES).contains(&entries.into()) {
            return Err(Error::QueueLength { entries });
        }

        let buffer = device.dma_buffer((u64::from(entries) * ENTRY) as usize, HugePages::Never)?;
        pointer.store(0, Ordering::Release);
        Ok(Self { buffer, entries: entries.into(), taken: 0, pointer })
    }

    /// Returns the address of the first entry for the card.
    pub(crate) fn base(&self) -> u64 {
        self.buffer.iova()
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the offset of the oldest entry.
    fn offset(&self) -> u64 {
        (self.taken & (self.entries - 1)) * ENTRY
    }

    /// Returns the oldest entry, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Result<Option<hw::Notification>, Error> {
        let offset = self.offset();

        // The card writes the head of an entry last.
        let head = self.buffer.window().load_u64_acquire(offset)?;
        if head == 0 {
            return Ok(None);
        }

        let address = self.buffer.window().load_u64_relaxed(offset + ENTRY_ADDRESS)?;
        Ok(Some(hw::Notification { head, address }))
    }

    /// Frees the oldest entry: clears its head, and advances the read pointer.
    #[inline]
    pub(crate) fn free(&mut self) -> Result<(), Error> {
        self.buffer.window().store_u64_relaxed(self.offset(), 0)?;

        self.taken += 1;
        self.pointer.store(self.taken, Ordering::Release);
        note_store();
        Ok(())
    }
}
