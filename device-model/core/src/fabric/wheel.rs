//! The slots of a timing wheel that have events.
//!
//! The fabric's schedule and networks without a machine (`nicforge_network`) share this bitmap.
//! Their wheels have a slot for each of the next [`SLOTS`] nanoseconds.

/// Slots of a wheel, each of a nanosecond.
pub const SLOTS: usize = 1 << 12;
/// Slots of a word of the bitmap.
const WORD: usize = 64;

// The summary has a bit for each word of the bitmap.
const _: () = assert!(SLOTS / WORD <= WORD);

/// The slots of a timing wheel that have events.
///
/// The slot of a time is the time modulo [`SLOTS`]. All events of a wheel are within [`SLOTS`]
/// nanoseconds from its base on, so that a slot stands for one time.
#[derive(Debug)]
pub struct OccupiedSlots {
    /// Bit mask of the slots with events.
    words: [u64; SLOTS / WORD],
    /// Bit mask of the words that are not zero.
    summary: u64,
}

impl Default for OccupiedSlots {
    fn default() -> Self {
        Self { words: [0; SLOTS / WORD], summary: 0 }
    }
}

impl OccupiedSlots {
    /// Records that a slot, below [`SLOTS`], has events.
    #[inline(always)]
    pub fn insert(&mut self, slot: usize) {
        let slot = slot % SLOTS;
        self.words[slot / WORD] |= 1 << (slot % WORD);
        self.summary |= 1 << (slot / WORD);
    }

    /// Records that a slot, below [`SLOTS`], has no events.
    #[inline(always)]
    pub fn remove(&mut self, slot: usize) {
        let slot = slot % SLOTS;
        let word = &mut self.words[slot / WORD];
        *word &= !(1 << (slot % WORD));
        self.summary &= !(u64::from(*word == 0) << (slot / WORD));
    }

    /// Returns the time of the earliest event of a wheel that starts at the time `base`.
    #[inline]
    pub fn first_time(&self, base: u64) -> Option<u64> {
        if self.summary == 0 {
            return None;
        }

        // The slots from that of `base` to the end come first, and those before it afterwards.
        let start = base as usize % SLOTS;
        let (word, bit) = (start / WORD, start % WORD);
        let here = self.words[word] & (u64::MAX << bit);
        let slot = if here != 0 {
            word * WORD + here.trailing_zeros() as usize
        } else {
            let after = self.summary & (u64::MAX << word << 1);
            let words = if after != 0 { after } else { self.summary };
            let word = words.trailing_zeros() as usize % WORD;
            word * WORD + self.words[word].trailing_zeros() as usize
        };

        let ahead = slot.wrapping_sub(start) % SLOTS;
        Some(base + ahead as u64)
    }
}
