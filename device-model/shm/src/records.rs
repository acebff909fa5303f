//! Rings of records: slots of a header word, and the data after it.
//!
//! A record is numbered. Record `n` lies in slot `n` modulo the ring's length, which is a power of
//! two. Every number thus leads to a slot of the ring, and accesses need no checks of their own.
//! The writer stores the data of a record before its header.
//!
//! UNSAFETY: dereferences addresses in a mapping. Each is the ring's base plus an offset below the
//! ring's length. The constructor has compared that length with the window's, and checked the
//! alignment.
#![allow(unsafe_code)]

use std::{
    borrow::Borrow,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::MemoryError;
use crate::window::Window;

/// Bytes of a word.
const WORD: usize = 8;

/// A ring of records in slots of `STRIDE` bytes, which its owner empties. It holds its window, or
/// borrows it.
#[derive(Clone, Debug)]
pub struct Records<const STRIDE: usize, W = Window> {
    window: W,
    /// Number of slots minus 1.
    mask: u64,
}

impl<const STRIDE: usize, W: Borrow<Window>> Records<STRIDE, W> {
    const LAYOUT: () =
        assert!(STRIDE.is_multiple_of(WORD) && STRIDE > WORD, "slots of a header and whole words of data");

    /// Returns the ring that fills `window`.
    ///
    /// # Errors
    /// [`MemoryError::SlotCount`] if the window is not a power of two of slots,
    /// [`MemoryError::Misaligned`] if it is not aligned to 8 bytes in memory,
    /// [`MemoryError::ReadOnly`].
    #[inline]
    pub fn new(window: W) -> Result<Self, MemoryError> {
        let () = Self::LAYOUT;
        let memory = window.borrow();
        let count = memory.len() / STRIDE as u64;
        if !count.is_power_of_two() || !memory.len().is_multiple_of(STRIDE as u64) {
            return Err(MemoryError::SlotCount { count: count as u32 });
        }

        if !memory.base_address().is_multiple_of(WORD) {
            return Err(MemoryError::Misaligned { offset: 0, align: WORD as u64 });
        }
        if !memory.is_writable() {
            return Err(MemoryError::ReadOnly { offset: 0 });
        }

        Ok(Self { window, mask: count - 1 })
    }

    /// Returns the number of slots.
    #[inline]
    pub fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the address of a word of record `number`'s slot. Word 0 is the header. A word beyond
    /// the slot is taken modulo its length.
    #[inline]
    fn word(&self, number: u64, word: usize) -> *mut u64 {
        let slot = (number & self.mask) as usize * STRIDE;
        // SAFETY: a word of a slot below the count, all of which are in the window.
        unsafe { self.window.borrow().base_pointer().add(slot + word % (STRIDE / WORD) * WORD).cast() }
    }

    /// Loads the header of record `number`'s slot with acquire order.
    #[inline]
    pub fn header(&self, number: u64) -> u64 {
        // SAFETY: in bounds and aligned; the mapping is alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.word(number, 0)) }.load(Ordering::Acquire)
    }

    /// Loads the header of record `number`'s slot with acquire order, and then the first word of
    /// data, which belongs to that header or a later one.
    #[inline]
    pub fn header_and_word(&self, number: u64) -> (u64, u64) {
        let header = self.header(number);
        // SAFETY: as for the header.
        let word = unsafe { AtomicU64::from_ptr(self.word(number, 1)) }.load(Ordering::Relaxed);
        (header, word)
    }

    /// Loads data of record `number`'s slot, from the first word after the header on. `data` should
    /// have no more words than follow there; further ones come from the slot's start again.
    #[inline]
    pub fn data(&self, number: u64, data: &mut [[u8; WORD]]) {
        for (index, bytes) in data.iter_mut().enumerate() {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(self.word(number, index + 1)) };
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Stores records of one word from number `first` on, all with the same header, each as
    /// [`Records::put`] does.
    #[inline(always)]
    pub fn put_words(&self, first: u64, header: u64, words: &[[u8; WORD]]) {
        // The fields of `self` are read once: the compiler can't know that the stores leave them as
        // they are.
        let (base, mask) = (self.window.borrow().base_pointer(), self.mask);
        let mut number = first;
        for word in words {
            // SAFETY: a slot of the ring, all of which are in the window.
            let slot = unsafe { base.add((number & mask) as usize * STRIDE) };
            // SAFETY: a slot has at least two words.
            let data = unsafe { slot.add(WORD) };
            // SAFETY: in bounds and aligned; the mapping is writable, and alive as long as `self`.
            unsafe { AtomicU64::from_ptr(data.cast()) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(slot.cast()) }.store(header, Ordering::Release);
            number = number.wrapping_add(1);
        }
    }

    /// Stores data in record `number`'s slot, from the first word after the header on, and then its
    /// header with release order. `data` should have no more words than follow there; further ones
    /// go to the slot's start again.
    #[inline(always)]
    pub fn put(&self, number: u64, header: u64, data: &[[u8; WORD]]) {
        for (index, bytes) in data.iter().enumerate() {
            // SAFETY: in bounds and aligned; the mapping is writable, and alive as long as `self`.
            let word = unsafe { AtomicU64::from_ptr(self.word(number, index + 1)) };
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.set_header(number, header);
    }

    /// Stores the header of record `number`'s slot with release order.
    #[inline]
    pub fn set_header(&self, number: u64, header: u64) {
        // SAFETY: as above; the window is mapped for writing.
        unsafe { AtomicU64::from_ptr(self.word(number, 0)) }.store(header, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;

    const STRIDE: usize = 128;

    /// Returns memory of this number of slots.
    fn slots(count: u64) -> Window {
        let memory = SharedMemory::create("records", 4096).unwrap();
        memory.window(0, count * STRIDE as u64).unwrap()
    }

    fn ring(count: u64) -> (Window, Records<STRIDE>) {
        let window = slots(count);
        (window.clone(), Records::new(window).unwrap())
    }

    #[test]
    fn a_record_lies_in_the_slot_of_its_number_modulo_the_ring() {
        let (window, ring) = ring(4);
        assert_eq!(ring.count(), 4);
        for slot in 0..4 {
            window.store_record(slot * STRIDE as u64, slot + 1, slot + 10).unwrap();
        }

        for number in [0, 3, 4, 7, u64::MAX] {
            let slot = number % 4;
            assert_eq!(ring.header_and_word(number), (slot + 1, slot + 10));
        }

        ring.set_header(6, 0);
        assert_eq!((ring.header(2), ring.header(3)), (0, 4));
    }

    #[test]
    fn record_data_are_the_bytes_after_the_header() {
        let (window, ring) = ring(2);
        let bytes: Vec<u8> = (0..STRIDE as u8).collect();
        window.write(STRIDE as u64, &bytes).unwrap();

        let mut data = [[0; 8]; 3];
        ring.data(1, &mut data);
        assert_eq!(data.as_flattened(), &bytes[8..32]);
    }

    #[test]
    fn a_record_that_was_put_is_read_through_a_borrowed_window() {
        let window = slots(2);
        let ring = Records::<STRIDE, _>::new(&window).unwrap();

        ring.put(3, 7, &[[1; 8], [2; 8]]);

        let mut data = [[0; 8]; 2];
        ring.data(3, &mut data);
        assert_eq!((ring.header(1), data), (7, [[1; 8], [2; 8]]));
        assert_eq!(ring.header_and_word(0), (0, 0));

        ring.put_words(u64::MAX, 9, &[[3; 8], [4; 8]]);
        let word = |byte| u64::from_ne_bytes([byte; 8]);
        assert_eq!([1, 0].map(|number| ring.header_and_word(number)), [(9, word(3)), (9, word(4))]);
    }

    #[test]
    fn other_memory_is_refused() {
        let three = Records::<STRIDE>::new(slots(3)).unwrap_err();
        assert_eq!(three, MemoryError::SlotCount { count: 3 });

        let misaligned = slots(4).window(4, STRIDE as u64).unwrap();
        let refused = Records::<STRIDE>::new(misaligned).unwrap_err();
        assert_eq!(refused, MemoryError::Misaligned { offset: 0, align: 8 });
    }
}
