//! Mirror words that are written when their value changes.

use std::sync::atomic::Ordering;

use nicforge_shm::{SharedU32, SharedU64};

/// A word in mapped memory that a [`MirrorWord`] can own.
pub trait Word {
    /// Content of the word.
    type Value: Copy + Default + Eq;

    /// Stores a value with release order.
    fn store_release(&self, value: Self::Value);
}

impl Word for SharedU32 {
    type Value = u32;

    #[inline]
    fn store_release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

impl Word for SharedU64 {
    type Value = u64;

    #[inline]
    fn store_release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}

/// A word of a mirror and the value that clients see in it.
///
/// A store of the same value would make every reader fetch its cache line again, so only a change
/// is stored. All stores have release order: a client that sees a value sees what the NIC has
/// stored before it.
#[derive(Clone, Debug)]
pub struct MirrorWord<W: Word> {
    word: W,
    mirrored: W::Value,
}

impl<W: Word> MirrorWord<W> {
    /// Returns a word that is 0 in memory, as in the windows of a new client.
    pub fn new(word: W) -> Self {
        Self { word, mirrored: W::Value::default() }
    }

    /// Returns the value that clients see.
    #[inline]
    pub fn mirrored(&self) -> W::Value {
        self.mirrored
    }

    /// Makes a value visible to clients: stores it, unless they see it already.
    #[inline]
    pub fn publish(&mut self, value: W::Value) {
        if value != self.mirrored {
            self.mirrored = value;
            self.word.store_release(value);
        }
    }

    /// Makes 0 visible to clients. It is stored in any case, because the memory may have another
    /// content than the value that was stored last.
    pub fn clear(&mut self) {
        self.mirrored = W::Value::default();
        self.word.store_release(self.mirrored);
    }
}

#[cfg(test)]
mod tests {
    use nicforge_shm::SharedMemory;

    use super::*;

    #[test]
    fn only_a_change_is_stored() {
        let memory = SharedMemory::create("mirror", 4096).unwrap();
        let stored = memory.u64(8).unwrap();
        let mut word = MirrorWord::new(memory.u64(8).unwrap());

        word.publish(7);
        assert_eq!((word.mirrored(), stored.load(Ordering::Acquire)), (7, 7));

        // A second store of 7 would overwrite this value.
        stored.store(1, Ordering::Release);
        word.publish(7);
        assert_eq!(stored.load(Ordering::Acquire), 1);
        word.publish(8);
        assert_eq!(stored.load(Ordering::Acquire), 8);
    }

    #[test]
    fn a_new_word_assumes_zeroed_memory_and_clear_zeroes_it() {
        let memory = SharedMemory::create("mirror", 4096).unwrap();
        let stored = memory.u32(4).unwrap();
        stored.store(5, Ordering::Release);

        let mut word = MirrorWord::new(memory.u32(4).unwrap());
        word.publish(0);
        assert_eq!(stored.load(Ordering::Acquire), 5);

        word.clear();
        assert_eq!((word.mirrored(), stored.load(Ordering::Acquire)), (0, 0));
    }
}
